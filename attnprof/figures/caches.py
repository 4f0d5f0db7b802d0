"""A run -> KV bytes against tokens, measured on theory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnprof import units
from attnprof.figures.axes import bytes_axis, lengths_axis, linear_axis
from attnprof.figures.base import MOST_PANELS, Axis, Figure, Key, Panel, Theme
from attnprof.figures.words import and_more, source_of
from attnprof.run_header import Header
from attnprof.series import IDENTITY, Record, is_ok, label, positive, varying_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS = 4
_LEAST_TOLD = 0.001  # of all slots that hold no token; or of a size, off theory
_MARKS = 8  # of a line of many points
_TOKENS = "Tokens in the cache, of all sequences [tokens]"
_BYTES = "KV cache [bytes, binary prefixes]"


@dataclass(frozen=True)
class _Cache:
    """What one cache held, by its tokens: of all sequences, [tokens] and [bytes]."""

    name: str
    tokens: tuple[float, ...]
    held: tuple[float, ...]
    theory: tuple[float | None, ...]
    useful: tuple[float, ...] = ()
    peak: tuple[float, ...] = ()

    @property
    def worst(self) -> float | None:
        """The furthest that useful bytes (or all, where only those are known) are from theory."""
        pairs = zip(self.useful or self.held, self.theory, strict=True)
        return max((abs(held / known - 1) for held, known in pairs if known), default=None)


def kv_figure(header: Header, records: Sequence[Record]) -> Figure | None:
    """Bytes of the KV cache against its tokens, of decodes that were measured at several lengths;
    None where there are none."""
    found = _measured(records)
    if not found:
        return None
    shown = found[:MOST_PANELS]
    held = [value for one in shown for value in (*one.held, *one.theory) if value]
    return _figure(
        header, shown, len(found), "kv", "KV cache against tokens: measured on theory",
        lengths_axis(_TOKENS, [n for one in shown for n in one.tokens]),
        bytes_axis(_BYTES, held),
        (Key("theory", "orange"), Key("measured", "blue", "point")),
    )  # fmt: skip


def kv_growth_figure(header: Header, records: Sequence[Record]) -> Figure | None:
    """The same of caches that were grown a token at a time, with what is allocated beyond the
    tokens that they hold."""
    found = _grown(records)
    if not found:
        return None
    shown = found[:MOST_PANELS]
    most = max(tokens for one in shown for tokens in one.tokens)
    least = min(tokens for one in shown for tokens in one.tokens)
    room = 0.04 * (most - least) or 1.0
    sizes = (held for one in shown for held in (*one.held, *one.peak, *one.useful, *one.theory))
    top = max(held for held in sizes if held)
    return _figure(
        header, shown, len(found), "kv-growth",
        "KV cache while it grows, a token at a time: measured on theory",
        linear_axis(_TOKENS, least - room, most + room, _count, 4),
        _bytes_axis(top),
        (
            Key("theory", "orange"),
            Key("measured, in use", "blue", "point"),
            Key("allocated", "green"),
            Key("peak of a step", "purple", "dots"),
        ),
    )  # fmt: skip


def _figure(
    header: Header, shown: Sequence[_Cache], there: int, name: str, title: str, x: Axis, y: Axis,
    keys: tuple[Key, ...],
) -> Figure:  # fmt: skip
    said = [
        f"{one.name}: {units.capacity(one.held[-1])} at {_count(one.tokens[-1])} tokens, "
        + (
            "without a theory"
            if one.worst is None
            else f"in use within {units.percent(one.worst)} of theory"
            if one.worst
            else "in use exactly what theory says"
        )
        for one in shown
    ]
    return Figure(
        name=name,
        title=title,
        alt=f"{title}. {'. '.join(said)}.",
        source=source_of(header) + "." + and_more(len(shown), there, "caches"),
        x=x,
        y=y,
        panels=tuple(_panel(one) for one in shown),
        keys=keys,
    )


def _count(value: float) -> str:
    return units.tokens(round(value))


def _bytes_axis(top: float) -> Axis:
    unit = next(size for size in (2**40, 2**30, 2**20, 2**10, 1) if top >= size)
    scaled = linear_axis("", 0, 1.06 * top / unit, units.capacity, _STEPS)
    ticks = tuple(tick * unit for tick in scaled.ticks)
    return Axis(_BYTES, 0, 1.06 * top, ticks, units.capacity, is_log=False)


def _good(records: Sequence[Record]) -> list[Record]:
    return [
        record
        for record in records
        if is_ok(record) and positive(record.get("kv_bytes")) and positive(record.get("kv_len"))
    ]


def _grown(records: Sequence[Record]) -> list[_Cache]:
    varying = varying_keys(records)
    grown = []
    for record in _good(records):
        points = [
            point
            for point in record.get("growth") or ()
            if positive(point.get("allocated_bytes")) and positive(point.get("useful_bytes"))
        ]
        if len(points) > 1:
            batch = record.get("batch_size") or 1
            grown.append(
                _Cache(
                    name=label(record, varying, without="kv_len"),
                    tokens=tuple(batch * point["kv_len"] for point in points),
                    held=tuple(point["allocated_bytes"] for point in points),
                    theory=tuple(_theory(record, point) for point in points),
                    useful=tuple(point["useful_bytes"] for point in points),
                    peak=tuple(point.get("peak_bytes") or 0 for point in points),
                )
            )
    return grown


def _measured(records: Sequence[Record]) -> list[_Cache]:
    varying = varying_keys(records)
    groups: dict[str, list[Record]] = {}
    for record in _good(records):
        if record.get("phase") == "decode":
            key = repr([record.get(name) for name in (*IDENTITY, "q_len")])
            groups.setdefault(key, []).append(record)
    measured = []
    for rows in groups.values():
        rows.sort(key=lambda row: row["kv_len"])
        if len({row["kv_len"] for row in rows}) > 1:
            measured.append(
                _Cache(
                    name=label(rows[0], varying, without="kv_len"),
                    tokens=tuple((row.get("batch_size") or 1) * row["kv_len"] for row in rows),
                    held=tuple(row["kv_bytes"] for row in rows),
                    theory=tuple(positive(row.get("theory_kv_bytes")) for row in rows),
                )
            )
    return measured


def _theory(record: Record, point: Record) -> float | None:
    """Theory's bytes at one step; in runs that kept none, in proportion to those at the end."""
    if (known := positive(point.get("theory_bytes"))) is not None:
        return known
    at_end = positive(record.get("theory_kv_bytes"))
    is_proportional = record.get("variant") in ("causal", "full") and not record.get("source_len")
    return at_end * point["kv_len"] / record["kv_len"] if at_end and is_proportional else None


