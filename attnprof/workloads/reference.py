"""A backend's output -> whether it is attention: held against float64 on rows that stand for all.

Rows of attention do not depend on each other, so a row that is compared is compared exactly,
whatever else was left out.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from attnprof.measured import Check
from attnprof.workload import Workload
from attnprof.workloads.places import Place
from attnprof.workloads.precision import torch_dtype, unit_roundoff

T = TypeVar("T")

ROWS_PER_HEAD = 32
KEY_ELEMENTS = 2**22
HEADS = 8  # (sequence, query head) pairs at most when not all; fewer for many keys, at least two
SCORES_OF_ALL = 2**20  # compare everything up to here, and up to KEY_ELEMENTS

# Times the rounding error that one output is expected to have. Errors of many roundings add up
# like a random walk, so the largest of 10⁶ outputs lies some standard deviations out. Kernels of
# torch on CPU stay below half of the bound, in every dtype; one that is wrong misses it by far.
SAFETY = 4.0
TURN_ROUNDINGS = 3.0  # of an element that is turned: cosine and sine, two products, their sum


@dataclass(frozen=True, kw_only=True)
class Units:
    """Unit roundoffs: of the dtype, of the float32 in which halves are summed up, and of what is
    turned, whose cosines and sines are float32 in every dtype."""

    dtype: float
    sums: float
    turned: float
    tiny: float


def units_of(dtype: str) -> Units:
    """The rounding errors of a dtype's values, its sums and what is turned in float32."""
    unit, single = unit_roundoff(dtype), unit_roundoff("float32")
    tiny = torch.finfo(torch_dtype(dtype)).tiny
    return Units(dtype=unit, sums=min(unit, single), turned=max(unit, single), tiny=tiny)


@dataclass(frozen=True, kw_only=True)
class Head:
    """What one query head attends to, in float64, and what was rounded on the way to it.

    ``keys`` and ``values`` are those that the kernel is given; ``exact`` are the keys and values
    before a cache stored them in fewer bits.
    """

    queries: torch.Tensor  # [rows, head_dim]
    keys: torch.Tensor  # [kv_len, head_dim]
    values: torch.Tensor  # [kv_len, value_dim]
    score_error: torch.Tensor | float = 0.0  # expected, of scaled scores [rows, kv_len]
    output_error: Callable[[torch.Tensor], torch.Tensor | float] = lambda probs: 0.0
    exact: tuple[torch.Tensor, torch.Tensor] | None = None


HeadAt = Callable[[int, int, torch.Tensor], Head]  # (sequence, query head, rows) -> its head


