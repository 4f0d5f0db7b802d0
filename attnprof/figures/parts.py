"""A run -> the share of a call's time by part, against length."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnprof import units
from attnprof.figures.axes import lengths_axis, linear_axis
from attnprof.figures.base import MOST_PANELS, Figure, Key, Panel, Theme
from attnprof.figures.words import and_more, source_of
from attnprof.run_header import Header
from attnprof.series import Record, is_ok, label, positive, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From the bottom up: attention on the axis, where its height is read; small parts are one.
_STACK: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "attention": ("blue", ("attention",)),
    "projections": ("orange", ("projection",)),
    "FFN": ("green", ("ffn",)),
    "head": ("purple", ("head",)),
    "norm, position, cache, other": ("grey", ("norm", "position", "cache", "embedding", "other")),
}
Shares = Mapping[str, float]


def parts_figure(header: Header, records: Sequence[Record]) -> Figure | None:
    """What a call spends where, of each series that was cut into parts at two lengths or more."""
    found = _series(records)
    if not found:
        return None
    by_points = sorted(found.items(), key=lambda item: -len(item[1]))
    shown = dict(by_points[:MOST_PANELS])
    names = [
        name
        for name in _STACK
        if any(shares[name] > 0 for mine in shown.values() for shares in mine.values())
    ]
    said = [
        f"{series}: attention "
        + ", ".join(
            f"{units.percent(mine[n]['attention'])} at {units.tokens(n)}"
            for n in (min(mine), max(mine))
        )
        for series, mine in shown.items()
    ]
    lengths = [n for mine in shown.values() for n in mine]
    x = lengths_axis("Length [tokens]", lengths)
    return Figure(
        name="parts",
        title="What a call spends where, of its time",
        alt=f"Share of a call's time by part, against length. {'. '.join(said)}.",
        source=source_of(header) + "." + and_more(len(shown), len(found), "series"),
        x=x,
        y=linear_axis("Share of the time [%]", 0, 1, lambda share: f"{100 * share:.0f} %", 4),
        panels=tuple(_panel(series, mine, names) for series, mine in shown.items()),
        keys=tuple(Key(name, _STACK[name][0], "area") for name in names),
    )


def _series(records: Sequence[Record]) -> dict[str, dict[int, Shares]]:
    """Shares by length, of each series with two lengths or more."""
    varying = varying_keys(records)
    found: dict[str, dict[int, Shares]] = {}
    for record in records:
        shares = _shares(record)
        if is_ok(record) and shares and positive(record.get("kv_len")):
            name = label(record, varying, without="kv_len")
            found.setdefault(name, {})[record["kv_len"]] = shares
    return {
        name: dict(sorted(mine.items()))
        for name, mine in found.items()
        if len(mine) > 1 and any(shares["attention"] > 0 for shares in mine.values())
    }


def _shares(record: Record) -> Shares | None:
    """Of the time of all parts, on the record's clock where each part has it."""
    parts = record.get("parts") or ()
    on_cpu = record.get("clock") == "cpu" and all(part.get("cpu_s") for part in parts)
    times_s = {part["name"]: part["cpu_s" if on_cpu else "wall_s"] or 0.0 for part in parts}
    total_s = sum(times_s.values())
    if not total_s:
        return None
    known = [part for _, members in _STACK.values() for part in members]
    times_s["other"] = times_s.get("other", 0.0) + sum(
        part_s for part, part_s in times_s.items() if part not in known
    )
    return {
        name: sum(times_s.get(part, 0.0) for part in members) / total_s
        for name, (_, members) in _STACK.items()
    }


def _panel(series: str, mine: Mapping[int, Shares], names: Sequence[str]) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        below = [0.0] * len(mine)
        for name in names:
            above = [low + shares[name] for low, shares in zip(below, mine.values(), strict=True)]
            colour = getattr(theme, _STACK[name][0])
            axes.fill_between(
                list(mine), below, above, color=colour, alpha=0.85, lw=0.8, ec=theme.background
            )
            below = above
        for n in mine:
            axes.axvline(n, color=theme.background, lw=0.6, alpha=0.7)

    ends = [
        f"{units.percent(mine[n]['attention'])} at {units.tokens(n)}"
        for n in (min(mine), max(mine))
    ]
    return Panel(series, f"attention {', '.join(ends)}", draw)
