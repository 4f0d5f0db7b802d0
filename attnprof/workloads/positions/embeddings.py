"""Positions that are added to what a layer is given: sinusoids and trained vectors."""

import torch

from attnprof.errors import UsageError
from attnprof.workloads.operation import Noise
from attnprof.workloads.positions.base import Position


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Sines and cosines of positions by turns, ``[length, width]`` in float32.

        s(p, 2i) = sin(p·ω_i),  s(p, 2i + 1) = cos(p·ω_i),  ω_i = 10000^(−2i / width)

    Args:
        width: An even one.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10_000.0 ** (-pairs / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


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
