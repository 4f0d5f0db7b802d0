"""A run and its fits -> time and peak memory against length, each series with its law."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.errors import CannotMeasureError
from attnprof.figures.axes import bytes_axis, geometric, lengths_axis, seconds_axis
from attnprof.figures.base import MOST_PANELS, Axis, Figure, Key, Panel, Theme
from attnprof.figures.words import and_more, source_of
from attnprof.findings import interval_words
from attnprof.fit import WORST_RESIDUAL, predict
from attnprof.regression import Z95, half_widths_at
from attnprof.run_header import Header
from attnprof.series import Record, Series, group_series, interval_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST_POINTS = 3
_BEYOND = 4  # times the longest measured length to which a law is drawn, where it holds
_FURTHEST_FULL = 32  # times the longest length: a length that fills memory is drawn up to there
_LEAST_MARGIN = 1e-3  # of a value: a narrower interval is not seen


@dataclass(frozen=True)
class Fitted:
    """A series and what ``fit.json`` says of it."""

    series: Series
    fit: Mapping[str, Any]

    @property
    def first(self) -> int:
        """Index of the first point that the law was fitted to."""
        return self.series.n.index(self.fit["fitted_from"])

    @property
    def has_law(self) -> bool:
        worst = self.fit["worst_residual"]
        return bool(self.fit["coefficients"]) and worst is not None and worst <= WORST_RESIDUAL

    @cached_property
    def lacks_interval(self) -> bool:
        """Whether times have a law without a spare point, so that nothing says how sure it is."""
        somewhere = [(self.fit["fitted_from"], 0.0)]
        return self.series.quantity == "latency" and _band(self, somewhere) is None

    @property
    def quadratic(self) -> float | None:
        """What a pair of tokens costs beyond the last knot; None of what has no such term."""
        coefficients = list((self.fit["coefficients"] or {}).values())
        return coefficients[2] if len(coefficients) == 3 and coefficients[2] > 0 else None


def latency_figure(
    header: Header, records: Sequence[Record], fits: Mapping[str, Any]
) -> Figure | None:
    """Time of a call against the length of a sequence; None where no series has three points."""
    return _times(
        header, _fitted(records, fits, "latency", ("seq_len",)), "latency",
        "Time of a call against sequence length", "Sequence length [tokens]",
    )  # fmt: skip


def decode_figure(
    header: Header, records: Sequence[Record], fits: Mapping[str, Any]
) -> Figure | None:
    """Time of a step against the length of the cache that it reads."""
    return _times(
        header, _fitted(records, fits, "latency", ("kv_len",)), "decode",
        "Time of a step against the length of its KV cache", "KV length [tokens]",
    )  # fmt: skip


def memory_figure(
    header: Header, records: Sequence[Record], fits: Mapping[str, Any]
) -> Figure | None:
    """Peak memory against length, with the device's limit and where it would be reached."""
    found = _fitted(records, fits, "peak_memory", ("seq_len", "kv_len"))
    if not found:
        return None
    shown = found[:MOST_PANELS]
    full = {_key(one): one for one in fits["passes_device"]}
    limits = [full.get(_key(one.fit)) for one in shown]
    reached = [
        limit["seq_len"]
        for one, limit in zip(shown, limits, strict=True)
        if limit and limit["seq_len"] and limit["seq_len"] <= _FURTHEST_FULL * one.series.n[-1]
    ]
    values = [value for one in shown for value in one.series.values]
    device_bytes = next((limit["device_bytes"] for limit in limits if limit), None)
    draws_limit = bool(reached)
    x = lengths_axis("Length [tokens]", [*(n for one in shown for n in one.series.n), *reached])
    y = bytes_axis(
        "Memory [bytes, binary prefixes]",
        [*values, *([device_bytes] if draws_limit and device_bytes else [])],
    )
    panels = tuple(
        _memory_panel(one, limit, [other for other in shown if other is not one], x)
        for one, limit in zip(shown, limits, strict=True)
    )
    keys = [
        Key("measured peak of a call", "blue", "point"),
        Key("its law", "orange", "line"),
        *([Key("other series", "ghost")] if len(shown) > 1 else []),
    ]
    if draws_limit:
        keys += [
            Key("peak, inputs and weights together, foretold", "purple", "dashes"),
            Key("memory of the device", "ink", "dots"),
        ]
    said = [
        f"{one.series.name}: {_memory_words(one, limit)}"
        for one, limit in zip(shown, limits, strict=True)
    ]
    return Figure(
        name="memory",
        title="Peak memory against length" + (", and where it is full" if draws_limit else ""),
        alt=f"Peak memory of a call against length on logarithmic axes. {'. '.join(said)}.",
        source=source_of(header) + "." + and_more(len(shown), len(found), "series"),
        x=x,
        y=y,
        panels=panels,
        keys=tuple(keys),
    )


def _key(fit: Mapping[str, Any]) -> str:
    return f"{fit['name']} {fit['where']}"


