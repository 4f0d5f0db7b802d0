"""A run directory -> what its tables, ``results.csv``, ``fit.json`` and ``report.md`` hold."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnprof import units
from attnprof.comparison_tables import (
    comparison_tables,
    parts_words,
    position_words,
    replaced_words,
)
from attnprof.files import write_whole
from attnprof.findings import (
    doubts,
    fastest_words,
    filling_words,
    growth_words,
    kv_words,
    roof_words,
    shortened,
    what_was_measured,
)
from attnprof.fit import fit_run
from attnprof.growth_tables import filling_table, generation_table, growth_table, kv_table
from attnprof.imports import summary as imported
from attnprof.legend import environment_rows, legend_rows
from attnprof.medians import Interval
from attnprof.recording import unfinished_records
from attnprof.records import Run, read_run
from attnprof.render import (
    Column,
    Table,
    csv_text,
    markdown_escaped,
    markdown_text,
    plain,
    without_nan,
)
from attnprof.result_keys import RESULT_KEYS
from attnprof.run_header import (
    Header,
    ceilings_of,
    command_of,
    device_name,
    facts_of,
    in_grid_order,
    is_synthetic,
)
from attnprof.series import Kept, Record, contests, is_ok, label, varying_keys, what_is_common

RESULTS_FILE = "results.csv"
REPORT_FILE = "report.md"
FIT_FILE = "fit.json"

# What is looked at first: a number that is wrong, then what broke, then what was never tried.
_STATUS_ORDER = (
    "wrong_result", "crashed", "out_of_memory", "timeout", "predicted_out_of_memory",
    "unsupported", "skipped",
)  # fmt: skip
_DOUBTFUL = ("noisy", "throttled", "warmup_unsettled")
_MOST_NAMED = 3


def write_reports(run_dir: Path) -> list[Path]:
    """Make ``results.csv``, ``fit.json`` and ``report.md`` from the run's records.

    The same records give the same bytes; each file is replaced as a whole or not at all.

    Raises:
        UsageError: No run there, or it cannot be written to.
    """
    run = read_in_grid_order(run_dir)
    if imported.is_foreign_run(run.records):
        return _write_foreign(run)
    fits = fit_run(run.header, run.records)
    return write_all(run, fits, tables(run.header, run.records, fits))


def report_foreign(run: Run, *, tidy: bool = False) -> list[Table]:
    """Of times that others measured: what :func:`write_reports` writes, and their tables."""
    _write_foreign(run)
    return _foreign_tables(run, tidy)


def _write_foreign(run: Run) -> list[Path]:
    """What can be said of times that others measured; growth is not among it."""
    name, command = device_name(run.header), command_of(run.header)
    return _write_texts(
        run.path,
        {
            RESULTS_FILE: imported.results_csv(run.records),
            REPORT_FILE: imported.report_md(run.header, run.records, name, command),
        },
    )


def _foreign_tables(run: Run, tidy: bool) -> list[Table]:
    if tidy:
        return [imported.results_table(run.records)]
    groups, *others = imported.foreign_tables(run.header, run.records)
    return [replace(groups, notes=(*groups.notes, *imported.NOT_SHOWN)), *others]


def write_all(
    run: Run, fits: Mapping[str, Any], made: Sequence[Table], pictures: str = ""
) -> list[Path]:
    """Write ``results.csv``, ``fit.json`` and ``report.md`` of a run that was measured here.

    Args:
        made: Its :func:`tables`.
        pictures: Markdown that ``report.md`` shows after its first words.
    """
    return _write_texts(
        run.path,
        {
            RESULTS_FILE: results_csv(run.records),
            FIT_FILE: json.dumps(without_nan(fits), indent=1) + "\n",
            REPORT_FILE: report_md(run, fits, made, pictures),
        },
    )


def _write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in texts.items():
        write_whole(folder / name, text)
    return [folder / name for name in texts]


def run_tables(run_dir: Path, *, tidy: bool = False) -> list[Table]:
    """The tables of the run in ``run_dir``; ``tidy`` for one alone with a row a workload.

    Raises:
        UsageError: No run there.
    """
    run = read_in_grid_order(run_dir)
    if imported.is_foreign_run(run.records):
        return _foreign_tables(run, tidy)
    if tidy:
        return [results_table(run.records)]
    return tables(run.header, run.records, fit_run(run.header, run.records))


def read_in_grid_order(run_dir: Path) -> Run:
    """The run with all that it has: also what a stopped sweep had measured of a workload so far."""
    run = read_run(run_dir)
    if run.header.get("imported"):
        return run
    found = (*run.records, *unfinished_records(run))
    return replace(run, records=Kept(in_grid_order(run.header, found)))


def results_csv(records: Sequence[Record]) -> str:
    """One row a workload, in the order of measurement; what is unknown is an empty cell."""
    return csv_text(results_table(records))


def results_table(records: Sequence[Record]) -> Table:
    """A row a workload, with every key of ``results.csv`` as its own heading."""
    columns = tuple(Column(key, key) for key in RESULT_KEYS)
    rows = tuple(
        {
            **record,
            "rms_error": (record.get("check") or record).get("rms_error"),
            "median_itl_s": statistics.median(itl_s)
            if (itl_s := record.get("itl_s"))
            else record.get("median_itl_s"),
        }
        for record in records
    )
    return Table("results", "Results", columns, rows)


def tables(header: Header, records: Sequence[Record], fits: Mapping[str, Any]) -> list[Table]:
    """All tables of a run that have rows, what needs attention first."""
    suffix = " (synthetic device)" if is_synthetic(header) else ""
    made = [
        failures_table(records, suffix),
        latency_table(records, suffix),
        fastest_table(records, suffix),
        growth_table(fits, "latency", suffix),
        memory_table(records, suffix),
        growth_table(fits, "peak_memory", suffix),
        filling_table(fits, suffix),
        kv_table(fits, suffix),
        generation_table(fits, suffix),
        *comparison_tables(records, facts_of(header), suffix),
        ceilings_table(header, suffix),
    ]
    return [table for table in made if table.rows]


def failures_table(records: Sequence[Record], suffix: str = "") -> Table:
    """What was not measured, grouped by why."""
    varying = varying_keys(records)
    groups: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if not is_ok(record):
            key = (str(record.get("status")), str(record.get("reason") or "no reason was kept"))
            groups.setdefault(key, []).append(label(record, varying))
    rows = [
        {"status": status, "count": len(names), "reason": reason, "workloads": _some(names)}
        for (status, reason), names in sorted(groups.items(), key=lambda group: _rank(group[0][0]))
    ]
    return Table(
        name="failures",
        title=f"Not measured{suffix}",
        columns=(
            Column("status", "Status"),
            Column("count", "Rows", align="right"),
            Column("reason", "Reason", wraps=True),
            Column("workloads", "Workloads", priority=1, wraps=True),
        ),
        rows=tuple(rows),
        alarming=lambda row: row["status"] == "wrong_result",
    )


def _rank(status: str) -> int:
    return _STATUS_ORDER.index(status) if status in _STATUS_ORDER else len(_STATUS_ORDER)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def latency_table(records: Sequence[Record], suffix: str = "") -> Table:
    """Time of a call with its interval, doubtful rows first, then by series and length."""
    varying = varying_keys(records)
    rows = [
        {
            **record,
            "workload": label(record, varying),
            "half_width": _half_width(record),
            "flags": list(record.get("flags") or ()),
        }
        for record in _by_series(records)
        if is_ok(record)
    ]
    rows.sort(key=lambda row: not set(row["flags"]) & set(_DOUBTFUL))
    return Table(
        name="latency",
        title=f"Time of a call, by median{suffix}",
        columns=(
            Column("workload", "Workload"),
            Column("median_s", "Median", units.seconds, "right"),
            Column("half_width", "±", units.percent, "right"),
            Column("clock", "Clock"),
            Column("median_wall_s", "Wall", units.seconds, "right", 2),
            Column("mfu", "MFU", units.percent, "right", 1),
            Column("mbu", "MBU", units.percent, "right", 1),
            Column("num_samples", "Samples", align="right", priority=3),
            Column("median_low_s", "low", units.seconds, "right", 4),
            Column("median_high_s", "high", units.seconds, "right", 4),
            Column("flags", "Flags", _words),
        ),
        rows=tuple(rows),
        notes=(*_clock_notes(rows), *what_is_common(records)),
    )


def _half_width(record: Record) -> float | None:
    ends = (record.get("median_s"), record.get("median_low_s"), record.get("median_high_s"))
    return Interval(*ends).half_width


def _clock_notes(rows: Sequence[Record]) -> list[str]:
    """What a row on CPU time must not be taken for, where there is one."""
    if not any(row.get("clock") == "cpu" for row in rows):
        return []
    return [
        "Clock cpu: seconds of all threads together, since other work held the cores. Such a row "
        "is longer than one on the wall clock by as many times as there are threads at work."
    ]


def _words(flags: Sequence[str]) -> str:
    return ", ".join(flags)


def _by_series(records: Sequence[Record]) -> list[Record]:
    """Records of one series side by side, by length, the series in the order they came."""
    varying = varying_keys(records)
    names = [label(record, varying, without="kv_len") for record in records]
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    ranked = sorted(
        zip(names, records, strict=True),
        key=lambda pair: (order[pair[0]], pair[1].get("kv_len") or 0),
    )
    return [record for _, record in ranked]


def fastest_table(records: Sequence[Record], suffix: str = "") -> Table:
    """For each workload that several backends ran: who is the fastest, and by how much."""
    rows = []
    for contest in contests(records):
        tie = " (tie)" if contest.num_first > 1 else ""
        rows.append(
            {
                "workload": contest.name,
                "fastest": ", ".join(contest.fastest) + tie,
                "median_s": contest.medians_s[0],
                "clock": contest.clock,
                "others": ", ".join(f"{name} {ratio:.3g}×" for name, ratio in contest.slower),
            }
        )
    return Table(
        name="fastest",
        title=f"Fastest backend{suffix}",
        columns=(
            Column("workload", "Workload"),
            Column("fastest", "Fastest", wraps=True),
            Column("median_s", "Median", units.seconds, "right"),
            Column("clock", "Clock", priority=1),
            Column("others", "Others take", wraps=True),
        ),
        rows=tuple(rows),
    )


def memory_table(records: Sequence[Record], suffix: str = "") -> Table:
    """Weights, KV cache and peak activation, each measured and by theory."""
    varying = varying_keys(records)
    rows = []
    for record in _by_series(records):
        if not is_ok(record):
            continue
        peak, theory = (
            record.get("peak_activation_bytes"),
            record.get("theory_peak_activation_bytes"),
        )
        ratio = peak / theory if peak is not None and theory else None
        rows.append({**record, "workload": label(record, varying), "peak_ratio": ratio})
    weights = [Column("weight_bytes", "Weights", units.capacity, "right", 1)]
    return Table(
        name="memory",
        title=f"Memory{suffix}",
        columns=(
            Column("workload", "Workload"),
            *(weights if any(row.get("weight_bytes") for row in rows) else []),
            Column("kv_bytes", "KV", units.capacity, "right"),
            Column("theory_kv_bytes", "KV by theory", units.capacity, "right", 2),
            Column("peak_activation_bytes", "Peak", units.capacity, "right"),
            Column("theory_peak_activation_bytes", "Peak by theory", units.capacity, "right", 1),
            Column("peak_ratio", "Ratio", "{:.3f}".format, "right"),
        ),
        rows=tuple(rows),
    )


def ceilings_table(header: Header, suffix: str = "") -> Table:
    """The roofs that MFU and MBU are shares of, as this device was measured."""
    ceilings = ceilings_of(header)
    rows = [
        {
            "what": f"matrix product, {dtype}",
            "per_s": roof.get("flops_per_s"),
            "per_cpu_s": roof.get("flops_per_cpu_s"),
            "unit": "FLOP",
        }
        for dtype, roof in (ceilings.get("matmul") or {}).items()
    ]
    if ceilings.get("copy_bytes_per_s") is not None:
        rows.append(
            {
                "what": "copy, reads and writes",
                "per_s": ceilings["copy_bytes_per_s"],
                "per_cpu_s": ceilings.get("copy_bytes_per_cpu_s"),
                "unit": "B",
            }
        )
    return Table(
        name="ceilings",
        title=f"Measured roofs{suffix}",
        columns=(
            Column("what", "What"),
            Column("per_s", "a second", _scaled_rate, "right"),
            Column("per_cpu_s", "a CPU second", _scaled_rate, "right"),
            Column("unit", "Unit"),
        ),
        rows=tuple(rows),
    )


def _scaled_rate(value: float) -> str:
    return units.rate(value, "")


def report_md(run: Run, fits: Mapping[str, Any], made: Sequence[Table], pictures: str = "") -> str:
    """The report as GitHub renders it: what was found in sentences, then how, then all tables."""
    header, records = run.header, run.records
    synthetic = " (synthetic device)" if is_synthetic(header) else ""
    parts = [f"# Attention on {markdown_escaped(device_name(header))}{synthetic}\n"]
    roofs = roof_words(header)
    parts.append(
        markdown_escaped(
            " ".join([what_was_measured(header, records), *([roofs] if roofs else [])])
        )
        + "\n"
    )
    parts += [pictures] if pictures else []
    sections = {
        "Fastest": shortened(fastest_words(records), "the table 'Fastest backend'"),
        "Time": shortened(growth_words(fits, "latency"), "the table 'Growth of latency'"),
        "Memory": [
            *shortened(growth_words(fits, "peak_memory"), "the table 'Growth of peak memory'"),
            *shortened(filling_words(fits), "the table 'Length that fills the device'"),
        ],
        "KV cache": shortened(kv_words(fits), "the table 'KV cache'"),
        "Parts of a call": shortened(parts_words(records), "the table 'What a call spends where'"),
        "What replaced what": shortened(replaced_words(records), "the table 'What replaced what'"),
        "Positions": shortened(position_words(records), "the table 'What positions cost'"),
        "What to doubt": [
            *doubts(header, records),
            *(f"The last line of {torn} was cut in half by a crash." for torn in run.torn),
        ],
    }
    for title, sentences in sections.items():
        if sentences:
            parts.append(f"## {title}{synthetic}\n")
            parts.append("".join(f"- {markdown_escaped(said)}\n" for said in sentences))
    parts.append(f"## How it was measured{synthetic}\n")
    parts.append(
        _code(command) if (command := command_of(header)) else "The command was not kept.\n"
    )
    parts.append(_environment(header))
    parts.append("## Tables\n")
    parts += [markdown_text(table) for table in made]
    parts.append(_legend(records))
    return "\n".join(parts)


def _code(text: str) -> str:
    fence = "```"
    return f"{fence}sh\n{plain(text).replace(fence, '')}\n{fence}\n"


def _environment(header: Header) -> str:
    lines = ["| Fact | Value |", "| :--- | :--- |"]
    lines += [
        f"| {markdown_escaped(key)} | {markdown_escaped(value)} |"
        for key, value in environment_rows(header)
    ]
    return "\n".join(lines) + "\n"


def _legend(records: Sequence[Record]) -> str:
    lines = [f"- **{markdown_escaped(name)}**: {said}" for name, said in legend_rows(records)]
    return "## Legend\n\n" + "\n".join(lines) + "\n"
