"""A run and its fits -> small charts of text: time and memory against length, with their laws."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.errors import CannotMeasureError
from attnprof.figures.axes import bytes_axis, lengths_axis, seconds_axis
from attnprof.figures.base import Axis
from attnprof.figures.growth import FEWEST_POINTS
from attnprof.fit import predict
from attnprof.render import plain
from attnprof.series import Record, Series, group_series

MOST_CHARTS = 6
_ROWS, _LABEL, _GAP = 9, 9, 3
_LEAST_COLUMNS, _USUAL_COLUMNS, _MOST_COLUMNS = 8, 30, 44
_MOST_ACROSS = 3
_KINDS = (
    ("latency", ("seq_len",), "Time of a call against sequence length [tokens]"),
    ("latency", ("kv_len",), "Time of a step against the length of its KV cache [tokens]"),
    ("peak_memory", ("seq_len", "kv_len"), "Peak memory of a call against length [tokens]"),
)


@dataclass(frozen=True)
class Marks:
    """The signs that a chart is drawn with."""

    point: str = "●"
    law: str = "·"
    corner: str = "└"
    down: str = "│"
    along: str = "─"


# Where the output holds no other.
ASCII = Marks(point="o", law=".", corner="+", down="|", along="-")


def run_charts(
    records: Sequence[Record], fits: Mapping[str, Any], width: int, marks: Marks | None = None
) -> str:
    """A small chart for each series of three points, side by side, no wider than ``width``.

    Both axes are logarithmic, and alike in all charts of one kind.
    """
    used = marks or Marks()
    pairs = list(zip(group_series(records), fits["series"], strict=True))
    blocks = []
    for quantity, axes, title in _KINDS:
        shown = [
            (series, fit)
            for series, fit in pairs
            if series.quantity == quantity
            and series.axis in axes
            and len(series.n) >= FEWEST_POINTS
        ]
        if shown:
            blocks.append(_block(title, shown, width, used))
    return "\n".join(blocks)


def _block(
    title: str, shown: Sequence[tuple[Series, Mapping[str, Any]]], width: int, marks: Marks
) -> str:
    few = shown[:MOST_CHARTS]
    x = lengths_axis("", [n for series, _ in few for n in series.n])
    make_y = seconds_axis if few[0][0].quantity == "latency" else bytes_axis
    y = make_y("", [value for series, _ in few for value in series.values])
    room = width - _LABEL + _GAP
    across = max(1, min(_MOST_ACROSS, room // (_USUAL_COLUMNS + 1 + _GAP)))
    columns = max(_LEAST_COLUMNS, min(_MOST_COLUMNS, room // across - _GAP - 1))
    more = len(shown) - len(few)
    left = f", {len(few)} of {len(shown)} series" if more else ""
    words = f"{title}; {marks.point} measured, {marks.law} law{left}"
    lines = textwrap.wrap(words, width)
    for start in range(0, len(few), across):
        charts = [_chart(*one, x, y, columns, marks) for one in few[start : start + across]]
        labels = _y_labels(y)
        for number, parts in enumerate(zip(*charts, strict=True)):
            head = labels.get(number, "").rjust(_LABEL - 1) + " "
            lines.append((head + (" " * _GAP).join(parts)).rstrip())
        lines.append("")
    return "\n".join(lines)


def _y_labels(y: Axis) -> dict[int, str]:
    """By line of a chart, its title and its uppermost row included; no two in one line."""
    return {_row(y, tick) + 1: plain(y.show(tick)) for tick in y.ticks}


def _row(y: Axis, value: float) -> int:
    return round((_ROWS - 1) * (1 - _share(y, value)))


def _share(axis: Axis, value: float) -> float:
    return math.log(value / axis.low) / math.log(axis.high / axis.low)


def _chart(
    series: Series, fit: Mapping[str, Any], x: Axis, y: Axis, columns: int, marks: Marks
) -> list[str]:
    """Its lines, each as wide as the chart: the title, the rows, the axis and its labels."""
    canvas = [[" "] * columns for _ in range(_ROWS)]
    for column in range(columns):
        n = x.low * (x.high / x.low) ** (column / (columns - 1))
        value = _law_at(fit, n)
        if value is not None and y.low <= value <= y.high:
            canvas[_row(y, value)][column] = marks.law
    for n, value in zip(series.n, series.values, strict=True):
        canvas[_row(y, value)][_column(x, n, columns)] = marks.point
    clock = " (CPU)" if series.clock == "cpu" else ""
    title = plain(series.name)
    room = columns + 1 - len(clock)
    title = (title if len(title) <= room else f"{title[: room - 2]}..") + clock
    labels = [" "] * (columns + 1)
    for tick in x.ticks:
        words, start = plain(x.show(tick)), 1 + _column(x, tick, columns)
        start = min(start, columns + 1 - len(words))
        if all(sign == " " for sign in labels[max(0, start - 1) : start + len(words)]):
            labels[start : start + len(words)] = words
    return [
        title.ljust(columns + 1),
        *(marks.down + "".join(row) for row in canvas),
        marks.corner + marks.along * columns,
        "".join(labels),
    ]


def _column(x: Axis, n: float, columns: int) -> int:
    return round((columns - 1) * _share(x, n))


def _law_at(fit: Mapping[str, Any], n: float) -> float | None:
    try:
        value = predict(fit, n)
    except CannotMeasureError:
        return None
    return value if value > 0 else None
