"""Workloads -> what a sweep of them will need, before it runs: time, memory, and what fits."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnprof import units
from attnprof.backends.support import unsupported_reason
from attnprof.files import replace_file
from attnprof.kinds import misfit
from attnprof.records import Ceilings
from attnprof.theory.memory import mask_bytes, peak_activation_bytes
from attnprof.theory.summary import held_bytes, theory_of, theory_weight_bytes
from attnprof.workload import Workload

# Shares of the roof that kernels were seen to reach (float32, two cores, n = 1024). They serve
# the forecast of a sweep's duration and nothing else.
SHARE_OF_ROOF = {"eager": 0.12, "math": 0.12}
USUAL_SHARE_OF_ROOF = 0.4
CALL_OVERHEAD_S = 20e-6
FREE_SHARE = 0.9  # of the free memory, that a workload may be predicted to need

# Until a sweep has measured this machine: one core of a server, and a mid-range accelerator.
ASSUMED_CPU_CORE = {"copy_bytes_per_s": 1e10, "flops_per_s": 5e10}
ASSUMED_ACCELERATOR = {"copy_bytes_per_s": 1e12, "flops_per_s": 5e13}


@dataclass(frozen=True)
class Forecast:
    """What theory says of one workload on one device."""

    workload: Workload
    flops: int
    bytes_moved: int
    held_bytes: int  # queries, keys and values
    peak_activation_bytes: int | None
    needed_bytes: int  # both, and masks
    call_s: float  # of one call, a guess
    problem: str | None  # why it will not run


def forecast(
    workloads: Sequence[Workload],
    device_kind: str,
    threads: int,
    ceilings: dict[str, Any],
    free_bytes: int | None,
) -> list[Forecast]:
    """What each workload needs, and which will not run.

    Args:
        ceilings: As a device measures them, or :func:`assumed_ceilings`.
        free_bytes: Memory that is free now; None where it is not known.
    """
    return [
        _forecast_one(workload, device_kind, threads, ceilings, free_bytes)
        for workload in workloads
    ]


def _forecast_one(
    workload: Workload,
    device_kind: str,
    threads: int,
    ceilings: dict[str, Any],
    free_bytes: int | None,
) -> Forecast:
    theory = theory_of(workload, device_kind, threads, ceilings)
    needed = needed_bytes(workload, device_kind, threads)
    return Forecast(
        workload=workload,
        flops=theory["flops"],
        bytes_moved=theory["bytes_moved"],
        held_bytes=held_bytes(workload),
        peak_activation_bytes=theory["theory_peak_activation_bytes"],
        needed_bytes=needed,
        call_s=expected_call_s(workload, device_kind, threads, ceilings),
        problem=unsupported_reason(workload, device_kind) or memory_problem(needed, free_bytes),
    )


def needed_bytes(workload: Workload, device_kind: str, threads: int) -> int:
    """What theory says a workload holds and makes, in training a gradient of each weight; what it
    cannot say is not counted. [bytes]"""
    peak = peak_activation_bytes(workload, device_kind, threads)
    gradients = theory_weight_bytes(workload) if workload.phase == "train" else 0
    return held_bytes(workload) + mask_bytes(workload) + gradients + (peak or 0)


def memory_problem(needed: int, free_bytes: int | None) -> str | None:
    """Why so many bytes will not be had, or None when they may."""
    if not free_bytes or needed <= FREE_SHARE * free_bytes:
        return None
    return (
        f"needs {units.capacity(needed)}, more than {FREE_SHARE:.0%} of the "
        f"{units.capacity(free_bytes)} that are free"
    )


def expected_call_s(
    workload: Workload, device_kind: str, threads: int, ceilings: dict[str, Any]
) -> float:
    """A guess at the seconds of one call, of a growing workload of its whole growth.

    The roofline's time at the share of it that such kernels reach, and an overhead for each layer.
    """
    theory = theory_of(workload, device_kind, threads, ceilings)
    roofline_s = theory["theory_s"]
    if roofline_s is None:  # this dtype was never multiplied here: at float32's rate, then
        roofline_s = theory_of(
            replace(workload, dtype="float32"),
            device_kind,
            threads,
            ceilings
            if "float32" in ceilings.get("matmul", {})
            else assumed_ceilings(device_kind, threads),
        )["theory_s"]
    share = SHARE_OF_ROOF.get(workload.backend, USUAL_SHARE_OF_ROOF)
    call_s: float = CALL_OVERHEAD_S * workload.num_layers + roofline_s / share
    return call_s * (workload.kv_len - workload.start_len) if workload.start_len else call_s


def assumed_ceilings(device_kind: str, threads: int) -> dict[str, Any]:
    """Roofs to plan with where none was measured yet."""
    one, count = (
        (ASSUMED_CPU_CORE, threads)
        if device_kind in ("cpu", "synthetic")
        else (ASSUMED_ACCELERATOR, 1)
    )
    return {
        "copy_bytes_per_s": one["copy_bytes_per_s"] * count,
        "matmul": {"float32": {"flops_per_s": one["flops_per_s"] * count}},
    }


def _ceilings_file() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("attnprof", appauthor=False) / "ceilings.json"


def remember_ceilings(device: str, threads: int, ceilings: dict[str, Any]) -> None:
    """Keep what a sweep measured, for the next plan; a cache, so best effort.

    Not that of the synthetic device, whose roofs are whatever its law says.
    """
    if device == "synthetic":
        return
    path = _ceilings_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _all_remembered()
        kept[f"{device}/{threads}"] = ceilings
        replace_file(path, json.dumps(kept))
    except OSError:
        return


def remembered_ceilings(device: str, threads: int) -> dict[str, Any] | None:
    """The roofs that the last sweep of such a device measured on this machine."""
    kept: dict[str, Any] | None = _all_remembered().get(f"{device}/{threads}")
    return kept if misfit(kept, Ceilings) is None else None


def _all_remembered() -> dict[str, Any]:
    try:
        kept = json.loads(_ceilings_file().read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return kept if isinstance(kept, dict) else {}
