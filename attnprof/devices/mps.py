"""Apple's GPUs through torch's MPS backend."""

from typing import Any

import torch

from attnprof.devices import cpu_meters
from attnprof.devices.host_clocked import HostClockedDevice, Runtime
from attnprof.errors import CannotMeasureError


def open_mps() -> HostClockedDevice:
    """The GPU of this Mac.

    There is no call for peak memory, so memory is sampled. What the driver holds is a reserve and
    no measure of a call.

    Raises:
        CannotMeasureError: Torch finds no such device.
    """
    if not torch.backends.mps.is_available():
        raise CannotMeasureError(
            "no MPS device here", "use --device cpu; MPS needs an Apple GPU and macOS 12.3 or later"
        )
    return HostClockedDevice(
        Runtime(
            kind="mps",
            device=torch.device("mps"),
            synchronize=torch.mps.synchronize,
            allocated_bytes=torch.mps.current_allocated_memory,
            free_bytes=_free_bytes,
            facts=_facts,
        )
    )


def _free_bytes() -> int:
    return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()


def _facts() -> dict[str, Any]:
    return {
        "name": cpu_meters.cpu_name(),
        "memory_bytes": torch.mps.recommended_max_memory(),
    }
