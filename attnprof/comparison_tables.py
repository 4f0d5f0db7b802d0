"""Records -> tables that hold workloads against each other: parts of a call, what replaced what,
what positions cost, and what a precision loses beside what it gains."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnprof import units
from attnprof.crossings import Crossing, mixer_crossings, part_crossings
from attnprof.dtypes import dtype_named
from attnprof.render import Column, Table
from attnprof.series import (
    IDENTITY,
    Contest,
    Record,
    contests,
    is_ok,
    label,
    short_dtype,
    varying_keys,
)

PARTS = (
    "attention", "position", "cache", "projection", "ffn", "norm", "embedding", "head", "other",
)  # fmt: skip
_PRECISION = ("dtype", "kv_dtype", "weight_dtype")
_ALWAYS_SHOWN = 3  # parts; a narrow terminal has room for the first


def comparison_tables(
    records: Sequence[Record], device: Mapping[str, Any], suffix: str = ""
) -> list[Table]:
    """All of them; those of which the records hold nothing have no rows.

    Args:
        device: Its facts, for what laws foretell.
    """
    return [
        parts_table(records, suffix),
        parts_memory_table(records, suffix),
        replaced_table(records, device, suffix),
        position_costs_table(records, suffix),
        training_table(records, suffix),
        precision_table(records, suffix),
    ]


def parts_table(records: Sequence[Record], suffix: str = "") -> Table:
    """What share of a call's time each part takes, by length."""
    return _parts_table(
        records, _shares, units.percent,
        name="parts", title=f"What a call spends where, of its time{suffix}",
        note="Shares of the time of all parts by the row's clock, in a call that is cut into them.",
    )  # fmt: skip


def parts_memory_table(records: Sequence[Record], suffix: str = "") -> Table:
    """The most that each part holds beyond what there was before it, by length."""
    return _parts_table(
        records, _peaks, units.capacity,
        name="parts_memory", title=f"What a call holds where, at its peak{suffix}",
        note="The most that the operators of a part held above the level before them.",
    )  # fmt: skip


def _parts_table(
    records: Sequence[Record], of_parts: Callable[[Record], Mapping[str, Any]],
    show: Callable[[Any], str], *, name: str, title: str, note: str,
) -> Table:  # fmt: skip
    varying = varying_keys(records)
    rows = []
    for record in records:
        found = of_parts(record)
        if is_ok(record) and any(value is not None for value in found.values()):
            rows.append({"workload": label(record, varying), **found})
    there = [part for part in PARTS if any(row.get(part) is not None for row in rows)]
    return Table(
        name=name,
        title=title,
        columns=(
            Column("workload", "Workload"),
            *(
                Column(
                    part, part.upper() if part == "ffn" else part.capitalize(), show, "right",
                    max(0, place - _ALWAYS_SHOWN + 1),
                )
                for place, part in enumerate(there)
            ),
        ),
        rows=tuple(rows),
        notes=(note,),
    )  # fmt: skip


def parts_words(records: Sequence[Record]) -> list[str]:
    """Of each series that was cut into parts: attention's share, at the ends of its lengths."""
    varying = varying_keys(records)
    by_series: dict[str, list[Record]] = {}
    for record in records:
        if is_ok(record) and _share(record, "attention") is not None:
            by_series.setdefault(label(record, varying, without="kv_len"), []).append(record)
    overtaken = {crossing.first.name: crossing for crossing in part_crossings(records)}
    said = []
    for name, rows in by_series.items():
        by_length = {row["kv_len"]: row for row in sorted(rows, key=lambda row: row["kv_len"])}
        crossing = overtaken.get(f"attention of {name}")
        clock = crossing.clock if crossing else None
        shares = [
            f"{units.percent(_share(by_length[n], 'attention', clock))} at {units.tokens(n)}"
            for n in dict.fromkeys((min(by_length), max(by_length)))
        ]
        sentence = f"Attention takes {' and '.join(shares)} of the time of {name}"
        if crossing is not None:
            sentence += f"; {_overtaking_words(crossing)}"
        said.append(f"{sentence}.")
    return said


def _overtaking_words(crossing: Crossing) -> str:
    """From which length attention takes more than all else, if it does."""
    share = "more" if crossing.longer_at_end == crossing.first.name else "less"
    if crossing.at is None:
        return f"it takes {share} than all else at each of these lengths"
    return f"from about n = {_length(crossing.at)} it takes {share} than all else"


def _length(n: float) -> str:
    """A length that was computed, to two digits.

    >>> _length(1234.5), _length(187.0)
    ('1,200', '190')
    """
    return f"{float(f'{n:.2g}'):,.0f}"


def _share(record: Record, part: str, clock: str | None = None) -> float | None:
    """Of the time of a call; None where it was not cut, 0 where it has no such part."""
    shares = _shares(record, clock)
    return shares.get(part, 0.0) if shares else None


