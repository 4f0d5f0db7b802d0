"""What it costs to measure and how certain it gets: workers, share of timed calls, intervals."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.medians import Interval
from attnprof.session import Asked
from attnprof.sweep import Outcome
from attnprof.workers import Launcher
from tests.benchmarks.number import Number
from tests.benchmarks.sweeps import ran

NUM_WORKERS = 20
WORKER_CPU_S = 0.1
TIMED_SHARE = 0.85
HALF_WIDTH = 0.02
PRECISE_SHARE = 0.9

Record = Mapping[str, Any]


def numbers(busy: bool) -> list[Number]:
    cpu_s = worker_cpu_s()
    worker = Number(
        name="CPU of a fresh worker",
        found=f"{cpu_s:.3f} s",
        wanted=f"under {WORKER_CPU_S:g} s",
        met=cpu_s < WORKER_CPU_S,
        how=f"mean of {NUM_WORKERS} forked with the device open, the server's share included",
    )
    return [worker, *of_sweep(ran(Asked(spec="quick", device="cpu")).outcome, busy)]


def of_sweep(outcome: Outcome, busy: bool) -> list[Number]:
    records = [record for record in outcome.records if record["status"] == "ok"]
    share = outcome.timed_share
    precise = sum(is_precise(record) for record in records)
    found = [
        Number(
            name="wall time in warm-up or timed calls",
            found="unknown" if share is None else f"{share:.1%}",
            wanted=f"{TIMED_SHARE:.0%} at least",
            met=share is not None and share >= TIMED_SHARE,
            how="quick's workloads of 1 ms and more, start of their workers included",
        ),
        Number(
            name="workloads within ±2 %",
            found=f"{precise} of {len(outcome.records)}",
            wanted=f"{PRECISE_SHARE:.0%} at least",
            met=precise >= PRECISE_SHARE * len(outcome.records),
            how=f"quick: 95 % interval of the figure used; {_clocks(records)}",
        ),
    ]
    return [*found, _contended_number(records)] if busy else found


def _contended_number(records: Sequence[Record]) -> Number:
    """Of the rows whose waits for a core are counted: the steps of a growing cache are far shorter
    than a turn on a core, so that few of them are held up and their median is not moved."""
    counted = [record for record in records if record["sample_clean"] is not None]
    told = sum(tells_of_other_work(record) for record in counted)
    return Number(
        name="rows that say contended and show CPU time",
        found=f"{told} of {len(counted)}",
        wanted=f"{PRECISE_SHARE:.0%} at least",
        met=told >= PRECISE_SHARE * len(counted),
        how=f"quick's without its {len(records) - len(counted)} of kv-growth; "
        "another process keeps every core busy",
    )


def is_precise(record: Record) -> bool:
    interval = Interval(record["median_s"], record["median_low_s"], record["median_high_s"])
    return interval.meets(HALF_WIDTH)


def tells_of_other_work(record: Record) -> bool:
    return record["clock"] == "cpu" and "contended" in record["flags"]


def _clocks(records: Sequence[Record]) -> str:
    on_cpu = sum(record["clock"] == "cpu" for record in records)
    return f"wall time of {len(records) - on_cpu}, CPU time of {on_cpu}"


@contextlib.contextmanager
def busy_cores(wanted: bool) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """One spinning process a core."""
    count = (os.cpu_count() or 1) if wanted else 0
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield spinning
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def worker_cpu_s(device: str = "cpu", num_workers: int = NUM_WORKERS) -> float:
    """CPU seconds of a fresh worker with its device open, the server's share included."""
    with contextlib.closing(Launcher(device, threads=1)) as launcher:
        launcher.start().close()
        assert launcher.server_pid is not None
        before = _server_cpu_s(launcher.server_pid)
        for _ in range(num_workers):
            launcher.start().close()
        of_server = _server_cpu_s(launcher.server_pid) - before
        return (of_server + sum(launcher.start_cpu_s[1:])) / num_workers


def _server_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
