"""One call and a GPU's streams and events into samples: warm up, choose a mode, queue, read.

A sample is always, with nothing else between its two events,

    clear or rotate -> backlog -> start.record -> call(s) -> end.record

and up to ``BATCH_SAMPLES`` of them are queued before one synchronise. ``device`` time is what the
stream spends; it is hidden from the host's launches by a spin in front (``events``, ``backlog``) or
by a graph (``graph``). ``host`` time, what a caller waits for, is kept beside it.
"""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from attnprof.devices.gpu import Call, Gpu, Graph, Watch
from attnprof.devices.telemetry import (
    POWER_CAPPED,
    SLOWED,
    SYNC_BOOSTED,
    Reading,
    clocks_summary,
    reasons_seen,
    sm_clock_hz,
)
from attnprof.errors import OutOfMemoryError, UnsupportedError
from attnprof.measured import Samples, WarmUp

MODES = ("events", "graph", "backlog", "cupti", "host")
WARM_UP_CALLS = 3
WARM_UP_S = 0.2
WARM_UP_LIMIT_S = 3.0
WARM_UP_WINDOW = 8
WARM_UP_TOLERANCE = 0.01
PROBE_CALLS = 5
EVENTS_RATIO = 10  # device time over enqueue time from which plain events serve
EVENTS_S = 200e-6
REPLAY_S = 200e-6  # a graph's launch costs some us: shorter replays measure it
EVENT_SAMPLE_S = 50e-6  # events tick at half a microsecond
EVENT_TICK_S = 0.5e-6
BACKLOG_MIN_S = 20e-6  # recording an event and launching a graph take some us as well
BATCH_SAMPLES = 64
BATCH_S = 0.5  # no longer, so that a throttled batch costs little and a limit is kept
CACHE_MULTIPLE = 5  # a working set of so many L2 evicts itself
MAX_CAPTURED_CALLS = 8192  # more take seconds to capture
CAPTURE_TRIES = 3
COOL_DOWN_S = 0.05
COOL_DOWN_LIMIT_S = 2.0
COOL_DOWN_TRIES = 3


@dataclass(frozen=True)
class Probe:
    """What a first look at a call tells: its time on the device, and the host's to queue it. [s]"""

    device_s: float
    enqueue_s: float  # host time until the call is queued


@dataclass(frozen=True)
class Plan:
    """How one call is timed, decided once."""

    mode: str  # one of MODES
    copies: tuple[Any, ...]  # sets of inputs that calls walk in turn
    inner: int = 1  # calls in a sample
    backlog_s: float = 0.0
    graph: Graph | None = None
    flags: tuple[str, ...] = ()


def default_cache_regime(workload_bytes: int, phase: str, l2_bytes: int) -> str:
    """``cold`` for decode and for any working set under 5 × L2, else ``warm``.

    In service a decode step finds the weights in L2, not the cache of this layer; a working set
    well over L2 evicts itself, so there is nothing to clear.

    >>> default_cache_regime(1 << 30, "decode", 50 << 20)
    'cold'
    >>> default_cache_regime(1 << 30, "prefill", 50 << 20)
    'warm'
    """
    is_small = workload_bytes < CACHE_MULTIPLE * l2_bytes
    return "cold" if phase != "prefill" or is_small else "warm"


def copies_needed(l2_bytes: int, bytes_touched: int) -> int:
    """Sets of inputs that a cold graph walks: R = ⌈5 · L2 / bytes⌉ + 1, or 1 above 5 × L2.

    >>> copies_needed(50_000_000, 10_000_000)
    26
    >>> copies_needed(50_000_000, 300_000_000)
    1
    """
    if bytes_touched > CACHE_MULTIPLE * l2_bytes:
        return 1
    return math.ceil(CACHE_MULTIPLE * l2_bytes / bytes_touched) + 1


def calls_in_graph(call_s: float, num_copies: int) -> int:
    """Calls to capture: a multiple of the copies whose replay lasts ``REPLAY_S``.

    >>> calls_in_graph(10e-6, 26), calls_in_graph(1e-6, 26)
    (26, 208)
    """
    return num_copies * max(1, math.ceil(REPLAY_S / (num_copies * max(call_s, 1e-9))))


