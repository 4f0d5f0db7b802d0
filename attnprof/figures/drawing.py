"""A figure -> SVG or PNG, in a light or a dark theme, wide or for a phone."""

import html
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.errors import CannotMeasureError, UsageError, to_install
from attnprof.figures.base import LIGHT, Axis, Figure, Key, Theme
from attnprof.files import write_whole
from attnprof.render import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SUFFIXES = (".svg", ".png")
_FONT = "DejaVu Sans"
# The font that the layout is measured in is the widest of these, so no text runs out of its place.
_FAMILIES = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_DPI = 160
_PLACES = re.compile(r'\b(?:d|x|y|width|height|points)="[^"]*"')
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[num]?s|[KMGTP]i?B|B)\b|%)")  # goes with its number
_DECIMALS = re.compile(r"(\.\d\d)\d+")  # of a point, which nobody sees
# Of the layout, all in inches.
_WIDE, _NARROW = 7.6, 3.7
_PANEL_HEIGHT = {1: 3.0, 2: 1.9, 3: 1.55}  # by the number of columns
_PHONE_PANEL_HEIGHT = 2.2
_EDGE, _RIGHT, _GAP = 0.1, 0.12, 0.16
_TITLE_LINE, _KEY_LINE, _PANEL_LINE, _SOURCE_LINE = 0.19, 0.17, 0.15, 0.13
_TICKS = 0.28
_MOST_LINES = 3  # of a title or label: names of models may have any length
_HEAD_ROOM = 0.1  # below the title and note of a panel
_CHARS_PER_INCH = 16.5  # of text of 8 points


def svg_text(figure: Figure, theme: Theme = LIGHT, *, narrow: bool = False) -> str:
    """The figure as SVG whose text is text; the same figure gives the same bytes.

    Raises:
        CannotMeasureError: matplotlib is not installed.
    """
    text = _drawn(figure, theme, narrow, "svg").decode().replace(f"'{_FONT}'", _FAMILIES)
    text = _PLACES.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), text)
    return text.replace("<svg ", f'<svg role="img" {aria_label(figure)} ', 1)


def aria_label(figure: Figure) -> str:
    """What a reader who does not see a figure is told, as it stands in its SVG."""
    said = figure.alt if figure.alt.startswith(figure.title) else f"{figure.title}. {figure.alt}"
    return f'aria-label="{html.escape(plain(said))}"'


def png_bytes(figure: Figure, theme: Theme = LIGHT, *, narrow: bool = False) -> bytes:
    """The figure as PNG.

    Raises:
        CannotMeasureError: matplotlib is not installed.
    """
    return _drawn(figure, theme, narrow, "png")


def write_figure(figure: Figure, path: Path, theme: Theme = LIGHT) -> None:
    """Write a figure to a file that is named ``.svg`` or ``.png``.

    Raises:
        UsageError: Another suffix, or a file that cannot be written.
        CannotMeasureError: matplotlib is not installed.
    """
    _check_suffix(path)
    is_png = path.suffix.lower() == ".png"
    content = png_bytes(figure, theme) if is_png else svg_text(figure, theme).encode()
    write_whole(path, content, "make room, or name another file")


def check_can_draw(path: Path) -> None:
    """That a figure can be written under that name, before the work that it will show.

    Raises:
        UsageError: It is neither ``.svg`` nor ``.png``, or in no folder.
        CannotMeasureError: matplotlib is not installed.
    """
    _check_suffix(path)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to draw in", "make it, or name another")
    if find_spec("matplotlib") is None:
        raise _no_matplotlib()


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is neither .svg nor .png", f"write {path.stem or 'figure'}.svg")


def _no_matplotlib() -> CannotMeasureError:
    return CannotMeasureError(
        "figures are drawn by matplotlib, which is not installed", to_install("figures")
    )


def with_variables(svg: str, theme: Theme = LIGHT) -> str:
    """An SVG for within a page: each colour of its theme as a CSS variable, ``--blue``.

    >>> with_variables('<path style="fill: #0072b2"/>')
    '<path style="fill: var(--blue)"/>'
    """
    names = {value: name for name, value in vars(theme).items() if value.startswith("#")}
    return re.sub(
        "|".join(names), lambda found: f"var(--{names[found[0].lower()]})", svg, flags=re.IGNORECASE
    )


def _drawn(figure: Figure, theme: Theme, narrow: bool, kind: str) -> bytes:
    try:
        import matplotlib as mpl
    except ImportError:
        raise _no_matplotlib() from None
    written = io.BytesIO()
    with mpl.rc_context(_settings(theme, figure.name)):
        canvas = _canvas(_layout(figure, narrow), theme)
        metadata: Any = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        canvas.savefig(
            written, format=kind, metadata=metadata, facecolor=theme.background, dpi=_DPI
        )
    return written.getvalue()


