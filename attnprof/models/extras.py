"""What single families add to the common shape of a decoder, and how their heads differ."""

from collections.abc import Callable

from attnprof.models.config import Config
from attnprof.models.families import Family
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, CacheKind


def attention_shape(
    config: Config,
    family: Family,
    hidden_size: int,
    index: int,
    kind: CacheKind,
    window_len: int | None,
) -> Attention:
    """Heads and widths of the attention of layer ``index``.

    Raises:
        UsageError: Heads that do not divide as they must.
    """
    num_heads = config.count("num_attention_heads", most=10**5)
    per_layer = config.items("num_attention_heads_per_layer")
    if per_layer and index < len(per_layer):
        num_heads = config.count("num_attention_heads_per_layer[]", per_layer[index])
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    head_dim = config.optional_count("head_dim")
    v_head_dim = config.optional_count("v_head_dim")
    reads_other = False
    if family.extra == "falcon" and not config.flag("new_decoder_architecture"):
        num_kv_heads = 1 if config.flag("multi_query") else num_heads
    elif family.extra == "gpt_bigcode" and config.flag("multi_query"):
        num_kv_heads = 1
    elif family.extra in ("gemma3n", "gemma4"):
        num_layers = config.count("num_hidden_layers")
        shared = config.count("num_kv_shared_layers", 0, least=0)
        reads_other = shared > 0 and index >= num_layers - shared
        if family.extra == "gemma4" and kind == "full":
            head_dim = config.count("global_head_dim", head_dim)
            if config.flag("attention_k_eq_v"):
                num_kv_heads = config.count("num_global_key_value_heads", num_kv_heads)
    if head_dim is None:
        # Some of the library's defaults do not divide; a file that states both must.
        stated = config.says("hidden_size") and config.says("num_attention_heads")
        if hidden_size < num_heads or (stated and hidden_size % num_heads):
            raise config.wrong(
                "num_attention_heads", num_heads, f"a divisor of hidden_size, {hidden_size}"
            )
        head_dim = hidden_size // num_heads
    if num_heads % num_kv_heads:
        raise config.wrong(
            "num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads, {num_heads}"
        )
    sees_all = config.get("use_bidirectional_attention") in (True, "all")
    return Attention(
        kind, num_heads, num_kv_heads, head_dim, v_head_dim or head_dim, window_len,
        causal=family.causal and not sees_all, reads_other_layer=reads_other,
    )  # fmt: skip


def _shape(parts: Parts) -> Attention:
    assert parts.attention is not None
    return parts.attention


