"""Records -> how the KV cache grows: bytes a token, overshoot of a copy, steps of pages, waste."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.series import IDENTITY, Record, is_ok, label, positive, varying_keys

WITHIN = 0.01  # of theory's bytes a token; more is wrong


def kv_fits(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry for each cache that was grown, and each decode measured at several lengths."""
    varying = varying_keys(records)
    good = [record for record in records if is_ok(record) and positive(record.get("kv_len"))]
    grown = [
        _entry(record, varying, points, _shape_of_growth(record["growth"]))
        for record in good
        if (points := _useful_points(record))
    ]
    groups: dict[str, list[Record]] = {}
    for record in good:
        if record.get("phase") == "decode" and positive(record.get("kv_bytes")):
            key = repr([record.get(name) for name in (*IDENTITY, "q_len")])
            groups.setdefault(key, []).append(record)
    by_length = [
        _entry(rows[0], varying, [(row["kv_len"], row["kv_bytes"]) for row in rows], {})
        for rows in groups.values()
        if len({row["kv_len"] for row in rows}) > 1
    ]
    return grown + by_length


def _useful_points(record: Record) -> list[tuple[float, float]]:
    points = [(p["kv_len"], p["useful_bytes"]) for p in record.get("growth") or ()]
    return points if len({length for length, _ in points}) > 1 else []


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least-squares slope.

    >>> slope([(1, 10), (3, 30), (5, 50)])
    10.0
    """
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
        (x - mean_x) ** 2 for x, _ in points
    )


def _entry(
    record: Record,
    varying: Mapping[str, Sequence[str]],
    points: Sequence[tuple[float, float]],
    shape: dict[str, Any],
) -> dict[str, Any]:
    """Measured bytes a token of one sequence beside theory's, and the verdict."""
    batch_size = record.get("batch_size") or 1
    measured = slope(points) / batch_size
    theory_bytes = positive(record.get("theory_kv_bytes"))
    theory = theory_bytes / (batch_size * record["kv_len"]) if theory_bytes else None
    ratio = measured / theory if theory else None
    verdict = None if ratio is None else "equal" if abs(ratio - 1) <= WITHIN else "wrong"
    unknown = dict.fromkeys(
        (
            "allocated_bytes", "overshoot_bytes", "overshoot", "step_bytes", "step_tokens",
            "waste_at_end", "worst_waste",
        )
    )  # fmt: skip
    return {
        "name": label(record, varying, without="kv_len"),
        "where": {name: record.get(name) for name in IDENTITY},
        "from": min(length for length, _ in points),
        "to": max(length for length, _ in points),
        "num_points": len(points),
        "bytes_per_token": measured,
        "theory_bytes_per_token": theory,
        "ratio": ratio,
        "verdict": verdict,
        **unknown,
        **shape,
    }


def _shape_of_growth(growth: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a cache takes beyond the tokens it holds, while it grows and at the end."""
    last = growth[-1]
    allocated = [point["allocated_bytes"] for point in growth]
    # The overshoot of the last step is the largest of all: old and new copies alike.
    overshoots = [
        point["peak_bytes"] - point["allocated_bytes"]
        for point in growth
        if point.get("peak_bytes") is not None
    ]
    overshoot = max(overshoots, default=None)
    # Of a long growth not every step is kept: a rise over several may be several.
    rises = [
        after["allocated_bytes"] - before["allocated_bytes"]
        for before, after in itertools.pairwise(growth)
        if after["allocated_bytes"] > before["allocated_bytes"]
        and after["kv_len"] - before["kv_len"] == 1
    ]
    step_bytes = _commonest(rises)
    waste = [
        point["allocated_bytes"] / point["useful_bytes"] - 1
        for point in growth
        if point["useful_bytes"] > 0
    ]
    return {
        "allocated_bytes": allocated[-1],
        "overshoot_bytes": overshoot,
        "overshoot": overshoot / last["allocated_bytes"] if overshoot is not None else None,
        "step_bytes": step_bytes,
        "step_tokens": None
        if step_bytes is None
        else round(step_bytes * last["kv_len"] / last["useful_bytes"]),
        "waste_at_end": waste[-1] if waste else None,
        "worst_waste": max(waste, default=None),
    }


def _commonest(values: Sequence[float]) -> float | None:
    return Counter(values).most_common(1)[0][0] if values else None
