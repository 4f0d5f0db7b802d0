"""CUDA and ROCm devices through torch: opened, described, and their cells timed and weighed.

What is computed is in :mod:`attnprof.workloads`, how it is timed in
:mod:`attnprof.devices.cuda_timing`. An error of the device other than a full memory is let through:
a CUDA error is sticky, so the worker that saw one has to end.
"""

import atexit
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from attnprof.devices.cuda_roofs import cuda_ceilings, cuda_facts, cuda_rulers, flushed_bytes
from attnprof.devices.cuda_timing import MODES, CudaTimer
from attnprof.devices.energy import energy_of, idle_watts
from attnprof.devices.gpu import Call
from attnprof.devices.telemetry import (
    Sensors,
    Telemetry,
    amd_holders,
    amd_sensors,
    nvml_holders,
    nvml_sensors,
    strangers,
)
from attnprof.devices.torch_gpu import TorchGpu
from attnprof.errors import CannotMeasureError, UsageError, nearest
from attnprof.measured import Check, Energy, GrowthPoint, Memory, Part, Samples, WarmUp
from attnprof.theory.summary import held_bytes
from attnprof.theory.traffic import attention_bytes, query_bytes
from attnprof.workload import Workload
from attnprof.workloads import build_operation
from attnprof.workloads.growth import grow
from attnprof.workloads.operation import Operation

SETTINGS = ("allow_shared", "energy", "mode")
ENERGY_CHUNK_S = 0.02  # shorter than a step of the energy counter


def open_cuda(name: str, settings: dict[str, Any]) -> "CudaDevice":
    """The device called ``cuda``, ``cuda:1`` or ``rocm``.

    Args:
        settings: ``allow_shared`` to measure beside other processes, ``energy`` (on by default),
            ``mode`` to time everything in one of ``MODES``.

    Raises:
        UsageError: A name or a setting that makes no sense.
        CannotMeasureError: Torch finds no such device, or another process holds it.
    """
    for key in settings:
        if key not in SETTINGS:
            raise UsageError(f"a CUDA device has no setting {key!r}", nearest(key, SETTINGS))
    mode = settings.get("mode")
    if mode is not None and mode not in MODES:
        raise UsageError(f"unknown timing mode {mode!r}", nearest(str(mode), MODES))
    os.environ.setdefault("CUDA_SCALE_LAUNCH_QUEUES", "4x")  # read when the driver starts
    index = _index(name)
    is_amd = torch.version.hip is not None
    holders = amd_holders() if is_amd else nvml_holders()
    properties = torch.cuda.get_device_properties(index)
    addresses = _pci_addresses(properties) if is_amd else _uuids(properties)
    held_by = next((holders[address] for address in addresses if address in holders), ())
    pids = strangers(held_by)
    if pids and not settings.get("allow_shared", False):
        raise CannotMeasureError(
            f"busy device: {name} is held by process {', '.join(map(str, pids))}",
            "end it, use another device, or pass --allow-shared and mistrust the numbers",
        )
    find = amd_sensors if is_amd else nvml_sensors
    found: list[Sensors] = [s for s in map(find, addresses) if s is not None]
    return CudaDevice(
        torch.device("cuda", index),
        properties,
        found[0] if found else None,
        mode=mode,
        weighs_energy=bool(settings.get("energy", True)),
        shared_with=pids,
    )


