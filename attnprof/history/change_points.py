"""Figures of runs, one after another -> their levels, and whether they creep.

Changes of level are proposed by ruptures, and kept where noise alone seldom makes such a one.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from attnprof.errors import CannotMeasureError, to_install
from attnprof.verdicts.student import t_quantile

FEWEST_AT_LEVEL = 3  # runs, so that neither one spike nor the newest run alone makes a level
FEWEST_RUNS = 2 * FEWEST_AT_LEVEL
FALSE_ALARMS = 0.01  # of series where nothing changed: by a change of level, and by a creep


@dataclass(frozen=True)
class Level:
    """Runs from ``start`` up to, not including, ``end``, and the median of their logarithms."""

    start: int
    end: int
    log: float


def levels(logs: Sequence[float], smallest: float, least_noise: float = 0.0) -> list[Level]:
    """The levels of a series, one after another; a single one where nothing changed.

    PELT with the distances from the median as cost proposes changes. Of those the weakest is
    dropped, until each that is left is as large as ``smallest``, and larger than noise makes it:

        |m₂ − m₁| > t · σ · √(1/n₁ + 1/n₂)

    t is the quantile of Student's t that noise exceeds anywhere in a series in ``FALSE_ALARMS`` of
    all cases; σ is had from neighbours, whose differences no step and no creep can widen.

    Args:
        logs: Logarithms of one figure, a run each.
        smallest: The logarithm of the smallest ratio that counts.
        least_noise: σ is no smaller: what a run's own launches say of its error.

    Raises:
        CannotMeasureError: ruptures is not installed.

    Source:
        Killick, Fearnhead and Eckley 2012, "Optimal detection of changepoints with a linear
        computational cost", JASA 107(500), for PELT; von Neumann 1941, "Distribution of the ratio
        of the mean square successive difference to the variance", for σ.
    """
    ends = [0, *_proposed(logs, least_noise), len(logs)]
    while True:
        found = [
            Level(start, end, statistics.median(logs[start:end])) for start, end in pairwise(ends)
        ]
        if len(found) == 1:
            return found
        noise = max(least_noise, _noise(logs, ends))
        needed = [_needed(len(logs), *pair, smallest, noise) for pair in pairwise(found)]
        excess = [
            abs(after.log - before.log) / least
            for (before, after), least in zip(pairwise(found), needed, strict=True)
        ]
        weakest = min(range(len(excess)), key=excess.__getitem__)
        if excess[weakest] >= 1:
            return found
        del ends[weakest + 1]


def _proposed(logs: Sequence[float], least_noise: float) -> list[int]:
    if len(logs) < FEWEST_RUNS or len(set(logs)) == 1:
        return []
    try:
        import numpy as np
        from ruptures.detection import Pelt
    except ImportError:
        raise CannotMeasureError(
            "changes over time are found by ruptures, which is not installed",
            to_install("history"),
        ) from None
    noise = max(least_noise, _noise(logs, [0, len(logs)]))
    search = Pelt(model="l1", min_size=FEWEST_AT_LEVEL, jump=1).fit(np.array(logs))
    return [int(end) for end in search.predict(pen=noise * math.log(len(logs)))[:-1]]


def _noise(logs: Sequence[float], ends: Sequence[int]) -> float:
    """σ of a run, from neighbours at one level: a creep adds the same to each difference."""
    steps = [logs[i] - logs[i - 1] for i in range(1, len(logs)) if i not in ends]
    middle = statistics.median(steps)
    squares = math.fsum((step - middle) ** 2 for step in steps)
    return math.sqrt(squares / 2 / (len(steps) - 1))


def _needed(num_runs: int, before: Level, after: Level, smallest: float, noise: float) -> float:
    """How large a change has to be: two thirds of the differences' worth are degrees of freedom."""
    num_places = num_runs - FEWEST_RUNS + 1
    t = t_quantile(FALSE_ALARMS / 2 / num_places, 2 * (num_runs - 1) / 3)
    spread = noise * math.sqrt(1 / (before.end - before.start) + 1 / (after.end - after.start))
    return max(smallest, t * spread, math.ulp(1.0))


def slope(times: Sequence[float], logs: Sequence[float]) -> float | None:
    """The median of the slopes of pairs, of those a tenth of the span apart or more.

    None where all are of one time. Pairs that are closer tell of noise alone.

    >>> slope([0, 1, 2, 3], [0.0, 0.01, 9.0, 0.03])
    0.01

    Source:
        Theil 1950 and Sen 1968, "Estimates of the regression coefficient based on Kendall's tau",
        JASA 63(324).
    """
    span = max(times) - min(times)
    if span == 0:
        return None
    slopes = [
        (log_b - log_a) / (b - a)
        for (a, log_a), (b, log_b) in combinations(zip(times, logs, strict=True), 2)
        if abs(b - a) >= span / 10
    ]
    return statistics.median(slopes)


def rises_or_falls(logs: Sequence[float]) -> bool:
    """Whether later runs are so often above earlier ones, or below, that it is no chance.

        z = (|S| − 1) / √(n·(n − 1)·(2n + 5) / 18),   S = Σ_{i<j} sign(x_j − x_i)

    One run, however far off, moves S by n − 1 at the most.

    >>> rises_or_falls([0.0, 0.01, 0.02, 0.03, 0.04, 0.05])
    True
    >>> rises_or_falls([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9])
    False

    Source:
        Mann 1945, "Nonparametric tests against trend", Econometrica 13(3).
    """
    n = len(logs)
    if n < FEWEST_RUNS:
        return False
    score = sum((b > a) - (b < a) for a, b in combinations(logs, 2))
    z = (abs(score) - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return math.erfc(z / math.sqrt(2)) < FALSE_ALARMS
