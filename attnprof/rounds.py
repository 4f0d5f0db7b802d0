"""Which workloads are visited together and in which order; what a run's visits say together."""

import random
import statistics
from collections.abc import Iterable, Sequence

from attnprof.measure import Progress
from attnprof.workload import Workload

DRIFT_SHARE = 0.05
FEWEST_RULERS = 6
SHARE_FROM_S = 1e-3  # calls shorter than this are not counted in the share of timed wall time
SIZE_AXES = (
    "batch_size", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim", "num_layers",
)  # fmt: skip
KIND_AXES = (
    "backend", "phase", "dtype", "kv_dtype", "variant", "window_len", "kv_cache", "scope",
    "attention", "position",
)  # fmt: skip


def dominates(larger: Workload, smaller: Workload) -> bool:
    """Whether ``larger`` needs at least the memory of ``smaller``: of its kind, and no size less.

    >>> small = Workload(backend="eager", q_len=512, kv_len=512)
    >>> dominates(Workload(backend="eager", q_len=1024, kv_len=1024), small)
    True
    """
    return all(getattr(larger, axis) == getattr(smaller, axis) for axis in KIND_AXES) and all(
        getattr(larger, axis) >= getattr(smaller, axis) for axis in SIZE_AXES
    )


def worker_group(workload: Workload) -> tuple[str, str]:
    """Workloads that one worker serves."""
    return workload.backend, workload.dtype


def visiting_order(workloads: Sequence[Workload], seed: int, round_: int) -> list[list[Workload]]:
    """The workloads of a round by worker group, both in an order that the seed decides."""
    shuffled = random.Random(f"{seed}/{round_}/{workloads[0].workload_id}")
    groups: dict[tuple[str, str], list[Workload]] = {}
    for workload in workloads:
        groups.setdefault(worker_group(workload), []).append(workload)
    ordered = list(groups.values())
    shuffled.shuffle(ordered)
    for group in ordered:
        shuffled.shuffle(group)
    return ordered


def drift_notes(rulers: Sequence[dict[str, float]]) -> list[str]:
    """What has moved by more than 5 % between the first and the last third of the sweep."""
    third = len(rulers) // 3
    if len(rulers) < FEWEST_RULERS:
        return []
    notes = []
    for name in rulers[0]:
        first = statistics.median(one[name] for one in rulers[:third])
        last = statistics.median(one[name] for one in rulers[-third:])
        if abs(last / first - 1) > DRIFT_SHARE:
            notes.append(
                f"drift: a fixed {name.removesuffix('_s')} took {last / first:.2f}× as long at "
                "the end of the sweep as at its start"
            )
    return notes


def timed_share(progresses: Iterable[Progress]) -> float | None:
    """Share of visits' wall time inside warm-up and timed calls, of workloads from 1 ms up.

    None where there are none, and where the clock is virtual.
    """
    timed = total = 0.0
    for progress in progresses:
        if any(visit.samples and visit.samples.mode == "virtual" for visit in progress.visits):
            continue
        median_s = progress.figure.interval.median_s
        if progress.status == "ok" and median_s is not None and median_s >= SHARE_FROM_S:
            timed += sum(visit.timed_s for visit in progress.visits)
            total += sum(visit.turnaround_s or 0.0 for visit in progress.visits)
    return timed / total if total else None
