"""What the CPU is, and how fast it copies and multiplies: facts, roofs and rulers."""

import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from attnprof.devices import cpu_meters
from attnprof.devices.environment import (
    logical_cores,
    physical_cores,
    quota_cores,
    recorded_environment,
)
from attnprof.workloads.precision import torch_dtype

COPY_REPEATS = 5
MATMUL_SIZES = (128, 256, 512, 1024)
MATMUL_CALL_S = 0.08
MATMUL_LIMIT_S = 0.3  # by dtype, so that two of them stay under a second
CALM_DELAY = 0.05  # of a call's wall time, that its threads may wait, each on average
RULER_SIZE = 384
RULER_BYTES = 2**22


def cpu_facts(threads: int) -> dict[str, Any]:
    """The processor, its memory, and all of the software that moves its numbers."""
    return {
        "name": cpu_meters.cpu_name(),
        "memory_bytes": cpu_meters.total_bytes(),
        "physical_cores": physical_cores(),
        "logical_cores": logical_cores(),
        "quota_cores": quota_cores(),
        "threads": threads,
        "l2_bytes": cpu_meters.cache_bytes(2),
        "l3_bytes": cpu_meters.cache_bytes(3),
        "governor": cpu_meters.governor(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_parallel": _parallel_info(),
        "environment": recorded_environment(),
    }


def _parallel_info() -> str:
    """The libraries that do the work, as torch names them, in one line."""
    wanted = ("OpenMP", "Intel(R) oneAPI", "Intel(R) MKL-DNN", "ATen parallel backend")
    lines = [line.strip() for line in torch.__config__.parallel_info().splitlines()]
    return "; ".join(line for line in lines if line.startswith(wanted))


class _Best(NamedTuple):
    """The least wall and the least CPU seconds of several calls, each thread's share of waiting."""

    wall_s: float
    cpu_s: float
    contended: bool


class _Roof(NamedTuple):
    """A rate by the wall and by CPU second."""

    per_s: float
    per_cpu_s: float
    contended: bool

    @classmethod
    def of(cls, amount: float, best: _Best) -> "_Roof":
        return cls(amount / best.wall_s, amount / best.cpu_s, best.contended)

    def at_least(self, other: "_Roof") -> "_Roof":
        return _Roof(
            max(self.per_s, other.per_s),
            max(self.per_cpu_s, other.per_cpu_s),
            self.contended or other.contended,
        )


def cpu_ceilings(
    dtypes: tuple[str, ...], cpu_clock: Callable[[], int], threads: int
) -> dict[str, Any]:
    """The two roofs, by the wall and by CPU second; the best of several, warm.

    Where other work held the cores all the while, what these threads would do by the wall is told
    by their CPU time, shared out among them, and ``contended`` says so: a roof is what the machine
    can do, not what others left of it.

    A copy between buffers that no cache holds, its reads and its writes both counted, and a square
    matrix product in each dtype. A narrower dtype is no slower than float32, to which a kernel can
    raise it: float16 products of torch 2.13 are 40 times as slow, and flash attention is not.
    """
    l3_bytes = cpu_meters.cache_bytes(3) or 32 * 2**20
    num_bytes = min(4 * l3_bytes, (cpu_meters.available_bytes() or 2**30) // 8)
    source = torch.ones(num_bytes // 4)
    target = torch.empty_like(source)
    copied = _best(lambda: target.copy_(source), COPY_REPEATS, MATMUL_LIMIT_S, cpu_clock, threads)
    copy = _Roof.of(2 * source.nbytes, copied)
    raised = _matmul_roof("float32", cpu_clock, threads)
    matmul: dict[str, _Roof] = {}
    for dtype in dtypes:
        roof = raised if dtype == "float32" else _matmul_roof(dtype, cpu_clock, threads)
        if roof is not None and raised is not None and dtype != "float64":
            roof = roof.at_least(raised)
        if roof is not None:
            matmul[dtype] = roof
    return {
        "copy_bytes_per_s": copy.per_s,
        "copy_bytes_per_cpu_s": copy.per_cpu_s,
        "matmul": {
            dtype: {"flops_per_s": roof.per_s, "flops_per_cpu_s": roof.per_cpu_s}
            for dtype, roof in matmul.items()
        },
        "contended": any(roof.contended for roof in (copy, *matmul.values())),
    }


def _matmul_roof(dtype: str, cpu_clock: Callable[[], int], threads: int) -> _Roof | None:
    """At the largest size that takes no more than some tens of milliseconds: where a dtype has no
    fast path, a thousandth of the rate of another is the truth, and told at a smaller size."""
    if dtype == "tf32":
        return None
    size = MATMUL_SIZES[0]
    try:
        for size in MATMUL_SIZES:
            left, right = (torch.randn(size, size).to(torch_dtype(dtype)) for _ in range(2))
            call = partial(torch.matmul, left, right)
            call()
            started = time.perf_counter()
            call()
            if time.perf_counter() - started > MATMUL_CALL_S / 8:
                break
    except RuntimeError:  # torch cannot multiply this dtype here, or not make it
        return None
    return _Roof.of(2 * size**3, _best(call, 10, MATMUL_LIMIT_S, cpu_clock, threads))


def _best(
    call: Callable[[], object],
    repeats: int,
    limit_s: float,
    cpu_clock: Callable[[], int],
    threads: int,
) -> _Best:
    """The first call left out; wall time of those calls alone whose threads hardly waited."""
    call()
    started = time.perf_counter()
    wall: list[float] = []
    cpu: list[float] = []
    calm: list[float] = []
    while not wall or (len(wall) < repeats and time.perf_counter() - started < limit_s):
        delay_s = cpu_meters.disturbance().run_delay_s
        cpu_ns, wall_ns = cpu_clock(), time.perf_counter_ns()
        call()
        wall.append((time.perf_counter_ns() - wall_ns) / 1e9)
        cpu.append((cpu_clock() - cpu_ns) / 1e9)
        waited_s = sum(cpu_meters.disturbance().run_delay_s) - sum(delay_s)
        if waited_s / threads <= CALM_DELAY * wall[-1]:
            calm.append(wall[-1])
    if calm:
        return _Best(min(calm), min(cpu), contended=False)
    return _Best(min(min(wall), min(cpu) / threads), min(cpu), contended=True)


def cpu_rulers() -> dict[str, float]:
    """Seconds that a fixed matrix product and a fixed copy take now, a few milliseconds in all.

    By the wall, the better of two: they show how much of the machine is ours.
    """
    left = torch.ones(RULER_SIZE, RULER_SIZE)
    out = torch.empty_like(left)
    source = torch.ones(RULER_BYTES // 4)
    target = torch.empty_like(source)
    return {
        "matmul_s": _least_wall_s(lambda: torch.mm(left, left, out=out)),
        "copy_s": _least_wall_s(lambda: target.copy_(source)),
    }


def _least_wall_s(call: Callable[[], object]) -> float:
    call()
    wall = []
    for _ in range(2):
        started = time.perf_counter()
        call()
        wall.append(time.perf_counter() - started)
    return min(wall)
