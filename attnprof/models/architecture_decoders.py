"""A decoder's configuration -> its :class:`~attnprof.models.architecture.Architecture`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attnprof.models.architecture import (
    Activation,
    Architecture,
    AttentionBlock,
    Block,
    Experts,
    Ffn,
    Latent,
    Norm,
    Placement,
    Router,
    Temperature,
)
from attnprof.models.architecture_rope import layer_rope
from attnprof.models.config import Config
from attnprof.models.decoders import ffn_width, num_decoder_layers, setting, shared_width
from attnprof.models.families import FAMILIES, Family
from attnprof.models.layer_kinds import num_experts, sparse_layers, stated_kinds, window_of
from attnprof.rope import Rope, yarn_mscale

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh", "relu": "relu",
}  # fmt: skip
TYPE_OF_KIND = {
    "full": "full_attention", "sliding": "sliding_attention", "chunked": "chunked_attention",
}  # fmt: skip
VARIANT_OF_KIND = {"full": "causal", "sliding": "sliding", "chunked": "chunked"}
UNBOUNDED_LEN = 2048  # of positions that have no longest, where no length is stated


@dataclass(frozen=True)
class Arithmetic:
    """What a family computes beyond the shapes of :data:`~attnprof.models.families.FAMILIES`."""

    norm_eps: float = 1e-6  # where the configuration is silent, as the library's class has it
    weight_offset: float = 0.0
    placement: Placement | Callable[[Config], Placement] = "pre"
    activation: str = "silu"
    scale_key: str = ""  # of a number whose inverse root scales the scores
    scales_embeddings: bool = False
    softcaps: bool = False
    theta: float = 10_000.0
    rope: tuple[tuple[str, Any], ...] = ()
    local_theta: float | None = None  # of layers with a window, where they have one of their own
    router: Router = "softmax"
    normalised: bool | str = True
    router_is_wide: bool = False
    choice_bias: bool = False
    scaling_key: str = ""
    group_best: int = 0  # experts by whose scores a group is chosen; 0 where none are
    tempers_scores: bool = False  # YaRN's temperature for all dimensions scales the scores
    weights_inputs: bool = False
    clamp: float | None = None
    sinks: bool = False
    alibi: bool = False
    rotary_share: float = 1.0
    tunes_chunks: bool = False  # Llama 4: turned and normed in chunks, a temperature elsewhere
    refused: tuple[tuple[str, object], ...] = ()  # keys, and the only value that is built


def _opt_placement(config: Config) -> Placement:
    return "pre" if config.flag("do_layer_norm_before", True) else "post"


def _neox_placement(config: Config) -> Placement:
    return "parallel" if config.flag("use_parallel_residual", True) else "pre"


def _falcon_placement(config: Config) -> Placement:
    """Falcon's first models have one norm for both parts, its new architecture two."""
    is_new = config.flag("new_decoder_architecture")
    if not config.flag("parallel_attn", True):
        if is_new:
            raise config.wrong("parallel_attn", False, "true, with new_decoder_architecture")
        return "pre"
    num_norms = config.count("num_ln_in_parallel_attn", 2 if is_new else 1, most=2)
    return "parallel" if is_new and num_norms == 2 else "parallel-one-norm"


GEMMA = Arithmetic(
    weight_offset=1.0, activation="gelu_pytorch_tanh", scales_embeddings=True,
)  # fmt: skip
GEMMA2 = replace(GEMMA, placement="both", scale_key="query_pre_attn_scalar", softcaps=True)
DEEPSEEK_V3 = Arithmetic(
    router="sigmoid", router_is_wide=True, choice_bias=True, normalised="norm_topk_prob",
    group_best=2, scaling_key="routed_scaling_factor", tempers_scores=True,
)  # fmt: skip
YARN_OF_GPT_OSS = (
    ("rope_type", "yarn"), ("factor", 32.0), ("beta_fast", 32.0), ("beta_slow", 1.0),
    ("truncate", False), ("original_max_position_embeddings", 4096),
)  # fmt: skip