def _settings(theme: Theme, salt: str) -> Any:
    return {
        "font.family": _FONT,
        "font.size": 8.0,
        "text.color": theme.ink,
        "text.parse_math": False,  # names hold $ and _ that mean themselves
        "axes.edgecolor": theme.muted,
        "axes.labelcolor": theme.ink,
        "axes.facecolor": theme.background,
        "axes.linewidth": 0.7,
        "axes.unicode_minus": True,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
    }


@dataclass(frozen=True)
class _Layout:
    """Where everything is, in inches from the upper left corner.

    Args:
        above: What each row of panels has above it, for the titles and notes.
        below: What each row has below it, for the labels of the x axis where a column ends.
    """

    figure: Figure
    columns: int
    width: float
    title: str
    source: str
    key_lines: list[list[tuple[float, Key]]]
    left: float
    panel_width: float
    panel_height: float
    titles: list[str]
    notes: list[str]
    above: list[float]
    below: list[float]

    @property
    def top(self) -> float:
        """Where the rows of panels begin."""
        keys = _KEY_LINE * len(self.key_lines)
        return 0.12 + _TITLE_LINE * _num_lines(self.title) + keys + 0.06

    @property
    def bottom(self) -> float:
        """From the lower end of the panels to that of the figure."""
        return 0.58 + _SOURCE_LINE * _num_lines(self.source)

    @property
    def height(self) -> float:
        rows = sum(self.above) + sum(self.below) + len(self.above) * self.panel_height
        return self.top + rows + self.bottom

    def place(self, index: int) -> tuple[float, float]:
        """The upper left corner of a panel."""
        row, column = divmod(index, self.columns)
        y = self.top + sum(self.above[: row + 1]) + sum(self.below[:row]) + row * self.panel_height
        return self.left + column * (self.panel_width + _GAP), y


def _layout(figure: Figure, narrow: bool) -> _Layout:
    count = len(figure.panels)
    columns = 1 if narrow or count == 1 else 2 if count <= 4 else 3
    rows = math.ceil(count / columns)
    width = _NARROW if narrow else _WIDE
    left = _left(figure.y, width)
    panel_width = (width - left - _RIGHT - _GAP * (columns - 1)) / columns
    titles = [wrapped(panel.title, panel_width, 9.0, _MOST_LINES) for panel in figure.panels]
    notes = [wrapped(panel.note, panel_width, 7.0, 2 * _MOST_LINES) for panel in figure.panels]
    heads = [
        _num_lines(title) + _num_lines(note) for title, note in zip(titles, notes, strict=True)
    ]
    return _Layout(
        figure=figure,
        columns=columns,
        width=width,
        title=wrapped(figure.title, width - 2 * _EDGE, 12.0, _MOST_LINES),
        source=wrapped(figure.source, width - 2 * _EDGE, 7.0),
        key_lines=_key_lines(figure.keys, width - 2 * _EDGE),
        left=left,
        panel_width=panel_width,
        panel_height=figure.panel_in or (_PHONE_PANEL_HEIGHT if narrow else _PANEL_HEIGHT[columns]),
        titles=titles,
        notes=notes,
        above=[
            _PANEL_LINE * max(heads[row * columns : (row + 1) * columns]) + _HEAD_ROOM
            for row in range(rows)
        ],
        below=[
            _TICKS
            if (row + 2) * columns > count or any(panel.x for panel in figure.panels)
            else 0.1
            for row in range(rows - 1)
        ],
    )


def wrapped(text: str, width: float, size: float, most_lines: int | None = None) -> str:
    """Text in lines no longer than a width in inches, at a size in points.

    Args:
        most_lines: Of each line of the text, an ellipsis for what has no room in them.
    """
    most = max(10, int(width * _CHARS_PER_INCH * 8.0 / size))
    lines = [_UNIT.sub("\N{NO-BREAK SPACE}", plain(line)) for line in text.split("\n")]
    return "\n".join(
        textwrap.fill(line, most, max_lines=most_lines, placeholder=" …") for line in lines
    )