def _fitted(
    records: Sequence[Record], fits: Mapping[str, Any], quantity: str, axes: Sequence[str]
) -> list[Fitted]:
    """The series of one quantity along a length that have three points, in the order of the run."""
    pairs = zip(group_series(records), fits["series"], strict=True)
    return [
        Fitted(series, fit)
        for series, fit in pairs
        if series.quantity == quantity and series.axis in axes and len(series.n) >= FEWEST_POINTS
    ]


def _times(
    header: Header, found: Sequence[Fitted], name: str, title: str, x_label: str
) -> Figure | None:
    if not found:
        return None
    shown = found[:MOST_PANELS]
    lengths = [n for one in shown for n in one.series.n]
    x = lengths_axis(x_label, [*lengths, 2 * max(lengths)])
    times_s = [end for one in shown for ends in _intervals(one.series) for end in ends if end > 0]
    beyond_s = [value_s for one in shown for _, value_s in _foretold(one, x.high) if value_s > 0]
    y = seconds_axis("Time [s]", [*times_s, *beyond_s])
    panels = tuple(
        _time_panel(one, [other for other in shown if other is not one], x, y) for one in shown
    )
    with_law = [one for one in shown if one.has_law]
    foretell = any(_foretold(one, x.high) for one in with_law)
    keys = [Key("measured, with 95 % interval", "blue", "point")]
    keys += [Key("fitted law", "orange", "line")] if with_law else []
    keys += [Key("where it foretells", "orange", "dashes")] if foretell else []
    keys += (
        [Key("its 95 % interval", "orange", "band")]
        if any(not one.lacks_interval for one in with_law)
        else []
    )
    keys += (
        [Key("c·n², its asymptote", "green", "dots")] if any(o.quadratic for o in with_law) else []
    )
    keys += [Key("other series", "ghost")] if _share_a_clock(shown) else []
    on_cpu = any(one.series.clock == "cpu" for one in shown)
    said = [f"{one.series.name}: {_law_words(one)}, {_ends_words(one)}" for one in shown]
    return Figure(
        name=name,
        title=title,
        alt=f"{title}, on logarithmic axes. {'. '.join(said)}.",
        source=source_of(header)
        + "."
        + (
            " CPU s: seconds of all threads together, where other work held the cores."
            if on_cpu
            else ""
        )
        + and_more(len(shown), len(found), "series"),
        x=x,
        y=y,
        panels=panels,
        keys=tuple(keys),
    )


def _share_a_clock(shown: Sequence[Fitted]) -> bool:
    clocks = [one.series.clock for one in shown]
    return len(set(clocks)) < len(clocks)


def _law_words(one: Fitted) -> str:
    """How the series grows, in few words."""
    fit = one.fit
    coefficients = list((fit["coefficients"] or {}).values())
    if len(coefficients) == 2 and coefficients[1] == 0 and one.has_law:
        return "stays the same"
    exponent = interval_words(fit["exponent"], fit["exponent_low"], fit["exponent_high"])
    words = f"n^{exponent}"
    if fit["fitted_from_because"]:
        below = units.tokens(fit["fitted_from"])
        words += f" from {below} on: below, {fit['fitted_from_because']}"
    if fit["knots"]:
        words += f"; {fit['knots'][-1]['name']}"
    if not one.has_law and fit["coefficients"]:
        words += f"; no law: a point is missed by {units.percent(fit['worst_residual'])}"
    elif one.has_law and one.lacks_interval:
        words += f"; {len(one.series.n)} points give the law no interval"
    return words


def _ends_words(one: Fitted) -> str:
    show = units.seconds if one.series.quantity == "latency" else units.capacity
    n, values = one.series.n, one.series.values
    return f"{show(values[0])} at {units.tokens(n[0])}, {show(values[-1])} at {units.tokens(n[-1])}"


def _knots(one: Fitted) -> list[float]:
    return [math.sqrt(low * high) for low, high in (k["between"] for k in one.fit["knots"])]


def _law_at(one: Fitted, n: float) -> float | None:
    """The law's value; None between two points where it changes, or where it foretells nothing."""
    try:
        return predict(one.fit, n)
    except CannotMeasureError:
        return None


def _stretches(one: Fitted) -> list[tuple[float, float]]:
    """The measured lengths between which one law holds, segment by segment."""
    edges = [one.fit["fitted_from"]]
    for low, high in (knot["between"] for knot in one.fit["knots"]):
        edges += [low, high]
    edges.append(one.series.n[-1])
    return [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if edges[i] < edges[i + 1]]


def _curve(one: Fitted, low: float, high: float) -> list[tuple[float, float]]:
    return [
        (n, value)
        for n in geometric(low, high, 24)
        if (value := _law_at(one, n)) is not None and value > 0
    ]


def _foretold(one: Fitted, furthest: float) -> list[tuple[float, float]]:
    if not one.has_law or not one.fit["extrapolates"] or one.lacks_interval:
        return []
    last = one.series.n[-1]
    return _curve(one, last, min(furthest, _BEYOND * last)) if furthest > last else []


