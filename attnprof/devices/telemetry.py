"""A GPU's own sensors into readings: clocks, throttling, temperature, power, who else is there.

NVML (package nvidia-ml-py) and, optionally, amdsmi. What a driver does not tell is None.
"""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

# Bits of NVML's clock event reasons, the same since they were called throttle reasons.
POWER_CAPPED = 0x04  # normal for a large prefill: recorded, nothing is dropped
SYNC_BOOSTED = 0x10
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x08, 0x20, 0x40, 0x80
SLOWED = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE

SAMPLE_PERIOD_S = 0.07
MAX_READINGS = 10_000


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The sensors at one instant; None where the driver does not tell."""

    reasons: int | None = None  # bits, by NVML's names
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class Sensors(Protocol):
    """One device's sensors. No method raises; what cannot be read is None."""

    energy_source: str

    def read(self) -> Reading: ...

    def energy_j(self) -> float | None:
        """The cumulative energy counter; only differences mean something."""

    def process_bytes(self) -> int | None:
        """Device memory of this process, context and libraries included."""

    def facts(self) -> dict[str, Any]: ...


def reasons_seen(readings: Iterable[Reading]) -> int:
    """All reasons of all readings together; none known is none seen."""
    seen = 0
    for reading in readings:
        seen |= reading.reasons or 0
    return seen


def sm_clock_hz(readings: Iterable[Reading]) -> float | None:
    """Median SM clock of the readings. [Hz]"""
    clocks = [reading.sm_clock_hz for reading in readings if reading.sm_clock_hz is not None]
    return median(clocks) if clocks else None


def clocks_summary(readings: list[Reading]) -> dict[str, Any] | None:
    """What a record keeps of the readings, or None when nothing was read.

    >>> clocks_summary([])
    >>> clocks_summary([Reading(sm_clock_hz=1.5e9, reasons=1), Reading(reasons=4)])["reasons_mask"]
    5
    """
    if all(reading == Reading() for reading in readings):
        return None

    def middle(name: str) -> float | None:
        values = [getattr(reading, name) for reading in readings]
        known = [value for value in values if value is not None]
        return median(known) if known else None

    clocks = [reading.sm_clock_hz for reading in readings if reading.sm_clock_hz is not None]
    known = any(reading.reasons is not None for reading in readings)
    return {
        "sm_clock_hz_p5": quantiles(clocks, n=20, method="inclusive")[0]
        if len(clocks) > 1
        else middle("sm_clock_hz"),
        "sm_clock_hz_p50": middle("sm_clock_hz"),
        "memory_clock_hz": middle("memory_clock_hz"),
        "temperature_c": middle("temperature_c"),
        "power_w": middle("power_w"),
        "reasons_mask": reasons_seen(readings) if known else None,
    }


