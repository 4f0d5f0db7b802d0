"""The torch bindings of CUDA and ROCm, run on a CPU behind stand-ins with torch's signatures."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attnprof.devices import cuda, cuda_roofs, cuda_timing, cupti_spans, open_device  # noqa: E402
from attnprof.devices.cuda import CudaCell, CudaDevice, open_cuda  # noqa: E402
from attnprof.devices.gpu import Call  # noqa: E402
from attnprof.devices.telemetry import Reading  # noqa: E402
from attnprof.devices.torch_gpu import TorchGpu  # noqa: E402
from attnprof.errors import (  # noqa: E402
    CannotMeasureError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.op import AttentionOp  # noqa: E402
from tests.devices.fake_torch_cuda import CPU, FakeTorchCuda, install, properties  # noqa: E402

pytestmark = pytest.mark.torch

PREFILL = Workload(backend="eager", q_len=16, kv_len=16, num_q_heads=2, num_kv_heads=2, head_dim=8)
DECODE = Workload(
    backend="math", phase="decode", q_len=1, kv_len=48, num_q_heads=4, num_kv_heads=2, head_dim=8,
    num_layers=2, kv_cache="static", cache_regime="cold",
)  # fmt: skip
SMALL_L2 = 4096


@pytest.fixture
def torch_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorchCuda:
    return install(monkeypatch)


def device_on_cpu(mode: str | None = None, sensors: Any = None) -> CudaDevice:
    return CudaDevice(CPU, properties(L2_cache_size=SMALL_L2), sensors, mode=mode)


def built(workload: Workload, mode: str | None = None) -> CudaCell:
    return device_on_cpu(mode).build(workload, seed=7)


# A cell from start to end


@pytest.mark.parametrize("mode", ["events", "graph", "backlog", "host"])
@pytest.mark.parametrize("workload", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_a_cell_is_checked_warmed_sampled_weighed_and_closed(
    torch_cuda: FakeTorchCuda, mode: str, workload: Workload
) -> None:
    if mode == "graph":
        slow_replays(torch_cuda)
    cell = built(workload, mode)
    assert cell.check().passed
    warm_up = cell.warm_up(0.05)
    assert len(warm_up.wall_s) >= 3
    samples = cell.sample(5, 1e9)
    assert samples.mode == mode
    assert len(samples.wall_s) == 5
    assert all(value > 0 for value in (*samples.wall_s, *samples.host_s))
    assert cell.kernels is not None
    memory = cell.weigh()
    assert memory.peak_activation_bytes == 300
    assert memory.meter == "allocator"
    assert memory.reserved_bytes == 7000
    assert memory.process_bytes is None
    assert cell.energy() is None
    cell.close()
    assert torch_cuda.log[-1] == "empty_cache"


def slow_replays(torch_cuda: FakeTorchCuda) -> None:
    """A stand-in graph computes nothing, so make its replays as long as they have to be."""
    note = torch_cuda.note

    def slowly(what: str) -> None:
        note(what)
        if what == "replay":
            torch.cuda._sleep(1_500_000_000 * 3 // 10)

    torch_cuda.note = slowly  # type: ignore[method-assign]


def test_memory_is_weighed_from_the_level_before_the_call(torch_cuda: FakeTorchCuda) -> None:
    cell = built(PREFILL)
    cell.check()
    torch_cuda.log.clear()
    cell.weigh()
    assert torch_cuda.log == ["synchronize", "reset_peak_memory_stats", "synchronize"]


def test_samples_are_queued_between_two_synchronises(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_timing, "BATCH_S", 1e9)  # a slow machine makes no shorter batch
    cell = built(PREFILL, "events")
    cell.warm_up(0.01)
    cell.sample(1, 1e9)
    torch_cuda.log.clear()
    cell.sample(9, 1e9)
    assert torch_cuda.log[:3] == ["wait_stream", "record", "record"]
    assert torch_cuda.log[3] == "synchronize"
    rest = torch_cuda.log[4:]
    assert rest[:16] == ["record"] * 16
    assert rest[16] == "synchronize"


def test_a_workload_keeps_its_mode_from_visit_to_visit(torch_cuda: FakeTorchCuda) -> None:
    torch_cuda.can_capture = False
    device = device_on_cpu()
    modes = []
    for _ in range(2):
        cell = device.build(PREFILL, seed=7)
        cell.warm_up(0.01)
        modes.append(cell.sample(3, 5.0).mode)
        cell.close()
    assert modes[0] == modes[1] == device.modes[PREFILL.workload_id]


def test_a_mode_that_does_not_serve_is_an_unsupported_record(torch_cuda: FakeTorchCuda) -> None:
    torch_cuda.can_capture = False
    cell = built(PREFILL, "graph")
    cell.warm_up(0.01)
    with pytest.raises(UnsupportedError, match="'graph'"):
        cell.sample(3, 5.0)


def test_a_growing_cache_is_stepped_by_the_host_clock(torch_cuda: FakeTorchCuda) -> None:
    workload = Workload(
        backend="math", phase="kv-growth", q_len=1, kv_len=12, start_len=4, num_q_heads=2,
        num_kv_heads=2, head_dim=8, kv_cache="contiguous",
    )  # fmt: skip
    cell = built(workload)
    points = cell.grow(10.0)
    assert [point.kv_len for point in points] == list(range(5, 13))
    assert all(point.wall_s > 0 and point.cpu_s is None for point in points)
    assert cell.check().passed  # built again, after the growth had the room


def test_an_error_of_the_device_is_let_through_where_it_shows(torch_cuda: FakeTorchCuda) -> None:
    device = device_on_cpu()
    torch_cuda.fails_next = torch.AcceleratorError("CUDA error: an illegal memory access")
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        device.build(PREFILL, seed=7)


def test_a_full_memory_says_what_was_asked_for(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: AttentionOp, inputs: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")

    cell = built(PREFILL)
    monkeypatch.setattr(AttentionOp, "run", full)
    with pytest.raises(OutOfMemoryError) as raised:
        cell.warm_up(0.01)
    assert raised.value.requested_bytes == 20 * 2**20


class HotSensors:
    """A card that throttles, and whose counter goes up by 90 J for each second asked for."""

    energy_source = "nvml"

    def __init__(self) -> None:
        self.num_reads = 0

    def read(self) -> Reading:
        return Reading(reasons=0x40, sm_clock_hz=1.5e9)

    def energy_j(self) -> float | None:
        self.num_reads += 1
        return float(self.num_reads)

    def process_bytes(self) -> int | None:
        return 4096

    def facts(self) -> dict[str, Any]:
        return {"driver": "580.65", "max_sm_clock_hz": 1.98e9}


def test_sensors_reach_samples_memory_facts_and_energy(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[float | None] = []

    def window(counter: Any, run: Callable[[], int], *, idle_w: float | None) -> None:
        windows.append(idle_w)
        assert run() >= 1

    monkeypatch.setattr(cuda, "idle_watts", lambda counter: 70.0)
    monkeypatch.setattr(cuda, "energy_of", window)
    device = device_on_cpu("events", HotSensors())
    cell = device.build(PREFILL, seed=7)
    cell.warm_up(0.01)
    samples = cell.sample(4, 0.2)
    assert "throttled" in samples.flags
    assert samples.cycles == pytest.approx([1.5e9 * wall_s for wall_s in samples.wall_s])
    assert cell.weigh().process_bytes == 4096
    assert device.facts()["driver"] == "580.65"
    cell.energy()
    assert windows == [70.0]
    device.weighs_energy = False
    assert cell.energy() is None
    device.telemetry.close()


# The bindings


def test_clones_of_a_layer_share_no_memory(torch_cuda: FakeTorchCuda) -> None:
    gpu = TorchGpu(CPU, SMALL_L2)
    for kv_cache in ("contiguous", "static", "paged"):
        workload = Workload(
            backend="math", phase="decode", q_len=1, kv_len=40, num_q_heads=2, num_kv_heads=2,
            head_dim=8, kv_cache=kv_cache,
        )  # fmt: skip
        op = AttentionOp(workload, CPU, 3)
        with gpu.on_stream():
            copies = gpu.clone(op.inputs)
        with op.active():
            expected = op()
            op.inputs = copies
            assert torch.equal(op(), expected)
        op.inputs = AttentionOp(workload, CPU, 3).inputs
        first, second = tensors_of(op.inputs), tensors_of(copies)
        assert len(first) == len(second) >= 5
        assert not {t.data_ptr() for t in first} & {t.data_ptr() for t in second}


def tensors_of(held: Any) -> list[Any]:
    """The tensors that are held at any depth."""
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, list | tuple):
        return [tensor for one in held for tensor in tensors_of(one)]
    return tensors_of(list(vars(held).values())) if hasattr(held, "__dict__") else []


def test_a_spin_is_never_shorter_than_asked(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    gpu = TorchGpu(CPU, SMALL_L2, max_clock_hz=3e12)  # over what the stand-in reaches
    monkeypatch.setattr(torch.cuda, "_sleep", asked.append)
    gpu.spin(1e-3)
    assert asked == [3_000_000_000]


def test_without_torchs_private_spin_there_is_no_backlog_by_spin(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cuda, "_sleep")
    assert not TorchGpu(CPU, SMALL_L2).can_spin


def test_the_flush_buffer_is_int32_and_twice_the_l2(torch_cuda: FakeTorchCuda) -> None:
    gpu = TorchGpu(CPU, SMALL_L2)
    gpu._flush.fill_(1)
    gpu.clear_cache()
    assert gpu._flush.dtype == torch.int32
    assert gpu._flush.nbytes == 2 * SMALL_L2
    assert not gpu._flush.any()


def test_a_refused_capture_is_told_from_a_broken_device(torch_cuda: FakeTorchCuda) -> None:
    gpu = TorchGpu(CPU, SMALL_L2)
    torch_cuda.can_capture = False
    assert gpu.capture(lambda: None) is None
    torch_cuda.fails_next = RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        gpu.capture(lambda: None)


def test_ceilings_and_rulers_are_timed_by_events(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_roofs, "MATMUL_SIZES", {"float32": 32, "bfloat16": 32})
    monkeypatch.setattr(cuda_roofs, "COPY_BYTES", 4096)
    monkeypatch.setattr(cuda_roofs, "RULER_SIZE", 16)
    device = device_on_cpu()
    roofs = device.ceilings(("float32", "bfloat16"))
    assert roofs["copy_bytes_per_s"] > 0
    assert set(roofs["matmul"]) == {"float32", "bfloat16"}
    assert set(roofs["matmul"]["float32"]) == {"flops_per_s", "flops_per_cpu_s"}
    assert set(device.rulers()) == {"matmul_s", "copy_s"}


def test_a_dtype_that_the_device_cannot_multiply_is_left_out(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_roofs, "COPY_BYTES", 4096)
    monkeypatch.setattr(cuda_roofs, "MATMUL_SIZES", {"float8_e5m2": 4, "float16": 4})

    def refuse(*_: object, **options: object) -> None:
        raise RuntimeError("not implemented for this device")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    assert set(device_on_cpu().ceilings(("float8_e5m2", "float16"))["matmul"]) == {"float16"}


def test_an_8_bit_product_is_asked_for_as_torch_wants_it(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_roofs, "MATMUL_SIZES", {"float8_e4m3fn": 32})
    monkeypatch.setattr(cuda_roofs, "COPY_BYTES", 4096)
    assert set(device_on_cpu().ceilings(("float8_e4m3fn",))["matmul"]) == {"float8_e4m3fn"}


# Opening


def test_a_device_is_opened_by_name_and_described(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cpu(monkeypatch)
    device = open_device("cuda:1", None, allow_shared=True)
    facts = device.facts()
    assert device.kind == "cuda"
    assert facts["name"] == "NVIDIA H100 80GB HBM3"
    assert facts["architecture"] == "sm_90"
    assert facts["capability"] == "9.0"
    assert facts["num_sms"] == 132
    assert facts["l2_bytes"] == 50 * 2**20
    assert facts["memory_bytes"] == 85_520_809_984
    assert facts["driver"] is None
    assert facts["environment"]["CUDA_SCALE_LAUNCH_QUEUES"] == "4x"
    assert device.free_bytes() == 8 * 2**30 + 5000 - 1000


def pretend_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are opened on the CPU, whatever their number."""
    monkeypatch.setattr(torch, "device", lambda *_: CPU)
    monkeypatch.setenv("CUDA_SCALE_LAUNCH_QUEUES", "4x")