def _num_lines(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _left(axis: Axis, width: float) -> float:
    """Room for the label of the y axis and those of its ticks, which may be wrapped."""
    longest = max(len(plain(axis.show(tick))) for tick in axis.ticks)
    return min(0.44 + longest / _CHARS_PER_INCH, 0.42 * width)


def _key_lines(keys: Sequence[Key], width: float) -> list[list[tuple[float, Key]]]:
    """The keys in lines, each with the place where it begins."""
    lines: list[list[tuple[float, Key]]] = []
    x = width
    for key in keys:
        needed = 0.5 + len(key.words) / _CHARS_PER_INCH
        if not lines or x + needed > width:
            lines.append([])
            x = _EDGE
        lines[-1].append((x, key))
        x += needed
    return lines


class _Pen:
    """Draws on a canvas at places in inches from its upper left corner."""

    def __init__(self, layout: _Layout) -> None:
        from matplotlib.figure import Figure as Canvas

        self.width, self.height = layout.width, layout.height
        self.canvas: Canvas = Canvas(figsize=(self.width, self.height))

    def write(self, x: float, y: float, text: str, **look: Any) -> None:
        look = {"va": "top", "ha": "left", **look}
        self.canvas.text(x / self.width, 1 - y / self.height, text, **look)

    def axes(self, x: float, y: float, width: float, height: float) -> "Axes":
        lower = 1 - (y + height) / self.height
        return self.canvas.add_axes(
            (x / self.width, lower, width / self.width, height / self.height)
        )

    def key(self, x: float, y: float, key: Key, theme: Theme) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        colour = getattr(theme, key.colour)
        start, stop, middle = x / self.width, (x + 0.22) / self.width, 1 - y / self.height
        if key.look in ("band", "area"):
            corner = (start, middle - 0.045 / self.height)
            patch = Rectangle(corner, stop - start, 0.09 / self.height, color=colour, linewidth=0)
            patch.set_alpha(0.3 if key.look == "band" else 0.85)
            patch.set_transform(self.canvas.transFigure)
            self.canvas.add_artist(patch)
        elif key.look in ("point", "hollow", "ring"):
            size: Any = {"ms": 7 if key.look == "ring" else 4}
            size |= {} if key.look == "point" else {"mfc": "none"}
            self.canvas.add_artist(
                Line2D(
                    [(start + stop) / 2], [middle], color=colour, marker=key.marker, lw=0, **size
                )
            )
        else:
            dashes: Any = {"line": "-", "dashes": (0, (4, 2)), "dots": (0, (1, 1.5))}[key.look]
            self.canvas.add_artist(
                Line2D([start, stop], [middle] * 2, color=colour, lw=1.5, ls=dashes)
            )
        self.write(x + 0.28, y, key.words, va="center", fontsize=7.5)


def _canvas(layout: _Layout, theme: Theme) -> "Canvas":
    pen, figure = _Pen(layout), layout.figure
    pen.write(_EDGE, 0.1, layout.title, fontsize=10.5, fontweight="bold")
    y = 0.12 + _TITLE_LINE * _num_lines(layout.title)
    for number, line in enumerate(layout.key_lines):
        for x, key in line:
            pen.key(x, y + number * _KEY_LINE + 0.08, key, theme)
    for index in range(len(figure.panels)):
        _draw_panel(pen, layout, index, theme)
    lower = layout.height - layout.bottom
    label = wrapped(figure.y.label, lower - layout.top, 8.0)
    pen.write(0.12, (layout.top + lower) / 2, label, va="center", rotation=90)
    middle = (layout.left + layout.width - _RIGHT) / 2
    pen.write(middle, lower + 0.33, figure.x.label, va="center", ha="center")
    y = layout.height - 0.06 - _SOURCE_LINE * _num_lines(layout.source)
    pen.write(_EDGE, y, layout.source, fontsize=7.0, color=theme.muted, linespacing=1.25)
    return pen.canvas


def _draw_panel(pen: _Pen, layout: _Layout, index: int, theme: Theme) -> None:
    figure = layout.figure
    panel, (x, y) = figure.panels[index], layout.place(index)
    panel_x = panel.x or figure.x
    line_y = y - layout.above[index // layout.columns] + _PANEL_LINE
    for line in layout.titles[index].splitlines():
        pen.write(x, line_y, line, va="baseline", fontweight="bold")
        line_y += _PANEL_LINE
    for line in layout.notes[index].splitlines():
        pen.write(x, line_y, line, va="baseline", fontsize=7.0, color=theme.muted)
        line_y += _PANEL_LINE
    axes = pen.axes(x, y, layout.panel_width, layout.panel_height)
    axes.set_xscale("log" if panel_x.is_log else "linear")
    axes.set_yscale("log" if figure.y.is_log else "linear")
    is_left, is_lowest = index % layout.columns == 0, index + layout.columns >= len(figure.panels)
    for axis, one, size in ((axes.xaxis, panel_x, math.inf), (axes.yaxis, figure.y, layout.left)):
        shown = [plain(one.show(tick)) for tick in one.ticks]
        if math.isfinite(size):
            shown = [wrapped(text, size - 0.4, 7.5, _MOST_LINES) for text in shown]
        axis.set_ticks(list(one.ticks), shown)
        axis.set_ticks([], minor=True)
        axis.set_tick_params(length=2.5, width=0.6)
    axes.xaxis.set_tick_params(labelbottom=is_lowest or panel.x is not None)
    axes.yaxis.set_tick_params(labelleft=is_left)
    axes.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # First, for a line may lie far beyond them, where matplotlib would divide by zero.
    axes.set_xlim(panel_x.low, panel_x.high)
    axes.set_ylim(figure.y.low, figure.y.high)
    panel.draw(axes, theme)
