"""Student's t: how far a mean of few numbers may lie from the truth, without SciPy."""

import math
from functools import lru_cache
from statistics import NormalDist

MOST_TERMS = 300
CLOSE = 1e-12
TENTHS = 10  # degrees of freedom are taken down to a tenth, so that quantiles repeat


def t_above(t: float, df: float) -> float:
    """The probability that Student's t with ``df`` degrees of freedom exceeds ``t``.

        P(T > t) = ½ · I_x(df/2, ½),   x = df / (df + t²),   for t ≥ 0

    >>> round(t_above(2.776445, 4), 6), t_above(0.0, 3), t_above(math.inf, 3)
    (0.025, 0.5, 0.0)

    Source:
        Abramowitz and Stegun 1964, 26.7.1 with 26.5.2.
    """
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = _half_beta(df, t * t)
    return half if t >= 0 else 1.0 - half


@lru_cache(maxsize=4096)
def _quantile(p: float, tenths: int) -> float:
    """Newton's steps on log P as a function of log t, which is nearly a straight line."""
    df = tenths / TENTHS
    t = NormalDist().inv_cdf(1 - p)
    for _ in range(MOST_TERMS):
        above = t_above(t, df)
        step = math.log(above / p) * above / (t * t_density(t, df))
        t *= math.exp(step)
        if abs(step) < CLOSE:
            break
    return t


def t_quantile(p: float, df: float) -> float:
    """The t that is exceeded with probability ``p``, below a half; ``df`` is taken to a tenth.

    >>> round(t_quantile(0.025, 4), 6)
    2.776445
    """
    return _quantile(p, max(1, math.floor(TENTHS * df + CLOSE)))


def t_density(t: float, df: float) -> float:
    """The density of Student's t.

    >>> round(t_density(0.0, 1) * math.pi, 12)
    1.0
    """
    log_constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log_constant - (df + 1) / 2 * math.log1p(t * t / df))


def _half_beta(df: float, t_squared: float) -> float:
    """½ · I_x(df/2, ½) by its continued fraction, on the side where that converges fast."""
    a, b = df / 2, 0.5
    x, rest = df / (df + t_squared), t_squared / (df + t_squared)
    if rest == 0:
        return 0.5
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a / 2
    return (1 - front * _fraction(b, a, rest) / b) / 2


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method.

    Source:
        Press et al. 2007, "Numerical Recipes", third edition, section 6.4.
    """
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / (1 + even * d), 1 + even / c
        found *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / (1 + odd * d), 1 + odd / c
        found *= d * c
        if abs(d * c - 1) < CLOSE:
            break
    return found
