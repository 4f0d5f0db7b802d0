"""The engine's kind -> the function that plans its memory."""

from collections.abc import Callable

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
    """Split one GPU's memory as the deployment's engine does."""
    return PLANNERS[deployment.engine.kind](deployment)
