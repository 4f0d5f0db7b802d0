"""Figures as files: the same bytes, well-formed, escaped, within their page, told apart by all."""

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.figures import drawing
from attnprof.figures.axes import counts_axis, lengths_axis, linear_axis
from attnprof.figures.base import LIGHT, THEMES, Axis, Figure, Key, Panel, Theme
from attnprof.figures.drawing import png_bytes, svg_text, with_variables, write_figure
from attnprof.figures.of_run import run_figures
from tests.figures.run import GOLDEN, run_of

pytest.importorskip("matplotlib")

NASTY = 'a_$b$ <script>alert("1")</script> & \x1b[31m ]]>'


def draw_line(axes: Any, theme: Theme) -> None:
    axes.plot([1024, 4096], [1024, 4096], color=theme.blue)


def nasty_figure(num_panels: int = 1) -> Figure:
    axis = lengths_axis("Length [tokens]", [1024, 4096])
    return Figure(
        name="nasty", title=NASTY, alt=NASTY, source=NASTY, x=axis, y=axis,
        panels=tuple(
            Panel(NASTY, NASTY, draw_line) for _ in range(num_panels)
        ),
        keys=(Key("measured", "blue", "point"),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def figures() -> list[Figure]:
    return run_figures(*run_of(GOLDEN))


def test_a_run_has_all_figures_that_it_has_the_numbers_for(figures: list[Figure]) -> None:
    names = [figure.name for figure in figures]
    assert names == ["latency", "decode", "memory", "kv", "kv-growth", "roofline"]


def test_the_same_figure_gives_the_same_bytes(figures: list[Figure]) -> None:
    assert svg_text(figures[0]) == svg_text(figures[0])
    assert png_bytes(figures[0]) == png_bytes(figures[0])


@pytest.mark.parametrize("narrow", [False, True])
def test_every_figure_says_its_units_its_source_and_its_words_and_asks_nothing_of_a_network(
    figures: list[Figure], narrow: bool
) -> None:
    for figure in figures:
        svg = svg_text(figure, narrow=narrow)
        root = ET.fromstring(svg)
        text = " ".join(" ".join(root.itertext()).split())
        for axis in (figure.x, figure.y):
            assert re.search(r"\[.+\]", axis.label)
            assert " ".join(axis.label.split()) in text
        assert "AMD EPYC" in text
        assert root.attrib["role"] == "img"
        assert figure.alt.split()[0] in root.attrib["aria-label"]
        assert len(figure.alt) > 60
        links = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', svg)
        assert all((a or b).startswith("#") for a, b in links)


@pytest.mark.parametrize("narrow", [False, True])
def test_no_text_runs_out_of_the_page_or_into_other_text(
    figures: list[Figure], narrow: bool
) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for figure in figures:
        with mpl.rc_context(drawing._settings(LIGHT, "test")):
            canvas = drawing._canvas(drawing._layout(figure, narrow), LIGHT)
            painted: Any = FigureCanvasAgg(canvas)
            renderer = painted.get_renderer()
            width, height = canvas.get_size_inches() * canvas.dpi
            texts = [t for t in canvas.texts if t.get_text()]
            boxes = [text.get_window_extent(renderer) for text in texts]
            ticks = [
                label.get_window_extent(renderer)
                for axes in canvas.axes
                for label in axes.get_yticklabels()
                if label.get_text() and axes.yaxis.get_tick_params()["labelleft"]
            ]
        for text, box in zip(texts, boxes, strict=True):
            inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
            assert inside, (figure.name, text.get_text())
        for (text, box), (other, its) in itertools.combinations(zip(texts, boxes, strict=True), 2):
            assert not box.padded(-1).overlaps(its), (text.get_text(), other.get_text())
        for box in ticks:
            assert box.x0 >= 0, figure.name


@pytest.mark.parametrize("num_panels", [1, 2, 5, 9])
def test_what_names_hold_is_text_and_no_markup(num_panels: int) -> None:
    root = ET.fromstring(svg_text(nasty_figure(num_panels)))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "script" not in tags
    text = " ".join(root.itertext())
    assert "a_$b$" in text
    assert "\x1b" not in text


def test_colours_become_variables_each_its_own() -> None:
    svg = with_variables(svg_text(nasty_figure()))
    assert "var(--ink)" in svg
    assert LIGHT.ink not in svg
    values = [value for value in vars(LIGHT).values() if value.startswith("#")]
    assert len(values) == len(set(values))


def _linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def _luminance(colour: str) -> float:
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), _linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_text_and_marks_have_contrast_enough(theme: Theme) -> None:
    for text in (theme.ink, theme.muted):
        assert contrast(text, theme.background) >= 4.5
    for mark in (theme.blue, theme.orange, theme.green, theme.purple, theme.grey):
        assert contrast(mark, theme.background) >= 3


# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0; of linear RGB.
_BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "nobody": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}  # fmt: skip


