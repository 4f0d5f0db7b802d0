"""What a law misses at measured shapes -> a correction that fades with the distance to them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnprof.laws.base import Floats

NEIGHBOURS = 8
FLOOR = 0.02  # of the weights: two doublings away from any measured shape nothing is left
_BLOCK = 1024
_MOVES = 4


@dataclass(frozen=True)
class LocalResidual:
    """Log measured over fitted at some places.

        r(x) = Σ w·r / (Σ w + 0.02),  w = exp(-distance²) over the 8 nearest

    Args:
        places: ``[N, axes]``, one step a doubling.
        residuals: ``[N]``.
    """

    places: Floats
    residuals: Floats

    def at(self, places: Floats) -> Floats:
        """The correction of a log latency at each place."""
        if len(self.places) == 0:
            return np.zeros(len(places))
        return self._average(places)

    def support(self, places: Floats) -> Floats:
        """How far each place is known, from 0 (nothing measured near) to almost 1."""
        if len(self.places) == 0:
            return np.zeros(len(places))
        return LocalResidual(self.places, np.ones(len(self.places))).at(places)

    def _average(self, places: Floats) -> Floats:
        found = []
        for block in _blocks(places):
            squares = self._squares(block)
            few = min(NEIGHBOURS, squares.shape[1])
            near = np.argpartition(squares, few - 1, axis=1)[:, :few]
            weights = np.exp(-np.maximum(np.take_along_axis(squares, near, axis=1), 0.0))
            total = weights.sum(axis=1) + FLOOR
            found.append((weights * self.residuals[near]).sum(axis=1) / total)
        return np.concatenate(found) if found else np.zeros(0)

    def _squares(self, block: Floats) -> Floats:
        own = (self.places**2).sum(axis=1)
        return np.asarray((block**2).sum(axis=1)[:, None] + own[None] - 2.0 * block @ self.places.T)


def _blocks(places: Floats) -> list[Floats]:
    return [places[i : i + _BLOCK] for i in range(0, len(places), _BLOCK)]


def in_cells(places: Floats, residuals: Floats, centres: Floats) -> LocalResidual:
    """Many residuals as the medians of a few cells, which say almost as much.

    Args:
        centres: Where the cells begin; each moves to the middle of what is nearest to it.
    """
    for _ in range(_MOVES):
        owner = _owners(places, centres)
        members = np.bincount(owner, minlength=len(centres))
        sums = np.stack(
            [np.bincount(owner, column, minlength=len(centres)) for column in places.T], axis=1
        )
        kept = members > 0
        centres = sums[kept] / members[kept, None]
    owner = _owners(places, centres)
    used = np.unique(owner)
    return LocalResidual(
        centres[used], np.array([np.median(residuals[owner == cell]) for cell in used])
    )


def _owners(places: Floats, centres: Floats) -> NDArray[np.int64]:
    squares = (centres**2).sum(axis=1)[None] - 2.0 * places @ centres.T
    return np.asarray(squares.argmin(axis=1))