def _apertus(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    parts.vector(2)  # the two slopes of its activation


def _bitnet(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    parts.vector(hidden_size + config.count("intermediate_size"))  # two norms inside the blocks


def _diffllama(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    parts.vector(4 * _shape(parts).head_dim)  # the lambdas of differential attention


def _doge(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    shape = _shape(parts)
    parts.linear(
        "dt", "attention", shape.num_kv_heads, shape.num_kv_heads * shape.head_dim,
        bias=config.flag("attention_bias"),
    )  # fmt: skip
    parts.vector(shape.num_kv_heads + 2 * hidden_size)


def _falcon(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    # The table counts one norm; a sequential block has two, and so has the new parallel one.
    parallel = config.flag("parallel_attn", True)
    two_in_parallel = config.get("num_ln_in_parallel_attn") == 2 or (
        config.flag("new_decoder_architecture") and config.get("num_ln_in_parallel_attn") is None
    )
    if not parallel or (config.flag("new_decoder_architecture") and two_in_parallel):
        parts.vector(2 * hidden_size)


def _gemma3n(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    inputs = config.count("altup_num_inputs", 4)
    rank = config.count("laurel_rank", 64)
    per_layer = config.count("hidden_size_per_layer_input", 256)
    parts.linear("laurel_left", "other", rank, hidden_size)
    parts.linear("laurel_right", "other", hidden_size, rank)
    parts.linear("per_layer_gate", "other", per_layer, hidden_size)
    parts.linear("per_layer_up", "other", hidden_size, per_layer)
    parts.linear("altup_router", "router", inputs, hidden_size, sharding="replicated")
    parts.vector(inputs * inputs + inputs**3 + 4 * hidden_size)


def _gemma3n_model(config: Config, parts: Parts, hidden_size: int) -> None:
    inputs = config.count("altup_num_inputs", 4)
    per_layer = config.count("hidden_size_per_layer_input", 256)
    width = per_layer * config.count("num_hidden_layers")
    parts.embedding("per_layer", config.count("vocab_size_per_layer_input"), width)
    parts.linear("per_layer_projection", "other", width, hidden_size)
    for name in ("altup_in", "altup_out"):
        parts.linear(name, "other", hidden_size, hidden_size, count=inputs - 1, active=inputs - 1)
    parts.vector(per_layer)


def _gemma4(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    per_layer = config.count("hidden_size_per_layer_input", 0, least=0)
    if per_layer:
        parts.linear("per_layer_gate", "other", per_layer, hidden_size)
        parts.linear("per_layer_up", "other", hidden_size, per_layer)
        parts.vector(hidden_size)
    if config.flag("use_double_wide_mlp") and _shape(parts).reads_other_layer:
        parts.ffn(hidden_size, config.count("intermediate_size"), prefix="wide_")
    if config.flag("enable_moe_block"):
        total = config.count("num_experts", most=100_000)
        parts.linear("router", "router", total, hidden_size, sharding="replicated")
        parts.ffn(
            hidden_size, config.count("moe_intermediate_size"), role="experts", count=total,
            active=config.count("num_experts_per_tok"), prefix="expert_",
        )  # fmt: skip
        parts.vector(4 * hidden_size + total)  # three norms, the router's scale, one an expert


def _gemma4_model(config: Config, parts: Parts, hidden_size: int) -> None:
    per_layer = config.count("hidden_size_per_layer_input", 0, least=0)
    if per_layer:
        width = per_layer * config.count("num_hidden_layers")
        parts.embedding("per_layer", config.count("vocab_size_per_layer_input"), width)
        parts.linear("per_layer_projection", "other", width, hidden_size)
        parts.vector(per_layer)


def _gpt_neox_japanese(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    if index == config.count("num_hidden_layers") - 1:
        parts.vector(hidden_size)  # only the last layer's output projection has a bias


def _sinks(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    parts.vector(_shape(parts).num_q_heads)


def _post_norms(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    if config.flag("use_post_norm"):
        parts.vector(2 * hidden_size)


def _longcat_flash(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    """Two attentions and two dense blocks a layer, and experts of which some do nothing."""
    matrices, vectors = list(parts.matrices), parts.vectors
    parts.matrices += matrices
    parts.vector(vectors)
    for name in ("first_", "second_"):
        parts.ffn(hidden_size, config.count("intermediate_size"), prefix=name)
    total = config.count("num_experts")
    idle = config.count("zero_expert_num", 0, least=0)
    width = config.count("expert_ffn_hidden_size")
    active = config.count("num_experts_per_tok")
    parts.linear("router", "router", total + idle, hidden_size, sharding="replicated")
    # The library allocates the idle experts' first matrix as well.
    for name in ("expert_gate", "expert_up"):
        parts.linear(name, "experts", width, hidden_size, count=total + idle, active=active)
    parts.linear("expert_down", "experts", hidden_size, width, count=total, active=active)


def _modernbert(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    norms = 1 + config.flag("norm_bias")
    parts.vector((2 * norms - 2) * hidden_size)
    if index == 0:
        parts.vector(-norms * hidden_size)  # the first layer has no norm before its attention


def _modernbert_model(config: Config, parts: Parts, hidden_size: int) -> None:
    bias = config.flag("classifier_bias")
    parts.linear("head_transform", "other", hidden_size, hidden_size, bias=bias)
    parts.vector((5 if config.flag("norm_bias") else 2) * hidden_size)


def _moshi_model(config: Config, parts: Parts, hidden_size: int) -> None:
    parts.embedding("padding", 1, hidden_size)


def _mllama_model(config: Config, parts: Parts, hidden_size: int) -> None:
    parts.embedding("image_tokens", 8, hidden_size)


def _opt_model(config: Config, parts: Parts, hidden_size: int) -> None:
    width = config.count("word_embed_proj_dim", hidden_size)
    if width != hidden_size:
        parts.linear("project_in", "other", hidden_size, width)
        parts.linear("project_out", "other", width, hidden_size)
    if not config.flag("do_layer_norm_before", True) or config.flag("_remove_final_layer_norm"):
        parts.vector(-2 * hidden_size)


def _stablelm(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    if config.flag("use_parallel_residual"):
        parts.vector(-2 * hidden_size)


def _minimax_m3(config: Config, parts: Parts, hidden_size: int, index: int) -> None:
    named = config.items("layer_types")
    if named and named[index] == "minimax_m3_sparse":
        heads, head_dim = config.count("index_n_heads"), config.count("index_head_dim")
        parts.linear("index_q", "attention", heads * head_dim, hidden_size)
        parts.linear("index_k", "attention", head_dim, hidden_size, sharding="replicated")
        parts.vector(2 * head_dim)


def _embedding_norm(config: Config, parts: Parts, hidden_size: int) -> None:
    parts.vector(2 * hidden_size)


LAYER_EXTRAS: dict[str, Callable[[Config, Parts, int, int], None]] = {
    "apertus": _apertus,
    "bitnet": _bitnet,
    "diffllama": _diffllama,
    "doge": _doge,
    "falcon": _falcon,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "gpt_neox_japanese": _gpt_neox_japanese,
    "longcat_flash": _longcat_flash,
    "minimax_m3": _minimax_m3,
    "modernbert": _modernbert,
    "post_norms": _post_norms,
    "sinks": _sinks,
    "stablelm": _stablelm,
}

MODEL_EXTRAS: dict[str, Callable[[Config, Parts, int], None]] = {
    "embedding_norm": _embedding_norm,
    "gemma3n": _gemma3n_model,
    "gemma4": _gemma4_model,
    "modernbert": _modernbert_model,
    "mllama": _mllama_model,
    "moshi": _moshi_model,
    "opt": _opt_model,
}
