"""What it costs to measure, on this machine now: ``python -m tests.benchmarks.running [--busy]``.

Prints the CPU time of a fresh worker, the share of a sweep's wall time inside warm-up and timed
calls, and how many workloads of ``quick`` have an interval within ±2 %; ``--busy`` keeps every core
busy with another process meanwhile. Exit code 1 where a number is not reached.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnprof.medians import Interval
from attnprof.session import Asked, plan
from attnprof.sweep import Outcome, SweepRequest, run_sweep
from attnprof.workers import Launcher
from attnprof.workload import Workload

NUM_WORKERS = 20
WORKER_CPU_S = 0.1
TIMED_SHARE = 0.85
HALF_WIDTH = 0.02
PRECISE_SHARE = 0.9


class Quiet:
    """A watcher that shows each record as it comes."""

    def started(self, num_workloads: int, num_kept: int) -> None:
        print(f"{num_workloads} workloads", file=sys.stderr)

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None:
        pass

    def record(self, record: dict[str, object]) -> None:
        print(record["workload_id"], record["status"], record["flags"], file=sys.stderr)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def time_left(self, left_s: float) -> None:
        pass


@contextlib.contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """One spinning process a core."""
    count = (os.cpu_count() or 1) if wanted else 0
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def worker_cpu_s() -> float:
    """CPU seconds of a fresh worker with the CPU device open, the server's share included."""
    with contextlib.closing(Launcher("cpu", threads=1)) as launcher:
        launcher.start().close()
        assert launcher.server_pid is not None
        before = _server_cpu_s(launcher.server_pid)
        for _ in range(NUM_WORKERS):
            launcher.start().close()
        of_server = _server_cpu_s(launcher.server_pid) - before
        return (of_server + sum(launcher.start_cpu_s[1:])) / NUM_WORKERS


def _server_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sweep_quick(device: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        asked = Asked(spec="quick", device=device, output=Path(folder) / "run")
        request = SweepRequest(
            workloads=plan(asked).grid.workloads, device=device, run_dir=Path(folder) / "run"
        )
        return run_sweep(request, Quiet())


def precise_share(outcome: Outcome) -> float:
    """Share of the workloads that ran whose interval is within the target."""
    ran = [record for record in outcome.records if record["status"] == "ok"]
    return sum(_is_precise(record) for record in ran) / len(ran)


def _is_precise(record: dict[str, object]) -> bool:
    interval = Interval(record["median_s"], record["median_low_s"], record["median_high_s"])  # type: ignore[arg-type]
    return interval.meets(HALF_WIDTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    with busy_cores(chosen.busy):
        cpu_s = worker_cpu_s()
        outcome = sweep_quick(chosen.device)
    precise = precise_share(outcome)
    share = outcome.timed_share or 0.0
    rows = (
        ("CPU of a fresh worker", f"{cpu_s:.3f} s", f"under {WORKER_CPU_S} s",
         cpu_s < WORKER_CPU_S),
        ("wall time in warm-up or timed calls", f"{share:.1%}", f"{TIMED_SHARE:.0%} at the least",
         share >= TIMED_SHARE),
        ("workloads within ±2 %", f"{precise:.1%}", f"{PRECISE_SHARE:.0%} at the least",
         precise >= PRECISE_SHARE),
    )  # fmt: skip
    for what, found, wanted, reached in rows:
        print(f"{'reached' if reached else 'MISSED '}  {what}: {found} ({wanted})")
    return 0 if all(reached for *_, reached in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
