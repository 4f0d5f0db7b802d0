"""What this computer is and does beside the measurement, read without torch, changing nothing."""

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from attnprof.errors import to_install

OPTIONAL_PACKAGES = (
    "torch", "triton", "flash-attn", "flashinfer-python", "xformers",
    "nvidia-ml-py", "amdsmi", "cupti-python", "transformers",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that matters to measuring: what it is, whether it disturbs, what would help."""

    what: str
    found: str
    verdict: str  # ok, disturbs, missing, unknown
    advice: str = ""


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def cpu_pressure() -> float | None:
    """Share of the last ten seconds in which some task waited for a core; None where not kept."""
    text = _text("/proc/pressure/cpu")
    if text is None:
        return None
    fields = dict(part.split("=") for part in text.splitlines()[0].split()[1:])
    return float(fields["avg10"]) / 100


def stolen_share() -> float | None:
    """Share of busy CPU time since boot that the hypervisor gave to others."""
    text = _text("/proc/stat")
    if text is None:
        return None
    ticks = [int(part) for part in text.splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    busy = user + nice + system + irq + softirq + steal
    return steal / busy if busy else 0.0


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that measuring can use."""
    found = {}
    for package in OPTIONAL_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def has_package(name: str) -> bool:
    """Whether ``name`` can be imported; importing it is left to others."""
    return util.find_spec(name) is not None


def likely_device_kind() -> str:
    """The accelerator whose driver this computer has, else ``cpu``; torch has the last word."""
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
        return "cuda"
    if Path("/dev/kfd").exists():
        return "rocm"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mps"
    return "cpu"


def meters(kind: str) -> list[tuple[str, bool, str]]:
    """What can be read beside elapsed time on such a device: what, whether, and by which meter."""
    schedstat = Path("/proc/self/schedstat").exists()
    rapl = any(os.access(path, os.R_OK) for path in _rapl_counters())
    nvml = has_package("pynvml")
    if kind == "cpu":
        return [
            ("CPU time", True, "of all threads"),
            ("waiting for a core", schedstat, "schedstat" if schedstat else "not kept here"),
            ("peak memory", True, "torch's profiler"),
            ("energy", rapl, "RAPL" if rapl else "no RAPL counter that may be read"),
        ]
    if kind == "cuda":
        missing = to_install("nvml")
        return [
            ("peak memory", True, "torch's allocator"),
            ("clocks and throttling", nvml, "NVML" if nvml else missing),
            ("energy", nvml, "NVML" if nvml else missing),
        ]
    return [("peak memory", True, "torch's allocator")]


def findings() -> list[Finding]:
    """All that can be told of this computer without measuring anything."""
    return [
        *_load_findings(),
        *_clock_findings(),
        *_memory_findings(),
        *_meter_findings(),
        *_software_findings(),
    ]


def _load_findings() -> list[Finding]:
    found = []
    pressure = cpu_pressure()
    if pressure is None:
        found.append(Finding("CPU pressure", "not kept by this kernel", "unknown"))
    else:
        busy = pressure > 0.1
        found.append(
            Finding(
                "CPU pressure",
                f"{100 * pressure:.0f} % of the last 10 s",
                "disturbs" if busy else "ok",
                "stop what runs beside, or trust CPU time (rows say contended)" if busy else "",
            )
        )
    if hasattr(os, "getloadavg"):
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        found.append(
            Finding(
                "load", f"{load:.2f} on {cores} cores", "ok" if load < 0.5 * cores else "disturbs"
            )
        )
    stolen = stolen_share()
    if stolen is not None:
        found.append(
            Finding(
                "stolen by the hypervisor",
                f"{100 * stolen:.2g} % of busy time since boot",
                "ok" if stolen < 0.01 else "disturbs",
                "" if stolen < 0.01 else "neighbours share these cores; prefer CPU time",
            )
        )
    return found


def _clock_findings() -> list[Finding]:
    governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    no_turbo = _text("/sys/devices/system/cpu/intel_pstate/no_turbo")
    boost = _text("/sys/devices/system/cpu/cpufreq/boost")
    found = [
        Finding("frequency governor", "not visible", "unknown")
        if governor is None
        else Finding(
            "frequency governor",
            governor,
            "ok" if governor == "performance" else "disturbs",
            "" if governor == "performance" else "cpupower frequency-set -g performance",
        )
    ]
    if no_turbo is None and boost is None:
        found.append(Finding("turbo", "not visible", "unknown"))
    else:
        turbo = no_turbo == "0" or boost == "1"
        found.append(
            Finding(
                "turbo",
                "on" if turbo else "off",
                "disturbs" if turbo else "ok",
                "clocks follow heat and load; switch it off for steadier numbers" if turbo else "",
            )
        )
    return found


def _memory_findings() -> list[Finding]:
    found = []
    pages = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    if pages is not None:
        chosen = pages[pages.find("[") + 1 : pages.find("]")]
        found.append(
            Finding(
                "transparent huge pages",
                chosen,
                "disturbs" if chosen == "always" else "ok",
                "large tensors may change pages between runs" if chosen == "always" else "",
            )
        )
    return found


def _rapl_counters() -> list[Path]:
    return sorted(Path("/sys/class/powercap").glob("intel-rapl:*/energy_uj"))


def _meter_findings() -> list[Finding]:
    found = []
    rapl = _rapl_counters()
    if not rapl:
        found.append(Finding("CPU energy", "no RAPL counter", "missing", "energy stays unknown"))
    elif not os.access(rapl[0], os.R_OK):
        found.append(Finding("CPU energy", "RAPL needs root", "missing", f"chmod o+r {rapl[0]}"))
    else:
        found.append(Finding("CPU energy", "RAPL readable", "ok"))
    fields = Path("/proc/self/schedstat").exists()
    found.append(
        Finding(
            "run-queue delay",
            "kept by the kernel" if fields else "not kept",
            "ok" if fields else "missing",
            "" if fields else "samples that waited for a core cannot be told from slow ones",
        )
    )
    if shutil.which("nvidia-smi") and util.find_spec("pynvml") is None:
        found.append(Finding("NVML", "absent", "missing", to_install("nvml")))
    return found


def _software_findings() -> list[Finding]:
    versions = package_versions()
    found = [Finding("Python", platform.python_version(), "ok")]
    for package in OPTIONAL_PACKAGES:
        version = versions.get(package)
        if version is not None:
            found.append(Finding(package, version, "ok"))
        elif package == "torch":
            found.append(Finding(package, "absent", "missing", to_install("torch")))
    if (
        shutil.which("c++") is None
        and shutil.which("g++") is None
        and shutil.which("clang++") is None
    ):
        found.append(
            Finding("C++ compiler", "absent", "missing", "FlexAttention on a CPU compiles with one")
        )
    return found