def _lab(rgb: list[float]) -> list[float]:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(w * max(0.0, c) for w, c in zip(row, rgb, strict=True)) for row in rows]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("blindness", _BLIND)
@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_colours_that_share_a_panel_are_told_apart_by_people_who_see_few(
    theme: Theme, blindness: str
) -> None:
    def seen(colour: str) -> list[float]:
        linear = _linear(colour)
        return _lab(
            [sum(w * c for w, c in zip(row, linear, strict=True)) for row in _BLIND[blindness]]
        )

    pairs = (
        ("blue", "orange"), ("blue", "green"), ("orange", "green"), ("blue", "purple"),
        ("orange", "purple"), ("green", "purple"),
    )  # fmt: skip
    for one, other in pairs:
        a, b = seen(getattr(theme, one)), seen(getattr(theme, other))
        apart = sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5
        assert apart >= 10, (one, other, apart)


def test_a_file_is_written_by_its_suffix_and_another_is_refused(tmp_path: Path) -> None:
    write_figure(nasty_figure(), tmp_path / "a.svg")
    write_figure(nasty_figure(), tmp_path / "a.png")
    ET.parse(tmp_path / "a.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"neither \.svg nor \.png"):
        write_figure(nasty_figure(), tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="cannot write"):
        write_figure(nasty_figure(), tmp_path / "no" / "a.svg")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(CannotMeasureError) as raised:
        svg_text(nasty_figure())
    assert raised.value.fix == "pip install '.[figures]' in the checkout of attnprof"


@pytest.mark.parametrize(
    ("low", "high"), [(1, 2), (1, 1e9), (3e-7, 4e-7), (1e-6, 5e3), (999, 1001)]
)
def test_every_axis_is_labelled_within_its_ends(low: float, high: float) -> None:
    for axis in (
        counts_axis("x", [low, high], str), lengths_axis("x", [low, high]),
        linear_axis("x", low, high, str),
    ):  # fmt: skip
        assert 1 <= len(axis.ticks) <= 12
        slack = 1e-9 * max(abs(axis.low), abs(axis.high))
        assert all(axis.low - slack <= tick <= axis.high + slack for tick in axis.ticks)


@pytest.mark.parametrize("name", ["x" * 5000, "many words " * 500])
def test_a_name_of_any_length_leaves_a_figure_its_height(name: str) -> None:
    def height(title: str) -> float:
        figure = nasty_figure()
        panels = tuple(replace(panel, title=title) for panel in figure.panels)
        root = ET.fromstring(svg_text(replace(figure, title=title, panels=panels)))
        return float(root.attrib["height"].removesuffix("pt"))

    assert height(name) <= height("short") + 72 * 2.0
    assert "…" in svg_text(replace(nasty_figure(), title=name))


def test_a_line_far_beyond_an_axis_is_no_division_by_zero() -> None:
    def draw(axes: Any, theme: Theme) -> None:
        axes.plot([1024, 4096], [1e6, 1e6])
        axes.axhline(2.5e10)

    flat = Axis("Bytes", 7e5, 1.4e6, (1e6,), str)
    figure = replace(nasty_figure(), y=flat, panels=(Panel("p", "", draw),))
    assert svg_text(figure)  # warnings are errors here
