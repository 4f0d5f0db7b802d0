"""A GPU with a virtual clock: a queue, launch costs, an L2, a clock that droops, graphs.

Nothing here waits. The host's clock moves when the host does something; what it queues runs on a
device timeline of its own, first in first out, and a kernel's time depends on what the L2 holds and
on the clock at that instant. All that is asked of it is written to ``log``.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from attnprof.devices.gpu import Call, Graph
from attnprof.devices.telemetry import Reading
from attnprof.errors import OutOfMemoryError

RECORD_S = 1e-6  # host time to record an event
REPLAY_LAUNCH_S = 6e-6
SYNCHRONIZE_S = 3e-6
TICK_S = 0.5e-6


@dataclass(eq=False)  # two of the same size are two
class Buffer:
    """Device memory that a kernel reads."""

    num_bytes: int
    name: str = ""


@dataclass
class Event:
    name: str
    at_s: float | None = None


@dataclass(frozen=True)
class Kernel:
    compute_s: float
    reads: tuple[Buffer, ...]


@dataclass
class FakeGraph:
    gpu: "FakeGpu"
    kernels: list[Kernel]

    def replay(self) -> None:
        self.gpu.note("replay")
        self.gpu.launch(self.kernels, REPLAY_LAUNCH_S)


@dataclass
class FakeGpu:
    """The device, its host's clock and its knobs."""

    l2_bytes: int = 50_000_000
    can_spin: bool = True
    can_span: bool = False
    can_capture: bool = True
    launch_s: float = 5e-6  # h, of one kernel
    bytes_per_s: float = 3e12
    droop: float = 0.0  # share of the clock that a fully busy GPU loses
    droop_s: float = 0.5  # of load until it is lost
    queue_depth: int = 1024
    free_bytes: float = math.inf
    log: list[str] = field(default_factory=list)
    hits: int = 0
    misses: int = 0

    def __post_init__(self) -> None:
        self.host_s = 0.0
        self.busy_until_s = 0.0
        self.load_s = 0.0  # of device work lately: what the clock droops with
        self.l2: OrderedDict[Buffer, int] = OrderedDict()
        self.l2_held = 0
        self.flush_buffer = Buffer(2 * self.l2_bytes, "flush")
        self.on_side_stream = False
        self.recording: list[Kernel] | None = None
        self.queue: deque[float] = deque()  # when each queued kernel ends
        self.num_events = 0

    # What the protocol asks for

    def now_s(self) -> float:
        return self.host_s

    def pause(self, duration_s: float) -> None:
        self.note(f"pause {duration_s:g}")
        self.host_s += duration_s
        self.load_s = max(0.0, self.load_s - duration_s)

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        before, self.on_side_stream = self.on_side_stream, True
        try:
            yield
        finally:
            self.on_side_stream = before

    def synchronize(self) -> None:
        self._refuse_in_capture("synchronize")
        self.note("synchronize")
        self.host_s = max(self.host_s, self.busy_until_s) + SYNCHRONIZE_S
        self.queue.clear()

    def event(self) -> Event:
        self.num_events += 1
        return Event("start" if self.num_events % 2 else "end")

    def record(self, event: Event) -> None:
        self._refuse_in_capture("record")
        self.note(f"{event.name}.record")
        self.host_s += RECORD_S
        event.at_s = max(self.host_s, self.busy_until_s)

    def elapsed_s(self, start: Event, end: Event) -> float:
        assert start.at_s is not None and end.at_s is not None
        assert max(start.at_s, end.at_s) <= self.host_s, "an event was read before it happened"
        return round((end.at_s - start.at_s) / TICK_S) * TICK_S

    def spin(self, duration_s: float) -> None:
        assert self.can_spin
        self._refuse_in_capture("spin")
        self.note("spin")
        self._enqueue(lambda: duration_s, self.launch_s)

    def clear_cache(self) -> None:
        self._refuse_in_capture("flush")
        self.note("flush")
        self.launch([Kernel(0.0, (self.flush_buffer,))], self.launch_s)

    def clone(self, inputs: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        copies = tuple(Buffer(buffer.num_bytes, buffer.name) for buffer in inputs)
        self.free_bytes -= sum(buffer.num_bytes for buffer in copies)
        if self.free_bytes < 0:
            raise OutOfMemoryError("no room for a clone")
        return copies

    def capture(self, calls: Callable[[], None]) -> Graph | None:
        self.note("capture")
        if not self.can_capture:
            return None
        self.recording = []
        try:
            calls()
            return FakeGraph(self, self.recording)
        finally:
            self.recording = None

    def spans_s(
        self, before: Callable[[], None], call: Callable[[], object], num_calls: int
    ) -> list[float] | None:
        if not self.can_span:
            return None
        spans_s = []
        for _ in range(num_calls):
            before()
            self.synchronize()
            begun_s = self.host_s
            call()
            spans_s.append(self.busy_until_s - (begun_s + self.launch_s))
            self.synchronize()
        return spans_s

    # The device

    @property
    def clock(self) -> float:
        """Share of the highest clock: falls as load gathers, comes back in pauses."""
        return 1.0 - self.droop * min(1.0, self.load_s / self.droop_s)

    def launch(self, kernels: list[Kernel], launch_s: float) -> None:
        """Queue kernels that start one after the other, all with one launch of the host."""
        self._enqueue(lambda: sum(self._kernel_s(kernel) for kernel in kernels), launch_s)

    def run_kernel(self, kernel: Kernel) -> None:
        if self.recording is not None:
            self.recording.append(kernel)
            return
        self.note("call")
        self.launch([kernel], self.launch_s)

    def note(self, what: str) -> None:
        assert self.on_side_stream or what.startswith("pause"), f"{what} on the default stream"
        self.log.append(what)

    def _enqueue(self, duration: Callable[[], float], launch_s: float) -> None:
        while len(self.queue) >= self.queue_depth:
            self.host_s = max(self.host_s, self.queue.popleft())
        self.host_s += launch_s
        begun_s = max(self.host_s, self.busy_until_s)
        idle_s = begun_s - self.busy_until_s
        self.load_s = max(0.0, self.load_s - idle_s)
        taken_s = duration()
        self.load_s = min(self.droop_s, self.load_s + taken_s)
        self.busy_until_s = begun_s + taken_s
        self.queue.append(self.busy_until_s)

    def _kernel_s(self, kernel: Kernel) -> float:
        missed = sum(self._read(buffer) for buffer in kernel.reads)
        return kernel.compute_s / self.clock + missed / self.bytes_per_s

    def _read(self, buffer: Buffer) -> int:
        """Bytes of ``buffer`` that were not in L2; they are now, and the oldest went for them."""
        held = self.l2.pop(buffer, 0)
        self.l2_held -= held
        if buffer.num_bytes > self.l2_bytes:
            held = 0  # its end has pushed out its beginning before that is read again
        missed = buffer.num_bytes - held
        if buffer is not self.flush_buffer:
            self.hits += not missed
            self.misses += bool(missed)
        self.l2[buffer] = min(buffer.num_bytes, self.l2_bytes)
        self.l2_held += self.l2[buffer]
        while self.l2_held > self.l2_bytes:
            oldest, size = next(iter(self.l2.items()))
            pushed = min(size, self.l2_held - self.l2_bytes)
            self.l2_held -= pushed
            self.l2[oldest] = size - pushed
            if size == pushed:
                del self.l2[oldest]
        return missed

    def _refuse_in_capture(self, what: str) -> None:
        if self.recording is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")


@dataclass
class FakeWatch:
    """Sensors that say, batch after batch, what they were told to; the last goes on."""

    gpu: FakeGpu
    masks: list[int] = field(default_factory=list)
    sm_clock_hz: float | None = None

    def __post_init__(self) -> None:
        self.num_batches = 0
        self.readings: list[Reading] = []

    def begin(self) -> None:
        self.readings = []

    def look(self) -> None:
        mask: int | None = None
        if self.masks:
            mask = self.masks[min(self.num_batches, len(self.masks) - 1)]
        clock_hz = None if self.sm_clock_hz is None else self.sm_clock_hz * self.gpu.clock
        self.readings.append(Reading(reasons=mask, sm_clock_hz=clock_hz))

    def end(self) -> tuple[Reading, ...]:
        self.num_batches += 1
        return tuple(self.readings)


def fake_call(gpu: FakeGpu, compute_s: float, num_bytes: int, num_kernels: int = 1) -> Call:
    """A call of ``num_kernels`` kernels of ``compute_s`` in all that read ``num_bytes``."""
    inputs = tuple(
        Buffer(num_bytes // num_kernels, f"layer {number}") for number in range(num_kernels)
    )

    def run(buffers: Any) -> None:
        for buffer in buffers:
            gpu.run_kernel(Kernel(compute_s / num_kernels, (buffer,)))

    return Call(run=run, inputs=inputs, bytes_touched=num_bytes)
