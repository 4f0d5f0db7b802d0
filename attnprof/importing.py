"""``attnprof import SOURCE…``: paths -> a run directory, and tables of what went into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.imports.collecting import merged, write_run
from attnprof.imports.detecting import read_sources
from attnprof.imports.parts import Asked
from attnprof.imports.summary import files_table, groups_table
from attnprof.records import RUN_FILE
from attnprof.render import Table

FORMAT = 1
RUNS_DIR = Path("attnprof-runs")


@dataclass(frozen=True)
class Imported:
    """What an import made, as tables for people and a document for programs."""

    run_dir: Path
    num_records: int
    tables: list[Table]
    document: dict[str, Any]


def import_sources(
    sources: Sequence[Path], output: Path | None, form: str | None, asked: Asked, command: list[str]
) -> Imported:
    """Read all ``sources`` and write their records into one run directory.

    Raises:
        UsageError: A source is not understood, or the folder holds a run.
        CannotMeasureError: A reader's library is missing.
    """
    if output is not None and (output / RUN_FILE).exists():
        raise UsageError(f"{output} holds a run already", "write to another folder")
    parts = read_sources(sources, form, asked)
    records = merged(parts)
    run_dir = output or _new_dir(sources[0])
    write_run(run_dir, parts, records, command)
    tables = [groups_table(records), files_table([part.to_json() for part in parts])]
    document = {
        "format": FORMAT,
        "run": str(run_dir),
        "num_records": len(records),
        **{table.name: [dict(row) for row in table.rows] for table in tables},
    }
    return Imported(run_dir, len(records), tables, document)


def _new_dir(source: Path) -> Path:
    """A folder named after the time and the source, which no run has yet."""
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{source.name.partition('.')[0] or 'import'}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = RUNS_DIR / f"{stem}{suffix}"
        if not path.exists():
            return path
    raise UsageError(f"too many runs at {stem}", "name the folder with --output")
