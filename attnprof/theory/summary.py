"""A workload -> all that theory says of it, as the record keeps it beside what was measured."""

from typing import Any

from attnprof.theory.flops import attention_flops
from attnprof.theory.kv_cache import kv_bytes
from attnprof.theory.memory import peak_activation_bytes
from attnprof.theory.recurrent import (
    recurrent_bytes,
    recurrent_flops,
    recurrent_weight_bytes,
    state_bytes,
    token_bytes,
)
from attnprof.theory.roofline import roofline_s
from attnprof.theory.traffic import attention_bytes, query_bytes
from attnprof.workload import Workload


def held_bytes(workload: Workload) -> int:
    """Bytes of the tensors that a workload holds between calls: queries, keys and values; of a
    layer in attention's place its weights, tokens and state."""
    if workload.mixer != "attention":
        return recurrent_weight_bytes(workload) + token_bytes(workload) + state_bytes(workload)
    return query_bytes(workload) + theory_kv_bytes(workload)


def theory_kv_bytes(workload: Workload) -> int:
    """Bytes of the keys and values of all sequences and layers at ``kv_len``, or of the state in
    their place. [bytes]"""
    if workload.mixer != "attention":
        return state_bytes(workload)
    return kv_bytes(
        workload.batch_size * workload.kv_len,
        num_layers=workload.num_layers,
        num_kv_heads=workload.num_kv_heads,
        head_dim=workload.head_dim,
        dtype=workload.cached_dtype,
    )


def timed_step(workload: Workload) -> Workload:
    """What one timed call computes.

    The workload itself; of a growing one the step in the middle of its growth, where the median of
    its step times falls.
    """
    if workload.start_len is None:
        return workload
    return workload.step((workload.start_len + 1 + workload.kv_len) // 2)


def theory_of(
    workload: Workload,
    device_kind: str,
    threads: int | None = None,
    ceilings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """FLOP, bytes and the roofline's time of one timed call; unknown is None.

    Args:
        ceilings: As :meth:`attnprof.devices.base.Device.ceilings` gives them.
    """
    step = timed_step(workload)
    peak_bytes: int | None
    if workload.mixer != "attention":
        flops, bytes_moved, peak_bytes = recurrent_flops(step), recurrent_bytes(step), None
    else:
        flops = workload.num_layers * attention_flops(step.shape, step.mask)
        bytes_moved = attention_bytes(step)
        peak_bytes = peak_activation_bytes(workload, device_kind, threads or 1)
    roofs = ceilings or {}
    matmul = roofs.get("matmul", {}).get(workload.dtype, {})
    return {
        "flops": flops,
        "bytes_moved": bytes_moved,
        "theory_kv_bytes": theory_kv_bytes(workload),
        "theory_peak_activation_bytes": peak_bytes,
        "theory_s": roofline_s(
            flops, bytes_moved, matmul.get("flops_per_s"), roofs.get("copy_bytes_per_s")
        ),
    }
