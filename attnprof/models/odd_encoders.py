"""Encoders and encoder–decoders of a shape of their own: XLNet, Funnel, T5Gemma, Moonshine."""

from collections.abc import Callable
from dataclasses import replace

from attnprof.models.config import MAX_LAYERS, Config
from attnprof.models.decoders import decoder_layers
from attnprof.models.families import GEMMA2, GEMMA3, Family, Pattern
from attnprof.models.odd_decoders import assemble, embeddings
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, Layer, ModelSpec
from attnprof.models.towers import siglip_params


def _relative_layer(hidden_size: int, heads: int, head_dim: int, width: int, biases: bool) -> Parts:
    """Transformer-XL's layer: queries, keys, values, output and positions, with their biases."""
    parts = Parts()
    parts.attention = Attention("full", heads, heads, head_dim, head_dim, causal=False)
    inner = heads * head_dim
    parts.attention_projections(
        hidden_size, parts.attention, k_bias=biases, v_bias=biases, o_bias=biases
    )
    parts.linear("positions", "attention", inner, hidden_size)
    parts.vector(5 * inner + 4 * hidden_size)
    parts.ffn(hidden_size, width, gated=False, bias=True)
    return parts


def _xlnet(config: Config, architecture: str) -> ModelSpec:
    hidden_size, heads = config.count("hidden_size"), config.count("num_attention_heads")
    outer, tied = embeddings(config, architecture)
    outer.vector(hidden_size)
    if not architecture.endswith("Model") or "LMHead" in architecture:
        outer.vector(config.count("vocab_size"))
    head_dim = hidden_size // heads
    parts = _relative_layer(hidden_size, heads, head_dim, config.count("d_inner"), False)
    count = config.count("num_hidden_layers", most=MAX_LAYERS)
    return assemble(config, architecture, outer, (parts.layer(),) * count, tied=tied)


def _funnel(config: Config, architecture: str) -> ModelSpec:
    hidden_size, heads = config.count("hidden_size"), config.count("num_attention_heads")
    outer, tied = embeddings(config, architecture)
    outer.vector(2 * hidden_size)
    if not architecture.endswith("Model"):
        outer.vector(config.count("vocab_size"))
    parts = _relative_layer(
        hidden_size, heads, config.count("d_head"), config.count("d_inner"), True
    )
    blocks = config.counts("block_sizes", most=MAX_LAYERS)
    repeats = config.counts("block_repeats", most=100) or [1] * len(blocks)
    if len(repeats) != len(blocks):
        raise config.wrong("block_repeats", repeats, f"{len(blocks)} numbers, one a block")
    stored = sum(blocks)
    run = sum(size * again for size, again in zip(blocks, repeats, strict=True))
    layer = parts.layer()
    shared = replace(layer, is_shared=True)
    decoder = config.count("num_decoder_layers", 0, least=0)
    layers = (layer,) * stored + (shared,) * (run - stored) + (layer,) * decoder
    return assemble(config, architecture, outer, layers, tied=tied)


def _reformer(config: Config, architecture: str) -> ModelSpec:
    hidden_size, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.count("attention_head_size")
    vocab_size = config.count("vocab_size")
    outer = Parts()
    outer.embedding("embedding", vocab_size, hidden_size, sharding="split")
    if config.flag("axial_pos_embds", True):
        shape, widths = config.counts("axial_pos_shape"), config.counts("axial_pos_embds_dim")
        if len(shape) != len(widths):
            raise config.wrong("axial_pos_shape", shape, f"{len(widths)} numbers")
        outer.vector(sum(rows * width for rows, width in zip(shape, widths, strict=True)))
    else:
        outer.embedding("positions", config.count("max_position_embeddings"), hidden_size)
    outer.vector(4 * hidden_size)
    if not architecture.endswith("Model"):
        outer.linear("head", "head", vocab_size, 2 * hidden_size, bias=True)
    layers = []
    for kind in config.items("attn_layers") or []:
        parts = Parts()
        parts.attention = Attention("full", heads, heads, head_dim, head_dim, causal=False)
        for name in ("qk", "v") if kind == "lsh" else ("q", "k", "v"):
            parts.linear(name, "attention", heads * head_dim, hidden_size)
        parts.linear("o", "attention", hidden_size, heads * head_dim)
        parts.ffn(hidden_size, config.count("feed_forward_size"), gated=False, bias=True)
        parts.vector(4 * hidden_size)
        layers.append(parts.layer())
    return assemble(config, architecture, outer, layers, tied=False)


