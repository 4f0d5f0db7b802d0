"""What a law must be shown -> the few workloads that show it, and those to add where it is unsure.

The regimes come first (launch, memory beyond the cache, many short sequences, one long one,
arithmetic), then what lies farthest from all that was chosen; once there is a law, what narrows it
most for the time that it takes.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof import machine
from attnprof.backends.support import unsupported_reason
from attnprof.combinations import problem
from attnprof.errors import UsageError
from attnprof.fit_laws import PAST_CACHE, RunFit
from attnprof.forecast import expected_call_s, needed_bytes
from attnprof.law_shapes import PHASES, columns_of_all, identity_of, is_step
from attnprof.predicted import attention_times
from attnprof.theory.summary import call_bytes, call_flops, theory_weight_bytes
from attnprof.workload import Workload

FIRST_POINTS = 16  # of each law: twelve pin it down, four more show what it misses
FIRST_STEPS = 14  # of layers, and of models, which share a law of twelve coefficients
FEWEST_POINTS = 10  # of each law, whatever they take
FEWEST_STEPS = 12
ADDED_POINTS = 4  # of each law at a time, then it is fitted again
MOST_POINTS = 64  # of each law: beyond, its form misses more than its coefficients
BUDGET_S = 420.0  # of a sweep for fit, where none is given
FIRST_SHARE = 0.6  # of it, for the first design
LONGEST_CALL_S = {"cpu": 0.15, "synthetic": 0.3, "": 0.05}
MEMORY_SHARE = 0.4  # of what is free
SHORTEST, LONGEST_PREFILL, LONGEST_DECODE = 16, 2**16, 2**18
LARGEST_BATCH = 1024
SHORT = 256  # tokens: of a call whose keys cost next to nothing
UNITS_FILLED = 4  # sequences times KV heads a unit, that show what each costs
# Three ratios of query to KV heads: by two, arithmetic that hides behind traffic and arithmetic
# that adds to it look alike in decode.
LAYOUTS = {
    "cpu": ((8, 2, 64), (8, 8, 64), (16, 1, 128), (2, 2, 64)),
    "": ((32, 8, 128), (8, 8, 128), (32, 1, 128)),
}
# Heads, KV heads, head width and count of layers, whose weights lie on both sides of a last cache;
# and models small enough that theirs are soon made.
STEP_LAYERS = ((8, 2, 64, 1), (8, 2, 64, 4), (16, 16, 64, 4), (16, 4, 128, 1))
STEP_MODELS = (("smollm2-135m", 4), ("gpt2", 2))
LONGEST_STEP = {"prefill": 1024, "decode": 1024}  # tokens: gpt2 has positions for no more
STEP_BATCHES = (1, 2, 3, 4, 8, 16)  # rows of a decode: one by one, and packed
SET_UP_BYTES_PER_S = 25e6  # of weights: made, held against a reference, and made again each round
_Place = tuple[float, ...]


@dataclass(frozen=True)
class Limits:
    """What a design may ask of a device, and where its regimes begin.

    Args:
        call_s: The longest call that is worth its time.
        num_units: SMs of a GPU, threads of a CPU.
    """

    device_kind: str
    threads: int
    ceilings: Mapping[str, Any]
    cache_bytes: float
    num_units: float
    free_bytes: int | None
    call_s: float

    def expected_s(self, workload: Workload) -> float:
        """A guess at one call."""
        return expected_call_s(workload, self.device_kind, self.threads, dict(self.ceilings))

    def allow(self, workload: Workload) -> bool:
        needed = needed_bytes(workload, self.device_kind, self.threads)
        fits = self.free_bytes is None or needed <= MEMORY_SHARE * self.free_bytes
        return fits and self.expected_s(workload) <= self.call_s


def axes_of(typed: Mapping[str, Any], device_kind: str) -> dict[str, dict[str, Any]]:
    """The groups of a grid whose workloads are what to fit, one of each head layout and model.

    Attention alone, and where heads and models are not typed also layers and models around it, for
    which the synthetic device has no law of its own.

    Raises:
        UsageError: An axis was typed that the design chooses.
    """
    for name in ("seq_len", "batch_size", "q_len", "kv_len"):
        if name in typed:
            raise UsageError(f"--for-fit chooses {name} itself", f"leave {name} out")
    usual = {"phase": list(PHASES), "backend": "flash", "variant": "causal", "seq_len": SHORTEST}
    if any(name in typed for name in ("num_q_heads", "num_kv_heads", "head_dim", "model")):
        return {"kernels": usual}
    layouts = LAYOUTS["cpu" if device_kind in ("cpu", "synthetic") else ""]
    groups = {
        f"{heads}/{kv_heads}": {
            **usual, "num_q_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim,
        }
        for heads, kv_heads, head_dim in layouts
    }  # fmt: skip
    if device_kind == "synthetic" or "scope" in typed:
        return groups
    return groups | _step_groups(usual)


def _step_groups(usual: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {
        f"{num_layers} layers {heads}/{kv_heads}": {
            **usual, "scope": "layer", "num_q_heads": heads, "num_kv_heads": kv_heads,
            "head_dim": head_dim, "num_layers": num_layers,
        }
        for heads, kv_heads, head_dim, num_layers in STEP_LAYERS
    }  # fmt: skip
    implementations = ["plain"]
    if machine.has_package("transformers"):
        implementations.append("transformers")
    for implementation in implementations:
        for model, num_layers in STEP_MODELS:
            model_axes = {"scope": "model", "model": model, "num_layers": num_layers}
            for phase in PHASES:
                axes = {**usual, **model_axes, "phase": phase, "implementation": implementation}
                if phase == "decode":
                    axes["kv_cache"] = _CACHES[implementation]
                groups[f"{implementation} {model} {phase}"] = axes
    return groups


_CACHES = {"plain": "static", "transformers": "contiguous"}  # as either is mostly run


def kernels_of(workloads: Iterable[Workload]) -> list[Workload]:
    """The workloads at one sequence of the shortest length, without repeats.

    Raises:
        UsageError: Something else than a prefill or a decode.
    """
    found: dict[Workload, None] = {}
    for workload in workloads:
        if workload.phase not in PHASES:
            raise UsageError(
                f"--for-fit takes prefill and decode, not {workload.workload_id}",
                "leave phase out",
            )
        found[_sized(workload, 1, SHORTEST)] = None
    return list(found)


def _sized(kernel: Workload, batch_size: int, length: int) -> Workload:
    q_len = length if kernel.phase == "prefill" else 1
    return replace(kernel, batch_size=batch_size, q_len=q_len, kv_len=length)


def candidates(kernels: Sequence[Workload], limits: Limits) -> list[Workload]:
    """All lengths and batches of each kernel that the device has memory and time for."""
    found = []
    for kernel in kernels:
        if unsupported_reason(kernel, limits.device_kind) is not None:
            continue
        batches = STEP_BATCHES if is_step(vars(kernel)) else _doublings(1, LARGEST_BATCH)
        for length in _lengths(kernel):
            sized = [_sized(kernel, batch, length) for batch in batches]
            allowed = list(itertools.takewhile(limits.allow, sized))
            if not allowed:
                break
            found += [one for one in allowed if problem(one) is None]
    return found


def _lengths(kernel: Workload) -> list[int]:
    if is_step(vars(kernel)):
        return _doublings(SHORTEST, LONGEST_STEP[kernel.phase])
    if kernel.phase == "decode":
        return _doublings(SHORTEST, LONGEST_DECODE)
    # Between the doublings lengths that are no whole vectors, which take longer.
    between = [3 * length // 2 + 1 for length in _doublings(SHORTEST, LONGEST_PREFILL // 2)]
    return sorted([*_doublings(SHORTEST, LONGEST_PREFILL), *between])


def _doublings(first: int, last: int) -> list[int]:
    return [first * 2**i for i in range(int(math.log2(last // first)) + 1)]


def first_points(
    options: Sequence[Workload], limits: Limits, cost_s: Callable[[Workload], float], total_s: float
) -> list[Workload]:
    """What every law is shown first: its regimes, then what is far from them.

    Args:
        cost_s: What measuring a workload takes.
        total_s: Of all together, beyond :data:`FEWEST_POINTS` of each law.
    """
    laws: dict[Any, list[Workload]] = {}
    for one in options:  # layers cost little, and would leave no room for models
        laws.setdefault((identity_of(vars(one)), one.scope), []).append(one)
    chosen: list[Workload] = []
    for alike in laws.values():
        points = regimes(alike, limits)
        left_s = total_s / len(laws) - sum(map(cost_s, points))
        are_steps = is_step(vars(alike[0]))
        num, fewest = (FIRST_STEPS, FEWEST_STEPS) if are_steps else (FIRST_POINTS, FEWEST_POINTS)
        for point in _far_from(points, alike, num - len(points)):
            left_s -= cost_s(point)
            if left_s >= 0 or len(points) < fewest:
                points.append(point)
        chosen += points
    return chosen


def _by_law(workloads: Iterable[Workload]) -> dict[Any, list[Workload]]:
    laws: dict[Any, list[Workload]] = {}
    for workload in workloads:
        laws.setdefault(identity_of(vars(workload)), []).append(workload)
    return laws


def regimes(alike: Sequence[Workload], limits: Limits) -> list[Workload]:
    """A workload of each regime that a law must be shown, the cheapest of each, without repeats.

    Where the device is too small for one, what comes nearest.
    """
    past_cache = [one for one in alike if call_bytes(one) >= PAST_CACHE * limits.cache_bytes]
    filled = UNITS_FILLED * limits.num_units
    short = [one for one in alike if one.kv_len <= SHORT]
    many = [one for one in short if one.batch_size * one.num_kv_heads >= filled]
    singles = [one for one in alike if one.batch_size == 1]
    found = [
        min(alike, key=limits.expected_s),
        min(past_cache, key=limits.expected_s) if past_cache else max(alike, key=call_bytes),
        min(many, key=lambda one: (one.kv_len, one.batch_size))
        if many
        else max(short or alike, key=lambda one: one.batch_size * one.num_kv_heads),
        max(singles or alike, key=lambda one: one.kv_len),
        max(alike, key=call_flops),
    ]
    return list(dict.fromkeys(found))


def _place(workload: Workload) -> _Place:
    """Where a workload lies: one step is a doubling."""
    sizes: tuple[int, ...] = (
        workload.batch_size, workload.kv_len, workload.num_q_heads, workload.num_kv_heads,
        workload.head_dim,
    )  # fmt: skip
    if is_step(vars(workload)):  # both phases, and weights
        sizes += (workload.q_len, theory_weight_bytes(workload))
    return tuple(math.log2(size) for size in sizes)


def set_up_s(workload: Workload) -> float:
    """About how long its weights take, in all rounds together. [s]"""
    return theory_weight_bytes(workload) / SET_UP_BYTES_PER_S


def _far_from(chosen: Sequence[Workload], alike: Sequence[Workload], num: int) -> list[Workload]:
    """Each time the workload that is farthest from all that were chosen before."""
    places = [_place(one) for one in alike]
    nearest = [min(math.dist(place, _place(one)) for one in chosen) for place in places]
    found = []
    for _ in range(num):
        farthest = max(range(len(alike)), key=nearest.__getitem__)
        if nearest[farthest] == 0:
            break
        found.append(alike[farthest])
        gaps = (math.dist(place, places[farthest]) for place in places)
        nearest = [min(pair) for pair in zip(nearest, gaps, strict=True)]
    return found


@dataclass(frozen=True)
class Doubt:
    """How unsure the coefficients of some laws leave a latency, and what would help most.

    Args:
        log_sd: The largest standard deviation of a log latency, over all that can be measured, that
            comes of the coefficients.
    """

    log_sd: float
    points: tuple[Workload, ...]


def doubt(
    found: RunFit, options: Sequence[Workload], measured: Iterable[Workload], limits: Limits
) -> Doubt:
    """Where the fitted laws are least sure, and the points that narrow them most for their time.

    The next point is that which takes most, for the second that it costs, from the variance
    averaged over all options; the law of a point that is taken counts as measured there.
    """
    import numpy as np

    from attnprof.laws.base import log_jacobian

    done = set(measured)
    laws = _by_law(options)
    num_done = {identity: len(alike) for identity, alike in _by_law(done).items()}
    largest, points = 0.0, []
    fitted_laws = {group.identity for group in found.groups}
    for identity in laws.keys() - fitted_laws:  # too few points so far: more, far from those
        known = [one for one in done if identity_of(vars(one)) == identity]
        points += _far_from(known or laws[identity][:1], laws[identity], ADDED_POINTS)
        largest = math.inf
    for group in found.groups:
        fitted = group.law.fitted
        alike = laws.get(group.identity, [])
        if not alike:
            continue
        columns = columns_of_all(alike, attention_times(found.calibration))
        terms = fitted.law.terms(columns, fitted.hardware)
        slopes = log_jacobian(fitted.law, terms, fitted.coefficients)
        covariance = fitted.covariance.copy()
        variance = np.einsum("in,ij,jn->n", slopes, covariance, slopes)
        largest = max(largest, float(np.sqrt(np.maximum(variance, 0.0)).max()))
        cost_s = np.array([0.3 + 10 * limits.expected_s(one) + set_up_s(one) for one in alike])
        is_free = np.array([one not in done for one in alike])
        room = MOST_POINTS - num_done.get(group.identity, 0)
        for _ in range(min(ADDED_POINTS, room, int(is_free.sum()))):
            toward = covariance @ slopes
            own = fitted.residual_sd**2 + np.einsum("in,in->n", slopes, toward)
            gains = ((slopes.T @ toward) ** 2).mean(axis=0) / own / cost_s
            best = int(np.where(is_free, gains, -1.0).argmax())
            is_free[best] = False
            points.append(alike[best])
            covariance -= np.outer(toward[:, best], toward[:, best]) / own[best]
    return Doubt(largest, tuple(points))
