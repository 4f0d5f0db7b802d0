"""vLLM: how it spends a GPU's memory, by version, and how many tokens its cache then holds."""

import math

from attnprof.engines.base import GIB, Deployment, MemoryPlan, cached_element_bytes
from attnprof.engines.pool import BlockPool, block_pool, cache_entries
from attnprof.engines.weights import rank_weight_bytes, stage_layers
from attnprof.models.spec import ModelSpec

FLOAT32_STATE_TYPES = ("qwen3_5", "nemotron_h", "kimi_linear")
"""Models whose recurrent state is kept in float32 unless set; the others keep their own dtype."""

GRAPH_SIZES_STEP = 8
MAX_GRAPH_SIZE = 512


def max_num_seqs(deployment: Deployment) -> int:
    """Requests that the scheduler runs at once, and the sampler is profiled with."""
    if deployment.max_num_seqs is not None:
        return deployment.max_num_seqs
    return int(deployment.engine.table("max_num_seqs")[deployment.card_size])


def max_num_batched_tokens(deployment: Deployment) -> int:
    """Tokens of one step: what the profile run prefills. [tokens]

    V0 without chunked prefill takes the complete context, so that a longer one shrinks the cache.
    """
    if deployment.max_num_batched_tokens is not None:
        return deployment.max_num_batched_tokens
    engine = deployment.engine
    default = int(engine.table("max_num_batched_tokens")[deployment.card_size])
    if not engine.flag("profiles_whole_context"):
        return default
    threshold = int(engine.number("chunked_prefill_above"))
    if threshold and deployment.max_model_len > threshold:
        return int(engine.number("chunked_prefill_tokens"))
    return max(deployment.max_model_len, default)


def pool(deployment: Deployment) -> BlockPool:
    """The blocks of one rank's cache."""
    engine, spec = deployment.engine, deployment.model
    grouped = engine.flag("hybrid_groups")
    is_aligned = deployment.enable_prefix_caching
    if is_aligned is None:
        is_aligned = engine.flag("state_blocks_align")
    entries = cache_entries(
        stage_layers(spec, deployment.pp),
        tp=deployment.tp,
        element_bytes=deployment.element_bytes,
        conv_bytes=deployment.dtype_bytes,
        state_element_bytes=state_element_bytes(deployment),
        num_draft_tokens=deployment.num_draft_tokens,
        expand_latent=not engine.flag("latent_cache"),
        windows_as_full=not grouped,
    )
    batched = max_num_batched_tokens(deployment)
    return block_pool(
        entries,
        block_tokens=deployment.block_size or int(engine.number("block_tokens")),
        max_num_batched_tokens=batched,
        state_blocks=(2 if is_aligned else 1) + deployment.num_draft_tokens,
        source_len=max(batched, spec.max_source_len or 0) if spec.max_source_len else batched,
        tokens_rule="concurrency" if engine.text("tokens_rule") == "concurrency" else "per-group",
        draft_layers=deployment.draft_layers,
        shares_blocks=not engine.number("generation"),
    )


def state_element_bytes(deployment: Deployment) -> float:
    """Bytes of one element of a recurrent state. [bytes]"""
    if deployment.mamba_ssm_cache_dtype is not None:
        return cached_element_bytes(deployment.mamba_ssm_cache_dtype, deployment.dtype)
    if deployment.model.model_type.startswith(FLOAT32_STATE_TYPES):
        return 4.0
    return deployment.dtype_bytes


def forward_bytes(deployment: Deployment) -> float:
    """Peak of one layer's forward pass over the profile's tokens. [bytes]

        T · s · (3 · I / tp + c · H)

    The FFN's gate and up projections and their product are alive together, beside c hidden
    states; pipeline stages also hold the two that they receive. A layer of experts has their
    caches instead, where these are given back. Chunked prefill bounds T.
    """
    spec, engine = deployment.model, deployment.engine
    tokens = max_num_batched_tokens(deployment) * deployment.dtype_bytes
    copies = engine.number("forward_hidden_copies") + (2 if deployment.pp > 1 else 0)
    ffn = tokens * 3 * dense_ffn_width(spec) / deployment.tp
    if engine.text("moe_workspace") == "transient":
        ffn = max(ffn, expert_cache_bytes(deployment))
    return tokens * copies * spec.hidden_size + ffn


