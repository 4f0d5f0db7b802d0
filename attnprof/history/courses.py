"""A folder of runs -> the course of each workload: its figures in the order of time, and a verdict.

Runs of another machine, other threads or other clocks are another course. Software may change along
one: that is what a history is to show, so it is told where a level changed.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from attnprof import units
from attnprof.errors import UsageError, nearest, nearest_path
from attnprof.history import change_points
from attnprof.history.change_points import (
    FALSE_ALARMS,
    FEWEST_AT_LEVEL,
    FEWEST_RUNS,
    Level,
)
from attnprof.records import RUN_FILE, read_header
from attnprof.verdicts.comparison import VERDICTS
from attnprof.verdicts.fingerprint import HARD
from attnprof.verdicts.sides import Observed, SideRun, read_side

FORMAT = 1
SMALLEST = 0.02  # a share: smaller changes of level are not told, as nobody would act on them
MOST_NAMED = 3
LARGEST_LOG = 700.0  # beyond it there is no float
WEEK_S = 7 * 24 * 3600.0
_PLACE = (*HARD["device"], *HARD["threads"], *HARD["clocks"])
_ANY_MACHINE = ("memory_bytes",)  # a little another after each start of one machine

Facts = Mapping[str, str | None]


@dataclass(frozen=True)
class Point:
    """One run's figure of one workload.

    Args:
        run: Its folder, from the one that was asked about.
        value: Seconds, the geometric mean of the launches; or bytes.
        error: The standard error of the value's logarithm by its launches; of few, None.
    """

    run: str
    started: datetime
    value: float
    error: float | None
    software: Facts


@dataclass(frozen=True)
class Change:
    """Where a level ended and another began.

    Args:
        last_before: The last run at the old level.
        first_after: The first run at the new one.
        software: What else changed between the two, as ``torch 2.12.0 → 2.13.0``.
    """

    last_before: str
    first_after: str
    started: datetime
    before: float
    after: float
    ratio: float | None
    software: tuple[str, ...]


@dataclass(frozen=True)
class Course:
    """One figure of one workload on one machine, over time.

    Args:
        place: The machine and its settings, without which no two runs are comparable.
        verdict: ``regressed`` or ``improved`` where the last level is another than the first, or
            where it creeps; ``same``; ``inconclusive`` of too few runs.
        shape: ``steps``, ``creep``, or None.
        first: The first level, or where a creep began, in seconds or bytes.
        last: The last level, or where a creep has come to.
        ratio: Last over first.
        per_week: The median slope, as a share a week; None of steps, and within the first week.
    """

    workload_id: str
    axes: Mapping[str, Any]
    metric: str
    clock: str | None
    place: Facts
    points: tuple[Point, ...]
    levels: tuple[Level, ...]
    changes: tuple[Change, ...]
    verdict: str
    shape: str | None
    first: float
    last: float
    ratio: float | None
    per_week: float | None
    reason: str | None = None


@dataclass(frozen=True)
class History:
    """All courses of a folder of runs, those that need attention first."""

    folder: str
    num_runs: int
    courses: tuple[Course, ...]
    smallest: float
    is_synthetic: bool = False
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The whole in a line: how many courses, and of which verdict."""
        found = Counter(course.verdict for course in self.courses)
        counts = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
        return f"{self.num_runs} runs, {len(self.courses)} series: {counts}"

    def to_json(self) -> dict[str, Any]:
        """The document of ``--format json``."""
        return {
            "format": FORMAT,
            "folder": self.folder,
            "num_runs": self.num_runs,
            "smallest": self.smallest,
            "notes": list(self.notes),
            "courses": [_course_json(course) for course in self.courses],
        }


def _course_json(course: Course) -> dict[str, Any]:
    told = {
        key: getattr(course, key)
        for key in (
            "workload_id", "metric", "clock", "verdict", "shape", "ratio", "per_week", "reason",
            "first", "last",
        )
    }  # fmt: skip
    return {
        **told,
        "axes": dict(course.axes),
        "place": dict(course.place),
        "changes": [
            {**asdict(change), "started": change.started.isoformat()} for change in course.changes
        ],
        "points": [
            {
                "run": point.run,
                "started": point.started.isoformat(),
                "value": point.value,
                "error": point.error,
                "level": next(
                    number
                    for number, level in enumerate(course.levels)
                    if level.start <= place < level.end
                ),
            }
            for place, point in enumerate(course.points)
        ],
    }


@dataclass(frozen=True)
class _Dated:
    """A run, and when it was made."""

    name: str
    started: datetime
    run: SideRun


