"""What a device promises: to build a workload, check it, time it and weigh it.

The classes here are what flows between a device (which may import torch, inside a worker process)
and everything else (which does not). All of them become JSON as they are, by ``asdict``.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Timed calls of one visit, one entry a sample; a sample is the mean of ``inner`` calls.

    Nothing is ever removed because of its value. What was dropped on outside evidence (a throttle
    bit) is counted in ``dropped`` by its reason.
    """

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...] = ()  # CPU seconds of all threads; empty where there is no such clock
    host_s: tuple[float, ...] = ()  # what a caller waits for, where wall_s is the device's time
    run_delay_s: tuple[float, ...] = ()  # time that threads were ready but not run, per call
    minor_faults: tuple[float, ...] = ()  # page faults per call
    cycles: tuple[float, ...] = ()  # time × clock on devices whose clock moves
    inner: int = 1
    mode: str = "host"  # host, events, graph, backlog, cupti, virtual: how the time was taken
    dropped: dict[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # throttled, power_capped, host_bound
    clocks: dict[str, Any] | None = None  # SM and memory clock, temperature, power, as seen


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Calls before the timed ones, kept apart."""

    wall_s: tuple[float, ...]
    settled: bool


@dataclass(frozen=True, kw_only=True)
class Check:
    """The output held against a float64 reference on the rows that were compared."""

    passed: bool
    max_abs_error: float | None  # None where it is not finite
    bound: float
    rows: int  # query rows compared, over all batches and heads
    reference: str = "float64"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one call. An unknown figure is None, never 0."""

    kv_bytes: int  # K and V tensors that the workload holds, as allocated
    peak_activation_bytes: int | None  # above the level before the call
    meter: str | None  # profiler, allocator, sampled, virtual: which meter gave the peak
    weight_bytes: int = 0
    peak_rss_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None  # on the device by its driver, contexts and libraries included
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GrowthPoint:
    """A kv-growth workload at one length of its cache."""

    kv_len: int
    wall_s: float  # of the step that appended the last token: append and attention, all layers
    cpu_s: float | None
    useful_bytes: int  # K and V of the tokens held
    allocated_bytes: int  # as the cache holds them now, unused slots included
    peak_bytes: int | None  # highest live cache bytes during the step, old and new copies alike


@dataclass(frozen=True, kw_only=True)
class Energy:
    joules_per_call: float
    window_s: float
    idle_w: float | None
    source: str  # nvml, amdsmi, rapl: whose counter


class Cell(Protocol):
    """One workload, built on a device. ``close`` gives its memory back."""

    @property
    def prepare_s(self) -> float:
        """Seconds of compiling or planning, apart from warm-up."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels actually launched, where they can be known."""

    def check(self) -> Check:
        """Compare the output with a float64 reference on the rows that fit."""

    def warm_up(self, limit_s: float) -> WarmUp:
        """Call until the time is steady, ``limit_s`` at the most."""

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        """Take ``num_samples`` timed samples, fewer when ``limit_s`` is over, one at the least."""

    def grow(self, limit_s: float) -> tuple[GrowthPoint, ...]:
        """Run a kv-growth workload from start to end; only that phase has it."""

    def weigh(self) -> Memory:
        """Measure the peak of one call, in a pass of its own: meters slow the call."""

    def energy(self) -> Energy | None:
        """Joules of one call where a meter exists and the window is long enough, else None."""

    def close(self) -> None: ...


class Device(Protocol):
    """Hardware with a clock, a memory meter and facts."""

    kind: str  # cpu, cuda, mps, xpu, synthetic

    def facts(self) -> dict[str, Any]:
        """What the device is: name, memory_bytes, cores or SMs, clocks, driver, versions."""

    def ceilings(self, dtypes: tuple[str, ...]) -> dict[str, Any]:
        """The measured roofs.

        ``{"copy_bytes_per_s": x, "copy_bytes_per_cpu_s": x | None,
        "matmul": {dtype: {"flops_per_s": x, "flops_per_cpu_s": x | None}}}``; reads and writes
        both count in the copy, and a dtype that the device cannot multiply is left out.
        """

    def free_bytes(self) -> int:
        """Memory that a workload may still take."""

    def build(self, workload: Workload, seed: int) -> Cell:
        """Allocate the tensors of ``workload``, seeded and normally distributed.

        Raises:
            UnsupportedError: The backend or the device lacks something, by name.
            OutOfMemoryError: There is no room.
        """

    def rulers(self) -> dict[str, float]:
        """Seconds of a fixed matrix product and a fixed copy now: they tell drift."""
