"""A workload -> the position scheme that it names, with its tables."""

import torch

from attnprof.rope import rope_named
from attnprof.workload import Workload
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions.base import Position
from attnprof.workloads.positions.biases import Alibi, new_shaw, new_t5_bias
from attnprof.workloads.positions.embeddings import new_learned, new_sinusoids
from attnprof.workloads.positions.rotary import Rotary

__all__ = ["Position", "Rotary", "position_for"]

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