def _shares(record: Record, clock: str | None = None) -> dict[str, float]:
    """Of the time of all parts; none where the call was not cut.

    Args:
        clock: The row's own by default.
    """
    parts = record.get("parts") or ()
    in_cpu_s = (clock or record.get("clock")) == "cpu" and all(part.get("cpu_s") for part in parts)
    seconds = {part["name"]: part["cpu_s" if in_cpu_s else "wall_s"] for part in parts}
    total_s = sum(seconds.values())
    return {name: part_s / total_s for name, part_s in seconds.items()} if total_s else {}


def _peaks(record: Record) -> dict[str, int | None]:
    return {part["name"]: part.get("peak_bytes") for part in record.get("parts") or ()}


def replaced_table(records: Sequence[Record], device: Mapping[str, Any], suffix: str = "") -> Table:
    """Each layer in attention's place against attention, and the length at which they cross."""
    rows = []
    for crossing in mixer_crossings(records, foretold_on=device):
        first, second = crossing.first, crossing.second
        rows.append(
            {
                "layer": second.name,
                "attention": first.name,
                "shortest": first.n[0],
                "ratio_shortest": second.seconds[0] / first.seconds[0],
                "longest": first.n[-1],
                "ratio_longest": second.seconds[-1] / first.seconds[-1],
                "crossing": crossing.at,
                "crossing_low": crossing.low,
                "crossing_high": crossing.high,
                "beyond": crossing.beyond,
                "why_not": "" if crossing.at is not None else crossing.why_not or "",
                "clock": crossing.clock,
            }
        )
    return Table(
        name="replaced",
        title=f"What replaced what{suffix}",
        columns=(
            Column("layer", "Layer"),
            Column("attention", "Against"),
            Column("shortest", "n", units.tokens, "right", 2),
            Column("ratio_shortest", "takes", _times, "right"),
            Column("longest", "n", units.tokens, "right", 2),
            Column("ratio_longest", "takes", _times, "right"),
            Column("crossing", "Equal at n", _length, "right"),
            Column("crossing_low", "low", _length, "right", 3),
            Column("crossing_high", "high", _length, "right", 3),
            *(
                [Column("beyond", "Foretold at", _length, "right", 1)]
                if any(row["beyond"] for row in rows)
                else []
            ),
            Column("why_not", "Why not", priority=5, wraps=True),
            Column("clock", "Clock", priority=6),
        ),
        rows=tuple(rows),
        notes=(
            "Takes: times as long as attention of the same width over the same tokens, at the "
            "shortest and the longest length. Equal: where both take as long. Foretold: beyond "
            "what was measured, by the laws of both.",
        ),
    )


def replaced_words(records: Sequence[Record]) -> list[str]:
    """How each layer in attention's place compares at the ends of the lengths, and between."""
    said = []
    for crossing in mixer_crossings(records):
        first, second = crossing.first, crossing.second
        ends = [
            f"{_times(second.seconds[i] / first.seconds[i])} the time at {units.tokens(first.n[i])}"
            for i in (0, -1)
        ]
        sentence = f"{second.name} takes {' and '.join(ends)} of {first.name}"
        if crossing.at is not None:
            sentence += f"; they are equal at about n = {_length(crossing.at)}"
        said.append(f"{sentence}.")
    return said


def position_costs_table(records: Sequence[Record], suffix: str = "") -> Table:
    """The time with each position scheme over that without any."""
    rows = []
    for contest in contests(records, ("position",)):
        bases = [i for i, row in enumerate(contest.rows) if row.get("position") == "none"]
        if bases:
            rows += [
                _against(contest, i, bases[0], position=row.get("position"))
                for i, row in enumerate(contest.rows)
                if i != bases[0]
            ]
    return Table(
        name="position_costs",
        title=f"What positions cost{suffix}",
        columns=(
            Column("workload", "Workload"),
            Column("position", "Position"),
            Column("median_s", "Median", units.seconds, "right"),
            Column("more_s", "More than none", units.seconds, "right", 1),
            Column("ratio", "Times none", _times, "right"),
            Column("half_width", "±", units.percent, "right", 2),
            Column("clock", "Clock", priority=3),
        ),
        rows=tuple(rows),
    )


def _against(contest: Contest, row: int, base: int, **more: Any) -> dict[str, Any]:
    ratio, half_width = contest.ratio(row, base)
    return {
        "workload": contest.name,
        "median_s": contest.medians_s[row],
        "more_s": contest.medians_s[row] - contest.medians_s[base],
        "ratio": ratio,
        "half_width": half_width,
        "clock": contest.clock,
        **more,
    }


