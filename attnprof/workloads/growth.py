"""A growing workload -> what its caches weigh and its steps take, token by token."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from attnprof.measured import GrowthPoint
from attnprof.workload import Workload
from attnprof.workloads import build_grower
from attnprof.workloads.kv_caches import KvCache
from attnprof.workloads.out_of_memory import raising_out_of_memory
from attnprof.workloads.precision import multiplying

CHECKPOINTS = 64
MAX_POINTS = 256
WARM_STEPS = 3

Timed = Callable[[Callable[[], object]], tuple[float, float | None]]  # -> wall s, CPU s


@dataclass(frozen=True, kw_only=True)
class CacheBytes:
    """What caches take; ``peak`` is the most that was alive during the last step."""

    useful: int
    allocated: int
    peak: int


class Grower(Protocol):
    """What grows token by token. Of a kv-growth its caches are built holding ``start_len`` tokens,
    of a generate they are empty until the prompt has come."""

    def active(self) -> AbstractContextManager[object]:
        """Entered once around all calls."""

    def ready(self, kv_len: int) -> None:
        """Whatever a step to ``kv_len`` has before it and is not its time, such as a mask."""

    def prompt(self, *, keep: bool) -> object:
        """Compute the first ``start_len`` tokens at once, and put them in the caches to keep."""

    def step(self, *, keep: bool) -> object:
        """Compute the token for which it was made :meth:`ready`, and put it in to keep."""

    def cache_bytes(self) -> CacheBytes:
        """What the caches of all layers take now."""


def grow(
    workload: Workload,
    device: torch.device,
    seed: int,
    timed: Timed,
    *,
    limit_s: float,
    kind: str | None = None,
) -> tuple[GrowthPoint, ...]:
    """From ``start_len`` tokens until there are ``kv_len``, one by one.

    Nothing is multiplied out: every step brings its token in every layer and attends to all that
    are held, or computes all of them anew where there is no cache. The first point of a generate
    is that of its prompt. Points are kept of some steps; when ``limit_s`` is over, those that were
    had.

    Args:
        timed: Runs a step and says how long it took, by wall and by CPU.
    """
    assert workload.start_len is not None
    first = workload.start_len + 1
    started = time.perf_counter()
    kept = points_to_keep(workload)
    times_s: list[tuple[float, float | None]] = []
    points: list[GrowthPoint] = []
    with raising_out_of_memory(), torch.inference_mode(), multiplying(workload.dtype, device):
        grower = build_grower(workload, device, seed, kind)
        with grower.active():

            def run(call: Callable[[], object], kv_len: int) -> None:
                times_s.append(timed(call))
                if kv_len in kept:
                    points.append(_point(kv_len, times_s, grower.cache_bytes()))

            if workload.phase == "generate":
                grower.prompt(keep=False)
                run(lambda: grower.prompt(keep=True), workload.start_len)
            grower.ready(first)
            for _ in range(WARM_STEPS):
                grower.step(keep=False)
            for kv_len in range(first, workload.kv_len + 1):
                if time.perf_counter() - started >= limit_s and kv_len > first:
                    break
                grower.ready(kv_len)
                run(lambda: grower.step(keep=True), kv_len)
    return tuple(points)


def points_to_keep(workload: Workload) -> set[int]:
    """Lengths of which a point is kept: all when few, else evenly spaced and around block edges.

    The last length is always among them, and of a generate its prompt. Around an edge are the last
    token of a full block and the first of the next, so that the step of a paged cache is seen as
    one.
    """
    assert workload.start_len is not None
    prompt = {workload.start_len} if workload.phase == "generate" else set()
    first, last = workload.start_len + 1, workload.kv_len
    if last - first < MAX_POINTS:
        return prompt | set(range(first, last + 1))
    block_len = workload.block_len
    spaced = {first + (last - first) * i // (CHECKPOINTS - 1) for i in range(CHECKPOINTS)}
    full = {length // block_len * block_len for length in spaced}
    edges = {length for edge in full for length in (edge, edge + 1) if first <= length <= last}
    return prompt | spaced | edges


def bytes_of_caches(caches: Sequence[KvCache]) -> CacheBytes:
    """What the caches of a stack of layers take.

    Layers append one after the other, so at the peak one of them holds old and new at once. Those
    before it have grown already, those after it not yet; the last layer's turn is the highest.
    """
    allocated = sum(cache.allocated_bytes for cache in caches)
    overshoot = caches[-1].peak_bytes - caches[-1].allocated_bytes if caches else 0
    return CacheBytes(
        useful=sum(cache.useful_bytes for cache in caches),
        allocated=allocated,
        peak=allocated + overshoot,
    )


def _point(
    kv_len: int, times_s: Sequence[tuple[float, float | None]], held: CacheBytes
) -> GrowthPoint:
    """Of the last of all steps so far."""
    wall_s, cpu_s = times_s[-1]
    cpus_s = [cpu for _, cpu in times_s if cpu is not None]
    return GrowthPoint(
        kv_len=kv_len,
        wall_s=wall_s,
        cpu_s=cpu_s,
        useful_bytes=held.useful,
        allocated_bytes=held.allocated,
        peak_bytes=held.peak,
        total_s=math.fsum(wall for wall, _ in times_s),
        total_cpu_s=math.fsum(cpus_s) if len(cpus_s) == len(times_s) else None,
    )
