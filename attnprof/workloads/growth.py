"""A kv-growth workload -> what its cache weighs and its steps take, token by token."""

import time
from collections.abc import Callable

import torch

from attnprof.backends import prepare
from attnprof.measured import GrowthPoint
from attnprof.workload import PAGED_BLOCK_TOKENS, Workload
from attnprof.workloads.op import Layer, build_layers, visible
from attnprof.workloads.out_of_memory import raising_out_of_memory

CHECKPOINTS = 64
MAX_POINTS = 256
WARM_STEPS = 3

Timed = Callable[[Callable[[], object]], tuple[float, float | None]]  # -> wall s, CPU s


def grow(
    workload: Workload,
    device: torch.device,
    seed: int,
    timed: Timed,
    *,
    limit_s: float,
    kind: str | None = None,
) -> tuple[GrowthPoint, ...]:
    """Decode from ``start_len`` cached tokens until the cache holds ``kv_len``.

    Every step appends one token in every layer and attends to all that are held: nothing is
    multiplied out. Points are kept of some steps; when ``limit_s`` is over, those that were had.

    Args:
        timed: Runs a step and says how long it took, by wall and by CPU.
    """
    assert workload.start_len is not None
    attention = prepare(workload, device, kind)
    started = time.perf_counter()
    points: list[GrowthPoint] = []
    with raising_out_of_memory(), torch.inference_mode(), attention.pinned():
        layers = build_layers(workload, device, seed, held_len=workload.start_len)
        for _ in range(WARM_STEPS):
            _attend(workload, attention.attend, layers, keep=False)
        kept = points_to_keep(workload)
        for kv_len in range(workload.start_len + 1, workload.kv_len + 1):
            wall_s, cpu_s = timed(lambda: _attend(workload, attention.attend, layers, keep=True))
            if kv_len in kept:
                points.append(_point(kv_len, wall_s, cpu_s, layers))
            if time.perf_counter() - started >= limit_s:
                break
    return tuple(points)


def points_to_keep(workload: Workload) -> set[int]:
    """Lengths of which a point is kept: all when few, else evenly spaced and around block edges.

    The last length is always among them. Around an edge are the last token of a full block and
    the first of the next, so that the step of a paged cache is seen as one.
    """
    assert workload.start_len is not None
    first, last = workload.start_len + 1, workload.kv_len
    if last - first < MAX_POINTS:
        return set(range(first, last + 1))
    spaced = {first + (last - first) * i // (CHECKPOINTS - 1) for i in range(CHECKPOINTS)}
    full = {length // PAGED_BLOCK_TOKENS * PAGED_BLOCK_TOKENS for length in spaced}
    edges = {length for edge in full for length in (edge, edge + 1) if first <= length <= last}
    return spaced | edges


def _attend(
    workload: Workload,
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    layers: list[Layer],
    *,
    keep: bool,
) -> None:
    for layer in layers:
        assert layer.cache is not None
        extend = layer.cache.append if keep else layer.cache.extended
        k, v = visible(workload, extend(layer.k, layer.v))
        attend(layer.q, k, v)


def _point(kv_len: int, wall_s: float, cpu_s: float | None, layers: list[Layer]) -> GrowthPoint:
    """Layers append one after the other, so at the peak one of them holds old and new at once.

    Those before it have grown already, those after it not yet; the last layer's turn is the
    highest.
    """
    caches = [layer.cache for layer in layers if layer.cache is not None]
    allocated = sum(cache.allocated_bytes for cache in caches)
    overshoot = caches[-1].peak_bytes - caches[-1].allocated_bytes
    return GrowthPoint(
        kv_len=kv_len,
        wall_s=wall_s,
        cpu_s=cpu_s,
        useful_bytes=sum(cache.useful_bytes for cache in caches),
        allocated_bytes=allocated,
        peak_bytes=allocated + overshoot,
    )
