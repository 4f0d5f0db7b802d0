"""Two sides and thresholds -> a comparison."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from attnprof.errors import CannotMeasureError, UsageError, nearest
from attnprof.units import capacity, seconds
from attnprof.verdicts import procedure
from attnprof.verdicts.comparison import (
    FAIL_ON,
    METRICS,
    UNKNOWN,
    VERDICTS,
    Comparison,
    MetricVerdict,
    Ratio,
    WorkloadVerdict,
    first_verdict,
    seen_in_percent,
)
from attnprof.verdicts.fingerprint import differences, refuse_hard
from attnprof.verdicts.procedure import Contrast, Decision, contrast, undecided
from attnprof.verdicts.sides import Observed, SideRun
from attnprof.verdicts.thresholds import DEFAULTS, Thresholds

DRIFT_MARGIN = 0.02  # of two runs in which launches differ by 3 %; see the simulated families
RULER_MOVED = 0.05
RULER_LEVEL = 0.005  # on each side
MAY_FAIL = tuple(one for one in VERDICTS if one not in ("same", "improved", "new"))
ONE_LAUNCH = "one launch a side does not say how much launches differ"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of a comparison.

    Args:
        allow_different: Facts, or groups of them, that may differ.
        metrics: Those that are compared.
        fail_on: Verdicts that make the whole fail.
        margin: A rise of latency that two finished runs may have by the machine's drift alone,
            within the test: a share.
        paired: Whether the sides were measured in turns.
    """

    allow_different: tuple[str, ...] = ()
    metrics: tuple[str, ...] = METRICS
    fail_on: tuple[str, ...] = FAIL_ON
    margin: float = DRIFT_MARGIN
    paired: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        for metric in self.metrics:
            if metric not in METRICS:
                raise UsageError(f"no metric is called {metric!r}", nearest(metric, METRICS))
        for verdict in self.fail_on:
            if verdict not in MAY_FAIL:
                raise UsageError(f"no run fails on {verdict!r}", nearest(verdict, MAY_FAIL))
        if not self.fail_on:
            raise UsageError("no verdict fails", f"name some of: {', '.join(FAIL_ON)}")
        if not self.metrics:
            raise UsageError("no metric is compared", f"name one of: {', '.join(METRICS)}")


@dataclass(frozen=True)
class Timed:
    """The launches of a workload that both sides have, on the clock that both share."""

    clock: str | None
    base: tuple[float, ...] = ()
    new: tuple[float, ...] = ()
    reason: str | None = None  # why there is no clock


