"""What a CPU worker has to find in its environment before torch is loaded: threads and allocator.

Knows no torch, so that the parent process can use it.
"""

import os
from pathlib import Path

from attnprof.errors import UsageError, nearest

ALLOCATORS = ("pinned", "default")
_NEVER_BYTES = 2**40  # a threshold that no block reaches


def worker_environment(threads: int, allocator: str = "pinned") -> dict[str, str]:
    """The variables to set for a worker that measures on ``threads`` CPU threads.

    Waiting is passive: with active waiting a 2 ms call took 59 to 150 ms beside other jobs, and its
    CPU time counted the waiting. The pinned allocator keeps freed memory in the process: glibc's
    own policy returns blocks of 32 MiB and more, and takes them again page by page, which made the
    same call 1.8 times as slow, or not, by what had been freed before it.

    >>> worker_environment(2)["OMP_WAIT_POLICY"]
    'passive'

    Args:
        allocator: ``pinned``, or ``default`` for what the C library does by itself.

    Raises:
        UsageError: No such allocator policy.
    """
    check_allocator(allocator)
    variables = {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        "MKL_NUM_THREADS": str(threads),
        "MKL_DYNAMIC": "FALSE",
        "PYTHONHASHSEED": "0",
    }
    if allocator == "pinned":
        variables["MALLOC_MMAP_THRESHOLD_"] = str(_NEVER_BYTES)
        variables["MALLOC_TRIM_THRESHOLD_"] = str(_NEVER_BYTES)
    return variables


def check_allocator(name: str) -> None:
    """Refuse a name that is no allocator policy.

    Raises:
        UsageError: It is none.
    """
    if name not in ALLOCATORS:
        raise UsageError(f"unknown allocator {name!r}", nearest(name, ALLOCATORS))


def recorded_environment() -> dict[str, str | None]:
    """Those variables as this process sees them; None where one is not set."""
    names = worker_environment(1)
    return {name: os.environ.get(name) for name in names}


def default_threads() -> int:
    """Threads that can run at once here: cores that are physical, ours, and within the quota."""
    counts = [logical_cores()]
    for count in (physical_cores(), quota_cores()):
        if count is not None:
            counts.append(count)
    return max(1, min(counts))


def logical_cores() -> int:
    """Processors that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def physical_cores(cpuinfo: Path = Path("/proc/cpuinfo")) -> int | None:
    """Cores of the machine, hyper-threads counted once; None where it does not say."""
    cores = set()
    core: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    for line in [*lines, ""]:
        key, colon, value = line.partition(":")
        if colon:
            core[key.strip()] = value.strip()
        elif core:
            if "core id" in core:
                cores.add((core.get("physical id"), core["core id"]))
            core = {}
    return len(cores) or None


def quota_cores(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """CPU quota of the control group in whole cores, rounded down; None without one.

    A quota below one core counts as one.
    """
    quota = _quota_v2(root) or _quota_v1(root)
    return None if quota is None else max(1, int(quota))


def _quota_v2(root: Path) -> float | None:
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(root: Path) -> float | None:
    try:
        quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
