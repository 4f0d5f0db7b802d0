"""Decoders of a shape of their own: Zamba, RWKV, xLSTM, JetMoE, DeepSeek-V4 and the like."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from attnprof.models.config import MAX_LAYERS, Config
from attnprof.models.mixers import MIXERS
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, Layer, Mixer, ModelSpec


def assemble(
    config: Config,
    architecture: str,
    outer: Parts,
    layers: Iterable[Layer],
    encoder_layers: Iterable[Layer] = (),
    tied: bool = True,
) -> ModelSpec:
    """The model of those layers, with what its configuration says of the whole."""
    return ModelSpec(
        name="",
        model_type=config.model_type,
        architecture=architecture,
        hidden_size=config.count("hidden_size", most=10**7),
        vocab_size=config.count("vocab_size", most=10**8),
        layers=tuple(layers),
        encoder_layers=tuple(encoder_layers),
        outer=tuple(outer.matrices),
        outer_vector_params=outer.vectors,
        tied_embeddings=tied,
        max_position_embeddings=config.optional_count("max_position_embeddings"),
    )


def embeddings(config: Config, architecture: str, extra_rows: int = 0) -> tuple[Parts, bool]:
    """The table of token vectors and, where it is not tied, the head; and whether it is tied."""
    hidden_size = config.count("hidden_size", most=10**7)
    vocab_size = config.count("vocab_size", most=10**8)
    outer = Parts()
    outer.embedding("embedding", vocab_size + extra_rows, hidden_size, sharding="split")
    tied = config.flag("tie_word_embeddings", True)
    if not tied and (not architecture.endswith("Model") or "LMHead" in architecture):
        outer.linear("head", "head", vocab_size, hidden_size)
    return outer, tied


def _zamba(config: Config, architecture: str) -> ModelSpec:
    """Mamba layers, before some of which stands one of a few shared transformer blocks.

    A shared block and the Mamba layer after it are two layers here: the one has a cache of keys
    and values, the other a state.

    Source:
        Glorioso et al. 2024, "Zamba", arXiv:2405.16712; "Zamba2", arXiv:2411.15242.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    outer, tied = embeddings(config, architecture)
    outer.vector(hidden_size)
    is_second = config.model_type == "zamba2"
    kinds = _zamba_kinds(config, is_second)
    stored = config.count("num_mem_blocks", 1) if is_second else 1
    layers: list[Layer] = []
    seen = 0
    for kind in kinds:
        own = Parts()
        own.vector(hidden_size)
        if is_second:
            MIXERS["mamba2"](config, own, hidden_size)
        else:
            _zamba_mamba(config, own, hidden_size)
        if kind == "hybrid":
            block = _zamba_block(config, hidden_size, is_second)
            layers.append(replace(block, is_shared=seen >= stored))
            seen += 1
            own.linear("linear", "other", hidden_size, hidden_size)
            if is_second:
                _zamba_adapters(config, own, hidden_size)
        layers.append(own.layer())
    return assemble(config, architecture, outer, layers, tied=tied)


def _zamba_kinds(config: Config, is_second: bool) -> list[str]:
    named = config.items("layers_block_type") or config.items("layer_types")
    if named:
        return [str(name) for name in named]
    if is_second:
        pattern = ["mamba", *(["mamba"] * 5 + ["hybrid"]) * 7, *["mamba"] * 4, "hybrid"]
        return [*pattern, *["mamba"] * 3, "hybrid", *["mamba"] * 2]
    num_layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    period = config.count("attn_layer_period")
    offset = config.count("attn_layer_offset", least=0)
    rest = ["hybrid" if i % period == offset else "mamba" for i in range(max(0, num_layers - 3))]
    return ["mamba", "mamba", "hybrid", *rest]


