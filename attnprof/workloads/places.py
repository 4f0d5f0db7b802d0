"""A position scheme -> what it does to rows of one head, in float64 and by formulas of its own.

For the reference: the same numbers as :mod:`attnprof.workloads.positions` gives a call, had
another way. Rotations are products of complex numbers; biases are looked up pair by pair.
"""

import torch

from attnprof.workloads.positions import Position, Rotary
from attnprof.workloads.positions.biases import Alibi, Shaw, T5Bias, alibi_slopes, t5_bucket
from attnprof.workloads.positions.rotary import attention_factor, frequencies


class Place:
    """Where the tokens of an attention are, for its reference.

    Frequencies and angles are float32 by the definition of the scheme, so they are here too; what
    is computed from them is not.
    """

    def __init__(self, position: Position | None = None) -> None:
        self._position = position

    @property
    def turns(self) -> bool:
        return isinstance(self._position, Rotary)

    @property
    def turned_dim(self) -> int:
        """Elements of a head that are turned, its first ones."""
        return self._position.rope.rotated_dim if isinstance(self._position, Rotary) else 0

    @property
    def stretch(self) -> float:
        """What turning multiplies lengths with."""
        position = self._position
        return attention_factor(position.rope) if isinstance(position, Rotary) else 1.0

    def turned(
        self, x: torch.Tensor, positions: torch.Tensor, length: int, *, back: bool = False
    ) -> torch.Tensor:
        """``x [tokens, head_dim]`` turned by the positions of its tokens.

        Args:
            length: Of the sequence, on which some scalings depend.
            back: Turn the other way, as a gradient goes.
        """
        if not isinstance(self._position, Rotary):
            return x
        rope = self._position.rope
        width = rope.rotated_dim
        pairs = torch.complex(x[:, : width // 2], x[:, width // 2 : width])
        angles = positions.float()[:, None] * frequencies(rope, length).to(x.device)
        sizes = torch.full_like(angles, attention_factor(rope), dtype=torch.float64)
        pairs = pairs * torch.polar(sizes, angles.double() * (-1 if back else 1))
        return torch.cat((pairs.real, pairs.imag, x[:, width:]), dim=1)

    def bias(
        self,
        head: int,
        q_pos: torch.Tensor,
        kv_pos: torch.Tensor,
        queries: torch.Tensor,
        scale: float,
    ) -> torch.Tensor | None:
        """What is added to the scores of one head, ``[rows, kv_len]``; None where nothing is."""
        position = self._position
        distances = kv_pos[None, :] - q_pos[:, None]
        if isinstance(position, Alibi):
            slope = alibi_slopes(len(position.slopes))[head]
            return -slope * distances.abs().double()
        if isinstance(position, T5Bias):
            table = position.table[:, head].double().to(distances.device)
            buckets = t5_bucket(
                distances, position.bidirectional, len(table), position.max_distance
            )
            return table[buckets]
        if isinstance(position, Shaw):
            clip = len(position.table) // 2
            keys = position.table.double().to(distances.device)
            return (queries @ keys.T * scale).gather(1, distances.clamp(-clip, clip) + clip)
        return None if position is None else position.bias_of(head, distances)
