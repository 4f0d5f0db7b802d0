"""Ollama: the estimates by which it places layers, and the cache that it asks llama.cpp for."""

from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.llama_cpp import Cells, compute_bytes, plan_cells, uses_windows
from attnprof.models.spec import ModelSpec

GEMMA_TYPES = ("gemma",)
DEEPSEEK_TYPES = ("deepseek",)
HIDDEN_TERMS = {"llama": 4, "mistral": 4, "mixtral": 4, "qwen2": 2, "qwen3": 2}


def cells(deployment: Deployment, num_ctx: int, parallel: int, *, batch: int) -> Cells:
    """The cells that Ollama asks for: ``num_ctx`` for each of ``parallel`` requests.

    Sliding layers hold window times parallel plus a batch, not padded.
    """
    kv_dtype = "float16" if deployment.kv_dtype == "auto" else deployment.kv_dtype
    return Cells(
        ctx_size=num_ctx * parallel,
        parallel=parallel,
        ubatch=batch,
        k_dtype=kv_dtype,
        v_dtype=kv_dtype,
        unified=True,
        windows=uses_windows(deployment),
        mla=None if deployment.engine.flag("latent_cache") else 0,
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
    engine, spec = deployment.engine, deployment.model
    batch = deployment.max_num_batched_tokens or int(engine.number("batch_tokens"))
    graph = graph_bytes(
        spec, deployment.max_model_len, batch=batch, vocab_in_graph=engine.flag("vocab_in_graph")
    )
    notes = ["estimates for placing layers: what llama.cpp then takes differs"]
    if graph is None:
        graph = compute_bytes(spec, cells(deployment, deployment.max_model_len, 1, batch=batch))
        notes.append(
            f"Ollama's rule for the graph of {spec.model_type} is not known here: "
            "llama.cpp's compute buffer stands in for it"
        )
    return plan_cells(
        deployment,
        lambda context: cells(deployment, context, 1, batch=batch),
        graph,
        settings={"batch": batch},
        notes=tuple(notes),
    )
