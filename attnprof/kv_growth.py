"""Records -> how the KV cache grows (bytes a token, copies, pages, fragmentation), what it buys."""

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.series import (
    IDENTITY,
    Record,
    common_clock,
    is_attention,
    is_ok,
    label,
    positive,
    varying_keys,
)

WITHIN = 0.01  # of theory's bytes a token; more is wrong


def kv_fits(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry for each cache that was grown, and each decode measured at several lengths."""
    varying = varying_keys(records)
    good = [record for record in records if is_ok(record) and positive(record.get("kv_len"))]
    grown = [
        _entry(record, varying, points, _shape_of_growth(record), theory=_theory_of_growth(record))
        for record in good
        if (points := _useful_points(record))
    ]
    groups: dict[str, list[Record]] = {}
    for record in good:
        decodes = record.get("phase") == "decode" and is_attention(record)  # a state has no growth
        if decodes and positive(record.get("kv_bytes")):
            key = repr([record.get(name) for name in (*IDENTITY, "q_len")])
            groups.setdefault(key, []).append(record)
    by_length = [
        _entry(
            rows[0], varying, [(row["kv_len"], row["kv_bytes"]) for row in rows], {},
            theory=_theory_slope(rows),
        )
        for rows in groups.values()
        if len({row["kv_len"] for row in rows}) > 1
    ]  # fmt: skip
    return grown + by_length


def _theory_slope(rows: Sequence[Record]) -> float | None:
    """Theory's bytes for one more token of one sequence: what does not grow, as the keys of a
    source, is no part of it. None where a length has no theory."""
    known = [(row["kv_len"], bytes_) for row in rows if (bytes_ := row.get("theory_kv_bytes"))]
    return slope(known) / (rows[0].get("batch_size") or 1) if len(known) == len(rows) else None


_CACHE_KEYS = ("kv_cache", "kv_dtype", "block_tokens")


def generations(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry for each generate: its first token, its next ones, and what the cache bought.

    ``speedup`` is how many times longer all of it took without a cache, everything else equal, up
    to ``speedup_at`` tokens: the last of which both have a point.
    """
    varying = varying_keys(records)
    good = [
        record
        for record in records
        if is_ok(record) and record.get("phase") == "generate" and record.get("growth")
    ]
    bare = {_but_for_the_cache(one): one for one in good if one.get("kv_cache") == "none"}
    return [_generation(one, varying, bare.get(_but_for_the_cache(one))) for one in good]


def _but_for_the_cache(record: Record) -> str:
    keys = [key for key in (*IDENTITY, "q_len", "kv_len") if key not in _CACHE_KEYS]
    return repr([record.get(key) for key in keys])


def _generation(
    record: Record, varying: Mapping[str, Sequence[str]], bare: Record | None
) -> dict[str, Any]:
    clock = common_clock([record] if bare is None else [record, bare])
    key, total = ("cpu_s", "total_cpu_s") if clock == "cpu" else ("wall_s", "total_s")
    growth, start_len = record["growth"], record.get("start_len")
    first = [point[key] for point in growth if point["kv_len"] == start_len]
    steps = [point[key] for point in growth if point["kv_len"] != start_len]
    last = growth[-1]
    speedup_at, speedup = None, None
    if bare is not None and bare is not record:
        totals = {point["kv_len"]: positive(point.get(total)) for point in bare["growth"]}
        common = [
            (point["kv_len"], without / with_it)
            for point in growth
            if (without := totals.get(point["kv_len"])) and (with_it := positive(point.get(total)))
        ]
        speedup_at, speedup = max(common, default=(None, None))
    return {
        "name": label(record, varying),
        "where": {name: record.get(name) for name in (*IDENTITY, "kv_len")},
        "prompt_len": start_len,
        "num_tokens": last["kv_len"] - start_len if start_len else None,
        "clock": clock,
        "ttft_s": first[0] if first else None,
        "itl_s": statistics.median(steps) if steps else None,
        "itl_p95_s": p95(steps) if steps else None,
        "total_s": last.get(total),
        "useful_bytes": last["useful_bytes"],
        "allocated_bytes": last["allocated_bytes"],
        "speedup": speedup,
        "speedup_at": speedup_at,
    }


def p95(values: Sequence[float]) -> float:
    """The smallest value that 95 in 100 do not pass.

    >>> p95(range(1, 101)), p95([7.0])
    (95, 7.0)
    """
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def _theory_of_growth(record: Record) -> float | None:
    """Theory's bytes a token of one sequence, over the points that were measured; None where they
    have none."""
    if any("theory_bytes" not in point for point in record["growth"]):
        return None
    return slope(_useful_points(record, "theory_bytes")) / (record.get("batch_size") or 1)


def _useful_points(record: Record, name: str = "useful_bytes") -> list[tuple[float, float]]:
    """Tokens that a sequence's cache holds, and their bytes; a rolling one's stop at its window."""
    growth = [point for point in record.get("growth") or () if point["useful_bytes"] > 0]
    held: list[tuple[float, float]] = [
        (_held_len(record, point["kv_len"]), point[name]) for point in growth
    ]
    if len({length for length, _ in held}) > 1:
        return held
    return [(0, 0), *held] if len(held) > 1 else []  # a window that was full from the start


def _held_len(record: Record, length: int) -> int:
    window = record.get("window_len") if record.get("kv_cache") == "rolling" else None
    return min(length, window) if window else length


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
    theory: float | None = None,
) -> dict[str, Any]:
    """Measured bytes a token of one sequence beside theory's, and the verdict.

    Args:
        theory: Its bytes a token; None for all bytes over all tokens, of a cache that was grown.
    """
    batch_size = record.get("batch_size") or 1
    measured = slope(points) / batch_size
    theory_bytes = positive(record.get("theory_kv_bytes"))
    held_len = _held_len(record, record["kv_len"])
    if theory is None and theory_bytes:
        theory = theory_bytes / (batch_size * held_len)
    ratio = measured / theory if theory else None
    verdict = None
    if theory is not None:
        verdict = "equal" if abs(measured - theory) <= WITHIN * theory else "wrong"
    unknown = dict.fromkeys(
        (
            "useful_bytes", "allocated_bytes", "overshoot_bytes", "overshoot", "step_bytes",
            "step_tokens", "fragmentation", "worst_fragmentation",
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


def _shape_of_growth(record: Record) -> dict[str, Any]:
    """What a cache takes beyond the tokens it holds, while it grows and at the end.

    ``fragmentation`` is the share of what is allocated that holds no token.
    """
    growth = record["growth"]
    last = growth[-1]
    allocated = [point["allocated_bytes"] for point in growth]
    # The overshoot of the last step is the largest of all: old and new copies alike.
    overshoots = [
        point["peak_bytes"] - point["allocated_bytes"]
        for point in growth
        if point.get("peak_bytes") is not None
    ]
    overshoot = max(overshoots, default=None)
    held_len = _held_len(record, last["kv_len"])
    # Of a long growth not every step is kept: a rise over several may be several.
    rises = [
        after["allocated_bytes"] - before["allocated_bytes"]
        for before, after in itertools.pairwise(growth)
        if after["allocated_bytes"] > before["allocated_bytes"]
        and after["kv_len"] - before["kv_len"] == 1
    ]
    step_bytes = _commonest(rises)
    fragmentation = [
        1 - point["useful_bytes"] / point["allocated_bytes"]
        for point in growth
        if point["allocated_bytes"] > 0
    ]
    return {
        "useful_bytes": last["useful_bytes"],
        "allocated_bytes": allocated[-1],
        "overshoot_bytes": overshoot,
        "overshoot": overshoot / allocated[-1] if overshoot is not None and allocated[-1] else None,
        "step_bytes": step_bytes,
        "step_tokens": None
        if step_bytes is None or not last["useful_bytes"]
        else round(step_bytes * held_len / last["useful_bytes"]),
        "fragmentation": fragmentation[-1] if fragmentation else None,
        "worst_fragmentation": max(fragmentation, default=None),
    }


def _commonest(values: Sequence[float]) -> float | None:
    return Counter(values).most_common(1)[0][0] if values else None
