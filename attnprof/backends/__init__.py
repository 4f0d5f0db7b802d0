"""Kernels that compute attention, found by name.

Each has a module with ``prepare(workload, device) -> Attention``; its line in the table of
:mod:`attnprof.backends.support` says what it can do. Importing this package does not import torch.
"""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnprof.backends.support import BACKENDS, Backend, backend_named, unsupported_reason
from attnprof.errors import UnsupportedError
from attnprof.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["BACKENDS", "Attention", "Backend", "backend_named", "prepare", "unsupported_reason"]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """A kernel made ready for one workload.

    ``attend`` takes queries ``[batch, num_q_heads, q_len, head_dim]``, keys and values ``[batch,
    num_kv_heads, kv_len, head_dim]`` and gives ``[batch, num_q_heads, q_len, head_dim]``. It is
    called inside ``pinned()``, which is entered once around many calls: choosing the kernel costs
    as much as a small call.
    """

    attend: "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"
    pinned: Callable[[], AbstractContextManager[object]] = nullcontext
    operators: tuple[str, ...] = ()  # one of torch's operators that begin so must be seen to run
    compiles: bool = False  # the first call compiles, and is preparation
    mask_bytes: int = 0  # of the mask that is held between calls


def prepare(workload: Workload, device: "torch.device", kind: str | None = None) -> Attention:
    """The kernel that ``workload`` names, for its variant and shape.

    Args:
        kind: Of the device, where it is not torch's name for it (``rocm`` runs as ``cuda``).

    Raises:
        UnsupportedError: The backend lacks something, or is not installed.
    """
    reason = unsupported_reason(workload, kind or device.type)
    if reason is not None:
        raise UnsupportedError(reason)
    backend = backend_named(workload.backend)
    if not backend.installed:
        raise UnsupportedError(f"{backend.name} is not installed", f"pip install {backend.package}")
    attention: Attention = importlib.import_module(backend.module).prepare(workload, device)
    return attention