def held_against_reference(
    workload: Workload,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    seed: int,
    *,
    place: Place | None = None,
    new_k: torch.Tensor | None = None,
    new_v: torch.Tensor | None = None,
    new_is_turned: bool = False,
    sinks: torch.Tensor | None = None,
    exact: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Check:
    """Compare ``output [batch, num_q_heads, q_len, value_dim]`` with softmax(scale · QKᵀ)V.

    The reference is computed in float64 from the very numbers that the call was given, and from
    the variant's own definition of who sees whom. See :func:`compared_heads` for the bound.

    Args:
        q: Queries as the call was given them, not turned yet.
        k: Keys as the kernel was given them, from the first that any query sees, in order.
        v: Values beside them.
        place: Where the tokens are; None where that changes nothing.
        new_k: The last keys as the call was given them, not turned yet, where they are not as in
            ``k``. The reference turns them itself.
        new_v: The values that go with them.
        new_is_turned: Whether ``new_k`` is turned already, as what a cache rounded is.
        exact: Keys and values before a cache stored them in fewer bits.
    """
    where = reference_device(q)
    group = q.shape[1] // k.shape[1]
    units = units_of(workload.dtype)
    first_q = first_query(workload)
    place = place or Place()

    def head_at(b: int, h: int, rows: torch.Tensor) -> Head:
        kv = h // group
        keys, values = double(k[b, kv], where), double(v[b, kv], where)
        raw = double(q[b, h].index_select(0, rows.to(q.device)), where)
        queries = place.turned(raw, rows.to(where) + first_q, workload.kv_len)
        if new_k is not None:
            turns = Place() if new_is_turned else place
            keys = with_new(keys, new_k[b, kv], turns, workload.kv_len)
        if new_v is not None:
            values = torch.cat((values[: -new_v.shape[2]], double(new_v[b, kv], where)))
        originals = None
        if exact is not None:
            originals = (double(exact[0][b, kv], where), double(exact[1][b, kv], where))
        return Head(
            queries=queries,
            keys=keys,
            values=values,
            score_error=turn_error(queries, keys, workload, units) if place.turns else 0.0,
            exact=originals,
        )

    return compared_heads(
        workload, head_at, output, seed, num_keys=k.shape[2], place=place, sinks=sinks
    )


def compared_heads(
    workload: Workload,
    head_at: HeadAt,
    output: torch.Tensor,
    seed: int,
    *,
    num_keys: int,
    place: Place | None = None,
    sinks: torch.Tensor | None = None,
) -> Check:
    """Compare rows of ``output`` with attention over the heads that ``head_at`` gives.

    Every element has a bound of its own,

        SAFETY · (√(Σⱼ pⱼ²eⱼ²vⱼ² + e_o²) + u·|o| + u₃₂ · (√n + √d · (1 + m)) · w + tiny),
        eⱼ = u · (3 + |sⱼ|) + e_s,  w = √(Σⱼ pⱼ²vⱼ²)

    with u the unit roundoff of the dtype, u₃₂ that of the float32 in which halves are summed up,
    p the softmax of the row's scores s, m the largest of these, n the keys seen, d the head's width
    and o the output. A score rounded to the dtype is off by u·|s|, and its probability by that
    share of itself; rounding the probability adds u; such errors of different keys are
    independent, so they add up in squares; sums of d and of n terms round as they go; the output
    is rounded once more. A soft cap and a bias round a score again, each by its size. e_s and e_o
    are of what was rounded before the scores and after the sum: a rotation, a projection. In
    halves a window of thousands that is wrong by one key stays below this; in float32 it does not.

    The error and the bound that are reported are those of the element that comes closest to its
    bound, or lies furthest beyond it. ``rms_error`` is from the exact keys and values where a cache
    rounded them.
    """
    batch, num_q_heads, q_len, width = output.shape
    where = reference_device(output)
    units, place = units_of(workload.dtype), place or Place()
    pairs, rows = rows_that_stand(batch, num_q_heads, q_len, num_keys, width, seed)
    row_index = torch.tensor(rows)
    q_pos = row_index.to(where) + first_query(workload)
    kv_pos = torch.arange(num_keys, device=where) + workload.kv_len - num_keys
    seen = workload.mask.allows(q_pos[:, None], kv_pos[None, :])

    compared = Compared()
    for b, h in pairs:
        head = head_at(b, h, row_index)
        allowed = seen & (kv_pos < workload.lengths[b])
        bias = place.bias(h, q_pos, kv_pos, head.queries, head_scale(workload))
        sink = None if sinks is None else float(sinks[h].double())
        found = double(output[b, h].index_select(0, row_index.to(output.device)), where)
        expected, bound = attended(workload, head, allowed, bias, sink, units)
        exact = expected
        if head.exact is not None:
            keys, values = head.exact
            exact_head = Head(queries=head.queries, keys=keys, values=values)
            exact, _ = attended(workload, exact_head, allowed, bias, sink, units)
        compared.add(found, expected, bound, exact)
    return compared.check(len(pairs) * len(rows))


class Compared:
    """The element that came closest to its bound, or lies furthest beyond it, and the mean of
    squares of all differences."""

    def __init__(self) -> None:
        self._ratio, self._error, self._bound = -1.0, 0.0, 0.0
        self._square_error = self._square_exact = 0.0

    def add(
        self,
        found: torch.Tensor,
        expected: torch.Tensor,
        bound: torch.Tensor,
        exact: torch.Tensor | None = None,
    ) -> None:
        """Compare some elements.

        Args:
            exact: What they would be if a cache had rounded nothing; ``expected`` where None.
        """
        error = (found - expected).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        at = int((error / bound).argmax())
        ratio = float((error / bound).flatten()[at])
        if ratio > self._ratio:
            self._ratio = ratio
            self._error, self._bound = float(error.flatten()[at]), float(bound.flatten()[at])
        exact = expected if exact is None else exact
        self._square_error += float((found - exact).square().sum())
        self._square_exact += float(exact.square().sum())

    def check(self, rows: int) -> Check:
        share = self._square_error / self._square_exact if self._square_exact else math.nan
        return Check(
            passed=self._error <= self._bound,
            max_abs_error=self._error if math.isfinite(self._error) else None,
            bound=self._bound,
            rows=rows,
            rms_error=math.sqrt(share) if math.isfinite(share) else None,
        )


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """The softmax of rows of one head, in float64, and how far off a kernel's may be."""

    probs: torch.Tensor  # [rows, kv_len]
    errors: torch.Tensor  # expected, of each probability, as a share of it
    slopes: torch.Tensor | float  # of a capped score by the score
    sizes: torch.Tensor  # [rows, 1], of the largest scores, whose sums round as they go


def softmax_of(
    workload: Workload,
    head: Head,
    allowed: torch.Tensor,
    bias: torch.Tensor | None,
    sink: float | None,
    units: Units,
) -> Softmax:
    """What probabilities rows of one head should have."""
    raw = head.queries @ head.keys.T * head_scale(workload)
    magnitudes = raw.masked_fill(~allowed, 0.0).abs()
    sizes = magnitudes.amax(-1, keepdim=True)
    scores, roundings = raw, 3 + magnitudes
    slopes: torch.Tensor | float = 1.0
    if workload.softcap is not None:
        scores = workload.softcap * torch.tanh(raw / workload.softcap)
        slopes = 1 - (scores / workload.softcap).square()
        roundings = roundings + 2 * scores.abs()
    if bias is not None:
        scores = scores + bias
        roundings = roundings + bias.abs() + scores.abs()
        largest = scores.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True)
        sizes = sizes + largest.abs()
    scores = scores.masked_fill(~allowed, -math.inf)
    if sink is None:
        probs = torch.softmax(scores, dim=-1)
    else:
        column = torch.full_like(scores[:, :1], sink)
        probs = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[:, :-1]
    errors = units.dtype * roundings + head.score_error
    return Softmax(probs=probs, errors=errors, slopes=slopes, sizes=sizes)