def compare_sides(
    base: SideRun,
    new: SideRun,
    asked: Asked,
    decisions: Mapping[str, Decision] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """The comparison of two sides.

    Args:
        decisions: Of latency, by workload, where they have been made while measuring; by default
            the workloads are decided on together, as those of two finished runs.
        notes: What else is to be told.

    Raises:
        UsageError: The sides have nothing in common, or the base has nothing that is ok.
        CannotMeasureError: They were measured under other conditions, or the new side has nothing
            that is ok.
    """
    common = _common(base, new)
    found = differences(base.facts, new.facts, asked.allow_different)
    refuse_hard(found, base.side.name, new.side.name)
    both_ok = [key for key in common if base.observed[key].is_ok and new.observed[key].is_ok]
    timed = {key: timed_together(base, new, key) for key in both_ok}
    moved = _moved_rulers(base, new)
    if decisions is None:
        decisions = _decided(timed, base, asked)
    if moved:
        decisions = _doubted(decisions, timed)
    workloads = tuple(
        _judged(key, base, new, asked, timed.get(key), decisions.get(key))
        for key in _in_order(base, new)
    )
    by_id = {one.workload_id: one.axes for one in workloads}
    pairs = [(one.base, one.new) for one in timed.values() if one.base and one.new]
    comparison = Comparison(
        base=base.side,
        new=new.side,
        workloads=workloads,
        geometric_mean=procedure.geometric_mean(pairs) if "latency" in asked.metrics else UNKNOWN,
        differences=found,
        paired=asked.paired,
        num_expected=len({*base.listed, *new.listed, *base.observed, *new.observed}),
        fail_on=asked.fail_on,
    )
    same = _is_one_run(base, new)
    told = [
        *(["both sides are the same run: this says nothing of any change"] if same else []),
        *notes,
        *moved,
        *asked.thresholds.unused(by_id),
        *_side_notes(base, new),
        *([] if asked.paired or same else _unpaired_notes(comparison, timed)),
    ]
    return replace(comparison, notes=tuple(told))


def _common(base: SideRun, new: SideRun) -> list[str]:
    names = base.side.name, new.side.name
    common = [key for key in base.observed if key in new.observed]
    if not any(one.is_ok for one in base.observed.values()):
        raise UsageError(
            f"{names[0]} has no workload that is ok", "measure a base that runs, and compare then"
        )
    if not common:
        raise UsageError(
            f"{names[0]} and {names[1]} have no workload in common", "measure the same sweep twice"
        )
    if not any(one.is_ok for one in new.observed.values()):
        why = next(iter(new.observed.values())).why
        raise CannotMeasureError(
            f"{names[1]} has no workload that is ok: {why}", "see what it says of itself"
        )
    return common


def _in_order(base: SideRun, new: SideRun) -> list[str]:
    return list(dict.fromkeys((*base.listed, *base.observed, *new.listed, *new.observed)))


def timed_together(base: SideRun, new: SideRun, key: str) -> Timed:
    """Both sides' launches of a workload, on the clock that can be trusted on both.

    CPU time where it is what a call costs (see ``SideRun.trusts_cpu_time``), since other work
    hardly moves it; else what the samples are, if nothing else has run beside them.
    """
    one, other = base.observed[key], new.observed[key]
    modes = one.record.get("mode"), other.record.get("mode")
    if modes[0] != modes[1]:
        return Timed(None, reason=f"timed in other ways: {modes[0]}, {modes[1]}")
    if base.trusts_cpu_time and new.trusts_cpu_time:
        cpu = one.logs("cpu"), other.logs("cpu")
        if cpu[0] and cpu[1]:
            return Timed("cpu", *cpu)
    clock = modes[0] if modes[0] in ("device", "graph") else "wall"
    wall = Timed(clock, one.logs(clock), other.logs(clock))
    if not (wall.base and wall.new):
        return Timed(None, reason="a launch's median is 0 s")
    if one.is_contended or other.is_contended:
        return replace(wall, reason="other work ran beside it, and its threads wait awake")
    return wall


def _decided(timed: Mapping[str, Timed], base: SideRun, asked: Asked) -> dict[str, Decision]:
    contrasts: dict[str, Contrast] = {}
    decided: dict[str, Decision] = {}
    for key, one in timed.items():
        if one.clock is None:
            decided[key] = Decision("incomparable", reason=one.reason)
            continue
        found = contrast(one.base, one.new)
        if found is None or one.reason is not None:
            decided[key] = undecided(one.base, one.new, one.reason or ONE_LAUNCH)
        else:
            contrasts[key] = found
    shares = {
        key: asked.thresholds.of("latency", key, base.observed[key].axes).share for key in contrasts
    }
    return decided | procedure.decide_family(contrasts, shares, margin=asked.margin)


def _moved_rulers(base: SideRun, new: SideRun) -> list[str]:
    """What a fixed piece of work says of the machine, where it was another by more than 5 %."""
    notes = []
    for name in base.rulers:
        pair = base.rulers[name], new.rulers.get(name, [])
        if not all(pair) or min(map(min, pair)) <= 0:
            continue
        medians = statistics.median(pair[1]) / statistics.median(pair[0])
        found = contrast(*([math.log(value) for value in side] for side in pair))
        if found is None or abs(math.log(medians)) <= math.log1p(RULER_MOVED):
            continue
        if min(found.p_slower(), found.p_faster()) < RULER_LEVEL:
            work = name.removesuffix("_s")
            notes.append(
                f"the machine was another: a fixed {work} took {medians:.2f}× as long beside new"
            )
    return notes


def _doubted(decisions: Mapping[str, Decision], timed: Mapping[str, Timed]) -> dict[str, Decision]:
    """On another machine wall time says nothing of the code; CPU time is trusted still."""
    return {
        key: replace(one, verdict="inconclusive", reason="the machine was another, by its rulers")
        if one.verdict in ("regressed", "improved") and timed[key].clock != "cpu"
        else one
        for key, one in decisions.items()
    }


def _judged(
    key: str, base: SideRun, new: SideRun, asked: Asked, timed: Timed | None,
    decision: Decision | None,
) -> WorkloadVerdict:  # fmt: skip
    one, other = base.observed.get(key), new.observed.get(key)
    known = one or other
    axes = known.axes if known is not None else {}
    verdict, reason = _standing(key, base, new)
    metrics: list[MetricVerdict] = []
    if verdict is None and one is not None and other is not None:
        metrics = _metrics(key, one, other, asked, timed, decision)
        verdict = first_verdict(metric.verdict for metric in metrics)
    if other is not None and other.is_ok:
        metrics = _limited(metrics, new, other, asked.thresholds.most(key, axes))
        verdict = first_verdict([verdict or "same", *(metric.verdict for metric in metrics)])
    verdict = verdict or "same"
    bad = [metric.metric for metric in metrics if metric.verdict in asked.fail_on]
    allowed = None
    if verdict in asked.fail_on:
        allowed = asked.thresholds.allowed(bad, key, axes)
    return WorkloadVerdict(key, axes, verdict, tuple(metrics), reason, allowed)


def _standing(key: str, base: SideRun, new: SideRun) -> tuple[str | None, str | None]:
    """The verdict of a workload without figures on both sides, and why; None where it has them."""
    one, other = base.observed.get(key), new.observed.get(key)
    if one is None and other is None:
        return "incomparable", "listed, and measured by neither"
    if other is None:
        why = "listed, and not measured" if key in new.listed else "not in the new run"
        return "missing", why
    if one is None:
        if key in base.listed:
            return "incomparable", "the base lists it, and has not measured it"
        return "new", "not in the base"
    if one.is_ok and other.is_ok:
        if one.record.get("model_digest") != other.record.get("model_digest"):
            return "incomparable", "of models of other shapes"
        return None, None
    if one.is_ok:
        return "failed", other.why
    if other.is_ok:
        return "new", f"the base has it as {one.why}"
    if one.status == other.status:
        return "same", f"{one.status} on both sides"
    return "incomparable", f"{one.status} in the base, {other.why} now"


def _metrics(
    key: str, one: Observed, other: Observed, asked: Asked, timed: Timed | None,
    decision: Decision | None,
) -> list[MetricVerdict]:  # fmt: skip
    found: list[MetricVerdict] = []
    if "latency" in asked.metrics and timed is not None and decision is not None:
        found.append(_latency(key, one, asked, timed, decision))
    for metric in ("peak_memory", "kv_bytes"):
        if metric in asked.metrics:
            judged = _size(metric, key, one, other, asked)
            if judged is not None:
                found.append(judged)
    if not found:
        return [MetricVerdict(asked.metrics[0], "incomparable", reason="unknown on both sides")]
    return found


def _latency(
    key: str, one: Observed, asked: Asked, timed: Timed, decision: Decision
) -> MetricVerdict:
    return MetricVerdict(
        metric="latency",
        verdict=decision.verdict,
        base=decision.base,
        new=decision.new,
        ratio=decision.ratio,
        threshold=asked.thresholds.of("latency", key, one.axes).share,
        smallest_seen=decision.smallest_seen,
        p_value=decision.p_value,
        num_launches=decision.num_launches,
        clock=timed.clock,
        reason=decision.reason,
    )


def _size(
    metric: str, key: str, one: Observed, other: Observed, asked: Asked
) -> MetricVerdict | None:
    """Bytes are counted: no chance in it. None where neither side knows them."""
    base, new = one.size(metric), other.size(metric)
    threshold = asked.thresholds.of(metric, key, one.axes)
    meters = one.record.get("memory_meter"), other.record.get("memory_meter")
    reason = None
    if base is None and new is None:
        return None
    if base is None or new is None:
        verdict, reason = "incomparable", "unknown on one side"
    elif meters[0] != meters[1]:
        verdict, reason = "incomparable", f"by other meters: {meters[0]}, {meters[1]}"
    else:
        beyond = abs(new - base) > max(threshold.slack_bytes, threshold.share * min(base, new))
        verdict = ("regressed" if new > base else "improved") if beyond else "same"
    middle = new / base if base and new is not None else None
    return MetricVerdict(
        metric=metric,
        verdict=verdict,
        base=base,
        new=new,
        ratio=Ratio(middle),
        threshold=threshold.share,
        num_launches=(1, 1),
        reason=reason,
    )


def _limited(
    metrics: Sequence[MetricVerdict], new: SideRun, other: Observed, most: Mapping[str, float]
) -> list[MetricVerdict]:
    """The metrics, and those that have an absolute limit alone, held against it."""
    found = {metric.metric: metric for metric in metrics}
    for name, limit in most.items():
        known = found.get(name) or MetricVerdict(name, "same")
        value = _value(name, new, other) if known.new is None else known.new
        known = replace(known, new=value)
        show = seconds if name in ("latency", "ttft") else capacity
        if value is None:
            words = f"unknown, and limited to {show(limit)}"
            found[name] = replace(known, verdict="incomparable", limit=limit, reason=words)
        elif value > limit:
            words = f"{show(value)}, over its limit of {show(limit)}"
            found[name] = replace(known, verdict="regressed", limit=limit, reason=words)
        else:
            found[name] = replace(known, limit=limit)
    return list(found.values())


def _value(metric: str, new: SideRun, other: Observed) -> float | None:
    match metric:
        case "latency":
            _, logs = new.latency(other)
            return math.exp(statistics.fmean(logs)) if logs else None
        case "ttft":
            return new.ttft_s(other)
        case _:
            return other.size(metric)


def _side_notes(base: SideRun, new: SideRun) -> list[str]:
    return [
        f"{run.side.name} is not finished: what it lacks is not compared"
        for run in (base, new)
        if not run.is_finished
    ]


def _is_one_run(base: SideRun, new: SideRun) -> bool:
    """Whether both are one run, however it was named, or copies of one, as a baseline is."""
    return base.side.started == new.side.started and base.observed == new.observed


def _unpaired_notes(comparison: Comparison, timed: Mapping[str, Timed]) -> list[str]:
    """What is uncertain about two finished runs, and what measuring in turns would have told."""
    seen = [
        metric.smallest_seen
        for one in comparison.workloads
        if (metric := one.metric("latency")) is not None and metric.smallest_seen is not None
    ]
    if not timed or not seen:
        return []
    fewest = min(min(len(one.base), len(one.new)) for one in timed.values())
    notes = [
        "two finished runs: whatever changed on the machine between them counts as a change of "
        "the code; attnprof gate measures both in turns, so that it cancels"
    ]
    if fewest < procedure.TRUSTED_LAUNCHES:
        paired = _paired_smallest(timed)
        than = seen_in_percent(statistics.median(seen)).replace("+", "")
        notes.append(
            f"some workloads have {fewest} launches a side: take latency as advice. A typical one "
            f"would have shown a rise of {than}; the gate's fresh launches show "
            f"{seen_in_percent(paired).replace('+', '')}"
        )
    return notes


def _paired_smallest(timed: Mapping[str, Timed], num_fresh: int = 15) -> float | None:
    """What a second look of the gate finds of a typical workload, if launches differ as here."""
    level = procedure.confirming_level(len(timed))
    found = [
        procedure.foreseen(one, num_fresh).smallest_seen(level, DEFAULTS["latency"].share)
        for pair in timed.values()
        if (one := contrast(pair.base, pair.new)) is not None
    ]
    return statistics.median(found) if found else None
