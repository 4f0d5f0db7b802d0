"""One sequence's cache -> its bytes: the ideal, the engine's, and those without windows."""

from dataclasses import dataclass

from attnprof.engines.base import SPLITS_LAYERS, Deployment, MemoryPlan
from attnprof.engines.llama_cpp import uses_windows
from attnprof.engines.pool import CacheEntry, cache_entries
from attnprof.engines.profile import engine_named
from attnprof.engines.vllm import state_element_bytes
from attnprof.engines.weights import stage_layers
from attnprof.models.spec import ModelSpec

DEFAULT_ENGINE = "vllm"


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


@dataclass(frozen=True)
class CacheSums:
    """Bytes of one rank's cache for one sequence, layer by layer added up.

    ``growth`` is what one more token adds at the full context, ``windowless`` what a formula says
    that ignores windows and chunks, ``state`` the part that does not grow.
    """

    growth: float
    ideal: float
    windowless: float
    state: float


def growing_share(deployment: Deployment, entry: CacheEntry) -> float:
    """The share of a layer's bytes that one more token takes at the full context.

    A window that is full grows no more, where the engine lets it hold less than the context;
    SGLang's window pool holds a fixed ratio of the full pool's tokens.
    """
    engine = deployment.engine
    if entry.kind in ("cross", "state"):
        return 0.0
    if entry.window_len is None:
        return 1.0
    if engine.kind == "sglang":
        return engine.number("swa_full_tokens_ratio")
    if engine.kind in SPLITS_LAYERS:
        slides = uses_windows(deployment)
    else:
        slides = engine.kind == "vllm" and engine.flag("hybrid_groups")
    return 0.0 if slides and deployment.max_model_len > entry.window_len else 1.0


def _sums(deployment: Deployment, spec: ModelSpec, source_len: int) -> CacheSums:
    context = deployment.max_model_len
    is_ggml = deployment.engine.kind in SPLITS_LAYERS
    growth = ideal = windowless = state = 0.0
    entries = cache_entries(
        spec,
        tp=deployment.tp,
        element_bytes=deployment.element_bytes,
        conv_bytes=4.0 if is_ggml else deployment.dtype_bytes,
        state_element_bytes=4.0 if is_ggml else state_element_bytes(deployment),
        expand_latent=not deployment.engine.constants.get("latent_cache", True),
    )
    for entry, count in entries.items():
        held = min(context, entry.window_len) if entry.window_len else context
        if entry.kind == "cross":
            held = source_len
        growth += growing_share(deployment, entry) * entry.bytes_per_token * count
        ideal += (entry.bytes_per_token * held + entry.state_bytes) * count
        windowless += entry.bytes_per_token * (held if entry.kind == "cross" else context) * count
        state += entry.state_bytes * count
    return CacheSums(growth, ideal, windowless + state, state)


def model_cache(spec: ModelSpec, context_len: int) -> CacheSums:
    """What one sequence keeps of a model on one GPU, in 16 bits, as ``estimate`` counts it.

    By the rules of the engine that ``estimate`` takes where none is named.

    >>> from attnprof.models import load_model
    >>> model_cache(load_model("gemma-3-27b"), 32768).growth  # 10 layers of 62 have no window
    81920.0
    """
    engine = engine_named(DEFAULT_ENGINE)
    placed = Deployment(spec, engine, 0, dtype="bfloat16", max_model_len=context_len)
    return _sums(placed, spec, spec.max_source_len or context_len)


def ideal_bytes(deployment: Deployment, source_len: int | None = None) -> int:
    """What attention can still read of one sequence, over all ranks of a replica. [bytes]

    Args:
        source_len: As of :func:`kv_sizes`.
    """
    source = source_len or deployment.model.max_source_len or deployment.max_model_len
    return round(_sums(deployment, deployment.model, source).ideal * deployment.tp)


def kv_sizes(deployment: Deployment, plan: MemoryPlan, source_len: int | None = None) -> KvSizes:
    """One sequence's cache: the ideal, what the engine admits, and what ignoring windows says.

    Args:
        source_len: Tokens that an encoder read; as many as it can, or as the context, when None.
    """
    ranks, spec = deployment.tp, deployment.model
    source = source_len or spec.max_source_len or deployment.max_model_len
    whole = stage = _sums(deployment, spec, source)
    share = 1.0
    if deployment.pp > 1:
        stage = _sums(deployment, stage_layers(spec, deployment.pp), source)
        share = whole.windowless / stage.windowless if stage.windowless else 1.0
    return KvSizes(
        bytes_per_token=whole.growth * ranks,
        bytes_per_token_per_rank=stage.growth,
        ideal_bytes=round(whole.ideal * ranks),
        admitted_bytes=round(plan.bytes_per_sequence * ranks * share),
        windowless_bytes=round(whole.windowless * ranks),
        state_bytes=round(whole.state * ranks),
    )
