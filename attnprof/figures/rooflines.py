"""A run -> its measured roofs with every workload below them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnprof import units
from attnprof.figures.axes import counts_axis
from attnprof.figures.base import Figure, Key, Panel, Theme
from attnprof.figures.words import source_of
from attnprof.run_header import Header, ceilings_of
from attnprof.series import Record, is_ok, label, positive, short_dtype, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Phases by how they meet the roofs: many queries at once, one, or something else.
_GROUPS = {"prefill": ("prefill", "train"), "decode": ("decode", "kv-growth", "generate")}
_LOOKS = {"prefill": ("blue", "o"), "decode": ("orange", "s"), "other": ("green", "^")}
_GROUP_WORDS = {"prefill": "prefill, train", "decode": "decode", "other": "verify, mixed, other"}


@dataclass(frozen=True)
class _Point:
    """A workload: [FLOP/byte], [FLOP/s], and how its phase meets the roofs."""

    intensity: float
    achieved: float
    group: str
    name: str


def roofline_figure(header: Header, records: Sequence[Record]) -> Figure | None:
    """FLOP a second against FLOP a byte; a panel for each element type and clock.

    None where no roof was measured, or no workload has a time.
    """
    found: dict[tuple[str, str], list[_Point]] = {}
    varying = varying_keys(records)
    for record in records:
        if (point := _point(record, varying)) is not None:
            key = (str(record.get("dtype")), str(record.get("clock")))
            found.setdefault(key, []).append(point)
    panels, points, roofs, roofless = [], [], [], 0
    said = []
    for (dtype, clock), mine in sorted(found.items(), key=lambda item: item[0][::-1]):
        peak, copy = _roofs(header, dtype, clock)
        if peak is None or copy is None:
            roofless += len(mine)
            continue
        panels.append(_panel(dtype, clock, mine, peak, copy))
        points += mine
        roofs.append((peak, copy))
        said.append(
            f"{short_dtype(dtype)} by {_clock_words(clock)}: {units.counted(len(mine), 'workload')}"
            f" below roofs of {units.rate(peak, 'FLOP/s')} and {units.rate(copy, 'B/s')}, "
            + _ends_words(mine, peak, copy)
        )
    if not panels:
        return None
    intensities = [point.intensity for point in points] + [peak / copy for peak, copy in roofs]
    x = counts_axis("Arithmetic intensity [FLOP/byte]", intensities, units.three_digits)
    heights = [point.achieved for point in points] + [1.6 * peak for peak, _ in roofs]
    y = counts_axis(
        "Achieved [FLOP/s]",
        heights,
        lambda value: units.rate(value, "FLOP/s"),
    )
    there = {point.group for point in points}
    return Figure(
        name="roofline",
        title="Workloads under the roofs that were measured",
        alt="Roofline: arithmetic against arithmetic intensity, on logarithmic axes. "
        + ". ".join(said)
        + ".",
        source=source_of(header)
        + ". FLOP and bytes are those that the algorithm needs, by theory; what stays in a cache "
        "passes the roof of copying."
        + _left_out(records, len(points), roofless),
        x=x,
        y=y,
        panels=tuple(panels),
        keys=(
            *(
                Key(_GROUP_WORDS[group], colour, "point", marker)
                for group, (colour, marker) in _LOOKS.items()
                if group in there
            ),
            Key("roofs: copying, matrix product", "ink", "line"),
        ),
    )  # fmt: skip


def _point(record: Record, varying: Mapping[str, Sequence[str]]) -> _Point | None:
    flops, moved = positive(record.get("flops")), positive(record.get("bytes_moved"))
    achieved = positive(record.get("achieved_flops_per_s"))
    if not is_ok(record) or flops is None or moved is None or achieved is None:
        return None
    phase = record.get("phase")
    group = next((name for name, phases in _GROUPS.items() if phase in phases), "other")
    return _Point(flops / moved, achieved, group, label(record, varying))


def _left_out(records: Sequence[Record], shown: int, roofless: int) -> str:
    """What is said of workloads that have a time and no place here."""
    others = sum(map(is_ok, records)) - shown - roofless
    said = []
    if roofless:
        said.append(f"{roofless} more are of an element type whose product was not measured")
    if others:
        said.append(f"{others} more have no FLOP to count")
    return f" {'; '.join(said)}." if said else ""


def _ends_words(points: Sequence[_Point], peak: float, copy: float) -> str:
    """Which workloads are nearest to their roof and furthest below it."""
    shares = {point.name: point.achieved / min(peak, copy * point.intensity) for point in points}
    by_share = sorted(shares, key=lambda name: -shares[name])
    ends = [("nearest its roof", by_share[0])]
    ends += [("furthest", by_share[-1])] if len(by_share) > 1 else []
    said = [f"{words}: {name}, {units.percent(shares[name])}" for words, name in ends]
    return "; ".join(said)


def _roofs(header: Header, dtype: str, clock: str) -> tuple[float | None, float | None]:
    per = "cpu_s" if clock == "cpu" else "s"
    ceilings = ceilings_of(header)
    matmul: Mapping[str, float] = (ceilings.get("matmul") or {}).get(dtype) or {}
    return positive(matmul.get(f"flops_per_{per}")), positive(ceilings.get(f"copy_bytes_per_{per}"))


def _clock_words(clock: str) -> str:
    return "CPU time" if clock == "cpu" else "wall time"


def _panel(dtype: str, clock: str, points: Sequence[_Point], peak: float, copy: float) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        ridge = peak / copy
        axes.plot(
            [ridge * 1e-6, ridge, ridge * 1e6], [peak * 1e-6, peak, peak], color=theme.ink, lw=1.3
        )
        for group, (colour, marker) in _LOOKS.items():
            mine = [point for point in points if point.group == group]
            axes.plot(
                [point.intensity for point in mine], [point.achieved for point in mine], marker,
                ms=4.2, color=getattr(theme, colour), markeredgecolor=theme.background, mew=0.5,
                zorder=3,
            )  # fmt: skip

    per = "; a second is a CPU second" if clock == "cpu" else ""
    return Panel(
        f"{short_dtype(dtype)}, {_clock_words(clock)}",
        f"{units.rate(peak, 'FLOP/s')}, {units.rate(copy, 'B/s')}; ridge at "
        f"{units.three_digits(peak / copy)} FLOP/byte{per}\n{_ends_words(points, peak, copy)}",
        draw,
    )
