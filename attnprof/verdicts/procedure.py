"""Latencies of launches of two sides -> slower, faster, the same, or not to be decided.

The replicate is the launch: samples of one process share its luck. All numbers are natural logs
of launch medians, so that a difference is the log of a ratio.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from attnprof.verdicts.comparison import UNKNOWN, Ratio
from attnprof.verdicts.student import t_above, t_quantile

FAMILY_LEVEL = 0.01  # how often a family of unchanged workloads may raise any alarm
SCREEN_LEVEL = 0.1  # the first look: cheap, and every tenth unchanged workload may pass it
SCREEN_SHARE = 0.6  # of the threshold, which an estimate has to pass to be looked at again
STRICTEST_NEEDED = 0.001  # the second look is never laxer
MISSES_OFTEN = 0.2  # the smallest effect seen is found four times in five
OUTSIDE = 0.025  # on each side of an interval at 95 %
FEWEST_LAUNCHES = 2  # of one, nothing is known of how launches differ
TRUSTED_LAUNCHES = 5  # a side, from which on a test by launches is more than advice


@dataclass(frozen=True)
class Contrast:
    """The mean difference of two sides' logs, how uncertain it is, and the launches behind it.

    Args:
        base: The mean of the base's logs.
    """

    rise: float
    error: float
    df: float
    num_launches: tuple[int, int]
    base: float = 0.0

    def p_slower(self, margin: float = 0.0) -> float:
        """Of "it rose by no more than ``margin``", a log: one-sided."""
        return _p(self.rise - margin, self.error, self.df)

    def p_faster(self, margin: float = 0.0) -> float:
        """Of "it fell by no more than ``margin``", a log: one-sided."""
        return _p(-self.rise - margin, self.error, self.df)

    @property
    def ratio(self) -> Ratio:
        """New over base, with its interval at 95 %."""
        reach = t_quantile(OUTSIDE, self.df) * self.error
        return Ratio(_exp(self.rise), _exp(self.rise - reach), _exp(self.rise + reach))

    @property
    def half_width(self) -> float:
        return t_quantile(OUTSIDE, self.df) * self.error

    def smallest_seen(self, level: float, threshold: float, margin: float = 0.0) -> float:
        """The smallest rise that is found four times in five, as a share of one.

        It has to pass the test, (t_{1−level} + t_{0.8}) · error beyond the margin, and its
        estimate the threshold.
        """
        power = t_quantile(MISSES_OFTEN, self.df) * self.error
        tested = margin + t_quantile(level, self.df) * self.error + power
        return _exp(max(tested, math.log1p(threshold) + power)) - 1


def _exp(log_ratio: float) -> float:
    return math.exp(log_ratio) if log_ratio < 700 else math.inf


def _p(rise: float, error: float, df: float) -> float:
    if error == 0:
        return 0.5 if rise == 0 else float(rise < 0)
    return t_above(rise / error, df)


def contrast(base: Sequence[float], new: Sequence[float]) -> Contrast | None:
    """Welch's comparison of two means; None where a side has fewer than two launches.

    >>> found = contrast([0.0, 0.02], [0.1, 0.12])
    >>> round(found.rise, 3), round(found.error, 3), round(found.df, 3)
    (0.1, 0.014, 2.0)

    Source:
        Welch 1947, "The generalization of 'Student's' problem when several different population
        variances are involved", Biometrika 34.
    """
    counts = len(base), len(new)
    if min(counts) < FEWEST_LAUNCHES:
        return None
    means = fmean(base), fmean(new)
    shares = [
        math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
        for values, mean in zip((base, new), means, strict=True)
    ]
    total = shares[0] + shares[1]
    rise = means[1] - means[0]
    if total < (1e-12 * max(1.0, abs(means[0]))) ** 2:  # nothing but rounding
        rise = rise if abs(rise) > 1e-12 else 0.0
        return Contrast(rise, 0.0, sum(counts) - 2.0, counts, means[0])
    df = total**2 / sum(share**2 / (count - 1) for share, count in zip(shares, counts, strict=True))
    return Contrast(rise, math.sqrt(total), df, counts, means[0])


@dataclass(frozen=True)
class Decision:
    """What became of one workload's latency; see ``MetricVerdict`` for the rest.

    Args:
        base: The geometric mean of the base's launches, of the same as the ratio is. [s]
        new: Likewise; new over base is the middle of the ratio. [s]
    """

    verdict: str
    base: float | None = None
    new: float | None = None
    ratio: Ratio = UNKNOWN
    p_value: float | None = None
    smallest_seen: float | None = None
    num_launches: tuple[int, int] = (0, 0)
    reason: str | None = None


def undecided(base: Sequence[float], new: Sequence[float], reason: str) -> Decision:
    """Of launches that decide nothing: their figures, and why.

    >>> undecided([0.0], [0.0], "one launch a side").ratio
    Ratio(mid=1.0, low=None, high=None)
    """
    middles = fmean(base), fmean(new)
    found = contrast(base, new)
    return Decision(
        verdict="inconclusive",
        base=_exp(middles[0]),
        new=_exp(middles[1]),
        ratio=Ratio(_exp(middles[1] - middles[0])) if found is None else found.ratio,
        num_launches=(len(base), len(new)),
        reason=reason,
    )


def decide(found: Contrast, threshold: float, *, level: float, margin: float = 0.0) -> Decision:
    """The verdict of one contrast at one level.

    ``regressed`` takes a test that it is slower (beyond ``margin``) and an estimate beyond the
    threshold; ``improved`` is the same mirrored. ``same`` is what is known to within the
    threshold, or does not reach it; all else is ``inconclusive``.

    Args:
        threshold: The smallest rise that counts, as a share.
        level: Of the one-sided test.
        margin: A rise that is not yet one, as a share.

    >>> decide(contrast([0.0, 0.01, 0.02], [0.2, 0.21, 0.22]), 0.05, level=0.001).verdict
    'regressed'
    >>> decide(contrast([0.0, 0.01, 0.02], [0.0, 0.02, 0.01]), 0.05, level=0.001).verdict
    'same'
    """
    limit, beyond = math.log1p(threshold), math.log1p(margin)
    p_slower, p_faster = found.p_slower(beyond), found.p_faster(beyond)
    reason = None
    if p_slower < level and found.rise > limit:
        verdict = "regressed"
    elif p_faster < level and found.rise < -limit:
        verdict = "improved"
    elif abs(found.rise) > limit:
        verdict = "inconclusive"
        reason = "beyond the threshold, but not certain enough"
    elif found.half_width > limit and abs(found.rise) + found.half_width > limit:
        verdict, reason = "inconclusive", "its interval spans the threshold"
    else:
        verdict = "same"
    return Decision(
        verdict=verdict,
        base=_exp(found.base),
        new=_exp(found.base + found.rise),
        ratio=found.ratio,
        p_value=p_slower,
        smallest_seen=found.smallest_seen(level, threshold, beyond),
        num_launches=found.num_launches,
        reason=reason,
    )


def confirming_level(num_workloads: int, num_screens: int = 1) -> float:
    """The level of the second look, with which a family of unchanged workloads alarms < 1 %.

        a₂ = min(0.001, 0.01 / (a₁ · n))

    The two looks use launches of their own, so the chance to pass both is the product.

    Args:
        num_screens: How often a workload is screened before it may be dropped.

    >>> confirming_level(11), confirming_level(1000)
    (0.001, 0.0001)
    """
    chances = SCREEN_LEVEL * num_workloads * num_screens
    return min(STRICTEST_NEEDED, FAMILY_LEVEL / chances) if chances else STRICTEST_NEEDED


def is_flagged(found: Contrast, threshold: float) -> bool:
    """Whether the first look sees so much of a change, either way, that a second one is due."""
    limit = math.log1p(SCREEN_SHARE * threshold)
    slower = found.rise > limit and found.p_slower() < SCREEN_LEVEL
    faster = found.rise < -limit and found.p_faster() < SCREEN_LEVEL
    return slower or faster


def decide_in_two_looks(
    first: Contrast, fresh: Contrast | None, threshold: float, *, level: float, num_fresh: int
) -> Decision:
    """The verdict of a workload that was screened, and measured again if that flagged it.

    Args:
        first: Of the launches of the first look.
        fresh: Of those made since it was flagged, and of no other; None where it was not.
        level: Of :func:`confirming_level`.
        num_fresh: Launches a side that a second look has, for the smallest effect seen.
    """
    if fresh is not None:
        found = decide(fresh, threshold, level=level)
        opposite = "improved" if first.rise > 0 else "regressed"
        return _disagreeing(found) if found.verdict == opposite else found
    seen = foreseen(first, num_fresh).smallest_seen(level, threshold)
    passed = first.smallest_seen(SCREEN_LEVEL, SCREEN_SHARE * threshold)
    found = decide(first, threshold, level=level)
    if is_flagged(first, threshold):
        found = replace(found, verdict="inconclusive", reason="flagged, and not measured again")
    return replace(found, smallest_seen=max(seen, passed))


def _disagreeing(found: Decision) -> Decision:
    """What the second look says against the first: the level holds of what both say."""
    return replace(found, verdict="inconclusive", reason="the two looks say the opposite")


def foreseen(first: Contrast, num_fresh: int) -> Contrast:
    """What a second look would have had, if its launches differ as those of the first do."""
    scale = math.sqrt(2 / num_fresh / sum(1 / n for n in first.num_launches))
    return replace(
        first,
        error=first.error * scale,
        df=2 * num_fresh - 2.0,
        num_launches=(num_fresh, num_fresh),
    )


def decide_family(
    contrasts: Mapping[str, Contrast], thresholds: Mapping[str, float], *, margin: float = 0.0
) -> dict[str, Decision]:
    """The verdicts of workloads that were measured once, by Holm's procedure at 1 % a family.

    Args:
        contrasts: By workload, those of two launches a side or more.
        thresholds: By workload.
        margin: A rise that is not yet one, as a share.

    Source:
        Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
        of Statistics 6(2).
    """
    beyond = math.log1p(margin)
    slower = holm({name: one.p_slower(beyond) for name, one in contrasts.items()})
    faster = holm({name: one.p_faster(beyond) for name, one in contrasts.items()})
    decided = {}
    for name, found in contrasts.items():
        level = slower[name] if found.rise > 0 else faster[name]
        decided[name] = decide(found, thresholds[name], level=level, margin=margin)
    return decided


def holm(p_values: Mapping[str, float], level: float = FAMILY_LEVEL) -> dict[str, float]:
    """The level at which each is tested, so that a family at which nothing is true errs seldom.

    The smallest of m is held against level / m, the next against level / (m − 1), and after the
    first that fails all others fail with it.

    >>> holm({"a": 0.004, "b": 0.9, "c": 0.0001}, 0.01)
    {'c': 0.0033333333333333335, 'a': 0.005, 'b': 0.01}
    >>> holm({"a": 0.006, "b": 0.007}, 0.01)
    {'a': 0.005, 'b': 0.005}
    """
    levels: dict[str, float] = {}
    failed_at: float | None = None
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda one: one[1])):
        levels[name] = failed_at if failed_at is not None else level / (len(p_values) - rank)
        if failed_at is None and p_value >= levels[name]:
            failed_at = levels[name]
    return levels


def geometric_mean(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Ratio:
    """The mean ratio over workloads, with its interval at 95 %.

    Workloads of one launch, or of one round, share its luck, so they are no replicates of each
    other: the k-th launches of all workloads together are one, and the interval is of as many
    as the workload with the fewest has.

    Args:
        pairs: Of each workload the logs of base and of new, in the order of their launches.
    """
    if not pairs:
        return UNKNOWN
    middle = fmean(fmean(new) - fmean(base) for base, new in pairs)
    sides = []
    for side in (0, 1):
        fewest = min(len(pair[side]) for pair in pairs)
        sides.append([fmean(pair[side][k] for pair in pairs) for k in range(fewest)])
    found = contrast(sides[0], sides[1])
    if found is None:
        return Ratio(_exp(middle))
    return Ratio(_exp(middle), _exp(middle - found.half_width), _exp(middle + found.half_width))
