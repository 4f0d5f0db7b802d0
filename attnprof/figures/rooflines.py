"""A run -> its measured roofs with every workload below them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.figures.axes import counts_axis
from attnprof.figures.base import Figure, Key, Panel, Theme
from attnprof.figures.words import listed, source_of
from attnprof.run_header import Header, ceilings_of
from attnprof.series import Record, is_attention, is_ok, label, positive, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Phases by how they meet the roofs: many queries at once, one, or something else.
_GROUPS = {"prefill": ("prefill", "train"), "decode": ("decode", "kv-growth", "generate")}
_COLOURS = {"prefill": "blue", "decode": "orange", "other": "green"}
_MARKERS = {"prefill": "o", "decode": "s", "other": "^"}  # where shapes need not tell backends
_BACKEND_MARKERS = ("o", "s", "^", "D")  # every second one hollow
_SIZES = {"o": 4.6, "s": 3.4, "^": 5.2, "D": 3.4}  # that look the same [pt]


@dataclass(frozen=True)
class _Point:
    """A workload: [FLOP/byte], [FLOP/s], and how its phase meets the roofs."""

    intensity: float
    achieved: float
    group: str
    name: str
    phase: str
    by: str  # the backend, or the layer in attention's place


@dataclass(frozen=True)
class _Look:
    """How some of the points are drawn, and the words of their key."""

    words: str
    colour: str
    marker: str
    is_hollow: bool
    points: frozenset[_Point]


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
    roofed = {key: roofs for key in found if (roofs := _roofs(header, *key)) is not None}
    points = [point for key in roofed for point in found[key]]
    roofless = sum(map(len, found.values())) - len(points)
    looks = _looks(points)
    panels, said = [], []
    for (dtype, clock), (peak, copy) in sorted(roofed.items(), key=lambda item: item[0][::-1]):
        mine = found[dtype, clock]
        panels.append(_panel(dtype, clock, mine, peak, copy, looks))
        said.append(
            f"{dtype} by {_clock_words(clock)}: {units.counted(len(mine), 'workload')}"
            f" below roofs of {units.rate(peak, 'FLOP/s')} and {units.rate(copy, 'B/s')}, "
            + _ends_words(mine, peak, copy)
        )
    if not panels:
        return None
    intensities = [point.intensity for point in points] + [
        peak / copy for peak, copy in roofed.values()
    ]
    x = counts_axis("Arithmetic intensity [FLOP/byte]", intensities, units.three_digits)
    heights = [point.achieved for point in points] + [1.6 * peak for peak, _ in roofed.values()]
    y = counts_axis(
        "Achieved [FLOP/s]",
        heights,
        lambda value: units.rate(value, "FLOP/s"),
    )
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
                Key(look.words, look.colour, "hollow" if look.is_hollow else "point", look.marker)
                for look in looks
            ),
            Key("roofs: copying, matrix product", "ink", "line"),
        ),
    )  # fmt: skip


def _point(record: Record, varying: Mapping[str, Sequence[str]]) -> _Point | None:
    flops, moved = positive(record.get("flops")), positive(record.get("bytes_moved"))
    achieved = positive(record.get("achieved_flops_per_s"))
    if not is_ok(record) or flops is None or moved is None or achieved is None:
        return None
    phase = str(record.get("phase"))
    by = str(record.get("backend") if is_attention(record) else record["mixer"])
    group = next((name for name, phases in _GROUPS.items() if phase in phases), "other")
    return _Point(flops / moved, achieved, group, label(record, varying), phase, by)


def _looks(points: Sequence[_Point]) -> list[_Look]:
    """A colour for each group of phases; a shape for each backend, where it tells some apart.

    More backends than there are shapes are not told apart.
    """
    markers = dict(zip(_each(point.by for point in points), _BACKEND_MARKERS, strict=False))
    tells = 1 < len({point.by for point in points}) <= len(_BACKEND_MARKERS)
    looks = []
    for group, colour in _COLOURS.items():
        of_group = [point for point in points if point.group == group]
        for by in _each(point.by if tells else "" for point in of_group):
            mine = [point for point in of_group if by in ("", point.by)]
            looks.append(
                _Look(
                    listed(point.phase for point in mine) + (f" by {by}" if by else ""),
                    colour,
                    markers[by] if by else _MARKERS[group],
                    bool(by) and _BACKEND_MARKERS.index(markers[by]) % 2 == 1,
                    frozenset(mine),
                )
            )
    return looks


def _each(words: Iterable[str]) -> list[str]:
    """Each once, in the order they came."""
    return list(dict.fromkeys(words))


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


def _roofs(header: Header, dtype: str, clock: str) -> tuple[float, float] | None:
    """That of the matrix product and that of copying. [FLOP/s], [B/s]"""
    per = "cpu_s" if clock == "cpu" else "s"
    ceilings = ceilings_of(header)
    matmul: Mapping[str, float] = (ceilings.get("matmul") or {}).get(dtype) or {}
    peak = positive(matmul.get(f"flops_per_{per}"))
    copy = positive(ceilings.get(f"copy_bytes_per_{per}"))
    return None if peak is None or copy is None else (peak, copy)


def _clock_words(clock: str) -> str:
    return "CPU time" if clock == "cpu" else "wall time"


def _panel(
    dtype: str,
    clock: str,
    points: Sequence[_Point],
    peak: float,
    copy: float,
    looks: Sequence[_Look],
) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        ridge = peak / copy
        axes.plot(
            [ridge * 1e-6, ridge, ridge * 1e6], [peak * 1e-6, peak, peak], color=theme.ink, lw=1.3
        )
        for look in looks:
            mine = [point for point in points if point in look.points]
            colour = getattr(theme, look.colour)
            style: dict[str, Any] = (
                {"mfc": "none", "mec": colour, "mew": 1.0, "zorder": 4}
                if look.is_hollow
                else {"mfc": colour, "mec": theme.background, "mew": 0.5, "zorder": 3}
            )
            axes.plot(
                [point.intensity for point in mine], [point.achieved for point in mine],
                look.marker, ms=_SIZES[look.marker], color=colour, **style,
            )  # fmt: skip

    per = "; a second is a CPU second" if clock == "cpu" else ""
    return Panel(
        f"{dtype}, {_clock_words(clock)}",
        f"{units.rate(peak, 'FLOP/s')}, {units.rate(copy, 'B/s')}; ridge at "
        f"{units.three_digits(peak / copy)} FLOP/byte{per}\n{_ends_words(points, peak, copy)}",
        draw,
    )
