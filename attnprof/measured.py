"""What a device finds out about a workload: samples, a check, bytes, joules.

All of them become JSON as they are, by ``asdict``.
"""

from dataclasses import dataclass, field
from typing import Any


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
    """The output held against a float64 reference on the rows that were compared.

    ``rms_error`` is what the precision costs: the root mean square of the differences from float64
    arithmetic on unrounded weights and caches, as a share of that of the reference.
    """

    passed: bool
    max_abs_error: float | None  # None where it is not finite
    bound: float
    rows: int  # query rows compared, over all batches and heads
    reference: str = "float64"
    rms_error: float | None = None


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
    """A kv-growth or generate workload at one length of its cache."""

    kv_len: int
    wall_s: float  # of the step that brought the last token, in all layers; of a prompt the TTFT
    cpu_s: float | None
    useful_bytes: int  # K and V of the tokens held
    allocated_bytes: int  # as the cache holds them now, unused slots included
    peak_bytes: int | None  # highest live cache bytes during the step, old and new copies alike
    total_s: float | None = None  # of all steps so far, those of which no point is kept as well
    total_cpu_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Joules of one call, and the window that they were counted over."""

    joules_per_call: float
    window_s: float
    idle_w: float | None
    source: str  # nvml, amdsmi, rapl: whose counter


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one part of a layer, block or model takes of a call, over all its layers.

    ``name`` is one of attention, position, cache, projection, ffn, norm, embedding, head, other.
    """

    name: str
    wall_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None  # the most that its operators held above the level before them
