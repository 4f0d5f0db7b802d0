"""BERT and its kin: a configuration -> layers that see every token and keep nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from attnprof.models.config import MAX_LAYERS, Config
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, Layer, ModelSpec


@dataclass(frozen=True)
class Encoder:
    """One family; the defaults are BERT's."""

    positions: int | None = 0
    """Learned positions, and how many rows the table has beyond the longest context."""
    embedding_norm: bool = True
    final_norm: bool = False
    head: Literal["transform", "bias", "none"] = "transform"
    """What stands before the projection to the vocabulary: a layer of its own, or its bias."""
    head_at_embedding_width: bool = False
    always_pooled: bool = False
    has_pooler: bool = True
    has_second_bias: bool = True
    """An untied projection to the vocabulary has a bias of its own beside the head's."""
    qkv_bias: bool | str = True
    ffn: Literal["plain", "gated", "grouped"] = "plain"
    layer_extra: str = ""
    model_extra: str = ""


BERT = Encoder()
ROBERTA = BERT

ENCODERS: dict[str, Encoder] = {
    "albert": Encoder(head_at_embedding_width=True),
    "bert": BERT,
    "bert-generation": Encoder(head="bias", has_pooler=False),
    "big_bird": Encoder(always_pooled=True, qkv_bias="use_bias"),
    "camembert": ROBERTA,
    "convbert": Encoder(
        head_at_embedding_width=True,
        has_pooler=False,
        has_second_bias=False,
        layer_extra="convbert",
    ),
    "data2vec-text": ROBERTA,
    "deberta": Encoder(has_pooler=False, layer_extra="deberta", model_extra="deberta"),
    "deberta-v2": Encoder(has_pooler=False, layer_extra="deberta_v2", model_extra="deberta_v2"),
    "distilbert": Encoder(has_pooler=False, has_second_bias=False),
    "electra": Encoder(head_at_embedding_width=True, has_pooler=False, has_second_bias=False),
    "ernie": Encoder(model_extra="ernie"),
    "flaubert": Encoder(head="bias", has_pooler=False, has_second_bias=False),
    "fnet": Encoder(always_pooled=True, layer_extra="fnet", model_extra="fnet"),
    "ibert": ROBERTA,
    "jina_embeddings_v3": Encoder(positions=None),
    "layoutlm": Encoder(always_pooled=True, model_extra="layoutlm"),
    "longformer": Encoder(layer_extra="longformer"),
    "luke": Encoder(always_pooled=True, layer_extra="luke", model_extra="luke"),
    "megatron-bert": Encoder(embedding_norm=False, final_norm=True),
    "mobilebert": Encoder(layer_extra="mobilebert", model_extra="mobilebert"),
    "mpnet": Encoder(model_extra="mpnet"),
    "mra": Encoder(positions=2, has_pooler=False),
    "nomic_bert": Encoder(positions=None, qkv_bias=False, ffn="gated", layer_extra="nomic_bert"),
    "nystromformer": Encoder(positions=2, has_pooler=False, layer_extra="nystromformer"),
    "rembert": Encoder(model_extra="rembert", head="none"),
    "roberta": ROBERTA,
    "roberta-prelayernorm": Encoder(final_norm=True),
    "roc_bert": Encoder(model_extra="roc_bert"),
    "roformer": Encoder(
        positions=None, head_at_embedding_width=True, has_pooler=False, model_extra="roformer"
    ),
    "squeezebert": Encoder(always_pooled=True, ffn="grouped"),
    "tapas": Encoder(model_extra="tapas"),
    "xlm": Encoder(head="bias", has_pooler=False, has_second_bias=False),
    "xlm-roberta": ROBERTA,
    "xlm-roberta-xl": Encoder(embedding_norm=False, final_norm=True),
    "xmod": Encoder(layer_extra="xmod", model_extra="xmod"),
    "yoso": Encoder(positions=2, has_pooler=False),
}


