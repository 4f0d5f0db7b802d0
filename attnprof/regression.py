"""Noisy points -> a law with an interval for every coefficient: arithmetic, no attention in it."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Floats = NDArray[float64]

Z95 = 1.959964
# A law is never trusted below this share: two launches of the same code differ by more.
LEAST_RELATIVE_SD = 0.01
_ROUNDING = 1e-9  # a term with a smaller share of every value is a rounding error


@dataclass(frozen=True)
class Interval:
    """An estimate and the 95 % interval around it, whose ends are None where unknown."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Law:
    """``y = Σ lower_k · x^k + top(x) · x^degree``: a polynomial with no negative coefficient.

    The coefficient of the highest power changes at each knot, and only that one does: what a
    length costs per score or per token rises once the working set has left a cache.
    """

    degree: int
    lower: tuple[Interval, ...]
    top: tuple[Interval, ...]  # one a segment
    knots: tuple[float, ...]
    residuals: tuple[float, ...]  # (fitted - given) / given, one a point
    num_terms: int  # coefficients above zero

    @property
    def worst_residual(self) -> float:
        return max(abs(residual) for residual in self.residuals)

    def coefficients(self, segment: int = -1) -> tuple[float, ...]:
        """From the constant to the highest power, in one segment."""
        return (*(term.value for term in self.lower), self.top[segment].value)

    def at(self, x: float) -> float:
        segment = sum(x > knot for knot in self.knots)
        return sum(c * x**k for k, c in enumerate(self.coefficients(segment)))


def student_t95(degrees_of_freedom: int) -> float:
    """The 97.5 % point of Student's t, to 0.1 %.

    Source:
        Abramowitz & Stegun 1964, equation 26.7.5; one and two degrees in closed form.

    >>> [round(student_t95(dof), 2) for dof in (1, 2, 3, 10, 1000)]
    [12.71, 4.3, 3.18, 2.23, 1.96]
    """
    if degrees_of_freedom == 1:
        return math.tan(0.475 * math.pi)
    if degrees_of_freedom == 2:
        return 0.95 / math.sqrt(2 * 0.975 * 0.025)
    z, v = Z95, degrees_of_freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def relative_sd(value: float, low: float | None, high: float | None) -> float:
    """Standard deviation of a measured value, as a share of it, from its 95 % interval."""
    if low is None or high is None:
        return LEAST_RELATIVE_SD
    return math.hypot((high - low) / (2 * Z95 * value), LEAST_RELATIVE_SD)


def power_law(x: Sequence[float], y: Sequence[float], sd: Sequence[float]) -> Interval:
    """Exponent p of ``y = k · x^p``, by weighted regression in log-log.

    The interval is the wider of what the stated ``sd`` and what the scatter about the line say;
    two points leave no scatter, and no interval. Of one x alone no exponent is known: NaN.

    >>> power_law([1, 2, 4], [3, 12, 48], [0.01] * 3).value
    2.0
    """
    if len(set(x)) < 2:
        return Interval(math.nan, None, None)
    import numpy as np

    u, v = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    weights = 1 / np.asarray(sd, float) ** 2
    u = u - np.average(u, weights=weights)
    v = v - np.average(v, weights=weights)
    curvature = float(weights @ u**2)
    slope = float(weights @ (u * v)) / curvature
    dof = len(u) - 2
    if dof < 1:
        return Interval(slope, None, None)
    scatter = math.sqrt(float(weights @ (v - slope * u) ** 2) / dof)
    half = max(Z95, student_t95(dof) * scatter) / math.sqrt(curvature)
    return Interval(slope, slope - half, slope + half)


def nonnegative_least_squares(
    matrix: "Floats", target: "Floats", max_terms: int | None = None
) -> "Floats":
    """The x ≥ 0 that minimises ``|matrix · x - target|``, exactly, by trying every active set.

    For a handful of columns: of all least-squares solutions on a subset of them, the one with no
    negative entry and the smallest residual is the answer; on a tie the one of fewest terms.

    Args:
        max_terms: Most entries above zero.
    """
    import numpy as np

    num_columns = matrix.shape[1]
    best, best_loss = np.zeros(num_columns), float(target @ target)
    for size in range(1, min(num_columns, max_terms or num_columns) + 1):
        for chosen in itertools.combinations(range(num_columns), size):
            columns = matrix[:, chosen]
            solution = np.linalg.lstsq(columns, target, rcond=None)[0]
            loss = float(np.sum((columns @ solution - target) ** 2))
            if (solution >= 0).all() and loss < best_loss * (1 - 1e-12) - 1e-24:
                best, best_loss = np.zeros(num_columns), loss
                best[list(chosen)] = solution
    return best