class Telemetry:
    """Reads sensors from a helper thread, and once a batch from the one that measures."""

    def __init__(self, sensors: Sensors | None, period_s: float = SAMPLE_PERIOD_S) -> None:
        self._sensors = sensors
        self._period_s = period_s
        self._lock = threading.Lock()
        self._readings: list[Reading] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A batch begins: forget what was seen before it."""
        with self._lock:
            self._readings.clear()
        if self._sensors is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Read the sensors now."""
        if self._sensors is None:
            return
        reading = self._sensors.read()
        with self._lock:
            if len(self._readings) < MAX_READINGS:
                self._readings.append(reading)

    def end(self) -> tuple[Reading, ...]:
        """What was seen since :meth:`begin`."""
        with self._lock:
            return tuple(self._readings)

    def close(self) -> None:
        """End the helper thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            self.look()


class NvmlSensors:
    """NVIDIA's management library on one device."""

    energy_source = "nvml"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, or None: a driver lacks calls, a virtual machine forbids them."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return None

    def read(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        return Reading(
            reasons=self._reasons(),
            sm_clock_hz=_scaled(
                self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)), 1e6
            ),
            memory_clock_hz=_scaled(
                self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)), 1e6
            ),
            temperature_c=_scaled(
                self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            power_w=_scaled(self._power_mw(), 1e-3),
        )

    def energy_j(self) -> float | None:
        read = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        return _scaled(self._ask(lambda: read(self._handle)), 1e-3)

    def process_bytes(self) -> int | None:
        running = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        for process in running or ():
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return None  # another PID namespace, or a driver that does not tell

    def facts(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle

        def clock(kind: int) -> float | None:
            return _scaled(self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, kind)), 1e6)

        mig = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle))
        return {
            "driver": self._ask(nvml.nvmlSystemGetDriverVersion),
            "max_sm_clock_hz": clock(nvml.NVML_CLOCK_SM),
            "max_memory_clock_hz": clock(nvml.NVML_CLOCK_MEM),
            "power_limit_w": _scaled(
                self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)), 1e-3
            ),
            "mig": None if mig is None else bool(mig[0]),
        }

    def _reasons(self) -> int | None:
        nvml, handle = self._nvml, self._handle
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is None:  # drivers before 535 know the older name only
            reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return None if reasons is None else int(reasons)

    def _power_mw(self) -> float | None:
        """The instant field: the usual power reading is a mean over about a second."""
        nvml, handle = self._nvml, self._handle
        fields = self._ask(
            lambda: nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        )
        if fields is not None and fields[0].nvmlReturn == 0:
            return float(fields[0].value.uiVal)
        power_mw: float | None = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return power_mw


class AmdSensors:
    """AMD's management library on one device. Violations are named by NVML's bits."""

    energy_source = "amdsmi"

    def __init__(self, smi: Any, handle: Any) -> None:
        self._smi = smi
        self._handle = handle

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (self._smi.AmdSmiException, AttributeError):
            return None

    def read(self) -> Reading:
        smi, handle = self._smi, self._handle
        power = self._ask(lambda: smi.amdsmi_get_power_info(handle)) or {}
        watts = _number(power.get("current_socket_power"))
        if watts is None:
            watts = _number(power.get("average_socket_power"))
        return Reading(
            reasons=self._reasons(),
            sm_clock_hz=self._clock_hz("GFX"),
            memory_clock_hz=self._clock_hz("MEM"),
            temperature_c=_number(
                self._ask(
                    lambda: smi.amdsmi_get_temp_metric(
                        handle,
                        smi.AmdSmiTemperatureType.HOTSPOT,
                        smi.AmdSmiTemperatureMetric.CURRENT,
                    )
                )
            ),
            power_w=watts,
        )

    def energy_j(self) -> float | None:
        count = self._ask(lambda: self._smi.amdsmi_get_energy_count(self._handle))
        if count is None:
            return None
        return float(count["energy_accumulator"]) * float(count["counter_resolution"]) * 1e-6

    def process_bytes(self) -> int | None:
        running = self._ask(lambda: self._smi.amdsmi_get_gpu_process_list(self._handle))
        for process in running or ():
            if process["pid"] == os.getpid():
                return int(process["memory_usage"]["vram_mem"])
        return None

    def facts(self) -> dict[str, Any]:
        smi, handle = self._smi, self._handle
        driver = self._ask(lambda: smi.amdsmi_get_gpu_driver_info(handle)) or {}
        power = self._ask(lambda: smi.amdsmi_get_power_cap_info(handle)) or {}
        return {
            "driver": driver.get("driver_version"),
            "max_sm_clock_hz": self._clock_hz("GFX", "max_clk"),
            "max_memory_clock_hz": self._clock_hz("MEM", "max_clk"),
            "power_limit_w": _scaled(_number(power.get("power_cap")), 1e-6),
            "mig": None,
        }

    def _clock_hz(self, domain: str, key: str = "clk") -> float | None:
        smi, handle = self._smi, self._handle
        clock = self._ask(
            lambda: smi.amdsmi_get_clock_info(handle, getattr(smi.AmdSmiClkType, domain))
        )
        return None if clock is None else _scaled(_number(clock.get(key)), 1e6)

    def _reasons(self) -> int | None:
        status = self._ask(lambda: self._smi.amdsmi_get_violation_status(self._handle))
        if status is None:
            return None
        bits = {
            "active_ppt_pwr": POWER_CAPPED,
            "active_socket_thrm": HW_THERMAL,
            "active_vr_thrm": HW_THERMAL,
            "active_hbm_thrm": HW_THERMAL,
            "active_prochot_thrm": HW_SLOWDOWN,
        }
        known = {key: status[key] for key in bits if isinstance(status.get(key), bool | int)}
        if not known:
            return None
        return sum({bits[key] for key, active in known.items() if active})


