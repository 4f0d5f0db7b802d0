"""Blocks and whole models: embeddings, layers, final norm and head, from an architecture."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnprof.models.architecture import Architecture, Block, Experts
from attnprof.rope import Rope
from attnprof.workload import Workload
from attnprof.workloads.kv_caches import KvCache
from attnprof.workloads.positions import Rotary
from attnprof.workloads.precision import torch_dtype
from attnprof.workloads.transformer.attention import SelfAttention
from attnprof.workloads.transformer.ffn import FeedForward, MixtureOfExperts
from attnprof.workloads.transformer.kernels import Kernels
from attnprof.workloads.transformer.latent import LatentAttention
from attnprof.workloads.transformer.norms import new_norm
from attnprof.workloads.transformer.step import Meter, Segment, Step, unmetered
from attnprof.workloads.transformer.weights import fill_with_noise


class TransformerBlock(nn.Module):
    """One layer over the rows of a step."""

    def __init__(self, block: Block, hidden_size: int, index: int) -> None:
        super().__init__()
        kind = SelfAttention if block.attention.latent is None else LatentAttention
        self.attention = kind(block.attention, hidden_size, index)
        self.ffn: FeedForward | MixtureOfExperts
        if isinstance(block.ffn, Experts):
            self.ffn = MixtureOfExperts(block.ffn, hidden_size)
        else:
            self.ffn = FeedForward(block.ffn, hidden_size)

        def norms(*placements: str) -> nn.ModuleList | None:
            if block.placement not in placements:
                return None
            return nn.ModuleList(new_norm(hidden_size, block.norm) for _ in range(2))

        self.norms_before = norms("pre", "both")
        self.norms_within = norms("both")
        self.norms_after = norms("post")

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The hidden states ``[rows, hidden_size]`` after this layer."""
        x = self._joined(0, x, self.attention(self._normed(0, x, step), step), step)
        inner = self._normed(1, x, step)
        with step.part("ffn"):
            inner = self.ffn(inner)
        return self._joined(1, x, inner, step)

    def _normed(self, number: int, x: torch.Tensor, step: Step) -> torch.Tensor:
        if self.norms_before is None:
            return x
        with step.part("norm"):
            normed: torch.Tensor = self.norms_before[number](x)
        return normed

    def _joined(
        self, number: int, x: torch.Tensor, inner: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """The residual and what a part gave, normed where the layer norms there."""
        with step.part("norm"):
            if self.norms_within is not None:
                inner = self.norms_within[number](inner)
            x = x + inner
            return x if self.norms_after is None else self.norms_after[number](x)


class Transformer(nn.Module):
    """A decoder: tokens in, logits out.

    Its kernels are those of one backend, prepared for each kind of layer and length when they are
    first needed. Enter :meth:`pinned` around calls.
    """

    def __init__(self, architecture: Architecture, kernels: Kernels) -> None:
        super().__init__()
        self.architecture, self.kernels = architecture, kernels
        self.meter: Meter = unmetered
        self.checkpointing = False
        hidden_size, vocab_size = architecture.hidden_size, architecture.vocab_size
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.positions = None
        if architecture.num_positions is not None:
            self.positions = nn.Embedding(architecture.num_positions, hidden_size)
        self.blocks = nn.ModuleList(
            TransformerBlock(block, hidden_size, index)
            for index, block in enumerate(architecture.blocks)
        )
        self.final_norm = None
        if architecture.final_norm is not None:
            self.final_norm = new_norm(hidden_size, architecture.final_norm)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        if architecture.tied_head:
            self.head.weight = self.embedding.weight
        self._rotaries: dict[Rope, Rotary] = {}

    def pinned(self) -> AbstractContextManager[object]:
        """The pinned kernel, entered once around many calls."""
        return self.kernels.pinned()

    def step(self, segments: Sequence[Segment], *, keeps: bool = True) -> Step:
        """What one forward pass over ``segments`` shares."""
        return Step(segments, self.kernels, self._rotary, keeps=keeps, meter=self.meter)

    def _rotary(self, rope: Rope) -> Rotary:
        rotary = self._rotaries.get(rope)
        if rotary is None:
            workload = self.kernels.workload
            dtype = torch_dtype(workload.dtype)
            rotary = Rotary(rope, workload.kv_len, self.kernels.device, dtype)
            self._rotaries[rope] = rotary
        return rotary

    def forward(
        self,
        tokens: torch.Tensor,
        caches: Sequence[KvCache] | None = None,
        first_pos: int = 0,
        *,
        keeps: bool = True,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Logits ``[batch, n, vocab_size]`` of ``tokens [batch, n]``, the first at ``first_pos``.

        Args:
            caches: One a layer, that hold the ``first_pos`` tokens before.
            keeps: Whether the caches keep these tokens.
            last_only: Give the logits of each sequence's last token alone, as an engine does.
        """
        batch_size, num_tokens = tokens.shape
        segment = Segment(
            batch_size=batch_size, num_tokens=num_tokens, first_pos=first_pos, caches=caches
        )
        logits = self.run([tokens], self.step([segment], keeps=keeps), last_only=last_only)
        return logits.view(batch_size, -1, self.architecture.vocab_size)

    def run(
        self, tokens: Sequence[torch.Tensor], step: Step, *, last_only: bool = False
    ) -> torch.Tensor:
        """Logits ``[rows, vocab_size]`` of the tokens ``[batch, n]`` of each segment of a step."""
        x = self.embedded(tokens, step)
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(partial(block, step=step), x, use_reentrant=False)
            else:
                x = block(x, step)
        if last_only:
            x = last_rows(x, step)
        return self.logits(x, step)

    def embedded(self, tokens: Sequence[torch.Tensor], step: Step) -> torch.Tensor:
        """What the first layer is given, ``[rows, hidden_size]``."""
        with step.part("embedding"):
            flat = [ids.reshape(-1) for ids in tokens]
            x: torch.Tensor = self.embedding(flat[0] if len(flat) == 1 else torch.cat(flat))
            if self.architecture.embedding_scale != 1.0:
                x = x * self._embedding_scale(x)
        if self.positions is None:
            return x
        with step.part("position"):
            return x + torch.cat([self._learned(segment) for segment in step.segments])

    def _embedding_scale(self, x: torch.Tensor) -> torch.Tensor:
        """The factor in the dtype of the rows, to which Gemma rounds it."""
        return torch.tensor(self.architecture.embedding_scale, dtype=x.dtype, device=x.device)

    def _learned(self, segment: Segment) -> torch.Tensor:
        assert self.positions is not None
        first = self.architecture.first_position + segment.first_pos
        rows = self.positions.weight[first : first + segment.num_tokens]
        return rows.repeat(segment.batch_size, 1)

    def logits(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Logits of rows that all layers have passed."""
        if self.final_norm is not None:
            with step.part("norm"):
                x = self.final_norm(x)
        with step.part("head"):
            logits: torch.Tensor = self.head(x)
            cap = self.architecture.logit_softcap
            return logits if cap is None else cap * torch.tanh(logits / cap)


def last_rows(x: torch.Tensor, step: Step) -> torch.Tensor:
    """The rows of each sequence's last token."""
    last = [
        x[rows].view(segment.batch_size, segment.num_tokens, -1)[:, -1]
        for segment, rows in zip(step.segments, step.rows, strict=True)
    ]
    return last[0] if len(last) == 1 else torch.cat(last)


def build_transformer(
    architecture: Architecture,
    workload: Workload,
    device: torch.device,
    seed: int = 0,
    kind: str | None = None,
) -> Transformer:
    """The model with seeded random weights in the workload's dtype.

    Args:
        workload: Names the backend and the dtype; lengths are those of each call.
        kind: Of the device, where it is not torch's name for it.
    """
    with torch.device("meta"):
        model = Transformer(architecture, Kernels(workload, device, kind))
    model = model.to(torch_dtype(workload.dtype)).to_empty(device=device)
    if architecture.tied_head:
        model.head.weight = model.embedding.weight
    fill_with_noise(model, seed)
    return model.eval()
