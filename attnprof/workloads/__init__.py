"""Workloads as real tensors: what is computed, for every torch device alike."""

from typing import TYPE_CHECKING

from attnprof.workload import Workload

if TYPE_CHECKING:
    import torch

    from attnprof.workloads.growth import Grower
    from attnprof.workloads.operation import Operation


def build_operation(
    workload: Workload, device: "torch.device", seed: int, kind: str | None = None
) -> "Operation":
    """What ``workload`` computes, by its scope, with its tensors.

    Raises:
        UnsupportedError: The backend or the device lacks something.
        OutOfMemoryError: There is no room.
    """
    if workload.mixer != "attention":
        from attnprof.workloads.recurrent import RecurrentOp

        return RecurrentOp(workload, device, seed, kind)
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
    from attnprof.workloads.op_growth import OpGrower

    return OpGrower(workload, device, seed, kind)
