"""A workload -> the position scheme that it names, with its tables."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnprof.positions import POSITIONS
from attnprof.rope import rope_named
from attnprof.workload import Workload
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions.base import Position
from attnprof.workloads.positions.biases import Alibi, new_shaw, new_t5_bias
from attnprof.workloads.positions.embeddings import new_learned, new_sinusoids
from attnprof.workloads.positions.rotary import Rotary

__all__ = ["SCHEMES", "Position", "Rotary", "Tables", "position_for"]

_SEED = 7919  # so that tables are other noise than the queries of the same seed


@dataclass(frozen=True)
class Tables:
    """What a scheme's tables are made for and of."""

    workload: Workload
    device: torch.device
    dtype: torch.dtype
    noise: Noise

    @property
    def longest(self) -> int:
        """Tokens that have a position."""
        return max(self.workload.kv_len, self.workload.prefill_len or 0)


def _t5(tables: Tables) -> Position:
    workload = tables.workload
    sees_later = bool(workload.mask.allows(0, 1))
    return new_t5_bias(workload.num_q_heads, sees_later, tables.noise, tables.dtype)


def _rotary(tables: Tables) -> Position:
    """Of MLA the part of ``rope_head_dim`` elements, which the caller cuts out."""
    workload = tables.workload
    rope = rope_named(workload.position, workload.rope_head_dim or workload.head_dim)
    return Rotary(rope, tables.longest, tables.device, tables.dtype)


SCHEMES: dict[str, Callable[[Tables], Position]] = {
    "none": lambda tables: Position(),
    "sinusoidal": lambda tables: new_sinusoids(
        tables.longest, tables.workload.hidden_size, tables.device, tables.dtype
    ),
    "learned": lambda tables: new_learned(
        tables.longest, tables.workload.hidden_size, tables.noise, tables.dtype
    ),
    "shaw": lambda tables: new_shaw(tables.workload.head_dim, tables.noise, tables.dtype),
    "t5": _t5,
    "alibi": lambda tables: Alibi(tables.workload.num_q_heads, tables.device, tables.dtype),
    **{name: _rotary for name, one in POSITIONS.items() if one.acts == "rotation"},
}
"""What makes each scheme of :data:`attnprof.positions.POSITIONS`."""


def position_for(
    workload: Workload, device: torch.device, dtype: torch.dtype, seed: int
) -> Position:
    """The scheme of ``workload``, its tables as long as its sequences and in ``dtype``."""
    noise = Noise(seed + _SEED, device)
    return SCHEMES[workload.position](Tables(workload, device, dtype, noise))
