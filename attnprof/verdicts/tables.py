"""A comparison -> its tables: a row for each metric of each workload, and what differed."""

from collections.abc import Mapping
from typing import Any

from attnprof import units
from attnprof.render import Column, Table
from attnprof.series import label, varying_keys
from attnprof.verdicts.comparison import (
    VERDICTS,
    Comparison,
    MetricVerdict,
    Ratio,
    WorkloadVerdict,
    in_percent,
    seen_in_percent,
)
from attnprof.verdicts.outputs.sentences import workload_sentence

MOST_ROWS = 40  # on a terminal; those of no news are left out first
MOST_NAMED = 3
_NAMES = {
    "latency": "latency", "ttft": "TTFT", "peak_memory": "peak", "total_memory": "memory",
    "kv_bytes": "KV",
}  # fmt: skip


def comparison_tables(comparison: Comparison, *, everything: bool = True) -> list[Table]:
    """The verdicts; and what differed between the sides, if anything did.

    Args:
        everything: Also rows without news, however many there are.
    """
    tables = [verdicts_table(comparison, everything=everything)]
    return [*tables, differences_table(comparison)] if comparison.differences else tables


def whole_words(comparison: Comparison) -> str:
    """The whole in a line: its verdict, how many workloads, the geometric mean.

    What failed is told by the verdict, and what is allowed is counted apart.
    """
    counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items())
    allowed = sum(one.allowed is not None for one in comparison.workloads)
    verdict = comparison.verdict
    if comparison.interrupted:
        verdict = f"INTERRUPTED, {verdict} so far"
    elif comparison.exit_code:
        verdict = verdict.upper()
    words = [
        verdict,
        f"{comparison.num_compared} of {comparison.num_expected} workloads compared ({counts}"
        + (f"; {allowed} of them allowed)" if allowed else ")"),
    ]
    mean = comparison.geometric_mean
    if mean.mid is not None:
        words.append(f"latency {_times(mean.mid)} {_interval(mean)} in the geometric mean")
    return "; ".join(word.strip() for word in words)


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "(its interval is unknown)"
    return f"[{_times(ratio.low)}, {_times(ratio.high)}]"


def verdicts_table(comparison: Comparison, *, everything: bool = True) -> Table:
    """A row for each workload, and for each metric of it that has news."""
    varying = varying_keys([one.axes for one in comparison.workloads])
    rows = []
    for one in comparison.workloads:
        name = label(one.axes, varying) if one.axes else one.workload_id
        shown = [metric for metric in one.metrics if metric.verdict != "same"]
        shown = shown or list(one.metrics[:1]) or [MetricVerdict("", one.verdict)]
        rows += [_row(name, one, metric) for metric in shown]
    rows.sort(key=lambda row: (VERDICTS.index(row["verdict"]), -abs((row["ratio"] or 1.0) - 1)))
    left_out = 0
    if not everything:
        news = sum(row["verdict"] != "same" for row in rows)
        kept = max(MOST_ROWS, news)
        left_out = max(0, len(rows) - kept)
        rows = rows[:kept]
    synthetic = " (synthetic device)" if _is_synthetic(comparison) else ""
    return Table(
        name="verdicts",
        title=f"{comparison.new.name} against {comparison.base.name}{synthetic}: "
        f"{whole_words(comparison)}",
        columns=(
            Column("workload", "Workload"),
            Column("metric", "Metric", lambda name: _NAMES.get(name, name), priority=8),
            Column("base", "Base", _amount, "right", 1),
            Column("new", "New", _amount, "right", 1),
            Column("ratio", "Ratio", _times, "right"),
            Column("ratio_low", "low", _times, "right"),
            Column("ratio_high", "high", _times, "right"),
            Column("verdict", "Verdict"),
            Column("smallest_seen", "Sees", seen_in_percent, "right"),
            Column("threshold", "Counts from", _threshold, "right", 5),
            Column("launches", "Launches", priority=3),
            Column("clock", "Clock", priority=2),
            Column("p_value", "p", _p, "right", 6),
            Column("reason", "Why", priority=4, wraps=True),
            Column("workload_id", "Id", priority=7),
        ),
        rows=tuple(rows),
        notes=(
            *_failing_words(comparison),
            *_left_out_words(left_out),
            "Sees: the smallest rise that this measurement finds four times in five",
            *comparison.notes,
        ),
        alarming=lambda row: bool(row["fails"]),
    )


