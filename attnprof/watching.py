"""A run directory that a sweep is writing -> what happens in it, told as the sweep itself tells."""

import time
from collections.abc import Callable
from pathlib import Path

from attnprof.errors import UsageError
from attnprof.medians import NO_INTERVAL
from attnprof.records import LOCK_FILE, read_header, read_run, workloads_of
from attnprof.sweep import Watcher

POLL_S = 1.0
QUIET_S = 3.0  # without news, whether anybody still writes is asked


def follow(
    run_dir: Path,
    watch: Watcher,
    *,
    is_written: Callable[[Path], bool] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Tell of each record and visit as it is written, until nobody writes any more.

    Args:
        is_written: Whether a sweep holds the directory.
        sleep: Waits that many seconds.

    Returns:
        Whether all workloads of the run are done.

    Raises:
        UsageError: No run there, a broken one, or one that was imported.
    """
    asked = is_written or is_being_written
    run = read_run(run_dir)
    if not run.header.get("workloads"):
        raise UsageError(
            f"{run_dir} is no sweep's: there is nothing to follow", "leave --watch out"
        )
    workloads = {one.workload_id: one for one in workloads_of(run_dir, run.header)}
    watch.started(len(run.header.get("workloads") or ()), len(run.records))
    num_records, num_visits, quiet_s = len(run.records), len(run.visits), QUIET_S
    while True:
        for visit in run.visits[num_visits:]:
            workload = workloads.get(visit["workload_id"])
            if workload is not None:
                watch.visit(workload, visit["round"], "visited", 0, NO_INTERVAL)
        for record in run.records[num_records:]:
            watch.record(record)
        has_news = len(run.records) > num_records or len(run.visits) > num_visits
        num_records, num_visits = len(run.records), len(run.visits)
        quiet_s = 0.0 if has_news else quiet_s + POLL_S
        if quiet_s >= QUIET_S:
            if not asked(run_dir):
                return num_records >= len(run.header.get("workloads") or ())
            quiet_s = 0.0
        sleep(POLL_S)
        run = read_run(run_dir)


def is_being_written(run_dir: Path) -> bool:
    """Whether a sweep holds the directory: its lock is held.

    Raises:
        UsageError: Whether it is held cannot be told, as the folder may not be written to, and
            the run is not finished.
    """
    from filelock import FileLock, Timeout

    path = run_dir / LOCK_FILE
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError as error:
        if read_header(run_dir).get("finished") is not None:
            return False
        raise UsageError(
            f"cannot tell whether a sweep still writes {run_dir}: {error.strerror}",
            "leave --watch out, or watch it as the one who writes it",
        ) from None
