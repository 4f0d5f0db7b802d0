"""The CPU device: what it keeps of a sample, how it grows a cache, what it says when it cannot."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.devices import cpu_meters, open_device  # noqa: E402
from attnprof.devices.cpu import CpuDevice  # noqa: E402
from attnprof.errors import CannotMeasureError, OutOfMemoryError, UsageError  # noqa: E402
from attnprof.measured import Energy  # noqa: E402
from attnprof.theory.kv_cache import kv_bytes  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.growth import MAX_POINTS, points_to_keep  # noqa: E402

PREFILL = Workload(backend="flash", q_len=64, kv_len=64)


@pytest.fixture
def device() -> Any:
    before = torch.get_num_threads()
    yield CpuDevice(threads=1)
    torch.set_num_threads(before)


def test_a_sample_has_both_clocks_and_what_disturbed_it(device: CpuDevice) -> None:
    cell = device.build(PREFILL, seed=1)
    assert cell.check().passed
    warm_up = cell.warm_up(limit_s=2)
    samples = cell.sample(5, limit_s=10)
    assert len(samples.wall_s) == len(samples.cpu_s) == len(samples.minor_faults) == 5
    assert all(seconds > 0 for seconds in (*samples.wall_s, *samples.cpu_s, *warm_up.wall_s))
    assert len(samples.run_delay_s) in (0, 5)
    assert samples.inner > 1  # a call of microseconds is repeated until a millisecond is full


def test_one_sample_is_taken_even_without_time(device: CpuDevice) -> None:
    assert len(device.build(PREFILL, seed=1).sample(5, limit_s=0).wall_s) == 1


def test_a_cold_sample_is_one_call(device: CpuDevice) -> None:
    cold = Workload(backend="flash", q_len=64, kv_len=64, cache_regime="cold")
    samples = device.build(cold, seed=1).sample(2, limit_s=10)
    assert samples.inner == 1


def test_the_meters_see_no_call_that_is_not_timed(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushing and reading the meters stay outside of what the two clocks enclose."""
    cell = device.build(Workload(backend="flash", q_len=8, kv_len=8, cache_regime="cold"), seed=1)
    cell.check()
    events: list[str] = []

    def says(event: str, result: Any = None) -> Any:
        def call(*_: Any) -> Any:
            events.append(event)
            return result

        return call

    monkeypatch.setattr(device, "flush_caches", says("flush"))
    monkeypatch.setattr(device, "cpu_clock", lambda: says("clock", 0))
    monkeypatch.setattr("attnprof.devices.cpu.time.perf_counter_ns", says("clock", 1))
    meters = cpu_meters.Disturbance((), 0)
    monkeypatch.setattr("attnprof.devices.cpu.cpu_meters.disturbance", says("meters", meters))
    monkeypatch.setattr(cell, "_op", Called(cell.op, says("call")))
    cell.sample(1, limit_s=0)
    assert events == ["flush", "meters", "clock", "clock", "call", "clock", "clock", "meters"]


class Called:
    """An op that only says that it was called."""

    def __init__(self, op: Any, call: Any) -> None:
        self.active, self._call = op.active, call

    def __call__(self) -> None:
        self._call()


def test_a_heavier_workload_takes_more_cpu_time(device: CpuDevice) -> None:
    def cpu_s(seq_len: int) -> float:
        cell = device.build(Workload(backend="math", q_len=seq_len, kv_len=seq_len), seed=1)
        cell.warm_up(limit_s=0.2)
        return min(cell.sample(5, limit_s=5).cpu_s)

    assert cpu_s(512) > 4 * cpu_s(64)


def growth_of(kv_cache: str, **kwargs: Any) -> Workload:
    fields = {"q_len": 1, "kv_len": 70, "start_len": 20, "num_layers": 2, "num_kv_heads": 2}
    return Workload(backend="flash", phase="kv-growth", kv_cache=kv_cache, **{**fields, **kwargs})


@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
def test_a_growth_weighs_every_token(device: CpuDevice, kv_cache: str) -> None:
    workload = growth_of(kv_cache)
    cell = device.build(workload, seed=1)
    points = cell.grow(limit_s=60)
    assert [point.kv_len for point in points] == list(range(21, 71))
    for point in points:
        expected = kv_bytes(
            point.kv_len, num_layers=2, num_kv_heads=2, head_dim=64, dtype="float32"
        )
        assert point.useful_bytes == expected
        assert point.peak_bytes is not None
        assert point.useful_bytes <= point.allocated_bytes <= point.peak_bytes
        assert point.wall_s > 0
    tokens = {"contiguous": 70, "static": 70, "paged": 80}[kv_cache]
    expected = kv_bytes(tokens, num_layers=2, num_kv_heads=2, head_dim=64, dtype="float32")
    assert points[-1].allocated_bytes == expected
    assert cell.check().passed
    assert cell.weigh().kv_bytes == expected


def test_a_grown_stack_overshoots_by_the_keys_of_one_layer(device: CpuDevice) -> None:
    """1/(2·L) of the cache: the old keys of one layer live beside the new."""
    (*_, last) = device.build(growth_of("contiguous", num_layers=4), seed=1).grow(limit_s=60)
    keys_of_a_layer = 2 * 64 * 4 * 69
    assert last.peak_bytes == last.allocated_bytes + keys_of_a_layer


