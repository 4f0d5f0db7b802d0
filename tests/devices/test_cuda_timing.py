"""The CUDA procedure on a GPU with a virtual clock."""

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.devices import cuda_timing
from attnprof.devices.cuda_timing import (
    CudaTimer,
    calls_in_graph,
    captured,
    copies_needed,
    default_cache_regime,
)
from attnprof.devices.gpu import Call
from attnprof.measured import Samples
from tests.devices.fake_gpu import FakeGpu, FakeWatch, fake_call

MEGABYTE = 1_000_000
SHORT_S = 3e-6  # of arithmetic, where a launch takes 5e-6
LONG_S = 2e-3


def timer_on(
    gpu: FakeGpu,
    compute_s: float,
    num_bytes: int = MEGABYTE,
    *,
    cold: bool = False,
    masks: tuple[int, ...] = (),
    num_kernels: int = 1,
    sm_clock_hz: float | None = None,
) -> CudaTimer:
    watch = FakeWatch(gpu, list(masks), sm_clock_hz)
    return CudaTimer(gpu, fake_call(gpu, compute_s, num_bytes, num_kernels), watch, cold=cold)


def warmed(timer: CudaTimer, gpu: FakeGpu) -> CudaTimer:
    timer.warm_up(3.0)
    assert timer.plan
    gpu.log.clear()
    gpu.hits = gpu.misses = 0
    return timer


def sampled(timer: CudaTimer, gpu: FakeGpu, num_samples: int = 100) -> Samples:
    return warmed(timer, gpu).sample(num_samples, 60.0)


def device_log(gpu: FakeGpu) -> list[str]:
    """What was done up to the last event, host latencies left out."""
    last = max(index for index, what in enumerate(gpu.log) if what == "end.record")
    return gpu.log[: last + 1]


def inside_pairs(log: list[str]) -> list[list[str]]:
    """What was done between each start.record and its end.record."""
    pairs: list[list[str]] = []
    is_inside = False
    for what in log:
        if what == "start.record":
            pairs.append([])
            is_inside = True
        elif what == "end.record":
            is_inside = False
        elif is_inside:
            pairs[-1].append(what)
    return pairs


# What is measured


def test_naive_event_timing_reads_the_launch_gap_and_the_procedure_does_not() -> None:
    gpu = FakeGpu()
    call = fake_call(gpu, SHORT_S, MEGABYTE)
    naive_s = []
    with gpu.on_stream():
        for _ in range(50):
            start, end = gpu.event(), gpu.event()
            gpu.record(start)
            call.run(call.inputs)
            gpu.record(end)
            gpu.synchronize()
            naive_s.append(gpu.elapsed_s(start, end))
    assert median(naive_s) > 2 * SHORT_S

    ours = sampled(CudaTimer(gpu, call, FakeWatch(gpu), cold=False), gpu)
    assert median(ours.wall_s) == pytest.approx(SHORT_S, rel=0.01)


@pytest.mark.parametrize("can_capture", [True, False], ids=["graph", "backlog"])
@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@given(
    compute_s=st.floats(2e-6, 1e-3),
    launch_s=st.floats(1e-6, 100e-6),
    num_bytes=st.integers(100_000, 400 * MEGABYTE),
)
@settings(max_examples=25, deadline=None)
def test_device_time_is_within_one_percent_whatever_the_launch_costs(
    cold: bool, can_capture: bool, compute_s: float, launch_s: float, num_bytes: int
) -> None:
    gpu = FakeGpu(launch_s=launch_s, can_capture=can_capture)
    samples = sampled(timer_on(gpu, compute_s, num_bytes, cold=cold), gpu, num_samples=20)
    moved_s = num_bytes / gpu.bytes_per_s
    fits = num_bytes <= gpu.l2_bytes
    true_s = compute_s + (moved_s if cold or not fits else 0.0)
    # Half a tick of the events at either end stays, in a sample of at least 50 us.
    tick_s = cuda_timing.EVENT_TICK_S / samples.inner
    assert median(samples.wall_s) == pytest.approx(true_s, rel=0.01, abs=tick_s)


def test_host_latency_is_reported_beside_device_time() -> None:
    gpu = FakeGpu(launch_s=20e-6)
    samples = sampled(timer_on(gpu, SHORT_S), gpu)
    assert median(samples.wall_s) < 5e-6
    assert median(samples.host_s) > 20e-6
    assert len(samples.host_s) == 25


# Warm-up


