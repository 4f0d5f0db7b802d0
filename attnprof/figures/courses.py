"""The document of a history -> the course of each workload over its runs, with change points."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.figures.base import MOST_PANELS, Axis, Figure, Key, Panel, Theme
from attnprof.figures.words import and_more
from attnprof.series import label, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]
Course = Mapping[str, Any]
_WHAT = {"latency": "Latency", "peak_memory": "Peak memory", "kv_bytes": "KV cache"}
_LEAST_SPAN = 0.1  # of the axis, so that noise does not look like mountains
_DAY_S = 86400.0
_CONFIDENCE = 1.96


def history_figure(document: Document) -> Figure | None:
    """Each figure over its first, run by run, those with news first; None where none has two runs.

    Args:
        document: That of ``history --format json``.
    """
    courses = [one for one in document["courses"] if _first(one) and len(one["points"]) > 1]
    if not courses:
        return None
    by_news = sorted(courses, key=lambda course: course["shape"] is None)
    shown = by_news[:MOST_PANELS]
    varying = varying_keys([course["axes"] for course in courses])
    names = [_name(course, varying, courses) for course in shown]
    times = [_when(point) for course in shown for point in course["points"]]
    ratios = [
        (point["value"] + sign * _error(point)) / _first(course)
        for course in shown
        for point in course["points"]
        for sign in (-1, 1)
    ]
    room = 0.1 * (max(ratios) - min(ratios))
    low = max(0.0, min(1 - _LEAST_SPAN / 2, min(ratios) - room))
    high = max(1 + _LEAST_SPAN / 2, max(ratios) + room)
    metrics = [_WHAT.get(name, name) for name in dict.fromkeys(one["metric"] for one in shown)]
    has_changes = any(course["changes"] for course in shown)
    said = [f"{name}: {_words(course)}" for name, course in zip(names, shown, strict=True)]
    return Figure(
        name="history",
        title=f"{', '.join(metrics)} over {units.counted(document['num_runs'], 'run')}",
        alt=f"Figures of runs over time, with the levels that they keep. {'. '.join(said)}.",
        source=f"Measured: runs in {document['folder']}, "
        f"{_day(min(times))} to {_day(max(times))}; a change counts from "
        f"{units.percent(document['smallest'])}." + and_more(len(shown), len(courses), "series"),
        x=_days_axis(min(times), max(times)),
        y=_share_axis(low, high),
        panels=tuple(_panel(name, course) for name, course in zip(names, shown, strict=True)),
        keys=(
            Key("a run, with 95 % interval", "blue", "point"),
            Key("level", "orange"),
            *([Key("its level changed", "purple", "dashes")] if has_changes else []),
        ),
    )


def _error(point: Mapping[str, Any]) -> float:
    """Half of the 95 % interval of one run's value."""
    return float(_CONFIDENCE * (point["error"] or 0.0) * point["value"])


def _first(course: Course) -> float:
    return float(course["first"] or 0.0)


def _name(course: Course, varying: Mapping[str, Sequence[str]], courses: Sequence[Course]) -> str:
    name = label(course["axes"], varying) if course["axes"] else str(course["workload_id"])
    if len({one["metric"] for one in courses}) > 1:
        name += f", {_WHAT.get(course['metric'], course['metric'])}"
    if len({str(one["place"]) for one in courses}) > 1:
        name += f", {course['place'].get('name')}"
    return name


def _words(course: Course) -> str:
    said = str(course["verdict"])
    if course["ratio"]:
        said += f", {100 * (course['ratio'] - 1):+.1f} %"
    if course["per_week"]:
        said += f", {100 * course['per_week']:+.1f} % a week"
    for change in course["changes"][-1:]:
        said += f"; since {change['started'][:10]} ({change['first_after']})"
        if change["software"]:
            said += f": {change['software'][0]}"
    return said


def _when(point: Mapping[str, Any]) -> float:
    """Days since 1970."""
    return datetime.fromisoformat(point["started"]).timestamp() / _DAY_S


def _day(days: float) -> str:
    return f"{datetime.fromtimestamp(days * _DAY_S, UTC):%Y-%m-%d}"


def _days_axis(first: float, last: float) -> Axis:
    room = max(0.5, 0.05 * (last - first))
    ticks = (first, (first + last) / 2, last) if last - first >= 2 else (first,)
    return Axis("Started [date, UTC]", first - room, last + room, ticks, _month_day, is_log=False)


def _month_day(days: float) -> str:
    return f"{datetime.fromtimestamp(days * _DAY_S, UTC):%d %b}".lstrip("0")


def _share_axis(low: float, high: float) -> Axis:
    step = next(
        s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1e3) if (high - low) / s <= 6
    )
    ticks = tuple(1 + step * k for k in range(-int((1 - low) / step), int((high - 1) / step) + 1))
    return Axis(
        "Of the first level [%]", low, high, ticks, lambda ratio: f"{100 * ratio:.0f} %",
        is_log=False,
    )  # fmt: skip


def _panel(name: str, course: Course) -> Panel:
    points, first = course["points"], _first(course)

    def draw(axes: "Axes", theme: Theme) -> None:
        errors = [_error(point) / first for point in points]
        axes.errorbar(
            [_when(point) for point in points], [point["value"] / first for point in points],
            yerr=errors, fmt="o", ms=3.2, elinewidth=0.9, capsize=1.5, color=theme.blue, zorder=3,
        )  # fmt: skip
        for _, mine in groupby(points, key=lambda point: point["level"]):
            level = list(mine)
            middle = sorted(point["value"] for point in level)[len(level) // 2] / first
            axes.plot(
                [_when(level[0]), _when(level[-1])], [middle] * 2, color=theme.orange, lw=2.2,
                alpha=0.85, zorder=2,
            )  # fmt: skip
        for change in course["changes"]:
            before = max(t for point in points if (t := _when(point)) < _when(change))
            between = (before + _when(change)) / 2
            axes.axvline(between, color=theme.purple, lw=1.2, ls=(0, (4, 2)), zorder=1)

    return Panel(name, _words(course), draw)
