"""A law: terms that shapes and hardware give, coefficients that are fitted, and their latency."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]
_TINY = 1e-300


@dataclass(frozen=True)
class Hardware:
    """What a law knows of a device: its roofs, its last cache and how many units share the work.

    Args:
        flops_per_s: Peak of the dtype in which the kernel computes.
        num_units: SMs of a GPU, cores of a CPU.
        link_bytes_per_s: To its peers, one way; None where there are none.
    """

    flops_per_s: float
    bytes_per_s: float
    cache_bytes: float
    num_units: float
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Coefficient:
    """A factor of one term, and what is known of it before anything is measured.

    Args:
        is_time: Its unit is the second; else it is a ratio, of time to a roof's or of overhead.
        median: Before the data.
        log_sd: Standard deviation of its logarithm before the data.
    """

    name: str
    meaning: str
    is_time: bool
    median: float
    log_sd: float


@dataclass(frozen=True)
class Law:
    """How long a call takes: some terms add up, others overlap.

        t = Σᵢ cᵢ·xᵢ + (Σ_g (Σ_{j∈g} cⱼ·xⱼ)^q)^(1/q)

    Args:
        terms: Shapes and hardware into x, one row a coefficient, each zero or more.
        overlapping: Groups g of places in ``coefficients``; those in none add up.
        overlap: The exponent q: 1 adds the groups up, ∞ would take the longest.
        axes: Columns in whose logarithms two shapes are near or far.
        scatter: Standard deviation of log measured over fitted that is expected of the form: 8 %
            is what six terms miss of a real kernel.
        kind: Of the devices that alone it describes, where its name begins with it.
    """

    name: str
    coefficients: tuple[Coefficient, ...]
    terms: Callable[[Columns, Hardware], Floats]
    overlapping: tuple[tuple[int, ...], ...]
    overlap: float
    axes: tuple[str, ...]
    scatter: float = 0.08
    kind: str = ""

    @property
    def phase(self) -> str:
        """What the law is of: prefill, decode, gemm or all-reduce, whatever the kind of device."""
        return self.name.removeprefix(self.kind).lstrip("-")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(coefficient.name for coefficient in self.coefficients)

    @property
    def medians(self) -> Floats:
        """The coefficients that are expected before anything is measured."""
        return np.array([coefficient.median for coefficient in self.coefficients])

    @property
    def log_sds(self) -> Floats:
        return np.array([coefficient.log_sd for coefficient in self.coefficients])

    @property
    def adding(self) -> tuple[int, ...]:
        grouped = {i for group in self.overlapping for i in group}
        return tuple(i for i in range(len(self.coefficients)) if i not in grouped)

    def expecting(self, priors: Mapping[str, tuple[float, float]]) -> "Law":
        """The same law with other medians and standard deviations for some coefficients."""
        return replace(
            self,
            coefficients=tuple(
                replace(one, median=priors[one.name][0], log_sd=priors[one.name][1])
                if one.name in priors
                else one
                for one in self.coefficients
            ),
        )


def latency(law: Law, terms: Floats, coefficients: Floats) -> Floats:
    """Latencies. [s]

    Args:
        terms: ``[K, N]``: K terms of N shapes.
        coefficients: ``[K]``, or ``[B, K]`` for B sets of them at once.

    Returns:
        ``[N]``, or ``[B, N]``.
    """
    adding = list(law.adding)
    total = coefficients[..., adding] @ terms[adding]
    if law.overlapping:
        total = total + _norm(law, _groups(law, terms, coefficients))
    return np.maximum(total, _TINY)


def log_jacobian(law: Law, terms: Floats, coefficients: Floats) -> Floats:
    """∂ log t / ∂ log c: the share of each latency that hangs on each coefficient.

    Returns:
        ``[K, N]``, or ``[B, K, N]``; every column adds up to one.
    """
    shares = coefficients[..., :, None] * terms
    if law.overlapping:
        groups = _groups(law, terms, coefficients)
        norm = np.maximum(_norm(law, groups), _TINY)
        for members, group in zip(law.overlapping, groups, strict=True):
            slope = (group / norm) ** (law.overlap - 1.0)
            for i in members:
                shares[..., i, :] *= slope
    return np.asarray(shares / latency(law, terms, coefficients)[..., None, :])


def _groups(law: Law, terms: Floats, coefficients: Floats) -> list[Floats]:
    return [
        np.maximum(coefficients[..., list(members)] @ terms[list(members)], _TINY)
        for members in law.overlapping
    ]


def _norm(law: Law, groups: list[Floats]) -> Floats:
    if law.overlap == 1.0:
        return np.asarray(sum(groups))
    largest = np.maximum.reduce(groups)
    powers = sum((group / largest) ** law.overlap for group in groups)
    return np.asarray(largest * powers ** (1.0 / law.overlap))
