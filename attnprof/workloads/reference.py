"""A backend's output -> whether it is attention: held against float64 on rows that stand for all.

Rows of attention do not depend on each other, so a row that is compared is compared exactly,
whatever else was left out.
"""

import math
import random
from typing import TypeVar

import torch

from attnprof.measured import Check
from attnprof.workload import Workload

T = TypeVar("T")

ROWS_PER_HEAD = 32
KEY_ELEMENTS = 2**22
HEADS = 8  # (sequence, query head) pairs at most when not all; fewer for many keys, at least two
SCORES_OF_ALL = 2**20  # compare everything up to here, and up to KEY_ELEMENTS

# Times the rounding error that one output is expected to have. Errors of many roundings add up
# like a random walk, so the largest of 10⁶ outputs lies some standard deviations out. Kernels of
# torch on CPU stay below half of the bound, in every dtype; one that is wrong misses it by far.
SAFETY = 4.0


def held_against_reference(
    workload: Workload,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    seed: int,
) -> Check:
    """Compare ``output [batch, num_q_heads, q_len, head_dim]`` with softmax(scale · QKᵀ)V.

    The reference is computed from the very numbers that the kernel was given, in float64 and from
    the variant's own definition of who sees whom. Every element has a bound of its own,

        SAFETY · (u · ((3 + m) · w + |o|) + u₃₂ · (√n + √d · (1 + m)) · w + tiny),
        w = √(Σⱼ pⱼ²vⱼ²)

    with u the unit roundoff of the dtype, u₃₂ that of the float32 in which halves are summed up,
    p the softmax of the row's scores, m the largest of these, n the keys seen, d the head's width
    and o the output. A score rounded to the dtype is off by u·|s|, and its probability by that
    share of itself; rounding the probability adds u; such errors of different keys are
    independent, so they add up in squares; sums of d and of n terms round as they go; the output
    is rounded once more. In halves a window of thousands that is wrong by one key stays below
    this; in float32 it does not.

    The error and the bound that are reported are those of the element that comes closest to its
    bound, or lies furthest beyond it.
    """
    batch, num_q_heads, q_len, head_dim = q.shape
    kv_len = k.shape[2]
    rng = random.Random(seed)
    num_heads = batch * num_q_heads
    everything = (
        num_heads * q_len * kv_len <= SCORES_OF_ALL
        and num_heads * kv_len * head_dim <= KEY_ELEMENTS
    )
    pairs = [(b, h) for b in range(batch) for h in range(num_q_heads)]
    rows = list(range(q_len))
    if not everything:
        pairs = _some(pairs, min(HEADS, max(2, KEY_ELEMENTS // (kv_len * head_dim))), rng)
        rows = _some(rows, min(ROWS_PER_HEAD, max(2, 2**22 // kv_len)), rng)
    where = torch.device("cpu") if q.device.type in ("mps", "xpu") else q.device
    unit = torch.finfo(q.dtype).eps / 2
    unit_sum = min(unit, torch.finfo(torch.float32).eps / 2)
    row_index = torch.tensor(rows, device=q.device)
    first_kv = workload.kv_len - kv_len  # keys that were left out because nobody sees them
    q_pos = (torch.tensor(rows, device=where) + workload.kv_len - q_len)[:, None]
    kv_pos = (torch.arange(kv_len, device=where) + first_kv)[None, :]
    allowed = workload.mask.allows(q_pos, kv_pos)
    num_seen = allowed.sum(-1, keepdim=True)
    group = num_q_heads // k.shape[1]

    worst_ratio, worst_error, worst_bound = -1.0, 0.0, 0.0
    for b, h in pairs:
        keys, values = _double(k[b, h // group], where), _double(v[b, h // group], where)
        queries = _double(q[b, h].index_select(0, row_index), where)
        found = _double(output[b, h].index_select(0, row_index), where)
        scores = (queries @ keys.T * head_dim**-0.5).masked_fill_(~allowed, -math.inf)
        largest = scores.masked_fill(~allowed, 0.0).abs().amax(-1, keepdim=True)
        probs = torch.softmax(scores, dim=-1)
        expected = probs @ values
        spread = (probs.square() @ values.square()).sqrt()
        bound = unit * ((3 + largest) * spread + expected.abs()) + torch.finfo(q.dtype).tiny
        bound += unit_sum * (num_seen.sqrt() + head_dim**0.5 * (1 + largest)) * spread
        bound *= SAFETY
        error = (found - expected).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        at = int((error / bound).argmax())
        ratio = float((error / bound).flatten()[at])
        if ratio > worst_ratio:
            worst_ratio = ratio
            worst_error, worst_bound = float(error.flatten()[at]), float(bound.flatten()[at])
    return Check(
        passed=worst_error <= worst_bound,
        max_abs_error=worst_error if math.isfinite(worst_error) else None,
        bound=worst_bound,
        rows=len(pairs) * len(rows),
    )


def _some(items: list[T], count: int, rng: random.Random) -> list[T]:
    """The first, the last and a random choice between, ``count`` in all, in order."""
    if len(items) <= count:
        return items
    between = sorted(rng.sample(range(1, len(items) - 1), count - 2))
    return [items[index] for index in (0, *between, len(items) - 1)]


def _double(tensor: torch.Tensor, where: torch.device) -> torch.Tensor:
    return tensor.to(where).double()
