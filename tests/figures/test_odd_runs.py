"""Whatever a run directory may hold, its figures are drawn or left out, never a bug."""

import copy
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnprof.figures.caches import kv_growth_figure
from attnprof.figures.drawing import svg_text, wrapped
from attnprof.figures.of_run import run_figures
from attnprof.fit import fit_run
from attnprof.record_values import record_misfit
from tests.figures.run import GOLDEN, drawn, run_of

pytest.importorskip("matplotlib")

HEADER, RECORDS, _ = run_of(GOLDEN)
KEYS = (
    "median_s", "median_low_s", "median_high_s", "kv_len", "kv_bytes", "theory_kv_bytes",
    "peak_activation_bytes", "flops", "bytes_moved", "achieved_flops_per_s", "batch_size",
)  # fmt: skip
VALUES = st.sampled_from((None, 0, 1, 1e-12, 1e12, 2**60))


@given(
    place=st.integers(0, len(RECORDS) - 1), key=st.sampled_from(KEYS), value=VALUES,
    clock=st.sampled_from(("wall", "cpu", None)),
)  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_record_with_an_odd_number_draws_or_is_left_out(
    place: int, key: str, value: Any, clock: str | None
) -> None:
    records = [dict(record) for record in RECORDS]
    records[place] |= {key: value, "clock": clock}
    if record_misfit(records[place]) is not None:
        return  # such a run is refused when it is read
    for figure in run_figures(HEADER, records, fit_run(HEADER, records)):
        assert math.isfinite(figure.x.low + figure.x.high + figure.y.low + figure.y.high)
        for number in range(len(figure.panels)):
            drawn(figure, number)


def test_a_cache_that_never_grew_is_drawn_flat() -> None:
    records = copy.deepcopy(RECORDS)
    for record in records:
        for point in record.get("growth") or ():
            point |= {"kv_len": 256, "useful_bytes": 4096, "allocated_bytes": 4096}
    grown = kv_growth_figure(HEADER, records)
    assert grown is not None
    assert all(panel.note == "no growth" for panel in grown.panels)
    svg_text(grown)


def test_a_number_is_not_parted_from_its_unit_at_the_end_of_a_line() -> None:
    text = "no law: a point is missed by 65.6 % and 12 ms of 23.5 GiB are gone"
    for width in range(1, 40):
        for line in wrapped(text, width / 10, 8.0).splitlines():
            assert not line.startswith(("%", "ms", "GiB"))
