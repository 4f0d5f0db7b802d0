"""Records -> the lengths at which one thing begins to take longer than another.

Attention against what it replaced, and attention against the rest of a block.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.errors import CannotMeasureError
from attnprof.fit import FURTHEST, fit_series, predict
from attnprof.regression import Z95
from attnprof.series import (
    Record,
    Series,
    common_clock,
    group_series,
    is_attention,
    latency_on,
    positive,
)

# What a layer in attention's place has another value of, or none.
_OF_ATTENTION_ALONE = (
    "mixer", "backend", "variant", "window_len", "position", "kv_cache", "kv_dtype", "block_tokens",
    "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "mla", "kv_lora_rank",
    "rope_head_dim", "softcap", "sink_logits", "prefix_len", "document_len", "sink_len", "min_len",
)  # fmt: skip
_STEPS = 60  # halvings of the stretch in which two laws cross


@dataclass(frozen=True)
class Curve:
    """Seconds against a length."""

    name: str
    n: tuple[int, ...]
    seconds: tuple[float, ...]
    sd: tuple[float, ...]  # as a share of the value

    def __post_init__(self) -> None:
        assert len(self.n) == len(self.seconds) == len(self.sd)


@dataclass(frozen=True)
class Crossing:
    """Two curves and the length from which the first takes longer than the second, or shorter.

    ``at`` lies between two measured lengths; of curves that change places several times it is
    the last, and ``num_changes`` tells how often. It is None where they do not cross in what was
    measured. ``low`` and ``high`` hold it 95 times in 100 by the intervals of both curves, and
    are None where those are unknown or reach past what was measured. ``beyond`` is foretold by both
    curves' fitted laws, and only when that was asked for; ``why_not`` says why it is unknown.
    """

    first: Curve
    second: Curve
    axis: str  # seq_len, kv_len
    clock: str  # wall, cpu
    where: Mapping[str, Any]  # what both have in common
    at: float | None
    between: tuple[int, int] | None
    low: float | None
    high: float | None
    num_changes: int
    longer_at_end: str | None  # the name of the curve that takes longer at the last length
    beyond: float | None = None
    why_not: str | None = None


def mixer_crossings(
    records: Sequence[Record], *, foretold_on: Mapping[str, Any] | None = None
) -> list[Crossing]:
    """Attention against each layer in its place, of one width and on the same tokens.

    Args:
        foretold_on: Facts of the device, to say of curves that do not cross at which longer
            length they would by their laws; None to say nothing of it.
    """
    timed = [one for one in group_series(records) if _is_length_of_time(one)]
    groups: dict[str, list[Series]] = {}
    for series in timed:
        groups.setdefault(_key(series), []).append(series)
    found = []
    for group in groups.values():
        attending = [series for series in group if is_attention(series.where)]
        others = [series for series in group if not is_attention(series.where)]
        for attention, other in itertools.product(attending, others):
            crossing = _between(attention, other)
            if crossing is not None:
                if foretold_on is not None:
                    crossing = _foretold(crossing, attention, other, foretold_on)
                found.append(crossing)
    return found


def part_crossings(records: Sequence[Record]) -> list[Crossing]:
    """The attention of a layer, block or model against the sum of all its other parts."""
    found = []
    for series in group_series(records):
        if not _is_length_of_time(series):
            continue
        rows = [row for row in series.records if row.get("parts")]
        clock = "cpu" if common_clock(series.records) == "cpu" and _all_have_cpu(rows) else "wall"
        points = [
            (int(row["kv_len"]), attention_s, rest_s)
            for row in rows
            for attention_s, rest_s in [_split(row["parts"], f"{clock}_s")]
            if attention_s > 0 and rest_s > 0
        ]
        if len(points) > 1:
            n = tuple(length for length, _, _ in points)
            unknown = (math.inf,) * len(n)
            found.append(
                _crossing(
                    Curve(f"attention of {series.name}", n, tuple(p[1] for p in points), unknown),
                    Curve("all its other parts", n, tuple(p[2] for p in points), unknown),
                    axis=series.axis,
                    clock=clock,
                    where=series.where,
                )
            )
    return found


def _is_length_of_time(series: Series) -> bool:
    return series.quantity == "latency" and series.axis in ("seq_len", "kv_len")


def _key(series: Series) -> str:
    """All that an attention and a layer in its place have to share, their width among it."""
    where = series.where
    heads, width = where.get("num_q_heads") or 0, where.get("v_head_dim") or where.get("head_dim")
    common = {name: where[name] for name in where if name not in _OF_ATTENTION_ALONE}
    return repr([series.axis, heads * (width or 0), common])


def _between(attention: Series, other: Series) -> Crossing | None:
    """Both at the lengths that both were measured at, on one clock."""
    rows = (*attention.records, *other.records)
    clock = common_clock(rows)
    by_length = [
        {
            int(row["kv_len"]): point
            for row in series.records
            if (point := latency_on(row, clock)) is not None
        }
        for series in (attention, other)
    ]
    n = tuple(sorted(by_length[0].keys() & by_length[1].keys()))
    if len(n) < 2:
        return None
    first, second = (
        Curve(
            series.name,
            n,
            tuple(points[length][0] for length in n),
            tuple(points[length][1] for length in n),
        )
        for series, points in zip((attention, other), by_length, strict=True)
    )
    where = {name: v for name, v in other.where.items() if name not in _OF_ATTENTION_ALONE}
    return _crossing(first, second, axis=attention.axis, clock=clock, where=where)


def _crossing(
    first: Curve, second: Curve, *, axis: str, clock: str, where: Mapping[str, Any]
) -> Crossing:
    """Where the straight lines between the points cross, both scales logarithmic."""
    gaps = [math.log(a / b) for a, b in zip(first.seconds, second.seconds, strict=True)]
    widths = [Z95 * math.hypot(a, b) for a, b in zip(first.sd, second.sd, strict=True)]
    changes = sign_changes(first.n, gaps)
    at, between = changes[-1] if changes else (None, None)
    low = high = None
    if at is not None:
        edges = []
        for side in (-1, 1):
            shifted = [gap + side * width for gap, width in zip(gaps, widths, strict=True)]
            if all(map(math.isfinite, shifted)) and (found := sign_changes(first.n, shifted)):
                edges.append(found[-1][0])
        if len(edges) == 2:
            low, high = min(edges), max(edges)
    last = gaps[-1]
    return Crossing(
        first=first,
        second=second,
        axis=axis,
        clock=clock,
        where=where,
        at=at,
        between=between,
        low=low,
        high=high,
        num_changes=len(changes),
        longer_at_end=None if last == 0 else first.name if last > 0 else second.name,
    )


def sign_changes(n: Sequence[int], gaps: Sequence[float]) -> list[tuple[float, tuple[int, int]]]:
    """Where a curve over log n changes its sign: the length, and the two that it lies between.

    >>> sign_changes([256, 1024], [-1.0, 1.0])
    [(512.0, (256, 1024))]
    """
    found = []
    left, before = 0, 0.0  # the last point that is not zero
    zero_at: int | None = None
    for right, after in zip(n, gaps, strict=True):
        if after == 0:
            zero_at = right
            continue
        if before * after < 0:
            share = before / (before - after)
            at = left * (right / left) ** share if zero_at is None else float(zero_at)
            found.append((at, (left, right)))
        left, before, zero_at = right, after, None
    return found


def _foretold(
    crossing: Crossing, attention: Series, other: Series, device: Mapping[str, Any]
) -> Crossing:
    """With the length beyond all measured ones at which both laws say that they cross."""
    if crossing.at is not None:
        return crossing
    if attention.clock != other.clock:
        return replace(crossing, why_not="they were timed on different clocks")
    fits = fit_series(attention, device), fit_series(other, device)

    def gap(length: float) -> float:
        return math.log(predict(fits[0], length) / predict(fits[1], length))

    last = crossing.first.n[-1]
    try:
        near, at_end = float(last), gap(last)
        while near < FURTHEST * last:
            far = 2 * near
            if at_end * gap(far) < 0:
                return replace(crossing, beyond=_root(gap, near, far))
            near = far
    except CannotMeasureError as error:
        return replace(crossing, why_not=error.problem)
    return replace(crossing, why_not=f"not within {FURTHEST} times the longest measured length")


def _root(gap: Callable[[float], float], near: float, far: float) -> float:
    """Where ``gap`` changes its sign between two lengths, by halving."""
    before = gap(near)
    for _ in range(_STEPS):
        middle = math.sqrt(near * far)
        if before * gap(middle) > 0:
            near = middle
        else:
            far = middle
    return math.sqrt(near * far)


def _all_have_cpu(rows: Sequence[Record]) -> bool:
    return all(positive(part.get("cpu_s")) for row in rows for part in row["parts"])


def _split(parts: Sequence[Mapping[str, Any]], clock: str) -> tuple[float, float]:
    """Seconds of attention, and of all else."""
    attention_s = sum(part[clock] for part in parts if part["name"] == "attention")
    return attention_s, sum(part[clock] for part in parts) - attention_s
