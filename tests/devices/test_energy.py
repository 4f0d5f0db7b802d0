"""Counters of energy on a clock of the test's own."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.devices.energy import RaplCounter, energy_of, idle_watts, rapl_counter


class Bench:
    """A clock, a load, and a counter that steps once a period."""

    energy_source = "nvml"

    def __init__(self, *, idle_w: float = 60.0, call_j: float = 0.5, period_s: float = 0.1) -> None:
        self.at_s = 0.0
        self.used_j = 1000.0
        self.idle_w = idle_w
        self.call_j = call_j
        self.period_s = period_s
        self.shown: tuple[int, float] = (0, self.used_j)
        self.is_dead = False

    def now_s(self) -> float:
        return self.at_s

    def pause(self, duration_s: float) -> None:
        self.at_s += duration_s
        self.used_j += duration_s * self.idle_w

    def run(self, num_calls: int = 4, call_s: float = 5e-3) -> Callable[[], int]:
        def chunk() -> int:
            self.pause(num_calls * call_s)
            self.used_j += num_calls * self.call_j
            return num_calls

        return chunk

    def energy_j(self) -> float | None:
        if self.is_dead:
            return None
        period = int(self.at_s / self.period_s)
        if period != self.shown[0]:
            self.shown = (period, self.used_j)
        return self.shown[1]


@given(
    call_j=st.floats(1e-3, 5.0),
    call_s=st.floats(1e-4, 20e-3),
    period_s=st.floats(0.01, 0.1),
    num_calls=st.integers(1, 8),
)
@settings(deadline=None)
def test_joules_of_a_call_are_exact_though_the_counter_steps_seldom(
    call_j: float, call_s: float, period_s: float, num_calls: int
) -> None:
    bench = Bench(call_j=call_j, period_s=period_s)
    found = energy_of(bench, bench.run(num_calls, call_s), idle_w=60.0, now_s=bench.now_s)
    assert found is not None
    assert found.joules_per_call == pytest.approx(call_j + 60.0 * call_s)
    assert found.window_s >= 2.0
    assert found.source == "nvml"


def test_idle_power_is_measured_with_nothing_running() -> None:
    bench = Bench(idle_w=73.0)
    watts = idle_watts(bench, 5.0, now_s=bench.now_s, pause=bench.pause)
    assert watts == pytest.approx(73.0)
    assert bench.at_s >= 5.0


def test_a_window_under_a_second_is_unknown() -> None:
    bench = Bench()
    run = bench.run()
    assert energy_of(bench, run, idle_w=None, window_s=0.8, now_s=bench.now_s) is None
    found = energy_of(bench, run, idle_w=None, window_s=1.0, now_s=bench.now_s)
    assert found is not None
    assert found.idle_w is None


def test_a_counter_that_stands_still_or_fails_is_unknown() -> None:
    still = Bench(period_s=1e9)
    assert energy_of(still, still.run(), idle_w=None, now_s=still.now_s) is None
    assert still.at_s < 2.0
    assert idle_watts(still, now_s=still.now_s, pause=still.pause) is None

    dead = Bench()
    dead.is_dead = True
    assert energy_of(dead, dead.run(), idle_w=None, now_s=dead.now_s) is None

    dies = Bench()
    run = dies.run()

    def run_then_die() -> int:
        dies.is_dead = dies.at_s > 1.5
        return run()

    assert energy_of(dies, run_then_die, idle_w=None, now_s=dies.now_s) is None


def powercap(root: Path, name: str, label: str, energy_uj: int, range_uj: int = 1000) -> Path:
    domain = root / name
    domain.mkdir()
    (domain / "name").write_text(f"{label}\n")
    (domain / "energy_uj").write_text(f"{energy_uj}\n")
    (domain / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return domain


def test_rapl_counts_packages_and_nothing_twice(tmp_path: Path) -> None:
    packages = [
        powercap(tmp_path, "intel-rapl:0", "package-0", 100),
        powercap(tmp_path, "intel-rapl:1", "package-1", 500),
    ]
    parts = [
        powercap(tmp_path, "intel-rapl:0:0", "core", 50),
        powercap(tmp_path, "intel-rapl:2", "psys", 600),
    ]
    counter = rapl_counter(tmp_path)
    assert counter is not None
    for domain in packages:
        (domain / "energy_uj").write_text(str(int((domain / "energy_uj").read_text()) + 20))
    for domain in parts:
        (domain / "energy_uj").write_text("999")
    assert counter.energy_j() == pytest.approx(40e-6)


@given(steps=st.lists(st.integers(0, 999), min_size=1, max_size=30))
@settings(deadline=None)
def test_rapl_goes_on_counting_when_its_register_wraps(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    domain = powercap(tmp_path_factory.mktemp("rapl"), "intel-rapl:0", "package-0", 990)
    counter = RaplCounter([domain])
    for total in itertools.accumulate(steps):
        (domain / "energy_uj").write_text(str((990 + total) % 1000))
        assert counter.energy_j() == pytest.approx(total * 1e-6)


def test_no_rapl_or_one_that_root_keeps_is_unknown(tmp_path: Path) -> None:
    assert rapl_counter(tmp_path / "absent") is None
    domain = powercap(tmp_path, "intel-rapl:0", "package-0", 5)
    counter = rapl_counter(tmp_path)
    assert counter is not None
    (domain / "energy_uj").write_text("not a number")
    assert counter.energy_j() is None
    assert rapl_counter(tmp_path) is None
