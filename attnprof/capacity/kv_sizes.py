"""One sequence's cache -> its bytes: the ideal, the engine's, and those without windows."""

from dataclasses import dataclass

from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.pool import cache_entries
from attnprof.engines.vllm import state_element_bytes
from attnprof.engines.weights import stage_layers
from attnprof.models.spec import ModelSpec


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


SPLITS_LAYERS = ("llama-cpp", "ollama")
"""Engines that give whole layers to each GPU, so that no head is cut or copied."""


@dataclass(frozen=True)
class _Sums:
    """Bytes of one rank's cache for one sequence, layer by layer added up."""

    growth: float
    ideal: float
    windowless: float
    state: float


def _sums(deployment: Deployment, spec: ModelSpec, ranks: int) -> _Sums:
    context = deployment.max_model_len
    is_ggml = deployment.engine.kind in SPLITS_LAYERS
    growth = ideal = windowless = state = 0.0
    entries = cache_entries(
        spec,
        tp=ranks,
        element_bytes=deployment.element_bytes,
        conv_bytes=4.0 if is_ggml else deployment.dtype_bytes,
        state_element_bytes=4.0 if is_ggml else state_element_bytes(deployment),
        expand_latent=not deployment.engine.constants.get("latent_cache", True),
    )
    for entry, count in entries.items():
        held = min(context, entry.window_len) if entry.window_len else context
        if entry.kind == "cross":
            held = spec.max_source_len or context
        elif not entry.window_len or context <= entry.window_len:
            growth += entry.bytes_per_token * count
        ideal += (entry.bytes_per_token * held + entry.state_bytes) * count
        windowless += entry.bytes_per_token * (held if entry.kind == "cross" else context) * count
        state += entry.state_bytes * count
    return _Sums(growth, ideal, windowless + state, state)


def kv_sizes(deployment: Deployment, plan: MemoryPlan) -> KvSizes:
    """One sequence's cache: the ideal, what the engine admits, and what ignoring windows says."""
    spec, gpus = deployment.model, deployment.tp * deployment.pp
    ranks = 1 if deployment.engine.kind in SPLITS_LAYERS else deployment.tp
    whole = _sums(deployment, spec, ranks)
    stage = whole
    if deployment.pp > 1:
        stage = _sums(deployment, stage_layers(spec, deployment.pp), ranks)
    per_rank = stage.growth if ranks == deployment.tp else whole.growth / gpus
    copies = plan.bytes_per_sequence * gpus
    if ranks == deployment.tp and deployment.pp > 1:
        share = whole.windowless / stage.windowless if stage.windowless else 1.0
        copies = round(plan.bytes_per_sequence * ranks * share)
    return KvSizes(
        bytes_per_token=whole.growth * ranks,
        bytes_per_token_per_rank=per_rank,
        ideal_bytes=round(whole.ideal * ranks),
        admitted_bytes=copies,
        windowless_bytes=round(whole.windowless * ranks),
        state_bytes=round(whole.state * ranks),
    )
