"""A call of the library's class -> whether it is right: held against our plain model in float64,
which is given the class's weights and cached keys."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnprof.measured import Check
from attnprof.models.architecture import Experts
from attnprof.workload import Workload
from attnprof.workloads.compared import (
    MAX_FLOPS,
    MAX_OUTER_BYTES,
    bound_of,
    gradient_bound,
    worst_row,
)
from attnprof.workloads.networks import architecture_for, held_caches
from attnprof.workloads.precision import rms_error
from attnprof.workloads.transformer.loading import load_transformers_weights
from attnprof.workloads.transformer.model import Transformer, build_transformer
from attnprof.workloads.twin import Spread, TwinKernels

if TYPE_CHECKING:
    from attnprof.workloads.library import LibraryOperation


def held_against_plain(op: "LibraryOperation", output: torch.Tensor) -> Check:
    """Compare the class's logits, and in training the gradient of its embedding, with ours.

    Where float64 has no room or takes too long, a class of fewer layers or tokens is compared. A
    mixture of experts in halves is compared in float32: where two experts score alike, rounding
    chooses between them.
    """
    from attnprof.workloads.library import LibraryOperation

    smaller, words = _affordable(op.workload, op.weight_bytes)
    if smaller != op.workload:
        with torch.inference_mode(False):
            other = LibraryOperation(smaller, op.device, op.seed)
            check = other.check()
        return replace(check, reference=f"{check.reference}, of {', '.join(words)}")
    trains = op.workload.phase == "train"
    with torch.inference_mode(False), torch.set_grad_enabled(trains):
        ours = _plain_model(op)
        exact, found = [_logits(op, ours)], [output]
        if trains:
            assert op.inputs.gradient is not None
            gradient = op.inputs.gradient.double().flatten(0, 1).to(exact[0].device)
            torch.autograd.backward(exact[0], gradient)
            pairs = (ours.embedding, op.inputs.model.get_input_embeddings())
            for rows, one in zip((exact, found), pairs, strict=True):
                assert one.weight.grad is not None
                rows.append(one.weight.grad.reshape(1, -1))
    kernels = ours.kernels
    assert isinstance(kernels, TwinKernels)
    width = max(weight.shape[-1] for weight in ours.blocks.parameters())
    bound = bound_of(op.workload, op.workload.num_layers, width, kernels.spread.largest)
    bounds = (bound, gradient_bound(op.workload, bound, ours))
    worst = max(
        (worst_row(a, b.detach(), c) for a, b, c in zip(found, exact, bounds, strict=False)),
        key=lambda pair: pair[0] / pair[1],
    )
    lost = rms_error(output, exact[0].detach())
    return Check(
        passed=worst[0] <= worst[1],
        max_abs_error=worst[0] if math.isfinite(worst[0]) else None,
        bound=worst[1],
        rows=output.shape[0],
        reference="our plain model in float64",
        rms_error=lost if math.isfinite(lost) else None,
    )


def _affordable(workload: Workload, weight_bytes: int) -> tuple[Workload, list[str]]:
    """A workload whose float64 counterpart has room and takes seconds, and what it is less."""
    from attnprof.dtypes import dtype_named
    from attnprof.theory.scopes import scope_flops

    words = []
    smaller = workload
    blocks = architecture_for(workload).blocks
    has_experts = any(isinstance(block.ffn, Experts) for block in blocks)
    if has_experts and dtype_named(workload.dtype).bytes < 4:
        smaller = replace(smaller, dtype="float32")
        words.append("the class in float32")
    of_weight = 8 / dtype_named(workload.dtype).bytes
    share = min(
        1.0, 2 * MAX_OUTER_BYTES / (of_weight * weight_bytes), MAX_FLOPS / scope_flops(smaller)
    )
    num_layers = max(1, int(share * workload.num_layers))
    if num_layers < workload.num_layers:
        smaller = replace(smaller, num_layers=num_layers)
        words.append(f"{num_layers} of {workload.num_layers} layers")
    while smaller.q_len > 16 and scope_flops(smaller) > MAX_FLOPS:
        shorter = smaller.q_len // 2
        kv_len = smaller.kv_len - smaller.q_len + shorter
        smaller = replace(smaller, q_len=shorter, kv_len=kv_len)
    if smaller.q_len < workload.q_len:
        words.append(f"{smaller.q_len} tokens")
    return smaller, words


def _plain_model(op: "LibraryOperation") -> Transformer:
    """Our model in float64 with the weights of the class."""
    exact = replace(
        op.workload, dtype="float64", backend="eager", implementation="plain", kv_cache="contiguous"
    )
    where = torch.device("cpu") if op.device.type in ("mps", "xpu") else op.device
    ours = build_transformer(architecture_for(op.workload), exact, where, op.seed)
    state = {name: one.detach() for name, one in op.inputs.model.state_dict().items()}
    load_transformers_weights(ours, state)
    kernels = TwinKernels(exact, where)
    kernels.spread = Spread()
    ours.kernels = kernels
    ours.requires_grad_(op.workload.phase == "train")
    return ours


def _logits(op: "LibraryOperation", ours: Transformer) -> torch.Tensor:
    from attnprof.workloads.scopes import wants_last

    workload = ours.kernels.workload
    held_len = workload.kv_len - workload.q_len
    caches = None
    if held_len:
        pairs = [(k.double(), v.double()) for k, v in op.pairs]
        caches = held_caches(workload, ours, pairs)
    tokens = op.inputs.tokens.to(ours.kernels.device)
    last = wants_last(op.workload)
    logits = ours.forward(tokens, caches, held_len, keeps=False, last_only=last)
    return logits.flatten(0, 1)
