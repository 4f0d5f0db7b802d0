"""A call of layers, blocks or a model -> whether it is right: held against its float64 twin."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnprof.measured import Check
from attnprof.workload import Workload
from attnprof.workloads.networks import Network, attention_blocks, build_network
from attnprof.workloads.precision import rms_error
from attnprof.workloads.transformer.ffn import FeedForward, MixtureOfExperts
from attnprof.workloads.transformer.model import Transformer, last_rows
from attnprof.workloads.transformer.step import Segment
from attnprof.workloads.twin import Twin

if TYPE_CHECKING:
    from attnprof.workloads.scopes import ScopeOperation

# Times the rounding error that a row is expected to have. An error here is a root mean square over
# a row, which varies little; what is left is how scores, norms and sums amplify it.
SAFETY = 7.0
ROUNDINGS = 2  # of a layer that add up like a random walk
# Times as far may gradients be off, whose way is twice as long; of halves with a short exponent,
# in which small ones are rounded to steps of 2⁻²⁴, four times that.
GRADIENTS = {"float16": 16}
USUAL_GRADIENTS = 4
RECTIFIERS = 4  # of a layer that may be almost at zero
CHECKED_SEQUENCES = 2
MAX_FLOPS = 2e11  # of a twin: some ten seconds of two cores
MAX_OUTER_BYTES = 2**31  # of embedding and head in float64
LOOKS_BACK = ("causal", "sliding", "chunked", "packed", "sink")
_STORED_ERRORS = {"float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3, "int8": 2**-8, "int4": 2**-4}


def unit_of(dtype: str) -> float:
    """Largest relative error of rounding to a type of the arithmetic. [1]

    >>> unit_of("bfloat16") == 2**-8
    True
    """
    return 2**-11 if dtype == "tf32" else torch.finfo(getattr(torch, dtype)).eps / 2


def bound_of(workload: Workload, num_layers: int, width: int, spread: float = 1.0) -> float:
    """The largest share of a row's root mean square by which it may differ. [1]

        SAFETY · √(R · L + 1) · (1 + max(1, σ)) / 2 · (u + u₃₂ · √width / 4 + √(u · u_kv))

    R roundings a layer add up like a random walk over L layers. Scores that spread by σ, one where
    they are scaled as usual, carry as many times the rounding of queries and keys into the softmax.
    Sums of ``width`` products round as they go, of halves in float32, in blocks and so less than
    one by one. The last term is of quantised caches alone: a new key that lies at the edge of two
    codes becomes the one or the other by the rounding before it.
    """
    unit = unit_of(workload.dtype)
    each = unit + min(unit, unit_of("float32")) * math.sqrt(width) / 4
    if workload.kv_dtype is not None:
        each += math.sqrt(unit * _stored_error(workload.kv_dtype))
    amplified = (1 + max(1.0, spread)) / 2
    return SAFETY * math.sqrt(ROUNDINGS * num_layers + 1) * amplified * each


def gradient_bound(workload: Workload, bound: float, network: nn.Module) -> float:
    """The largest share by which gradients may differ, where outputs may by ``bound``. [1]

    A rectifier whose input is almost zero passes a gradient or none, by the rounding before it: one
    of N inputs is worth 1 / √N of the gradient of all.
    """
    found = GRADIENTS.get(workload.dtype, USUAL_GRADIENTS) * bound
    widths = [
        part.ffn.width
        for part in network.modules()
        if isinstance(part, FeedForward) and part.ffn.activation == "relu"
    ]
    if widths:
        found += RECTIFIERS / math.sqrt(min(widths) * workload.batch_size * workload.q_len)
    return found


def _stored_error(stored: str) -> float:
    return _STORED_ERRORS.get(stored) or unit_of(stored)


def _stored_bound(workload: Workload, num_layers: int) -> float:
    """What weights and caches of narrower types may change of a row's root mean square. [1]"""
    stored = [one for one in (workload.kv_dtype, workload.weight_dtype) if one is not None]
    worst = sum(_stored_error(one) for one in stored)
    return SAFETY * math.sqrt(ROUNDINGS * num_layers + 1) * worst


