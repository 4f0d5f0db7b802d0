"""A training step's output and gradients -> whether they are attention's, in float64."""

import math
import random
from dataclasses import dataclass

import torch

from attnprof.measured import Check
from attnprof.workload import Workload
from attnprof.workloads.op import Layer
from attnprof.workloads.places import Place
from attnprof.workloads.reference import (
    SAFETY,
    TURN_ROUNDINGS,
    Compared,
    Head,
    Softmax,
    Units,
    double,
    head_scale,
    output_of,
    reference_device,
    softmax_of,
    turn_error,
    units_of,
)

PAIRS = 2**22  # of a query and a key, over the heads that are compared when not all; one at least
PAIRS_OF_HEAD = 2**24  # beyond them some rows are compared, and no gradients of keys and values
PAIRS_AT_ONCE = 2**22
ROWS = 32


@dataclass(frozen=True)
class Step:
    """What a training step gives: the output, and gradients as large as what they are of."""

    out: torch.Tensor
    q_grad: torch.Tensor
    k_grad: torch.Tensor
    v_grad: torch.Tensor


def step_held_against_reference(
    workload: Workload, layer: Layer, step: Step, place: Place, seed: int
) -> Check:
    """Compare a step with softmax(scale · QKᵀ)V and its gradients, had by formulas:

        dV = PᵀdO,  dS = P ∘ (dO Vᵀ − D),  D_i = Σⱼ P_ij (dO Vᵀ)_ij,  dQ = scale · dS K,
        dK = scale · dSᵀ Q

    with dS times the slope of a soft cap, and gradients of what was turned by a position turned
    back. The bound of the output is that of
    :func:`~attnprof.workloads.reference.compared_heads`; those of gradients follow the same
    roundings through the formulas: of a probability by its share e, of dO Vᵀ and D by u of what is
    summed up. An error of D is common to a row, so what it does to dQ adds up, and is bounded so.

    Args:
        layer: Whose queries, keys, values and gradient of the output the step was given.

    Source:
        Dao 2023, "FlashAttention-2", arXiv:2307.08691, section 2.2 (the gradients).
    """
    batch, num_kv_heads = layer.k.shape[:2]
    group = layer.q.shape[1] // num_kv_heads
    q_len, kv_len = workload.q_len, workload.kv_len
    rng = random.Random(seed)
    pairs = [(b, kv) for b in range(batch) for kv in range(num_kv_heads)]
    num_pairs = group * q_len * kv_len
    pairs = rng.sample(pairs, min(len(pairs), max(1, PAIRS // num_pairs)))
    everything = num_pairs <= PAIRS_OF_HEAD
    rows = list(range(q_len)) if everything else sorted(rng.sample(range(q_len), ROWS))
    compared = Compared()
    for b, kv in pairs:
        _compare_head(workload, layer, step, place, b, kv, rows, everything, compared)
    return compared.check(len(pairs) * group * len(rows))


def _compare_head(
    workload: Workload, layer: Layer, step: Step, place: Place, b: int, kv: int, rows: list[int],
    everything: bool, compared: Compared,
) -> None:  # fmt: skip
    """One KV head, and the query heads that share it."""
    where, units = reference_device(layer.q), units_of(workload.dtype)
    group = layer.q.shape[1] // layer.k.shape[1]
    length = workload.kv_len
    kv_pos = torch.arange(length, device=where)
    keys = place.turned(double(layer.k[b, kv], where), kv_pos, length)
    values = double(layer.v[b, kv], where)
    scale, turn = head_scale(workload), TURN_ROUNDINGS * units.turned * place.turns
    of_keys = _Gradient(keys, units)
    of_values = _Gradient(values, units)
    for h in range(kv * group, (kv + 1) * group):
        for at in torch.split(torch.tensor(rows), max(1, PAIRS_AT_ONCE // length)):
            q_pos = at.to(where)
            part = at.to(layer.q.device)
            raw = double(layer.q[b, h].index_select(0, part), where)
            queries = place.turned(raw, q_pos, length)
            head = Head(
                queries=queries, keys=keys, values=values,
                score_error=turn_error(queries, keys, workload, units) if place.turns else 0.0,
            )  # fmt: skip
            allowed = workload.mask.allows(q_pos[:, None], kv_pos[None, :])
            allowed = allowed & (kv_pos < workload.lengths[b])
            bias = place.bias(h, q_pos, kv_pos, queries, scale)
            sink = None if layer.sinks is None else float(layer.sinks[h].double())
            softmax = softmax_of(workload, head, allowed, bias, sink, units)
            out, bound = output_of(head, softmax, allowed.sum(-1, keepdim=True), units)
            compared.add(double(step.out[b, h].index_select(0, part), where), out, bound)

            assert layer.out_grad is not None
            out_grad = double(layer.out_grad[b, h].index_select(0, part), where)
            probs = softmax.probs
            num_terms = len(rows) * group
            of_values.add(
                probs.T @ out_grad, (probs * softmax.errors).T.square() @ out_grad.square()
            )
            of_values.add_sums(probs.T.square() @ out_grad.square(), num_terms)

            of_scores = _score_gradients(softmax, head, out, out_grad, units, turn)
            q_grad, q_off = _query_gradients(of_scores, keys, scale, units)
            expected, bound = _turned_back(place, q_grad, q_off, q_pos, length, turn)
            found = double(step.q_grad[b, h].index_select(0, part), where)
            compared.add(found, expected, SAFETY * (bound + units.tiny))

            squares = of_scores.squares + (of_scores.spread * of_scores.row_errors).square()
            of_keys.add(
                scale * (of_scores.grads.T @ queries), scale**2 * (squares.T @ queries.square())
            )
            of_keys.add_sums(scale**2 * (of_scores.grads.square().T @ queries.square()), num_terms)
    if not everything:
        return
    expected, bound = _turned_back(place, of_keys.total, of_keys.off(), kv_pos, length, turn)
    compared.add(double(step.k_grad[b, kv], where), expected, SAFETY * (bound + units.tiny))
    compared.add(
        double(step.v_grad[b, kv], where), of_values.total, SAFETY * (of_values.off() + units.tiny)
    )


@dataclass(frozen=True, kw_only=True)
class _ScoreGradients:
    """Gradients of the scaled scores of some rows, ``[rows, kv_len]``, and what they are off by."""

    grads: torch.Tensor
    squares: torch.Tensor  # of errors that are independent of each other
    spread: torch.Tensor  # how an error of a row's D comes to its scores
    row_errors: torch.Tensor  # expected, of each row's D, [rows, 1]


def _score_gradients(
    softmax: Softmax, head: Head, out: torch.Tensor, out_grad: torch.Tensor, units: Units,
    turn: float,
) -> _ScoreGradients:  # fmt: skip
    probs, values = softmax.probs, head.values
    back = out_grad @ values.T
    grads = probs * (back - (probs * back).sum(-1, keepdim=True)) * softmax.slopes
    errors = softmax.errors + 2 * units.dtype
    sums = units.sums * values.shape[1] ** 0.5 * (out_grad.square() @ values.square().T).sqrt()
    off = grads.abs() * errors + probs * (units.dtype * back.abs() + sums)
    row_errors = (probs * errors * back).norm(dim=-1, keepdim=True)
    row_errors = row_errors + units.dtype * (out_grad * out).norm(dim=-1, keepdim=True)
    by_sums = units.sums * probs.shape[1] ** 0.5
    row_errors = row_errors + by_sums * (probs * back).norm(dim=-1, keepdim=True)
    return _ScoreGradients(
        grads=grads,
        squares=off.square() + (turn * grads).square(),
        spread=probs * softmax.slopes,
        row_errors=row_errors,
    )


def _query_gradients(
    of_scores: _ScoreGradients, keys: torch.Tensor, scale: float, units: Units
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of queries, which are not turned back yet, and what they are off by."""
    grad = scale * (of_scores.grads @ keys)
    off = scale * (of_scores.squares @ keys.square()).sqrt()
    off = off + scale * of_scores.row_errors * (of_scores.spread @ keys).abs()
    off = off + 2 * units.dtype * grad.abs()
    sizes = (of_scores.grads.square() @ keys.square()).sqrt()
    return grad, off + units.sums * len(keys) ** 0.5 * scale * sizes


class _Gradient:
    """A gradient that is summed up over rows and query heads, and its expected error."""

    def __init__(self, like: torch.Tensor, units: Units) -> None:
        self.total = torch.zeros_like(like)
        self._units = units
        self._squares = torch.zeros_like(like)
        self._sums = torch.zeros_like(like)

    def add(self, part: torch.Tensor, square_error: torch.Tensor) -> None:
        """A part as its head gives it, rounded before heads that share keys are summed up."""
        self.total += part
        self._squares += square_error + (self._units.dtype * part).square()

    def add_sums(self, squares: torch.Tensor, num_terms: int) -> None:
        """What sums of ``num_terms`` round as they go, by the squares of their terms."""
        self._sums += self._units.sums**2 * num_terms * squares

    def off(self) -> torch.Tensor:
        rounded = 2 * self._units.dtype * self.total.abs()
        return self._squares.sqrt() + self._sums.sqrt() + rounded


def _turned_back(
    place: Place, grad: torch.Tensor, off: torch.Tensor, positions: torch.Tensor, length: int,
    turn: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """A gradient turned back, and its error: each element of a pair may have that of both."""
    if not place.turns:
        return grad, off
    width = place.turned_dim
    first, second = off[:, : width // 2], off[:, width // 2 : width]
    both = (first.square() + second.square()).sqrt()
    sizes = (
        grad[:, : width // 2].square() + grad[:, width // 2 : width].square()
    ).sqrt() * math.sqrt(2)
    both = (both + turn * sizes) * place.stretch
    turned = place.turned(grad, positions, length, back=True)
    return turned, torch.cat((both, both, off[:, width:]), dim=1)
