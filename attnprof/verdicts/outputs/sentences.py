"""A comparison's verdicts -> one line each, the same in every output."""

from attnprof import units
from attnprof.render import UNKNOWN
from attnprof.verdicts.comparison import (
    BAD,
    Comparison,
    Difference,
    MetricVerdict,
    Ratio,
    WorkloadVerdict,
    in_percent,
    seen_in_percent,
)

METRIC_NAMES = {
    "latency": "latency",
    "ttft": "TTFT",
    "peak_memory": "peak memory",
    "total_memory": "total memory",
    "kv_bytes": "KV cache",
}
_IN_SECONDS = ("latency", "ttft")
_NEED_WORDS = ("regressed", "improved", "inconclusive", "failed", "incomparable")


def metric_name(metric: str) -> str:
    """A metric as people call it.

    >>> metric_name("peak_memory")
    'peak memory'
    """
    return METRIC_NAMES.get(metric, metric)


def figure(metric: str, value: float | None) -> str:
    """One figure of a metric in its unit.

    >>> figure("latency", 0.0036), figure("kv_bytes", 131072), figure("peak_memory", None)
    ('3.6 ms', '128 KiB', '–')
    """
    return units.seconds(value) if metric in _IN_SECONDS else units.capacity(value)


def ratio_text(ratio: Ratio) -> str:
    """New over base, with its interval where there is one.

    >>> ratio_text(Ratio(1.42, 1.39, 1.45)), ratio_text(Ratio(2.0)), ratio_text(Ratio(None))
    ('1.420× (1.390–1.450)', '2.000×', '–')
    """
    if ratio.mid is None:
        return UNKNOWN
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mid:.3f}×"
    return f"{ratio.mid:.3f}× ({ratio.low:.3f}–{ratio.high:.3f})"


def metric_sentence(metric: MetricVerdict) -> str:
    """What became of one metric, with all that it rests on.

    >>> metric_sentence(MetricVerdict(
    ...     "latency", "regressed", 0.03, 0.0426, Ratio(1.42, 1.39, 1.45), 0.05))
    'latency regressed: 30 ms to 42.6 ms, 1.420× (1.390–1.450), over +5.0 %'
    >>> metric_sentence(MetricVerdict("kv_bytes", "regressed", 131072, 262144, Ratio(2.0)))
    'KV cache regressed: 128 KiB to 256 KiB, 2.000×, any change counts'
    """
    parts = [f"{figure(metric.metric, metric.base)} to {figure(metric.metric, metric.new)}"]
    if metric.ratio.mid is not None:
        parts.append(ratio_text(metric.ratio))
    if metric.verdict == "regressed" and not metric.reason:
        parts.append(
            f"over {in_percent(metric.threshold)}" if metric.threshold else "any change counts"
        )
    if metric.verdict == "inconclusive" and metric.smallest_seen is not None:
        parts.append(f"would have seen {seen_in_percent(metric.smallest_seen)}")
    if metric.reason:
        parts.append(metric.reason)
    return f"{metric_name(metric.metric)} {metric.verdict}: {', '.join(parts)}"


def workload_sentence(workload: WorkloadVerdict) -> str:
    """Why a workload has its verdict: its metrics that are not the same, or why it has none."""
    told = [metric_sentence(metric) for metric in workload.metrics if metric.verdict in _NEED_WORDS]
    if workload.reason:
        told.append(workload.reason)
    if workload.allowed:
        told.append(f"allowed: {workload.allowed}")
    return "; ".join(told) or workload.verdict


def headline(comparison: Comparison) -> str:
    """The whole in a few words: what failed, of how many; or that nothing did, or was decided."""
    compared = f"{comparison.num_compared} of {comparison.num_expected} workloads compared"
    if comparison.interrupted:
        compared = f"interrupted; {compared}"
    failing = [workload.verdict for workload in comparison.failing]
    if failing:
        counted = ", ".join(
            f"{failing.count(verdict)} {verdict}" for verdict in dict.fromkeys(failing)
        )
        return f"{counted}; {compared}"
    if comparison.interrupted:
        return compared
    if comparison.exit_code:
        return f"nothing was decided; {compared}"
    undecided = comparison.counts.get("inconclusive", 0)
    worse = sum(comparison.counts.get(verdict, 0) for verdict in BAD)
    whole = f"nothing fails, though {worse} got worse" if worse else "nothing got worse"
    return f"{whole}; {compared}" + (f", {undecided} inconclusive" if undecided else "")


def difference_text(difference: Difference) -> str:
    """The two values of a fact that the sides do not share.

    >>> difference_text(Difference("governor", None, "performance", "soft"))
    'unknown to performance (soft)'
    """
    base, new = (value or "unknown" for value in (difference.base, difference.new))
    return f"{base} to {new} ({difference.weight})"
