"""Figures of estimates, comparisons and histories: what binds, what changed, what holds."""

import copy
import itertools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from attnprof.capacity.request import EstimateRequest
from attnprof.estimate import estimate
from attnprof.figures.base import LIGHT, Figure
from attnprof.figures.capacity import capacity_figure
from attnprof.figures.comparisons import comparison_figure
from attnprof.figures.courses import history_figure
from attnprof.figures.drawing import svg_text
from attnprof.figures.serving import serving_figure
from attnprof.models.load import load_model
from tests.figures.run import drawn, points_of

pytest.importorskip("matplotlib")

DOCUMENTS = Path(__file__).parent / "documents"


def document(name: str) -> Any:
    return json.loads((DOCUMENTS / f"{name}.json").read_text(encoding="utf-8"))


def estimated(gpu: str = "h100-sxm", context: int = 8192, **more: Any) -> dict[str, Any]:
    model = load_model("llama-3.1-8b")
    return estimate(EstimateRequest(model=model, gpu=gpu, max_model_len=context, **more)).to_json()


def figure_of(made: Figure | None) -> Figure:
    assert made is not None
    svg_text(made)
    svg_text(made, narrow=True)
    return made


def test_the_serving_curve_has_its_points_and_both_limits() -> None:
    found = estimated(prompt_len=4096, output_len=256, ttft_s=2.0, tpot_s=0.05)
    figure = figure_of(serving_figure(found))
    for number, (name, limit) in enumerate((("tpot_s", 0.05), ("ttft_loaded_s", 2.0))):
        axes = drawn(figure, number)
        holds = points_of(axes, LIGHT.blue) + points_of(axes, LIGHT.green)
        assert len(points_of(axes, LIGHT.green)) == sum(
            point["batch_size"] <= found["slo"]["safe_batch_size"] for point in found["curve"]
        )
        beyond = points_of(axes, LIGHT.grey)
        expected = [
            (point[name]["mid"], point["output_tokens_per_s"]["mid"]) for point in found["curve"]
        ]
        assert sorted(holds + beyond) == sorted(expected)
        assert len(beyond) == sum(
            point["batch_size"] > found["slo"]["max_batch_size"] for point in found["curve"]
        )
        (line,) = [line for line in axes.lines if line.get_color() == LIGHT.orange]
        assert set(line.get_xdata()) == {limit}
        sizes = {f"{point['batch_size']:,.0f}": point for point in found["curve"]}
        heights = [
            sizes[text.get_text()]["output_tokens_per_s"]["mid"]
            for text in axes.texts
            if text.get_text() in sizes
        ]
        assert max(heights) == max(y for _, y in expected)  # the last point says how many
        apart = [high - low for low, high in itertools.pairwise(sorted(heights))]
        assert min(apart) >= 0.05 * figure.y.high  # and no label is written on another
    assert "calibrated" in figure.source


def test_the_users_that_were_asked_for_are_a_point_of_the_curve_with_a_ring() -> None:
    found = estimated(prompt_len=4096, output_len=256, users=11, tpot_s=0.05)
    figure = figure_of(serving_figure(found))
    (ring,) = [line for line in drawn(figure).lines if line.get_markerfacecolor() == "none"]
    (point,) = [point for point in found["curve"] if point["batch_size"] == 11]
    assert list(ring.get_xdata()) == [point["tpot_s"]["mid"]]
    assert "11 users asked for" in [key.words for key in figure.keys]
    assert "With 11 at once" in figure.source
    named = {found["slo"]["max_batch_size"], found["slo"]["safe_batch_size"]}
    assert named <= {point["batch_size"] for point in found["curve"]}


def test_without_limits_none_is_drawn_and_the_panel_says_so() -> None:
    figure = figure_of(serving_figure(estimated()))
    assert not [line for line in drawn(figure).lines if line.get_color() == LIGHT.orange]
    assert figure.panels[0].note == "no limit asked for"


def test_an_estimate_without_a_curve_has_no_serving_figure() -> None:
    assert serving_figure({**estimated(), "curve": []}) is None


def test_capacity_marks_what_binds_at_each_context() -> None:
    found = [
        *(
            estimated("h100-sxm", n, max_num_seqs=16, prompt_len=n - 256, output_len=256)
            for n in (2048, 131072)
        ),
        estimated("rtx-3080", 8192, prompt_len=7936, output_len=256),
        estimated("l40s", 8192, prompt_len=7936, output_len=256, tpot_s=0.05),
    ]
    figure = figure_of(capacity_figure(found))
    names = [panel.title.partition(",")[0] for panel in figure.panels]
    assert names == ["h100-sxm", "rtx-3080", "l40s"]
    h100, rtx, l40s = (drawn(figure, number) for number in range(3))
    assert points_of(h100, LIGHT.green, "s") == [(2048, 16)]
    assert points_of(h100, LIGHT.blue) == [(131072, found[1]["settings"]["batch_size"])]
    assert [n for n, _ in points_of(rtx, LIGHT.purple, "X")] == [8192]
    assert points_of(l40s, LIGHT.orange, "^") == [(8192, found[3]["slo"]["max_batch_size"])]


