"""Self-attention of one layer: projections, position, cache, kernel, output projection."""

import torch
from torch import nn

from attnprof.models.architecture import AttentionBlock, Temperature
from attnprof.variants import variant_named
from attnprof.workloads.kv_caches import KvCache, Pair
from attnprof.workloads.positions.rotary import turned
from attnprof.workloads.transformer.norms import new_norm
from attnprof.workloads.transformer.step import Segment, Step


class SelfAttention(nn.Module):
    """Queries, keys and values come out of one matrix product: their heads lie side by side."""

    def __init__(self, block: AttentionBlock, hidden_size: int, index: int) -> None:
        super().__init__()
        self.block, self.index = block, index
        self.num_heads = [block.num_q_heads, block.num_kv_heads, block.num_kv_heads]
        self.adds_bias = block.relative is not None or block.alibi
        self.num_turned = block.num_q_heads + block.num_kv_heads
        width = sum(self.num_heads) * block.head_dim
        has_bias = block.q_bias or block.k_bias or block.v_bias
        self.qkv = nn.Linear(hidden_size, width, bias=has_bias)
        self.out = nn.Linear(block.num_q_heads * block.head_dim, hidden_size, bias=block.o_bias)
        if block.q_norm is not None:
            self.q_norm = new_norm(block.head_dim, block.q_norm)
            self.k_norm = new_norm(block.head_dim, block.q_norm)
        self.sinks = nn.Parameter(torch.empty(block.num_q_heads)) if block.sinks else None

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Attention over the rows ``[rows, hidden_size]`` of a step."""
        with step.part("projection"):
            heads = self.qkv(x)
        seen = [self._attend(heads[rows], step, number) for number, rows in enumerate(step.rows)]
        together = seen[0] if len(seen) == 1 else torch.cat(seen)
        with step.part("projection"):
            attended: torch.Tensor = self.out(together)
        return attended

    def _attend(self, heads: torch.Tensor, step: Step, number: int) -> torch.Tensor:
        segment = step.segments[number]
        heads = heads.view(segment.batch_size, segment.num_tokens, -1, self.block.head_dim)
        q, k, v = self._placed(heads, step, number)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if segment.caches is not None:
            with step.part("cache"):
                k, v = cached(segment, segment.caches[self.index], k, v, keeps=step.keeps)
        bias = step.biases[number] if self.adds_bias else None
        out = attended(self.block, segment, step, q, k, v, self.sinks, bias)
        return out.transpose(1, 2).reshape(segment.num_rows, -1)

    def _placed(
        self, heads: torch.Tensor, step: Step, number: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, the first two normed and turned where the layer does so."""
        block = self.block
        if block.q_norm is None and block.rope is not None:
            with step.part("position"):
                cos, sin = step.angles(block.rope)[number]
                both = turned(heads[:, :, : self.num_turned], cos, sin)
            q, k = torch.split(both, self.num_heads[:2], dim=2)
            return q, k, heads[:, :, self.num_turned :]
        q, k, v = torch.split(heads, self.num_heads, dim=2)
        if not block.norms_turned:
            q, k = self._normed(q, k, step)
        if block.rope is not None:
            with step.part("position"):
                cos, sin = step.angles(block.rope)[number]
                q, k = turned(q, cos, sin), turned(k, cos, sin)
        if block.norms_turned:
            q, k = self._normed(q, k, step)
        if block.temperature is not None:
            with step.part("position"):
                q = q * sharpness(block.temperature, step.segments[number], q)
        return q, k, v

    def _normed(self, q: torch.Tensor, k: torch.Tensor, step: Step) -> Pair:
        if self.block.q_norm is None:
            return q, k
        with step.part("norm"):
            return self.q_norm(q), self.k_norm(k)


def sharpness(temperature: Temperature, segment: Segment, q: torch.Tensor) -> torch.Tensor:
    """What the queries ``q`` of a segment are multiplied with, ``[num_tokens, 1, 1]``.

    Source:
        Nakanishi 2025, "Scalable-Softmax", arXiv:2501.19399; the formula is Llama 4's.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    end = segment.kv_len
    counts = torch.arange(segment.first_pos + 1, end + 1, dtype=exact, device=q.device)
    steps = torch.log1p((counts / temperature.step_len).floor())
    return (steps * temperature.slope + 1.0).to(q.dtype)[:, None, None]


def cached(
    segment: Segment, cache: KvCache, k: torch.Tensor, v: torch.Tensor, *, keeps: bool
) -> Pair:
    """Put the new tokens into the cache; the keys and values of all tokens.

    A prompt's first tokens attend to themselves, not to what the cache made of them.
    """
    held = cache.append(k, v) if keeps else cache.extended(k, v)
    return held if segment.first_pos else (k, v)


def attended(
    block: AttentionBlock,
    segment: Segment,
    step: Step,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The kernel's output ``[batch, num_q_heads, num_tokens, v_head_dim]``.

    Of a window or a chunk it is given the keys from the first that any of the new tokens sees.
    """
    lengths = (segment.batch_size, segment.num_tokens, segment.kv_len)
    if segment.min_len is None:
        kernel = step.kernels.prepared(block, *lengths)
    else:
        kernel = step.kernels.padded(block, *lengths, segment.min_len)
    if block.window_len is not None:
        variant = variant_named(block.variant, {"window_len": block.window_len})
        num_seen = variant.num_visible(segment.num_tokens, segment.kv_len)
        k, v = k[:, :, -num_seen:], v[:, :, -num_seen:]
    added = {"sinks": sinks, "bias": bias}
    with step.part("attention"):
        return kernel.attend(
            q, k, v, **{name: tensor for name, tensor in added.items() if tensor is not None}
        )
