"""The document of a comparison -> the ratio of each workload with its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.figures.axes import ratios_axis
from attnprof.figures.base import Axis, Figure, Key, Panel, Theme
from attnprof.series import label, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]
MOST_ROWS = 24
# Each verdict's colour and marker; what is undecided, incomparable or failed has no ratio to show.
_LOOKS = {
    "regressed": ("orange", "s"), "improved": ("green", "D"), "same": ("blue", "o"),
    "inconclusive": ("grey", "o"),
}  # fmt: skip
_METRICS = {"latency": "Latency", "peak_memory": "Peak memory", "kv_bytes": "KV cache"}
_LEAST_SPAN = 0.08


@dataclass(frozen=True)
class _Row:
    name: str
    verdict: str
    ratio: float
    low: float | None
    high: float | None
    threshold: float


def comparison_figure(document: Document) -> Figure | None:
    """New over base, those that need attention first; a panel a metric. None where no workload has
    a ratio.

    Args:
        document: That of ``compare --format json``.
    """
    rows = {metric: _rows(document, metric) for metric in _METRICS}
    # Bytes that all stayed the same say nothing that the words do not.
    shown = {
        metric: mine
        for metric, mine in rows.items()
        if mine and (metric == "latency" or any(row.verdict != "same" for row in mine))
    }
    if not shown:
        return None
    urgent = sorted((row for mine in shown.values() for row in mine), key=_urgency)
    names = list(dict.fromkeys(row.name for row in urgent))[:MOST_ROWS]
    verdicts = [
        v for v in _LOOKS if any(row.verdict == v for mine in shown.values() for row in mine)
    ]
    mean = document["geometric_mean"]
    base, new = document["base"], document["new"]
    return Figure(
        name="comparison",
        title=f"{new['name']} against {base['name']}: {document['verdict']}",
        alt=_alt(document, rows),
        source=f"{_made(document)}: {new['name']} over {base['name']} on "
        f"{new['device'] or 'an unnamed device'}; below 1 is faster or smaller. "
        + (f"Geometric mean of latencies {mean['mid']:.3f}. " if mean["mid"] else "")
        + _left_out(document, rows, names),
        x=_ratios([row for mine in shown.values() for row in mine if row.name in names]),
        y=Axis(
            "", len(names) - 0.4, -0.6, tuple(float(i) for i in range(len(names))),
            lambda place: names[int(place)], is_log=False,
        ),
        panels=tuple(_panel(metric, mine, names) for metric, mine in shown.items()),
        keys=(
            *(Key(one, _LOOKS[one][0], "point", _LOOKS[one][1]) for one in verdicts),
            Key("no change", "ink"),
            Key("smallest rise that counts", "muted", "dots"),
        ),
        panel_in=max(1.0, 0.3 * len(names)),
    )  # fmt: skip


def _urgency(row: _Row) -> tuple[int, float]:
    """What regressed first, and of each verdict the largest change."""
    return list(_LOOKS).index(row.verdict), -abs(math.log(row.ratio)) if row.ratio else -math.inf


def _ratios(rows: Sequence[_Row]) -> Axis:
    """An axis that holds the ratios of some rows, their intervals and what counts as a rise."""
    known = (end for row in rows for end in (row.ratio, row.low, row.high, 1 + row.threshold))
    ends = [end for end in known if end and math.isfinite(end)]
    low, high = min(1.0, *ends), max(1.0, *ends)
    room = max(1 + _LEAST_SPAN / 4, (high / low) ** 0.06)
    return ratios_axis("New over base [ratio]", low / room, high * room)


def _made(document: Document) -> str:
    sides = (document["base"], document["new"])
    if any((side.get("facts") or {}).get("kind") == "synthetic" for side in sides):
        return "Computed by the synthetic device, not measured"
    return "Measured in turns" if document["paired"] else "Measured one after the other"


def _rows(document: Document, metric: str) -> list[_Row]:
    workloads = document["workloads"]
    varying = varying_keys([workload["axes"] for workload in workloads])
    found = []
    for workload in workloads:
        one = next((m for m in workload["metrics"] if m["metric"] == metric), None)
        if one is None or one["ratio"]["mid"] is None or one["verdict"] not in _LOOKS:
            continue
        ratio = one["ratio"]
        name = label(workload["axes"], varying) if workload["axes"] else workload["workload_id"]
        found.append(
            _Row(name, one["verdict"], ratio["mid"], ratio["low"], ratio["high"], one["threshold"])
        )
    return found


def _alt(document: Document, rows: Mapping[str, Sequence[_Row]]) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in document["counts"].items())
    said = [f"Ratios of new over base with intervals, a row a workload: {counts}"]
    for metric, mine in rows.items():
        changed = [row for row in mine if row.verdict in ("regressed", "improved")]
        said += [
            f"{_METRICS[metric]} of {row.name} {row.verdict}: {_interval(row)}"
            for row in changed[:5]
        ]
    return ". ".join(said) + "."


def _interval(row: _Row) -> str:
    if row.low is None or row.high is None:
        return f"{row.ratio:.3f}"
    return f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"


def _left_out(document: Document, rows: Mapping[str, Sequence[_Row]], names: Sequence[str]) -> str:
    with_ratio = {row.name for mine in rows.values() for row in mine}
    there = len(document["workloads"])
    said = f"{units.counted(there, 'workload')}."
    if without := there - len(with_ratio):
        said += f" {without} of them without a ratio."
    if len(with_ratio) > len(names):
        said += f" {len(names)} are shown, those that need attention first."
    return said


def _panel(metric: str, rows: Sequence[_Row], names: Sequence[str]) -> Panel:
    mine = [row for row in rows if row.name in names]

    def draw(axes: "Axes", theme: Theme) -> None:
        axes.axvline(1, color=theme.ink, lw=1.0, zorder=1)
        for row in mine:
            place = names.index(row.name)
            colour, marker = _LOOKS[row.verdict]
            axes.plot(
                [1 + row.threshold] * 2, [place - 0.35, place + 0.35], color=theme.muted, lw=1.0,
                ls=(0, (1, 1)), zorder=2,
            )  # fmt: skip
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [place] * 2, color=getattr(theme, colour), lw=1.6)
            axes.plot([row.ratio], [place], marker, color=getattr(theme, colour), ms=4.8, zorder=3)

    worse = sum(row.verdict == "regressed" for row in rows)
    better = sum(row.verdict == "improved" for row in rows)
    note = f"{worse} regressed, {better} improved, of {len(rows)}"
    return Panel(_METRICS[metric], note, draw, x=_ratios(mine) if mine else None)
