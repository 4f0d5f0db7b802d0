"""Roofline, caches and parts of real runs: every workload is there, and where theory puts it."""

from pathlib import Path

import pytest

from attnprof.figures.base import LIGHT
from attnprof.figures.caches import kv_figure, kv_growth_figure
from attnprof.figures.drawing import svg_text
from attnprof.figures.of_run import run_figures
from attnprof.figures.parts import parts_figure
from attnprof.figures.rooflines import roofline_figure
from attnprof.series import is_ok
from tests.figures.run import ROOT, drawn, points_of, run_of

pytest.importorskip("matplotlib")

KEPT = sorted(path.parent for path in (ROOT / "reports").glob("*/run.json"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_every_kept_run_has_figures_for_wide_and_narrow(folder: Path) -> None:
    figures = run_figures(*run_of(folder))
    assert figures
    for figure in figures:
        svg_text(figure)
        svg_text(figure, narrow=True)


def test_every_workload_with_a_time_is_under_its_roof_in_the_roofline() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    figure = roofline_figure(header, records)
    assert figure is not None
    shown = [
        point
        for number in range(len(figure.panels))
        for colour in (LIGHT.blue, LIGHT.orange, LIGHT.green)
        for marker in "os^D"
        for point in points_of(drawn(figure, number), colour, marker)
    ]
    expected = [
        (record["flops"] / record["bytes_moved"], record["achieved_flops_per_s"])
        for record in records
        if is_ok(record) and record["bytes_moved"] and record["achieved_flops_per_s"]
    ]
    assert sorted(shown) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "quick",
            ["prefill by eager", "prefill by math", "prefill by flash", "decode by eager",
             "decode and kv-growth by flash"],
        ),
        ("models", ["prefill by flash", "prefill by eager", "decode by flash",
                    "verify and mixed by flash"]),
        ("training", ["prefill and train by eager", "prefill and train by flash"]),
        ("caches", ["decode, kv-growth and generate"]),
        ("recurrent", ["prefill", "decode"]),
    ],
)  # fmt: skip
def test_the_key_of_the_roofline_names_the_phases_and_few_backends_that_are_there(
    name: str, keys: list[str]
) -> None:
    header, records, _ = run_of(ROOT / "reports" / name)
    figure = roofline_figure(header, records)
    assert figure is not None
    *points, roofs = figure.keys
    assert [key.words for key in points] == keys
    assert len({(key.colour, key.marker, key.look) for key in points}) == len(keys)
    assert roofs.words.startswith("roofs")
    assert {panel.title.split(",")[0] for panel in figure.panels} == {"float32"}


def test_each_backend_has_its_shape_in_the_roofline_and_every_second_one_is_hollow() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    figure = roofline_figure(header, records)
    assert figure is not None
    number = next(i for i, panel in enumerate(figure.panels) if "wall" in panel.title)
    axes = drawn(figure, number)
    for backend, marker in (("eager", "o"), ("math", "s"), ("flash", "^")):
        expected = [
            (record["flops"] / record["bytes_moved"], record["achieved_flops_per_s"])
            for record in records
            if (record["phase"], record["backend"], record["clock"]) == ("prefill", backend, "wall")
        ]
        assert expected
        assert sorted(points_of(axes, LIGHT.blue, marker)) == sorted(expected)
    faces = {line.get_marker(): line.get_markerfacecolor() for line in axes.lines}
    assert faces["s"] == "none"
    assert "none" not in (faces["o"], faces["^"])
    looks = {key.marker: key.look for key in figure.keys if key.look != "line"}
    assert looks == {"o": "point", "s": "hollow", "^": "point"}


def test_a_fifth_backend_leaves_the_roofline_with_phases_alone() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    prefills = [record for record in records if record["phase"] == "prefill"]
    for count, words in ((4, "prefill by b0"), (5, "prefill")):
        many = [
            {**record, "backend": f"b{number % count}"} for number, record in enumerate(prefills)
        ]
        figure = roofline_figure(header, many)
        assert figure is not None
        assert figure.keys[0].words == words


def test_the_source_of_a_sweep_of_typed_axes_gives_it_no_name() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    figure = roofline_figure({**header, "grid": {**header["grid"], "name": "typed"}}, records)
    assert figure is not None
    assert figure.source.startswith("Measured: a sweep of typed axes on AMD EPYC (cpu, 2 threads),")


