"""What Linux says about this process and its machine: run delay, faults, resident bytes, caches."""

import ctypes
import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import NamedTuple


class Disturbance(NamedTuple):
    """What befell the process so far; two readings are subtracted."""

    run_delay_s: tuple[float, ...]  # its threads were ready and waited; empty where nobody tells
    minor_faults: int


def disturbance() -> Disturbance:
    """Read at a cost of tens of microseconds, so outside what is timed."""
    return Disturbance(_run_delay_s(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def _run_delay_s() -> tuple[float, ...]:
    """Of all threads together, one number; empty where this kernel does not tell."""
    delay_ns = 0
    try:
        for task in os.scandir("/proc/self/task"):
            with open(f"{task.path}/schedstat", "rb") as file:  # noqa: PTH123 - much faster
                delay_ns += int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return ()
    return (delay_ns / 1e9,)


def return_freed_memory() -> None:
    """Give the pages of freed blocks back to the system, where the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak_resident() -> bool:
    """Start the high-water mark of resident memory anew; False where that is not allowed."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int | None:
    """Resident memory at its highest since the reset."""
    return _kib_line("/proc/self/status", "VmHWM")


def available_bytes() -> int | None:
    """Memory that may still be taken: of the machine and of the control group, the smaller."""
    figures = [_kib_line("/proc/meminfo", "MemAvailable"), _cgroup_left_bytes(), _mac_left_bytes()]
    known = [figure for figure in figures if figure is not None]
    return min(known) if known else None


def total_bytes() -> int | None:
    """Memory of the machine."""
    total = _kib_line("/proc/meminfo", "MemTotal")
    return total if total is not None else _sysctl_int("hw.memsize")


def data_bytes() -> int | None:
    """Private writable memory that the process has mapped: what ``RLIMIT_DATA`` limits."""
    return _kib_line("/proc/self/status", "VmData")


def cache_bytes(level: int) -> int | None:
    """Size of the data cache of ``level`` that the first core sees."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() != str(level):
                continue
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:])
        return int(size[:-1]) * scale if scale else int(size)
    return _sysctl_int(f"hw.l{level}cachesize")


def cpu_name() -> str:
    """As the processor names itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def governor() -> str | None:
    """The frequency governor; None where the system does not show one."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None


def _kib_line(path: str, key: str) -> int | None:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _mac_left_bytes() -> int | None:
    """The share of memory that macOS says is left."""
    total, percent = _sysctl_int("hw.memsize"), _sysctl_int("kern.memorystatus_level")
    return None if total is None or percent is None else total * percent // 100


def _cgroup_left_bytes() -> int | None:
    """What the control group's limit leaves, cached files not counted as used."""
    for folder, limit_name, used_name, inactive in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file"),
    ):  # fmt: skip
        try:
            limit = int(Path(folder, limit_name).read_text())
            used = int(Path(folder, used_name).read_text())
            stat = Path(folder, "memory.stat").read_text().split()
            cached = int(stat[stat.index(inactive) + 1])
        except (OSError, ValueError):
            continue
        return max(0, limit - used + cached)
    return None


def _sysctl(name: str) -> str | None:
    """A figure of macOS; None elsewhere."""
    if platform.system() != "Darwin":
        return None
    asked = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def _sysctl_int(name: str) -> int | None:
    value = _sysctl(name)
    return int(value) if value and value.isdigit() else None
