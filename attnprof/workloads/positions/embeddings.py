"""Positions that are added to what a layer is given: sinusoids and trained vectors."""

import math

import torch

from attnprof.errors import UsageError
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions.base import Position


def sinusoids(
    length: int, width: int, *, interleaved: bool = True, to_the_end: bool = False
) -> torch.Tensor:
    """Sines and cosines of positions, ``[length, width]`` in float32.

        s(p, 2i) = sin(p·ω_i),  s(p, 2i + 1) = cos(p·ω_i),  ω_i = 10000^(−2i / width)

    Args:
        interleaved: A sine, then its cosine; else all sines before all cosines, as Marian and
            Whisper have them.
        to_the_end: The last ω is 10000^−1, as in tensor2tensor, and so in Whisper.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    num_pairs = width // 2
    steps = num_pairs - 1 if to_the_end else num_pairs
    turns = torch.exp(torch.arange(num_pairs, dtype=torch.float64) * (-math.log(10_000) / steps))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * turns
    halves = (angles.sin(), angles.cos())
    laid_out = torch.stack(halves, dim=-1).flatten(-2) if interleaved else torch.cat(halves, dim=-1)
    return laid_out.float()


class Embeddings(Position):
    """A vector a position, added to each token's: fixed sinusoids or a trained table.

    Args:
        table: ``[num_positions, hidden_size]``.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Gehring et al. 2017,
        arXiv:1705.03122, section 3.1.
    """

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table

    @property
    def table_bytes(self) -> int:
        return self._table.nbytes

    def embed(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """``x`` with the vectors of its positions added.

        Raises:
            UsageError: A token beyond the table.
        """
        end, held = first + x.shape[-2], len(self._table)
        if end > held:
            raise UsageError(f"a table of {held} positions, and {end} tokens", "give fewer tokens")
        return x + self._table[first:end]


def new_sinusoids(
    max_len: int, hidden_size: int, device: torch.device, dtype: torch.dtype
) -> Embeddings:
    """Vaswani's sinusoids for sequences up to ``max_len``."""
    return Embeddings(sinusoids(max_len, hidden_size).to(device, dtype))


def new_learned(max_len: int, hidden_size: int, noise: Noise, dtype: torch.dtype) -> Embeddings:
    """A table of noise, in place of a trained one."""
    return Embeddings(noise(max_len, hidden_size, dtype=dtype))
