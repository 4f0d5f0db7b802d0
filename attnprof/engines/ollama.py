"""Ollama: the estimates by which it places layers, and the cache that it asks llama.cpp for."""

import math

from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.llama_cpp import Cells, kv_bytes
from attnprof.engines.weights import rank_weight_bytes
from attnprof.models.spec import ModelSpec

GEMMA_TYPES = ("gemma",)
DEEPSEEK_TYPES = ("deepseek",)
HIDDEN_TERMS = {"llama": 4, "mistral": 4, "mixtral": 4, "qwen2": 2, "qwen3": 2}


def cells(
    spec: ModelSpec, num_ctx: int, parallel: int, *, batch: int, windows: bool, latent: bool,
    kv_dtype: str = "float16",
) -> Cells:  # fmt: skip
    """The cells that Ollama asks for: ``num_ctx`` for each of ``parallel`` requests.

    Sliding layers hold window times parallel plus a batch, not padded.
    """
    return Cells(
        ctx_size=num_ctx * parallel,
        parallel=parallel,
        ubatch=batch,
        k_dtype=kv_dtype,
        v_dtype=kv_dtype,
        unified=True,
        windows=windows,
        mla=None if latent else 0,
        padding=1,
    )


def graph_bytes(
    spec: ModelSpec, ctx_size: int, *, batch: int = 512, vocab_in_graph: bool = True
) -> float | None:
    """Ollama's estimate of the compute graph when all layers are on GPUs. [bytes]

        Llama: max(4 · b · (1 + 4 · H + ctx · (1 + heads)), 4 · b · (H + V))
        Gemma: max(4 · b · (H + V), 4 · b · (2 + ctx + ctx · heads + 2 · H + 2 · d · heads))
        DeepSeek: max(4 · b · (3 · H + V), 4 · b · (3 · H + 2 + ctx · (1 + heads) + 2 · d · heads))
        Qwen: as Llama, with 2 · H

    None for other families, whose rules are not known here.

    Source:
        Ollama's GraphSize (fs/ggml); logged values to 0.1 MiB.
    """
    attention = next((layer.attention for layer in spec.layers if layer.attention), None)
    if attention is None:
        return None
    heads, hidden = attention.num_q_heads, spec.hidden_size
    logits = 4.0 * batch * (hidden + spec.vocab_size)
    if spec.model_type.startswith(GEMMA_TYPES):
        width = 2 * attention.head_dim * heads
        return max(logits, 4.0 * batch * (2 + ctx_size * (1 + heads) + 2 * hidden + width))
    if spec.model_type.startswith(DEEPSEEK_TYPES):
        width = 3 * hidden + 2 + ctx_size * (1 + heads) + 2 * attention.head_dim * heads
        return max(4.0 * batch * (3 * hidden + spec.vocab_size), 4.0 * batch * width)
    if spec.model_type not in HIDDEN_TERMS:
        return None
    scores = 4.0 * batch * (1 + HIDDEN_TERMS[spec.model_type] * hidden + ctx_size * (1 + heads))
    return max(scores, logits) if vocab_in_graph else scores


def plan(deployment: Deployment) -> MemoryPlan:
    """What Ollama reckons that one GPU holds with all layers on it."""
    engine, gpus = deployment.engine, deployment.tp * deployment.pp
    batch = deployment.max_num_batched_tokens or int(engine.number("batch_tokens"))
    one = cells(
        deployment.model,
        deployment.max_model_len,
        1,
        batch=batch,
        windows=engine.flag("windows"),
        latent=engine.flag("latent_cache"),
        kv_dtype="float16" if deployment.kv_dtype == "auto" else deployment.kv_dtype,
    )
    graph = graph_bytes(
        deployment.model, one.ctx_size, batch=batch, vocab_in_graph=engine.flag("vocab_in_graph")
    )
    notes = ["estimates for placing layers: what llama.cpp then takes differs"]
    if graph is None:
        notes.append(f"the graph of {deployment.model.model_type} is not known and left out")
    weights = rank_weight_bytes(deployment)
    activation = round((graph or 0.0) * (engine.overheads.activation_scale or 1.0))
    runtime = engine.overheads.runtime_bytes
    if runtime is None:
        runtime = round(engine.number("context_bytes"))
    kv = deployment.total_bytes - weights - activation - runtime
    each = kv_bytes(deployment.model, one) / gpus
    concurrency = math.floor(max(0, kv) / each) if each else 0
    per_token = each / deployment.max_model_len
    tokens = math.floor(max(0, kv) / per_token) if per_token else 0
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
        max_concurrency=concurrency * deployment.dp,
        max_context_len=tokens,
        settings={"batch": batch},
        notes=tuple(notes),
    )
