"""A history -> its tables: a row and a small chart for each course, its changes, large charts."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof import units
from attnprof.history.courses import Change, Course, History
from attnprof.render import UNKNOWN, Column, Table
from attnprof.series import label, varying_keys
from attnprof.verdicts.comparison import in_percent

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 24  # places of a small chart
PLOT_WIDTH, PLOT_HEIGHT = 60, 9
LEAST_SPAN = math.log(1.1)  # of a chart, so that noise does not look like mountains
MOST_CHARTS = 6
MOST_ROWS = 40  # on a terminal
MOST_SOFTWARE = 3


def history_tables(history: History, *, charts: bool, everything: bool = True) -> list[Table]:
    """The courses, where their levels changed, and a large chart of each that did.

    Args:
        charts: Whether to draw large charts: of the courses with news, or of a few chosen ones.
        everything: Also rows without news, however many there are.
    """
    tables = [courses_table(history, everything=everything)]
    if any(course.changes for course in history.courses):
        tables.append(changes_table(history))
    if charts:
        drawn = [course for course in history.courses if course.shape is not None]
        drawn = drawn or list(history.courses if len(history.courses) <= MOST_CHARTS else ())
        names = _names(history)
        tables += [chart_table(course, names[id(course)]) for course in drawn[:MOST_CHARTS]]
    return tables


def courses_table(history: History, *, everything: bool = True) -> Table:
    """A row for each figure of each workload on each machine, those with news first."""
    names = _names(history)
    num_news = sum(course.shape is not None for course in history.courses)
    by_news = sorted(history.courses, key=lambda course: course.shape is None)
    shown = by_news if everything else by_news[: max(MOST_ROWS, num_news)]
    left_out = len(history.courses) - len(shown)
    notes = [f"{left_out} rows without news are left out: --all shows them."] if left_out else []
    return Table(
        name="history",
        title=f"History of {units.counted(history.num_runs, 'run')} in {history.folder}"
        + (" (synthetic device)" if history.is_synthetic else ""),
        columns=(
            Column("workload", "Workload"),
            Column("metric", "Metric", _metric, priority=4),
            Column("num_runs", "Runs", str, "right", 2),
            Column("first", "First", str, "right", 3),
            Column("last", "Last", str, "right", 1),
            Column("ratio", "Change", _change_of, "right"),
            Column("per_week", "A week", in_percent, "right", 1),
            Column("verdict", "Verdict"),
            Column("shape", "Shape", priority=3),
            Column("chart", "Chart"),
            Column("clock", "Clock", priority=5),
        ),
        rows=tuple(
            {
                "workload": names[id(course)],
                "metric": course.metric,
                "num_runs": len(course.points),
                "first": _amount(course.metric, course.first),
                "last": _amount(course.metric, course.last),
                "ratio": course.ratio,
                "per_week": course.per_week,
                "verdict": course.verdict,
                "shape": course.shape,
                "chart": sparkline(course),
                "clock": course.clock,
            }
            for course in shown
        ),
        notes=(*notes, *history.notes),
        alarming=lambda row: row["verdict"] == "regressed",
    )


def changes_table(history: History) -> Table:
    """A row for each change of level: between which runs, and what else changed there."""
    names = _names(history)
    return Table(
        name="changes",
        title="Where a level changed",
        columns=(
            Column("workload", "Workload"),
            Column("metric", "Metric", _metric, priority=4),
            Column("started", "Since"),
            Column("first_after", "Run", priority=1),
            Column("last_before", "Run before", priority=5),
            Column("before", "Before", str, "right", 3),
            Column("after", "After", str, "right", 3),
            Column("ratio", "Change", _change_of, "right"),
            Column("software", "What else changed", wraps=True, priority=1),
        ),
        rows=tuple(
            {
                "workload": names[id(course)],
                "metric": course.metric,
                "started": f"{change.started:%Y-%m-%d}",
                "first_after": change.first_after,
                "last_before": change.last_before,
                "before": _amount(course.metric, change.before),
                "after": _amount(course.metric, change.after),
                "ratio": change.ratio,
                "software": _software(change),
            }
            for course in history.courses
            for change in course.changes
        ),
        alarming=lambda row: row["ratio"] is not None and row["ratio"] > 1,
    )


def points_table(history: History) -> Table:
    """A row for each run of each course, as programs read it."""
    keys = (
        "workload_id", "metric", "device", "run", "started", "value", "error", "level", "verdict",
    )  # fmt: skip
    document = history.to_json()
    return Table(
        name="points",
        title=f"Runs in {history.folder}",
        columns=tuple(Column(key, key) for key in keys),
        rows=tuple(
            {
                "workload_id": course["workload_id"],
                "metric": course["metric"],
                "device": course["place"].get("name"),
                "verdict": course["verdict"],
                **point,
            }
            for course in document["courses"]
            for point in course["points"]
        ),
    )


def sparkline(course: Course) -> str:
    """The runs from left to right, a bar where a level begins; of many, neighbours' medians.

    Its foot is the least value, and its top the largest, or 10 % more than the least.
    """
    logs = _logs(course)
    low, span = _scale(logs)
    starts = {level.start for level in course.levels[1:]}
    per_place = max(1, math.ceil(len(logs) / SPARKS))
    drawn = []
    for start in range(0, len(logs), per_place):
        if starts & set(range(start, start + per_place)):
            drawn.append("│")
        value = statistics.median(logs[start : start + per_place])
        drawn.append(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))])
    return "".join(drawn)


def chart_table(course: Course, name: str) -> Table:
    """The runs as points over their levels, from left to right as they were made."""
    logs = _logs(course)
    low, span = _scale(logs)
    width = min(PLOT_WIDTH, len(logs) * max(1, min(4, PLOT_WIDTH // len(logs))))
    lines = [[" "] * width for _ in range(PLOT_HEIGHT)]

    def line_of(log: float) -> list[str]:
        return lines[round((PLOT_HEIGHT - 1) * (1 - (log - low) / span))]

    def place_of(number: float) -> int:
        return min(width - 1, int(number * width / len(logs)))

    for level in course.levels:
        for place in range(place_of(level.start), place_of(level.end - 1) + 1):
            line_of(level.log)[place] = "─"
    for number, log in enumerate(logs):
        line_of(log)[place_of(number)] = "●"
    first, last = course.points[0].started, course.points[-1].started
    return Table(
        name="chart",
        title=f"{name}: {_metric(course.metric)} of {len(logs)} runs, {course.verdict}",
        columns=(
            Column("level", "", str, "right"),
            Column("plot", f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"),
        ),
        rows=tuple(
            {
                "level": _amount(course.metric, math.exp(low + span * share))
                if (share := 1 - place / (PLOT_HEIGHT - 1)) in (0.0, 0.5, 1.0)
                else "",
                "plot": f"│{''.join(line)}",
            }
            for place, line in enumerate(lines)
        ),
        notes=tuple(
            f"{_change_of(change.ratio)} since {change.first_after} ({change.started:%Y-%m-%d})"
            + (f": {_software(change)}" if change.software else "")
            for change in course.changes
        ),
    )


def _logs(course: Course) -> list[float]:
    least = min((point.value for point in course.points if point.value > 0), default=1.0)
    return [math.log(max(point.value, least)) for point in course.points]


def _scale(logs: Sequence[float]) -> tuple[float, float]:
    return min(logs), max(LEAST_SPAN, max(logs) - min(logs))


def _names(history: History) -> dict[int, str]:
    """What tells each course from the others: its workload, and the machine where there are two."""
    varying = varying_keys([course.axes for course in history.courses])
    places = [course.place for course in history.courses]
    differing = _differing(places)
    names = {}
    for course in history.courses:
        words = [label(course.axes, varying) if course.axes else course.workload_id]
        words += [
            f"{key.removeprefix('environment.')} {course.place.get(key) or 'unknown'}"
            if key != "name"
            else str(course.place.get(key) or "an unnamed device")
            for key in differing
        ]
        names[id(course)] = ", ".join(words)
    return names


def _differing(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys by which machines differ; what every figure has of its own, such as a meter, is none."""
    keys = dict.fromkeys(key for place in places for key in place)
    skipped = ("mode", "memory_meter", "model_digest")
    return [
        key for key in keys if key not in skipped and len({place.get(key) for place in places}) > 1
    ]


def _amount(metric: str, value: float) -> str:
    return units.seconds(value) if metric == "latency" else units.capacity(value)


def _metric(name: str) -> str:
    return {"peak_memory": "peak", "kv_bytes": "KV"}.get(name, name)


def _change_of(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else in_percent(ratio - 1)


def _software(change: Change) -> str:
    words = "; ".join(change.software[:MOST_SOFTWARE])
    more = len(change.software) - MOST_SOFTWARE
    return f"{words}; and {more} more" if more > 0 else words