def _index(name: str) -> int:
    """The number of the device in torch's list, after a look whether it is there."""
    kind, _, number = name.partition(":")
    if number and not number.isdecimal():
        raise UsageError(f"no device is called {name!r}", f"use {kind}, or {kind}:0")
    if kind == "rocm" and torch.version.hip is None:
        raise CannotMeasureError(
            f"this torch ({torch.__version__}) is not built for ROCm", "install one that is"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise CannotMeasureError(
            f"no device {name!r} here: torch {torch.__version__} finds {count} CUDA devices",
            "use --device cpu, or install a torch build and a driver for this GPU",
        )
    return int(number or 0)


def _uuids(properties: Any) -> list[str]:
    """By what NVML may know the device: a card, or a slice of one."""
    uuid = getattr(properties, "uuid", None)
    return [] if uuid is None else [f"GPU-{uuid}", f"MIG-{uuid}"]


def _pci_addresses(properties: Any) -> list[str]:
    try:
        domain, bus = properties.pci_domain_id, properties.pci_bus_id
        return [f"{domain:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"]
    except AttributeError:
        return []  # torch before 2.6 does not tell


class CudaDevice:
    """One GPU, with its side stream, its flush buffer and its sensors."""

    def __init__(
        self,
        device: torch.device,
        properties: Any,
        sensors: Sensors | None,
        *,
        mode: str | None = None,
        weighs_energy: bool = True,
        shared_with: tuple[int, ...] = (),
    ) -> None:
        self.kind = "rocm" if torch.version.hip is not None else "cuda"
        self.device = device
        self.sensors = sensors
        self.weighs_energy = weighs_energy
        self.telemetry = Telemetry(sensors)
        atexit.register(self.telemetry.close)
        self.mode = mode
        self.modes: dict[str, str] = {}  # a workload keeps its mode from visit to visit
        self._properties = properties
        self._sensed = {} if sensors is None else sensors.facts()
        self._shared_with = shared_with
        self._idle_w: float | None = None
        clock_hz = self._sensed.get("max_sm_clock_hz") if torch.version.hip is None else None
        self.gpu = TorchGpu(device, flushed_bytes(properties), clock_hz)

    def facts(self) -> dict[str, Any]:
        return {
            **cuda_facts(self._properties, self._sensed),
            "shared_with_pids": list(self._shared_with),
            "spin": self.gpu.can_spin,
            "cupti": self.gpu.can_span,
        }

    def ceilings(self, dtypes: tuple[str, ...]) -> dict[str, Any]:
        return cuda_ceilings(self.gpu, self.device, dtypes, self.free_bytes())

    def rulers(self) -> dict[str, float]:
        return cuda_rulers(self.gpu, self.device)

    def free_bytes(self) -> int:
        """Of the driver, and what torch's allocator holds without needing it."""
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        return int(free_bytes + reserved - torch.cuda.memory_allocated(self.device))

    def build(self, workload: Workload, seed: int) -> "CudaCell":
        """Raises:
        UnsupportedError: The backend lacks something, in its own words.
        OutOfMemoryError: There is no room.
        """
        return CudaCell(self, workload, seed)

    def idle_w(self) -> float | None:
        """Power while nothing runs, measured once, before the first window of energy."""
        if self._idle_w is None and self.sensors is not None:
            self.gpu.synchronize()
            self._idle_w = idle_watts(self.sensors)
        return self._idle_w


class CudaCell:
    """One workload on the GPU."""

    def __init__(self, device: CudaDevice, workload: Workload, seed: int) -> None:
        self.workload = workload
        self._device = device
        self._seed = seed
        self._op: Operation | None = self._built()
        self._timer: CudaTimer | None = None
        self.prepare_s = self._op.prepare_s

    def _built(self) -> Operation:
        device = self._device
        with torch.cuda.device(device.device):
            op = build_operation(self.workload, device.device, self._seed, kind=device.kind)
        device.gpu.synchronize()  # an error of the build shows here, not in what comes next
        return op

    @property
    def op(self) -> Operation:
        """Built again after :meth:`grow`, which needs the room."""
        if self._op is None:
            self._op = self._built()
        return self._op

    @property
    def kernels(self) -> tuple[str, ...]:
        return self.op.kernels

    def check(self) -> Check:
        with torch.cuda.device(self._device.device):
            check = self.op.check()
        self._device.gpu.synchronize()
        return check

    def warm_up(self, limit_s: float) -> WarmUp:
        with self.op.active():
            return self._timed().warm_up(limit_s)

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        """Device time, in the mode that serves, and host latency beside it."""
        with self.op.active():
            timer = self._timed()
            self._device.modes[self.workload.workload_id] = timer.plan.mode
            return timer.sample(num_samples, limit_s)

    def grow(self, limit_s: float) -> tuple[GrowthPoint, ...]:
        self._forget()
        device = self._device
        with torch.cuda.device(device.device):
            return grow(
                self.workload,
                device.device,
                self._seed,
                self._timed_step,
                limit_s=limit_s,
                kind=device.kind,
            )

    def weigh(self) -> Memory:
        """The allocator's peak of one call above the level before it.

        Reserved bytes depend on what ran before and are for the reader only; memory that
        libraries take behind torch's back is in the driver's figure of the process alone.
        """
        op, device = self.op, self._device.device
        with op.active(), torch.cuda.device(device):
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            op()
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device) - before
            reserved = torch.cuda.max_memory_reserved(device)
        sensors = self._device.sensors
        return Memory(
            kv_bytes=op.kv_bytes,
            weight_bytes=op.weight_bytes,
            peak_activation_bytes=int(peak),
            meter="allocator",
            reserved_bytes=int(reserved),
            process_bytes=None if sensors is None else sensors.process_bytes(),
        )

    def parts(self, limit_s: float) -> tuple[Part, ...]:
        op = self.op
        with op.active():
            return op.parts(self._timed_step, limit_s)

    def energy(self) -> Energy | None:
        """Joules of a call over a window of 2 s; None without a counter."""
        device, op = self._device, self.op
        sensors = device.sensors if device.weighs_energy else None
        if sensors is None or sensors.energy_j() is None:
            return None
        idle_w = device.idle_w()
        with ExitStack() as stack:
            stack.enter_context(op.active())
            stack.enter_context(device.gpu.on_stream())
            op()
            call_s, _ = self._timed_step(op)
            num_calls = max(1, int(ENERGY_CHUNK_S / call_s))

            def run() -> int:
                for _ in range(num_calls):
                    op()
                device.gpu.synchronize()
                return num_calls

            return energy_of(sensors, run, idle_w=idle_w)

    def close(self) -> None:
        self._forget()

    def _timed(self) -> CudaTimer:
        if self._timer is None:
            op, workload, device = self.op, self.workload, self._device

            # Inputs alone, each once: too few bytes make a rotation longer, too many make it warm.
            touched = held_bytes(workload)
            if workload.scope == "op":
                touched = attention_bytes(workload) - query_bytes(workload)
            self._timer = CudaTimer(
                device.gpu,
                Call(run=op.run, inputs=op.inputs, bytes_touched=touched),
                device.telemetry,
                cold=workload.cache_regime == "cold",
                mode=device.mode or device.modes.get(workload.workload_id),
            )
        return self._timer

    def _timed_step(self, step: Callable[[], object]) -> tuple[float, float | None]:
        """By the host's clock, the queue emptied on both sides: what a caller waits for."""
        self._device.gpu.synchronize()
        begun_s = time.perf_counter()
        step()
        self._device.gpu.synchronize()
        return time.perf_counter() - begun_s, None

    def _forget(self) -> None:
        """Give the memory back, all work on it done."""
        self._device.gpu.synchronize()
        if self._timer is not None:
            self._timer.close()
        self._timer = self._op = None
        torch.cuda.empty_cache()
