"""A workload -> all that theory says of it, as the record keeps it beside what was measured."""

from dataclasses import replace
from typing import Any

from attnprof.theory.calls import parts_of_step
from attnprof.theory.flops import op_flops
from attnprof.theory.kv_cache import cached_bytes
from attnprof.theory.memory import peak_activation_bytes
from attnprof.theory.recurrent import (
    recurrent_bytes,
    recurrent_flops,
    recurrent_weight_bytes,
    state_bytes,
    token_bytes,
)
from attnprof.theory.roofline import roofline_s
from attnprof.theory.scopes import scope_bytes, scope_flops, scope_kv_bytes, scope_weight_bytes
from attnprof.theory.traffic import attention_bytes, latent_weight_bytes, query_bytes
from attnprof.workload import Workload


def held_bytes(workload: Workload) -> int:
    """Bytes of the tensors that a workload holds between calls: what goes in, keys and values or
    the state in their place, and weights. [bytes]"""
    given = query_bytes(workload) if workload.mixer == "attention" else token_bytes(workload)
    return given + theory_weight_bytes(workload) + theory_kv_bytes(workload)


def theory_weight_bytes(workload: Workload) -> int:
    """Bytes of all weights: of attention alone those of a latent, if it has one. [bytes]"""
    if workload.mixer != "attention":
        return recurrent_weight_bytes(workload)
    if workload.scope != "op":
        return scope_weight_bytes(workload)
    return latent_weight_bytes(workload)


def theory_kv_bytes(workload: Workload) -> int:
    """Bytes of the keys and values of all sequences and layers at ``kv_len``, scales included, or
    of the state in their place; slots without a token are left out. [bytes]"""
    if workload.mixer != "attention":
        return state_bytes(workload)
    if workload.scope != "op":
        return scope_kv_bytes(workload)
    return sum(cached_bytes(part) for part in parts_of_step(workload))


def timed_step(workload: Workload) -> Workload:
    """What one timed call computes.

    The workload itself; of a growing one the step in the middle of its growth, where the median of
    its step times falls.
    """
    if workload.start_len is None:
        return workload
    return step_of_growth(workload, (workload.start_len + 1 + workload.kv_len) // 2)


def step_of_growth(workload: Workload, kv_len: int) -> Workload:
    """The call by which a growing workload brings token ``kv_len``, over the source of its end."""
    step = workload.step(kv_len)
    if workload.model is None:
        return step
    return replace(step, source_len=workload.source_len or workload.kv_len)


def call_flops(workload: Workload) -> int:
    """FLOP of one timed call, over all layers. [FLOP]"""
    step = timed_step(workload)
    if step.mixer != "attention":
        return recurrent_flops(step)
    return op_flops(step) if step.scope == "op" else scope_flops(step)


def call_bytes(workload: Workload) -> int:
    """Bytes that one timed call needs to move, over all layers. [bytes]"""
    step = timed_step(workload)
    if step.mixer != "attention":
        return recurrent_bytes(step)
    return attention_bytes(step) if step.scope == "op" else scope_bytes(step)


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
    flops, bytes_moved = call_flops(workload), call_bytes(workload)
    peak_bytes: int | None = None
    if workload.mixer == "attention":
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
