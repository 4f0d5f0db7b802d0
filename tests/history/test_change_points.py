"""Planted levels and creeps come back, noise makes none, and one run alone changes nothing."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.history.change_points import (
    FALSE_ALARMS,
    FEWEST_AT_LEVEL,
    levels,
    rises_or_falls,
    slope,
)

pytest.importorskip("ruptures")

SMALLEST = math.log(1.02)


def noisy(logs: list[float], noise: float, rng: random.Random) -> list[float]:
    return [log + rng.gauss(0, noise) for log in logs]


def num_changes(logs: list[float], smallest: float = SMALLEST) -> int:
    return len(levels(logs, smallest)) - 1


def test_a_step_is_found_where_it_was_planted() -> None:
    rng = random.Random(1)
    for place in (3, 6, 9):
        planted = [0.0] * place + [math.log(1.1)] * (12 - place)
        found = levels(noisy(planted, 0.005, rng), SMALLEST)
        assert [level.start for level in found] == [0, place]
        assert found[1].log - found[0].log == pytest.approx(math.log(1.1), abs=0.02)


def test_two_steps_there_and_back_are_two_changes() -> None:
    rng = random.Random(2)
    planted = [0.0] * 8 + [0.1] * 8 + [0.0] * 8
    assert [one.start for one in levels(noisy(planted, 0.01, rng), SMALLEST)] == [0, 8, 16]


@pytest.mark.parametrize("num_runs", [6, 10, 26])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noise_alone_seldom_makes_a_change_of_level_or_a_creep(num_runs: int, noise: float) -> None:
    rng = random.Random(num_runs)
    series = [noisy([0.0] * num_runs, noise, rng) for _ in range(400)]
    most = 400 * FALSE_ALARMS + 3 * math.sqrt(400 * FALSE_ALARMS)  # three standard deviations
    assert sum(num_changes(logs) > 0 for logs in series) <= most
    assert sum(map(rises_or_falls, series)) <= most


def test_a_creep_of_one_percent_a_week_over_ten_weeks_is_seen() -> None:
    rng = random.Random(5)
    creep = [week * math.log(1.01) for week in range(11)]
    seen = {
        noise: [
            (num_changes(logs) > 0, rises_or_falls(logs))
            for logs in (noisy(creep, noise, rng) for _ in range(100))
        ]
        for noise in (0.0, 0.01, 0.024)
    }
    assert sum(changed for changed, _ in seen[0.0]) == 100
    assert sum(changed for changed, _ in seen[0.01]) >= 90
    assert sum(changed or creeps for changed, creeps in seen[0.024]) >= 60


@given(
    num_runs=st.integers(5, 40),
    spike=st.floats(-3, 3),
    noise=st.floats(0, 0.05),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_the_newest_run_alone_changes_no_level(
    num_runs: int, spike: float, noise: float, seed: int
) -> None:
    before = noisy([0.0] * num_runs, noise, random.Random(seed))
    found = levels([*before, spike], SMALLEST)
    assert all(one.end - one.start >= FEWEST_AT_LEVEL for one in found[1:])
    if len(levels(before, SMALLEST)) == 1:
        assert found[-1].start <= num_runs - 2
        assert abs(found[-1].log - found[0].log) <= max(map(abs, before)) * 2


@pytest.mark.parametrize("place", [0, 4, 5, 10, 19])
@pytest.mark.parametrize("factor", [0.3, 1.5, 10.0])
def test_one_spike_makes_no_level_wherever_it_is(place: int, factor: float) -> None:
    logs = noisy([0.0] * 20, 0.005, random.Random(place))
    logs[place] += math.log(factor)
    assert num_changes(logs) == 0
    assert not rises_or_falls(logs)


def test_a_change_smaller_than_what_counts_is_none() -> None:
    logs = [0.0] * 10 + [math.log(1.015)] * 10
    assert num_changes(logs, math.log(1.01)) == 1
    assert num_changes(logs, math.log(1.02)) == 0


def test_of_counted_bytes_any_change_that_stays_is_one() -> None:
    assert num_changes([math.log(1000)] * 5 + [math.log(1001)] * 3, 0.0) == 1
    assert num_changes([math.log(1000)] * 7 + [math.log(1001)], 0.0) == 0


def test_what_launches_say_of_the_noise_holds_changes_back() -> None:
    logs = [0.0, 0.001, 0.0, 0.03, 0.031, 0.03]
    assert len(levels(logs, SMALLEST, least_noise=0.0)) == 2
    assert len(levels(logs, SMALLEST, least_noise=0.02)) == 1


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=25))
@settings(max_examples=60, deadline=None)
def test_levels_cut_the_runs_without_a_gap(logs: list[float]) -> None:
    found = levels(logs, SMALLEST)
    assert [found[0].start, *(one.end for one in found)] == [
        *(one.start for one in found),
        len(logs),
    ]
    assert len(found) == 1 or all(one.end - one.start >= FEWEST_AT_LEVEL for one in found)


def test_pairs_of_one_day_do_not_make_the_slope_of_a_season() -> None:
    times = [0.0, 10.0, 10.001, 10.002, 10.003]
    logs = [0.0, 0.1, 0.09, 0.12, 0.1]
    assert slope(times, logs) == pytest.approx(0.01, rel=0.1)
    assert slope([2.0, 2.0], [0.0, 1.0]) is None
