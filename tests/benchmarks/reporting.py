"""How a report grows with its run: CPU as a ratio to reading the records, and of large to small."""

import io
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from attnprof.records import RECORDS_FILE, RUN_FILE, read_run
from attnprof.render import OutputFormat, show
from attnprof.showing import Wanted, show_run
from tests.benchmarks.number import Number

MEASURED = Path(__file__).parents[1] / "golden" / "cpu-run"
LARGE, SMALL = 10_000, 1_000
RATIO = 15.0
STEEPER = 1.5
MOST_S = 25.0


@dataclass(frozen=True)
class Reported:
    """CPU seconds of reading a run, and of all its tables, files and text."""

    read_s: float
    report_s: float


def numbers(busy: bool) -> list[Number]:
    with tempfile.TemporaryDirectory() as folder:
        small = reported(written_run(Path(folder) / "small", SMALL))
        large = reported(written_run(Path(folder) / "large", LARGE))
    return of_measured(small, large)


def of_measured(small: Reported, large: Reported) -> list[Number]:
    steeper = large.report_s / LARGE / (small.report_s / SMALL)
    return [
        Number(
            name=f"CPU of attnprof report, {LARGE:,} records",
            found=f"{large.report_s / large.read_s:.1f}×",
            wanted=f"{RATIO:g}× reading them at most",
            met=large.report_s <= RATIO * large.read_s,
            how=f"{large.report_s:.1f} s to {large.read_s:.2f} s, in one process",
        ),
        Number(
            name=f"CPU of attnprof report, {LARGE:,} records",
            found=f"{large.report_s:.1f} s",
            wanted=f"{MOST_S:g} s at most",
            met=large.report_s <= MOST_S,
            how="results.csv, fit.json, report.md and the text of all tables",
        ),
        Number(
            name=f"CPU a record, of {LARGE:,} to of {SMALL:,}",
            found=f"{steeper:.2f}×",
            wanted=f"{STEEPER:g}× at most",
            met=steeper <= STEEPER,
            how=f"{large.report_s:.1f} s to {small.report_s:.2f} s",
        ),
    ]


def written_run(folder: Path, num_records: int) -> Path:
    """A run of measured prefills, each at many batch sizes."""
    folder.mkdir()
    lines = (MEASURED / RECORDS_FILE).read_text(encoding="utf-8").splitlines()
    prefills = [one for one in map(json.loads, lines) if one["phase"] == "prefill"]
    records = [
        {
            **prefills[number % len(prefills)],
            "workload_id": f"workload-{number}",
            "batch_size": 1 + number // len(prefills),
        }
        for number in range(num_records)
    ]
    written = "".join(f"{json.dumps(record)}\n" for record in records)
    (folder / RECORDS_FILE).write_text(written, encoding="utf-8")
    shutil.copy(MEASURED / RUN_FILE, folder)
    return folder


def reported(folder: Path) -> Reported:
    started = time.process_time()
    read_run(folder)
    read_s = time.process_time() - started
    show(show_run(folder, Wanted()).tables, OutputFormat.rich, io.StringIO())
    return Reported(read_s, time.process_time() - started - read_s)