def build_encoder(config: Config, family: Encoder, architecture: str) -> ModelSpec:
    """The model that ``config`` describes: an encoder, or one used as a decoder.

    Raises:
        UsageError: A key is missing, wrong, absurd, or contradicts another one.
    """
    hidden_size = config.count("hidden_size", most=10**7)
    vocab_size = config.count("vocab_size", most=10**8)
    width = config.count("embedding_size", hidden_size)
    width = config.count("input_embedding_size", width)
    causal = "CausalLM" in architecture or architecture == "BertLMHeadModel"
    outer = Parts()
    outer.embedding("embedding", vocab_size, width, sharding="split")
    if family.positions is not None:
        longest = config.count("max_position_embeddings", most=10**8)
        position_width = hidden_size if config.model_type == "mobilebert" else width
        outer.embedding("positions", longest + family.positions, position_width)
    type_width = hidden_size if config.model_type == "mobilebert" else width
    outer.embedding("token_types", config.count("type_vocab_size", 0, least=0), type_width)
    if family.embedding_norm:
        outer.vector(2 * type_width)
    if width != hidden_size and config.model_type != "mobilebert":
        outer.linear("embedding_projection", "other", hidden_size, width, bias=True)
    if family.final_norm:
        outer.vector(2 * hidden_size)
    has_head = not architecture.endswith("Model") or "LMHead" in architecture
    tied = config.flag("tie_word_embeddings", True)
    if has_head:
        _head(config, family, outer, hidden_size, width, vocab_size, tied)
    if family.always_pooled or (not has_head and family.has_pooler):
        outer.linear("pooler", "other", hidden_size, hidden_size, bias=True)
    if family.model_extra:
        MODEL_EXTRAS[family.model_extra](config, outer, hidden_size)
    return ModelSpec(
        name="",
        model_type=config.model_type,
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        layers=encoder_layers(config, family, hidden_size, causal),
        outer=tuple(outer.matrices),
        outer_vector_params=outer.vectors,
        tied_embeddings=has_head and tied,
        max_position_embeddings=config.optional_count("max_position_embeddings"),
    )


def _head(
    config: Config,
    family: Encoder,
    outer: Parts,
    hidden_size: int,
    width: int,
    vocab_size: int,
    tied: bool,
) -> None:
    """The masked-language head: a transform with its norm, and the vocabulary's bias."""
    if family.head == "none":
        return
    inner = width if family.head_at_embedding_width else hidden_size
    if family.head == "transform":
        outer.linear("head_transform", "other", inner, hidden_size, bias=True)
        outer.vector(2 * inner)
    outer.vector(vocab_size)
    if not tied:
        outer.linear("head", "head", vocab_size, inner, bias=family.has_second_bias)


def encoder_layers(
    config: Config, family: Encoder, hidden_size: int, causal: bool
) -> tuple[Layer, ...]:
    """The layers; ALBERT's are all one, of which only the first is stored."""
    num_layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    parts = Parts()
    shape = _attention(config, hidden_size, causal)
    if family.layer_extra != "fnet":
        parts.attention = shape
        bias = config.flag(family.qkv_bias) if isinstance(family.qkv_bias, str) else family.qkv_bias
        if family.layer_extra not in ("convbert", "mobilebert"):
            parts.attention_projections(
                hidden_size, shape, q_bias=bias, k_bias=bias, v_bias=bias,
                o_bias=family.layer_extra != "nomic_bert",
            )  # fmt: skip
        if config.flag("add_cross_attention") and config.flag("is_decoder"):
            parts.cross = replace(shape, kind="cross")
            parts.attention_projections(
                hidden_size, shape, prefix="cross_", q_bias=bias, k_bias=bias, v_bias=bias,
                o_bias=True,
            )  # fmt: skip
            parts.vector(2 * hidden_size)
    if family.layer_extra != "mobilebert":
        width = config.count("intermediate_size", config.get("hidden_dim", 4 * hidden_size))
        parts.ffn(hidden_size, width, gated=family.ffn == "gated", bias=family.ffn != "gated")
        parts.vector(4 * hidden_size)
    if family.ffn == "grouped":
        _grouped(config, parts, hidden_size)
    if family.layer_extra in LAYER_EXTRAS:
        LAYER_EXTRAS[family.layer_extra](config, parts, hidden_size)
    layer = parts.layer()
    if config.model_type != "albert":
        return (layer,) * num_layers
    stored = config.count("num_hidden_groups", 1) * config.count("inner_group_num", 1)
    shared = replace(layer, is_shared=True)
    return tuple(layer if index < stored else shared for index in range(num_layers))


