"""The engine's kind -> the function that plans its memory."""

from collections.abc import Callable
from dataclasses import replace

from attnprof.engines import llama_cpp, ollama, sglang, share, vllm
from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.models.spec import ModelSpec

PLANNERS: dict[str, Callable[[Deployment], MemoryPlan]] = {
    "vllm": vllm.plan,
    "sglang": sglang.plan,
    "tensorrt-llm": share.plan,
    "lmdeploy": share.plan,
    "tgi": share.plan,
    "llama-cpp": llama_cpp.plan,
    "ollama": ollama.plan,
    "torch": share.torch_plan,
}


def keeps_cache(spec: ModelSpec) -> bool:
    """Whether the model keeps anything of what it has read: an encoder does not."""
    return any(layer.cross or layer.cache_kind != "none" for layer in spec.layer_groups())


def uncached_sequences(deployment: Deployment, plan: MemoryPlan) -> float:
    """Sequences that a model without a cache reads at once: the scheduler's limit, if any."""
    limit = plan.settings.get("max_num_seqs")
    return float((limit if isinstance(limit, int) else 1) * deployment.dp)


def plan_memory(deployment: Deployment) -> MemoryPlan:
    """Split one GPU's memory as the deployment's engine does.

    A model that keeps nothing (an encoder) has no cache to fill: the scheduler says how many
    sequences go at once, and of an engine without such a limit nothing is known but that one fits.
    """
    plan = PLANNERS[deployment.engine.kind](deployment)
    spec = deployment.model
    if keeps_cache(spec):
        return plan
    is_scheduled = isinstance(plan.settings.get("max_num_seqs"), int)
    bound = "the scheduler bounds" if is_scheduled else "activations bound, unknown here,"
    return replace(
        plan,
        kv_bytes=min(0, plan.kv_bytes),
        bytes_per_sequence=0,
        num_blocks=0,
        kv_tokens=0,
        max_concurrency=uncached_sequences(deployment, plan) if plan.kv_bytes >= 0 else 0.0,
        max_context_len=spec.max_position_embeddings or deployment.max_model_len,
        notes=(
            f"{spec.name} is an encoder: it keeps no cache and writes no tokens; {bound} how many "
            "sequences it reads at once",
        ),
    )