def test_a_deployment_that_serves_nobody_is_drawn_at_a_zero_that_the_axis_names() -> None:
    found = [
        estimated("l40s", n, prompt_len=n - 256, output_len=256, tpot_s=0.025)
        for n in (2048, 8192, 65536)
    ]
    assert [one["slo"]["max_batch_size"] for one in found][-1] == 0
    figure = figure_of(capacity_figure(found))
    points = dict(points_of(drawn(figure), LIGHT.orange, "^"))
    assert figure.y.show(points[65536]) == "0"
    assert points[65536] in figure.y.ticks
    assert figure.y.low < points[65536] < 1
    assert "TPOT 25 ms" in figure.source


def test_deployments_of_which_none_fits_have_no_capacity_figure() -> None:
    assert capacity_figure([estimated("rtx-3080", 8192)]) is None
    assert capacity_figure([]) is None


def test_a_comparison_shows_each_ratio_with_its_interval_and_says_what_has_none() -> None:
    found = document("compare")
    figure = figure_of(comparison_figure(found))
    assert [panel.title for panel in figure.panels] == ["Latency", "Peak memory", "KV cache"]
    ratios = [
        metric["ratio"]["mid"]
        for workload in found["workloads"]
        for metric in workload["metrics"]
        if metric["metric"] == "latency" and metric["verdict"] == "regressed"
    ]
    assert ratios
    points = points_of(drawn(figure), LIGHT.orange, "s")
    assert sorted(x for x, _ in points) == sorted(ratios)
    panels = [drawn(figure, number) for number in range(len(figure.panels))]
    regressed = {y for axes in panels for _, y in points_of(axes, LIGHT.orange, "s")}
    others = set(range(len(figure.y.ticks))) - regressed
    assert others
    assert max(regressed) < min(others)  # from above: what regressed in any metric comes first
    assert "without a ratio" in figure.source
    assert "regressed" in figure.title


def test_a_comparison_on_a_synthetic_device_says_that_nothing_was_measured() -> None:
    found = document("compare")
    assert figure_of(comparison_figure(found)).source.startswith("Measured")
    found["new"]["facts"] = {"kind": "synthetic"}
    assert "not measured" in figure_of(comparison_figure(found)).source


@pytest.mark.parametrize("furthest", [1.02, 3.0, 4000.0, 0.001])
def test_each_panel_of_a_comparison_has_an_axis_that_holds_its_own_ratios(furthest: float) -> None:
    found = document("compare")
    metrics = [
        metric
        for workload in found["workloads"]
        for metric in workload["metrics"]
        if metric["metric"] == "peak_memory" and metric["ratio"]["mid"] is not None
    ]
    metrics[0] |= {"ratio": {"mid": furthest, "low": None, "high": None}, "verdict": "regressed"}
    figure = figure_of(comparison_figure(found))
    latency, memory, *_ = (panel.x for panel in figure.panels)
    assert latency is not None
    assert memory is not None
    assert memory.low < min(1.0, furthest) <= max(1.0, furthest) < memory.high
    assert latency.high < 10  # however far memory went
    for axis in (latency, memory):
        assert len(axis.ticks) >= 2
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


def test_a_comparison_of_equals_shows_latency_alone() -> None:
    found = document("compare")
    for workload in found["workloads"]:
        for metric in workload["metrics"]:
            metric["verdict"] = "same"
            metric["ratio"] = {"mid": 1.0, "low": 0.99, "high": 1.01}
    figure = figure_of(comparison_figure(found))
    assert [panel.title for panel in figure.panels] == ["Latency"]


def test_a_comparison_without_ratios_is_no_figure() -> None:
    found = document("compare")
    found["workloads"] = []
    assert comparison_figure(found) is None


def test_a_history_shows_levels_changes_and_what_else_changed() -> None:
    found = document("history")
    figure = figure_of(history_figure(found))
    for number, course in enumerate(found["courses"]):
        axes = drawn(figure, number)
        assert len(points_of(axes, LIGHT.blue)) == len(course["points"])
        levels = [line for line in axes.lines if line.get_color() == LIGHT.orange]
        assert len(levels) == len({point["level"] for point in course["points"]})
        changes = [line for line in axes.lines if line.get_color() == LIGHT.purple]
        assert len(changes) == len(course["changes"])
        for line, change in zip(changes, course["changes"], strict=True):
            days = [datetime.fromisoformat(one["started"]) for one in course["points"]]
            changed = datetime.fromisoformat(change["started"])
            before = max(day for day in days if day < changed)
            assert before.timestamp() < 86400 * line.get_xdata()[0] < changed.timestamp()
    assert "torch 2.12.0 → 2.13.0" in figure.alt


def test_courses_with_news_come_first_and_one_run_alone_is_no_course() -> None:
    found = document("history")
    quiet = copy.deepcopy(found["courses"][0])
    quiet |= {"shape": None, "changes": [], "verdict": "same", "points": quiet["points"][:2]}
    found["courses"] = [quiet, *found["courses"]]
    figure = figure_of(history_figure(found))
    assert figure.panels[-1].note.startswith("same")
    found["courses"] = [quiet]
    alone = figure_of(history_figure(found))
    assert len(alone.panels) == 1
    assert "its level changed" not in {key.words for key in alone.keys}
    quiet["points"] = quiet["points"][:1]
    assert history_figure(found) is None


def test_the_axis_of_a_history_holds_the_intervals_of_its_runs() -> None:
    found = document("history")
    found["courses"][0]["points"][0]["error"] = 0.3
    figure = figure_of(history_figure(found))
    assert figure.y.low < 0.45
