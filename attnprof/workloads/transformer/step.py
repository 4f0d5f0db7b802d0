"""What is computed together in one forward pass: sequences with their new tokens and caches."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from attnprof.rope import Rope
from attnprof.workloads.positions import Rotary

if TYPE_CHECKING:
    from attnprof.workloads.transformer.cross import Source
    from attnprof.workloads.transformer.kernels import Kernels

PARTS = ("embedding", "norm", "projection", "position", "cache", "attention", "ffn", "head")
"""What a step's time is divided among, in the order in which a model meets them."""

Meter = Callable[[str], AbstractContextManager[object]]  # one of PARTS -> entered around it

_NOTHING = nullcontext()


def unmetered(part: str) -> AbstractContextManager[object]:
    """The meter that measures nothing."""
    return _NOTHING


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Sequences of one length: ``num_tokens`` new ones each, the first at ``first_pos``.

    ``caches`` are those of the layers, in order; without them the new tokens see each other only.
    ``source`` is what cross-attention looks at. With a ``min_len`` the batch is padded: its
    sequences are from so many tokens long to ``num_tokens``, evenly.
    """

    batch_size: int
    num_tokens: int
    first_pos: int = 0
    caches: Sequence[Any] | None = None
    source: "Source | None" = None
    min_len: int | None = None
    token_types: torch.Tensor | None = None  # [batch, num_tokens]; all of the first type without

    @property
    def kv_len(self) -> int:
        """Tokens that the last new one may see."""
        return self.first_pos + self.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows of the hidden states ``[rows, hidden_size]`` that are this segment's."""
        return self.batch_size * self.num_tokens


class Step:
    """One forward pass over segments that share every matrix product, as in a serving engine.

    Hidden states are ``[rows, hidden_size]``, the segments' tokens one after another; only
    attention tells them apart.

    Args:
        keeps: Whether caches keep the new tokens; else the same step can be computed again.
        meter: Entered with a part's name around everything that is that part.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        kernels: "Kernels",
        rotary_of: Callable[[Rope], Rotary],
        *,
        keeps: bool = True,
        meter: Meter = unmetered,
    ) -> None:
        self.segments, self.kernels = tuple(segments), kernels
        self.keeps, self.part = keeps, meter
        self.biases: Sequence[torch.Tensor] = ()
        """What a model adds to the scores of each segment, once it has embedded the tokens."""
        self._rotary_of = rotary_of
        self._angles: dict[Rope, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    @cached_property
    def rows(self) -> list[slice]:
        """Where each segment's rows lie."""
        found, start = [], 0
        for segment in self.segments:
            found.append(slice(start, start + segment.num_rows))
            start += segment.num_rows
        return found

    def angles(self, rope: Rope) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines ``[num_tokens, 1, dim]`` of each segment, made once a step."""
        known = self._angles.get(rope)
        if known is None:
            rotary = self._rotary_of(rope)
            tables = [rotary.tables(s.first_pos, s.num_tokens) for s in self.segments]
            known = [(cos[:, None], sin[:, None]) for cos, sin in tables]
            self._angles[rope] = known
        return known