DECODERS: dict[str, Arithmetic] = {
    "llama": Arithmetic(),
    "mistral": Arithmetic(),
    "mixtral": Arithmetic(norm_eps=1e-5, theta=1e6),
    "qwen2": Arithmetic(),
    "qwen3": Arithmetic(),
    "qwen3_moe": Arithmetic(normalised="norm_topk_prob"),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": replace(GEMMA2, softcaps=False, theta=1e6, local_theta=10_000.0),
    "gpt2": Arithmetic(norm_eps=1e-5, activation="gelu_new"),
    "gpt_oss": Arithmetic(
        norm_eps=1e-5, theta=150_000.0, rope=YARN_OF_GPT_OSS, clamp=7.0, sinks=True,
    ),
    "deepseek_v2": Arithmetic(
        router_is_wide=True, normalised=False, group_best=1,
        scaling_key="routed_scaling_factor",
    ),
    "deepseek_v3": DEEPSEEK_V3,
    "opt": Arithmetic(
        norm_eps=1e-5, placement=_opt_placement, activation="relu",
        refused=(("layer_norm_elementwise_affine", True),),
    ),
    "bloom": Arithmetic(
        norm_eps=1e-5, activation="gelu_new", alibi=True,
        refused=(("apply_residual_connection_post_layernorm", False),),
    ),
    "gpt_neox": Arithmetic(
        norm_eps=1e-5, placement=_neox_placement, activation="gelu", rotary_share=0.25,
    ),
    "falcon": Arithmetic(
        norm_eps=1e-5, placement=_falcon_placement, activation="gelu", refused=(("alibi", False),),
    ),
    "llama4_text": Arithmetic(
        norm_eps=1e-5, theta=500_000.0, router="sigmoid", normalised=False, weights_inputs=True,
        tunes_chunks=True,
    ),
}  # fmt: skip


def decoder(config: Config, kind: str) -> Architecture:
    """The architecture of a decoder whose arithmetic is that of ``kind``.

    Raises:
        UsageError: A key is missing, wrong, or names what cannot be built.
    """
    family, arithmetic = FAMILIES[kind], DECODERS[kind]
    hidden_size = config.count("hidden_size", most=10**7)
    num_layers = num_decoder_layers(config, family)
    kinds = stated_kinds(config, family, num_layers)
    sparse = sparse_layers(config, family, num_layers)
    norm = Norm(
        kind="layer" if family.norm == "layer" else "rms",
        eps=_norm_eps(config, arithmetic),
        weight_offset=arithmetic.weight_offset,
    )
    for key, built in arithmetic.refused:
        if config.get(key, built) != built:
            raise config.wrong(key, config.get(key), str(built).lower())
    if config.get("word_embed_proj_dim", hidden_size) != hidden_size:
        width = config.get("word_embed_proj_dim")
        raise config.wrong("word_embed_proj_dim", width, f"hidden_size, {hidden_size}")
    if config.flag("add_cross_attention"):
        raise config.wrong("add_cross_attention", True, "false: its layers attend to themselves")
    unbounded = UNBOUNDED_LEN if arithmetic.alibi else None
    max_len = config.count("max_position_embeddings", unbounded, most=10**8)
    placement = arithmetic.placement
    placement = placement if isinstance(placement, str) else placement(config)
    has_final_norm = placement != "post" and not config.flag("_remove_final_layer_norm")
    softcap = config.get("final_logit_softcapping") if family.logit_softcap else None
    return Architecture(
        model_type=config.model_type,
        hidden_size=hidden_size,
        vocab_size=config.count("vocab_size", most=10**8),
        max_len=max_len,
        blocks=tuple(
            Block(
                attention=_attention(config, family, arithmetic, index, kinds[index], norm),
                ffn=_ffn(config, family, arithmetic, index, sparse[index]),
                norm=norm,
                placement=placement,
            )
            for index in range(num_layers)
        ),
        final_norm=norm if has_final_norm else None,
        embedding_norm=norm if family.extra == "embedding_norm" else None,
        embedding_scale=hidden_size**0.5 if arithmetic.scales_embeddings else 1.0,
        num_positions=None if family.positions is None else max_len + family.positions,
        first_position=family.positions or 0,
        tied_head=config.flag("tie_word_embeddings", True),
        logit_softcap=None if softcap is None else config.share("final_logit_softcapping", 0.0),
    )


