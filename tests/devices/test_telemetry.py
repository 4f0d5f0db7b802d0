"""Sensors through the bindings of NVML and amdsmi, here as they answer without a driver."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnprof.devices import telemetry
from attnprof.devices.telemetry import (
    SLOWED,
    AmdSensors,
    NvmlSensors,
    Reading,
    Telemetry,
    clocks_summary,
    nvml_holders,
    nvml_sensors,
    strangers,
)

GIBIBYTE = 2**30


class NvmlError(Exception):
    pass


def fake_nvml(**changes: Any) -> SimpleNamespace:
    """NVML of a card that is hot, with the names and units of nvidia-ml-py."""
    field = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=345_000))
    clocks = {1: 1755, 2: 2619}
    process = SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIBIBYTE)
    answers: dict[str, Any] = {
        "NVMLError": NvmlError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_FI_DEV_POWER_INSTANT": 186,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetClockInfo": lambda handle, kind: clocks[kind],
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: clocks[kind] + 1,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 71,
        "nvmlDeviceGetFieldValues": lambda handle, fields: [field],
        "nvmlDeviceGetPowerUsage": lambda handle: 300_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 12_345_678,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x20,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process],
        "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        "nvmlSystemGetDriverVersion": lambda: "580.65",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetHandleByIndex": lambda index: f"GPU-{index}",
        "nvmlDeviceGetUUID": lambda handle: handle,
        "nvmlDeviceGetCount": lambda: 2,
    }
    return SimpleNamespace(**{**answers, **changes})


def failing(*_: object) -> Any:
    raise NvmlError


def test_nvml_readings_are_in_base_units() -> None:
    sensors = NvmlSensors(fake_nvml(), "GPU-0")
    assert sensors.read() == Reading(
        reasons=0x20, sm_clock_hz=1.755e9, memory_clock_hz=2.619e9, temperature_c=71, power_w=345
    )
    assert sensors.energy_j() == pytest.approx(12_345.678)
    assert sensors.process_bytes() == 3 * GIBIBYTE
    assert sensors.facts() == {
        "driver": "580.65",
        "max_sm_clock_hz": 1.756e9,
        "max_memory_clock_hz": 2.62e9,
        "power_limit_w": 700,
        "mig": False,
    }


def test_what_nvml_refuses_is_unknown_and_never_zero() -> None:
    kept = ("NVMLError", "nvmlInit")
    refusing = {
        name: failing for name in vars(fake_nvml()) if name.startswith("nvml") and name not in kept
    }
    sensors = NvmlSensors(fake_nvml(**refusing), "GPU-0")
    assert sensors.read() == Reading()
    assert sensors.energy_j() is None
    assert sensors.process_bytes() is None
    assert set(sensors.facts().values()) == {None}


def test_older_drivers_are_asked_by_the_older_names() -> None:
    nvml = fake_nvml(
        nvmlDeviceGetCurrentClocksEventReasons=failing,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x44,
        nvmlDeviceGetFieldValues=lambda handle, fields: [SimpleNamespace(nvmlReturn=3)],
    )
    reading = NvmlSensors(nvml, "GPU-0").read()
    assert reading.reasons == 0x44
    assert reading.power_w == 300


def test_process_memory_that_the_driver_does_not_tell_is_unknown() -> None:
    other = SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=GIBIBYTE)
    hidden = SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)
    for running in ([], [other], [hidden]):
        nvml = fake_nvml(nvmlDeviceGetComputeRunningProcesses=lambda handle, r=running: r)
        assert NvmlSensors(nvml, "GPU-0").process_bytes() is None


def test_every_name_asked_of_nvml_is_in_its_binding() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in vars(fake_nvml()):
        assert hasattr(pynvml, name), name
    assert hasattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons")
    bits = {
        "SwPowerCap": telemetry.POWER_CAPPED,
        "SyncBoost": telemetry.SYNC_BOOSTED,
        "HwSlowdown": telemetry.HW_SLOWDOWN,
        "SwThermalSlowdown": telemetry.SW_THERMAL,
        "HwThermalSlowdown": telemetry.HW_THERMAL,
        "HwPowerBrakeSlowdown": telemetry.POWER_BRAKE,
    }
    for name, bit in bits.items():
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == bit


def test_without_a_driver_there_are_no_sensors_and_no_holders() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert nvml_sensors("GPU-0") is None
        assert nvml_holders() == {}
    else:
        pytest.skip("there is a driver here")


def test_holders_are_listed_by_device_and_leave_this_process_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = [SimpleNamespace(pid=7), SimpleNamespace(pid=os.getpid())]
    nvml = fake_nvml(nvmlDeviceGetComputeRunningProcesses=lambda handle: running)
    monkeypatch.setattr(telemetry, "_nvml", lambda: nvml)
    assert nvml_holders() == {"GPU-0": (7,), "GPU-1": (7,)}
    assert nvml_sensors("GPU-1") is not None


def proc_with(tmp_path: Path, parents: dict[int, int]) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("")
    for pid, parent in parents.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 0 0")
    return tmp_path


def test_workers_of_the_same_sweep_are_no_strangers(tmp_path: Path) -> None:
    ours, theirs = os.getppid(), os.getppid() + 1
    proc = proc_with(tmp_path, {os.getpid(): ours, 900_001: ours, 900_002: theirs})
    assert strangers((900_001,), proc) == ()
    assert strangers((900_001, 900_002), proc) == (900_002,)
    assert strangers((), proc) == ()


def test_numbers_of_another_namespace_pass_for_as_many_workers_as_there_are(
    tmp_path: Path,
) -> None:
    proc = proc_with(tmp_path, {os.getpid(): os.getppid(), 900_001: os.getppid()})
    assert strangers((41,), proc) == ()
    assert strangers((41, 42), proc) == (42,)
    assert strangers((900_001, 42), proc) == (42,)


def test_nobody_is_a_stranger_where_processes_cannot_be_seen(tmp_path: Path) -> None:
    assert strangers((1, 2), tmp_path) == ()


class AmdError(Exception):
    pass


def fake_amdsmi(**changes: Any) -> SimpleNamespace:
    process = {"pid": os.getpid(), "memory_usage": {"vram_mem": GIBIBYTE}}
    violations = {
        "active_ppt_pwr": True,
        "active_socket_thrm": True,
        "active_vr_thrm": True,
        "active_hbm_thrm": "N/A",
        "active_prochot_thrm": False,
    }
    power = {"current_socket_power": "N/A", "average_socket_power": 210}
    answers: dict[str, Any] = {
        "AmdSmiException": AmdError,
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
        "amdsmi_get_clock_info": lambda handle, kind: {"clk": 2100, "max_clk": "N/A"},
        "amdsmi_get_temp_metric": lambda handle, sensor, metric: 64,
        "amdsmi_get_power_info": lambda handle: power,
        "amdsmi_get_power_cap_info": lambda handle: {"power_cap": 750_000_000},
        "amdsmi_get_violation_status": lambda handle: violations,
        "amdsmi_get_energy_count": lambda handle: {
            "energy_accumulator": 1_000_000,
            "counter_resolution": 15.3,
        },
        "amdsmi_get_gpu_process_list": lambda handle: [process],
        "amdsmi_get_gpu_driver_info": lambda handle: {"driver_version": "6.10"},
        "amdsmi_get_processor_handles": lambda: ["one"],
        "amdsmi_get_gpu_device_bdf": lambda handle: "0000:C1:00.0",
    }
    return SimpleNamespace(**{**answers, **changes})


def test_amdsmi_violations_are_named_by_nvmls_bits() -> None:
    sensors = AmdSensors(fake_amdsmi(), "one")
    reading = sensors.read()
    assert reading.reasons == telemetry.POWER_CAPPED | telemetry.HW_THERMAL
    assert reading.sm_clock_hz == 2.1e9
    assert reading.power_w == 210
    assert reading.temperature_c == 64
    assert sensors.energy_j() == pytest.approx(15.3)
    assert sensors.process_bytes() == GIBIBYTE
    assert sensors.facts()["power_limit_w"] == 750
    assert sensors.facts()["max_sm_clock_hz"] is None


def test_what_amdsmi_refuses_is_unknown() -> None:
    def refuse(*_: object) -> Any:
        raise AmdError

    refusing = {name: refuse for name in vars(fake_amdsmi()) if name.startswith("amdsmi_get")}
    sensors = AmdSensors(fake_amdsmi(**refusing), "one")
    assert sensors.read() == Reading()
    assert sensors.energy_j() is None
    assert sensors.process_bytes() is None
    unknown = fake_amdsmi(amdsmi_get_violation_status=lambda handle: {"active_ppt_pwr": "N/A"})
    assert AmdSensors(unknown, "one").read().reasons is None


def test_amd_devices_are_found_by_their_pci_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_amdsmi", fake_amdsmi)
    assert telemetry.amd_sensors("0000:c1:00.0") is not None
    assert telemetry.amd_sensors("0000:c2:00.0") is None
    assert telemetry.amd_holders() == {"0000:c1:00.0": ()}


class CountingSensors:
    """Numbers its readings, and says when a thread other than the test's has asked."""

    energy_source = "nvml"

    def __init__(self) -> None:
        self.num_reads = 0
        self.was_read_aside = threading.Event()

    def read(self) -> Reading:
        self.num_reads += 1
        if threading.current_thread() is not threading.main_thread():
            self.was_read_aside.set()
        return Reading(sm_clock_hz=float(self.num_reads), reasons=SLOWED)

    def energy_j(self) -> float | None:
        return None

    def process_bytes(self) -> int | None:
        return None

    def facts(self) -> dict[str, Any]:
        return {}


