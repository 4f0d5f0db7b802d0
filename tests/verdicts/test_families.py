"""Unchanged code raises no alarm, however launches differ and the machine drifts; changes do."""

import math

import pytest

from tests.verdicts.families import Machine, Measuring

NUM_FAMILIES = 2000
FEWER = 200
NUM_WORKLOADS = 100
COMPUTE_BOUND = Machine(launch=0.01, workload=0.02, drift=0.002)
MEMORY_BOUND = Machine(launch=0.02, workload=0.06, drift=0.005)

pytestmark = pytest.mark.slow


def share_found(machine: Machine, rise: float, num_families: int = 10) -> float:
    found = [
        one.verdict == "regressed"
        for seed in range(num_families)
        for one in Measuring(machine, NUM_WORKLOADS, seed).gated(math.log1p(rise))
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("machine", "num_families"),
    [
        pytest.param(Machine(), NUM_FAMILIES, id="launches differ by 3 %, and the machine drifts"),
        pytest.param(Machine(drift=0.02), FEWER, id="it drifts by 2 % from launch to launch"),
        pytest.param(
            Machine(launch=0.0, workload=0.06), NUM_FAMILIES, id="workloads differ by 6 %"
        ),
    ],
)
def test_the_gate_alarms_in_less_than_one_of_a_hundred_unchanged_families(
    machine: Machine, num_families: int
) -> None:
    alarms = sum(
        any(one.verdict == "regressed" for one in Measuring(machine, NUM_WORKLOADS, seed).gated())
        for seed in range(num_families)
    )
    assert alarms < 0.01 * num_families


@pytest.mark.parametrize(("num_launches", "num_families"), [(3, FEWER), (5, NUM_FAMILIES)])
def test_finished_runs_alarm_in_less_than_one_of_a_hundred_unchanged_families(
    num_launches: int, num_families: int
) -> None:
    alarms = sum(
        any(
            one.verdict == "regressed"
            for one in Measuring(Machine(), NUM_WORKLOADS, seed).compared(num_launches)
        )
        for seed in range(num_families)
    )
    assert alarms < 0.01 * num_families


def test_the_gate_finds_what_has_become_slower() -> None:
    assert share_found(COMPUTE_BOUND, 0.10) >= 0.99
    assert share_found(COMPUTE_BOUND, 0.05) >= 0.60
    assert share_found(MEMORY_BOUND, 0.10) >= 0.80


def test_nothing_is_found_where_nothing_changed_but_all_is_called_the_same() -> None:
    decided = Measuring(COMPUTE_BOUND, NUM_WORKLOADS, 1).gated()
    assert sum(one.verdict == "same" for one in decided) >= 0.9 * NUM_WORKLOADS