def polynomial_law(
    x: Sequence[float],
    y: Sequence[float],
    sd: Sequence[float],
    degree: int,
    knots: Sequence[float] = (),
) -> Law:
    """Fit :class:`Law` by relative-weighted non-negative least squares.

    Intervals come from the covariance of all coefficients at once, the ones at zero included, so
    they hold whichever of them the fit left out. Without a spare point they are unknown. The fit
    itself keeps a point to spare, for a law through all points says nothing of how well it fits.

    Args:
        sd: Standard deviation of each ``y``, as a share of it.
        knots: Where the coefficient of the highest power changes.
    """
    import numpy as np

    lengths, values = np.asarray(x, float), np.asarray(y, float)
    columns = _columns(lengths, degree, knots)
    design = columns / (values * np.asarray(sd, float))[:, None]
    target = 1 / np.asarray(sd, float)
    scale = np.abs(design).max(axis=0)
    design = design / scale
    solution = nonnegative_least_squares(design, target, max_terms=len(values) - 1)
    solution[(design * solution / target[:, None]).max(axis=0) < _ROUNDING] = 0
    half = _half_widths(design, target) / scale if len(values) > len(scale) else None
    free = np.linalg.lstsq(design, target, rcond=None)[0] / scale
    terms = [
        _around(float(value), float(free[i]), None if half is None else float(half[i]))
        for i, value in enumerate(solution / scale)
    ]
    fitted = columns @ (solution / scale)
    return Law(
        degree=degree,
        lower=tuple(terms[:degree]),
        top=tuple(terms[degree:]),
        knots=tuple(knots),
        residuals=tuple(float(r) for r in fitted / values - 1),
        num_terms=int((solution > 0).sum()),
    )


def half_widths_at(
    at: Sequence[float],
    x: Sequence[float],
    y: Sequence[float],
    sd: Sequence[float],
    degree: int,
    knots: Sequence[float] = (),
) -> list[float] | None:
    """Half of the 95 % interval of what :func:`polynomial_law` gives at some places.

    From the covariance of all coefficients at once; None without a spare point.
    """
    import numpy as np

    values = np.asarray(y, float)
    columns = _columns(np.asarray(x, float), degree, knots)
    if len(values) <= columns.shape[1]:
        return None
    design = columns / (values * np.asarray(sd, float))[:, None]
    scale = np.abs(design).max(axis=0)
    covariance, factor = _covariance(design / scale, 1 / np.asarray(sd, float))
    there = _columns(np.asarray(at, float), degree, knots) / scale
    variances = np.einsum("ij,jk,ik->i", there, covariance, there)
    return [float(factor * math.sqrt(max(0.0, variance))) for variance in variances]


def _columns(lengths: "Floats", degree: int, knots: Sequence[float]) -> "Floats":
    """Each power of the length; the highest in a column for each segment."""
    import numpy as np

    segment = sum((lengths > knot for knot in knots), np.zeros(len(lengths), int))
    columns = [lengths**power for power in range(degree)]
    columns += [np.where(segment == s, lengths**degree, 0.0) for s in range(len(knots) + 1)]
    return np.stack(columns, axis=1)


def _half_widths(design: "Floats", target: "Floats") -> "Floats":
    import numpy as np

    covariance, factor = _covariance(design, target)
    widths: Any = factor * np.sqrt(np.diag(covariance))
    return np.asarray(widths, float)


def _covariance(design: "Floats", target: "Floats") -> tuple["Floats", float]:
    """Of all coefficients, and by what its root is multiplied for a 95 % interval."""
    import numpy as np

    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    dof = design.shape[0] - design.shape[1]
    scatter = math.sqrt(float(np.sum((design @ solution - target) ** 2)) / dof)
    covariance: Any = np.linalg.pinv(design.T @ design)
    return np.asarray(covariance, float), max(Z95, student_t95(dof) * scatter)


def _around(value: float, free: float, half: float | None) -> Interval:
    """The interval about the unconstrained estimate, cut at zero, that holds ``value`` too."""
    if half is None:
        return Interval(value, None, None)
    return Interval(value, min(max(free - half, 0.0), value), max(free + half, value))


def ruling_terms(coefficients: Sequence[float]) -> list[tuple[int, float]]:
    """Which power rules from which x on: the largest of the terms ``c_k · x^k``.

    >>> ruling_terms([8.0, 2.0, 0.5])  # 8 until x = 4, then 2·x, and x²/2 from x = 4
    [(0, 0.0), (2, 4.0)]
    >>> ruling_terms([1.0, 1.0, 0.01])
    [(0, 0.0), (1, 1.0), (2, 100.0)]
    """
    powers = [power for power, c in enumerate(coefficients) if c > 0]
    rulers = [(powers[0], 0.0)] if powers else []
    while rulers and rulers[-1][0] != powers[-1]:
        now = rulers[-1][0]
        # The next ruler is the one that overtakes first; of those at the same x, the highest.
        start, power = min(
            ((coefficients[now] / coefficients[later]) ** (1 / (later - now)), -later)
            for later in powers
            if later > now
        )
        rulers.append((-power, start))
    return rulers
