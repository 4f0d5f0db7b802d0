"""Keys and values of the tokens so far, as real tensors: where they lie and what as.

Every cache belongs to one layer. It is a layout (contiguous, static, paged, rolling) of what a
codec makes of keys and values; a latent is the one head of an MLA, a cross cache is filled once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnprof.workload import PAGED_BLOCK_TOKENS, Workload
from attnprof.workloads.kv_caches.codecs import Codec, Planes, codec_of
from attnprof.workloads.kv_caches.layouts import (
    Contiguous,
    Layout,
    Paged,
    Rolling,
    Static,
    blocks_for,
)

Pair = tuple[torch.Tensor, torch.Tensor]
NewTensor = Callable[..., torch.Tensor]  # shape -> keys or values, before they are encoded

_ENCODED_AT_ONCE = 2**22  # elements that are encoded at once while a cache is filled


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """What a cache of one layer is made for."""

    kind: str
    batch_size: int
    num_heads: int
    key_dim: int
    value_dim: int  # 0 of a latent, whose values are its keys' first part
    max_len: int
    dtype: str
    stored: str  # dtype of an element in the cache
    window_len: int | None = None  # of a rolling cache
    block_len: int = PAGED_BLOCK_TOKENS
    latent_rank: int | None = None  # width of an MLA's latent, which its rotated key follows


def cache_shape(workload: Workload) -> CacheShape:
    """The cache of one layer that ``workload`` names."""
    rank = workload.kv_lora_rank if workload.kv_cache == "latent" else None
    latent_dim = rank + (workload.rope_head_dim or 0) if rank is not None else None
    return CacheShape(
        kind=workload.kv_cache,
        batch_size=workload.batch_size,
        num_heads=workload.num_kv_heads if rank is None else 1,
        key_dim=latent_dim or workload.head_dim,
        value_dim=workload.value_dim if rank is None else 0,
        max_len=workload.kv_len,
        dtype=workload.dtype,
        stored=workload.cached_dtype,
        window_len=workload.window_len,
        block_len=workload.block_len,
        latent_rank=rank,
    )


class KvCache:
    """The cache of one layer, and what it costs.

    Takes keys ``[batch, num_heads, n, key_dim]`` and values ``[batch, num_heads, n, value_dim]`` of
    one or more new tokens and gives those of all that are held, decoded. A latent cache takes
    ``[batch, 1, n, rank + rope_head_dim]``, the latent and the rotated key that all heads share,
    and no values: it gives the same, and the latent alone as a view.
    """

    def __init__(self, shape: CacheShape, layout: Layout, codecs: tuple[Codec, ...]) -> None:
        self.shape, self.layout, self.codecs = shape, layout, codecs
        self._num_key_planes = len(codecs[0].planes)
        # Keys and values that are kept as they come need no codec, whose calls are not free.
        self._as_it_is = len(codecs) == 2 and all(codec.keeps_all for codec in codecs)

    @property
    def length(self) -> int:
        """Tokens that have come; a rolling cache holds the last of them."""
        return self.layout.length

    def held(self) -> Pair:
        """K and V of the tokens held."""
        return self._decoded(self.layout.held())

    def extended(self, k: torch.Tensor, v: torch.Tensor | None = None) -> Pair:
        """K and V of the tokens held and some more, which are not kept: call again, get the same.

        Raises:
            TypeError: The cache is filled once.
        """
        return self._decoded(self.layout.extended(self._encoded(k, v)))

    def append(self, k: torch.Tensor, v: torch.Tensor | None = None) -> Pair:
        """Keep some more tokens; K and V of all that are held now.

        Raises:
            TypeError: The cache is filled once.
        """
        self.put(k, v)
        return self.held()

    def put(self, k: torch.Tensor, v: torch.Tensor | None = None) -> None:
        """Keep some more tokens and read none, as of a prompt, which attends to its own.

        Raises:
            TypeError: The cache is filled once.
        """
        self.layout.put(self._encoded(k, v))

    def rounded(self, k: torch.Tensor, v: torch.Tensor | None = None) -> Pair:
        """Some tokens as they would be read back, wherever they lie."""
        return self._decoded(self._encoded(k, v))

    def positions(self, num_tokens: int) -> torch.Tensor:
        """Where each key that :meth:`extended` gives stands in its sequence, with as many new."""
        return self.layout.positions(num_tokens)

    @property
    def useful_bytes(self) -> int:
        """Of the tokens held, their scales included."""
        return self.layout.slot_bytes * self.layout.held_len

    @property
    def allocated_bytes(self) -> int:
        """Held for this cache, slots not yet used included."""
        return self.allocated_bytes_with(0)

    def allocated_bytes_with(self, num_tokens: int) -> int:
        """The same, once ``num_tokens`` more have come."""
        return self.layout.slot_bytes * self.layout.num_slots(num_tokens)

    @property
    def peak_bytes(self) -> int:
        """The most that was alive while the last tokens were kept."""
        return self.layout.peak_bytes

    def _encoded(self, k: torch.Tensor, v: torch.Tensor | None) -> Planes:
        if self.shape.kind == "cross":
            raise TypeError("a cross cache holds the source's keys, once: nothing is appended")
        if self._as_it_is and v is not None:
            return k, v
        key, *value = self.codecs
        planes = key.encode(k)
        if value:
            assert v is not None
            planes += value[0].encode(v)
        return planes

    def _decoded(self, planes: Planes) -> Pair:
        if self._as_it_is:
            k, v = planes
            return k, v
        key, *value = self.codecs
        k = key.decode(planes[: self._num_key_planes])
        if not value:
            return k, k[..., : self.shape.latent_rank]
        return k, value[0].decode(planes[self._num_key_planes :])


def new_cache(workload: Workload, length: int, noise: NewTensor, seed: int) -> KvCache:
    """A cache of the workload's kind that holds ``length`` tokens and has room for ``kv_len``.

    Args:
        noise: Makes a tensor of a shape, filled with the keys or values of the tokens, in the
            dtype of the arithmetic.
        seed: Of the order in which blocks lie in the pool.
    """
    return cache_of_shape(cache_shape(workload), length, noise, seed, new_len=workload.q_len)


def unrounded_cache(workload: Workload, length: int, noise: NewTensor, seed: int) -> KvCache:
    """What :func:`new_cache` makes, but its tokens are kept in the dtype of the arithmetic.

    With the same noise they are the same tokens, so that what rounding them costs can be told.
    """
    return cache_of_shape(
        cache_shape(workload), length, noise, seed, rounds=False, new_len=workload.q_len
    )


def cache_of_shape(
    shape: CacheShape,
    length: int,
    noise: NewTensor,
    seed: int,
    *,
    rounds: bool = True,
    new_len: int = 1,
) -> KvCache:
    """A cache that holds ``length`` tokens and has room for ``max_len``; a cross cache holds all.

    Args:
        noise: As in :func:`new_cache`.
        seed: Of the order in which blocks lie in the pool.
        rounds: Whether tokens are stored as ``shape.stored``; the same tokens either way.
        new_len: Tokens that the next call brings, whose places are looked up beforehand.
    """
    keys: tuple[int, ...] = (shape.key_dim,)
    if shape.latent_rank is not None:
        keys = (shape.latent_rank, shape.key_dim - shape.latent_rank)
    widths = [groups for groups in (keys, (shape.value_dim,)) if sum(groups)]
    drawn_for = tuple(codec_of(groups, shape.stored, shape.dtype) for groups in widths)
    codecs = drawn_for
    if not rounds:
        codecs = tuple(codec_of(groups, shape.dtype, shape.dtype) for groups in widths)
    heads = (shape.batch_size, shape.num_heads)

    def filled(*leading: int) -> Planes:
        return tuple(
            plane
            for codec, drawn in zip(codecs, drawn_for, strict=True)
            for plane in _filled(codec, leading, noise, in_parts=len(drawn.planes) > 1)
        )

    layout: Layout
    if shape.kind in ("contiguous", "cross"):
        layout = Contiguous(filled(*heads, length if shape.kind == "contiguous" else shape.max_len))
    elif shape.kind in ("static", "latent"):
        layout = Static(filled(*heads, shape.max_len), length)
    elif shape.kind == "rolling":
        assert shape.window_len is not None
        layout = Rolling(filled(*heads, min(shape.window_len, shape.max_len)), length)
    else:
        per_sequence = blocks_for(shape.max_len, shape.block_len)
        num_blocks = shape.batch_size * per_sequence
        pools = filled(num_blocks, shape.num_heads, shape.block_len)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))
        table = order.view(shape.batch_size, per_sequence).to(pools[0].device)
        layout = Paged(pools, table, length, new_len)
    return KvCache(shape, layout, codecs)


def _filled(codec: Codec, leading: tuple[int, ...], noise: NewTensor, *, in_parts: bool) -> Planes:
    """Noise as ``codec`` stores it; what needs copies to be encoded is encoded bit by bit."""
    num_rows, *within = leading[0] * leading[1], *leading[2:]
    if not in_parts or not math.prod(leading):
        return codec.encode(noise(*leading, codec.width))
    at_once = max(1, _ENCODED_AT_ONCE // (math.prod(within) * codec.width))
    parts = [
        codec.encode(noise(min(at_once, num_rows - first), *within, codec.width))
        for first in range(0, num_rows, at_once)
    ]
    joined = (torch.cat(planes) for planes in zip(*parts, strict=True))
    return tuple(plane.view(*leading, plane.shape[-1]) for plane in joined)
