"""Positions that are added to scores: ALiBi, the buckets of T5, and the distances of Shaw."""

import math

import torch

from attnprof.positions import SHAW_CLIP, T5_BUCKETS, T5_MAX_DISTANCE
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions.base import Position


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """A slope a head.

        m_h = 2^(−8h / n),  h = 1 … n

    Of head counts that are no power of two: those of the power below, then every second one of
    the power above.

    Source:
        Press et al. 2022, "ALiBi", arXiv:2108.12409, section 3; other head counts are those of
        the authors' code, ``get_slopes``.

    >>> alibi_slopes(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return tuple(slopes + between[: num_heads - power])


class Alibi(Position):
    """A penalty that grows with the distance, by a slope of each head's own.

        b_hij = −m_h · |i − j|

    Source:
        Press et al. 2022, "ALiBi", arXiv:2108.12409, section 3.
    """

    def __init__(self, num_q_heads: int, device: torch.device, dtype: torch.dtype) -> None:
        self.slopes = torch.tensor(alibi_slopes(num_q_heads), dtype=torch.float32, device=device)
        self._dtype = dtype

    @property
    def table_bytes(self) -> int:
        return self.slopes.nbytes

    def constant_bias(self, q_first: int, q_len: int, kv_first: int, kv_len: int) -> torch.Tensor:
        distances = _distances(q_first, q_len, kv_first, kv_len, self.slopes.device)
        by_distance = -self.slopes[:, None] * distances.abs()
        return _at_pairs(by_distance.to(self._dtype), kv_len)


def t5_bucket(
    distances: torch.Tensor,
    bidirectional: bool,
    num_buckets: int = T5_BUCKETS,
    max_distance: int = T5_MAX_DISTANCE,
) -> torch.Tensor:
    """The bucket of each distance, of a key from its query, as int64.

    Half of the buckets hold one distance each, from 0 up; the others grow by a constant factor
    up to ``max_distance``, and the last one holds all beyond. Where queries see later keys too,
    those have the second half of all buckets for themselves; else they share that of distance 0.

    Source:
        Raffel et al. 2020, "T5", arXiv:1910.10683, section 2.1; the edges are those of the
        authors' Mesh TensorFlow code, ``_relative_position_bucket``.
    """
    later: torch.Tensor | int = 0
    if bidirectional:
        num_buckets //= 2
        later = (distances > 0).long() * num_buckets
        away = distances.abs()
    else:
        away = (-distances).clamp(min=0)
    num_exact = num_buckets // 2
    growth = math.log(max_distance / num_exact)
    steps = torch.log(away.float() / num_exact) / growth * (num_buckets - num_exact)
    wide = (num_exact + steps.clamp(min=0).long()).clamp(max=num_buckets - 1)
    return later + torch.where(away < num_exact, away, wide)


class T5Bias(Position):
    """A trained bias a head and bucket of distances, here of seeded numbers.

    Args:
        table: ``[num_buckets, num_q_heads]``.
        bidirectional: Whether queries see later keys, as in an encoder.

    Source:
        Raffel et al. 2020, "T5", arXiv:1910.10683, section 2.1.
    """

    def __init__(
        self, table: torch.Tensor, bidirectional: bool, max_distance: int = T5_MAX_DISTANCE
    ) -> None:
        self.table, self.bidirectional = table, bidirectional
        self.max_distance = max_distance

    @property
    def table_bytes(self) -> int:
        return self.table.nbytes

    def constant_bias(self, q_first: int, q_len: int, kv_first: int, kv_len: int) -> torch.Tensor:
        distances = _distances(q_first, q_len, kv_first, kv_len, self.table.device)
        buckets = t5_bucket(distances, self.bidirectional, len(self.table), self.max_distance)
        return _at_pairs(self.table[buckets].T, kv_len)


class Shaw(Position):
    """A trained key a clipped distance, shared by the heads, met by the query.

        b_ij = q_i · a_clip(j − i) / √d,  clip(x) = max(−k, min(x, k))

    The paper's vectors for the values are left out: its section 4.3 finds no gain from them.

    Args:
        table: ``[2 · clip + 1, head_dim]``, from distance −clip up.

    Source:
        Shaw et al. 2018, arXiv:1803.02155, sections 3.1 and 3.2, equations 4 and 5; clip 16 from
        its section 4.1.
    """

    def __init__(self, table: torch.Tensor) -> None:
        self.table, self._clip = table, len(table) // 2

    @property
    def table_bytes(self) -> int:
        return self.table.nbytes

    def query_bias(self, q: torch.Tensor, q_first: int, kv_first: int, kv_len: int) -> torch.Tensor:
        q_len, head_dim = q.shape[-2:]
        distances = _distances(q_first, q_len, kv_first, kv_len, q.device)
        column = distances.clamp(-self._clip, self._clip) + self._clip
        columns = _at_pairs(column[None], kv_len).expand(*q.shape[:2], q_len, kv_len)
        by_distance: torch.Tensor = q @ self.table.T * head_dim**-0.5
        return by_distance.gather(-1, columns)


def new_t5_bias(num_q_heads: int, bidirectional: bool, noise: Noise, dtype: torch.dtype) -> T5Bias:
    """T5's bias with a table of noise."""
    return T5Bias(noise(T5_BUCKETS, num_q_heads, dtype=dtype), bidirectional)


def new_shaw(head_dim: int, noise: Noise, dtype: torch.dtype) -> Shaw:
    """Shaw's keys, of noise."""
    return Shaw(noise(2 * SHAW_CLIP + 1, head_dim, dtype=dtype))


def _distances(
    q_first: int, q_len: int, kv_first: int, kv_len: int, device: torch.device
) -> torch.Tensor:
    """Every distance of a key from a query, ``[q_len + kv_len - 1]``, from the smallest up."""
    smallest = kv_first - (q_first + q_len - 1)
    return torch.arange(smallest, smallest + q_len + kv_len - 1, device=device)


def _at_pairs(by_distance: torch.Tensor, kv_len: int) -> torch.Tensor:
    """``[heads, q_len + kv_len - 1]`` by distance, laid out as ``[1, heads, q_len, kv_len]``.

    Each query's row is a window on the distances, one to the left of the row above. Contiguous,
    since a kernel copies a bias that is not, in every call.
    """
    return by_distance.unfold(-1, kv_len, 1).flip(-2)[None].contiguous()