def _is_synthetic(comparison: Comparison) -> bool:
    return any(
        (side.facts or {}).get("kind") == "synthetic" for side in (comparison.base, comparison.new)
    )


def _row(name: str, one: WorkloadVerdict, shown: MetricVerdict) -> Mapping[str, Any]:
    reasons = [text for text in (shown.reason or one.reason,) if text]
    if one.allowed is not None:
        reasons.append(f"allowed: {one.allowed}")
    return {
        "workload": name if shown.metric in ("", "latency") else f"{name}, {_NAMES[shown.metric]}",
        "metric": shown.metric or None,
        "base": _with_unit(shown, shown.base),
        "new": _with_unit(shown, shown.new),
        "ratio": shown.ratio.mid,
        "ratio_low": shown.ratio.low,
        "ratio_high": shown.ratio.high,
        "verdict": shown.verdict,
        "smallest_seen": shown.smallest_seen,
        "threshold": shown.threshold if shown.metric else None,
        "launches": "+".join(map(str, shown.num_launches)) if shown.clock else None,
        "clock": shown.clock,
        "p_value": shown.p_value,
        "reason": "; ".join(reasons) or None,
        "workload_id": one.workload_id,
        "fails": one.allowed is None and shown.verdict in ("regressed", "failed"),
    }


class _Seconds(float):
    """A latency, so that one column shows both times and sizes."""


def _with_unit(metric: MetricVerdict, value: float | None) -> float | None:
    return _Seconds(value) if value is not None and metric.metric in ("latency", "ttft") else value


def _amount(value: float) -> str:
    return units.seconds(value) if isinstance(value, _Seconds) else units.capacity(value)


def _times(ratio: float) -> str:
    """A ratio for people: near one to a hundredth, far from it to three digits.

    >>> _times(1.0512), _times(0.5), _times(123.4)
    ('1.05×', '0.50×', '123×')
    """
    return f"{ratio:.2f}×" if 0.01 <= ratio < 10 else f"{units.three_digits(ratio)}×"


def _threshold(share: float) -> str:
    """A threshold for people.

    >>> _threshold(0.05), _threshold(0.0)
    ('+5.0 %', 'any')
    """
    return in_percent(share) if share else "any"


def _p(value: float) -> str:
    """A probability for people.

    >>> _p(0.04321), _p(1e-9)
    ('0.043', '< 1e-6')
    """
    return "< 1e-6" if value < 1e-6 else f"{value:.2g}"


def _failing_words(comparison: Comparison) -> list[str]:
    """The first that fail, each by its id, by which it is bisected, with all that it rests on."""
    failing = comparison.failing
    words = [f"{one.workload_id}: {workload_sentence(one)}" for one in failing[:MOST_NAMED]]
    more = len(failing) - MOST_NAMED
    rest = f"and {more} more that fail{'s' if more == 1 else ''}"
    return [*words, *([rest] if more > 0 else [])]


def _left_out_words(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count:,} more rows are the same (--all, --format csv or json shows them)"]


def differences_table(comparison: Comparison) -> Table:
    """What differs between the two sides, what weighs most first."""
    return Table(
        name="differences",
        title="What differed between the two",
        columns=(
            Column("key", "Fact"),
            Column("base", "Base", wraps=True),
            Column("new", "New", wraps=True),
            Column("weight", "Weight"),
        ),
        rows=tuple(
            {"key": one.key, "base": one.base, "new": one.new, "weight": one.weight}
            for one in comparison.differences
        ),
        notes=(
            "subject: it was allowed to differ, so a ratio may be its doing; soft: it seldom "
            "moves a figure",
        ),
    )