def dense_ffn_width(spec: ModelSpec) -> int:
    """The widest dense FFN of the model, 0 when all layers are experts."""
    return max(
        (
            matrix.in_features
            for layer in spec.layer_groups()
            for matrix in layer.matrices
            if matrix.role in ("ffn", "shared_experts") and matrix.out_features == spec.hidden_size
        ),
        default=0,
    )


def expert_workspace_bytes(deployment: Deployment) -> float:
    """Workspace of fused experts, which newer versions never give back. [bytes]

        T · k · s · (max(I, H) + max(2 · I, H))

    with k experts a token and I one rank's share of an expert's width. Kernels for MXFP4 have
    none.

    Source:
        The two workspaces of vLLM's Triton experts; four logs of 0.19 within 0.02 GiB.
    """
    routed, width = _routed_bytes(deployment)
    hidden = deployment.model.hidden_size
    return routed * (max(width, hidden) + max(2 * width, hidden))


def expert_cache_bytes(deployment: Deployment) -> float:
    """What older versions hold while experts run: gate and up, product, and output. [bytes]

    T · k · s · (3 · I + H)
    """
    routed, width = _routed_bytes(deployment)
    return routed * (3 * width + deployment.model.hidden_size)


def _routed_bytes(deployment: Deployment) -> tuple[float, float]:
    """T · k · s, 0 without experts whose kernels keep copies, and an expert's width on a rank."""
    spec = deployment.model
    down = [
        matrix
        for layer in spec.layer_groups()
        for matrix in layer.matrices
        if matrix.role == "experts" and matrix.out_features == spec.hidden_size
    ]
    if not down or (spec.quantization is not None and spec.quantization.method == "mxfp4"):
        return 0.0, 0.0
    ranks = 1 if deployment.expert_parallel else deployment.expert_ranks
    chosen = down[0].active_count * deployment.dtype_bytes
    return max_num_batched_tokens(deployment) * chosen, down[0].in_features / ranks


def sampler_bytes(deployment: Deployment) -> float:
    """Peak of sampling for as many requests as may run, over the complete vocabulary. [bytes]

        (b + s) · max_num_seqs · V + c · s · T · H + floor

    Logits are gathered, so tensor parallelism divides nothing, and quantisation changes nothing.
    """
    engine, spec = deployment.engine, deployment.model
    logits = engine.number("sampler_bytes_per_logit") + deployment.dtype_bytes
    hidden = engine.number("hidden_copies") * deployment.dtype_bytes
    return (
        logits * max_num_seqs(deployment) * spec.vocab_size
        + hidden * max_num_batched_tokens(deployment) * spec.hidden_size
        + engine.number("activation_floor_bytes")
    )


def activation_bytes(deployment: Deployment) -> int:
    """The peak that the profile run finds above the weights. [bytes]

    Sampling or the forward pass, whichever is larger, and what stays allocated beside them: the
    experts' workspace and, of models with towers, the encoder's outputs. In a pipeline the last
    stage samples, and the others' peak is the forward pass.
    """
    engine, spec = deployment.engine, deployment.model
    forward = forward_bytes(deployment)
    beside = 0.0
    if engine.text("moe_workspace") == "persistent":
        beside += expert_workspace_bytes(deployment)
    if spec.vision_params and engine.number("forward_hidden_copies") >= 4:
        beside += max_num_batched_tokens(deployment) * spec.hidden_size * deployment.dtype_bytes
    peak = max(forward, sampler_bytes(deployment)) + beside
    peak *= 1 + engine.number("allocator_slack")
    return round(peak * (engine.overheads.activation_scale or 1.0))


