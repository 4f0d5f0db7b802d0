"""One sequence's cache -> its bytes: the ideal, the engine's, and those without windows."""

import math
from dataclasses import dataclass, replace

from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.pool import cache_entries
from attnprof.engines.vllm import state_element_bytes


@dataclass(frozen=True)
class KvSizes:
    """Bytes that one sequence's cache is, by who counts, over all ranks of a replica.

    ``ideal_bytes`` holds what attention can still read, ``admitted_bytes`` what the engine sets
    aside, ``windowless_bytes`` what a formula says that ignores windows and chunks.
    """

    bytes_per_token: float
    bytes_per_token_per_rank: float
    ideal_bytes: int
    admitted_bytes: int
    windowless_bytes: int
    state_bytes: int


def kv_sizes(deployment: Deployment, plan: MemoryPlan) -> KvSizes:
    """One sequence's cache: the ideal, what the engine admits, and what ignoring windows says."""
    spec, context = deployment.model, deployment.max_model_len
    ideal = growth = windowless = state = 0.0
    stage_growth = 0.0
    stage = math.ceil(len(spec.layers) / deployment.pp)
    in_float32 = deployment.engine.kind in ("llama-cpp", "ollama")
    state_size = 4.0 if in_float32 else state_element_bytes(deployment)
    expands = not deployment.engine.constants.get("latent_cache", True)
    for index, layer in enumerate(spec.layers):
        one = replace(spec, layers=(layer,))
        for entry in cache_entries(
            one, tp=deployment.tp, element_bytes=deployment.element_bytes,
            conv_bytes=deployment.dtype_bytes, state_element_bytes=state_size,
            expand_latent=expands,
        ):  # fmt: skip
            if entry.kind == "none":
                continue
            held = min(context, entry.window_len) if entry.window_len else context
            if entry.kind == "cross":
                held = spec.max_source_len or context
            elif entry.bytes_per_token and (not entry.window_len or context <= entry.window_len):
                growth += entry.bytes_per_token
                stage_growth += entry.bytes_per_token if index < stage else 0.0
            ideal += entry.bytes_per_token * held + entry.state_bytes
            windowless += entry.bytes_per_token * (held if entry.kind == "cross" else context)
            state += entry.state_bytes
    ranks = deployment.tp
    return KvSizes(
        bytes_per_token=growth * ranks,
        bytes_per_token_per_rank=stage_growth,
        ideal_bytes=round(ideal * ranks),
        admitted_bytes=round(
            plan.bytes_per_sequence * ranks * len(spec.layers) / max(1, stage)
            if deployment.pp > 1
            else plan.bytes_per_sequence * ranks
        ),
        windowless_bytes=round((windowless + state) * ranks),
        state_bytes=round(state * ranks),
    )