def test_warm_up_takes_at_least_200_ms_and_three_calls() -> None:
    gpu = FakeGpu()
    quick = timer_on(gpu, LONG_S).warm_up(3.0)
    assert quick.settled
    assert 0.2 <= sum(quick.wall_s) < 0.3

    gpu = FakeGpu()
    slow = timer_on(gpu, 5.0).warm_up(3.0)
    assert len(slow.wall_s) == 3
    assert not slow.settled


def test_warm_up_waits_until_the_clock_has_stopped_drooping() -> None:
    gpu = FakeGpu(droop=0.2, droop_s=1.0)
    warm_up = timer_on(gpu, LONG_S).warm_up(3.0)
    assert warm_up.settled
    assert warm_up.wall_s[-1] > 1.03 * warm_up.wall_s[0]
    assert cuda_timing.is_settled(list(warm_up.wall_s))


def test_warm_up_gives_up_after_three_seconds_and_says_so() -> None:
    class Restless(FakeGpu):
        """Each call takes a third longer than the one before, up to twice, and again."""

        def elapsed_s(self, start: object, end: object) -> float:
            self.num_reads = getattr(self, "num_reads", 0) + 1
            return 1.0 + self.num_reads // 8 % 3

    gpu = Restless()
    warm_up = timer_on(gpu, 10e-3).warm_up(60.0)
    assert not warm_up.settled
    assert 2.9 < gpu.now_s() < 3.2


def test_warm_up_keeps_to_a_shorter_limit() -> None:
    gpu = FakeGpu()
    timer_on(gpu, 30e-3).warm_up(0.3)
    assert gpu.now_s() < 0.4


@pytest.mark.parametrize(
    ("times", "settled"),
    [
        pytest.param([1.0] * 15, False, id="fewer than two windows"),
        pytest.param([1.0] * 16, True, id="two equal windows"),
        pytest.param([1.0] * 8 + [1.02] * 8, False, id="2 % apart"),
        pytest.param([1.0] * 8 + [1.009] * 8, True, id="0.9 % apart"),
        pytest.param([9.0] * 8 + [1.0] * 16, True, id="only the last two count"),
    ],
)
def test_windows_agree_within_one_percent(times: list[float], settled: bool) -> None:
    assert cuda_timing.is_settled(times) is settled


# Modes


@pytest.mark.parametrize(
    ("compute_s", "launch_s", "can_capture", "can_spin", "can_span", "cold", "mode"),
    [
        pytest.param(60e-6, 5e-6, True, True, True, False, "events", id="t over 10 h"),
        pytest.param(250e-6, 90e-6, True, True, True, False, "events", id="t over 200 us"),
        pytest.param(40e-6, 5e-6, True, True, True, False, "graph", id="short: graph"),
        pytest.param(40e-6, 5e-6, False, True, True, False, "backlog", id="no capture"),
        pytest.param(40e-6, 5e-6, False, False, True, True, "backlog", id="the flush hides it"),
        pytest.param(40e-6, 5e-6, False, False, True, False, "cupti", id="no spin, warm"),
        pytest.param(40e-6, 5e-6, False, False, False, False, "host", id="nothing serves"),
    ],
)
def test_the_mode_is_the_first_that_serves(
    compute_s: float,
    launch_s: float,
    can_capture: bool,
    can_spin: bool,
    can_span: bool,
    cold: bool,
    mode: str,
) -> None:
    gpu = FakeGpu(launch_s=launch_s, can_capture=can_capture, can_spin=can_spin, can_span=can_span)
    samples = sampled(timer_on(gpu, compute_s, cold=cold), gpu)
    assert samples.mode == mode
    assert ("host_bound" in samples.flags) is (mode == "host")


def test_host_mode_reports_its_time_as_host_latency_too() -> None:
    gpu = FakeGpu(can_capture=False, can_spin=False)
    samples = sampled(timer_on(gpu, SHORT_S), gpu)
    assert samples.mode == "host"
    assert samples.host_s == samples.wall_s
    assert median(samples.wall_s) > SHORT_S + gpu.launch_s


def test_cupti_spans_leave_the_launch_out() -> None:
    gpu = FakeGpu(can_capture=False, can_spin=False, can_span=True)
    samples = sampled(timer_on(gpu, SHORT_S), gpu)
    assert median(samples.wall_s) == pytest.approx(SHORT_S, rel=0.01)


