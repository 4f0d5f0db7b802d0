"""Feed-forward blocks: plain, gated, and experts of which each token passes a few."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from attnprof.models.architecture import Activation, Experts, Ffn

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu-tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu,
}
CLAMPED_SLOPE = 1.702


def activated(x: torch.Tensor, ffn: Ffn) -> torch.Tensor:
    """What lies between the matrices; of a gated block the gate is the first half of ``x``."""
    if not ffn.gated:
        return ACTIVATIONS[ffn.activation](x)
    gate, up = x.chunk(2, dim=-1)
    if ffn.clamp is None:
        return ACTIVATIONS[ffn.activation](gate) * up
    gate, up = gate.clamp(max=ffn.clamp), up.clamp(-ffn.clamp, ffn.clamp)
    return (up + 1) * (gate * torch.sigmoid(gate * CLAMPED_SLOPE))


class FeedForward(nn.Module):
    """Two matrices; gate and up are one, side by side."""

    def __init__(self, ffn: Ffn, hidden_size: int) -> None:
        super().__init__()
        self.ffn = ffn
        self.up = nn.Linear(hidden_size, ffn.width * (2 if ffn.gated else 1), bias=ffn.bias)
        self.down = nn.Linear(ffn.width, hidden_size, bias=ffn.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down(activated(self.up(x), self.ffn))
        return down


class MixtureOfExperts(nn.Module):
    """A router that chooses each token's experts, these experts, and a shared one.

    The tokens are sorted by expert, so that each expert that is chosen at all is one product of
    all its tokens; those that are not cost nothing.
    """

    def __init__(self, experts: Experts, hidden_size: int) -> None:
        super().__init__()
        self.experts = experts
        count, ffn = experts.num_experts, experts.expert
        up_width = ffn.width * (2 if ffn.gated else 1)
        self.router = nn.Linear(hidden_size, count, bias=experts.router_bias)
        self.choice_bias = None
        if experts.choice_bias:  # set by the balancing of the experts, and not by gradients
            self.choice_bias = nn.Parameter(torch.empty(count), requires_grad=False)
        self.up = nn.Parameter(torch.empty(count, up_width, hidden_size))
        self.down = nn.Parameter(torch.empty(count, hidden_size, ffn.width))
        self.up_bias = nn.Parameter(torch.empty(count, up_width)) if ffn.bias else None
        self.down_bias = nn.Parameter(torch.empty(count, hidden_size)) if ffn.bias else None
        self.shared = None if experts.shared is None else FeedForward(experts.shared, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, weights = self.route(x)
        num_active = self.experts.num_active
        by_expert, order = chosen.flatten().sort(stable=True)
        tokens = order // num_active
        counts = torch.bincount(by_expert, minlength=self.experts.num_experts).tolist()
        parts = []
        of_rows = weights.flatten()[order, None]
        rows_in = x[tokens]
        if self.experts.weights_inputs:
            rows_in = rows_in * of_rows.to(x.dtype)
        for expert, rows in enumerate(torch.split(rows_in, counts)):
            if rows.shape[0]:
                parts.append(self._expert(expert, rows))
        weighted = torch.cat(parts)
        if not self.experts.weights_inputs:
            weighted = weighted * of_rows
        out = torch.zeros_like(x).index_add(0, tokens, weighted.to(x.dtype))
        return out if self.shared is None else out + self.shared(x)

    def _expert(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        up_bias = None if self.up_bias is None else self.up_bias[expert]
        down_bias = None if self.down_bias is None else self.down_bias[expert]
        inner = activated(nn.functional.linear(rows, self.up[expert], up_bias), self.experts.expert)
        return nn.functional.linear(inner, self.down[expert], down_bias)

    def route(
        self, x: torch.Tensor, chosen: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's experts and their weights, ``[rows, num_active]`` both.

        Scores and the choice are computed in float32 where rows are narrower.

        Args:
            chosen: The experts, where another run has chosen them already.

        Source:
            DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 2.1.2; OpenAI 2025,
            "gpt-oss", arXiv:2508.10925, section 2.2.
        """
        experts = self.experts
        wide = torch.promote_types(x.dtype, torch.float32)
        if experts.router_is_wide and wide != x.dtype:
            bias = None if self.router.bias is None else self.router.bias.to(wide)
            logits = nn.functional.linear(x.to(wide), self.router.weight.to(wide), bias)
        else:
            logits = self.router(x).to(wide)
        scores = logits.sigmoid() if experts.router == "sigmoid" else logits.softmax(dim=-1)
        if chosen is None:
            chosen = self._best(scores)
        weights = scores.gather(-1, chosen)
        if experts.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return chosen, weights * experts.scaling

    def _best(self, scores: torch.Tensor) -> torch.Tensor:
        """The experts with the best scores, of the best groups where there are groups."""
        choice = scores if self.choice_bias is None else scores + self.choice_bias
        if self.experts.num_groups > 1:
            choice = self._in_best_groups(choice)
        return choice.topk(self.experts.num_active, dim=-1).indices

    def _in_best_groups(self, choice: torch.Tensor) -> torch.Tensor:
        experts = self.experts
        by_group = choice.view(choice.shape[0], experts.num_groups, -1)
        goodness = by_group.topk(experts.group_best, dim=-1).values.sum(dim=-1)
        best = goodness.topk(experts.num_active_groups, dim=-1).indices
        hidden = torch.ones_like(goodness, dtype=torch.bool).scatter(-1, best, False)
        return by_group.masked_fill(hidden[..., None], float("-inf")).flatten(-2)
