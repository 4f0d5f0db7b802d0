"""Intel's GPUs through torch's XPU backend."""

from functools import partial
from typing import Any

import torch

from attnprof.devices.host_clocked import HostClockedDevice, Runtime
from attnprof.errors import CannotMeasureError


def open_xpu(name: str = "xpu") -> HostClockedDevice:
    """The GPU called ``xpu`` or ``xpu:1``.

    Raises:
        CannotMeasureError: Torch finds no such device.
    """
    device = torch.device(name)
    index = device.index or 0
    count = torch.xpu.device_count() if torch.xpu.is_available() else 0
    if index >= count:
        raise CannotMeasureError(
            f"no device {name!r} here: torch finds {count} XPU devices",
            "use --device cpu, or install a torch for Intel GPUs",
        )
    return HostClockedDevice(
        Runtime(
            kind="xpu",
            device=torch.device("xpu", index),
            synchronize=partial(torch.xpu.synchronize, index),
            allocated_bytes=partial(torch.xpu.memory_allocated, index),
            free_bytes=partial(_free_bytes, index),
            facts=partial(_facts, index),
            reset_peak=partial(torch.xpu.reset_peak_memory_stats, index),
            peak_bytes=partial(torch.xpu.max_memory_allocated, index),
        )
    )


def _free_bytes(index: int) -> int:
    free_bytes: int = torch.xpu.mem_get_info(index)[0]
    return free_bytes


def _facts(index: int) -> dict[str, Any]:
    properties = torch.xpu.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_units": getattr(properties, "max_compute_units", None),
        "driver": getattr(properties, "driver_version", None),
    }
