import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.medians import median_interval, percentile, tukey_outliers


@pytest.mark.parametrize("num_samples", [10, 30, 100])
def test_interval_holds_the_true_median_of_skewed_times_95_times_in_100(num_samples: int) -> None:
    draw = random.Random(num_samples)
    held, repeats = 0, 4000
    for _ in range(repeats):
        found = median_interval([draw.lognormvariate(0, 1) for _ in range(num_samples)])
        assert found.low_s is not None and found.high_s is not None
        held += found.low_s <= 1.0 <= found.high_s
    assert 0.94 <= held / repeats <= 0.97


@pytest.mark.parametrize("num_samples", [6, 10, 23, 100, 300, 1500])
def test_interval_lies_between_the_ranks_that_the_binomial_gives(num_samples: int) -> None:
    ranks = [float(rank) for rank in range(1, num_samples + 1)]
    found = median_interval(ranks)
    assert found.low_s is not None and found.high_s is not None
    outer, inner = math.floor(found.low_s), math.floor(found.low_s) + 1

    def coverage(rank: int) -> float:
        below = sum(math.comb(num_samples, k) for k in range(rank))
        return 1 - below / (1 << (num_samples - 1))

    assert coverage(inner) < 0.95 <= coverage(outer)
    assert found.low_s + found.high_s == pytest.approx(num_samples + 1)


def test_fewer_than_six_samples_give_no_interval() -> None:
    assert median_interval([1.0] * 5).low_s is None
    assert median_interval([1.0] * 6).low_s == 1.0
    assert median_interval([]).median_s is None


@given(st.lists(st.floats(1e-9, 1e3), min_size=6, max_size=40))
def test_interval_holds_the_median_of_its_samples(values: list[float]) -> None:
    found = median_interval(values)
    assert found.median_s == statistics.median(values)
    assert found.low_s is not None and found.high_s is not None
    assert found.low_s <= found.median_s * (1 + 1e-12)
    assert found.high_s >= found.median_s * (1 - 1e-12)


def test_outliers_are_counted_by_how_far_they_lie() -> None:
    calm = [1.0 + i / 100 for i in range(20)]
    spread = statistics.quantiles(calm, n=4, method="inclusive")
    reach = spread[2] - spread[0]
    assert tukey_outliers(calm) == (0, 0)
    assert tukey_outliers([*calm, calm[-1] + 2 * reach]) == (1, 0)
    assert tukey_outliers([*calm, calm[-1] + 9 * reach]) == (0, 1)


def test_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    assert percentile([float(i) for i in range(1, 101)], 0.95) == 95
    assert percentile([7.0], 0.95) == 7
