"""BART, T5 and their kin: a configuration -> an encoder, and a decoder that attends to it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from attnprof.models.config import MAX_LAYERS, Config
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, Layer, ModelSpec


@dataclass(frozen=True)
class Seq2Seq:
    """One family; the defaults are BART's."""

    style: Literal["bart", "t5"] = "bart"
    positions: int | None = 2
    """Learned positions, and how many rows the table has beyond the longest context."""
    embedding_norm: bool = True
    final_norm: bool = False
    bias: bool | str = True
    k_bias: bool = True
    encoder_extra: str = ""
    outer_extra: str = ""
    bias_in_every_layer: bool = False
    """Relative positions are learned in each layer (UMT5), not in the first alone (T5)."""


BART = Seq2Seq()
T5 = Seq2Seq("t5", positions=None, embedding_norm=False, final_norm=True, bias=False)

SEQ2SEQ: dict[str, Seq2Seq] = {
    "bart": BART,
    "bigbird_pegasus": Seq2Seq(positions=0, bias="use_bias"),
    "blenderbot": Seq2Seq(positions=0, embedding_norm=False, final_norm=True),
    "blenderbot-small": Seq2Seq(positions=0),
    "fsmt": Seq2Seq(embedding_norm=False, outer_extra="fsmt"),
    "led": Seq2Seq(positions=0, encoder_extra="led"),
    "longt5": replace(T5, encoder_extra="longt5"),
    "m2m_100": Seq2Seq(positions=None, embedding_norm=False, final_norm=True),
    "marian": Seq2Seq(positions=0, embedding_norm=False, outer_extra="marian"),
    "mbart": Seq2Seq(final_norm=True),
    "mt5": T5,
    "mvp": BART,
    "nllb-moe": Seq2Seq(positions=None, embedding_norm=False, final_norm=True),
    "pegasus": Seq2Seq(positions=0, embedding_norm=False, final_norm=True),
    "pegasus_x": Seq2Seq(positions=None, embedding_norm=False, final_norm=True, bias=False,
                         encoder_extra="pegasus_x", outer_extra="pegasus_x"),
    "plbart": BART,
    "pop2piano": replace(T5, outer_extra="pop2piano"),
    "seamless_m4t": Seq2Seq(positions=None, embedding_norm=False, final_norm=True),
    "seamless_m4t_v2": Seq2Seq(positions=None, embedding_norm=False, final_norm=True),
    "speech_to_text": Seq2Seq(positions=None, embedding_norm=False, final_norm=True,
                              outer_extra="speech_to_text"),
    "switch_transformers": T5,
    "t5": T5,
    "trocr": BART,
    "umt5": replace(T5, bias_in_every_layer=True),
    "whisper": Seq2Seq(positions=0, embedding_norm=False, final_norm=True, k_bias=False,
                       outer_extra="whisper"),
}  # fmt: skip