def position_words(records: Sequence[Record]) -> list[str]:
    """What each scheme costs at the longest length that it was measured at, dearest first."""
    longest: dict[tuple[Any, ...], Contest] = {}
    for contest in contests(records, ("position",)):
        key = tuple(contest.rows[0].get(name) for name in IDENTITY if name != "position")
        if key not in longest or contest.kv_len > longest[key].kv_len:
            longest[key] = contest
    said = []
    for contest in longest.values():
        rows = position_costs_table(list(contest.rows)).rows
        dearest_first = sorted(rows, key=lambda row: -row["ratio"])
        costs = [f"{row['position']} {_times(row['ratio'])}" for row in dearest_first]
        if costs:
            said.append(f"{contest.name}, in times of no position: {', '.join(costs)}.")
    return said


def training_table(records: Sequence[Record], suffix: str = "") -> Table:
    """Forward and backward against the forward pass alone, activations kept or made again."""
    rows = []
    passes = [record for record in records if record.get("phase") in ("prefill", "train")]
    for contest in contests(passes, ("phase", "checkpointing")):
        phases = [row["phase"] for row in contest.rows]
        if not {"prefill", "train"} <= set(phases):
            continue
        base = phases.index("prefill")
        forward_bytes = contest.rows[base].get("peak_activation_bytes")
        for i in sorted(range(len(phases)), key=lambda i: contest.medians_s[i]):
            row = contest.rows[i]
            peak_bytes = row.get("peak_activation_bytes")
            step = f"{row['phase']}, checkpointing" if row.get("checkpointing") else row["phase"]
            more = {"step": step, "peak_activation_bytes": peak_bytes}
            if peak_bytes is not None and forward_bytes:
                more["peak_ratio"] = peak_bytes / forward_bytes
            rows.append(_against(contest, i, base, **more))
            rows[-1]["workload"] = contest.name.partition(" ")[2]  # without the phase
    return Table(
        name="training",
        title=f"What training costs{suffix}",
        columns=(
            Column("workload", "Workload"),
            Column("step", "Pass"),
            Column("median_s", "Median", units.seconds, "right"),
            Column("ratio", "Times forward", _times, "right"),
            Column("half_width", "±", units.percent, "right", 2),
            Column("peak_activation_bytes", "Peak", units.capacity, "right"),
            Column("peak_ratio", "Times forward's", _times, "right", 1),
            Column("clock", "Clock", priority=3),
        ),
        rows=tuple(rows),
    )


def precision_table(records: Sequence[Record], suffix: str = "") -> Table:
    """What each element type costs in error, beside its time and bytes; the widest first."""
    rows = []
    for contest in contests(records, _PRECISION):
        if not any(_error(row) is not None for row in contest.rows):
            continue
        order = sorted(range(len(contest.rows)), key=lambda i: _widths(contest.rows[i]))[::-1]
        rows += [
            _against(
                contest, i, order[0],
                precision=_precision(contest.rows[i]), rms_error=_error(contest.rows[i]),
                kv_bytes=contest.rows[i].get("kv_bytes") or None,
                weight_bytes=contest.rows[i].get("weight_bytes") or None,
            )
            for i in order
        ]  # fmt: skip
    return Table(
        name="precision",
        title=f"Error beside gain{suffix}",
        columns=(
            Column("workload", "Workload"),
            Column("precision", "Element types"),
            Column("rms_error", "Error", "{:.2g}".format, "right"),
            Column("median_s", "Median", units.seconds, "right"),
            Column("ratio", "Times widest", _times, "right"),
            Column("half_width", "±", units.percent, "right", 3),
            Column("kv_bytes", "KV", units.capacity, "right", 1),
            Column("weight_bytes", "Weights", units.capacity, "right", 1),
            Column("clock", "Clock", priority=4),
        ),
        rows=tuple(rows),
        notes=(
            "Error: root mean square of the differences from float64 on unrounded weights and "
            "caches, as a share of that of the result.",
        ),
    )


def _error(record: Record) -> float | None:
    return (record.get("check") or {}).get("rms_error")


def _types(record: Record) -> tuple[str, str, str]:
    """Element types of the arithmetic, the cache and the weights."""
    dtype = str(record["dtype"])
    return dtype, record.get("kv_dtype") or dtype, record.get("weight_dtype") or dtype


def _widths(record: Record) -> tuple[float, ...]:
    return tuple(dtype_named(name).bytes for name in _types(record))


def _precision(record: Record) -> str:
    dtype, kv_dtype, weight_dtype = _types(record)
    words = [short_dtype(dtype)]
    words += [f"cache {short_dtype(kv_dtype)}"] if kv_dtype != dtype else []
    words += [f"weights {short_dtype(weight_dtype)}"] if weight_dtype != dtype else []
    return ", ".join(words)


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×"