def _panel(one: _Cache) -> Panel:
    def draw(axes: "Axes", theme: Theme) -> None:
        known = [(n, value) for n, value in zip(one.tokens, one.theory, strict=True) if value]
        if known:
            axes.plot(*zip(*known, strict=True), color=theme.orange, lw=2.6, zorder=2)
        if one.useful:
            axes.step(one.tokens, one.held, where="post", color=theme.green, lw=1.2, zorder=3)
            above = [
                peak if peak > held else float("nan")
                for peak, held in zip(one.peak, one.held, strict=True)
            ]
            axes.plot(one.tokens, above, color=theme.purple, lw=1.3, ls=(0, (1, 1.2)), zorder=3)
        values = one.useful or one.held
        marked = _marked(values, one.theory)
        axes.plot(
            [one.tokens[i] for i in marked], [values[i] for i in marked], "o", color=theme.blue,
            ms=4.4, markeredgecolor=theme.background, mew=0.5, zorder=4,
        )  # fmt: skip

    used = one.useful or one.held
    note = _growth_words(one.tokens, used)
    unused = 1 - used[-1] / one.held[-1]
    if unused > _LEAST_TOLD:
        note += f"; {units.percent(unused)} unused at the end"
    return Panel(one.name, note, draw)


def _marked(values: Sequence[float], theory: Sequence[float | None]) -> list[int]:
    """The points that get a mark: some of many, the last, and each that theory does not say.

    >>> _marked([1.0] * 32, [1.0] * 20 + [2.0] + [1.0] * 11)
    [0, 4, 8, 12, 16, 20, 24, 28, 31]
    >>> _marked([1.0, 2.0, 9.0], [1.0, 2.0, 3.0])
    [0, 1, 2]
    """
    every, last = max(1, len(values) // _MARKS), len(values) - 1
    return [
        i
        for i, (value, known) in enumerate(zip(values, theory, strict=True))
        if i % every == 0 or i == last or (known and abs(value / known - 1) > _LEAST_TOLD)
    ]


def _growth_words(tokens: Sequence[float], used: Sequence[float]) -> str:
    """What a token takes, and from when on a cache takes no more.

    >>> _growth_words([100, 200, 300], [1024.0, 2048.0, 2048.0])
    '10.2 B a token, full from 200 on'
    """
    full = used.index(used[-1])
    more, grown = used[full] - used[0], tokens[full] - tokens[0]
    if more <= 0 or grown <= 0:
        return "no growth"
    said = f"{units.capacity(more / grown)} a token"
    return said if full == len(used) - 1 else f"{said}, full from {_count(tokens[full])} on"