def build_seq2seq(config: Config, family: Seq2Seq, architecture: str) -> ModelSpec:
    """The model that ``config`` describes; the decoder alone where the class is a causal one.

    Raises:
        UsageError: A key is missing, wrong, absurd, or contradicts another one.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    vocab_size = config.count("vocab_size", most=10**8)
    decoder_only = "CausalLM" in architecture
    encoder_only = architecture.endswith("EncoderModel")
    outer = Parts()
    outer.embedding("embedding", vocab_size, hidden_size, sharding="split")
    sides = ("decoder",) if decoder_only else ("encoder",) if encoder_only else SIDES
    for side in sides:
        if family.positions is not None and config.flag("use_learned_position_embeddings", True):
            rows = _positions(config, side) + family.positions
            outer.embedding(f"{side}_positions", rows, hidden_size)
        norms = (2 if family.style == "bart" else 1) * (
            (family.embedding_norm and config.flag("layernorm_embedding", True)) + family.final_norm
        )
        outer.vector(norms * hidden_size)
    has_head = not architecture.endswith("Model") or architecture.endswith("MTModel")
    tied = config.flag("tie_word_embeddings", True)
    # The library leaves the head of this decoder alone untied, whatever its flag says.
    if decoder_only and config.model_type == "bigbird_pegasus":
        tied = False
    if has_head and not encoder_only and not tied and family.outer_extra != "fsmt":
        outer.linear("head", "head", vocab_size, hidden_size)
    if family.outer_extra:
        OUTER_EXTRAS[family.outer_extra](config, outer, hidden_size, decoder_only)
    encoder = () if decoder_only else _stack(config, family, hidden_size, "encoder")
    decoder = () if encoder_only else _stack(config, family, hidden_size, "decoder")
    # Untied, the library stores a table for each side as well (T5 apart); checkpoints need not.
    untied = has_head and not decoder_only and not tied
    untied = untied and config.model_type not in ("fsmt", "t5", "mt5", "umt5")
    return ModelSpec(
        name="",
        model_type=config.model_type,
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        layers=decoder,
        encoder_layers=encoder,
        outer=tuple(outer.matrices),
        outer_vector_params=outer.vectors,
        tied_embeddings=has_head and tied,
        max_position_embeddings=config.optional_count("max_target_positions")
        or config.optional_count("max_position_embeddings"),
        max_source_len=config.optional_count("max_source_positions"),
        exact=not untied,
        notes=("untied tables: the sides' own ones are not counted",) if untied else (),
    )


SIDES = ("encoder", "decoder")


def _positions(config: Config, side: str) -> int:
    keys = {
        "encoder": ("max_encoder_position_embeddings", "max_source_positions"),
        "decoder": ("max_decoder_position_embeddings", "max_target_positions"),
    }
    for key in keys[side]:
        if config.get(key) is not None:
            return config.count(key)
    return config.count("max_position_embeddings", most=10**8)


def _stack(config: Config, family: Seq2Seq, hidden_size: int, side: str) -> tuple[Layer, ...]:
    """The layers of one side, equal ones being one object."""
    if family.style == "t5":
        num_layers = config.count("num_hidden_layers", most=MAX_LAYERS)
        if side == "decoder":
            num_layers = config.count("num_decoder_layers", num_layers, most=MAX_LAYERS)
    else:
        num_layers = config.count(f"{side}_layers", most=MAX_LAYERS)
    step = _sparse_step(config, side, num_layers)
    known: dict[Layer, Layer] = {}
    layers = []
    for index in range(num_layers):
        sparse = step > 0 and (
            index % step == 1 or step == 1
            if config.model_type == "switch_transformers"
            else (index + 1) % step == 0
        )
        layer = _layer(config, family, hidden_size, side, index, sparse)
        layers.append(known.setdefault(layer, layer))
    return tuple(layers)


def _sparse_step(config: Config, side: str, num_layers: int) -> int:
    """Every which layer has experts; 0 where none has."""
    if config.get("num_experts") is None:
        return 0
    if config.model_type == "switch_transformers":
        sparse = config.count(f"num_sparse_{side}_layers", 0, least=0)
        return num_layers // sparse if sparse else 0
    return config.count(f"{side}_sparse_step", 0, least=0)


def _layer(
    config: Config, family: Seq2Seq, hidden_size: int, side: str, index: int, sparse: bool
) -> Layer:
    parts = Parts()
    bias = config.flag(family.bias) if isinstance(family.bias, str) else family.bias
    shape = _shape(config, family, hidden_size, side)
    norms = 2 if side == "encoder" else 3
    norm_size = hidden_size if family.style == "t5" else 2 * hidden_size
    parts.vector(norms * norm_size)
    parts.attention = shape
    k_bias = bias and family.k_bias
    parts.attention_projections(
        hidden_size, shape, q_bias=bias, k_bias=k_bias, v_bias=bias, o_bias=bias
    )
    if side == "decoder":
        parts.cross = replace(shape, kind="cross")
        source_size = config.count("cross_attention_hidden_size", hidden_size)
        parts.attention_projections(
            hidden_size, shape, prefix="cross_", source_size=source_size,
            q_bias=bias, k_bias=k_bias, v_bias=bias, o_bias=bias,
        )  # fmt: skip
    if family.style == "t5" and (index == 0 or family.bias_in_every_layer):
        parts.vector(config.count("relative_attention_num_buckets", 32) * shape.num_q_heads)
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    width_key = "intermediate_size" if family.style == "t5" else f"{side}_ffn_dim"
    width = config.count(width_key, most=10**8)
    experts = config.count("num_experts", 1) if sparse else 1
    if sparse:
        parts.linear(
            "router", "router", experts, hidden_size, bias=config.flag("router_bias"),
            sharding="replicated",
        )  # fmt: skip
    active = 1 if config.model_type == "switch_transformers" else 2
    # BART's blocks have biases even where its attention is told to have none.
    parts.ffn(
        hidden_size, width, gated=gated, bias=family.style == "bart",
        role="experts" if sparse else "ffn", count=experts, active=min(active, experts),
    )  # fmt: skip
    if side == "encoder" and family.encoder_extra:
        ENCODER_EXTRAS[family.encoder_extra](config, parts, hidden_size, index)
    return parts.layer()


def _shape(config: Config, family: Seq2Seq, hidden_size: int, side: str) -> Attention:
    if family.style == "t5":
        num_heads = config.count("num_attention_heads", most=10**5)
        head_dim = config.count("head_dim", hidden_size // num_heads)
    else:
        num_heads = config.count(f"{side}_attention_heads", most=10**5)
        if hidden_size % num_heads:
            raise config.wrong(f"{side}_attention_heads", num_heads, f"a divisor of {hidden_size}")
        head_dim = hidden_size // num_heads
    return Attention("full", num_heads, num_heads, head_dim, head_dim, causal=side == "decoder")


def _led(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    for name in ("q_global", "k_global", "v_global"):
        parts.linear(name, "attention", hidden_size, hidden_size, bias=True)


def _longt5(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    if config.text("encoder_attention_type", "local") == "transient-global":
        parts.vector(hidden_size)
        if index == 0:
            buckets = config.count("relative_attention_num_buckets", 32)
            parts.vector(buckets * config.count("num_attention_heads"))


def _pegasus_x(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    parts.vector(2 * hidden_size)


def _fsmt(config: Config, outer: Parts, hidden_size: int, decoder_only: bool) -> None:
    if not config.flag("tie_word_embeddings"):
        outer.embedding("source", config.count("src_vocab_size"), hidden_size, sharding="split")
        outer.linear("head", "head", config.count("vocab_size"), hidden_size)


def _marian(config: Config, outer: Parts, hidden_size: int, decoder_only: bool) -> None:
    if not config.flag("share_encoder_decoder_embeddings", True) and not decoder_only:
        rows = config.count("decoder_vocab_size", config.count("vocab_size"))
        outer.embedding("target", rows, hidden_size, sharding="split")


def _pegasus_x_outer(config: Config, outer: Parts, hidden_size: int, decoder_only: bool) -> None:
    outer.embedding("global_tokens", config.count("num_global_tokens", 32), hidden_size)


def _pop2piano(config: Config, outer: Parts, hidden_size: int, decoder_only: bool) -> None:
    outer.embedding("composers", config.count("composer_vocab_size"), hidden_size)
    if config.flag("tie_word_embeddings", True):  # its head is stored all the same
        outer.linear("head", "head", config.count("vocab_size"), hidden_size)


def _whisper(config: Config, outer: Parts, hidden_size: int, decoder_only: bool) -> None:
    if decoder_only:
        return
    bins = config.count("num_mel_bins")
    outer.linear("convolution_1", "other", hidden_size, 3 * bins, bias=True)
    outer.linear("convolution_2", "other", hidden_size, 3 * hidden_size, bias=True)


def _speech_to_text(config: Config, outer: Parts, hidden_size: int, decoder_only: bool) -> None:
    channels = config.count("input_feat_per_channel") * config.count("input_channels", 1)
    middle = config.count("conv_channels")
    kernels = config.items("conv_kernel_sizes") or [5, 5]
    for index, kernel in enumerate(kernels):
        last = index == len(kernels) - 1
        width = 2 * hidden_size if last else middle
        size = config.count("conv_kernel_sizes[]", kernel)
        outer.linear(f"convolution_{index}", "other", width, channels * size, bias=True)
        channels = width // 2  # the gated unit halves them


ENCODER_EXTRAS: dict[str, Callable[[Config, Parts, int, int], None]] = {
    "led": _led,
    "longt5": _longt5,
    "pegasus_x": _pegasus_x,
}

OUTER_EXTRAS: dict[str, Callable[[Config, Parts, int, bool], None]] = {
    "fsmt": _fsmt,
    "marian": _marian,
    "pegasus_x": _pegasus_x_outer,
    "pop2piano": _pop2piano,
    "speech_to_text": _speech_to_text,
    "whisper": _whisper,
}