@dataclass(frozen=True)
class Extent:
    """How much of a call its twin computes."""

    num_layers: int
    num_sequences: int
    num_tokens: int  # the first of each sequence: those that look back alone need no later ones
    is_whole: bool  # the output itself; else the states after so many layers

    def words(self, workload: Workload) -> str:
        found = "float64"
        if not self.is_whole:
            found += f", states after {self.num_layers} of {workload.num_layers} layers"
            if self.num_tokens < workload.q_len:
                found += f", first {self.num_tokens} tokens"
            if workload.phase == "train":
                found += ", forward alone"
        return found


def extent_of(op: "ScopeOperation") -> Extent:
    """All of a call where the twin affords it: two sequences, and as many layers and tokens."""
    workload, network = op.workload, op.inputs.network
    blocks = attention_blocks(network)
    trains = workload.phase == "train"
    num_sequences = workload.batch_size
    if not trains and workload.min_len is None:
        num_sequences = min(CHECKED_SEQUENCES, num_sequences)
    num_tokens = most_tokens = max(one.num_tokens for one in op.inputs.segments)

    def flops(num_tokens: int) -> float:
        rows = num_sequences * num_tokens
        pairs = rows * (workload.kv_len - most_tokens + num_tokens)
        worked = sum(_active_params(block) for block in network.blocks) / len(blocks)
        width = blocks[0].num_q_heads * (blocks[0].head_dim + blocks[0].v_head_dim)
        return (3 if trains else 1) * (2 * worked * rows + 2 * width * pairs)

    truncates = (
        not trains and workload.phase == "prefill" and workload.attention == "self"
        and all(block.variant in LOOKS_BACK for block in blocks)
        and workload.position != "rope-dynamic"
    )  # fmt: skip
    while truncates and num_tokens > 1 and flops(num_tokens) > MAX_FLOPS:
        num_tokens = -(-num_tokens // 2)
    num_layers = max(1, min(len(blocks), int(MAX_FLOPS / flops(num_tokens))))
    is_whole = num_layers == len(blocks) and num_tokens == most_tokens and _fits(network)
    return Extent(num_layers, num_sequences, num_tokens, is_whole)


def _active_params(block: nn.Module) -> float:
    """Parameters of a layer that one token meets."""
    total = float(sum(weight.numel() for weight in block.parameters()))
    for part in block.modules():
        if isinstance(part, MixtureOfExperts):
            idle = 1 - part.experts.num_active / part.experts.num_experts
            total -= idle * (part.up.numel() + part.down.numel())
    return total


def _fits(network: Network) -> bool:
    within = {id(weight) for weight in network.blocks.parameters()}
    outer = (weight for weight in network.parameters() if id(weight) not in within)
    return 8 * sum(weight.numel() for weight in outer) <= MAX_OUTER_BYTES


def held_against_twin(op: "ScopeOperation", output: torch.Tensor) -> Check:
    """Compare a call's rows, and the gradients of a training step, with float64.

    Every row has a bound, :func:`bound_of` times its own root mean square, and so have gradients,
    those of a layer's weights together as one row. The error and the bound that are reported are
    those of the row that comes closest to its bound, or lies furthest beyond it.
    """
    extent = extent_of(op)
    trains = op.workload.phase == "train" and extent.is_whole
    with torch.inference_mode(False), torch.set_grad_enabled(trains):
        chosen = _choices(op, extent)
        twin = Twin(op, extent.num_sequences, extent.num_tokens)
        exact = _computed(op, op.inputs.network, twin, extent, chosen)
        found = _found(op, extent, output)
    bound = bound_of(
        op.workload, extent.num_layers, _widest(op.inputs.network), twin.spread.largest
    )
    other = gradient_bound(op.workload, bound, op.inputs.network) if trains else bound
    bounds = [bound, *[other] * (len(found) - 1)]
    worst = max(
        (worst_row(*one) for one in zip(found, exact, bounds, strict=True)),
        key=lambda pair: pair[0] / pair[1],
    )
    passed = worst[0] <= worst[1] and twin.worst_gap <= bound
    lost = rms_error(found[0], exact[0])
    if op.workload.kv_dtype is not None or op.workload.weight_dtype is not None:
        unrounded = _unrounded(op, extent, chosen)
        lost = rms_error(found[0], unrounded)
        passed = passed and lost <= bound + _stored_bound(op.workload, extent.num_layers)
    return Check(
        passed=passed,
        max_abs_error=worst[0] if math.isfinite(worst[0]) else None,
        bound=worst[1],
        rows=max(one.shape[0] for one in found),
        reference=extent.words(op.workload),
        rms_error=lost if math.isfinite(lost) else None,
    )


def worst_row(found: torch.Tensor, exact: torch.Tensor, bound: float) -> tuple[float, float]:
    """Error and bound of the row that is the worst.

        bound · √(rms² + 4 · median² / n)

    of a row of n elements, with the median of all rows' root mean squares: a short row can be
    small by chance, though what it is made of is not.
    """
    found, exact = (one.double().reshape(-1, one.shape[-1]) for one in (found, exact))
    errors = (found.to(exact.device) - exact).square().mean(-1).sqrt()
    errors = errors.nan_to_num(nan=math.inf, posinf=math.inf)
    squares = exact.square().mean(-1)
    bounds = bound * (squares + 4 * squares.median() / exact.shape[-1]).sqrt()
    bounds += torch.finfo(torch.float32).tiny
    at = int((errors / bounds).argmax())
    return float(errors[at]), float(bounds[at])


def _computed(
    op: "ScopeOperation", network: Network, twin: Twin, extent: Extent,
    chosen: dict[int, torch.Tensor],
) -> list[torch.Tensor]:  # fmt: skip
    """The twin's rows, and of a whole training step its gradients in the order of the call's."""
    step, given = twin.step(), twin.given(op.inputs.given)
    trains = op.workload.phase == "train" and extent.is_whole
    leaves = [one.requires_grad_() for one in given if trains and one.is_floating_point()]
    shell = None
    if isinstance(network, Transformer) and network.head is not None and extent.is_whole:
        shell = twin.around(network)
    if op.inputs.source is not None:
        own = op.step_of(op.inputs).segments[0].source
        assert own is not None
        if shell is None or twin.rounds:
            made = twin.of_source(own)
        else:
            made = twin.encoded(shell, op.inputs.source)
        step.segments = tuple(replace(one, source=made) for one in step.segments)
    x = twin.embedded(network, given, step, shell)
    layers = []
    for layer in twin.layers(network, extent.num_layers, chosen):
        x = layer(x, step)
        layers += [layer] if trains else []
    if shell is not None and _gives_last(op):
        return [shell.logits(last_rows(x, step), step), x]
    if shell is not None:
        x = shell.logits(x, step)
    if not trains:
        return [x]
    assert op.inputs.gradient is not None
    torch.autograd.backward(x, op.inputs.gradient.double().to(x.device))
    return [x.detach(), *_gradients(leaves, [*layers, *([] if shell is None else [shell])])]


def _gives_last(op: "ScopeOperation") -> bool:
    """Whether a call gives logits of last tokens alone; the states of all are compared as well."""
    from attnprof.workloads.scopes import wants_last

    network = op.inputs.network
    has_head = isinstance(network, Transformer) and network.head is not None
    return has_head and wants_last(op.workload)


def _found(op: "ScopeOperation", extent: Extent, output: torch.Tensor) -> list[torch.Tensor]:
    """What the call gave, where the twin gives it too."""
    inputs, network = op.inputs, op.inputs.network
    segments = inputs.segments
    if not extent.is_whole:
        return [_states(op, extent)]
    if _gives_last(op):
        last = [replace(one, num_tokens=1) for one in segments]
        return [output[kept_rows(last, extent)], _states(op, extent)]
    if op.workload.phase != "train":
        return [output[kept_rows(segments, extent)]]
    has_head = isinstance(network, Transformer) and network.head is not None
    states = [one for one in inputs.given if one.requires_grad]
    parts: list[nn.Module] = list(network.blocks)
    if has_head:
        parts.append(network)
    return [output, *_gradients(states, parts)]


def _states(op: "ScopeOperation", extent: Extent) -> torch.Tensor:
    """The call's states after some layers, of the rows that the twin has."""
    network, inputs = op.inputs.network, op.inputs
    with op.pinned(), torch.no_grad():
        step = op.step_of(inputs)
        x = network.embedded(inputs.given, step)
        for block in network.blocks[: extent.num_layers]:
            x = block(x, step)
    return x[kept_rows(inputs.segments, extent)]


def _gradients(states: Sequence[torch.Tensor], parts: Sequence[nn.Module]) -> list[torch.Tensor]:
    """Gradients of each part's weights, all in one row, the first with those of states.

    Some alone nearly cancel, as those of queries do where a softmax is sharp, or what reaches a
    state through its query: what is lost of them is little of their layer's. What comes after
    other parts has the weights that these have not.
    """
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    first = [one.grad.flatten().double() for one in states if one.grad is not None]
    for part in parts:
        own = [one for one in part.parameters() if id(one) not in seen]
        seen.update(map(id, own))
        made = [one.grad.flatten().double() for one in own if one.grad is not None]
        found.append(torch.cat([*first, *made])[None])
        first = []
    return found


def kept_rows(segments: Sequence[Segment], extent: Extent) -> torch.Tensor:
    """Which rows of a call the twin has: of the first sequences, the first tokens."""
    found, start = [], 0
    for segment in segments:
        rows = torch.arange(segment.num_rows).view(segment.batch_size, segment.num_tokens)
        found.append(start + rows[: extent.num_sequences, : extent.num_tokens].flatten())
        start += segment.num_rows
    return torch.cat(found)


def _widest(network: Network) -> int:
    return max(weight.shape[-1] for weight in network.blocks.parameters())


def _unrounded(
    op: "ScopeOperation", extent: Extent, chosen: dict[int, torch.Tensor]
) -> torch.Tensor:
    """The twin's rows with weights and cached keys that were never stored as anything narrower."""
    network = op.inputs.network
    if op.workload.weight_dtype is not None:
        plain = replace(op.workload, weight_dtype=None)
        fresh = build_network(plain, op.device, op.seed)
        pairs = zip(network.modules(), fresh.modules(), strict=True)
        chosen = {id(new): chosen[id(old)] for old, new in pairs if id(old) in chosen}
        network = fresh
    with torch.inference_mode(False), torch.no_grad():
        twin = Twin(op, extent.num_sequences, extent.num_tokens, exact=True)
        return _computed(op, network, twin, extent, chosen)[0]


def _choices(op: "ScopeOperation", extent: Extent) -> dict[int, torch.Tensor]:
    """The experts that a call chooses for the twin's rows, by module."""
    network = op.inputs.network
    parts = [one for one in network.blocks.modules() if isinstance(one, MixtureOfExperts)]
    if not parts:
        return {}
    found: dict[int, torch.Tensor] = {}
    rows = kept_rows(op.inputs.segments, extent)
    with _recorded(parts, found), torch.no_grad(), op.pinned():
        network.run(op.inputs.given, op.step_of(op.inputs))
    return {key: chosen[rows.to(chosen.device)] for key, chosen in found.items()}


@contextmanager
def _recorded(parts: Sequence[MixtureOfExperts], found: dict[int, Any]) -> Iterator[None]:
    def recording(part: MixtureOfExperts) -> Any:
        def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            chosen, weights = MixtureOfExperts.route(part, x)
            found[id(part)] = chosen
            return chosen, weights

        return route

    for part in parts:
        object.__setattr__(part, "route", recording(part))
    try:
        yield
    finally:
        for part in parts:
            object.__delattr__(part, "route")
