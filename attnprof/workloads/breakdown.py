"""A call -> what each part of it takes, by clocks and meters at its borders.

Each pass is of one kind: clocks alone, or memory alone. What lies between the parts (residual
sums of layers, copies of heads, Python) is called ``other``.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from attnprof.measured import Part
from attnprof.workloads.networks import Network
from attnprof.workloads.operation import Operation, Timed
from attnprof.workloads.profiled import part_peaks
from attnprof.workloads.transformer.step import PARTS

MAX_CALLS = 30
OTHER = "other"

Seconds = tuple[float, float | None]


def parts_of(op: Operation, network: Network, timed: Timed, limit_s: float) -> tuple[Part, ...]:
    """The median seconds of each part over several calls, and the most bytes that it held.

    Clocks at every border make a call slower than it is, mostly one of small parts: shares are
    comparable, and their sum is longer than the call's own time.
    """
    started = time.perf_counter()
    of_calls: list[dict[str, Seconds]] = []
    while len(of_calls) < MAX_CALLS and (
        len(of_calls) < 3 or time.perf_counter() - started < limit_s
    ):
        of_calls.append(_timed_parts(op, network, timed))
    peaks = _peaks(op, network)
    return tuple(
        Part(
            name=name,
            wall_s=statistics.median(call[name][0] for call in of_calls),
            cpu_s=_median_cpu(call[name][1] for call in of_calls),
            peak_bytes=peaks.get(name),
        )
        for name in of_calls[-1]
    )


def _median_cpu(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _timed_parts(op: Operation, network: Network, timed: Timed) -> dict[str, Seconds]:
    """Seconds of each part of one call, and of what is none."""
    walls: dict[str, float] = {}
    cpus: dict[str, float] = {}
    now = _clocks(op.device)

    @contextmanager
    def meter(part: str) -> Iterator[None]:
        wall, cpu = now()
        yield
        later_wall, later_cpu = now()
        walls[part] = walls.get(part, 0.0) + later_wall - wall
        cpus[part] = cpus.get(part, 0.0) + later_cpu - cpu

    with _metered(network, meter):
        whole_s, whole_cpu_s = timed(op)
    on_cpu = whole_cpu_s is not None
    found: dict[str, Seconds] = {
        name: (wall_s, cpus[name] if on_cpu else None) for name, wall_s in walls.items()
    }
    rest_cpu_s = None if whole_cpu_s is None else max(0.0, whole_cpu_s - sum(cpus.values()))
    found[OTHER] = (max(0.0, whole_s - sum(walls.values())), rest_cpu_s)
    return found


def _clocks(device: torch.device) -> Callable[[], tuple[float, float]]:
    """Wall and CPU seconds now, once all that was asked of the device is done."""
    if device.type == "cpu":
        return lambda: (time.perf_counter(), time.process_time())

    def now() -> tuple[float, float]:
        torch.accelerator.synchronize(device)
        return time.perf_counter(), 0.0

    return now


def _peaks(op: Operation, network: Network) -> dict[str, int]:
    """The most that each part held above the level before it; none where nothing can tell."""
    if op.device.type == "cpu":
        with _metered(network, torch.autograd.profiler.record_function):
            return part_peaks(op, PARTS)
    if op.device.type != "cuda":
        return {}
    found: dict[str, int] = {}

    @contextmanager
    def meter(part: str) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats(op.device)
        before = torch.cuda.memory_allocated(op.device)
        yield
        peak = int(torch.cuda.max_memory_allocated(op.device)) - before
        found[part] = max(found.get(part, 0), peak)

    with _metered(network, meter):
        op()
    return found


@contextmanager
def _metered(network: Network, meter: Callable[[str], object]) -> Iterator[None]:
    before, network.meter = network.meter, meter  # type: ignore[assignment]  # a module takes it
    try:
        yield
    finally:
        network.meter = before