def test_a_long_growth_keeps_few_points_and_all_steps_of_pages_beside_them() -> None:
    workload = growth_of("paged", start_len=100, kv_len=20_000)
    kept = points_to_keep(workload)
    assert 64 <= len(kept) <= MAX_POINTS
    assert {101, 20_000} <= kept
    full_blocks = {length for length in kept if length % 16 == 0}
    assert len(full_blocks) >= 60
    assert all(length + 1 in kept for length in full_blocks if length < 20_000)


def test_a_growth_without_time_gives_the_points_that_it_had(device: CpuDevice) -> None:
    points = device.build(growth_of("static"), seed=1).grow(limit_s=0)
    assert [point.kv_len for point in points] == [21]


def test_no_room_is_an_error_that_says_how_much_was_asked_for(device: CpuDevice) -> None:
    workload = Workload(backend="math", q_len=2**24, kv_len=2**24, num_q_heads=64, num_kv_heads=64,
                        head_dim=256)  # fmt: skip
    with pytest.raises(OutOfMemoryError) as caught:
        device.build(workload, seed=1)
    assert caught.value.requested_bytes == 2**24 * 64 * 256 * 4


def test_the_machine_and_its_roofs_are_told(device: CpuDevice) -> None:
    facts = device.facts()
    assert facts["threads"] == 1
    assert facts["torch"] == torch.__version__
    assert facts["memory_bytes"] > 2**28
    roofs = device.ceilings(("float32", "bits8"))
    assert roofs["copy_bytes_per_s"] > 0
    assert roofs["matmul"]["float32"]["flops_per_cpu_s"] > 0
    assert "bits8" not in roofs["matmul"]  # torch cannot multiply it
    assert 0 < device.free_bytes() <= facts["memory_bytes"]
    assert set(device.rulers()) == {"matmul_s", "copy_s"}
    assert roofs["contended"] in (True, False)
    assert set(roofs["matmul"]["float32"]) == {"flops_per_s", "flops_per_cpu_s"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_peak_of_resident_memory_starts_anew() -> None:
    if not cpu_meters.reset_peak_resident():
        pytest.skip("clear_refs is not writable")
    before = cpu_meters.peak_resident_bytes()
    block = bytearray(b"1") * 2**26
    grown = cpu_meters.peak_resident_bytes()
    assert before is not None
    assert grown is not None
    assert grown - before >= 2**25
    del block


def test_a_profile_writes_nothing_to_the_terminal() -> None:
    code = (
        "from attnprof.devices import open_device; from attnprof.workload import Workload;"
        "cell = open_device('cpu', 1).build(Workload(backend='math', q_len=64, kv_len=64), 1);"
        "cell.check(); cell.weigh()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_auto_finds_a_device() -> None:
    assert open_device("auto", threads=1).kind in ("cpu", "cuda", "mps", "xpu")


def test_an_unknown_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        open_device("cude")


@pytest.mark.parametrize("name", ["mps", "xpu", "xpu:1"])
def test_a_device_that_is_not_here_is_said(name: str) -> None:
    if torch.backends.mps.is_available() or torch.xpu.is_available():
        pytest.skip("it is here")
    with pytest.raises(CannotMeasureError, match="here"):
        open_device(name)


def test_a_roof_is_what_the_machine_can_do_not_what_others_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attnprof.devices import cpu_roofs

    waited_s = iter(range(1000))  # a second more at each reading: every call waits
    monkeypatch.setattr(
        cpu_meters,
        "disturbance",
        lambda: cpu_meters.Disturbance((float(next(waited_s)),), 0),
    )
    best = cpu_roofs._best(lambda: sum(range(10_000)), 3, 1.0, time.process_time_ns, threads=4)
    assert best.contended
    assert best.wall_s == pytest.approx(best.cpu_s / 4)


def test_joules_are_those_of_the_counter_by_the_call(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meter:
        """Three joules a reading."""

        energy_source = "rapl"
        joules = 0.0

        def energy_j(self) -> float:
            self.joules += 3.0
            return self.joules

    called = []

    def energy_of(counter: Meter, run: Callable[[], int], *, idle_w: float | None) -> Energy:
        called.append(run())
        return Energy(joules_per_call=3.0, window_s=2.0, idle_w=idle_w, source="rapl")

    cell = device.build(Workload(backend="flash", q_len=64, kv_len=64), seed=1)
    monkeypatch.setattr("attnprof.devices.cpu.rapl_counter", lambda: None)
    assert cell.energy() is None
    monkeypatch.setattr("attnprof.devices.cpu.rapl_counter", Meter)
    monkeypatch.setattr("attnprof.devices.cpu.idle_watts", lambda counter: 5.0)
    monkeypatch.setattr("attnprof.devices.cpu.energy_of", energy_of)
    found = cell.energy()
    assert called == [1]
    assert found is not None
    assert (found.joules_per_call, found.idle_w) == (3.0, 5.0)