def test_a_graph_that_would_take_too_many_calls_is_not_captured() -> None:
    gpu = FakeGpu()
    samples = sampled(timer_on(gpu, SHORT_S, num_bytes=4096, cold=True), gpu, num_samples=10)
    assert copies_needed(gpu.l2_bytes, 4096) > cuda_timing.MAX_CAPTURED_CALLS
    assert samples.mode == "backlog"


# The order of a sample


@pytest.mark.parametrize(
    ("knobs", "compute_s", "cold", "before", "inside"),
    [
        pytest.param({}, LONG_S, True, ["flush", "spin"], ["call"], id="events, cold"),
        pytest.param({}, LONG_S, False, ["spin"], ["call"], id="events, warm"),
        pytest.param({}, SHORT_S, True, ["spin"], ["replay"], id="graph, cold: rotates inside"),
        pytest.param({}, SHORT_S, False, ["spin"], ["replay"], id="graph, warm"),
        pytest.param(
            {"can_capture": False}, 20e-6, False, ["spin"], ["call"] * 3, id="backlog, warm"
        ),
        pytest.param(
            {"can_capture": False, "launch_s": 10e-6}, 60e-6, True, ["flush", "spin"], ["call"],
            id="backlog, cold",
        ),
        pytest.param(
            {"can_capture": False}, 20e-6, True, ["spin"], ["call"] * 3,
            id="backlog, cold, rotates",
        ),
        pytest.param(
            {"can_spin": False}, LONG_S, True, ["flush", "flush"], ["call"],
            id="no spin: a flush is the backlog",
        ),
        pytest.param(
            {"can_spin": False}, LONG_S, False, ["call"], ["call"],
            id="no spin, warm: an untimed call is the backlog",
        ),
    ],
)  # fmt: skip
def test_the_order_is_clear_or_rotate_backlog_start_calls_end(
    knobs: dict[str, object], compute_s: float, cold: bool, before: list[str], inside: list[str]
) -> None:
    gpu = FakeGpu(**knobs)  # type: ignore[arg-type]
    timer = warmed(timer_on(gpu, compute_s, cold=cold), gpu)
    timer.sample(20, 60.0)
    one = [*before, "start.record", *inside, "end.record"]
    log = [what for what in device_log(gpu) if what != "synchronize"]
    assert log == one * 20


@pytest.mark.parametrize("compute_s", [SHORT_S, 20e-6, LONG_S])
@pytest.mark.parametrize("can_capture", [True, False])
@pytest.mark.parametrize("cold", [True, False])
def test_nothing_but_the_calls_is_between_start_and_end(
    compute_s: float, can_capture: bool, cold: bool
) -> None:
    gpu = FakeGpu(can_capture=can_capture)
    sampled(timer_on(gpu, compute_s, cold=cold), gpu, num_samples=30)
    pairs = inside_pairs(gpu.log)
    assert len(pairs) == 30
    assert {what for pair in pairs for what in pair} <= {"call", "replay"}


def test_up_to_64_samples_are_queued_before_one_synchronise() -> None:
    gpu = FakeGpu()
    timer = warmed(timer_on(gpu, 60e-6), gpu)
    timer.sample(129, 60.0)
    batches: list[int] = [0]
    for what in device_log(gpu):
        if what == "end.record":
            batches[-1] += 1
        elif what == "synchronize":
            batches.append(0)
    assert batches == [1, 64, 64]  # the first one tells what a sample costs


def test_a_batch_of_long_calls_is_short() -> None:
    gpu = FakeGpu()
    timer = warmed(timer_on(gpu, 0.2), gpu)
    begun_s = gpu.now_s()
    samples = timer.sample(1000, 1.0)
    assert 4 <= len(samples.wall_s) <= 6
    assert gpu.now_s() - begun_s < 1.7


def test_one_sample_is_taken_even_when_the_limit_is_over() -> None:
    gpu = FakeGpu()
    samples = warmed(timer_on(gpu, 0.2), gpu).sample(30, 0.0)
    assert len(samples.wall_s) == 1
    assert len(samples.host_s) == 1


def test_a_full_launch_queue_slows_the_host_and_not_the_figure() -> None:
    gpu = FakeGpu(queue_depth=16)
    samples = sampled(timer_on(gpu, 60e-6), gpu, num_samples=64)
    assert median(samples.wall_s) == pytest.approx(60e-6, rel=0.01)


def test_all_work_is_queued_on_the_side_stream() -> None:
    gpu = FakeGpu()
    timer = timer_on(gpu, SHORT_S, cold=True)
    timer.warm_up(3.0)
    timer.sample(10, 60.0)  # the fake refuses all else
    assert not gpu.on_side_stream


