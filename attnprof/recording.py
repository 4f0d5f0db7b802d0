"""The visits of a workload -> its record: figures, memory, and theory beside them."""

import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from attnprof import __version__
from attnprof.errors import UsageError
from attnprof.kinds import misfit
from attnprof.measure import (
    Figure,
    Plan,
    Pooled,
    Progress,
    Visit,
    plan_for,
    pool,
    visit_misfit,
)
from attnprof.measured import GrowthPoint
from attnprof.medians import NO_INTERVAL, percentile, tukey_outliers
from attnprof.record_values import FORMAT, record_misfit
from attnprof.records import RUN_FILE, VISITS_FILE, Run, workloads_of
from attnprof.workload import Workload

FINGERPRINT_FACTS = (
    "name", "memory_bytes", "physical_cores", "threads", "governor", "machine", "libc", "torch",
    "cpu_capability", "torch_parallel", "environment", "driver", "cuda", "rocm", "capability",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all records of a run have in common and its figures depend on."""

    device_kind: str
    threads: int | None = None
    ceilings: dict[str, Any] = field(default_factory=dict)


def fingerprint(facts: dict[str, Any], device_kind: str) -> dict[str, Any]:
    """What makes two runs comparable: the device, and the software that moves its numbers."""
    return {
        "attnprof": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "kind": device_kind,
        **{key: facts[key] for key in FINGERPRINT_FACTS if key in facts},
    }


def make_record(progress: Progress, conditions: Conditions) -> dict[str, Any]:
    """The record of a workload from its visits: samples, figures, memory, theory.

    Figures (median, FLOP/s, MFU, MBU) are given of an ``ok`` workload alone; of a failed one the
    samples that it had before are kept, and not averaged.
    """
    from attnprof.theory.summary import theory_of

    workload, visits = progress.workload, progress.visits
    pooled = pool(visits, conditions.threads)
    first, last = visits[0], visits[-1]
    check = _first_json(visits, "check")
    theory = theory_of(
        workload, conditions.device_kind, conditions.threads, conditions.ceilings or None
    )
    return {
        "format": FORMAT,
        **identity(workload, conditions.device_kind),
        "status": last.status,
        "reason": last.reason,
        "phase_of_failure": last.phase if last.status != "ok" else None,
        "requested_bytes": last.requested_bytes,
        "flags": _flags(progress),
        **_figures(progress, pooled, theory, conditions),
        "samples_s": pooled.wall_s,
        "samples_cpu_s": pooled.cpu_s,
        "sample_launch": pooled.launch,
        "sample_clean": pooled.clean,
        "run_delay_s": pooled.run_delay_s,
        "minor_faults": pooled.minor_faults,
        "cycles": pooled.cycles,
        "num_samples": len(pooled.wall_s),
        "clean_share": pooled.clean_share,
        "warmup_s": [list(visit.warm_up.wall_s) if visit.warm_up else [] for visit in visits],
        "launches": [_launch(visit) for visit in visits],
        "dropped": _dropped(visits),
        "mode": next((visit.samples.mode for visit in visits if visit.samples), None),
        "kernels": next((visit.kernels for visit in visits if visit.kernels), ()),
        "clocks": [visit.samples.clocks for visit in visits if visit.samples],
        "prepare_s": first.prepare_s,
        "check": check,
        "rms_error": check["rms_error"] if check else None,
        "energy": _first_json(visits, "energy"),
        **_memory(visits),
        "parts": _parts(visits),
        **_generation(workload, visits),
        **theory,
        "threads": conditions.threads,
        "when": {"started": first.started, "ended": last.ended},
    }


def unmeasured_record(
    workload: Workload, conditions: Conditions, status: str, reason: str
) -> dict[str, Any]:
    """The record of a workload that was decided on without running it."""
    progress = Progress(workload, plan_for(conditions.device_kind))
    progress.add(
        Visit(
            workload_id=workload.workload_id, round=0, launch=-1, launch_kind="none",
            status=status, reason=reason,
        )
    )  # fmt: skip
    return {**make_record(progress, conditions), "warmup_s": [], "launches": []}


def identity(workload: Workload, device_kind: str) -> dict[str, Any]:
    """What a record says of its workload."""
    return {
        "workload_id": workload.workload_id,
        **workload.to_json(),
        "kv_dtype": workload.cached_dtype,
        "device": device_kind,
    }


def _flags(progress: Progress) -> list[str]:
    flags: dict[str, None] = {}
    if progress.noisy:
        flags["noisy"] = None
    if progress.figure.contended:
        flags["contended"] = None
    warm_ups = [visit.warm_up.settled for visit in progress.visits if visit.warm_up]
    if 2 * sum(warm_ups) < len(warm_ups):
        flags["warmup_unsettled"] = None
    for visit in progress.visits:
        for part in (visit.samples, visit.memory):
            if part is not None:
                flags.update(dict.fromkeys(part.flags))
    return list(flags)


def _figures(
    progress: Progress, pooled: Pooled, theory: dict[str, Any], conditions: Conditions
) -> dict[str, Any]:
    chosen = progress.figure if progress.status == "ok" else Figure(NO_INTERVAL, "wall")
    ok = progress.status == "ok" and bool(pooled.wall_s)
    on_clock_s = pooled.cpu_s if chosen.clock == "cpu" else pooled.wall_s
    mild, severe = tukey_outliers(on_clock_s)
    median_s = chosen.interval.median_s
    per = "cpu_s" if chosen.clock == "cpu" else "s"
    roofs = conditions.ceilings
    flops_roof = roofs.get("matmul", {}).get(progress.workload.dtype, {}).get(f"flops_per_{per}")
    achieved = theory["flops"] / median_s if median_s else None
    moved = theory["bytes_moved"] / median_s if median_s else None
    return {
        "clock": chosen.clock if ok else None,
        "median_s": median_s,
        "median_low_s": chosen.interval.low_s,
        "median_high_s": chosen.interval.high_s,
        "median_wall_s": statistics.median(pooled.wall_s) if ok else None,
        "median_cpu_s": statistics.median(pooled.cpu_s) if ok and pooled.cpu_s else None,
        "min_s": min(on_clock_s) if ok else None,
        "p95_s": percentile(on_clock_s, 0.95) if ok else None,
        "outliers": {"mild": mild, "severe": severe},
        "achieved_flops_per_s": achieved,
        "mfu": _share(achieved, flops_roof),
        "mbu": _share(moved, roofs.get(f"copy_bytes_per_{per}")),
    }


def _share(achieved: float | None, peak: float | None) -> float | None:
    return achieved / peak if achieved is not None and peak else None


def _launch(visit: Visit) -> dict[str, Any]:
    return {
        "launch": visit.launch,
        "kind": visit.launch_kind,
        "round": visit.round,
        "num_samples": len(visit.samples.wall_s) if visit.samples else 0,
        "inner": visit.samples.inner if visit.samples else None,
        "ended": visit.ended,
    }


def _dropped(visits: Iterable[Visit]) -> dict[str, int]:
    dropped: dict[str, int] = {}
    for visit in visits:
        for reason, count in (visit.samples.dropped if visit.samples else {}).items():
            dropped[reason] = dropped.get(reason, 0) + count
    return dropped


def _first_json(visits: Iterable[Visit], name: str) -> dict[str, Any] | None:
    found = next((part for visit in visits if (part := getattr(visit, name)) is not None), None)
    return None if found is None else asdict(found)


def _memory(visits: Iterable[Visit]) -> dict[str, Any]:
    memory = next((visit.memory for visit in visits if visit.memory is not None), None)
    return {
        "weight_bytes": memory.weight_bytes if memory else None,
        "kv_bytes": memory.kv_bytes if memory else None,
        "peak_activation_bytes": memory.peak_activation_bytes if memory else None,
        "peak_rss_bytes": memory.peak_rss_bytes if memory else None,
        "reserved_bytes": memory.reserved_bytes if memory else None,
        "memory_meter": memory.meter if memory else None,
    }


def _growth(workload: Workload, visits: Iterable[Visit]) -> list[dict[str, Any]] | None:
    """The points of all growths together: times are medians, bytes are the same in each, and
    theory's of the tokens held are beside them."""
    from attnprof.theory.summary import step_of_growth, theory_kv_bytes

    by_length: dict[int, list[GrowthPoint]] = {}
    for visit in visits:
        for growth in visit.growths:
            for point in growth:
                by_length.setdefault(point.kv_len, []).append(point)
    if not by_length:
        return None
    return [
        {**_merged(points), "theory_bytes": theory_kv_bytes(step_of_growth(workload, kv_len))}
        for kv_len, points in sorted(by_length.items())
    ]


def _generation(workload: Workload, visits: Iterable[Visit]) -> dict[str, Any]:
    """The growth, and of a generate what a user waits for: the first token, and each next one.

    Its first point is the prompt's; of the others those are known of which points were kept.
    """
    points = _growth(workload, visits)
    if points is None or workload.phase != "generate":
        return {"growth": points}
    first = next((one for one in points if one["kv_len"] == workload.start_len), None)
    return {
        "growth": points,
        "ttft_s": first["wall_s"] if first else None,
        "itl_s": [one["wall_s"] for one in points if one is not first],
    }


def _parts(visits: Iterable[Visit]) -> list[dict[str, Any]] | None:
    """What each part of a call takes, the longest first; ``share`` is of the time of all."""
    parts = next((visit.parts for visit in visits if visit.parts), ())
    if not parts:
        return None
    total_s = sum(part.wall_s for part in parts)
    longest_first = sorted(parts, key=lambda part: -part.wall_s)
    return [
        {**asdict(part), "share": part.wall_s / total_s if total_s else None}
        for part in longest_first
    ]


def _merged(points: list[GrowthPoint]) -> dict[str, Any]:
    times = {}
    for name in ("wall_s", "cpu_s", "total_s", "total_cpu_s"):
        known = [value for point in points if (value := getattr(point, name)) is not None]
        times[name] = statistics.median(known) if known else None
    return {**asdict(points[0]), **times, "num_growths": len(points)}


def unfinished_records(run: Run) -> list[dict[str, Any]]:
    """Records of those workloads of a stopped run that had visits and are not done.

    Raises:
        UsageError: The plan or a visit has a value of another kind.
    """
    plan, conditions = run.header.get("plan") or {}, run.header["conditions"]
    wrong = misfit(plan, Plan)
    if wrong is not None:
        raise UsageError(f"{run.path / RUN_FILE}: plan.{wrong}", "measure into another folder")
    known = Conditions(
        device_kind=conditions["device_kind"],
        threads=conditions["threads"],
        ceilings=conditions["ceilings"],
    )
    workloads = workloads_of(run.path, run.header)
    done = {record["workload_id"] for record in run.records}
    found = [
        unfinished_record(progress, known)
        for key, progress in replayed(run, workloads, Plan(**plan), known).items()
        if progress.visits and key not in done
    ]
    for record in found:
        wrong = record_misfit(record)
        if wrong is not None:
            raise UsageError(
                f"{run.path / VISITS_FILE}: of {record['workload_id']} {wrong}",
                "remove the lines of its visits",
            )
    return found


def unfinished_record(progress: Progress, conditions: Conditions) -> dict[str, Any]:
    """What there is of a stopped workload; ``unfinished`` says why its interval is wide."""
    record = make_record(progress, conditions)
    flags = [flag for flag in record["flags"] if flag != "noisy"]
    return {**record, "flags": [*flags, "unfinished"]}


def replayed(
    run: Run | None, workloads: Iterable[Workload], plan: Plan, conditions: Conditions
) -> dict[str, Progress]:
    """How far each workload is, by the visits that were kept.

    Raises:
        UsageError: A visit has a value of another kind.
    """
    found = {
        workload.workload_id: Progress(workload, plan, conditions.threads) for workload in workloads
    }
    for number, visit in enumerate(run.visits if run else (), start=1):
        wrong = visit_misfit(visit)
        if run is not None and wrong is not None:
            raise UsageError(f"{run.path / VISITS_FILE} line {number}: {wrong}", "remove that line")
        progress = found.get(visit["workload_id"])
        if progress is not None and not progress.settled:
            progress.add(Visit.from_json(visit))
    return found
