"""The CPU: every sample by wall clock and by CPU clock, because neighbours move the first by half.

What is computed is in :mod:`attnprof.workloads`; here is how it is timed and weighed.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from attnprof.devices import cpu_meters
from attnprof.devices.cpu_roofs import cpu_ceilings, cpu_facts, cpu_rulers
from attnprof.devices.energy import energy_of, idle_watts, rapl_counter
from attnprof.devices.environment import default_threads
from attnprof.measured import Check, Energy, GrowthPoint, Memory, Part, Samples, WarmUp
from attnprof.workload import GROWING, Workload
from attnprof.workloads import build_operation
from attnprof.workloads.growth import grow
from attnprof.workloads.operation import Operation
from attnprof.workloads.profiled import profiled

MIN_SAMPLE_S = 1e-3
WARM_WINDOW = 3  # measurements a window
WARM_AGREEMENT = 0.02  # of the medians of two windows


class CpuDevice:
    """This machine's processor.

    Args:
        threads: That torch computes on; None for as many as can run at once.
    """

    kind = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or default_threads()
        torch.set_num_threads(self.threads)
        l3_bytes = cpu_meters.cache_bytes(3) or cpu_meters.cache_bytes(2) or 32 * 2**20
        self._flush_bytes = 2 * l3_bytes
        self._flush: torch.Tensor | None = None

    def build(self, workload: Workload, seed: int) -> "CpuCell":
        """Raises:
        UnsupportedError: The backend lacks something, in its own words.
        OutOfMemoryError: There is no room.
        """
        return CpuCell(self, workload, seed)

    def facts(self) -> dict[str, Any]:
        return cpu_facts(self.threads)

    def ceilings(self, dtypes: tuple[str, ...]) -> dict[str, Any]:
        return cpu_ceilings(dtypes, self.cpu_clock(), self.threads)

    def rulers(self) -> dict[str, float]:
        return cpu_rulers()

    def free_bytes(self) -> int:
        cpu_meters.return_freed_memory()
        return cpu_meters.available_bytes() or 0

    def cpu_clock(self) -> Callable[[], int]:
        """Nanoseconds of CPU: of this thread where it does all the work, else of all threads."""
        return time.thread_time_ns if self.threads == 1 else time.process_time_ns

    def flush_caches(self) -> None:
        """Stream through twice the last cache, so that nothing of a cell is left in it."""
        if self._flush is None:
            self._flush = torch.ones(self._flush_bytes // 4, dtype=torch.int32)
        self._flush.add_(1)


class CpuCell:
    """One workload on the CPU. A kv-growth workload is the decode at its end until it grows."""

    def __init__(self, device: CpuDevice, workload: Workload, seed: int) -> None:
        self.workload = workload
        self._device = device
        self._seed = seed
        self._call_s: float | None = None  # of one warm call, by the wall
        self._peak_rss_bytes: int | None = None
        self.kernels: tuple[str, ...] = ()
        self._op: Operation | None = None
        if workload.phase not in GROWING:
            self._op = build_operation(workload, torch.device("cpu"), seed)
        self.prepare_s = self._op.prepare_s if self._op else 0.0

    @property
    def op(self) -> Operation:
        """Built when it is needed: a growth does without, and wants its room."""
        if self._op is None:
            self._op = build_operation(self.workload, torch.device("cpu"), self._seed)
        return self._op

    def check(self) -> Check:
        self._call_first()
        return self.op.check()

    def warm_up(self, limit_s: float) -> WarmUp:
        """Call until the medians of two windows agree within 2 % by the CPU clock.

        A window is three measurements, or one of a call so long that six would pass the limit.
        The first two calls are left out of the windows: the very first pays for pages and thread
        pools, the second tells how many calls make a sample.
        """
        started = time.perf_counter()
        wall_s = [self._call_first() or self._timed(1, cold=False).wall_s[0]]
        self._call_s = self._timed(1, cold=False).wall_s[0]
        wall_s.append(self._call_s)
        inner = self._inner()
        cpu_s: list[float] = []
        window = WARM_WINDOW if 2 * WARM_WINDOW * self._call_s < limit_s else 1
        settled = False
        while not settled and time.perf_counter() - started < limit_s:
            sample = self._timed(inner, cold=False)
            wall_s.append(sample.wall_s[0])
            cpu_s.append(sample.cpu_s[0])
            if len(cpu_s) >= 2 * window:
                now = statistics.median(cpu_s[-window:])
                before = statistics.median(cpu_s[-2 * window : -window])
                settled = abs(now - before) <= WARM_AGREEMENT * before
        self._call_s = min(wall_s)
        return WarmUp(wall_s=tuple(wall_s), settled=settled)

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        started = time.perf_counter()
        cold = self.workload.cache_regime == "cold"
        inner = 1 if cold else self._inner()
        taken: list[Samples] = []
        while len(taken) < num_samples:
            taken.append(self._timed(inner, cold=cold))
            if time.perf_counter() - started >= limit_s:
                break
        return Samples(
            wall_s=tuple(one.wall_s[0] for one in taken),
            cpu_s=tuple(one.cpu_s[0] for one in taken),
            run_delay_s=tuple(delay for one in taken for delay in one.run_delay_s),
            minor_faults=tuple(one.minor_faults[0] for one in taken),
            inner=inner,
        )

    def grow(self, limit_s: float) -> tuple[GrowthPoint, ...]:
        self._op = None
        return grow(
            self.workload, torch.device("cpu"), self._seed, self._timed_step, limit_s=limit_s
        )

    def weigh(self) -> Memory:
        """The profiler's peak of the first call, which ran under it; of a call apart where the
        first one compiled.

        ``peak_rss_bytes`` is the most that the whole process had resident during the first call,
        torch itself and memory that it kept from earlier calls included.
        """
        self._call_first()
        op = self.op
        profile = op.profile
        if op.compiles:
            with op.active():
                profile = profiled(op)
        return Memory(
            kv_bytes=op.kv_bytes,
            weight_bytes=op.weight_bytes,
            peak_activation_bytes=profile.peak_bytes,
            meter="profiler",
            peak_rss_bytes=self._peak_rss_bytes,
        )

    def parts(self, limit_s: float) -> tuple[Part, ...]:
        op = self.op
        with op.active():
            return op.parts(self._timed_step, limit_s)

    def energy(self) -> Energy | None:
        """Joules of a call by RAPL, which counts the whole package, neighbours included; None
        where its counter may not be read."""
        counter = rapl_counter()
        if counter is None:
            return None
        idle_w = idle_watts(counter)
        op = self.op

        def run() -> int:
            op()
            return 1

        with op.active():
            return energy_of(counter, run, idle_w=idle_w)

    def close(self) -> None:
        self._op = None

    def _call_first(self) -> float | None:
        """Seconds of the first call; None when it was made before."""
        if self.op.was_called:
            self.kernels = self.op.kernels
            return None
        resets = cpu_meters.reset_peak_resident()
        started = time.perf_counter()
        self.kernels = self.op.kernels
        first_s = time.perf_counter() - started
        self._peak_rss_bytes = cpu_meters.peak_resident_bytes() if resets else None
        return first_s

    def _inner(self) -> int:
        """Calls that together last a millisecond."""
        if self._call_s is None:
            self._call_s = self._timed(1, cold=False).wall_s[0]
        return max(1, -int(-MIN_SAMPLE_S // self._call_s))

    def _timed(self, inner: int, *, cold: bool) -> Samples:
        """One sample. All meters are read outside of what the two clocks enclose."""
        op, cpu_clock, wall_clock = self.op, self._device.cpu_clock(), time.perf_counter_ns
        with op.active():
            if cold:
                self._device.flush_caches()
            before = cpu_meters.disturbance()
            cpu_ns, wall_ns = cpu_clock(), wall_clock()
            for _ in range(inner):
                op()
            wall_ns, cpu_ns = wall_clock() - wall_ns, cpu_clock() - cpu_ns
            after = cpu_meters.disturbance()
        return Samples(
            wall_s=(wall_ns / 1e9 / inner,),
            cpu_s=(cpu_ns / 1e9 / inner,),
            run_delay_s=tuple(
                max(0.0, late - early) / inner
                for early, late in zip(before.run_delay_s, after.run_delay_s, strict=False)
            ),
            minor_faults=((after.minor_faults - before.minor_faults) / inner,),
            inner=inner,
        )

    def _timed_step(self, step: Callable[[], object]) -> tuple[float, float | None]:
        cpu_clock = self._device.cpu_clock()
        cpu_ns, wall_ns = cpu_clock(), time.perf_counter_ns()
        step()
        wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, cpu_clock() - cpu_ns
        return wall_ns / 1e9, cpu_ns / 1e9
