"""Cumulative energy counters into joules of one call, or None where the figure would be a guess."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from attnprof.measured import Energy

WINDOW_S = 2.0  # the counters step every 10 to 100 ms
MIN_WINDOW_S = 1.0
IDLE_S = 5.0
STALE_S = 1.0  # a counter that did not step for so long is not one
POLL_S = 2e-3
POWERCAP = Path("/sys/class/powercap")


class EnergyCounter(Protocol):
    """A counter of energy; only its differences mean something."""

    energy_source: str  # nvml, amdsmi, rapl

    def energy_j(self) -> float | None: ...


class RaplCounter:
    """Energy of all CPU packages, by the kernel's powercap files. [J]

    Each file counts up to its ``max_energy_range_uj`` and starts again. A wrap is noticed when the
    counter is read at least once a turn (minutes), so it is read during a window as well.
    """

    energy_source = "rapl"

    def __init__(self, packages: list[Path]) -> None:
        self._packages = [
            (package / "energy_uj", int((package / "max_energy_range_uj").read_text()))
            for package in packages
        ]
        self._last_uj = [self._read(file) for file, _ in self._packages]
        self._total_uj = 0

    def energy_j(self) -> float | None:
        try:
            now_uj = [self._read(file) for file, _ in self._packages]
        except (OSError, ValueError):
            return None
        for (_, range_uj), before, now in zip(self._packages, self._last_uj, now_uj, strict=True):
            self._total_uj += now - before if now >= before else now - before + range_uj
        self._last_uj = now_uj
        return self._total_uj * 1e-6

    @staticmethod
    def _read(file: Path) -> int:
        return int(file.read_text())


def rapl_counter(root: Path = POWERCAP) -> RaplCounter | None:
    """The counter of the CPU packages; None where the kernel has none or keeps it to root.

    Only packages: their core and DRAM parts are counted in them or are not there, and a platform
    (psys) domain holds them all.
    """
    try:
        packages = [
            domain
            for domain in sorted(root.glob("intel-rapl:*"))
            if (domain / "name").read_text().startswith("package-")
        ]
        return RaplCounter(packages) if packages else None
    except (OSError, ValueError):
        return None


def idle_watts(
    counter: EnergyCounter,
    duration_s: float = IDLE_S,
    *,
    now_s: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> float | None:
    """Mean power while nothing runs, between two steps of the counter. [W]"""
    window = _window(counter, lambda: pause(POLL_S), duration_s, now_s)
    return None if window is None else window[0] / window[1]


def energy_of(
    counter: EnergyCounter,
    run: Callable[[], int],
    *,
    idle_w: float | None,
    window_s: float = WINDOW_S,
    now_s: Callable[[], float] = time.perf_counter,
) -> Energy | None:
    """Joules of one call, idle power included; None for a window under a second.

        E = (counter at the end − counter at the start) / calls

    The window begins and ends at a step of the counter, so that its period costs no accuracy.

    Args:
        run: Makes some calls, waits until the device has done them, and says how many.
        idle_w: Power measured just before, so that the net energy can be shown.
    """
    num_calls = 0

    def counted() -> None:
        nonlocal num_calls
        num_calls += run()

    def restarted() -> None:
        nonlocal num_calls
        num_calls = 0

    window = _window(counter, counted, window_s, now_s, restarted)
    if window is None or window[1] < MIN_WINDOW_S or not num_calls:
        return None
    joules, elapsed_s = window
    return Energy(
        joules_per_call=joules / num_calls,
        window_s=elapsed_s,
        idle_w=idle_w,
        source=counter.energy_source,
    )


def _window(
    counter: EnergyCounter,
    work: Callable[[], None],
    duration_s: float,
    now_s: Callable[[], float],
    begin: Callable[[], None] = lambda: None,
) -> tuple[float, float] | None:
    """Joules and seconds from one step of the counter to the first one after ``duration_s``."""
    first = _next_step(counter, work, now_s)
    if first is None:
        return None
    begin()
    begun_j, begun_s = first
    while now_s() - begun_s < duration_s:
        work()
        counter.energy_j()  # a counter that wraps has to be read on the way
    last = _next_step(counter, work, now_s)
    if last is None:
        return None
    return last[0] - begun_j, last[1] - begun_s


def _next_step(
    counter: EnergyCounter, work: Callable[[], None], now_s: Callable[[], float]
) -> tuple[float, float] | None:
    """Work until the counter steps: what it then says, and when. None when it does not."""
    before = counter.energy_j()
    asked_s = now_s()
    while before is not None:
        work()
        now = counter.energy_j()
        if now is None:
            return None
        if now != before:
            return now, now_s()
        if now_s() - asked_s > STALE_S:
            return None
    return None
