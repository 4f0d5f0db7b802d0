"""Small charts of text: they fit, their points are where the numbers are, ASCII where need be."""

import io
import itertools
from typing import Any

import pytest

from attnprof.fit import fit_run
from attnprof.plots import ASCII, Marks, run_charts
from attnprof.render import room_of
from tests.figures.run import GOLDEN, ROOT, run_of


@pytest.mark.parametrize("width", [20, 40, 80, 120, 160, 300])
@pytest.mark.parametrize("name", ["quick", "caches", "models"])
def test_charts_fit_the_width(name: str, width: int) -> None:
    _, records, fits = run_of(ROOT / "reports" / name)
    text = run_charts(records, fits, width)
    assert max(map(len, text.splitlines())) <= width


def test_a_quadratic_rises_from_corner_to_corner_and_its_law_with_it() -> None:
    records: list[dict[str, Any]] = [
        {
            "workload_id": f"w{n}", "status": "ok", "phase": "prefill", "attention": "self",
            "backend": "eager", "dtype": "float32", "batch_size": 1, "q_len": n, "kv_len": n,
            "clock": "wall", "median_s": 1e-9 * n * n, "median_low_s": None,
            "median_high_s": None, "flags": [],
        }
        for n in (256, 512, 1024, 2048)
    ]  # fmt: skip
    fits = fit_run({"facts": {}}, records)
    lines = run_charts(records, fits, 80).splitlines()
    places = [(line.index("●"), number) for number, line in enumerate(lines[1:], 1) if "●" in line]
    columns = [column for column, _ in places]
    assert len(places) == 4
    assert columns == sorted(columns, reverse=True)  # the longest is highest, in the first line
    steps = {before - after for before, after in itertools.pairwise(columns)}
    assert max(steps) - min(steps) <= 1  # equal ratios are equal steps
    assert sum(line.count("·") for line in lines[1:]) > 10
    assert any(line.strip().startswith("1 ms │") for line in lines)


def test_where_the_output_holds_no_other_signs_charts_are_ascii() -> None:
    _, records, fits = run_of(GOLDEN)
    charts = run_charts(records, fits, 80, ASCII)
    assert charts.isascii()
    signs = "".join(vars(Marks()).values())
    assert room_of(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), signs)[1] is False
    assert room_of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), signs)[1] is True


def test_a_run_without_series_has_no_charts() -> None:
    assert run_charts([], fit_run({}, []), 80) == ""


def test_names_from_files_cannot_steer_the_terminal() -> None:
    header, records, _ = run_of(GOLDEN)
    nasty = [{**record, "backend": f"\x1b[31m{record['backend']}"} for record in records]
    assert "\x1b" not in run_charts(nasty, fit_run(header, nasty), 80)
