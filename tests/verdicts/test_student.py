"""Student's t is what SciPy says it is."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnprof.verdicts.student import TENTHS, t_above, t_density, t_quantile

stats = pytest.importorskip("scipy.stats")


@given(df=st.floats(1.0, 1e4), t=st.floats(-60, 60))
@example(df=1136.0, t=5.3e-161)  # whose square is nothing beside df
def test_the_probability_beyond_t_is_scipys(df: float, t: float) -> None:
    close = 1e-9 if abs(t) > 1e-6 else 1e-8  # so near the middle SciPy loses digits at df = 1
    assert t_above(t, df) == pytest.approx(stats.t.sf(t, df), rel=close, abs=1e-300)
    assert t_density(t, df) == pytest.approx(stats.t.pdf(t, df), rel=1e-9)


@given(df=st.floats(1.0, 1e3), p=st.floats(1e-9, 0.45))
def test_the_quantile_is_scipys_at_degrees_of_freedom_to_a_tenth(df: float, p: float) -> None:
    tenth = math.floor(TENTHS * df + 1e-9) / TENTHS
    assert t_quantile(p, df) == pytest.approx(stats.t.isf(p, tenth), rel=1e-7)


@given(df=st.floats(1.0, 1e3), p=st.floats(1e-9, 0.45))
def test_degrees_of_freedom_to_a_tenth_are_on_the_safe_side(df: float, p: float) -> None:
    assert t_quantile(p, df) >= stats.t.isf(p, df) * (1 - 1e-9)