def _perceiver(config: Config, architecture: str) -> ModelSpec:
    """Latents that attend to the bytes once, then to each other, and are read by positions."""
    width, latent = config.count("d_model"), config.count("d_latents")
    vocab_size, longest = config.count("vocab_size"), config.count("max_position_embeddings")
    outer = Parts()
    outer.embedding("embedding", vocab_size, width)
    outer.embedding("positions", longest, width)
    outer.embedding("latents", config.count("num_latents"), latent)
    outer.embedding("output_positions", longest, width)
    outer.vector(vocab_size)
    qk = config.count("qk_channels", 8 * 32)
    value = config.count("v_channels", latent)
    heads = config.count("num_self_attention_heads")

    def block(query: int, source: int, qk_width: int, v_width: int, norms: int) -> Parts:
        parts = Parts()
        for name, rows, columns in (
            ("q", qk_width, query), ("k", qk_width, source), ("v", v_width, source),
            ("o", query, v_width),
        ):  # fmt: skip
            parts.linear(name, "attention", rows, columns, bias=True)
        parts.ffn(query, query, gated=False, bias=True)
        parts.vector(norms)
        return parts

    norms = 2 * latent + 2 * width
    stated_qk = config.optional_count("qk_channels")
    reader = block(
        latent, width, stated_qk or width, config.count("v_channels", width), norms + 2 * latent
    )
    writer = block(width, latent, qk, config.count("v_channels", width), norms + 2 * width)
    inner = block(latent, latent, stated_qk or latent, value, 4 * latent)
    head_dim = latent // heads
    inner.attention = Attention("full", heads, heads, head_dim, head_dim, causal=False)
    count = config.count("num_self_attends_per_block", most=MAX_LAYERS)
    spec_config = Config({**config.values, "hidden_size": latent}, config.where, config.model_type)
    layers = (reader.layer(), *(inner.layer(),) * count, writer.layer())
    return assemble(spec_config, architecture, outer, layers)


def _prophetnet(config: Config, architecture: str) -> ModelSpec:
    hidden_size = config.count("hidden_size")
    longest = config.count("max_position_embeddings")
    outer, tied = embeddings(config, architecture)
    decoder_only = "CausalLM" in architecture
    for side in ("decoder",) if decoder_only else ("encoder", "decoder"):
        outer.embedding(f"{side}_positions", longest, hidden_size)
        outer.vector(2 * hidden_size)
    outer.embedding("ngrams", config.count("ngram", 2), hidden_size)
    stacks: dict[str, tuple[Layer, ...]] = {}
    for side in ("encoder", "decoder"):
        heads = config.count(f"num_{side}_attention_heads")
        head_dim = hidden_size // heads
        parts = Parts()
        parts.attention = Attention(
            "full", heads, heads, head_dim, head_dim, causal=side == "decoder"
        )
        prefixes = [""]
        if side == "decoder":
            buckets = config.count("num_buckets", 32)
            parts.linear("relative_positions", "attention", buckets * heads, hidden_size, bias=True)
            if config.flag("add_cross_attention", True):
                parts.cross = replace(parts.attention, kind="cross")
                prefixes.append("cross_")
        for prefix in prefixes:
            parts.attention_projections(
                hidden_size, parts.attention, prefix=prefix,
                q_bias=True, k_bias=True, v_bias=True, o_bias=True,
            )  # fmt: skip
            parts.vector(2 * hidden_size)
        parts.ffn(hidden_size, config.count(f"{side}_ffn_dim"), gated=False, bias=True)
        parts.vector(2 * hidden_size)
        count = config.count(f"num_{side}_layers", most=MAX_LAYERS)
        stacks[side] = (parts.layer(),) * count
    encoder = () if decoder_only else stacks["encoder"]
    return assemble(config, architecture, outer, stacks["decoder"], encoder, tied)


def _moonshine(config: Config, architecture: str) -> ModelSpec:
    hidden_size = config.count("hidden_size")
    outer, tied = embeddings(config, architecture)
    outer.linear("convolution_1", "other", hidden_size, 127)
    outer.linear("convolution_2", "other", 2 * hidden_size, 7 * hidden_size, bias=True)
    outer.linear("convolution_3", "other", hidden_size, 6 * hidden_size, bias=True)
    outer.vector(4 * hidden_size)
    stacks = {}
    bias = config.flag("attention_bias")
    for side in ("encoder", "decoder"):
        heads = config.count(f"{side}_num_attention_heads")
        kv_heads = config.count(f"{side}_num_key_value_heads", heads)
        head_dim = hidden_size // heads
        parts = Parts()
        parts.attention = Attention(
            "full", heads, kv_heads, head_dim, head_dim, causal=side == "decoder"
        )
        prefixes = ("",) if side == "encoder" else ("", "cross_")
        for prefix in prefixes:
            parts.attention_projections(
                hidden_size, parts.attention, prefix=prefix, q_bias=bias, k_bias=bias, v_bias=bias
            )
        if side == "decoder":
            parts.cross = replace(parts.attention, kind="cross")
        width = config.count("intermediate_size")
        parts.ffn(hidden_size, width, gated=side == "decoder", bias=True)
        parts.vector((len(prefixes) + 1) * hidden_size)
        count = config.count(f"{side}_num_hidden_layers", most=MAX_LAYERS)
        stacks[side] = (parts.layer(),) * count
    return assemble(config, architecture, outer, stacks["decoder"], stacks["encoder"], tied)


