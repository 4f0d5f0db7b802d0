"""The engine's kind -> the function that plans its memory."""

from collections.abc import Callable
from dataclasses import replace

from attnprof.engines import llama_cpp, ollama, sglang, share, vllm
from attnprof.engines.base import Deployment, MemoryPlan

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


def plan_memory(deployment: Deployment) -> MemoryPlan:
    """Split one GPU's memory as the deployment's engine does.

    A model that keeps nothing (an encoder) has no cache to fill: the scheduler says how many
    sequences go at once, and of an engine without such a limit nothing is known but that one fits.
    """
    plan = PLANNERS[deployment.engine.kind](deployment)
    spec = deployment.model
    if any(layer.cross or layer.cache_kind != "none" for layer in spec.layer_groups()):
        return plan
    limit = plan.settings.get("max_num_seqs")
    at_once = limit * deployment.dp if isinstance(limit, int) else deployment.dp
    bound = "the scheduler bounds" if isinstance(limit, int) else "activations bound, unknown here,"
    return replace(
        plan,
        kv_bytes=min(0, plan.kv_bytes),
        bytes_per_sequence=0,
        num_blocks=0,
        kv_tokens=0,
        max_concurrency=float(at_once) if plan.kv_bytes >= 0 else 0.0,
        max_context_len=spec.max_position_embeddings or deployment.max_model_len,
        notes=(
            f"{spec.name} is an encoder: it keeps no cache and writes no tokens; {bound} how many "
            "sequences it reads at once",
        ),
    )
