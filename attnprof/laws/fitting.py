"""Measured latencies -> the coefficients of a law, each with its interval and whether it is seen.

Most probable coefficients in log latency with a pseudo-Huber loss, so that a microsecond counts
as much as a second and a spike as little as it should; Levenberg-Marquardt, many fits at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnprof.laws.base import Columns, Floats, Hardware, Law, latency, log_jacobian

LEAST_SCATTER = 0.01  # two launches of the same code differ by more
HUBER_DELTA = 1.5  # of the scatter: beyond it a residual counts by its size, not its square
SEEN_SHARE = 0.20  # a coefficient with less of every measured latency was not measured
FIT_POINTS = 96  # many points of one regime drown the others: few are spread over all
PINNED_RATIO = 4.0  # of the ends of an interval; a wider one says little more than was known
BOOTSTRAPS = 200
OVERLAPS = (1.0, 2.0)  # add up, or in quadrature
Z80, Z90 = 1.2816, 2.13  # the second is wider than a normal's: the tails are
_WIDENED = 1.2 * Z90 / 1.645  # bands need the second; of planted coefficients 94 in 100 came back
# within them, 97 with the first as well.
_MAX_STEPS = 60
_FEW, _MOVES = 32, 8
_STARTS = (1.0, 12.0, 1 / 12.0)
_LARGEST_STEP = 2.0  # of a log coefficient


@dataclass(frozen=True)
class Fitted:
    """A law with its coefficients.

    Args:
        covariance: Of the log coefficients.
        residual_sd: Of log measured over fitted, robust, at least the law's scatter.
        largest_shares: The largest share of a measured latency that each coefficient had.
        cost: What was made least: loss of the residuals and of the priors.
        low: End of each coefficient's 95 % interval; None before it was asked for.
    """

    law: Law
    hardware: Hardware
    coefficients: Floats
    covariance: Floats
    residual_sd: float
    largest_shares: Floats
    num_points: int
    cost: float = 0.0
    low: Floats | None = None
    high: Floats | None = None

    def latency_s(self, shapes: Columns) -> Floats:
        return latency(self.law, self.law.terms(shapes, self.hardware), self.coefficients)

    def log_sd(self, shapes: Columns) -> Floats:
        """Standard deviation of the logarithm of a latency that was not measured."""
        terms = self.law.terms(shapes, self.hardware)
        slopes = log_jacobian(self.law, terms, self.coefficients)
        spread = np.einsum("in,ij,jn->n", slopes, self.covariance, slopes)
        return np.asarray(np.sqrt(np.maximum(spread, 0.0) + self.residual_sd**2))

    @property
    def is_seen(self) -> tuple[bool, ...]:
        """For each coefficient, whether the points pin it down: it has a share, and its interval,
        once asked for, is not wider than :data:`PINNED_RATIO`."""
        is_narrow = (
            np.ones_like(self.coefficients, dtype=bool)
            if self.low is None or self.high is None
            else self.high <= PINNED_RATIO * self.low
        )
        return tuple(bool(one) for one in (self.largest_shares >= SEEN_SHARE) & is_narrow)


def fit(law: Law, shapes: Columns, latencies_s: Floats, hardware: Hardware) -> Fitted:
    """The most probable coefficients for some measured latencies; none at all gives the priors."""
    terms = law.terms(shapes, hardware)
    log_s = np.log(latencies_s)
    logs, cost = _best_of_starts(law, terms, log_s)
    coefficients = np.exp(logs)
    residuals = log_s - np.log(latency(law, terms, coefficients))
    slopes = log_jacobian(law, terms, coefficients)
    precision = _normal(
        law,
        slopes[None] / law.scatter,
        _huber_weights(residuals[None] / law.scatter),
        ((logs - np.log(law.medians)) / law.log_sds)[None],
    )
    return Fitted(
        law=law,
        hardware=hardware,
        coefficients=coefficients,
        covariance=np.linalg.inv(precision[0]),
        residual_sd=max(law.scatter, _robust_sd(residuals, len(coefficients))),
        largest_shares=slopes.max(axis=1, initial=0.0),
        num_points=len(log_s),
        cost=cost,
    )


def unlikeliness(fitted: Fitted) -> float:
    """Minus twice the log likelihood of what a law was fitted to, with its own scatter."""
    return float(fitted.cost + 2 * fitted.num_points * np.log(fitted.law.scatter))


def fit_overlaps(
    law: Law, shapes: Columns, latencies_s: Floats, hardware: Hardware
) -> list[Fitted]:
    """A law fitted as one whose groups add up, and as one whose groups overlap.

    Each is fitted with the scatter that its own points show, down to :data:`LEAST_SCATTER`.
    """
    found = []
    for overlap in OVERLAPS:
        form = replace(law, overlap=overlap)
        first = fit(form, shapes, latencies_s, hardware)
        residuals = np.log(latencies_s / first.latency_s(shapes))
        shown = _robust_sd(residuals, len(form.coefficients))
        scatter = min(max(shown, LEAST_SCATTER), form.scatter)
        found.append(fit(replace(form, scatter=scatter), shapes, latencies_s, hardware))
    return found


def covering(fitted: Fitted, others: Iterable[Fitted]) -> Fitted:
    """``fitted`` with intervals that hold those of other forms as well, which may be the true."""
    if fitted.low is None or fitted.high is None:
        return fitted
    low, high = fitted.low, fitted.high
    for one in others:
        across = _WIDENED * 1.96 * np.sqrt(np.maximum(np.diag(one.covariance), 0.0))
        low = np.minimum(low, one.coefficients * np.exp(-across))
        high = np.maximum(high, one.coefficients * np.exp(across))
    return replace(fitted, low=low, high=high)


def with_intervals(fitted: Fitted, shapes: Columns, latencies_s: Floats, seed: int = 0) -> Fitted:
    """``fitted`` with the 95 % interval of every coefficient, by bootstrap.

    Every replicate draws its points anew, with the noise that was seen, and the centre of every
    prior as well: so a coefficient on which the points say nothing keeps the width that it had.
    """
    law = fitted.law
    rng = np.random.default_rng(seed)
    terms = law.terms(shapes, fitted.hardware)
    log_s = np.log(latencies_s)
    model = np.log(latency(law, terms, fitted.coefficients))
    residuals = log_s - model
    free = max(1, len(log_s) - len(law.coefficients))
    scale = np.sqrt(max(1.0, len(log_s) / free))
    noise = rng.choice(residuals * scale, size=(BOOTSTRAPS, len(log_s)))
    centres = rng.normal(np.log(law.medians), law.log_sds, (BOOTSTRAPS, len(law.coefficients)))
    middle = np.log(fitted.coefficients)
    # Where two terms grow alike there are two ways to share the time: half of the replicates begin
    # at their priors, not at the fit.
    is_afresh = np.arange(BOOTSTRAPS)[:, None] % 2 == 1
    start = np.where(is_afresh, centres, middle)
    logs, _ = most_probable(law, terms, model + noise, centres, start)
    across = 1.96 * np.sqrt(np.maximum(np.diag(fitted.covariance), 0.0))
    low, high = np.quantile(logs, (0.025, 0.975), axis=0)
    return replace(
        fitted,
        low=np.exp(middle - _WIDENED * np.maximum(middle - low, across)),
        high=np.exp(middle + _WIDENED * np.maximum(high - middle, across)),
    )


def _best_of_starts(law: Law, terms: Floats, log_s: Floats) -> tuple[Floats, float]:
    """The most probable log coefficients, and their cost.

    They are looked for from the priors, and from larger and from smaller overheads: kernels exist
    that are ten times off what is usual.
    """
    centre = np.log(law.medians)
    is_overhead = np.array([one.is_time for one in law.coefficients])
    starts = centre + np.log(np.array(_STARTS))[:, None] * is_overhead
    centres = np.broadcast_to(centre, starts.shape)
    many = np.broadcast_to(log_s, (len(starts), len(log_s)))
    logs, cost = most_probable(law, terms, many, centres, starts)
    best = int(cost.argmin())
    return logs[best], float(cost[best])


def most_probable(
    law: Law, terms: Floats, log_s: Floats, centres: Floats, start: Floats | None = None
) -> tuple[Floats, Floats]:
    """Log coefficients ``[B, K]`` of B fits at once, and the cost of each.

    Args:
        log_s: Log latencies ``[B, N]``.
        centres: Prior medians of the log coefficients ``[B, K]``.
        start: Where to begin ``[K]`` or ``[B, K]``; the centres when left out.
    """
    sds = law.log_sds
    x = np.array(np.broadcast_to(centres if start is None else start, centres.shape))
    damping = np.full(len(x), 1e-2)

    def cost_of(logs: Floats) -> Floats:
        r = (np.log(latency(law, terms, np.exp(logs))) - log_s) / law.scatter
        return np.asarray(_loss(r).sum(axis=1) + _loss((logs - centres) / sds).sum(axis=1))

    cost = cost_of(x)
    for _ in range(_MAX_STEPS):
        coefficients = np.exp(x)
        r = (np.log(latency(law, terms, coefficients)) - log_s) / law.scatter
        slopes = log_jacobian(law, terms, coefficients) / law.scatter
        bent = _huber_weights(r)
        away = (x - centres) / sds
        normal = _normal(law, slopes, bent, away)
        pull = _huber_weights(away) * away / sds
        gradient = np.einsum("bkn,bn->bk", slopes, bent * r) + pull
        diagonal = np.einsum("bkk->bk", normal)
        damped = normal + np.eye(x.shape[1]) * (damping[:, None] * diagonal)[:, None, :]
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        tried = x - np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
        tried_cost = cost_of(tried)
        better = tried_cost <= cost
        gain = np.where(better, cost - tried_cost, 0.0)
        settled = (better & (gain <= 1e-7 * (1.0 + cost))) | (damping > 1e8)
        x = np.where(better[:, None], tried, x)
        cost = np.where(better, tried_cost, cost)
        damping = np.where(better, np.maximum(damping / 5, 1e-9), damping * 4)
        if settled.all():
            break
    return x, cost


def _normal(law: Law, slopes: Floats, weights: Floats, away: Floats) -> Floats:
    """The Gauss-Newton matrix with the priors on its diagonal ``[B, K, K]``."""
    data = np.matmul(slopes * weights[:, None, :], np.swapaxes(slopes, 1, 2))
    prior = _huber_weights(away) / law.log_sds**2
    return np.asarray(data + np.eye(len(law.coefficients)) * prior[:, None, :])


def _loss(r: Floats) -> Floats:
    """Pseudo-Huber: r² near zero, linear far off. Priors have it too."""
    return np.asarray(2 * HUBER_DELTA**2 * (np.sqrt(1 + (r / HUBER_DELTA) ** 2) - 1))


def _huber_weights(r: Floats) -> Floats:
    return np.asarray(1.0 / np.sqrt(1.0 + (r / HUBER_DELTA) ** 2))


def _robust_sd(residuals: Floats, num_coefficients: int) -> float:
    """From the median of the sizes; 0 where there is none."""
    if len(residuals) == 0:
        return 0.0
    free = max(1, len(residuals) - num_coefficients)
    inflated = np.sqrt(len(residuals) / free) if len(residuals) > num_coefficients else 1.0
    return float(1.4826 * np.median(np.abs(residuals)) * inflated)


def coordinates(law: Law, shapes: Columns) -> Floats:
    """Where shapes lie ``[N, axes]``: one step is a doubling."""
    return np.stack([np.log2(np.maximum(shapes[axis], 1.0)) for axis in law.axes], axis=1)


def spread(places: Floats, num: int) -> NDArray[np.int64]:
    """Indices of ``num`` points that are far from each other.

    A few of several axes each move to the middle of those that are nearest to them: the corners of
    a box alone say too little of what is inside.
    """
    if len(places) <= num:
        return np.arange(len(places))
    first = np.unique(places, axis=0, return_index=True)[1]
    if len(first) <= num:
        return np.sort(first)
    chosen = _far_apart(places, num)
    if num > _FEW or places.shape[1] == 1:
        return chosen
    for _ in range(_MOVES):
        squares = ((places[:, None, :] - places[chosen][None]) ** 2).sum(axis=2)
        owner = squares.argmin(axis=1)
        moved = np.array([_middle(places, np.flatnonzero(owner == i)) for i in range(num)])
        if (moved == chosen).all():
            break
        chosen = moved
    return chosen


def _middle(places: Floats, members: NDArray[np.int64]) -> int:
    own = places[members]
    return int(members[((own - own.mean(axis=0)) ** 2).sum(axis=1).argmin()])


def _far_apart(places: Floats, num: int) -> NDArray[np.int64]:
    """From the middle outwards, each time the point that is farthest from all before."""
    distance = ((places - places.mean(axis=0)) ** 2).sum(axis=1)
    chosen = [int(distance.argmin())]
    nearest = ((places - places[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < num:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((places - places[chosen[-1]]) ** 2).sum(axis=1))
    return np.array(chosen)
