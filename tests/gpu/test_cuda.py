"""On a real GPU: what no stand-in can show. Skipped where torch finds none."""

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attnprof.devices import open_device  # noqa: E402
from attnprof.devices.base import Device  # noqa: E402
from attnprof.measured import Samples  # noqa: E402
from attnprof.medians import Interval  # noqa: E402
from attnprof.sweep import SweepRequest, run_sweep  # noqa: E402
from attnprof.theory.flops import attention_flops  # noqa: E402
from attnprof.theory.traffic import attention_bytes  # noqa: E402
from attnprof.workload import Workload  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA or ROCm device"),
]

PREFILL = Workload(
    backend="flash", dtype="float16", q_len=4096, kv_len=4096, num_q_heads=16, num_kv_heads=16,
    head_dim=128,
)  # fmt: skip
DECODE = Workload(
    backend="math", phase="decode", dtype="float16", q_len=1, kv_len=2048, num_q_heads=8,
    num_kv_heads=8, head_dim=128, kv_cache="static", cache_regime="cold",
)  # fmt: skip
GROWTH = Workload(
    backend="math", phase="kv-growth", dtype="float16", q_len=1, kv_len=80, start_len=16,
    num_q_heads=8, num_kv_heads=8, head_dim=64, kv_cache="contiguous",
)  # fmt: skip
TRUE_SHARE = 0.95  # of a measured roof, which is the best of a few and can be beaten a little


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cuda", None, allow_shared=True, energy=False)


def sampled(device: Device, workload: Workload, num_samples: int = 30) -> Samples:
    cell = device.build(workload, seed=1)
    try:
        assert cell.check().passed
        cell.warm_up(3.0)
        return cell.sample(num_samples, 5.0)
    finally:
        cell.close()


def sampled_in(mode: str, workload: Workload) -> Samples:
    return sampled(open_device("cuda", None, allow_shared=True, mode=mode, energy=False), workload)


def test_measured_time_is_above_the_roofline(device: Device) -> None:
    roofs = device.ceilings(("float16",))
    flops_per_s = roofs["matmul"]["float16"]["flops_per_s"]
    prefill = sampled(device, PREFILL)
    flops = attention_flops(PREFILL.shape, PREFILL.mask) * PREFILL.num_layers
    assert median(prefill.wall_s) >= TRUE_SHARE * flops / flops_per_s

    decode = sampled(device, DECODE)
    moved_s = attention_bytes(DECODE) / roofs["copy_bytes_per_s"]
    assert median(decode.wall_s) >= TRUE_SHARE * moved_s


def test_host_latency_is_above_device_time(device: Device) -> None:
    samples = sampled(device, DECODE)
    assert median(samples.host_s) > median(samples.wall_s)


def test_memory_is_above_the_kv_cache(device: Device) -> None:
    before = torch.cuda.memory_allocated()
    cell = device.build(DECODE, seed=1)
    cell.check()
    held = torch.cuda.memory_allocated() - before
    memory = cell.weigh()
    cell.close()
    assert memory.kv_bytes == 2 * 2048 * 8 * 128 * 2
    assert held >= memory.kv_bytes
    assert memory.peak_activation_bytes is not None
    assert memory.peak_activation_bytes > 0
    assert torch.cuda.memory_allocated() <= before + 2**20


def test_a_graph_and_events_behind_a_backlog_agree() -> None:
    """A graph that had skipped its work would be faster; one launch at a time would be slower."""
    graph, backlog = sampled_in("graph", DECODE), sampled_in("backlog", DECODE)
    assert graph.inner * median(graph.wall_s) >= 200e-6
    ratio = median(graph.wall_s) / median(backlog.wall_s)
    assert 0.6 < ratio < 1.2, (graph, backlog)


def test_cold_decode_is_slower_than_warm(device: Device) -> None:
    from dataclasses import replace

    cold = sampled(device, DECODE)
    warm = sampled(device, replace(DECODE, cache_regime="warm"))
    assert median(cold.wall_s) > median(warm.wall_s)


def test_a_spin_lasts_at_least_as_long_as_asked(device: Any) -> None:
    gpu = device.gpu
    with gpu.on_stream():
        start, end = gpu.event(), gpu.event()
        gpu.record(start)
        gpu.spin(2e-3)
        gpu.record(end)
        begun_s = time.perf_counter()
        gpu.synchronize()
        assert gpu.elapsed_s(start, end) >= 2e-3
        assert time.perf_counter() - begun_s >= 1e-3, "queueing a spin must not wait for it"


def test_facts_name_the_device(device: Device) -> None:
    facts = json.loads(json.dumps(device.facts()))
    assert facts["name"] == torch.cuda.get_device_name(0)
    assert facts["memory_bytes"] > 2**30
    assert facts["num_sms"] > 0
    assert facts["l2_bytes"] is None or facts["l2_bytes"] > 2**18
    assert facts["spin"]
    assert 0 < device.free_bytes() <= facts["memory_bytes"]


def test_energy_of_a_call_is_between_idle_and_the_power_limit() -> None:
    device: Any = open_device("cuda", None, allow_shared=True)
    if device.sensors is None or device.sensors.energy_j() is None:
        pytest.skip("no energy counter here")
    cell = device.build(PREFILL, seed=1)
    cell.warm_up(3.0)
    samples = cell.sample(10, 5.0)
    energy = cell.energy()
    cell.close()
    assert energy is not None
    assert energy.idle_w is not None
    watts = energy.joules_per_call / median(samples.host_s)
    limit_w = device.facts()["power_limit_w"] or 2000
    assert 0.5 * energy.idle_w < watts < 1.5 * limit_w


class Silent:
    """A watcher of a sweep that says nothing."""

    def started(self, num_workloads: int, num_kept: int) -> None: ...
    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None: ...
    def record(self, record: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def time_left(self, left_s: float) -> None: ...


@pytest.mark.slow
def test_a_sweep_measures_the_gpu_from_start_to_end(tmp_path: Path) -> None:
    request = SweepRequest(
        workloads=(PREFILL, DECODE, GROWTH),
        device="cuda",
        run_dir=tmp_path / "run",
        settings={"allow_shared": True, "energy": False},
    )
    outcome = run_sweep(request, Silent())
    assert outcome.complete
    assert [record["status"] for record in outcome.records] == ["ok"] * 3
    for record in outcome.records:
        assert record["device"].startswith(("cuda", "rocm"))
        assert record["median_s"] > 0
    by_phase = {record["phase"]: record for record in outcome.records}
    assert by_phase["decode"]["kv_bytes"] == by_phase["decode"]["theory_kv_bytes"]
