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
    sequences go at once.
    """
    plan = PLANNERS[deployment.engine.kind](deployment)
    if any(
        layer.cross is not None or layer.cache_kind != "none"
        for layer in deployment.model.layer_groups()
    ):
        return plan
    limit = plan.settings.get("max_num_seqs")
    return replace(
        plan,
        bytes_per_sequence=0,
        num_blocks=0,
        kv_tokens=0,
        max_concurrency=float(limit if isinstance(limit, int) else 1) * deployment.dp,
        max_context_len=deployment.model.max_position_embeddings or deployment.max_model_len,
        notes=(*plan.notes, "the model keeps no cache: the scheduler bounds sequences at once"),
    )