def _dia(config: Config, architecture: str) -> ModelSpec:
    """Text in, audio codes of several channels out: one table and one head for all channels."""
    encoder, decoder = config.section("encoder_config"), config.section("decoder_config")
    width, source = decoder.count("hidden_size"), encoder.count("hidden_size")
    outer = Parts()
    outer.embedding("text", encoder.count("vocab_size"), source)
    codes = decoder.count("vocab_size") * decoder.count("num_channels")
    outer.embedding("embedding", codes, width, sharding="split")
    outer.linear("head", "head", codes, width)
    outer.vector(source + width)
    stacks = {}
    for section, size in ((encoder, source), (decoder, width)):
        heads, head_dim = section.count("num_attention_heads"), section.count("head_dim")
        kv_heads = section.count("num_key_value_heads", heads)
        parts = Parts()
        causal = section is decoder
        parts.attention = Attention("full", heads, kv_heads, head_dim, head_dim, causal=causal)
        parts.attention_projections(size, parts.attention)
        parts.vector((3 if causal else 2) * size)
        if causal:
            cross_heads = section.count("cross_num_attention_heads")
            cross_dim = section.count("cross_head_dim")
            cross_kv = section.count("cross_num_key_value_heads", cross_heads)
            parts.cross = Attention("cross", cross_heads, cross_kv, cross_dim, cross_dim)
            parts.attention_projections(size, parts.cross, prefix="cross_", source_size=source)
        parts.ffn(size, section.count("intermediate_size"))
        count = section.count("num_hidden_layers", most=MAX_LAYERS)
        stacks[causal] = (parts.layer(),) * count
    decoder.values.setdefault("max_position_embeddings", decoder.get("max_position_embeddings"))
    return assemble(decoder, architecture, outer, stacks[True], stacks[False], tied=False)


def _bidirectional(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(
        replace(layer, attention=layer.attention and replace(layer.attention, causal=False))
        for layer in layers
    )


def _t5gemma(config: Config, architecture: str) -> ModelSpec:
    """Two Gemma-2 stacks, the second of which attends to the first as well."""
    encoder, decoder = config.section("encoder"), config.section("decoder")
    width, source = decoder.count("hidden_size"), encoder.count("hidden_size")
    layers = decoder_layers(decoder, GEMMA2, width)
    with_cross = []
    for layer in layers:
        parts = Parts()
        assert layer.attention is not None
        shape = replace(layer.attention, kind="cross", window_len=None)
        parts.attention_projections(width, shape, prefix="cross_", source_size=source)
        with_cross.append(
            replace(
                layer,
                cross=shape,
                matrices=(*layer.matrices, *parts.matrices),
                vector_params=layer.vector_params + 2 * width,
            )
        )
    outer = Parts()
    outer.embedding("source", encoder.count("vocab_size"), source, sharding="split")
    outer.embedding("embedding", decoder.count("vocab_size"), width, sharding="split")
    tied = config.flag("tie_word_embeddings", True)
    if not tied:
        outer.linear("head", "head", decoder.count("vocab_size"), width)
    outer.vector(source + width)
    first = decoder_layers(encoder, GEMMA2, source)
    return assemble(decoder, architecture, outer, with_cross, _bidirectional(first), tied)


def _t5gemma2(config: Config, architecture: str) -> ModelSpec:
    """Two Gemma-3 stacks of one table; the second's attention reads both sides with one set."""
    encoder, decoder = config.section("encoder"), config.section("decoder")
    text = encoder.section("text_config")
    width, source = decoder.count("hidden_size"), text.count("hidden_size")
    family: Family = replace(GEMMA3, pattern=Pattern(6, key="sliding_window_pattern"))
    layers = decoder_layers(decoder, family, width)
    first = decoder_layers(text, family, source)
    both = [
        replace(layer, cross=layer.attention and replace(layer.attention, kind="cross"))
        for layer in layers
    ]
    outer = Parts()
    outer.embedding("embedding", text.count("vocab_size"), source, sharding="split")
    outer.vector(source + source + width)  # the end-of-image vector and both last norms
    tied = config.flag("tie_word_embeddings", True)
    if not tied:
        outer.linear("head", "head", decoder.count("vocab_size"), width)
    vision = encoder.section("vision_config")
    projector = vision.count("hidden_size") * (source + 1)
    spec = assemble(decoder, architecture, outer, both, _bidirectional(first), tied)
    return replace(spec, vision_params=siglip_params(vision) + projector)


ODD_ENCODERS: dict[str, Callable[[Config, str], ModelSpec]] = {
    "dia": _dia,
    "funnel": _funnel,
    "moonshine": _moonshine,
    "perceiver": _perceiver,
    "prophetnet": _prophetnet,
    "reformer": _reformer,
    "t5gemma": _t5gemma,
    "t5gemma2": _t5gemma2,
    "xlnet": _xlnet,
}
