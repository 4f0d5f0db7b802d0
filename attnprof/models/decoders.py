"""A decoder's configuration and family -> its layers and what stands around them."""

from attnprof.models.config import MAX_LAYERS, Config
from attnprof.models.extras import LAYER_EXTRAS, MODEL_EXTRAS, attention_shape
from attnprof.models.families import Family, Moe, Setting
from attnprof.models.layer_kinds import (
    NEMOTRON_BLOCKS,
    layer_kinds,
    num_experts,
    sparse_layers,
    window_of,
)
from attnprof.models.mixers import MIXERS
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, CacheKind, Indexer, Layer, ModelSpec


def setting(config: Config, value: Setting) -> bool:
    """A fact as it stands, or the flag of the configuration that it names."""
    return config.flag(value) if isinstance(value, str) else value


def has_lm_head(architecture: str) -> bool:
    """Whether a class of that name ends in a projection to the vocabulary."""
    return not architecture.endswith("Model") or architecture.endswith(("LMHeadModel", "MTModel"))


def build_decoder(config: Config, family: Family, architecture: str) -> ModelSpec:
    """The model that ``config`` describes, counted as ``family`` says.

    Raises:
        UsageError: A key is missing, wrong, absurd, or contradicts another one.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    vocab_size = config.count("vocab_size", most=10**8)
    layers = decoder_layers(config, family, hidden_size)
    outer = Parts()
    width = config.count("word_embed_proj_dim", hidden_size)
    outer.embedding("embedding", vocab_size, width, sharding="split")
    if family.positions is not None:
        positions = config.count("max_position_embeddings", most=10**8)
        outer.embedding("positions", positions + family.positions, hidden_size)
    if family.final_norm:
        outer.vector(norm_elements(family, hidden_size))
    tied = config.flag("tie_word_embeddings", True)
    has_head = has_lm_head(architecture)
    if has_head:
        if not tied:
            outer.linear("head", "head", vocab_size, width)
        if setting(config, family.head_bias):
            outer.vector(vocab_size)
    if family.extra in MODEL_EXTRAS:
        MODEL_EXTRAS[family.extra](config, outer, hidden_size)
    return ModelSpec(
        name="",
        model_type=config.model_type,
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        layers=layers,
        outer=tuple(outer.matrices),
        outer_vector_params=outer.vectors,
        tied_embeddings=has_head and tied,
        max_position_embeddings=config.optional_count("max_position_embeddings"),
        rotary_dim=rotary_dim(config, family, layers),
        logit_softcap=family.logit_softcap
        and bool(config.get("final_logit_softcapping", config.get("logits_soft_cap"))),
    )


def decoder_layers(config: Config, family: Family, hidden_size: int) -> tuple[Layer, ...]:
    """The layers, equal ones being one object."""
    num_layers = num_decoder_layers(config, family)
    kinds = layer_kinds(config, family, num_layers)
    sparse = sparse_layers(config, family, num_layers)
    known: dict[Layer, Layer] = {}
    layers = []
    for index, kind in enumerate(kinds):
        is_sparse = kind == "moe" or (sparse[index] and kind != "mlp")
        layer = _layer(config, family, hidden_size, index, kind, is_sparse)
        layers.append(known.setdefault(layer, layer))
    return tuple(layers)


def num_decoder_layers(config: Config, family: Family) -> int:
    """Layers of the decoder; Nemotron-H counts each block, LongCat each pair of them."""
    if family.extra == "longcat_flash":
        return config.count("num_layers", most=MAX_LAYERS)
    named = config.items("layer_types") if family.extra == "nemotron_h" else None
    default = None
    if family.extra == "nemotron_h":
        pattern = config.get("hybrid_override_pattern") or NEMOTRON_BLOCKS
        default = len(named or pattern)
    return config.count("num_hidden_layers", default, most=MAX_LAYERS)


def _layer(
    config: Config, family: Family, hidden_size: int, index: int, kind: str, sparse: bool
) -> Layer:
    parts = Parts()
    if kind in ("mixer", "hybrid") and family.mixer:
        MIXERS[family.mixer](config, parts, hidden_size)
    if kind == "cross":
        _cross_attention(config, family, parts, hidden_size, index)
    elif kind in ("full", "sliding", "chunked", "hybrid"):
        _attention(config, family, parts, hidden_size, index, kind)
    parts.vector(family.norms * norm_elements(family, hidden_size))
    if has_ffn(config, family, kind):
        _ffn(config, family, parts, hidden_size, index, sparse)
    if family.extra in LAYER_EXTRAS:
        LAYER_EXTRAS[family.extra](config, parts, hidden_size, index)
    return parts.layer()


def has_ffn(config: Config, family: Family, kind: str) -> bool:
    """Whether a layer has a feed-forward block: not those of Mamba, nor Nemotron-H's mixers."""
    if family.extra == "nemotron_h":
        return kind in ("mlp", "moe")
    return config.model_type not in ("mamba", "mamba2", "falcon_mamba", "longcat_flash")