def read_history(
    folder: Path,
    *,
    metrics: Sequence[str] = ("latency",),
    workloads: Sequence[str] = (),
    smallest: float = SMALLEST,
) -> History:
    """The courses of all runs in ``folder`` and in the folders below it.

    Args:
        metrics: Of ``METRICS``.
        workloads: Shell patterns of workload ids; none takes all.
        smallest: The smallest change of level that counts, as a share.

    Raises:
        UsageError: There are no runs, one of them is broken, or a pattern names no workload.
        CannotMeasureError: ruptures is not installed.
    """
    runs, num_bases = _read_runs(folder)
    known = {key for one in runs for key in one.run.observed}
    for pattern in workloads:
        if not any(fnmatchcase(key, pattern) for key in known):
            raise UsageError(
                f"no run in {folder} has a workload {pattern!r}",
                nearest(pattern, sorted(known), f"attnprof history {folder} --all"),
            )
    wanted = {
        key for key in known if not workloads or any(fnmatchcase(key, one) for one in workloads)
    }
    axes = {key: observed.axes for one in runs for key, observed in one.run.observed.items()}
    courses = [
        _course(key, axes[key[0]], points, smallest)
        for key, points in _by_course(runs, wanted, metrics).items()
    ]
    return History(
        folder=str(folder),
        num_runs=len(runs),
        courses=tuple(sorted(courses, key=_attention)),
        smallest=smallest,
        is_synthetic=any(one.run.facts.get("kind") == "synthetic" for one in runs),
        notes=_notes(num_bases, _ended(courses, runs)),
    )


def _read_runs(folder: Path) -> tuple[list[_Dated], int]:
    """All runs by the time that they were started at, and how many are left out as a base."""
    try:
        paths = sorted(path.parent for path in folder.rglob(RUN_FILE))
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}", "name a folder") from None
    found, num_bases = [], 0
    for path in paths:
        header = read_header(path)
        paired = header.get("paired")
        if isinstance(paired, Mapping) and paired.get("side") == "base":
            num_bases += 1
            continue
        name = str(path.relative_to(folder))
        run = read_side(path, name)
        found.append(_Dated(name, _time(path, run.side.started), run))
    if not found:
        hint = nearest_path(folder, "*/") or "name the folder that holds the runs of sweeps"
        raise UsageError(f"{folder} holds no runs", hint)
    return sorted(found, key=lambda one: (one.started, one.name)), num_bases


