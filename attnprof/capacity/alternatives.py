"""A request -> what each change to it, tried alone, would gain."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnprof.capacity.latency import batched_tokens, lengths
from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.base import SPLITS_LAYERS, Deployment, MemoryPlan, longest_within
from attnprof.engines.registry import plan_memory
from attnprof.errors import UsageError

DATA_PARALLEL = "data-parallel attention"
LEAST_CONTEXT = 256  # that is of use


@dataclass(frozen=True)
class Alternative:
    """One change to the request, tried: what then fits, and what that gains."""

    change: str
    fits: bool
    max_concurrency: float
    max_context_len: int
    gain: float | None
    """Concurrency over that of the request; None when the request holds none."""


def alternatives(
    request: EstimateRequest, deployment: Deployment, plan: MemoryPlan
) -> list[Alternative]:
    """Each change tried alone: a shorter context, an 8-bit cache, more GPUs, smaller weights."""
    spec, is_sglang = deployment.model, deployment.engine.kind == "sglang"

    def changes() -> Iterator[tuple[str, EstimateRequest]]:
        context = _shorter_context(request, deployment, plan)
        if context is not None:
            yield f"--max-model-len {context}", replace(request, max_model_len=context)
        if deployment.element_bytes > 1 and spec.kind != "encoder":
            name = "q8_0" if deployment.engine.kind in SPLITS_LAYERS else "fp8"
            yield f"--kv-dtype {name}", replace(request, kv_dtype=name)
        # In SGLang's writing tp counts the ranks of all groups that attend apart.
        groups = deployment.dp if deployment.dp_attention and is_sglang else 1
        ranks = deployment.tp * deployment.pp // request.pp
        more, twice = 2 * ranks * groups, 2 * deployment.num_gpus
        grown = replace(request, tp=more, dp=deployment.dp, num_gpus=twice)
        yield f"--gpus {twice} --tp {more}", grown
        if spec.kind == "mla" and deployment.tp > 1:
            groups = deployment.tp * deployment.dp
            flags = f"--gpus {deployment.num_gpus} --tp {groups} --dp {groups}"
            pooled = replace(request, tp=groups, dp=groups, num_gpus=deployment.num_gpus)
            yield f"{DATA_PARALLEL}: {flags}", pooled
        bits = spec.quantization.bits if spec.quantization is not None else 16
        splits = deployment.engine.kind in SPLITS_LAYERS
        for name in ("q8_0", "q4_k_m") if splits else ("fp8", "awq"):
            if (8 if name in ("fp8", "q8_0") else 4) < bits:
                yield f"--quantization {name}", replace(request, quantization=name)
        batched = batched_tokens(plan)
        if batched is not None and batched > 2048:
            yield (
                "--max-num-batched-tokens 2048",
                replace(request, max_num_batched_tokens=2048),
            )
        seqs = plan.settings.get("max_num_seqs")
        if isinstance(seqs, int) and seqs > 256:
            yield "--max-num-seqs 256", replace(request, max_num_seqs=256)

    tried = []
    for change, changed in changes():
        try:
            placed = deployment_of(changed)
            lengths(changed, placed)
            result = plan_memory(placed)
        except UsageError:
            continue  # ranks that do not divide the heads, or no room for the prompt: not to be had
        gain = result.max_concurrency / plan.max_concurrency if plan.max_concurrency else None
        tried.append(
            Alternative(change, result.fits, result.max_concurrency, result.max_context_len, gain)
        )
    return tried


def _shorter_context(
    request: EstimateRequest, deployment: Deployment, plan: MemoryPlan
) -> int | None:
    """Half the context where it fits; else the longest that does. [tokens]"""
    context = deployment.max_model_len
    if plan.fits:
        return context // 2 if context > 1024 else None

    def misses(length: int) -> float:
        placed = deployment_of(replace(request, max_model_len=length))
        return float(not plan_memory(placed).fits)

    longest = min(context - 1, deployment.model.max_position_embeddings or context)
    found = longest_within(0.0, misses, longest) if longest >= LEAST_CONTEXT else 0
    return found if found >= LEAST_CONTEXT else None
