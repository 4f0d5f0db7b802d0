"""What a law misses at measured shapes -> a correction that fades with the distance to them."""

from dataclasses import dataclass

import numpy as np

from attnprof.laws.base import Floats

NEIGHBOURS = 8
FLOOR = 0.02  # of the weights: two doublings away from any measured shape nothing is left
_BLOCK = 1024


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
        return self._average(places, FLOOR)

    def nearest_doublings(self, places: Floats) -> Floats:
        """Distance to the nearest measured place, in doublings."""
        return np.concatenate(
            [
                np.sqrt(np.maximum(self._squares(block).min(axis=1), 0.0))
                for block in _blocks(places)
            ]
        )

    def _average(self, places: Floats, floor: float) -> Floats:
        found = []
        for block in _blocks(places):
            squares = self._squares(block)
            few = min(NEIGHBOURS, squares.shape[1])
            near = np.argpartition(squares, few - 1, axis=1)[:, :few]
            weights = np.exp(-np.maximum(np.take_along_axis(squares, near, axis=1), 0.0))
            total = weights.sum(axis=1) + floor
            found.append((weights * self.residuals[near]).sum(axis=1) / total)
        return np.concatenate(found) if found else np.zeros(0)

    def _squares(self, block: Floats) -> Floats:
        own = (self.places**2).sum(axis=1)
        return np.asarray((block**2).sum(axis=1)[:, None] + own[None] - 2.0 * block @ self.places.T)


def _blocks(places: Floats) -> list[Floats]:
    return [places[i : i + _BLOCK] for i in range(0, len(places), _BLOCK)]
