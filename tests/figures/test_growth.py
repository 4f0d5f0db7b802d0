"""Time and memory against length: what is drawn is what was measured and fitted."""

import json
from typing import Any

import pytest

from attnprof.figures.base import DARK, LIGHT
from attnprof.figures.growth import decode_figure, latency_figure, memory_figure
from attnprof.fit import fit_run, predict
from attnprof.regression import half_widths_at, polynomial_law
from attnprof.series import group_series
from tests.figures.run import GOLDEN, Parts, drawn, points_of, run_of

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def parts() -> Parts:
    return run_of(GOLDEN)


def planted(
    law: tuple[float, float, float], lengths: tuple[int, ...], **more: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run whose times follow ``a + b·n + c·n²`` to the digit."""
    records = [
        {
            "workload_id": f"w{n}", "status": "ok", "phase": "prefill", "attention": "self",
            "backend": "eager", "dtype": "float32", "batch_size": 1, "q_len": n, "kv_len": n,
            "clock": "wall", "median_s": law[0] + law[1] * n + law[2] * n * n,
            "median_low_s": None, "median_high_s": None, "flags": [], **more,
        }
        for n in lengths
    ]  # fmt: skip
    header = {"facts": {"name": "A CPU"}, "conditions": {"device_kind": "cpu"}}
    return header, records


def test_each_series_is_a_panel_whose_points_are_its_medians(parts: Parts) -> None:
    header, records, fits = parts
    figure = latency_figure(header, records, fits)
    assert figure is not None
    series = [
        one for one in group_series(records)
        if one.quantity == "latency" and one.axis == "seq_len" and len(one.n) >= 3
    ]  # fmt: skip
    assert [panel.title for panel in figure.panels] == [one.name for one in series]
    for number, one in enumerate(series):
        points = points_of(drawn(figure, number), LIGHT.blue)
        assert points == list(zip(one.n, one.values, strict=True))
        assert one.name in figure.alt


def test_the_law_is_that_of_the_fit_and_its_band_holds_it(parts: Parts) -> None:
    header, records, fits = parts
    figure = latency_figure(header, records, fits)
    assert figure is not None
    axes = drawn(figure)
    fitted = next(one for one in fits["series"] if one["name"] == figure.panels[0].title)
    lines = [line for line in axes.lines if line.get_color() == LIGHT.orange]
    assert lines
    for line in lines:
        for n, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
            assert value == pytest.approx(predict(fitted, n))
    (band, *_) = axes.collections
    low = min(y for _, y in band.get_paths()[0].vertices)
    assert low <= min(lines[0].get_ydata())


def test_the_asymptote_is_the_quadratic_term_alone() -> None:
    header, records = planted((1e-3, 1e-6, 2e-9), (256, 512, 1024, 2048, 4096))
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    (line,) = [line for line in drawn(figure).lines if line.get_color() == LIGHT.green]
    for n, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert value == pytest.approx(2e-9 * n * n, rel=0.01)


def test_a_law_that_does_not_hold_is_not_drawn_and_the_panel_says_so() -> None:
    header, records = planted((0.0, 0.0, 1e-9), (256, 512, 1024, 2048))
    records[2]["median_s"] *= 3
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    assert not [line for line in drawn(figure).lines if line.get_color() == LIGHT.orange]
    assert "no law" in figure.panels[0].note


def test_bars_are_the_interval_of_the_record_and_the_axis_holds_them() -> None:
    header, records = planted((0.0, 0.0, 1e-9), (256, 512, 1024, 2048))
    low_s, high_s = 0.5 * records[0]["median_s"], 9 * records[-1]["median_s"]
    records[0]["median_low_s"], records[-1]["median_high_s"] = low_s, high_s
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    (bars,) = drawn(figure).containers
    ends = [y for path in bars.lines[2][0].get_paths() for _, y in path.vertices]
    assert min(ends) == pytest.approx(low_s)
    assert max(ends) == pytest.approx(high_s)
    assert figure.y.low < low_s
    assert figure.y.high > high_s


def test_the_asymptote_ends_where_nothing_is_foretold() -> None:
    header, records = planted((1e-3, 1e-6, 2e-9), (256, 1024, 4096))
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    (line,) = [line for line in drawn(figure).lines if line.get_color() == LIGHT.green]
    assert max(line.get_xdata()) <= 4096


def test_without_a_spare_point_nothing_is_foretold_and_the_panel_says_so() -> None:
    header, records = planted((1e-3, 1e-6, 2e-9), (256, 1024, 4096))
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    (law,) = [line for line in drawn(figure).lines if line.get_color() == LIGHT.orange]
    assert max(law.get_xdata()) <= 4096
    assert "3 points give the law no interval" in figure.panels[0].note
    words = {key.words for key in figure.keys}
    assert not words & {"where it foretells", "its 95 % interval"}


def test_decodes_are_in_their_own_figure_by_the_length_of_the_cache(parts: Parts) -> None:
    header, records, fits = parts
    figure = decode_figure(header, records, fits)
    assert figure is not None
    assert all("prefill" not in panel.title for panel in figure.panels)
    assert "KV length [tokens]" in figure.x.label


def test_where_memory_is_full_is_marked_on_the_devices_limit(parts: Parts) -> None:
    header, records, fits = parts
    figure = memory_figure(header, records, fits)
    assert figure is not None
    marked = 0
    for number, panel in enumerate(figure.panels):
        full = [one for one in fits["passes_device"] if one["name"] == panel.title]
        crosses = points_of(drawn(figure, number), LIGHT.purple, "X")
        if crosses:
            assert crosses == [(full[0]["seq_len"], full[0]["device_bytes"])]
            marked += 1
    assert marked


def test_the_foretold_total_reaches_the_device_at_the_length_that_fills_it(parts: Parts) -> None:
    for one in parts[2]["passes_device"]:
        if one["seq_len"] is not None:
            total, n = one["total_bytes"], one["seq_len"]
            at, beyond = (sum(c * m**k for k, c in enumerate(total)) for m in (n, n + 1))
            assert at <= one["device_bytes"] * (1 + 1e-9)
            assert beyond > one["device_bytes"] * (1 - 1e-9)


def test_figures_of_a_synthetic_device_say_so() -> None:
    header, records = planted((0.0, 0.0, 1e-9), (256, 512, 1024))
    header["conditions"] = {"device_kind": "synthetic"}
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    assert "not measured" in figure.source


def test_no_series_of_three_points_is_no_figure() -> None:
    header, records = planted((0.0, 0.0, 1e-9), (256, 512))
    fits = fit_run(header, records)
    assert latency_figure(header, records, fits) is None
    assert memory_figure(header, [], fit_run(header, [])) is None


def test_a_series_alone_has_no_others_behind_it_and_no_key_for_them() -> None:
    header, records = planted((0.0, 0.0, 1e-9), (256, 512, 1024))
    figure = latency_figure(header, records, fit_run(header, records))
    assert figure is not None
    assert "other series" not in {key.words for key in figure.keys}
    assert not [line for line in drawn(figure).lines if line.get_color() == LIGHT.ghost]


def test_of_many_series_nine_are_drawn_and_the_source_says_how_many_there_are() -> None:
    header, records = planted((0.0, 0.0, 1e-9), (256, 512, 1024))
    many = [
        json.loads(json.dumps(record)) | {"num_q_heads": heads, "workload_id": f"{heads} {n}"}
        for heads in range(1, 13)
        for n, record in enumerate(records)
    ]
    figure = latency_figure(header, many, fit_run(header, many))
    assert figure is not None
    assert len(figure.panels) == 9
    assert "9 of 12 series" in figure.source
    figure.panels[8].draw(_any_axes(), DARK)


def _any_axes() -> Any:
    from matplotlib.figure import Figure as Canvas

    return Canvas().add_subplot()


def test_the_band_is_as_wide_as_the_coefficients_say_where_one_term_rules() -> None:
    x = [float(2**k) for k in range(8)]
    y = [3 * n * n * (1 + 0.01 * (-1) ** i) for i, n in enumerate(x)]
    sd = [0.01] * len(x)
    law = polynomial_law(x, y, sd, 2)
    far = 1e6
    (half,) = half_widths_at([far], x, y, sd, 2) or [0.0]
    top = law.top[0]
    assert top.low is not None
    assert top.high is not None
    assert half / far**2 == pytest.approx((top.high - top.low) / 2, rel=0.01)
    assert half_widths_at([far], x[:3], y[:3], sd[:3], 2) is None
