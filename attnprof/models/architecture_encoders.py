"""A configuration of BERT or its kin -> its :class:`~attnprof.models.architecture.Architecture`."""

from dataclasses import dataclass

from attnprof.models.architecture import (
    Activation,
    Architecture,
    AttentionBlock,
    Block,
    Ffn,
    HeadTransform,
    Norm,
)
from attnprof.models.architecture_decoders import ACTIVATIONS
from attnprof.models.config import MAX_LAYERS, Config

NORM_EPS = 1e-12


@dataclass(frozen=True)
class Kin:
    """What an encoder computes otherwise than BERT."""

    positions_after_padding: bool = False
    """The first token's row is the one after that of the padding's token."""
    head_activation: Activation | None = None  # None: that of the feed-forward blocks
    norm_eps_key: str = "layer_norm_eps"
    activation_key: str = "hidden_act"
    width_key: str = "intermediate_size"
    has_token_types: bool = True


ROBERTA = Kin(positions_after_padding=True, head_activation="gelu")
ENCODERS = {
    "bert": Kin(),
    "camembert": ROBERTA,
    "distilbert": Kin(
        norm_eps_key="", activation_key="activation", width_key="hidden_dim", has_token_types=False
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
}


def encoder(config: Config, kind: str) -> Architecture:
    """The architecture of an encoder with a masked-language head, as ``kind`` computes.

    Raises:
        UsageError: A key is missing, wrong, or names what cannot be built.
    """
    kin = ENCODERS[kind]
    if config.flag("is_decoder"):
        raise config.wrong("is_decoder", True, "false: an encoder sees every token")
    hidden_size = config.count("hidden_size", most=10**7)
    eps = config.share(kin.norm_eps_key, NORM_EPS) if kin.norm_eps_key else NORM_EPS
    norm = Norm(kind="layer", eps=eps)
    activation = activation_of(config, kin.activation_key, "gelu")
    block = Block(
        attention=full_attention(config, "num_attention_heads"),
        ffn=Ffn(
            width=config.count(kin.width_key, most=10**8),
            activation=activation,
            gated=False,
            bias=True,
        ),
        norm=norm,
        placement="post",
    )
    num_positions = config.count("max_position_embeddings", most=10**8)
    first = 1 + config.count("pad_token_id", 1, least=0) if kin.positions_after_padding else 0
    if first >= num_positions:
        raise config.wrong("max_position_embeddings", num_positions, f"more than {first}")
    return Architecture(
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocab_size=config.count("vocab_size", most=10**8),
        max_len=num_positions - first,
        blocks=(block,) * config.count("num_hidden_layers", most=MAX_LAYERS),
        final_norm=None,
        num_positions=num_positions,
        first_position=first,
        num_token_types=(config.count("type_vocab_size", 0, least=0) if kin.has_token_types else 0),
        embedding_norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        head_transform=HeadTransform(activation=kin.head_activation or activation, norm=norm),
        head_bias=True,
    )


def full_attention(config: Config, heads_key: str, *, k_bias: bool = True) -> AttentionBlock:
    """Attention to all tokens, with biases, in heads that share out the hidden size.

    Raises:
        UsageError: They cannot share it out evenly.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    num_heads = config.count(heads_key, most=10**5)
    if hidden_size % num_heads:
        raise config.wrong(heads_key, num_heads, f"a divisor of {hidden_size}")
    head_dim = hidden_size // num_heads
    return AttentionBlock(
        num_q_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        scale=head_dim**-0.5,
        variant="full",
        q_bias=True,
        k_bias=k_bias,
        v_bias=True,
        o_bias=True,
    )


def activation_of(config: Config, key: str, default: str) -> Activation:
    """The activation that ``key`` names.

    Raises:
        UsageError: One that cannot be built.
    """
    name = config.text(key, default)
    if name not in ACTIVATIONS:
        raise config.wrong(key, name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