def _time(path: Path, started: str | None) -> datetime:
    try:
        time = datetime.fromisoformat(started or "")
    except ValueError:
        raise UsageError(
            f"{path / RUN_FILE} says {started!r} of when it was started", "measure again"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


_Key = tuple[str, str, str | None, tuple[tuple[str, str | None], ...]]


def _by_course(
    runs: Sequence[_Dated], wanted: set[str], metrics: Sequence[str]
) -> dict[_Key, list[Point]]:
    found: dict[_Key, list[Point]] = {}
    for dated in runs:
        place = dict(_place(dated.run))
        software = {key: value for key, value in dated.run.facts.items() if key not in place}
        for key, observed in dated.run.observed.items():
            if key not in wanted or not observed.is_ok:
                continue
            for metric in metrics:
                figure = _figure(metric, dated.run, observed)
                if figure is not None:
                    value, error, clock, how = figure
                    where = {**place, **how}
                    point = Point(dated.name, dated.started, value, error, software)
                    course = (key, metric, clock, tuple(sorted(where.items())))
                    found.setdefault(course, []).append(point)
    return found


def _is_of_place(key: str) -> bool:
    return key not in _ANY_MACHINE and (key in _PLACE or key.startswith("environment."))


def _figure(
    metric: str, run: SideRun, observed: Observed
) -> tuple[float, float | None, str | None, dict[str, str | None]] | None:
    """The value, its error, the clock, and what else makes it another figure; None if unknown."""
    record = observed.record
    shape = {"model_digest": record.get("model_digest")} if record.get("model_digest") else {}
    if metric != "latency":
        size = observed.size(metric)
        how = {"memory_meter": record.get("memory_meter")} if metric == "peak_memory" else {}
        return None if size is None else (float(size), None, None, {**shape, **how})
    mode = record.get("mode")
    clock, logs = run.latency(observed)
    if not logs:
        return None
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return math.exp(statistics.fmean(logs)), error, clock, {**shape, "mode": mode}


def _course(key: _Key, axes: Mapping[str, Any], points: Sequence[Point], smallest: float) -> Course:
    workload_id, metric, clock, place = key
    least = 1.0 if metric != "latency" else 1e-12  # a byte, and no time: 0 has no logarithm
    logs = [math.log(max(point.value, least)) for point in points]
    errors = [point.error for point in points if point.error is not None]
    noise = statistics.median(errors) if errors else 0.0
    limit = math.log1p(smallest) if metric == "latency" else 0.0  # bytes are counted
    levels = change_points.levels(logs, limit, noise)
    weeks = [(point.started - points[0].started).total_seconds() / WEEK_S for point in points]
    slope = change_points.slope(weeks, logs)
    shape = _shape(logs, weeks, levels, slope, limit)
    rise = levels[-1].log - levels[0].log
    first, last = _value(points, levels[0]), _value(points, levels[-1])
    if shape == "creep" and slope is not None:
        rise = slope * weeks[-1]
        start = statistics.median(log - slope * week for log, week in zip(logs, weeks, strict=True))
        first, last = _exp(start), _exp(start + rise)
    has_slope = slope is not None and weeks[-1] >= 1 and shape != "steps"
    return Course(
        workload_id=workload_id,
        axes=axes,
        metric=metric,
        clock=clock,
        place=dict(place),
        points=tuple(points),
        levels=tuple(levels),
        changes=tuple(_change(points, *pair) for pair in pairwise(levels)),
        verdict=_verdict(len(points), rise, shape, limit),
        shape=shape,
        first=first,
        last=last,
        ratio=_exp(rise) if first > 0 and last > 0 else None,
        per_week=_exp(slope) - 1 if has_slope and slope is not None else None,
        reason=f"{len(points)} of {FEWEST_RUNS} runs" if len(points) < FEWEST_RUNS else None,
    )


def _value(points: Sequence[Point], level: Level) -> float:
    return statistics.median(point.value for point in points[level.start : level.end])


def _exp(log: float) -> float:
    return math.exp(min(log, LARGEST_LOG))


def _shape(
    logs: Sequence[float], weeks: Sequence[float], levels: Sequence[Level], slope: float | None,
    limit: float,
) -> str | None:  # fmt: skip
    """Whether levels or a line say better how it went; None where it did not change."""
    creeps = (
        slope is not None and change_points.rises_or_falls(logs) and abs(slope) * weeks[-1] >= limit
    )
    if len(levels) == 1:
        return "creep" if creeps else None
    if not creeps or slope is None:
        return "steps"
    off_levels = sum(abs(log - one.log) for one in levels for log in logs[one.start : one.end])
    rests = [log - slope * week for log, week in zip(logs, weeks, strict=True)]
    middle = statistics.median(rests)
    return "creep" if sum(abs(rest - middle) for rest in rests) < off_levels else "steps"


def _verdict(num_runs: int, rise: float, shape: str | None, limit: float) -> str:
    if num_runs < FEWEST_RUNS:
        return "inconclusive"
    if shape is None or abs(rise) < limit or rise == 0:
        return "same"
    return "regressed" if rise > 0 else "improved"


def _change(points: Sequence[Point], before: Level, after: Level) -> Change:
    last, first = points[after.start - 1], points[after.start]
    old, new = _value(points, before), _value(points, after)
    return Change(
        last_before=last.run,
        first_after=first.run,
        started=first.started,
        before=old,
        after=new,
        ratio=new / old if old > 0 else None,
        software=tuple(
            f"{key} {_text(last.software.get(key))} → {_text(first.software.get(key))}"
            for key in dict.fromkeys((*last.software, *first.software))
            if key not in _ANY_MACHINE and last.software.get(key) != first.software.get(key)
        ),
    )


def _text(value: str | None) -> str:
    return "unknown" if value is None else value


def _attention(course: Course) -> tuple[int, float, str, str]:
    rise = abs(math.log(course.ratio)) if course.ratio else 0.0
    return VERDICTS.index(course.verdict), -rise, course.workload_id, course.metric


def _ended(courses: Sequence[Course], runs: Sequence[_Dated]) -> list[str]:
    """Workloads that their machine's newest run does not have as ``ok``."""
    newest = {_place(one.run): one.name for one in runs}
    by_name = {one.name: one.run for one in runs}
    found = [
        course.workload_id
        for course in courses
        if newest[_place(by_name[course.points[-1].run])] != course.points[-1].run
    ]
    return list(dict.fromkeys(found))


def _place(run: SideRun) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((key, run.facts[key]) for key in run.facts if _is_of_place(key)))


def _notes(num_bases: int, ended: Sequence[str]) -> tuple[str, ...]:
    notes = [
        f"A level is what at least {FEWEST_AT_LEVEL} runs agree on: the newest run alone changes "
        f"none. About {units.percent(2 * FALSE_ALARMS)} of the series in which nothing changes "
        "show a change."
    ]
    if num_bases:
        notes.append(f"Runs that were the base of a pair are left out: {num_bases}.")
    if ended:
        more = f" and {len(ended) - MOST_NAMED} more" if len(ended) > MOST_NAMED else ""
        notes.append(f"The newest run has no figure of {', '.join(ended[:MOST_NAMED])}{more}.")
    return tuple(notes)