def _norm_eps(config: Config, arithmetic: Arithmetic) -> float:
    for key in ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"):
        if config.get(key) is not None:
            return config.share(key, 0.0)
    return arithmetic.norm_eps


def _attention(
    config: Config, family: Family, arithmetic: Arithmetic, index: int, kind: str, norm: Norm
) -> AttentionBlock:
    if kind not in TYPE_OF_KIND:
        raise config.wrong("layer_types", kind, "layers of full, sliding or chunked attention")
    if kind == "sliding" and config.get("sliding_window") == 0:
        raise config.wrong("sliding_window", 0, "a number from 1 up, or null for no window")
    window_len = window_of(config) if kind == "sliding" else None
    if kind == "chunked" and config.get("attention_chunk_size") is not None:
        window_len = config.count("attention_chunk_size")
    if family.mla:
        return _latent_attention(config, family, arithmetic)
    num_q_heads = config.count("num_attention_heads")
    hidden_size = config.count("hidden_size")
    if config.get("head_dim") is None and hidden_size % num_q_heads:
        raise config.wrong("hidden_size", hidden_size, f"a multiple of {num_q_heads} heads")
    head_dim = config.count("head_dim", hidden_size // num_q_heads)
    scaled_by = config.share(arithmetic.scale_key, head_dim) if arithmetic.scale_key else head_dim
    scale = scaled_by**-0.5
    if not config.flag("scale_attn_weights", True):
        scale = 1.0
    if config.flag("scale_attn_by_inverse_layer_idx"):
        scale /= index + 1
    bias = setting(config, family.qkv_bias)
    num_kv_heads = _num_kv_heads(config, num_q_heads)
    if num_q_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", num_kv_heads, f"a divisor of {num_q_heads} heads")
    softcap = config.get("attn_logit_softcapping") if arithmetic.softcaps else None
    has_rope = family.positions is None and not arithmetic.alibi
    q_norm = norm if family.qk_norm == "head" else None
    temperature = None
    if arithmetic.tunes_chunks:
        turns = config.items("no_rope_layers") or []
        has_rope = bool(turns[index]) if index < len(turns) else kind == "chunked"
        if has_rope and config.flag("use_qk_norm", True):
            q_norm = replace(norm, kind="unit")
        if not has_rope and config.flag("attn_temperature_tuning", True):
            temperature = Temperature(
                step_len=config.count("floor_scale", 8192), slope=config.share("attn_scale", 0.1)
            )
    return AttentionBlock(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        scale=scale,
        variant="causal" if window_len is None else VARIANT_OF_KIND[kind],
        window_len=window_len,
        q_bias=bias,
        k_bias=bias,
        v_bias=bias,
        o_bias=setting(config, family.o_bias),
        q_norm=q_norm,
        norms_turned=arithmetic.tunes_chunks,
        softcap=None if softcap is None else config.share("attn_logit_softcapping", 0.0),
        sinks=arithmetic.sinks,
        rope=_rope(config, arithmetic, kind, head_dim) if has_rope else None,
        alibi=arithmetic.alibi,
        temperature=temperature,
    )


def _num_kv_heads(config: Config, num_q_heads: int) -> int:
    """Falcon's first models share one head where they say ``multi_query``."""
    first_falcon = config.model_type == "falcon" and not config.flag("new_decoder_architecture")
    if first_falcon and config.flag("multi_query", True):
        return 1
    return config.count("num_key_value_heads", num_q_heads)


def _latent_attention(config: Config, family: Family, arithmetic: Arithmetic) -> AttentionBlock:
    """Multi-head latent attention; V3's is scaled as YaRN's temperature for all dimensions says.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1; "DeepSeek-V3",
        arXiv:2412.19437, section 4.3.
    """
    num_heads = config.count("num_attention_heads")
    rope_dim = config.count("qk_rope_head_dim", 64)
    head_dim = config.count("qk_nope_head_dim", 128) + rope_dim
    rope = _rope(config, arithmetic, "full", rope_dim)
    scale = head_dim**-0.5
    if arithmetic.tempers_scores and rope.scaling != "default" and rope.mscale_all_dim:
        scale *= yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2
    bias = setting(config, family.qkv_bias)
    return AttentionBlock(
        num_q_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        v_head_dim=config.count("v_head_dim", 128),
        scale=scale,
        o_bias=setting(config, family.o_bias),
        rope=rope,
        latent=Latent(
            kv_rank=config.count("kv_lora_rank", 512),
            q_rank=config.optional_count("q_lora_rank"),
            rope_dim=rope_dim,
            bias=bias,
            interleaved=config.flag("rope_interleave", True),
        ),
    )


def _rope(config: Config, arithmetic: Arithmetic, kind: str, head_dim: int) -> Rope:
    return layer_rope(
        config,
        head_dim,
        layer_type=TYPE_OF_KIND[kind],
        theta=config.get("rotary_emb_base", arithmetic.theta),
        local_theta=arithmetic.local_theta,
        unstated=arithmetic.rope,
        share=arithmetic.rotary_share,
    )


def _ffn(
    config: Config, family: Family, arithmetic: Arithmetic, index: int, sparse: bool
) -> Ffn | Experts:
    hidden_size = config.count("hidden_size")
    ffn = Ffn(
        width=ffn_width(config, family, hidden_size, index),
        activation=_activation(config, arithmetic),
        gated=setting(config, family.gated),
        bias=setting(config, family.mlp_bias),
        clamp=arithmetic.clamp,
    )
    moe = family.moe
    if not sparse or moe is None:
        return ffn
    total = num_experts(config)
    active = config.count("num_experts_per_tok")
    if active > total:
        raise config.wrong("num_experts_per_tok", active, f"at most num_experts, {total}")
    width = config.count(moe.width, config.get("intermediate_size"), most=10**8)
    normalised = arithmetic.normalised
    shared = shared_width(config, moe, width)
    chooses_groups = arithmetic.group_best and config.get("topk_method") != "greedy"
    num_groups = config.count("n_group", 1) if chooses_groups else 1
    num_active_groups = config.count("topk_group", num_groups) if num_groups > 1 else 1
    if num_groups > 1 and (total % num_groups or total // num_groups < 2):
        raise config.wrong("n_group", num_groups, f"groups of two or more of {total} experts")
    if not num_active_groups <= num_groups or active > num_active_groups * (total // num_groups):
        expected = f"groups that hold {active} experts, of {num_groups}"
        raise config.wrong("topk_group", num_active_groups, expected)
    return Experts(
        expert=replace(ffn, width=width, bias=moe.expert_bias),
        num_experts=total,
        num_active=active,
        router=arithmetic.router,
        router_bias=moe.router_bias,
        router_is_wide=arithmetic.router_is_wide,
        choice_bias=arithmetic.choice_bias,
        normalised=(config.flag(normalised, True) if isinstance(normalised, str) else normalised),
        weights_inputs=arithmetic.weights_inputs,
        scaling=config.share(arithmetic.scaling_key, 1.0) if arithmetic.scaling_key else 1.0,
        num_groups=num_groups,
        num_active_groups=num_active_groups,
        group_best=max(1, arithmetic.group_best),
        shared=replace(ffn, width=shared) if shared else None,
    )


def _activation(config: Config, arithmetic: Arithmetic) -> Activation:
    name = arithmetic.activation
    for key in ("hidden_activation", "hidden_act", "activation_function", "activation"):
        if config.get(key) is not None:
            name = config.text(key)
            break
    if name not in ACTIVATIONS:
        raise config.wrong("hidden_act", name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
