"""A serving case's few configuration values -> a model's layers, matrices and caches."""

import re
from dataclasses import replace
from typing import Any

from attnprof.engines.quantize import METHODS, SPELLINGS
from attnprof.models.spec import (
    Attention,
    CacheKind,
    Indexer,
    Layer,
    Matrix,
    Mixer,
    MixerKind,
    ModelSpec,
    Quantization,
)

_WORDS: dict[str, str] = {
    "sliding": "sliding", "swa": "sliding", "local": "sliding", "full": "full", "global": "full",
    "attention": "full", "chunked": "chunked", "gdn": "gated_delta_net", "deltanet":
    "gated_delta_net", "linear": "gated_delta_net", "mamba2": "mamba2", "mamba": "mamba2",
    "mamba1": "mamba", "mla": "mla", "kda": "kimi_delta", "moe": "experts", "mlp": "ffn",
}  # fmt: skip

# Families whose recurrent state is told by the name; the configuration of a case has no type.
_TYPES = (
    (r"qwen3-next|qwen3_next", "qwen3_next"), (r"qwen3\.[5-9x]", "qwen3_5"), (r"qwen3", "qwen3"),
    (r"qwen", "qwen2"), (r"gemma", "gemma"), (r"nemotron", "nemotron_h"), (r"granite-4",
    "granitemoehybrid"), (r"kimi-linear", "kimi_linear"), (r"phi-?[34]", "phi3"), (r"gpt-oss",
    "gpt_oss"), (r"falcon-h1", "falcon_h1"), (r"llama|vicuna", "llama"),
    (r"deepseek", "deepseek_v3"),
)  # fmt: skip


MAX_LAYERS = 10_000
MAX_SIZE = 10**8


def _check_sizes(config: dict[str, Any]) -> None:
    """Raise :class:`ValueError` for a size that no model has."""
    for key, value in config.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limit = MAX_LAYERS if key.endswith("layers") else MAX_SIZE
        if not 0 <= value <= limit:
            raise ValueError(f"{key} is {value}")


def model_type_of(name: str) -> str:
    """The family that a model's name tells, ``unknown`` when it tells none.

    >>> model_type_of("Qwen/Qwen3.6-27B"), model_type_of("Qwen/Qwen3-0.6B")
    ('qwen3_5', 'qwen3')
    """
    for pattern, model_type in _TYPES:
        if re.search(pattern, name.lower()):
            return model_type
    return "unknown"


def quantization_of(text: str, model: str) -> Quantization | None:
    """The weight quantisation that a case's setting names; None when it names none known.

    Meta's own FP8 checkpoints leave attention in 16 bits.
    """
    plain = text.lower().replace("-", "_")
    for word in sorted([*METHODS, *SPELLINGS], key=len, reverse=True):
        if word in plain:
            found = METHODS[SPELLINGS.get(word, word)]
            if found.method == "fp8" and model.startswith("meta-llama/") and "FP8" in model:
                return replace(found, skipped_roles=found.skipped_roles | {"attention"})
            return found
    return METHODS["int8"] if "compressed_tensors" in plain else None


def layer_plan(config: dict[str, Any]) -> list[str]:
    """What each layer mixes tokens with, by the pattern that the case states.

    The order of the layers does not matter to any figure, so kinds stand together.

    >>> layer_plan({"num_hidden_layers": 4, "layer_pattern": "1:1 (2/2)", "sliding_window": 8})
    ['sliding', 'sliding', 'full', 'full']
    """
    num_layers = int(config.get("num_hidden_layers") or 0)
    plain = "mla" if config.get("kv_lora_rank") else "full"
    pattern = str(config.get("layer_pattern") or "")
    if "parallel" in pattern:
        return ["parallel"] * num_layers
    counts = re.findall(r"(\d+)\s+([A-Za-z]+\d?)", pattern)
    bare = re.search(r"\((\d+)\s*/\s*(\d+)\)", pattern)
    plan: list[str] = []
    if bare is not None:
        windowed = "chunked" if config.get("attention_chunk_size") else "sliding"
        plan = [windowed] * int(bare[1]) + ["full"] * int(bare[2])
    else:
        for count, word in counts:
            kind = _WORDS.get(word.lower())
            if kind is not None:
                kind = plain if kind == "full" and plain == "mla" else kind
                plan += [kind] * int(count)
    if len(plan) != num_layers:
        return plan or [plain] * num_layers
    return plan