def norm_elements(family: Family, width: int) -> int:
    """Parameters of one norm over ``width`` elements."""
    return {"rms": width, "layer": 2 * width, "none": 0}[family.norm]


def _attention(
    config: Config, family: Family, parts: Parts, hidden_size: int, index: int, kind: str
) -> None:
    cache_kind: CacheKind = "full"
    window_len = None
    if kind == "sliding":
        cache_kind, window_len = "sliding", window_of(config)
    elif kind == "chunked":
        cache_kind, window_len = "chunked", config.count("attention_chunk_size", 8192)
    if family.mla:
        _latent_attention(config, family, parts, hidden_size)
        return
    shape = attention_shape(config, family, hidden_size, index, cache_kind, window_len)
    parts.attention = shape
    qkv_bias = setting(config, family.qkv_bias)
    parts.attention_projections(
        hidden_size,
        shape,
        q_bias=qkv_bias,
        k_bias=qkv_bias,
        v_bias=qkv_bias,
        o_bias=setting(config, family.o_bias),
        q_copies=2 if family.gate == "q" else 1,
        value_is_key=cache_kind == "full" and config.flag("attention_k_eq_v"),
    )
    q_width = shape.num_q_heads * shape.head_dim
    if family.gate == "full":
        parts.linear("gate", "attention", q_width, hidden_size)
    elif family.gate == "head":
        parts.linear("gate", "attention", shape.num_q_heads, hidden_size)
    if family.qk_norm and (not family.qk_norm_if or config.flag(family.qk_norm_if)):
        k_heads = 0 if shape.reads_other_layer else shape.num_kv_heads
        if family.qk_norm == "full":
            parts.vector(q_width + k_heads * shape.head_dim)
        else:
            one = shape.head_dim * (2 if family.qk_norm == "layer" else 1)
            parts.vector(one * (2 if k_heads else 1))


def _cross_attention(
    config: Config, family: Family, parts: Parts, hidden_size: int, index: int
) -> None:
    """A layer that attends to the image alone, with a gate each for it and its block (mllama)."""
    shape = attention_shape(config, family, hidden_size, index, "cross", None)
    parts.cross = shape
    parts.attention_projections(hidden_size, shape)
    parts.vector(2 * shape.head_dim + 2)


def _latent_attention(config: Config, family: Family, parts: Parts, hidden_size: int) -> None:
    """Multi-head latent attention.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1.
    """
    num_heads = config.count("num_attention_heads")
    nope = config.count("qk_nope_head_dim", 128)
    rope = config.count("qk_rope_head_dim", 64)
    value = config.count("v_head_dim", 128)
    latent = config.count("kv_lora_rank", 512)
    q_latent = config.optional_count("q_lora_rank", least=0) or 0
    bias = setting(config, family.qkv_bias)
    if q_latent:
        parts.linear("q_a", "attention", q_latent, hidden_size, bias=bias, sharding="replicated")
        parts.vector(q_latent)
    parts.linear("q_b", "attention", num_heads * (nope + rope), q_latent or hidden_size)
    parts.linear("kv_a", "attention", latent + rope, hidden_size, bias=bias, sharding="replicated")
    parts.vector(latent)
    parts.linear("kv_b", "attention", num_heads * (nope + value), latent)
    parts.linear(
        "o", "attention", hidden_size, num_heads * value, bias=setting(config, family.o_bias)
    )
    indexer = None
    if config.get("index_head_dim") is not None:
        indexer = Indexer(
            config.count("index_n_heads"),
            config.count("index_head_dim"),
            config.count("index_topk", 2048),
        )
        width = indexer.num_heads * indexer.head_dim
        for name, rows, columns in (
            ("index_q", width, q_latent or hidden_size),
            ("index_k", indexer.head_dim, hidden_size),
            ("index_weights", indexer.num_heads, hidden_size),
        ):
            parts.linear(name, "attention", rows, columns, sharding="replicated")
        parts.vector(2 * indexer.head_dim)
    parts.attention = Attention(
        "mla", num_heads, num_heads, nope + rope, value,
        kv_lora_rank=latent, rope_head_dim=rope, indexer=indexer,
    )  # fmt: skip


