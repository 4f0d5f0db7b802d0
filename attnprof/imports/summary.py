"""Imported records -> tables of what there is: by device, engine and operation, with ranges."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnprof import units
from attnprof.imports.foreign_records import FOREIGN_KEYS, is_foreign
from attnprof.render import Column, Table, csv_text, markdown_escaped, markdown_text
from attnprof.result_keys import RESULT_KEYS

MOST_NAMED = 3
EXPORTED_KEYS = tuple(dict.fromkeys((*RESULT_KEYS, *FOREIGN_KEYS)))
NOT_SHOWN = (
    "These times were measured by others: there are no samples beside them unless the source kept "
    "them, so no intervals; no memory, and no roof of the device, so no MFU and MBU.",
    "attnprof fit fits laws to attention, GEMM and all-reduce; growth by length, contests of "
    "backends and KV caches are shown of runs that attnprof measured.",
)
_RANGES = {
    "batch_size": "batch", "q_len": "q", "kv_len": "kv", "num_q_heads": "heads",
    "num_kv_heads": "kv heads", "head_dim": "head dim", "window_len": "window", "m_tokens": "m",
    "n_out": "n", "k_in": "k", "num_ranks": "ranks", "message_bytes": "message",
    "num_tokens": "tokens", "hidden_size": "hidden", "tensor_parallel": "tp",
    "prompt_len": "prompt", "output_len": "answer", "depth_len": "depth",
}  # fmt: skip
_BY = ("device", "engine", "engine_version", "kind", "what", "kernel", "dtype", "kv_dtype")


def is_foreign_run(records: Sequence[Mapping[str, Any]]) -> bool:
    return any(is_foreign(record) for record in records)


def groups_table(records: Iterable[Mapping[str, Any]]) -> Table:
    """What was imported: a row for each device, engine, operation, kernel and element type."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        what = record.get("phase") or record.get("collective") or record.get("op")
        key = tuple(what if name == "what" else record.get(name) for name in _BY)
        groups.setdefault(key, []).append(record)
    rows = [_row(key, mine) for key, mine in groups.items()]
    texts = (
        ("device", "Device"), ("engine", "Engine"), ("engine_version", "Version"),
        ("kind", "Kind"), ("what", "Of"), ("kernel", "Kernel"), ("dtype", "Type"),
        ("kv_dtype", "KV"),
    )  # fmt: skip
    return Table(
        name="imported",
        title="What was imported",
        columns=(
            *(Column(key, heading) for key, heading in texts),
            Column("num_records", "Records", "{:,}".format, "right"),
            Column("ranges", "Ranges", wraps=True),
            Column("fastest_s", "Fastest", units.seconds, "right", 1),
            Column("slowest_s", "Slowest", units.seconds, "right", 1),
            Column("num_repeats", "Repeats", align="right", priority=2),
            Column("num_above_peak", "Above peak", align="right", priority=2),
        ),
        rows=tuple(rows),
        notes=_notes(rows),
    )


def _row(key: Sequence[Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = [time_s for one in records if (time_s := one.get("median_s")) is not None]
    return {
        **dict(zip(_BY, key, strict=True)),
        "num_records": len(records),
        "ranges": ", ".join(_ranges(records)),
        "fastest_s": min(times, default=None),
        "slowest_s": max(times, default=None),
        "num_repeats": sum((one.get("num_merged") or 1) - 1 for one in records),
        "num_above_peak": sum("above_peak" in (one.get("flags") or ()) for one in records),
    }


def _ranges(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for name, word in _RANGES.items():
        values = {value for one in records if (value := one.get(name)) is not None}
        if not values:
            continue
        show = units.capacity if name == "message_bytes" else units.tokens
        ends = list(dict.fromkeys((show(min(values)), show(max(values)))))
        yield f"{word} {'–'.join(ends)}"


def _notes(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    notes = []
    if any(row["num_repeats"] for row in rows):
        notes.append("Repeats: calls that were there several times; the median of their times.")
    if any(row["num_above_peak"] for row in rows):
        notes.append(
            "Above peak: calls faster than the GPU's peak allows. They are kept and flagged; "
            "whoever timed them did not compute all of it."
        )
    return tuple(notes)


def files_table(sources: Sequence[Mapping[str, Any]]) -> Table:
    """Each file that was read: whose it is, how much it held, what was left out and why."""
    rows = [
        {
            **one,
            "left_out": "; ".join(
                [
                    f"{units.counted(count, 'row')}: {why}"
                    for why, count in (one.get("skipped") or {}).items()
                ]
                + ([one["reason"]] if one.get("reason") else [])
            )
            or None,
        }
        for one in _gathered(sources)
    ]
    return Table(
        name="files",
        title="Where it comes from",
        columns=(
            Column("file", "File", wraps=True),
            Column("form", "Format"),
            Column("source", "Source", wraps=True),
            Column("version", "Version", wraps=True, priority=1),
            Column("licence", "Licence"),
            Column("num_rows", "Rows", "{:,}".format, "right"),
            Column("num_records", "Records", "{:,}".format, "right"),
            Column("left_out", "Left out", wraps=True),
        ),
        rows=tuple(rows),
    )


def _gathered(sources: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The files that were read, then those left out: many for one reason in one line."""
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for one in sources:
        if one.get("reason"):
            by_reason.setdefault(one["reason"], []).append(one)
        else:
            yield one
    for alike in by_reason.values():
        if len(alike) <= MOST_NAMED:
            yield from alike
        else:
            many = f"{units.counted(len(alike), 'file')}, such as {alike[0]['file']}"
            yield {**alike[0], "file": many, "source": None}


def foreign_tables(header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Table]:
    return [groups_table(records), files_table(header.get("sources") or ())]


def results_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each record, with the columns that ``import`` reads again."""
    columns = tuple(Column(key, key) for key in EXPORTED_KEYS)
    return Table("results", "Results", columns, tuple(records))


def results_csv(records: Sequence[Mapping[str, Any]]) -> str:
    return csv_text(results_table(records))


def report_md(
    header: Mapping[str, Any], records: Sequence[Mapping[str, Any]], name: str, command: str | None
) -> str:
    """The report of an imported run: what there is, whose it is, and what it cannot show."""
    parts = [
        f"# Imported measurements of {markdown_escaped(name)}\n",
        f"{units.counted(len(records), 'record')}, imported "
        f"{markdown_escaped(str(header.get('started')))}. Nothing was measured here.\n",
        "## What cannot be shown\n",
        "".join(f"- {markdown_escaped(said)}\n" for said in NOT_SHOWN),
        "## How it was imported\n",
        f"```sh\n{command}\n```\n" if command else "The command was not kept.\n",
        "## Tables\n",
        *(markdown_text(table) for table in foreign_tables(header, records)),
    ]
    return "\n".join(parts)