def model_of_case(config: dict[str, Any], name: str, settings: dict[str, Any]) -> ModelSpec:
    """The model that a case describes, as far as it does; matrices by the usual shape."""
    _check_sizes(config)
    hidden = int(config.get("hidden_size") or 0)
    vocab = int(config.get("vocab_size") or 0)
    tied = bool(config.get("tie_word_embeddings"))
    decoder = int(config.get("decoder_layers") or 0)
    layers = tuple(_layer(kind, config, bool(decoder)) for kind in layer_plan(config))
    outer = [Matrix("embed_tokens", "embedding", vocab, hidden)]
    if not tied:
        outer.append(Matrix("lm_head", "head", vocab, hidden))
    encoder = tuple(
        _layer("full", config, False) for _ in range(int(config.get("encoder_layers") or 0))
    )
    shape = next((layer.attention for layer in layers if layer.attention), None)
    rotary = 0
    if shape is not None:
        rotary = int(config.get("qk_rope_head_dim") or shape.head_dim)
    return ModelSpec(
        name=name,
        model_type=model_type_of(name),
        architecture=model_type_of(name),
        hidden_size=hidden,
        vocab_size=vocab,
        layers=layers,
        encoder_layers=encoder,
        outer=tuple(outer),
        outer_vector_params=hidden,
        tied_embeddings=tied,
        max_position_embeddings=config.get("max_position_embeddings"),
        rotary_dim=rotary,
        max_source_len=config.get("max_source_positions"),
        quantization=quantization_of(str(settings.get("quantization") or ""), name),
        exact=False,
        source="the case's configuration",
    )


def _layer(kind: str, config: dict[str, Any], has_cross: bool) -> Layer:
    hidden = int(config.get("hidden_size") or 0)
    matrices: list[Matrix] = []
    attention = mixer = cross = None
    if kind in ("full", "sliding", "chunked", "mla", "parallel"):
        attention = _attention("full" if kind == "parallel" else kind, config)
        matrices += _projections(attention, hidden)
    if kind in ("gated_delta_net", "mamba2", "mamba", "kimi_delta", "parallel"):
        mixer = _mixer("mamba2" if kind == "parallel" else kind, config)
        width = mixer.num_heads * mixer.head_dim
        matrices += [
            Matrix("in_proj", "mixer", mixer.conv_channels + width, hidden),
            Matrix("out_proj", "mixer", hidden, width),
        ]
    if has_cross and attention is not None:
        cross = Attention(
            "cross", attention.num_q_heads, attention.num_kv_heads, attention.head_dim,
            attention.v_head_dim, causal=False,
        )  # fmt: skip
        matrices += _projections(cross, hidden)
    alone = kind in ("experts", "ffn") or not re.search(
        r"MoE|MLP", str(config.get("layer_pattern"))
    )
    if alone:
        matrices += _ffn(kind, config, hidden, 2 if has_cross or kind == "ffn" else 3)
    return Layer(attention, mixer, cross, tuple(matrices), vector_params=2 * hidden)


def _attention(kind: str, config: dict[str, Any]) -> Attention:
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
    v_head_dim = int(config.get("v_head_dim") or head_dim)
    cache: CacheKind = kind  # type: ignore[assignment]  # the words above are cache kinds
    if kind == "mla":
        rope = int(config.get("qk_rope_head_dim") or 64)
        nope = int(config.get("qk_nope_head_dim") or 128)
        index_dim = config.get("index_head_dim")
        return Attention(
            "mla", heads, heads, nope + rope, int(config.get("v_head_dim") or 128),
            kv_lora_rank=int(config["kv_lora_rank"]), rope_head_dim=rope,
            indexer=Indexer(64, int(index_dim), 2048) if index_dim else None,
        )  # fmt: skip
    if kind == "full" and config.get("global_head_dim"):
        head_dim = v_head_dim = int(config["global_head_dim"])
        kv_heads = int(config.get("num_global_key_value_heads") or kv_heads)
    if kind == "sliding" and config.get("swa_num_key_value_heads"):
        kv_heads = int(config["swa_num_key_value_heads"])
    window = config.get("sliding_window") if kind == "sliding" else None
    if kind == "chunked":
        window = config.get("attention_chunk_size")
    return Attention(cache, heads, kv_heads, head_dim, v_head_dim, window_len=window)


