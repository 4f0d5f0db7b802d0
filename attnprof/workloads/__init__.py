"""Workloads as real tensors: what is computed, for every torch device alike."""

from typing import TYPE_CHECKING

from attnprof.errors import UnsupportedError
from attnprof.workload import GROWING, Workload

if TYPE_CHECKING:
    import torch

    from attnprof.workloads.growth import Grower
    from attnprof.workloads.operation import Operation


def build_operation(
    workload: Workload, device: "torch.device", seed: int, kind: str | None = None
) -> "Operation":
    """What ``workload`` computes, by its scope, with its tensors; of a growing one its last step.

    Raises:
        UnsupportedError: The backend or the device lacks something.
        OutOfMemoryError: There is no room.
    """
    if workload.phase in GROWING:
        _refuse_unsupported(workload, kind or device.type)
        workload = workload.step(workload.kv_len)
    if workload.mixer != "attention":
        from attnprof.workloads.recurrent import RecurrentOp

        return RecurrentOp(workload, device, seed, kind)
    if workload.implementation == "transformers":
        from attnprof.workloads.library import LibraryOperation

        return LibraryOperation(workload, device, seed, kind)
    if workload.scope != "op":
        from attnprof.workloads.scopes import ScopeOperation

        return ScopeOperation(workload, device, seed, kind)
    if workload.phase == "mixed":
        from attnprof.workloads.op_mixed import MixedOp

        return MixedOp(workload, device, seed, kind)
    if workload.mla is not None:
        from attnprof.workloads.mla import MlaOp

        return MlaOp(workload, device, seed, kind)
    if workload.phase == "train":
        from attnprof.workloads.op_train import TrainOp

        return TrainOp(workload, device, seed, kind)
    from attnprof.workloads.op import AttentionOp

    return AttentionOp(workload, device, seed, kind)


def build_grower(
    workload: Workload, device: "torch.device", seed: int, kind: str | None = None
) -> "Grower":
    """What a kv-growth or generate workload computes step by step, by its scope.

    Raises:
        UnsupportedError: The backend or the device lacks something.
        OutOfMemoryError: There is no room.
    """
    _refuse_unsupported(workload, kind or device.type)
    if workload.implementation == "transformers":
        from attnprof.workloads.library import LibraryGrower

        return LibraryGrower(workload, device, seed, kind)
    if workload.scope != "op":
        from attnprof.workloads.scopes import ScopeGrower

        return ScopeGrower(workload, device, seed, kind)
    from attnprof.workloads.op_growth import OpGrower

    return OpGrower(workload, device, seed, kind)


def _refuse_unsupported(workload: Workload, kind: str) -> None:
    """Of a growing workload as a whole: each of its steps alone may be served."""
    from attnprof.backends.support import unsupported_reason

    reason = unsupported_reason(workload, kind)
    if reason is not None:
        raise UnsupportedError(reason)