def _band(one: Fitted, curve: Sequence[tuple[float, float]]) -> list[float] | None:
    series, start = one.series, one.first
    return half_widths_at(
        [n for n, _ in curve], series.n[start:], series.values[start:], series.sd[start:],
        series.degree, _knots(one),
    )  # fmt: skip


def _draw_series(
    axes: "Axes", theme: Theme, one: Fitted, others: Sequence[Fitted], x: Axis
) -> None:
    """The law with its interval, other series behind, the points in front."""
    for other in others:
        if other.series.clock == one.series.clock:
            axes.plot(other.series.n, other.series.values, color=theme.ghost, lw=1.0, zorder=1)
    if not one.has_law:
        axes.plot(one.series.n, one.series.values, color=theme.blue, lw=0.8, zorder=2)
    else:
        for low, high in _stretches(one):
            _draw_curve(axes, theme, one, _curve(one, low, high), "-")
        _draw_curve(axes, theme, one, _foretold(one, x.high), (0, (4, 2)))
    series = one.series
    margins = [
        (value - low, high - value)
        for value, (low, high) in zip(series.values, _intervals(series), strict=True)
    ]
    axes.errorbar(
        series.n, series.values, yerr=list(zip(*margins, strict=True)), fmt="o", ms=3.6,
        color=theme.blue, elinewidth=1.1, capsize=1.8 if series.quantity == "latency" else 0.0,
        zorder=4,
    )  # fmt: skip


def _intervals(series: Series) -> list[tuple[float, float]]:
    """The 95 % interval of each point, as its record has it; of bytes the value alone."""
    if series.quantity != "latency":
        return [(value, value) for value in series.values]
    found = []
    known = len(series.records) == len(series.n)  # of a growing cache one record has all points
    for place, (value, sd) in enumerate(zip(series.values, series.sd, strict=True)):
        low, high = interval_on(series.records[place], series.clock) if known else (None, None)
        margin = Z95 * sd * value
        low = value - margin if low is None else low
        high = value + margin if high is None else high
        found.append((min(low, value), max(high, value)))
    return found


def _draw_curve(
    axes: "Axes", theme: Theme, one: Fitted, curve: Sequence[tuple[float, float]], style: Any
) -> None:
    if not curve:
        return
    n, values = zip(*curve, strict=True)
    axes.plot(n, values, color=theme.orange, lw=1.5, ls=style, zorder=3)
    half = _band(one, curve) if one.series.quantity == "latency" else None
    if half is not None:
        axes.fill_between(
            n,
            [max(v - part, v * _LEAST_MARGIN) for v, part in zip(values, half, strict=True)],
            [v + part for v, part in zip(values, half, strict=True)],
            color=theme.orange, alpha=0.2, lw=0, zorder=2,
        )  # fmt: skip


def _time_panel(one: Fitted, others: Sequence[Fitted], x: Axis, y: Axis) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        _draw_series(axes, theme, one, others, x)
        if (quadratic := one.quadratic) is not None and one.has_law:
            furthest = _BEYOND * one.series.n[-1] if _foretold(one, x.high) else one.series.n[-1]
            n = geometric(max(x.low, math.sqrt(y.low / quadratic)), min(x.high, furthest), 2)
            axes.plot(
                n, [quadratic * k * k for k in n], color=theme.green, lw=1.2, ls=(0, (1, 1.5))
            )

    clock = "CPU s; " if one.series.clock == "cpu" else ""
    return Panel(one.series.name, f"{clock}{_law_words(one)}", draw)


def _memory_words(one: Fitted, limit: Mapping[str, Any] | None) -> str:
    words = f"{_law_words(one)}, {_ends_words(one)}"
    if limit and limit["seq_len"]:
        at = _rounded(limit["seq_len"])
        words += f"; {units.capacity(limit['device_bytes'])} are full at about n = {at}"
    return words


def _rounded(n: float) -> str:
    """A foretold length, to three digits.

    >>> _rounded(3073361)
    '3,070,000'
    """
    return f"{float(f'{n:.3g}'):,.0f}"


def _memory_panel(
    one: Fitted, limit: Mapping[str, Any] | None, others: Sequence[Fitted], x: Axis
) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        _draw_series(axes, theme, one, others, x)
        if not limit:
            return
        device_bytes = limit["device_bytes"]
        axes.axhline(device_bytes, color=theme.ink, lw=1.1, ls=(0, (1, 1.5)))
        full = limit["seq_len"]
        if full and full <= x.high:
            n = geometric(one.series.n[0], full)
            total = [sum(c * k**power for power, c in enumerate(limit["total_bytes"])) for k in n]
            axes.plot(n, total, color=theme.purple, lw=1.2, ls=(0, (4, 2)), zorder=2)
            axes.plot([full], [device_bytes], "X", color=theme.purple, ms=7, zorder=5)

    note = _law_words(one)
    if limit and limit["seq_len"]:
        note += f"; full at n ≈ {_rounded(limit['seq_len'])}"
    return Panel(one.series.name, note, draw)