def captured(gpu: Gpu, call: Call, copies: tuple[Any, ...], num_calls: int) -> Graph | None:
    """``num_calls`` calls that walk ``copies`` in turn, as one graph; None if capture fails.

    Raises:
        ValueError: Fewer calls than copies, or not a multiple: some copies would never be read,
            so the others would still be in L2 at the next replay.
    """
    if num_calls < len(copies) or num_calls % len(copies):
        raise ValueError(
            f"a graph of {num_calls} calls does not walk {len(copies)} copies evenly: "
            "its replays would find their inputs in L2"
        )

    def calls() -> None:
        for _ in range(num_calls // len(copies)):
            for inputs in copies:
                call.run(inputs)

    return gpu.capture(calls)


def is_settled(times_s: list[float]) -> bool:
    """Whether the medians of the last two windows of ``WARM_UP_WINDOW`` calls agree within 1 %."""
    if len(times_s) < 2 * WARM_UP_WINDOW:
        return False
    last = median(times_s[-WARM_UP_WINDOW:])
    before = median(times_s[-2 * WARM_UP_WINDOW : -WARM_UP_WINDOW])
    return abs(last - before) <= WARM_UP_TOLERANCE * before


@dataclass
class _Visit:
    """What one visit gathers, batch by batch."""

    wall_s: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    num_dropped: int = 0
    num_capped: float = 0.0

    def keep(self, times_s: list[float], readings: tuple[Reading, ...]) -> None:
        self.wall_s += times_s
        self.readings += readings
        clock_hz = sm_clock_hz(readings)
        if clock_hz is not None:
            self.cycles += [time_s * clock_hz for time_s in times_s]
        known = [reading.reasons for reading in readings if reading.reasons is not None]
        if known:
            capped = sum(1 for reasons in known if reasons & POWER_CAPPED)
            self.num_capped += len(times_s) * capped / len(known)
        reasons = reasons_seen(readings)
        if reasons & SYNC_BOOSTED:
            self.flag("sync_boost")

    def flag(self, name: str) -> None:
        if name not in self.flags:
            self.flags.append(name)


class CudaTimer:
    """Times one call on one GPU, in one cache regime.

    Args:
        mode: One of ``MODES`` instead of the first that serves.
    """

    def __init__(
        self, gpu: Gpu, call: Call, watch: Watch, *, cold: bool, mode: str | None = None
    ) -> None:
        self._gpu = gpu
        self._call = call
        self._watch = watch
        self._cold = cold
        self._mode = mode
        self._events = [(gpu.event(), gpu.event()) for _ in range(BATCH_SAMPLES)]
        self._position = 0  # of the next copy; goes on from sample to sample
        self._flush_s: float | None = None
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """How the call is timed; found on first use, after warm-up."""
        if self._plan is None:
            with self._gpu.on_stream():
                self._plan = self._planned()
        return self._plan

    def warm_up(self, limit_s: float) -> WarmUp:
        """At least 3 calls and 200 ms, until two windows agree; gives up after 3 s."""
        gpu = self._gpu
        limit_s = min(limit_s, WARM_UP_LIMIT_S)
        times_s: list[float] = []
        with gpu.on_stream():
            gpu.synchronize()
            begun_s = gpu.now_s()
            while True:
                quick = bool(times_s) and WARM_UP_WINDOW * times_s[-1] < limit_s / 10
                times_s += self._timed_alone(WARM_UP_WINDOW if quick else 1)
                elapsed_s = gpu.now_s() - begun_s
                if len(times_s) < WARM_UP_CALLS:
                    continue
                settled = elapsed_s >= WARM_UP_S and is_settled(times_s)
                if settled or elapsed_s >= limit_s:
                    break
        return WarmUp(wall_s=tuple(times_s), settled=settled)

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        """``num_samples`` samples, fewer when ``limit_s`` is over; host latency beside them."""
        plan = self.plan
        gpu = self._gpu
        visit = _Visit(flags=list(plan.flags))
        with gpu.on_stream():
            begun_s = gpu.now_s()
            deadline_s = begun_s + limit_s
            while len(visit.wall_s) < num_samples:
                left_s = deadline_s - gpu.now_s()
                if visit.wall_s and left_s <= 0:
                    break
                self._add_batch(
                    visit, self._batch_len(visit, num_samples, left_s, begun_s), deadline_s
                )
            if plan.mode == "host":
                host_s = visit.wall_s
            else:
                host_s = self._host_times(max(3, math.ceil(num_samples / 4)), deadline_s)
        clocks = clocks_summary(visit.readings)
        if clocks is not None and any(r.reasons is not None for r in visit.readings):
            clocks["power_capped_share"] = visit.num_capped / len(visit.wall_s)
            if visit.num_capped > len(visit.wall_s) / 2:
                visit.flag("power_capped")
        return Samples(
            wall_s=tuple(visit.wall_s),
            host_s=tuple(host_s),
            cycles=tuple(visit.cycles) if len(visit.cycles) == len(visit.wall_s) else (),
            inner=plan.inner,
            mode=plan.mode,
            dropped={"throttled": visit.num_dropped} if visit.num_dropped else {},
            flags=tuple(visit.flags),
            clocks=clocks,
        )

    def close(self) -> None:
        """Forget the graph and the copies, so that their memory can be had again."""
        self._plan = None

    # Batches

    def _batch_len(self, visit: _Visit, num_samples: int, left_s: float, begun_s: float) -> int:
        """Samples of the next batch: one to learn what they cost, then as many as there is time."""
        if not visit.wall_s:
            return 1
        each_s = (self._gpu.now_s() - begun_s) / len(visit.wall_s)
        room = int(min(left_s, BATCH_S) / each_s) if each_s > 0 else BATCH_SAMPLES
        return max(1, min(BATCH_SAMPLES, num_samples - len(visit.wall_s), room))

    def _add_batch(self, visit: _Visit, num_samples: int, deadline_s: float) -> None:
        """One batch that was not throttled; after three tries, or too late, as it is, flagged."""
        gpu = self._gpu
        pause_s = COOL_DOWN_S
        tries_left = 0 if "throttled" in visit.flags else COOL_DOWN_TRIES
        while True:
            self._watch.begin()
            times_s = self._batch(num_samples)
            readings = self._watch.end()
            slowed = bool(reasons_seen(readings) & SLOWED)
            if not slowed:
                break
            if not tries_left or gpu.now_s() + pause_s >= deadline_s:
                visit.flag("throttled")
                break
            visit.num_dropped += len(times_s)
            gpu.pause(pause_s)
            pause_s = min(2 * pause_s, COOL_DOWN_LIMIT_S)
            tries_left -= 1
            self._call.run(self._call.inputs)  # untimed: clocks fell in the pause
        visit.keep(times_s, readings)

    def _batch(self, num_samples: int) -> list[float]:
        plan = self.plan
        if plan.mode == "host":
            return self._host_times(num_samples, math.inf)
        if plan.mode == "cupti":
            spans_s = self._spans(num_samples)
            if spans_s is None:
                raise RuntimeError("CUPTI saw kernels when it was tried and sees none now")
            return spans_s
        return self._queued(plan, num_samples)

    def _queued(self, plan: Plan, num_samples: int) -> list[float]:
        """The samples of one batch: all queued, one synchronise, then read."""
        gpu, run, events = self._gpu, self._call.run, self._events[:num_samples]
        clears = self._cold and plan.graph is None and len(plan.copies) == 1
        collects = gc.isenabled()
        gc.disable()  # a collection between two launches would starve the stream
        try:
            for start, end in events:
                inputs = self._next_inputs(plan)
                if clears:
                    gpu.clear_cache()
                self._hide_launch(plan.backlog_s)
                gpu.record(start)
                if plan.graph is not None:
                    plan.graph.replay()
                else:
                    for one in inputs:
                        run(one)
                gpu.record(end)
        finally:
            if collects:
                gc.enable()
        self._watch.look()  # while the stream is busy: after it the clocks of an idle GPU show
        gpu.synchronize()
        return [gpu.elapsed_s(start, end) / plan.inner for start, end in events]

    def _next_inputs(self, plan: Plan) -> list[Any]:
        """The sets of inputs of the next sample, each the one that was read longest ago."""
        if plan.graph is not None:
            return []
        num_copies, first = len(plan.copies), self._position
        self._position = (first + plan.inner) % num_copies
        return [plan.copies[(first + i) % num_copies] for i in range(plan.inner)]

    def _hide_launch(self, backlog_s: float) -> None:
        """Keep the stream busy until the host has queued what comes."""
        gpu = self._gpu
        if gpu.can_spin:
            gpu.spin(max(backlog_s, BACKLOG_MIN_S))
        elif self._cold:
            for _ in range(math.ceil(max(backlog_s, BACKLOG_MIN_S) / self._clearing_s())):
                gpu.clear_cache()
        else:
            self._call.run(self._call.inputs)  # a flush would make a warm call cold

    def _clearing_s(self) -> float:
        """Seconds of one flush, where it must serve as the backlog."""
        if self._flush_s is None:
            gpu, (start, end) = self._gpu, self._events[0]
            gpu.clear_cache()
            gpu.record(start)
            gpu.clear_cache()
            gpu.record(end)
            gpu.synchronize()
            self._flush_s = max(gpu.elapsed_s(start, end), EVENT_TICK_S)
        return self._flush_s

    def _host_times(self, num_samples: int, deadline_s: float) -> list[float]:
        """What a caller waits for: the host's clock, synchronised on both sides."""
        gpu, call = self._gpu, self._call
        times_s: list[float] = []
        while len(times_s) < num_samples and (not times_s or gpu.now_s() < deadline_s):
            if self._cold:
                gpu.clear_cache()
            gpu.synchronize()
            begun_s = gpu.now_s()
            call.run(call.inputs)
            gpu.synchronize()
            times_s.append(gpu.now_s() - begun_s)
        self._position = 0  # the inputs, now warm, are the last of the copies
        self._watch.look()
        return times_s

    def _spans(self, num_samples: int) -> list[float] | None:
        gpu, call = self._gpu, self._call
        before = gpu.clear_cache if self._cold else lambda: None
        return gpu.spans_s(before, lambda: call.run(call.inputs), num_samples)

    def _timed_alone(self, num_calls: int) -> list[float]:
        """Warm-up calls, queued back to back as they come."""
        gpu, call, events = self._gpu, self._call, self._events[:num_calls]
        for start, end in events:
            gpu.record(start)
            call.run(call.inputs)
            gpu.record(end)
        gpu.synchronize()
        return [gpu.elapsed_s(start, end) for start, end in events]

    # The plan

    def _planned(self) -> Plan:
        probe = self._probe()
        if self._mode is None:
            return self._first_that_serves(probe)
        plan = self._in_mode(self._mode, probe)
        if plan is None:
            raise UnsupportedError(f"this call cannot be timed in mode {self._mode!r} here")
        return plan

    def _first_that_serves(self, probe: Probe) -> Plan:
        if probe.device_s >= EVENTS_RATIO * probe.enqueue_s or probe.device_s >= EVENTS_S:
            return self._by_events("events", probe)
        for mode in ("graph", "backlog", "cupti"):
            plan = self._in_mode(mode, probe)
            if plan is not None:
                return plan
        return Plan(mode="host", copies=(self._call.inputs,), flags=("host_bound",))

    def _in_mode(self, mode: str, probe: Probe) -> Plan | None:
        """The plan of a mode, or None where it does not serve."""
        gpu = self._gpu
        if mode == "events":
            return self._by_events(mode, probe)
        if mode == "graph":
            return self._by_graph(probe)
        if mode == "backlog" and (gpu.can_spin or self._cold):
            return self._by_events(mode, probe)
        alone = (self._call.inputs,)
        if mode == "cupti" and gpu.can_span and self._spans(1) is not None:
            return Plan(mode=mode, copies=alone)
        return Plan(mode=mode, copies=alone) if mode == "host" else None

    def _probe(self) -> Probe:
        """Median device and enqueue time of five calls, each behind a backlog."""
        run, inputs = self._call.run, self._call.inputs
        begun_s = self._gpu.now_s()
        run(inputs)
        backlog_s = 2 * (self._gpu.now_s() - begun_s)
        probes = [self._probe_one(lambda: run(inputs), backlog_s) for _ in range(PROBE_CALLS)]
        return Probe(
            device_s=max(median(probe.device_s for probe in probes), EVENT_TICK_S),
            enqueue_s=median(probe.enqueue_s for probe in probes),
        )

    def _probe_one(self, work: Callable[[], object], backlog_s: float) -> Probe:
        gpu, (start, end) = self._gpu, self._events[0]
        if self._cold:
            gpu.clear_cache()
        self._hide_launch(backlog_s)
        gpu.record(start)
        begun_s = gpu.now_s()
        work()
        enqueue_s = gpu.now_s() - begun_s
        gpu.record(end)
        gpu.synchronize()
        return Probe(device_s=gpu.elapsed_s(start, end), enqueue_s=enqueue_s)

    def _by_events(self, mode: str, probe: Probe) -> Plan:
        """Events around one call, or around several when one is too short for their tick."""
        inner = max(1, math.ceil(EVENT_SAMPLE_S / probe.device_s))
        copies: tuple[Any, ...] = (self._call.inputs,)
        flags: tuple[str, ...] = ()
        if inner > 1 and self._cold:
            # A flush before the sample would leave all but its first call warm.
            num_copies = copies_needed(self._gpu.l2_bytes, self._call.bytes_touched)
            rotated = self._copies(num_copies)
            if rotated is None:
                inner, flags = 1, ("coarse_clock",)
            else:
                copies = rotated
        backlog_s = 2 * inner * probe.enqueue_s
        if not self._gpu.can_spin and not self._cold and probe.device_s < backlog_s:
            flags += ("host_bound",)
        return Plan(mode=mode, copies=copies, inner=inner, backlog_s=backlog_s, flags=flags)

    def _by_graph(self, probe: Probe) -> Plan | None:
        """A graph whose replay is long enough and walks all copies; None where there is none."""
        gpu, call = self._gpu, self._call
        num_copies = copies_needed(gpu.l2_bytes, call.bytes_touched) if self._cold else 1
        num_calls = calls_in_graph(probe.device_s, num_copies)
        if num_calls > MAX_CAPTURED_CALLS:
            return None
        copies = self._copies(num_copies)
        if copies is None:
            return None
        for _ in range(CAPTURE_TRIES):
            graph = captured(gpu, call, copies, num_calls)
            if graph is None:
                return None
            graph.replay()  # the first one uploads the graph
            backlog_s = 2 * num_calls * probe.enqueue_s
            replay = self._probe_one(graph.replay, backlog_s)
            if replay.device_s >= REPLAY_S:
                return Plan(
                    mode="graph",
                    copies=copies,
                    inner=num_calls,
                    backlog_s=2 * replay.enqueue_s,
                    graph=graph,
                )
            # The probe's events cost time of their own, so a short call is shorter than probed.
            call_s = 0.9 * max(replay.device_s, EVENT_TICK_S) / num_calls
            num_calls = calls_in_graph(call_s, num_copies)
            if num_calls > MAX_CAPTURED_CALLS:
                return None
        return None

    def _copies(self, num_copies: int) -> tuple[Any, ...] | None:
        """``num_copies - 1`` clones and the inputs; None when they do not fit.

        The inputs come last: host latencies and the probe have just read them.
        """
        inputs = self._call.inputs
        try:
            clones = [self._gpu.clone(inputs) for _ in range(num_copies - 1)]
        except OutOfMemoryError:
            return None
        return (*clones, inputs)
