"""Accelerators that are timed by the host's clock, the queue emptied on both sides: MPS and XPU.

Their events cannot be trusted everywhere (pytorch/pytorch#196395 on MPS), so a sample is at least
twenty calls between two synchronisations: what waiting for the device costs is shared among them.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnprof.measured import Check, Energy, GrowthPoint, Memory, Part, Samples, WarmUp
from attnprof.workload import GROWING, Workload
from attnprof.workloads import build_operation
from attnprof.workloads.growth import grow
from attnprof.workloads.operation import Operation
from attnprof.workloads.precision import torch_dtype

MIN_CALLS = 20
MIN_SAMPLE_S = 1e-3
WARM_WINDOW = 3
WARM_AGREEMENT = 0.02
COPY_BYTES = 2**28
MATMUL_SIZE = 4096
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What torch offers for a kind of device."""

    kind: str
    device: torch.device
    synchronize: Callable[[], None]
    allocated_bytes: Callable[[], int]
    free_bytes: Callable[[], int]
    facts: Callable[[], dict[str, Any]]
    reset_peak: Callable[[], None] | None = None  # None where there is no peak meter
    peak_bytes: Callable[[], int] | None = None


class HostClockedDevice:
    """A device that does as its runtime says."""

    def __init__(self, runtime: Runtime) -> None:
        self.kind = runtime.kind
        self.runtime = runtime

    def facts(self) -> dict[str, Any]:
        return {"torch": torch.__version__, **self.runtime.facts()}

    def free_bytes(self) -> int:
        return self.runtime.free_bytes()

    def build(self, workload: Workload, seed: int) -> "HostClockedCell":
        return HostClockedCell(self.runtime, workload, seed)

    def ceilings(self, dtypes: tuple[str, ...]) -> dict[str, Any]:
        """The best of several copies and square matrix products."""
        source = torch.ones(COPY_BYTES // 4, device=self.runtime.device)
        target = torch.empty_like(source)
        copy_s = self._best_s(lambda: target.copy_(source))
        matmul = {}
        for dtype in dtypes:
            matmul_s = self._matmul_s(dtype)
            if matmul_s is not None:
                flops_per_s = 2 * MATMUL_SIZE**3 / matmul_s
                matmul[dtype] = {"flops_per_s": flops_per_s, "flops_per_cpu_s": None}
        return {
            "copy_bytes_per_s": 2 * source.nbytes / copy_s,
            "copy_bytes_per_cpu_s": None,
            "matmul": matmul,
        }

    def rulers(self) -> dict[str, float]:
        left = torch.ones(1024, 1024, device=self.runtime.device)
        target = torch.empty_like(left)
        return {
            "matmul_s": self._best_s(lambda: torch.mm(left, left)),
            "copy_s": self._best_s(lambda: target.copy_(left)),
        }

    def _matmul_s(self, dtype: str) -> float | None:
        if dtype == "tf32":
            return None
        try:
            left = torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=self.runtime.device)
            left = left.to(torch_dtype(dtype))
            return self._best_s(lambda: left @ left)
        except (RuntimeError, TypeError):  # a dtype that the device cannot multiply, or hold
            return None

    def _best_s(self, call: Callable[[], object]) -> float:
        call()
        return min(mean_s(self.runtime, call, MIN_CALLS) for _ in range(REPEATS))


def mean_s(runtime: Runtime, call: Callable[[], object], inner: int) -> float:
    """Seconds of a call, over ``inner`` of them between two synchronisations."""
    runtime.synchronize()
    started = time.perf_counter_ns()
    for _ in range(inner):
        call()
    runtime.synchronize()
    return (time.perf_counter_ns() - started) / 1e9 / inner


class HostClockedCell:
    """One workload on such a device."""

    def __init__(self, runtime: Runtime, workload: Workload, seed: int) -> None:
        self.workload = workload
        self._runtime = runtime
        self._seed = seed
        self._call_s: float | None = None
        self.kernels: tuple[str, ...] = ()
        self._op: Operation | None = None
        if workload.phase not in GROWING:
            self._op = build_operation(workload, runtime.device, seed)
        self.prepare_s = self._op.prepare_s if self._op else 0.0

    @property
    def op(self) -> Operation:
        """Built when it is needed: a growth does without, and wants its room."""
        if self._op is None:
            self._op = build_operation(self.workload, self._runtime.device, self._seed)
        return self._op

    def check(self) -> Check:
        self.kernels = self.op.kernels
        return self.op.check()

    def warm_up(self, limit_s: float) -> WarmUp:
        """Call until the medians of two windows of three agree within 2 %."""
        started = time.perf_counter()
        wall_s: list[float] = []
        settled = False
        while not wall_s or (not settled and time.perf_counter() - started < limit_s):
            wall_s.append(self._timed())
            if len(wall_s) > 2 * WARM_WINDOW:
                now = statistics.median(wall_s[-WARM_WINDOW:])
                before = statistics.median(wall_s[-2 * WARM_WINDOW : -WARM_WINDOW])
                settled = abs(now - before) <= WARM_AGREEMENT * before
        return WarmUp(wall_s=tuple(wall_s), settled=settled)

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        started = time.perf_counter()
        wall_s: list[float] = []
        while len(wall_s) < num_samples:
            wall_s.append(self._timed())
            if time.perf_counter() - started >= limit_s:
                break
        return Samples(wall_s=tuple(wall_s), inner=self._inner())

    def grow(self, limit_s: float) -> tuple[GrowthPoint, ...]:
        self._op = None
        return grow(
            self.workload, self._runtime.device, self._seed, self._timed_step, limit_s=limit_s
        )

    def weigh(self) -> Memory:
        """The allocator's peak where the device has one; else what is allocated at the end of a
        call, its output still alive, which is labelled ``sampled`` and can miss a peak."""
        op, runtime = self.op, self._runtime
        runtime.synchronize()
        before = runtime.allocated_bytes()
        if runtime.reset_peak is not None:
            runtime.reset_peak()
        with op.active():
            output = op()
            runtime.synchronize()
            meter = runtime.peak_bytes or runtime.allocated_bytes
            peak = meter() - before
        del output
        return Memory(
            kv_bytes=op.kv_bytes,
            weight_bytes=op.weight_bytes,
            peak_activation_bytes=peak,
            meter="sampled" if runtime.peak_bytes is None else "allocator",
        )

    def parts(self, limit_s: float) -> tuple[Part, ...]:
        op = self.op
        with op.active():
            return op.parts(self._timed_step, limit_s)

    def energy(self) -> Energy | None:
        return None

    def close(self) -> None:
        self._op = None

    def _inner(self) -> int:
        if self._call_s is None:
            with self.op.active():
                self._call_s = mean_s(self._runtime, self.op, MIN_CALLS)
        return max(MIN_CALLS, -int(-MIN_SAMPLE_S // self._call_s))

    def _timed(self) -> float:
        inner = self._inner()
        with self.op.active():
            return mean_s(self._runtime, self.op, inner)

    def _timed_step(self, step: Callable[[], object]) -> tuple[float, float | None]:
        return mean_s(self._runtime, step, 1), None