def test_a_batch_holds_its_own_readings_only() -> None:
    watch = Telemetry(CountingSensors(), period_s=1e6)
    watch.begin()
    watch.look()
    watch.look()
    assert len(watch.end()) == 2
    watch.begin()
    watch.look()
    assert [reading.sm_clock_hz for reading in watch.end()] == [3.0]
    watch.close()


def test_a_helper_thread_reads_between_looks_and_ends_when_told() -> None:
    sensors = CountingSensors()
    watch = Telemetry(sensors, period_s=1e-3)
    watch.begin()
    assert sensors.was_read_aside.wait(30)
    watch.close()
    seen = sensors.num_reads
    assert len(watch.end()) == seen
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


def test_without_sensors_nothing_is_read_and_no_thread_started() -> None:
    watch = Telemetry(None)
    watch.begin()
    watch.look()
    assert watch.end() == ()
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


def test_a_summary_keeps_middles_and_every_reason() -> None:
    readings = [
        Reading(sm_clock_hz=clock * 1e9, power_w=power, reasons=reasons)
        for clock, power, reasons in ((1.0, 100.0, 1), (1.5, 200.0, 4), (1.2, 900.0, None))
    ]
    summary = clocks_summary(readings)
    assert summary is not None
    assert summary["sm_clock_hz_p50"] == 1.2e9
    assert 1.0e9 <= summary["sm_clock_hz_p5"] < 1.1e9
    assert summary["power_w"] == 200
    assert summary["reasons_mask"] == 5
    assert summary["temperature_c"] is None
    assert clocks_summary([Reading(), Reading()]) is None