def _ffn(
    config: Config, family: Family, parts: Parts, hidden_size: int, index: int, sparse: bool
) -> None:
    bias = setting(config, family.mlp_bias)
    gated = setting(config, family.gated)
    if sparse and family.moe is not None:
        _experts(config, family.moe, parts, hidden_size, bias)
        return
    parts.ffn(hidden_size, ffn_width(config, family, hidden_size, index), gated=gated, bias=bias)


def ffn_width(config: Config, family: Family, hidden_size: int, index: int) -> int:
    """The inner width of a dense feed-forward block."""
    listed = config.get("intermediate_size")
    if isinstance(listed, list):
        if index >= len(listed):
            raise config.wrong("intermediate_size", listed, "one width a layer")
        return config.count("intermediate_size[]", listed[index])
    if family.moe is not None and config.get("intermediate_size_mlp") is not None:
        return config.count("intermediate_size_mlp")
    if config.get("prefix_dense_intermediate_size") is not None:
        return config.count("prefix_dense_intermediate_size")
    if config.get("dense_intermediate_size") is not None:
        return config.count("dense_intermediate_size")
    if family.extra == "gpt_neox_japanese":
        return hidden_size * config.count("intermediate_multiple_size", 4)
    if family.extra in ("recurrent_gemma", "moshi"):
        return config.count("intermediate_size") // 2
    if family.mixer == "short_conv" and config.flag("block_auto_adjust_ff_dim"):
        return _adjusted_width(config)
    default = 4 * hidden_size if family.norm == "layer" or family.extra == "mpt" else None
    return config.count("intermediate_size", default, most=10**8)


def _adjusted_width(config: Config) -> int:
    """LFM2's width: two thirds of what is stated, scaled, rounded up to a multiple."""
    width = int(2 * config.count("intermediate_size") / 3)
    width = int(config.share("block_ffn_dim_multiplier", 1.0) * width)
    multiple = config.count("block_multiple_of", 256)
    return multiple * ((width + multiple - 1) // multiple)


def _experts(config: Config, moe: Moe, parts: Parts, hidden_size: int, bias: bool) -> None:
    total = num_experts(config)
    width = config.count(moe.width, config.get("intermediate_size"), most=10**8)
    # DeepSeek-V2's configuration class has no default: then none is known to be chosen.
    active = config.count("num_experts_per_tok", total, least=0)
    if active > total:
        raise config.wrong("num_experts_per_tok", active, f"at most num_experts, {total}")
    idle = config.count(moe.idle_router_rows, 0, least=0) if moe.idle_router_rows else 0
    parts.linear(
        "router", "router", total + idle, hidden_size, bias=moe.router_bias, sharding="replicated"
    )
    if moe.has_correction_bias:
        parts.vector(total)
    latent = config.optional_count("moe_latent_size")
    parts.ffn(
        latent or hidden_size, width, gated=moe.gated, bias=moe.expert_bias,
        role="experts", count=total, active=active, prefix="expert_",
    )  # fmt: skip
    if latent:
        parts.linear("latent_in", "ffn", latent, hidden_size, bias=bias)
        parts.linear("latent_out", "ffn", hidden_size, latent, bias=bias)
    shared = shared_width(config, moe, width)
    if shared:
        parts.ffn(
            hidden_size, shared, gated=moe.gated, bias=bias, role="shared_experts",
            prefix="shared_",
        )  # fmt: skip
        if moe.shared_gate:
            parts.linear("shared_gate", "router", 1, hidden_size, sharding="replicated")


def shared_width(config: Config, moe: Moe, width: int) -> int:
    """Inner width of the experts that every token passes, together; 0 when there are none."""
    if moe.shared.startswith("*"):
        return width * config.count(moe.shared[1:], 0, least=0)
    return config.count(moe.shared, 0, least=0) if moe.shared else 0


def rotary_dim(config: Config, family: Family, layers: tuple[Layer, ...]) -> int:
    """How many of a head's dimensions are rotated; 0 where positions are learned."""
    attention = next((layer.attention for layer in layers if layer.attention), None)
    if attention is None or family.positions is not None:
        return 0
    if attention.kind == "mla":
        return attention.rope_head_dim
    stated = config.optional_count("rotary_dim", least=0)
    if stated is not None:
        return stated
    share = config.share("partial_rotary_factor", config.share("rotary_pct", 1.0))
    return int(attention.head_dim * share)
