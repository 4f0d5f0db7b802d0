"""Attention over a source: an encoder's states -> keys and values, made once, and what is seen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from attnprof.models.architecture import AttentionBlock
from attnprof.workloads.kv_caches import CacheShape, KvCache, Pair
from attnprof.workloads.kv_caches.codecs import codec_of
from attnprof.workloads.kv_caches.layouts import Contiguous
from attnprof.workloads.transformer.step import Segment, Step


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the tokens of a decoder look at beside each other.

    With ``caches``, one a layer, keys and values have been made of the states already; without
    them each layer makes them anew in every pass. A source with a ``min_len`` is padded: its
    sequences are from so many states long to all, evenly.
    """

    states: torch.Tensor  # [batch, source_len, hidden_size]
    caches: Sequence[KvCache] | None = None
    min_len: int | None = None


class CrossAttention(nn.Module):
    """Queries of the rows; keys and values of the source, out of one matrix product."""

    def __init__(self, block: AttentionBlock, hidden_size: int, index: int) -> None:
        super().__init__()
        self.block, self.index = block, index
        self.q = nn.Linear(hidden_size, block.num_q_heads * block.head_dim, bias=block.q_bias)
        self.kv = nn.Linear(
            hidden_size, 2 * block.num_kv_heads * block.head_dim, bias=block.k_bias or block.v_bias
        )
        self.out = nn.Linear(block.num_q_heads * block.head_dim, hidden_size, bias=block.o_bias)

    def keys_and_values(self, states: torch.Tensor) -> Pair:
        """Of states ``[batch, source_len, hidden_size]``, both ``[batch, num_kv_heads, source_len,
        head_dim]``."""
        batch_size, source_len, _ = states.shape
        heads = self.kv(states).view(batch_size, source_len, 2, -1, self.block.head_dim)
        k, v = heads.permute(2, 0, 3, 1, 4)
        return k, v

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Attention of the rows ``[rows, hidden_size]`` of a step over their segments' sources."""
        with step.part("projection"):
            queries = self.q(x)
        seen = [
            self._attend(queries[rows], segment, step)
            for segment, rows in zip(step.segments, step.rows, strict=True)
        ]
        together = seen[0] if len(seen) == 1 else torch.cat(seen)
        with step.part("projection"):
            out: torch.Tensor = self.out(together)
        return out

    def _attend(self, queries: torch.Tensor, segment: Segment, step: Step) -> torch.Tensor:
        source, batch_size, num_tokens = segment.source, segment.batch_size, segment.num_tokens
        assert source is not None
        q = queries.view(batch_size, num_tokens, -1, self.block.head_dim).transpose(1, 2)
        if source.caches is None:
            with step.part("projection"):
                k, v = self.keys_and_values(source.states)
        else:
            with step.part("cache"):
                k, v = source.caches[self.index].held()
        lengths = (batch_size, num_tokens, k.shape[2])
        if source.min_len is None:
            kernel = step.kernels.prepared(self.block, *lengths)
        else:
            kernel = step.kernels.padded(self.block, *lengths, source.min_len)
        with step.part("attention"):
            seen = kernel.attend(q, k, v)
        return seen.transpose(1, 2).reshape(segment.num_rows, -1)


def cached_source(
    attentions: Iterable[CrossAttention], source: Source, dtype: str, stored: str | None = None
) -> Source:
    """``source`` with the keys and values of every layer, made once.

    Args:
        dtype: Of the arithmetic.
        stored: Of an element in the caches, where it is not that.
    """
    return replace(
        source,
        caches=[
            _cross_cache(attention.keys_and_values(source.states), dtype, stored or dtype)
            for attention in attentions
        ],
    )


def _cross_cache(pair: Pair, dtype: str, stored: str) -> KvCache:
    """A cache that is filled once, with these keys and values."""
    k, v = (tensor.contiguous() for tensor in pair)
    batch_size, num_heads, source_len, width = k.shape
    shape = CacheShape(
        kind="cross", batch_size=batch_size, num_heads=num_heads, key_dim=width, value_dim=width,
        max_len=source_len, dtype=dtype, stored=stored,
    )  # fmt: skip
    codecs = (codec_of((width,), stored, dtype), codec_of((width,), stored, dtype))
    planes = (*codecs[0].encode(k), *codecs[1].encode(v))
    return KvCache(shape, Contiguous(planes), codecs)