def graph_sizes(deployment: Deployment) -> int:
    """How many batch sizes are captured as CUDA graphs: 1, 2, 4, then steps of 8 and of 16."""
    largest = min(2 * max_num_seqs(deployment), MAX_GRAPH_SIZE)
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    eights = min(largest, 255) // GRAPH_SIZES_STEP
    sixteens = max(0, largest - 256) // 16 + 1 if largest >= 256 else 0
    return small + eights + sixteens


def graph_bytes(deployment: Deployment) -> int:
    """Memory of captured CUDA graphs; real logs scatter by half a GiB around it. [bytes]"""
    if deployment.enforce_eager:
        return 0
    engine = deployment.engine
    if engine.overheads.graph_bytes is not None:
        return engine.overheads.graph_bytes
    kind = "moe" if deployment.model.is_moe else "dense"
    each = float(engine.table("graph_bytes_per_size")[kind])
    whole = engine.number("graph_base_bytes") + each * graph_sizes(deployment)
    return round(whole / (2 if deployment.pp > 1 else 1))


def runtime_bytes(deployment: Deployment) -> int:
    """What the context, libraries and communication hold outside torch. [bytes]"""
    engine = deployment.engine
    if engine.overheads.runtime_bytes is not None:
        return engine.overheads.runtime_bytes
    kind = "linked" if deployment.is_linked else "plain"
    return round(engine.by_ranks("runtime_bytes", kind, deployment.tp))


def utilization(deployment: Deployment) -> float:
    """The share of the visible memory that the engine may take."""
    if deployment.gpu_memory_utilization is not None:
        return deployment.gpu_memory_utilization
    return deployment.engine.number("gpu_memory_utilization")


def plan(deployment: Deployment) -> MemoryPlan:
    """Split one GPU's memory as vLLM does.

        kv = total · utilisation − weights − activation − runtime (− graphs, from 0.21)

    Source:
        78 public logs: the parts they print add up to their KV memory within 0.012 GiB.
    """
    engine = deployment.engine
    usable = math.floor(deployment.total_bytes * utilization(deployment))
    weights = rank_weight_bytes(deployment)
    activation, runtime = activation_bytes(deployment), runtime_bytes(deployment)
    graphs = graph_bytes(deployment)
    in_budget = engine.flag("graphs_in_budget")
    kv = usable - weights - activation - runtime - (graphs if in_budget else 0)
    blocks = pool(deployment)
    num_blocks = blocks.num_blocks(kv)
    notes: list[str] = []
    outside = deployment.total_bytes - usable
    logits = max_num_seqs(deployment) * deployment.model.vocab_size * 4
    unplanned = 0 if in_budget else graphs + logits
    if not in_budget and unplanned > outside:
        notes.append(
            f"CUDA graphs and the sampler's warm-up want {unplanned / GIB:.2f} GiB of the "
            f"{outside / GIB:.2f} GiB outside the budget: start-up may run out of memory"
        )
    if blocks.padding_layers:
        notes.append(f"{blocks.padding_layers} layers of padding make the cache groups equal")
    if len(blocks.groups) > 1:
        notes.append(
            f"{len(blocks.groups)} cache groups: the logged token count stores each token once a "
            "group; concurrency is the figure to compare"
        )
    return MemoryPlan(
        total_bytes=deployment.total_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        activation_bytes=activation,
        graph_bytes=graphs,
        runtime_bytes=runtime,
        kv_bytes=kv,
        bytes_per_sequence=blocks.bytes_per_sequence(deployment.max_model_len),
        block_tokens=blocks.block_tokens,
        num_blocks=num_blocks,
        kv_tokens=blocks.tokens(num_blocks, deployment.max_model_len) * deployment.dp,
        max_concurrency=blocks.concurrency(num_blocks, deployment.max_model_len) * deployment.dp,
        max_context_len=blocks.longest_context(num_blocks, deployment.longest_context),
        unplanned_bytes=unplanned,
        settings={
            "gpu_memory_utilization": utilization(deployment),
            "max_num_seqs": max_num_seqs(deployment),
            "max_num_batched_tokens": max_num_batched_tokens(deployment),
            "block_size": blocks.block_tokens,
        },
        notes=tuple(notes),
    )
