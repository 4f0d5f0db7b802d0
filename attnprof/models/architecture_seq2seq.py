"""A configuration of T5, BART, Whisper or their kin -> its
:class:`~attnprof.models.architecture.Architecture`: the decoder, with the encoder it reads."""

from dataclasses import replace

from attnprof.models.architecture import (
    Architecture,
    AttentionBlock,
    Block,
    Ffn,
    Norm,
    Placement,
    RelativeBias,
)
from attnprof.models.architecture_decoders import ACTIVATIONS
from attnprof.models.architecture_encoders import activation_of, full_attention
from attnprof.models.config import MAX_LAYERS, Config
from attnprof.models.seq2seq import SEQ2SEQ as SHAPES

LAYER_NORM = Norm(kind="layer", eps=1e-5)
BARTS = ("bart", "blenderbot", "marian", "mbart", "pegasus", "plbart")
T5S = ("mt5", "t5")
SEQ2SEQ = (*BARTS, *T5S, "whisper")


def seq2seq(config: Config, kind: str) -> Architecture:
    """The architecture of an encoder–decoder whose arithmetic is that of ``kind``.

    Raises:
        UsageError: A key is missing, wrong, or names what cannot be built.
    """
    if kind in T5S:
        return _t5(config, kind)
    return _whisper(config) if kind == "whisper" else _bart(config, kind)


def _bart(config: Config, kind: str) -> Architecture:
    """One embedding for source, target and head; norms after each sum, or before each part where
    there is a norm at the end. BART's positions begin at row 2, after fairseq's padding.

    Source:
        Lewis et al. 2020, "BART", arXiv:1910.13461, section 2.1; fairseq's ``models/bart``.
    """
    for key in ("tie_word_embeddings", "share_encoder_decoder_embeddings"):
        if not config.flag(key, True):
            raise config.wrong(key, False, "true: source, target and head share one embedding")
    shape = SHAPES[kind]
    placement: Placement = "pre" if shape.final_norm else "post"
    hidden_size = config.count("hidden_size", most=10**7)
    max_len = config.count("max_position_embeddings", most=10**8)
    model = Architecture(
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocab_size=config.count("vocab_size", most=10**8),
        max_len=max_len,
        blocks=_blocks(config, "decoder", placement),
        final_norm=LAYER_NORM if shape.final_norm else None,
        embedding_scale=_embedding_scale(config, hidden_size),
        num_positions=max_len + (shape.positions or 0),
        first_position=shape.positions or 0,
        embedding_norm=LAYER_NORM if shape.embedding_norm else None,
        tied_head=True,
        head_bias=True,
    )
    return replace(model, encoder=_without_head(model, _blocks(config, "encoder", placement)))


def _whisper(config: Config) -> Architecture:
    """Norms before each part and at the end; the source comes as states of its encoder, which
    turns sound into them and has no tokens.

    Source:
        Radford et al. 2023, "Whisper", arXiv:2212.04356, section 2.2; OpenAI's ``model.py`` (keys
        have no bias).
    """
    hidden_size = config.count("hidden_size", most=10**7)
    max_len = config.count("max_target_positions", 448, most=10**8)
    return Architecture(
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocab_size=config.count("vocab_size", most=10**8),
        max_len=max_len,
        blocks=_blocks(config, "decoder", "pre", k_bias=False),
        final_norm=LAYER_NORM,
        num_positions=max_len,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def _t5(config: Config, kind: str) -> Architecture:
    """Scores that are not scaled, with a bias of the first layer's table; RMS norms; no biases.

    The head of the first version is the embedding, and is given states times d^−½; that of
    version 1.1 is a matrix of its own, and they are not scaled. ``tie_word_embeddings`` tells
    them apart. mT5 scales them nowhere.

    Source:
        Raffel et al. 2020, "T5", arXiv:1910.10683, section 2.1; Shazeer 2020, arXiv:2002.05202
        (gated); the authors' Mesh TensorFlow code.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    num_heads = config.count("num_attention_heads", most=10**5)
    head_dim = config.count("head_dim", 64)
    norm = Norm(eps=config.share("layer_norm_epsilon", 1e-6))
    seen = AttentionBlock(
        num_q_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        scale=1.0,
        variant="full",
    )
    placed = replace(seen, relative=_relative(config))
    encoder_block = Block(attention=placed, ffn=_t5_ffn(config), norm=norm)
    decoder_block = replace(encoder_block, attention=replace(placed, variant="causal"), cross=seen)
    num_layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    num_decoder_layers = config.count("num_decoder_layers", num_layers, most=MAX_LAYERS)
    tied = config.flag("tie_word_embeddings", True)
    model = Architecture(
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocab_size=config.count("vocab_size", most=10**8),
        max_len=config.count("max_position_embeddings", 512, most=10**8),
        blocks=(decoder_block,) * num_decoder_layers,
        final_norm=norm,
        tied_head=tied,
        head_scale=hidden_size**-0.5 if tied and kind == "t5" else 1.0,
    )
    return replace(model, encoder=_without_head(model, (encoder_block,) * num_layers))


def _relative(config: Config) -> RelativeBias:
    """T5's buckets, in the encoder shared out between both directions."""
    num_buckets = config.count("relative_attention_num_buckets", 32, least=4)
    max_distance = config.count("relative_attention_max_distance", 128)
    if num_buckets % 4:
        raise config.wrong("relative_attention_num_buckets", num_buckets, "a multiple of 4")
    if max_distance <= num_buckets // 2:
        expected = f"more than half of the {num_buckets} buckets"
        raise config.wrong("relative_attention_max_distance", max_distance, expected)
    return RelativeBias(num_buckets=num_buckets, max_distance=max_distance)


def _t5_ffn(config: Config) -> Ffn:
    stated = config.text("feed_forward_proj", "relu")
    first, _, second = stated.partition("-")
    # The library reads gated-gelu as the tanh form, which is what version 1.1 was trained with.
    name = "gelu_new" if stated == "gated-gelu" else second or first
    if name not in ACTIVATIONS or (second and first != "gated"):
        raise config.wrong("feed_forward_proj", stated, "relu, gated-gelu or gated-silu")
    return Ffn(
        width=config.count("intermediate_size", most=10**8),
        activation=ACTIVATIONS[name],
        gated=bool(second),
    )


def _blocks(
    config: Config, side: str, placement: Placement, *, k_bias: bool = True
) -> tuple[Block, ...]:
    """BART's layers of one side; a decoder's look back, and at the source."""
    seen = full_attention(config, f"{side}_attention_heads", k_bias=k_bias)
    is_decoder = side == "decoder"
    block = Block(
        attention=replace(seen, variant="causal") if is_decoder else seen,
        ffn=Ffn(
            width=config.count(f"{side}_ffn_dim", most=10**8),
            activation=activation_of(config, "activation_function", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=LAYER_NORM,
        placement=placement,
        cross=seen if is_decoder else None,
    )
    return (block,) * config.count(f"{side}_layers", most=MAX_LAYERS)


def _embedding_scale(config: Config, hidden_size: int) -> float:
    return float(hidden_size**0.5) if config.flag("scale_embedding") else 1.0


def _without_head(model: Architecture, blocks: tuple[Block, ...]) -> Architecture:
    """The encoder beside a decoder: the same embedding and positions, and states, not logits."""
    return replace(
        model, blocks=blocks, has_head=False, tied_head=False, head_bias=False, head_scale=1.0
    )