def _mixer(kind: str, config: dict[str, Any]) -> Mixer:
    def first(*keys: str, default: int = 0) -> int:
        return next((int(config[key]) for key in keys if config.get(key)), default)

    conv_len = first("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "d_conv", default=4)
    if kind in ("gated_delta_net", "kimi_delta"):
        keys = first("linear_num_key_heads") * first("linear_key_head_dim", default=128)
        heads, value_dim = first("linear_num_value_heads"), first("linear_value_head_dim",
                                                                  default=128)  # fmt: skip
        return Mixer(
            _kind(kind), heads, value_dim, first("linear_key_head_dim", default=128),
            conv_channels=2 * keys + heads * value_dim, conv_len=conv_len - 1,
        )  # fmt: skip
    if kind == "mamba":
        inner = first("d_inner", "mamba_d_inner")
        return Mixer("mamba", 1, inner, first("d_state", "ssm_state_size", default=16),
                     conv_channels=inner, conv_len=conv_len - 1)  # fmt: skip
    heads = first("mamba_num_heads", "mamba_n_heads")
    head_dim = first("mamba_head_dim", "mamba_d_head")
    state = first("ssm_state_size", "mamba_d_state", default=128)
    groups = first("n_groups", "mamba_n_groups", default=1)
    return Mixer("mamba2", heads, head_dim, state,
                 conv_channels=heads * head_dim + 2 * groups * state,
                 conv_len=conv_len - 1)  # fmt: skip


def _kind(kind: str) -> MixerKind:
    return "kimi_delta" if kind == "kimi_delta" else "gated_delta_net"


def _projections(attention: Attention, hidden: int) -> list[Matrix]:
    heads, kv_heads = attention.num_q_heads, attention.num_kv_heads
    if attention.kind == "mla":
        latent = attention.kv_lora_rank + attention.rope_head_dim
        return [
            Matrix("q_proj", "attention", heads * attention.head_dim, hidden),
            Matrix("kv_a_proj", "attention", latent, hidden, sharding="replicated"),
            Matrix("kv_b_proj", "attention", heads * (attention.head_dim - attention.rope_head_dim
                   + attention.v_head_dim), attention.kv_lora_rank),
            Matrix("o_proj", "attention", hidden, heads * attention.v_head_dim),
        ]  # fmt: skip
    return [
        Matrix("q_proj", "attention", heads * attention.head_dim, hidden),
        Matrix("k_proj", "attention", kv_heads * attention.head_dim, hidden, sharding="kv_heads"),
        Matrix("v_proj", "attention", kv_heads * attention.v_head_dim, hidden, sharding="kv_heads"),
        Matrix("o_proj", "attention", hidden, heads * attention.v_head_dim),
    ]


def _ffn(kind: str, config: dict[str, Any], hidden: int, num_matrices: int) -> list[Matrix]:
    experts = int(config.get("n_experts") or 0)
    inner = int(config.get("intermediate_size") or 0)
    is_experts = kind == "experts" or (kind != "ffn" and bool(config.get("moe")) and experts > 0)
    if not is_experts:
        return [
            Matrix(f"ffn_{index}", "ffn", inner, hidden) for index in range(num_matrices - 1)
        ] + ([Matrix("down_proj", "ffn", hidden, inner)] if inner else [])
    width = int(config.get("moe_intermediate_size") or inner)
    chosen = int(config.get("experts_per_token") or 1)
    matrices = [
        Matrix(name, "experts", width, hidden, max(1, experts), chosen) for name in ("gate", "up")
    ] + [Matrix("down", "experts", hidden, width, max(1, experts), chosen)]
    matrices.append(Matrix("router", "router", experts, hidden, sharding="replicated"))
    if shared := config.get("shared_expert_intermediate_size"):
        matrices += [
            Matrix(name, "shared_experts", int(shared), hidden) for name in ("gate", "up")
        ] + [Matrix("down", "shared_experts", hidden, int(shared))]
    return matrices
