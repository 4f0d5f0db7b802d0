"""A workload or a configuration -> the position scheme that it names, with its tables."""

from collections.abc import Mapping
from typing import Any

import torch

from attnprof.rope import rope_named, rope_of_parameters
from attnprof.workload import Workload
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions.base import Position
from attnprof.workloads.positions.biases import Alibi, new_shaw, new_t5_bias
from attnprof.workloads.positions.embeddings import new_learned, new_sinusoids
from attnprof.workloads.positions.rotary import Rotary

__all__ = ["Position", "Rotary", "position_for", "rotary_from_config"]

FIRST_LEN = 1024
_SEED = 7919  # so that tables are other noise than the queries of the same seed


def position_for(
    workload: Workload, device: torch.device, dtype: torch.dtype, seed: int
) -> Position:
    """The scheme of ``workload``, its tables as long as its sequences and in ``dtype``.

    Of MLA it turns the part of ``rope_head_dim`` elements, which the caller cuts out.
    """
    noise = Noise(seed + _SEED, device)
    longest = max(workload.kv_len, workload.prefill_len or 0)
    match workload.position:
        case "none":
            return Position()
        case "sinusoidal":
            return new_sinusoids(longest, workload.hidden_size, device, dtype)
        case "learned":
            return new_learned(longest, workload.hidden_size, noise, dtype)
        case "shaw":
            return new_shaw(workload.head_dim, noise, dtype)
        case "t5":
            sees_later = bool(workload.mask.allows(0, 1))
            return new_t5_bias(workload.num_q_heads, sees_later, noise, dtype)
        case "alibi":
            return Alibi(workload.num_q_heads, device, dtype)
        case name:
            rope = rope_named(name, workload.rope_head_dim or workload.head_dim)
            return Rotary(rope, longest, device, dtype)


def rotary_from_config(
    parameters: Mapping[str, Any],
    rotated_dim: int,
    max_len: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Rotary:
    """The RoPE of a configuration's ``rope_parameters``.

    Args:
        max_len: Its ``max_position_embeddings``: of dynamic NTK the length beyond which it scales.
            Tables begin short and grow with the sequences.

    Raises:
        UsageError: A scaling that is not served, or a width without halves.
    """
    rope = rope_of_parameters(parameters, rotated_dim, max_len)
    return Rotary(rope, min(max_len, FIRST_LEN), device, dtype)
