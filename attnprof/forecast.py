"""Workloads -> what a sweep of them will need, before it runs: time, memory, and what fits."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.backends.support import unsupported_reason
from attnprof.theory.summary import held_bytes, theory_of, timed_step
from attnprof.workload import Workload

# Shares of the roof that kernels were seen to reach (float32, two cores, n = 1024). They serve
# the forecast of a sweep's duration and nothing else.
SHARE_OF_ROOF = {"eager": 0.12, "math": 0.12}
USUAL_SHARE_OF_ROOF = 0.4
CALL_OVERHEAD_S = 20e-6

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
    call_s: float  # of one call, a guess
    problem: str | None  # why it will not run

    @property
    def needed_bytes(self) -> int:
        return self.held_bytes + (self.peak_activation_bytes or 0)


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
    needed = held_bytes(workload) + (theory["theory_peak_activation_bytes"] or 0)
    problem = unsupported_reason(workload, device_kind)
    if problem is None and free_bytes is not None and needed > 0.9 * free_bytes:
        problem = f"needs {needed:,} bytes, {free_bytes:,} are free"
    return Forecast(
        workload=workload,
        flops=theory["flops"],
        bytes_moved=theory["bytes_moved"],
        held_bytes=held_bytes(workload),
        peak_activation_bytes=theory["theory_peak_activation_bytes"],
        call_s=_call_s(workload, theory, ceilings),
        problem=problem,
    )


def _call_s(workload: Workload, theory: dict[str, Any], ceilings: dict[str, Any]) -> float:
    """Seconds of one call: the roofline's at the share of it that such kernels reach."""
    roofline_s = theory["theory_s"]
    if roofline_s is None:  # this dtype was never multiplied here: half the work at float32's rate
        float32 = ceilings["matmul"]["float32"]["flops_per_s"]
        roofline_s = max(
            theory["flops"] / float32, theory["bytes_moved"] / ceilings["copy_bytes_per_s"]
        )
    share = SHARE_OF_ROOF.get(workload.backend, USUAL_SHARE_OF_ROOF)
    call_s: float = CALL_OVERHEAD_S * workload.num_layers + roofline_s / share
    if workload.phase == "kv-growth":
        step = timed_step(workload)
        return call_s * (workload.kv_len - (workload.start_len or 0)) if step else call_s
    return call_s


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
    """Keep what a sweep measured, for the next plan; a cache, so best effort."""
    path = _ceilings_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _all_remembered()
        kept[f"{device}/{threads}"] = ceilings
        path.write_text(json.dumps(kept))
    except OSError:
        return


def remembered_ceilings(device: str, threads: int) -> dict[str, Any] | None:
    """The roofs that the last sweep of such a device measured on this machine."""
    return _all_remembered().get(f"{device}/{threads}")


def _all_remembered() -> dict[str, Any]:
    try:
        kept = json.loads(_ceilings_file().read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