def _attention(config: Config, hidden_size: int, causal: bool) -> Attention:
    num_heads = config.count("num_attention_heads", 1, most=10**5)
    if hidden_size % num_heads:
        raise config.wrong("num_attention_heads", num_heads, f"a divisor of {hidden_size}")
    head_dim = hidden_size // num_heads
    return Attention("full", num_heads, num_heads, head_dim, head_dim, causal=causal)


def _grouped(config: Config, parts: Parts, hidden_size: int) -> None:
    """SqueezeBERT: each projection is a convolution in groups, so it has fewer weights."""
    groups = {
        "q": "q_groups", "k": "k_groups", "v": "v_groups", "o": "post_attention_groups",
        "up": "intermediate_groups", "down": "output_groups",
    }  # fmt: skip
    for index, matrix in enumerate(parts.matrices):
        divisor = config.count(groups[matrix.name], 1)
        parts.matrices[index] = replace(matrix, in_features=matrix.in_features // divisor)


def _convbert(config: Config, parts: Parts, hidden_size: int) -> None:
    heads = max(1, config.count("num_attention_heads") // config.count("head_ratio", 2))
    head_dim = hidden_size // config.count("num_attention_heads")
    width, kernel = heads * head_dim, config.count("conv_kernel_size", 9)
    parts.attention = Attention("full", heads, heads, head_dim, head_dim, causal=False)
    for name in ("q", "k", "v", "conv_out"):
        parts.linear(name, "attention", width, hidden_size, bias=True)
    parts.linear("conv_pointwise", "attention", width, hidden_size, bias=True)
    parts.linear("conv_kernel", "attention", heads * kernel, width, bias=True)
    parts.linear("o", "attention", hidden_size, hidden_size, bias=True)
    parts.vector(hidden_size * kernel)


def _deberta(config: Config, parts: Parts, hidden_size: int) -> None:
    parts.vector(-hidden_size)  # keys have no bias
    kinds = config.get("pos_att_type") or ()
    if config.flag("relative_attention"):
        if "c2p" in kinds:
            parts.linear("pos_k", "attention", hidden_size, hidden_size)
        if "p2c" in kinds:
            parts.linear("pos_q", "attention", hidden_size, hidden_size, bias=True)


def _deberta_v2(config: Config, parts: Parts, hidden_size: int) -> None:
    kinds = config.get("pos_att_type") or ()
    if config.flag("relative_attention") and not config.flag("share_att_key"):
        for name, mark in (("pos_k", "c2p"), ("pos_q", "p2c")):
            if mark in kinds:
                parts.linear(name, "attention", hidden_size, hidden_size, bias=True)


def _fnet(config: Config, parts: Parts, hidden_size: int) -> None:
    """Fourier mixing has no weights: nothing beyond the two norms and the block."""


def _longformer(config: Config, parts: Parts, hidden_size: int) -> None:
    for name in ("q_global", "k_global", "v_global"):
        parts.linear(name, "attention", hidden_size, hidden_size, bias=True)


def _luke(config: Config, parts: Parts, hidden_size: int) -> None:
    if config.flag("use_entity_aware_attention", True):
        for name in ("w2e_q", "e2w_q", "e2e_q"):
            parts.linear(name, "attention", hidden_size, hidden_size, bias=True)


def _mobilebert(config: Config, parts: Parts, hidden_size: int) -> None:
    inner = config.count("intra_bottleneck_size", 128)
    width = config.count("intermediate_size")
    heads = config.count("num_attention_heads")
    key_width = hidden_size if config.flag("use_bottleneck_attention") else inner
    head_dim = inner // heads
    parts.attention = Attention("full", heads, heads, head_dim, head_dim, causal=False)
    parts.linear("q", "attention", inner, key_width, bias=True)
    parts.linear("k", "attention", inner, key_width, bias=True)
    parts.linear("v", "attention", inner, hidden_size, bias=True)
    parts.linear("o", "attention", inner, inner, bias=True)
    parts.vector(2 * inner)
    for index in range(config.count("num_feedforward_networks", 4)):
        parts.ffn(inner, width, gated=False, bias=True, prefix=f"{index}_")
        parts.vector(2 * inner)
    parts.linear("bottleneck_out", "other", hidden_size, inner, bias=True)
    parts.vector(2 * hidden_size)
    shared = 1 + config.flag("key_query_shared_bottleneck", True)
    for index in range(shared):
        parts.linear(f"bottleneck_in_{index}", "other", inner, hidden_size, bias=True)
        parts.vector(2 * inner)


def _nystromformer(config: Config, parts: Parts, hidden_size: int) -> None:
    kernel = config.optional_count("conv_kernel_size")
    if kernel:
        parts.vector(config.count("num_attention_heads") * kernel)


def _xmod(config: Config, parts: Parts, hidden_size: int) -> None:
    inner = hidden_size // config.count("adapter_reduction_factor", 2)
    count = len(config.items("languages") or ())
    parts.linear("adapter_in", "other", inner, hidden_size, bias=True, count=count)
    parts.linear("adapter_out", "other", hidden_size, inner, bias=True, count=count)
    if config.flag("adapter_layer_norm"):
        parts.vector(2 * hidden_size)


def _deberta_model(config: Config, outer: Parts, hidden_size: int) -> None:
    if config.flag("relative_attention"):
        reach = config.count("max_relative_positions", -1, least=-1)
        reach = reach if reach > 0 else config.count("max_position_embeddings")
        outer.embedding("relative_positions", 2 * reach, hidden_size)
    if not config.flag("position_biased_input", True):
        outer.matrices = [matrix for matrix in outer.matrices if matrix.name != "positions"]


def _deberta_v2_model(config: Config, outer: Parts, hidden_size: int) -> None:
    buckets = config.count("position_buckets", -1, least=-1)
    if config.flag("relative_attention"):
        reach = config.count("max_relative_positions", -1, least=-1)
        reach = reach if reach > 0 else config.count("max_position_embeddings")
        outer.embedding("relative_positions", 2 * (buckets if buckets > 0 else reach), hidden_size)
    if "layer_norm" in config.text("norm_rel_ebd", "none"):
        outer.vector(2 * hidden_size)
    kernel = config.count("conv_kernel_size", 0, least=0)
    if kernel:
        outer.linear("convolution", "other", hidden_size, hidden_size * kernel, bias=True)
        outer.vector(2 * hidden_size)
    if not config.flag("position_biased_input", True):
        outer.matrices = [matrix for matrix in outer.matrices if matrix.name != "positions"]


def _ernie_model(config: Config, outer: Parts, hidden_size: int) -> None:
    if config.flag("use_task_id"):
        outer.embedding("task_types", config.count("task_type_vocab_size"), hidden_size)


def _fnet_model(config: Config, outer: Parts, hidden_size: int) -> None:
    outer.linear("projection", "other", hidden_size, hidden_size, bias=True)


def _layoutlm_model(config: Config, outer: Parts, hidden_size: int) -> None:
    rows = config.count("max_2d_position_embeddings", 1024)
    for name in ("x_positions", "y_positions", "h_positions", "w_positions"):
        outer.embedding(name, rows, hidden_size)


def _luke_model(config: Config, outer: Parts, hidden_size: int) -> None:
    width, rows = config.count("entity_emb_size"), config.count("entity_vocab_size")
    outer.embedding("entities", rows, width)
    if width != hidden_size:
        outer.linear("entity_projection", "other", hidden_size, width)
    outer.embedding("entity_positions", config.count("max_position_embeddings"), hidden_size)
    outer.embedding("entity_types", config.count("type_vocab_size", 0, least=0), hidden_size)
    outer.linear("entity_transform", "other", width, hidden_size, bias=True)
    if config.flag("tie_word_embeddings", True):  # it is the entities that are tied
        outer.linear("head", "head", config.count("vocab_size"), hidden_size)
    outer.vector(2 * hidden_size + 2 * width + rows)


def _mobilebert_model(config: Config, outer: Parts, hidden_size: int) -> None:
    width = config.count("embedding_size", 128)
    inputs = width * (3 if config.flag("trigram_input", True) else 1)
    outer.linear("embedding_projection", "other", hidden_size, inputs, bias=True)
    outer.linear("head_rest", "head", hidden_size - width, config.count("vocab_size"))


def _mpnet_model(config: Config, outer: Parts, hidden_size: int) -> None:
    outer.embedding(
        "relative_positions",
        config.count("relative_attention_num_buckets", 32),
        config.count("num_attention_heads"),
    )


def _rembert_model(config: Config, outer: Parts, hidden_size: int) -> None:
    vocab_size, width = config.count("vocab_size"), config.count("output_embedding_size", 1664)
    outer.linear("head_transform", "other", width, hidden_size, bias=True)
    outer.linear("head", "head", vocab_size, width, bias=True)
    outer.vector(2 * width)


def _roc_bert_model(config: Config, outer: Parts, hidden_size: int) -> None:
    inputs = hidden_size
    for name in ("pronunciation", "shape"):
        width = config.count(f"{name}_embed_dim")
        outer.embedding(name, config.count(f"{name}_vocab_size"), width)
        inputs += width if config.flag(f"enable_{name}", True) else 0
    if config.flag("concat_input", True):
        outer.linear("map_inputs", "other", hidden_size, inputs, bias=True)


def _roformer_model(config: Config, outer: Parts, hidden_size: int) -> None:
    head_dim = hidden_size // config.count("num_attention_heads")
    outer.embedding("positions", config.count("max_position_embeddings"), head_dim)


def _tapas_model(config: Config, outer: Parts, hidden_size: int) -> None:
    for index, rows in enumerate(config.items("type_vocab_sizes") or ()):
        if not isinstance(rows, int) or rows < 1:
            raise config.wrong("type_vocab_sizes", rows, "a whole number")
        outer.embedding(f"token_types_{index}", rows, hidden_size)


def _xmod_model(config: Config, outer: Parts, hidden_size: int) -> None:
    if config.flag("pre_norm"):
        outer.vector(2 * hidden_size)


LAYER_EXTRAS: dict[str, Callable[[Config, Parts, int], None]] = {
    "convbert": _convbert,
    "deberta": _deberta,
    "deberta_v2": _deberta_v2,
    "fnet": _fnet,
    "longformer": _longformer,
    "luke": _luke,
    "mobilebert": _mobilebert,
    "nystromformer": _nystromformer,
    "xmod": _xmod,
}

MODEL_EXTRAS: dict[str, Callable[[Config, Parts, int], None]] = {
    "deberta": _deberta_model,
    "deberta_v2": _deberta_v2_model,
    "ernie": _ernie_model,
    "fnet": _fnet_model,
    "layoutlm": _layoutlm_model,
    "luke": _luke_model,
    "mobilebert": _mobilebert_model,
    "mpnet": _mpnet_model,
    "rembert": _rembert_model,
    "roc_bert": _roc_bert_model,
    "roformer": _roformer_model,
    "tapas": _tapas_model,
    "xmod": _xmod_model,
}
