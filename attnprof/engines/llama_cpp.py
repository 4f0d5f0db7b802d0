"""llama.cpp and its forks: a cache of as many cells as the context, whatever the memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnprof.engines.base import (
    Deployment,
    MemoryPlan,
    cached_element_bytes,
    longest_within,
)
from attnprof.engines.weights import rank_weight_bytes, stage_layers
from attnprof.models.spec import Attention, ModelSpec

STATE_ELEMENT_BYTES = 4
"""Recurrent states and convolutions are kept in float32."""

UNWINDOWED_TYPES = ("phi3", "phimoe", "mistral", "ministral", "mixtral", "qwen", "starcoder2")
"""Families whose windows llama.cpp does not use: it caches and reads their full context.

Source:
    llama.cpp's src/models/phi3.cpp; its converters write no window for the others.
"""


@dataclass(frozen=True)
class Cells:
    """How much context a server of llama.cpp holds, and how.

    ``ctx_size`` is that of all slots together; each has its own stream of cells unless the cache
    is ``unified``. ``mla`` is ik_llama.cpp's mode: 1 keeps a transposed copy of the latent, 0
    stores keys and values of all heads, None what the version does.
    """

    ctx_size: int
    parallel: int = 1
    ubatch: int = 512
    k_dtype: str = "float16"
    v_dtype: str = "float16"
    unified: bool = False
    windows: bool = True
    mla: int | None = None
    padding: int = 256
    num_draft_tokens: int = 0


def window_cells(window_len: int, cells: Cells) -> int:
    """Cells of one sliding layer: the window and a micro-batch for each stream. [tokens]

        streams · min(ctx / streams, pad(window · slots a stream + ubatch))

    >>> window_cells(512, Cells(ctx_size=4096, parallel=2))
    2048
    """
    if not cells.windows:
        return cells.ctx_size
    streams = 1 if cells.unified else cells.parallel
    held = window_len * (cells.parallel // streams) + cells.ubatch
    padded = math.ceil(held / cells.padding) * cells.padding
    return streams * min(cells.ctx_size // streams, padded)


def _elements(attention: Attention, mla: int | None) -> tuple[int, int]:
    if attention.kind != "mla":
        return attention.cached_elements()
    if mla == 0:
        heads = attention.num_q_heads
        return heads * attention.head_dim, heads * attention.v_head_dim
    latent, _ = attention.cached_elements()
    return latent + (attention.kv_lora_rank if mla == 1 else 0), 0


def kv_bytes(spec: ModelSpec, cells: Cells) -> float:
    """Bytes of the keys and values of all slots. [bytes]

        Σ layers · cells · (k elements · bytes of K + v elements · bytes of V)

    >>> from attnprof.models.spec import Layer
    >>> layer = Layer(attention=Attention("full", 32, 8, 128, 128))
    >>> spec = ModelSpec("llama-3-8b", "llama", "", 4096, 128256, (layer,) * 32)
    >>> kv_bytes(spec, Cells(2048)) / 2**20
    256.0
    """
    k_bytes = cached_element_bytes(cells.k_dtype, "float16")
    v_bytes = cached_element_bytes(cells.v_dtype, "float16")
    total = 0.0
    for layer in spec.layers:
        attention = layer.attention
        if attention is None or attention.reads_other_layer:
            continue
        keys, values = _elements(attention, cells.mla)
        held: float = cells.ctx_size
        if attention.window_len is not None:
            held = window_cells(attention.window_len, cells)
        if attention.tokens_per_entry > 1:
            held += cells.ctx_size / attention.tokens_per_entry
        total += held * (keys * k_bytes + values * v_bytes)
    return total


def state_bytes(spec: ModelSpec, cells: Cells) -> float:
    """Bytes of the recurrent states of all slots, one for each draft position too. [bytes]"""
    elements = sum(sum(layer.mixer.state_elements()) for layer in spec.layers if layer.mixer)
    return elements * STATE_ELEMENT_BYTES * cells.parallel * (1 + cells.num_draft_tokens)


def compute_bytes(
    spec: ModelSpec, cells: Cells, *, flash_attention: bool = True, hidden_copies: int = 2
) -> float:
    """Bytes of the compute buffer. [bytes]

        (V + n · H) · ubatch · 4, or without flash attention heads · ctx · ubatch · 4 if larger

    Logit soft-capping doubles the vocabulary's term.
    """
    vocab = spec.vocab_size * (2 if spec.logit_softcap else 1)
    logits = (vocab + hidden_copies * spec.hidden_size) * cells.ubatch * 4.0
    if flash_attention:
        return logits
    heads = max((la.attention.num_q_heads for la in spec.layers if la.attention), default=0)
    return max(logits, heads * cells.ctx_size * cells.ubatch * 4.0)


def uses_windows(deployment: Deployment) -> bool:
    """Whether sliding layers hold their window alone: by version, and by family."""
    is_plain = deployment.model.model_type.startswith(UNWINDOWED_TYPES)
    return deployment.engine.flag("windows") and not is_plain


def cells_of(deployment: Deployment, ctx_size: int, parallel: int) -> Cells:
    """The cells of a deployment, by its version."""
    engine = deployment.engine
    kv_dtype = "float16" if deployment.kv_dtype == "auto" else deployment.kv_dtype
    return Cells(
        ctx_size=ctx_size,
        parallel=parallel,
        ubatch=deployment.max_num_batched_tokens or int(engine.number("ubatch_tokens")),
        k_dtype=kv_dtype,
        v_dtype=deployment.v_dtype or kv_dtype,
        windows=uses_windows(deployment),
        mla=None if engine.flag("latent_cache") else 0,
        padding=int(engine.number("cell_padding")),
        num_draft_tokens=deployment.num_draft_tokens,
    )


def sequence_bytes(deployment: Deployment, cells: Cells) -> float:
    """What the cells cost on the GPU that holds most layers: they go to it whole. [bytes]"""
    stage = stage_layers(deployment.model, deployment.pp)
    return kv_bytes(stage, cells) + state_bytes(stage, cells)


def plan(deployment: Deployment) -> MemoryPlan:
    """What one GPU holds with every layer on one, and how many sequences that leaves room for."""
    engine = deployment.engine
    one = cells_of(deployment, deployment.max_model_len, 1)
    compute = compute_bytes(
        deployment.model,
        one,
        flash_attention=deployment.flash_attention,
        hidden_copies=int(engine.number("compute_hidden_copies")),
    )
    return plan_cells(
        deployment,
        lambda context: cells_of(deployment, context, 1),
        compute,
        settings={"ubatch_size": one.ubatch, "flash_attention": deployment.flash_attention},
        notes=("the cache is as large as --ctx-size says; capacity is what would fit",),
    )


def plan_cells(
    deployment: Deployment,
    cells_at: Callable[[int], Cells],
    compute: float,
    *,
    settings: dict[str, object],
    notes: tuple[str, ...],
) -> MemoryPlan:
    """Room left by weights, compute buffer and context, over what one sequence costs.

    The engine itself takes the context as told and fails when it does not fit. More GPUs split
    the layers (``--split-mode layer``).

    Args:
        cells_at: The cells of one sequence of so many tokens.
        compute: Bytes of the compute buffer.
    """
    engine = deployment.engine
    weights = rank_weight_bytes(deployment)
    activation = round(compute * (engine.overheads.activation_scale or 1.0))
    runtime = engine.overheads.runtime_bytes
    if runtime is None:
        runtime = round(engine.number("context_bytes"))
    kv = deployment.total_bytes - weights - activation - runtime
    each = sequence_bytes(deployment, cells_at(deployment.max_model_len))
    concurrency = max(0, kv) / each if each else 0.0
    tokens = math.floor(concurrency * deployment.max_model_len)

    def held(context: int) -> float:
        return sequence_bytes(deployment, cells_at(context))

    return MemoryPlan(
        total_bytes=deployment.total_bytes,
        usable_bytes=deployment.total_bytes,
        weight_bytes=weights,
        activation_bytes=activation,
        graph_bytes=0,
        runtime_bytes=runtime,
        kv_bytes=kv,
        bytes_per_sequence=round(each),
        block_tokens=1,
        num_blocks=tokens,
        kv_tokens=tokens * deployment.dp,
        max_concurrency=math.floor(concurrency) * deployment.dp,
        max_context_len=longest_within(kv, held, deployment.longest_context) if each else 0,
        settings=settings,
        notes=notes,
    )