def _zamba_block(config: Config, hidden_size: int, is_second: bool) -> Layer:
    parts = Parts()
    num_heads = config.count("num_attention_heads")
    head_dim = config.count("attention_head_dim", 2 * hidden_size // num_heads)
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    shape = Attention("full", num_heads, num_kv_heads, head_dim, head_dim)
    parts.attention = shape
    parts.attention_projections(2 * hidden_size, shape, output_size=hidden_size)
    bias = config.flag("add_bias_linear") if is_second else False
    width = config.count("intermediate_size", 4 * hidden_size)
    parts.ffn(hidden_size, width, bias=bias)
    parts.vector(3 * hidden_size)
    return parts.layer()


def _zamba_adapters(config: Config, parts: Parts, hidden_size: int) -> None:
    rank = config.count("adapter_rank", 128)
    width = config.count("intermediate_size", 4 * hidden_size)
    parts.linear("adapter_in", "other", rank, hidden_size)
    parts.linear("adapter_out", "other", 2 * width, rank)
    if config.flag("use_shared_attention_adapter"):
        for name in ("q", "k", "v"):
            parts.linear(f"{name}_adapter_in", "other", rank, 2 * hidden_size)
            parts.linear(f"{name}_adapter_out", "other", 2 * hidden_size, rank)


def _zamba_mamba(config: Config, parts: Parts, hidden_size: int) -> None:
    """Mamba 1 whose step, B and C are made per head."""
    heads = config.count("n_mamba_heads", 2)
    width = int(config.share("mamba_expand", 2) * hidden_size)
    state_dim, kernel = config.count("mamba_d_state", 16), config.count("mamba_d_conv", 4)
    rank = config.get("mamba_dt_rank", "auto")
    rank = math.ceil(hidden_size / 16) if rank == "auto" else config.count("mamba_dt_rank")
    bias = config.flag("mamba_proj_bias")
    parts.linear("in", "mixer", 2 * width, hidden_size, bias=bias)
    parts.linear("x", "mixer", rank + 2 * state_dim, width // heads, count=heads, active=heads)
    parts.linear("dt", "mixer", width // heads, rank, bias=True, count=heads, active=heads)
    parts.linear("out", "mixer", hidden_size, width, bias=bias)
    conv_bias = config.flag("mamba_conv_bias", True)
    parts.vector(width * kernel + width * conv_bias + width * state_dim + width)
    parts.mixer = Mixer("mamba", width, 1, state_dim, width, kernel - 1)


def _rwkv(config: Config, architecture: str) -> ModelSpec:
    """RWKV-4: two token shifts and a running weighted mean instead of attention.

    Source:
        Peng et al. 2023, "RWKV", arXiv:2305.13048, section 3.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    width = config.count("attention_hidden_size", hidden_size)
    inner = config.count("intermediate_size", 4 * hidden_size)
    outer, tied = embeddings(config, architecture)
    outer.vector(2 * hidden_size)
    parts = Parts()
    for name in ("k", "v", "r"):
        parts.linear(name, "mixer", width, hidden_size)
    parts.linear("out", "mixer", hidden_size, width)
    parts.linear("up", "ffn", inner, hidden_size)
    parts.linear("gate", "ffn", hidden_size, hidden_size)
    parts.linear("down", "ffn", hidden_size, inner)
    parts.vector(2 * width + 5 * hidden_size + 4 * hidden_size)
    parts.mixer = Mixer("rwkv", width, 1, 3, conv_channels=hidden_size, conv_len=2)
    layer = parts.layer()
    first = replace(layer, vector_params=layer.vector_params + 2 * hidden_size)
    count = config.count("num_hidden_layers", most=MAX_LAYERS)
    return assemble(config, architecture, outer, (first, *(layer,) * (count - 1)), tied=tied)


def _xlstm(config: Config, architecture: str) -> ModelSpec:
    """xLSTM of matrix memories alone.

    Source:
        Beck et al. 2025, "xLSTM 7B", arXiv:2503.13427, section 3.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    outer, tied = embeddings(config, architecture)
    outer.vector(hidden_size)
    heads = config.count("num_heads")
    qk = int(config.share("qk_dim_factor", 0.5) * hidden_size)
    value = int(config.share("v_dim_factor", 1.0) * hidden_size)
    step = config.count("ffn_round_up_to_multiple_of", 64)
    inner = step * math.ceil(hidden_size * config.share("ffn_proj_factor", 2.667) / step)
    bias = config.flag("use_bias")
    parts = Parts()
    for name, width in (("q", qk), ("k", qk), ("v", value), ("ogate", value)):
        parts.linear(name, "mixer", width, hidden_size, bias=bias)
    for name in ("igate", "fgate"):
        parts.linear(name, "mixer", heads, hidden_size, bias=True)
    parts.linear("out", "mixer", hidden_size, value, bias=bias)
    parts.ffn(hidden_size, inner, bias=bias)
    parts.vector(value + 2 * hidden_size)
    parts.mixer = Mixer("xlstm", heads, value // heads, qk // heads)
    count = config.count("num_hidden_layers", config.get("num_blocks"), most=MAX_LAYERS)
    return assemble(config, architecture, outer, (parts.layer(),) * count, tied=tied)


def _cpmant(config: Config, architecture: str) -> ModelSpec:
    hidden_size = config.count("hidden_size", most=10**7)
    heads, head_dim = config.count("num_attention_heads"), config.count("dim_head")
    prompts = config.count("prompt_types", 32) * config.count("prompt_length", 32)
    segments = config.count("segment_types", 32)
    outer, tied = embeddings(config, architecture, prompts)
    outer.embedding("segments", segments, hidden_size)
    buckets = config.count("position_bias_num_buckets", 512) + segments * segments
    outer.embedding("positions", buckets, heads)
    outer.vector(hidden_size)
    parts = Parts()
    parts.attention = Attention("full", heads, heads, head_dim, head_dim)
    parts.attention_projections(hidden_size, parts.attention)
    parts.ffn(hidden_size, config.count("dim_ff"))
    parts.vector(2 * hidden_size)
    count = config.count("num_hidden_layers", most=MAX_LAYERS)
    return assemble(config, architecture, outer, (parts.layer(),) * count, tied=tied)


def _hrm(config: Config, architecture: str) -> ModelSpec:
    """Two stacks without norms that are run in turns, the slow one and the fast one."""
    hidden_size = config.count("hidden_size", most=10**7)
    outer, tied = embeddings(config, architecture)
    outer.vector(hidden_size)
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", hidden_size // heads)
    kv_heads = config.count("num_key_value_heads", heads)
    bias = config.flag("attention_bias")
    parts = Parts()
    parts.attention = Attention("full", heads, kv_heads, head_dim, head_dim)
    parts.attention_projections(
        hidden_size, parts.attention, q_bias=bias, k_bias=bias, v_bias=bias, o_bias=bias
    )
    parts.linear("gate", "attention", heads * head_dim, hidden_size, bias=bias)
    parts.ffn(hidden_size, config.count("intermediate_size"), bias=config.flag("mlp_bias"))
    depth = config.count("num_layers_per_stack", config.count("num_hidden_layers"))
    return assemble(config, architecture, outer, (parts.layer(),) * (2 * depth), tied=tied)


def _jetmoe(config: Config, architecture: str) -> ModelSpec:
    """Experts in the attention as well: each has its queries and output, all share keys and values.

    Source:
        Shen et al. 2024, "JetMoE", arXiv:2404.07413, section 2.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    kv_heads, head_dim = config.count("num_key_value_heads"), config.count("kv_channels")
    total, active = config.count("num_experts"), config.count("num_experts_per_tok")
    width = kv_heads * head_dim
    outer, tied = embeddings(config, architecture)
    outer.vector(hidden_size)
    parts = Parts()
    parts.attention = Attention("full", kv_heads * active, kv_heads, head_dim, head_dim)
    for name, rows, columns in (("q", width, hidden_size), ("o", hidden_size, width)):
        parts.linear(name, "experts", rows, columns, count=total, active=active)
    parts.linear("kv", "attention", 2 * width, hidden_size, sharding="kv_heads")
    for name in ("attention_router", "router"):
        parts.linear(name, "router", total, hidden_size, sharding="replicated")
    parts.ffn(
        hidden_size, config.count("intermediate_size"), role="experts", count=total,
        active=active, prefix="expert_",
    )  # fmt: skip
    parts.vector(4 * hidden_size)
    count = config.count("num_hidden_layers", most=MAX_LAYERS)
    return assemble(config, architecture, outer, (parts.layer(),) * count, tied=tied)


def _deepseek_v4(config: Config, architecture: str) -> ModelSpec:
    """One key that is its own value, compressed over runs of tokens, and hyper-connections."""
    hidden_size = config.count("hidden_size", most=10**7)
    streams = config.count("hc_mult", 4)
    outer, tied = embeddings(config, architecture)
    outer.vector(hidden_size)
    outer.vector(streams * streams * hidden_size + streams + 1)
    names = config.items("layer_types")
    num_layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    if names is None:
        ratios = config.items("compress_ratios") or []
        kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
        names = [kinds.get(ratio, "heavily_compressed_attention") for ratio in ratios]
    if not names:
        names = [
            "compressed_sparse_attention" if i % 2 and i > 1 else "heavily_compressed_attention"
            for i in range(num_layers)
        ]
    layers = [_deepseek_v4_layer(config, hidden_size, streams, str(n)) for n in names[:num_layers]]
    return assemble(config, architecture, outer, layers, tied=tied)


def _deepseek_v4_layer(config: Config, hidden_size: int, streams: int, name: str) -> Layer:
    heads, head_dim = config.count("num_attention_heads"), config.count("head_dim")
    latent, groups = config.count("q_lora_rank"), config.count("o_groups")
    o_width = groups * config.count("o_lora_rank")
    sparse = name == "compressed_sparse_attention"
    rates = config.get("compress_rates")
    rate = 1 if name == "sliding_attention" else 4 if sparse else 128
    if isinstance(rates, dict) and rate > 1:
        rate = config.count(f"compress_rates, {name}", rates.get(name, rate), most=10**6)
    parts = Parts()
    parts.attention = Attention(
        "mla", heads, 1, head_dim, head_dim, config.count("sliding_window"),
        kv_lora_rank=head_dim, tokens_per_entry=rate,
    )  # fmt: skip
    parts.linear("q_a", "attention", latent, hidden_size, sharding="replicated")
    parts.linear("q_b", "attention", heads * head_dim, latent)
    parts.linear("kv", "attention", head_dim, hidden_size, sharding="replicated")
    parts.linear("o_a", "attention", o_width, heads * head_dim // groups)
    parts.linear("o_b", "attention", hidden_size, o_width)
    parts.vector(heads + latent + head_dim)
    if rate > 1:
        width = head_dim * (2 if sparse else 1)
        for part in ("compress_kv", "compress_gate"):
            parts.linear(part, "attention", width, hidden_size, sharding="replicated")
        parts.vector(rate * width + head_dim)
    if sparse:
        index_heads, index_dim = config.count("index_n_heads"), config.count("index_head_dim")
        for part in ("index_kv", "index_gate"):
            parts.linear(part, "attention", 2 * index_dim, hidden_size, sharding="replicated")
        parts.linear("index_q", "attention", index_heads * index_dim, latent)
        parts.linear("index_weights", "attention", index_heads, hidden_size)
        parts.vector(rate * 2 * index_dim + index_dim)
    total = config.count("num_experts")
    width = config.count("moe_intermediate_size")
    parts.linear("router", "router", total, hidden_size, sharding="replicated")
    parts.ffn(
        hidden_size, width, role="experts", count=total,
        active=config.count("num_experts_per_tok"), prefix="expert_",
    )  # fmt: skip
    shared = config.count("n_shared_experts", 0, least=0)
    parts.ffn(hidden_size, width * shared, role="shared_experts", prefix="shared_")
    mixes = streams * (2 + streams)
    parts.vector(2 * hidden_size + 2 * (mixes * streams * hidden_size + mixes + 3))
    return parts.layer()


ODD_DECODERS: dict[str, Callable[[Config, str], ModelSpec]] = {
    "cpmant": _cpmant,
    "deepseek_v4": _deepseek_v4,
    "hrm_text": _hrm,
    "jetmoe": _jetmoe,
    "rwkv": _rwkv,
    "xlstm": _xlstm,
    "zamba": _zamba,
    "zamba2": _zamba,
}