# Caches


def test_cold_events_miss_and_warm_events_hit() -> None:
    cold, warm = FakeGpu(), FakeGpu()
    slow = sampled(timer_on(cold, LONG_S, 10 * MEGABYTE, cold=True), cold)
    fast = sampled(timer_on(warm, LONG_S, 10 * MEGABYTE, cold=False), warm)
    assert (cold.hits, warm.misses) == (0, 0)
    assert cold.misses >= 100
    assert warm.hits >= 100
    difference_s = median(slow.wall_s) - median(fast.wall_s)
    assert difference_s == pytest.approx(10 * MEGABYTE / cold.bytes_per_s, abs=1e-6)


@pytest.mark.parametrize("can_capture", [True, False], ids=["graph", "backlog"])
@pytest.mark.parametrize("num_bytes", [MEGABYTE, 7 * MEGABYTE, 40 * MEGABYTE])
def test_rotation_makes_every_call_of_a_short_kernel_miss(
    can_capture: bool, num_bytes: int
) -> None:
    gpu = FakeGpu(can_capture=can_capture)
    timer = warmed(timer_on(gpu, SHORT_S, num_bytes, cold=True), gpu)
    visits = [timer.sample(50, 60.0) for _ in range(3)]  # between them host latencies are taken
    samples = visits[0]
    assert samples.mode == ("graph" if can_capture else "backlog")
    assert gpu.hits == 0
    assert gpu.misses >= 3 * 50 * samples.inner


def test_a_flush_in_front_of_several_calls_would_leave_them_warm() -> None:
    """Why a short kernel is rotated: the same sample, cleared only."""
    gpu = FakeGpu()
    call = fake_call(gpu, SHORT_S, MEGABYTE)
    with gpu.on_stream():
        gpu.clear_cache()
        for _ in range(10):
            call.run(call.inputs)
    assert (gpu.misses, gpu.hits) == (1, 9)


def test_a_graph_with_fewer_calls_than_copies_is_refused() -> None:
    gpu = FakeGpu()
    call = fake_call(gpu, SHORT_S, MEGABYTE)
    copies = tuple(gpu.clone(call.inputs) for _ in range(8))
    with gpu.on_stream():
        for num_calls in (1, 7, 12):
            with pytest.raises(ValueError, match=f"{num_calls} calls does not walk 8 copies"):
                captured(gpu, call, copies, num_calls)
        assert captured(gpu, call, copies, 16) is not None


@given(
    call_s=st.floats(1e-7, 1e-2),
    num_bytes=st.integers(1000, 10**9),
    l2_bytes=st.integers(10**6, 10**8),
)
@settings(deadline=None)
def test_a_graph_walks_all_copies_for_at_least_200_us(
    call_s: float, num_bytes: int, l2_bytes: int
) -> None:
    num_copies = copies_needed(l2_bytes, num_bytes)
    num_calls = calls_in_graph(call_s, num_copies)
    assert num_calls >= num_copies
    assert num_calls % num_copies == 0
    assert num_calls * call_s >= 200e-6 * (1 - 1e-9)
    if num_bytes > 5 * l2_bytes:
        assert num_copies == 1
    else:
        # Between two reads of a copy all others are read, which is over 5 L2.
        assert (num_copies - 1) * num_bytes >= 5 * l2_bytes


def test_replays_last_200_us_though_the_probe_reads_short_calls_too_long() -> None:
    gpu = FakeGpu()
    timer = warmed(timer_on(gpu, 0.4e-6, 1000), gpu)
    samples = timer.sample(20, 60.0)
    assert samples.mode == "graph"
    assert median(samples.wall_s) * samples.inner >= 200e-6


def test_no_room_for_clones_means_one_call_a_sample_and_a_flag() -> None:
    gpu = FakeGpu(free_bytes=100 * MEGABYTE)
    samples = sampled(timer_on(gpu, 20e-6, cold=True), gpu)
    assert samples.mode == "backlog"
    assert samples.inner == 1
    assert samples.flags == ("coarse_clock",)
    assert gpu.hits == 0


def test_a_short_event_sample_holds_several_calls() -> None:
    gpu = FakeGpu(can_capture=False)
    samples = sampled(timer_on(gpu, 12e-6), gpu)
    assert samples.inner == 5
    assert median(samples.wall_s) == pytest.approx(12e-6, rel=0.01)


def test_a_call_without_inputs_cannot_pass_for_cold() -> None:
    with pytest.raises(ValueError, match="touches no bytes"):
        Call(run=lambda _: None, inputs=(), bytes_touched=0)


