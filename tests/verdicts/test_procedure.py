"""Launches -> verdicts: what SciPy and published tables say, and what must always hold."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from attnprof.verdicts.procedure import (
    Contrast,
    confirming_level,
    contrast,
    decide,
    decide_family,
    decide_in_two_looks,
    geometric_mean,
    holm,
    is_flagged,
)

logs = st.lists(st.integers(-300, 300).map(lambda n: n / 100), min_size=2, max_size=12)
LEVEL = 0.001


def made(rise: float, error: float, df: float = 28.0) -> Contrast:
    return Contrast(rise, error, df, (15, 15))


@given(base=logs, new=logs)
def test_a_contrast_is_welchs_test(base: list[float], new: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assume(len(set(base)) > 1 and len(set(new)) > 1)
    found = contrast(base, new)
    assert found is not None
    wanted = stats.ttest_ind(new, base, equal_var=False, alternative="greater")
    assert found.p_slower() == pytest.approx(wanted.pvalue, rel=1e-6, abs=1e-12)
    assert found.df == pytest.approx(wanted.df, rel=1e-6)
    low, high = stats.ttest_ind(new, base, equal_var=False).confidence_interval(0.95)
    assert found.ratio.low is not None and found.ratio.high is not None
    assert found.ratio.low <= math.exp(low) * (1 + 1e-9)
    assert found.ratio.high >= math.exp(high) * (1 - 1e-9)


def test_one_launch_a_side_makes_no_contrast() -> None:
    assert contrast([0.0], [0.1, 0.2]) is None


@given(base=logs, new=logs)
def test_what_is_slower_one_way_is_faster_the_other(base: list[float], new: list[float]) -> None:
    one, other = contrast(base, new), contrast(new, base)
    assert one is not None and other is not None
    mirrored = {"regressed": "improved", "improved": "regressed"}
    verdict = decide(one, 0.05, level=LEVEL).verdict
    assert decide(other, 0.05, level=LEVEL).verdict == mirrored.get(verdict, verdict)


@pytest.mark.parametrize(
    ("rise", "error", "verdict"),
    [
        pytest.param(0.10, 0.01, "regressed", id="10 % slower, known to 2 %"),
        pytest.param(0.03, 0.001, "same", id="3 % slower for certain, below the threshold"),
        pytest.param(0.06, 0.02, "inconclusive", id="6 % slower, perhaps"),
        pytest.param(0.00, 0.10, "inconclusive", id="no change, known to 20 %"),
        pytest.param(0.00, 0.01, "same", id="no change, known to 2 %"),
        pytest.param(-0.10, 0.01, "improved", id="10 % faster"),
        pytest.param(0.10, 0.0, "regressed", id="launches that do not differ at all"),
    ],
)
def test_a_verdict_needs_the_test_and_the_estimate(rise: float, error: float, verdict: str) -> None:
    assert decide(made(rise, error), 0.05, level=LEVEL).verdict == verdict


def test_a_margin_asks_for_more_than_drift() -> None:
    found = made(0.06, 0.01)
    assert decide(found, 0.05, level=LEVEL).verdict == "regressed"
    assert decide(found, 0.05, level=LEVEL, margin=0.03).verdict == "inconclusive"
    without, with_margin = (decide(found, 0.05, level=LEVEL, margin=m) for m in (0.0, 0.03))
    assert with_margin.smallest_seen is not None and without.smallest_seen is not None
    assert with_margin.smallest_seen > without.smallest_seen


@pytest.mark.parametrize(("error", "threshold"), [(0.005, 0.04), (0.02, 0.04), (0.02, 0.15)])
def test_the_smallest_rise_seen_is_found_four_times_in_five(error: float, threshold: float) -> None:
    num, drawn = 15, random.Random(0)
    spread = error * math.sqrt(num / 2)
    seen = made(0.0, error).smallest_seen(LEVEL, threshold)
    found = 0
    for _ in range(2000):
        base = [drawn.gauss(0, spread) for _ in range(num)]
        new = [drawn.gauss(math.log1p(seen), spread) for _ in range(num)]
        one = contrast(base, new)
        assert one is not None
        found += decide(one, threshold, level=LEVEL).verdict == "regressed"
    assert 0.74 <= found / 2000 <= 0.86


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_definition_rejects(p_values: dict[str, float]) -> None:
    levels = holm(p_values, 0.05)
    ordered = sorted(p_values.values())
    rejected = 0
    while rejected < len(ordered) and ordered[rejected] < 0.05 / (len(ordered) - rejected):
        rejected += 1
    assert sum(p_values[name] < levels[name] for name in p_values) == rejected


def test_one_workload_among_many_needs_more_than_alone() -> None:
    found = made(0.08, 0.02)
    alone = decide_family({"a": found}, {"a": 0.05})
    many = {"a": found} | {str(number): made(0.0, 0.02) for number in range(200)}
    among = decide_family(many, dict.fromkeys(many, 0.05))
    assert alone["a"].verdict == "regressed"
    assert among["a"].verdict == "inconclusive"


def test_both_looks_together_raise_an_alarm_in_less_than_one_family_of_a_hundred() -> None:
    for num in (1, 10, 100, 5000):
        for screens in (1, 3):
            assert 0.1 * num * screens * confirming_level(num, screens) <= 0.01 + 1e-12


def test_the_second_look_alone_decides_and_has_to_agree_with_the_first() -> None:
    slower, faster, calm = made(0.1, 0.01), made(-0.1, 0.01), made(0.0, 0.01)
    assert is_flagged(slower, 0.05) and is_flagged(faster, 0.05) and not is_flagged(calm, 0.05)

    def verdict(first: Contrast, fresh: Contrast | None) -> str:
        return decide_in_two_looks(first, fresh, 0.05, level=LEVEL, num_fresh=15).verdict

    assert verdict(slower, slower) == "regressed"
    assert verdict(slower, calm) == "same"
    assert verdict(slower, faster) == "inconclusive"
    assert verdict(slower, None) == "inconclusive"
    assert verdict(calm, None) == "same"


def test_a_geometric_mean_takes_launches_and_not_workloads_for_replicates() -> None:
    drawn = random.Random(1)
    luck = [[drawn.gauss(0, 0.03) for _ in range(5)] for _ in range(2)]
    one = (luck[0], [0.1 + value for value in luck[1]])
    few, many = geometric_mean([one]), geometric_mean([one] * 100)
    assert few.low == pytest.approx(many.low) and few.high == pytest.approx(many.high)
    assert few.low is not None and few.high is not None
    assert few.low < math.exp(0.1) < few.high


def test_a_geometric_mean_of_one_launch_has_no_interval() -> None:
    found = geometric_mean([([0.0], [0.1]), ([0.0], [0.3])])
    assert found.mid == pytest.approx(math.exp(0.2))
    assert found.low is None and found.high is None