def nvml_sensors(uuid: str) -> NvmlSensors | None:
    """Sensors of the device with this UUID (``GPU-…`` or ``MIG-…``); None without NVML."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return NvmlSensors(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None


def amd_sensors(bdf: str) -> AmdSensors | None:
    """Sensors of the device at this PCI address (``0000:03:00.0``); None without amdsmi."""
    smi = _amdsmi()
    if smi is None:
        return None
    try:
        for handle in smi.amdsmi_get_processor_handles():
            if smi.amdsmi_get_gpu_device_bdf(handle).lower() == bdf.lower():
                return AmdSensors(smi, handle)
    except smi.AmdSmiException:
        pass
    return None


def nvml_holders() -> dict[str, tuple[int, ...]]:
    """Processes that hold each NVIDIA device, by its UUID.

    To be asked before this process opens a device: in a container NVML tells process numbers of
    the host, so afterwards this process could not be told from another.
    """
    nvml = _nvml()
    holders: dict[str, tuple[int, ...]] = {}
    if nvml is None:
        return holders
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError:
            continue
        holders[uuid] = tuple(process.pid for process in running if process.pid != os.getpid())
    return holders


def amd_holders() -> dict[str, tuple[int, ...]]:
    """Processes that hold each AMD device, by its PCI address; as :func:`nvml_holders`."""
    smi = _amdsmi()
    holders: dict[str, tuple[int, ...]] = {}
    if smi is None:
        return holders
    try:
        for handle in smi.amdsmi_get_processor_handles():
            running = smi.amdsmi_get_gpu_process_list(handle)
            holders[smi.amdsmi_get_gpu_device_bdf(handle).lower()] = tuple(
                process["pid"]
                for process in running
                if process["pid"] != os.getpid() and process["memory_usage"]["vram_mem"]
            )
    except smi.AmdSmiException:
        pass
    return holders


def strangers(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Those of the processes that are not workers of the same sweep, children of one parent.

    Numbers that this process cannot see are of another namespace: in a container they may be the
    workers' own, so as many of them as there are other workers pass for those. Nobody is a
    stranger where the system has no ``/proc``.
    """
    if not (proc / "self").exists():
        return ()
    workers = _siblings(proc)
    seen = [pid for pid in pids if (proc / str(pid)).exists()]
    unseen = [pid for pid in pids if pid not in seen]
    num_workers_seen = sum(1 for pid in seen if pid in workers)
    num_workers_left = len(workers) - num_workers_seen
    return (*(pid for pid in seen if pid not in workers), *unseen[num_workers_left:])


def _siblings(proc: Path) -> set[int]:
    """Other children of this process's parent."""
    parent = os.getppid()
    found = set()
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            # The name, which may hold anything, is in parentheses; state and parent come after.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if len(fields) > 1 and int(fields[1]) == parent:
            found.add(int(folder.name))
    return found


def _nvml() -> Any:
    """The NVML binding, ready for use; None without the package or the driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _amdsmi() -> Any:
    """The amdsmi binding, ready for use; None without the package, its library or a device."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that its library is missing
            import amdsmi
    except (ImportError, OSError, KeyError, AttributeError):
        return None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None
    return amdsmi


def _number(value: Any) -> float | None:
    """amdsmi says ``"N/A"`` for what it does not know."""
    return float(value) if isinstance(value, int | float) else None


def _scaled(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else float(value) * factor
