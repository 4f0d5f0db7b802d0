"""Samples -> their median, the interval that it lies in, and what lies far from it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MISSES_ONE_IN = 20  # intervals at 95 %
FEWEST_FOR_INTERVAL = 6  # the whole range of fewer samples covers the median less often than 95 %


@dataclass(frozen=True)
class Interval:
    """A median and the interval that holds the true one 95 times in 100; unknown is None. [s]"""

    median_s: float | None
    low_s: float | None
    high_s: float | None

    @property
    def half_width(self) -> float | None:
        """Half the interval as a share of the median; None when either is unknown."""
        if self.low_s is None or self.high_s is None or not self.median_s:
            return None
        return (self.high_s - self.low_s) / 2 / self.median_s

    def meets(self, target: float) -> bool:
        return self.half_width is not None and self.half_width <= target


NO_INTERVAL = Interval(None, None, None)


@lru_cache(maxsize=4096)
def _ranks(num_samples: int) -> tuple[int, float]:
    """Rank k of the interval's lower end, and how far it moves towards rank k + 1.

    The order statistics k and n − k + 1 hold the median with probability
    γ_k = 1 − 2·P(Bin(n, ½) < k); between the k with γ_k ≥ 95 % and the next one, the ends are
    interpolated:

        I = (γ_k − γ) / (γ_k − γ_{k+1}),   λ = (n − k)·I / (k + (n − 2k)·I)

    Source:
        Hettmansperger and Sheather 1986, "Confidence intervals based on interpolated order
        statistics", Statistics & Probability Letters 4(2).
    """
    n = num_samples
    miss, rank = 1, 0  # miss / 2^n = P(Bin < rank + 1)
    while 2 * MISSES_ONE_IN * (miss + math.comb(n, rank + 1)) <= 2**n:
        rank += 1
        miss += math.comb(n, rank)
    rank += 1
    coverage = 1 - 2 * miss / 2**n
    next_coverage = 1 - 2 * (miss + math.comb(n, rank)) / 2**n
    share = (coverage - 1 + 1 / MISSES_ONE_IN) / (coverage - next_coverage)
    return rank, (n - rank) * share / (rank + (n - 2 * rank) * share)


def median_interval(values: Sequence[float]) -> Interval:
    """The median and its distribution-free 95 % interval; fewer than six values give no interval.

    >>> median_interval([1.0, 2.0, 3.0])
    Interval(median_s=2.0, low_s=None, high_s=None)
    """
    if not values:
        return NO_INTERVAL
    ordered = sorted(values)
    median = statistics.median(ordered)
    n = len(ordered)
    if n < FEWEST_FOR_INTERVAL:
        return Interval(median, None, None)
    rank, towards = _ranks(n)
    low = ordered[rank - 1] + towards * (ordered[rank] - ordered[rank - 1])
    high = ordered[n - rank] - towards * (ordered[n - rank] - ordered[n - rank - 1])
    return Interval(median, low, high)


def tukey_outliers(values: Sequence[float]) -> tuple[int, int]:
    """How many values lie beyond 1.5 and how many beyond 3 interquartile ranges; all are kept.

    >>> tukey_outliers([1.0, 1.1, 1.2, 1.3, 1.4, 9.0])
    (0, 1)
    """
    if len(values) < 4:
        return 0, 0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    beyond = [max(first - value, value - third) for value in values]
    severe = sum(distance > 3 * (third - first) for distance in beyond)
    return sum(distance > 1.5 * (third - first) for distance in beyond) - severe, severe


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
