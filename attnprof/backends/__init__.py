"""Kernels that compute attention, found by name.

Each has a module with ``prepare(workload, device, scale=…, bias=…) -> Attention``; its line in the
table of :mod:`attnprof.backends.support` says what it can do. Importing this package does not
import torch.
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

__all__ = [
    "BACKENDS", "Attention", "Backend", "backend_named", "ensure_supported", "prepare",
    "unsupported_reason",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Attention:
    """A kernel made ready for one workload.

    ``attend(q, k, v)`` takes queries ``[batch, num_q_heads, q_len, head_dim]``, keys ``[batch,
    num_kv_heads, keys given, head_dim]`` and values as wide as ``value_dim``, and gives ``[batch,
    num_q_heads, q_len, value_dim]``. Keys before the first that any query sees are not given.

    ``attend(q, k, v, bias=…)`` is for a bias that depends on the queries, ``attend(q, k, v,
    sinks=…)`` for ``sink_logits``: a logit a query head, ``[num_q_heads]``, that each softmax's sum
    has one term more for, and no value. A kernel that the support table gives neither takes q, k
    and v alone.

    It is called inside ``pinned()``, which is entered once around many calls: choosing the kernel
    costs as much as a small call.
    """

    attend: "Callable[..., torch.Tensor]"
    pinned: Callable[[], AbstractContextManager[object]] = nullcontext
    operators: tuple[str, ...] = ()  # one of torch's operators that begin so must be seen to run
    compiles: bool = False  # the first call compiles, and is preparation
    mask_bytes: int = 0  # of the mask and the bias that are held between calls


def prepare(
    workload: Workload,
    device: "torch.device",
    kind: str | None = None,
    *,
    scale: float | None = None,
    bias: "torch.Tensor | None" = None,
) -> Attention:
    """The kernel that ``workload`` names, for its variant and shape.

    Args:
        kind: Of the device, where it is not torch's name for it (``rocm`` runs as ``cuda``).
        scale: Of the scores; ``head_dim ** -0.5`` where it is not said.
        bias: Added to the scaled and capped scores, the same in every call; four dimensions that
            broadcast to ``[batch, num_q_heads, q_len, keys given]``.

    Raises:
        UnsupportedError: The backend lacks something, or is not installed.
    """
    ensure_supported(workload, kind or device.type)
    module = importlib.import_module(backend_named(workload.backend).module)
    if scale is None:
        scale = workload.head_dim**-0.5
    attention: Attention = module.prepare(workload, device, scale=scale, bias=bias)
    return attention


def ensure_supported(workload: Workload, kind: str) -> None:
    """Nothing, when the backend can run the workload on a device of that kind.

    Raises:
        UnsupportedError: The backend lacks something, or is not installed.
    """
    reason = unsupported_reason(workload, kind)
    if reason is not None:
        raise UnsupportedError(reason)
    backend = backend_named(workload.backend)
    if not backend.installed:
        raise UnsupportedError(f"{backend.name} is not installed", f"pip install {backend.package}")