def test_a_device_that_another_process_holds_is_refused(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cpu(monkeypatch)
    uuid = f"GPU-{properties().uuid}"
    monkeypatch.setattr(cuda, "nvml_holders", lambda: {uuid: (1, 4242), "GPU-else": (7,)})
    monkeypatch.setattr(cuda, "strangers", lambda pids: tuple(p for p in pids if p > 1))
    with pytest.raises(CannotMeasureError, match="busy device: cuda is held by process 4242"):
        open_cuda("cuda", {})
    shared = open_cuda("cuda", {"allow_shared": True})
    assert shared.facts()["shared_with_pids"] == [4242]


def test_holders_are_listed_before_the_device_is_touched(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cpu(monkeypatch)
    asked: list[str] = []

    def holders() -> dict[str, tuple[int, ...]]:
        asked.append("holders")
        return {}

    def context(index: int) -> object:
        asked.append("context")
        return properties()

    monkeypatch.setattr(cuda, "nvml_holders", holders)
    monkeypatch.setattr(torch.cuda, "get_device_properties", context)
    open_cuda("cuda", {})
    assert asked == ["holders", "context"]


@pytest.mark.parametrize(
    ("name", "device_settings", "error", "said"),
    [
        pytest.param("cuda:7", {}, CannotMeasureError, "no device 'cuda:7'", id="no such number"),
        pytest.param("cuda:x", {}, UsageError, "called 'cuda:x'", id="no number"),
        pytest.param("rocm", {}, CannotMeasureError, "not built for ROCm", id="another build"),
        pytest.param("cuda", {"modus": 1}, UsageError, "no setting 'modus'", id="setting"),
        pytest.param("cuda", {"mode": "grpah"}, UsageError, "did you mean 'graph'", id="mode"),
    ],
)
def test_what_cannot_be_opened_says_why(
    torch_cuda: FakeTorchCuda,
    name: str,
    device_settings: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        open_cuda(name, device_settings)


def test_without_a_gpu_the_device_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(CannotMeasureError, match="finds 0 CUDA devices"):
        open_device("cuda")


def test_rocm_is_known_by_its_own_names(
    torch_cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cpu(monkeypatch)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    amd = properties(
        gcnArchName="gfx942:sramecc+:xnack-", L2_cache_size=4 * 2**20,
        pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: amd)
    asked: list[str] = []
    monkeypatch.setattr(cuda, "amd_holders", dict)
    monkeypatch.setattr(cuda, "amd_sensors", asked.append)
    device = open_cuda("rocm", {})
    facts = device.facts()
    assert device.kind == "rocm"
    assert asked == ["0000:c1:00.0"]
    assert facts["architecture"] == "gfx942"
    assert facts["l2_bytes"] == 260 * 2**20, "with the Infinity Cache, which a flush must clear"
    assert facts["capability"] is None


def test_an_unknown_l2_is_unknown_and_flushed_generously() -> None:
    assert cuda_roofs.known_l2_bytes(properties(L2_cache_size=0)) is None
    assert cuda_roofs.flushed_bytes(properties(L2_cache_size=0)) == 128 * 2**20


# CUPTI


def fake_cupti(monkeypatch: pytest.MonkeyPatch, kernels: list[list[tuple[int, int]]]) -> list[str]:
    """CUPTI that shows ``kernels`` of each call, a thousand nanoseconds apart."""
    log: list[str] = []
    told: dict[str, Any] = {}
    clock = iter(range(0, 10**6, 1000))

    def flush(flag: int) -> None:
        told["completed"](
            [SimpleNamespace(start=a, end=b) for of_call in kernels for a, b in of_call]
        )

    module = ModuleType("cupti")
    module.cupti = SimpleNamespace(  # type: ignore[attr-defined]
        ActivityKind=SimpleNamespace(CONCURRENT_KERNEL=10),
        activity_register_callbacks=lambda ask, completed: told.update(completed=completed),
        activity_enable=lambda kind: log.append("enable"),
        activity_disable=lambda kind: log.append("disable"),
        activity_flush_all=flush,
        get_timestamp=lambda: next(clock),
    )
    monkeypatch.setitem(sys.modules, "cupti", module)
    return log


def test_a_cupti_span_is_from_the_first_kernel_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed = [(-500, -400)]  # outside of every bracket
    log = fake_cupti(monkeypatch, [flushed, [(100, 200), (250, 700)], [(2010, 2020)]])
    spans = cupti_spans.kernel_spans(lambda: None, lambda: None, lambda: None, 2)
    assert spans == pytest.approx([600e-9, 10e-9])
    assert log == ["enable", "disable"]


def test_a_call_of_which_cupti_saw_no_kernel_has_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupti(monkeypatch, [[(100, 200)], []])
    assert cupti_spans.kernel_spans(lambda: None, lambda: None, lambda: None, 2) is None


@pytest.mark.parametrize(("version", "serves"), [("12.9.0", False), ("13.4.0", True)])
def test_cupti_serves_from_version_13(
    monkeypatch: pytest.MonkeyPatch, version: str, serves: bool
) -> None:
    fake_cupti(monkeypatch, [])
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert cupti_spans.has_cupti() is serves


def test_a_call_takes_its_inputs_apart_so_that_they_can_be_rotated(
    torch_cuda: FakeTorchCuda,
) -> None:
    seen: list[Any] = []
    gpu = TorchGpu(CPU, SMALL_L2)
    call = Call(run=seen.append, inputs=[torch.ones(4)], bytes_touched=16)
    copy = gpu.clone(call.inputs)
    call.run(copy)
    assert seen[0] is copy
    assert copy[0].data_ptr() != call.inputs[0].data_ptr()


def test_what_flows_out_becomes_json(torch_cuda: FakeTorchCuda) -> None:
    cell = built(DECODE, "events")
    warm_up = cell.warm_up(0.01)
    for thing in (warm_up, cell.sample(2, 1.0), cell.check(), cell.weigh()):
        json.dumps(asdict(thing))
    json.dumps(device_on_cpu().facts())