def attended(
    workload: Workload,
    head: Head,
    allowed: torch.Tensor,
    bias: torch.Tensor | None,
    sink: float | None,
    units: Units,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rows of one head should be, and how far off each element may be."""
    softmax = softmax_of(workload, head, allowed, bias, sink, units)
    return output_of(head, softmax, allowed.sum(-1, keepdim=True), units)


def output_of(
    head: Head, softmax: Softmax, num_seen: torch.Tensor, units: Units
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of some rows, and how far off each element may be.

    Args:
        num_seen: Keys that each row sees, ``[rows, 1]``.
    """
    probs, squares = softmax.probs, head.values.square()
    expected = probs @ head.values
    before = torch.as_tensor(head.output_error(probs)) ** 2
    off = ((probs * softmax.errors).square() @ squares + before).sqrt()
    off = off + units.dtype * expected.abs() + units.tiny
    width = head.queries.shape[-1]
    by_sums = units.sums * (num_seen.sqrt() + width**0.5 * (1 + softmax.sizes))
    return expected, SAFETY * (off + by_sums * (probs.square() @ squares).sqrt())


def first_query(workload: Workload) -> int:
    """The position of the first query; those of a cross-attention have none, and count from 0."""
    return 0 if workload.attention == "cross" else workload.kv_len - workload.q_len


def head_scale(workload: Workload) -> float:
    """What scores are multiplied by: 1/√head_dim."""
    scale: float = workload.head_dim**-0.5
    return scale


def with_new(keys: torch.Tensor, new: torch.Tensor, place: Place, kv_len: int) -> torch.Tensor:
    """``keys [kv_len, head_dim]`` whose last are ``new``, turned by their positions."""
    num_new = new.shape[0]
    positions = torch.arange(kv_len - num_new, kv_len, device=keys.device)
    turned = place.turned(double(new, keys.device), positions, kv_len)
    return torch.cat((keys[: len(keys) - num_new], turned))


def turn_error(
    queries: torch.Tensor, keys: torch.Tensor, workload: Workload, units: Units
) -> torch.Tensor:
    """Expected error of scores whose queries and keys were turned in the dtype."""
    products = (queries.square() @ keys.square().T).sqrt() * head_scale(workload)
    return math.sqrt(2) * TURN_ROUNDINGS * units.turned * products


def rows_that_stand(
    batch: int, num_q_heads: int, q_len: int, num_keys: int, width: int, seed: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Heads (of a sequence) and query rows that are compared: all where they are few."""
    rng = random.Random(seed)
    num_heads = batch * num_q_heads
    pairs = [(b, h) for b in range(batch) for h in range(num_q_heads)]
    rows = list(range(q_len))
    few_scores = num_heads * q_len * num_keys <= SCORES_OF_ALL
    if not (few_scores and num_heads * num_keys * width <= KEY_ELEMENTS):
        pairs = _some(pairs, min(HEADS, max(2, KEY_ELEMENTS // (num_keys * width))), rng)
        rows = _some(rows, min(ROWS_PER_HEAD, max(2, 2**22 // num_keys)), rng)
    return pairs, rows


def _some(items: list[T], count: int, rng: random.Random) -> list[T]:
    """The first, the last and a random choice between, ``count`` in all, in order."""
    if len(items) <= count:
        return items
    between = sorted(rng.sample(range(1, len(items) - 1), count - 2))
    return [items[index] for index in (0, *between, len(items) - 1)]


def reference_device(tensor: torch.Tensor) -> torch.device:
    """Where float64 is computed: beside the tensor, or on CPU where its device has none."""
    return torch.device("cpu") if tensor.device.type in ("mps", "xpu") else tensor.device


def double(tensor: torch.Tensor, where: torch.device) -> torch.Tensor:
    """The same values in float64, on the device that has it."""
    return tensor.detach().to(where).double()