@pytest.mark.parametrize(
    ("num_bytes", "phase", "regime"),
    [
        pytest.param(10**10, "decode", "cold", id="decode, however large"),
        pytest.param(10**10, "kv-growth", "cold", id="growth is decode"),
        pytest.param(249 * MEGABYTE, "prefill", "cold", id="under 5 L2"),
        pytest.param(250 * MEGABYTE, "prefill", "warm", id="5 L2 evicts itself"),
    ],
)
def test_cold_is_the_default_where_service_would_be_cold(
    num_bytes: int, phase: str, regime: str
) -> None:
    assert default_cache_regime(num_bytes, phase, 50 * MEGABYTE) == regime


# Throttling


@pytest.mark.parametrize("bit", [0x08, 0x20, 0x40, 0x80])
def test_a_throttled_batch_is_dropped_and_taken_again(bit: int) -> None:
    gpu = FakeGpu()
    samples = sampled(timer_on(gpu, LONG_S, masks=(0, bit, bit, 0)), gpu, num_samples=65)
    assert samples.dropped == {"throttled": 128}
    assert len(samples.wall_s) == 65
    assert samples.flags == ()
    assert [what for what in gpu.log if "pause" in what] == ["pause 0.05", "pause 0.1"]


def test_after_three_tries_a_throttled_batch_is_kept_and_flagged() -> None:
    gpu = FakeGpu()
    samples = sampled(timer_on(gpu, LONG_S, masks=(0x40,)), gpu, num_samples=65)
    assert "throttled" in samples.flags
    assert len(samples.wall_s) == 65
    # Three tries of the first batch; what follows is kept, or a hot machine would never end.
    assert samples.dropped == {"throttled": 3}
    pauses = [what for what in gpu.log if "pause" in what]
    assert pauses == ["pause 0.05", "pause 0.1", "pause 0.2"]


def test_no_cool_down_goes_past_the_limit() -> None:
    gpu = FakeGpu()
    timer = warmed(timer_on(gpu, LONG_S, masks=(0x40,)), gpu)
    begun_s = gpu.now_s()
    samples = timer.sample(30, 0.06)
    assert "throttled" in samples.flags
    assert gpu.now_s() - begun_s < 0.15


def test_a_power_cap_is_recorded_and_drops_nothing() -> None:
    gpu = FakeGpu()
    samples = sampled(timer_on(gpu, LONG_S, masks=(0x04,)), gpu)
    assert samples.dropped == {}
    assert samples.flags == ("power_capped",)
    assert samples.clocks is not None
    assert samples.clocks["power_capped_share"] == 1.0

    seldom = sampled(timer_on(gpu, LONG_S, masks=(0, 0x04, 0)), gpu, num_samples=129)
    assert seldom.clocks is not None
    assert seldom.clocks["power_capped_share"] == pytest.approx(64 / 129)
    assert seldom.flags == ()


def test_sync_boost_is_flagged_and_idle_is_ignored() -> None:
    gpu = FakeGpu()
    assert sampled(timer_on(gpu, LONG_S, masks=(0x10,)), gpu).flags == ("sync_boost",)
    idle = sampled(timer_on(gpu, LONG_S, masks=(0x01,)), gpu)
    assert (idle.flags, idle.dropped) == ((), {})
    assert idle.clocks is not None
    assert idle.clocks["reasons_mask"] == 0x01


def test_cycles_do_not_move_when_the_clock_droops() -> None:
    gpu = FakeGpu(droop=0.2, droop_s=1.0)
    timer = timer_on(gpu, LONG_S, sm_clock_hz=2e9)
    assert timer.plan
    samples = timer.sample(1200, 60.0)
    assert max(samples.wall_s) > 1.15 * min(samples.wall_s)
    assert max(samples.cycles) < 1.05 * min(samples.cycles)
    assert median(samples.cycles) == pytest.approx(LONG_S * 2e9, rel=0.03)


def test_without_sensors_cycles_and_clocks_are_unknown() -> None:
    gpu = FakeGpu()
    samples = sampled(timer_on(gpu, LONG_S), gpu)
    assert samples.cycles == ()
    assert samples.clocks is None


def test_closing_forgets_graph_and_copies() -> None:
    gpu = FakeGpu()
    timer = warmed(timer_on(gpu, SHORT_S, cold=True), gpu)
    plan = timer.plan
    timer.close()
    assert timer.plan is not plan