def test_workloads_without_a_roof_are_told_of_and_the_ends_are_named() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    other = [
        record | {"dtype": "bfloat16"} if number < 10 else record
        for number, record in enumerate(records)
    ]
    figure = roofline_figure(header, other)
    assert figure is not None
    assert "10 more are of an element type whose product was not measured" in figure.source
    whole = roofline_figure(header, records)
    assert whole is not None
    assert "more" not in whole.source
    nearest = max((r for r in records if r["clock"] == "wall"), key=lambda r: r["mfu"] or 0.0)
    note = next(panel.note for panel in whole.panels if "wall" in panel.title)
    assert f"nearest its roof: prefill flash full 8k, {100 * nearest['mfu']:.3g} %" in note


def test_without_measured_roofs_there_is_no_roofline() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    bare = {**header, "conditions": {**header["conditions"], "ceilings": {}}}
    assert roofline_figure(bare, records) is None


def test_measured_bytes_lie_on_the_line_of_theory() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    figure = kv_figure(header, records)
    assert figure is not None
    axes = drawn(figure)
    (theory,) = [line for line in axes.lines if line.get_color() == LIGHT.orange]
    on_line = set(zip(theory.get_xdata(), theory.get_ydata(), strict=True))
    points = points_of(axes, LIGHT.blue)
    assert points
    assert set(points) <= on_line


def test_of_a_cache_that_holds_more_than_theory_the_alt_text_says_by_how_much() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    wrong = [
        {**record, "kv_bytes": 4 * record["kv_bytes"]} if record["kv_bytes"] else record
        for record in records
    ]
    figure = kv_figure(header, wrong)
    assert figure is not None
    assert "in use within 300 % of theory" in figure.alt


def test_a_growing_cache_shows_what_is_allocated_beyond_its_tokens() -> None:
    header, records, _ = run_of(ROOT / "reports" / "caches")
    figure = kv_growth_figure(header, records)
    assert figure is not None
    number = next(i for i, panel in enumerate(figure.panels) if "blocks of 64" in panel.title)
    (allocated,) = [line for line in drawn(figure, number).lines if line.get_color() == LIGHT.green]
    steps = sorted(set(allocated.get_ydata()))
    assert len(steps) > 3
    assert "4.81 % unused" in figure.panels[number].note


def test_a_cache_that_holds_less_than_theory_is_drawn_with_its_theory_and_its_odd_points() -> None:
    header, records, _ = run_of(ROOT / "reports" / "caches")
    record = next(one for one in records if one["phase"] == "kv-growth" and one["growth"])
    growth = [
        {**point, "allocated_bytes": 1024, "useful_bytes": 1024, "peak_bytes": 0}
        if number == 46
        else point
        for number, point in enumerate(record["growth"])
    ]
    figure = kv_growth_figure(header, [{**record, "growth": growth}])
    assert figure is not None
    theory = max(point["theory_bytes"] for point in record["growth"])
    assert figure.y.high > theory
    points = dict(points_of(drawn(figure), LIGHT.blue))
    assert 1024 in points.values()
    assert max(points) == max(point["kv_len"] for point in growth)
    less = [{**p, "allocated_bytes": 1, "useful_bytes": 1, "peak_bytes": 0} for p in growth]
    figure = kv_growth_figure(header, [{**record, "growth": less}])
    assert figure is not None
    assert figure.y.high > theory


def test_a_cache_that_rolls_says_from_when_on_it_is_full() -> None:
    header, records, _ = run_of(ROOT / "reports" / "caches")
    figure = kv_growth_figure(header, records)
    assert figure is not None
    (note,) = [panel.note for panel in figure.panels if "rolling" in panel.title]
    assert note.startswith("4 KiB a token, full from 256 on")


def test_shares_of_a_call_fill_it_and_attention_grows_from_the_axis() -> None:
    header, records, _ = run_of(ROOT / "reports" / "models")
    figure = parts_figure(header, records)
    assert figure is not None
    bands = drawn(figure).collections
    outlines = [[y for _, y in band.get_paths()[0].vertices] for band in bands]
    heights = [(min(outline), max(outline)) for outline in outlines]
    assert heights[0][0] == 0
    assert heights[-1][1] == pytest.approx(1)
    assert "23.3 % at 2k" in figure.panels[0].note
