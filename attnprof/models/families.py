"""How each family of decoder differs from Llama's shape: the table that one builder reads."""

from dataclasses import dataclass, replace
from typing import Literal

Setting = bool | str
"""A fact, or the configuration key of the flag that decides it (``!key``: its opposite)."""


@dataclass(frozen=True)
class Moe:
    """The experts of a family: which keys size them, and what stands beside them."""

    width: str = "moe_intermediate_size"
    shared: str = ""
    """Key of the shared expert's width; ``*key`` counts experts of the routed ones' width."""
    shared_gate: bool = False
    gated: bool = True
    router_bias: bool = False
    expert_bias: bool = False
    has_correction_bias: bool = False
    """The bias that balances the experts is a parameter; elsewhere it is a buffer."""
    idle_router_rows: str = ""
    """Key of the number of experts that do nothing but have a row in the router."""
    dense_first: int = 0
    """Leading dense layers where the configuration says nothing."""


@dataclass(frozen=True)
class Pattern:
    """Which layers attend to everything: those where ``index % period == full_at``."""

    period: int
    full_at: int = -1
    key: str = ""
    other: str = "sliding_attention"


@dataclass(frozen=True)
class Family:
    """One family; the defaults are Llama's."""

    norm: Literal["rms", "layer", "none"] = "rms"
    """``layer`` has a bias, ``rms`` stands for every norm that has a weight alone."""
    norms: int = 2
    final_norm: bool = True
    qkv_bias: Setting = False
    o_bias: Setting = False
    mlp_bias: Setting = False
    head_bias: Setting = False
    gated: Setting = True
    qk_norm: Literal["", "head", "full", "layer"] = ""
    """Norms of queries and keys: per head dimension, over all heads, or with a bias as well."""
    qk_norm_if: str = ""
    gate: Literal["", "q", "full", "head"] = ""
    """The output gate: made by the query projection, by its own, or one number a head."""
    mla: bool = False
    positions: int | None = None
    """Learned positions, and how many rows the table has beyond the longest context."""
    mixer: str = ""
    moe: Moe | None = None
    pattern: Pattern | None = None
    parallel_mixer: bool = False
    extra: str = ""
    """Name of the function in :mod:`attnprof.models.extras` that adds what is left."""
    logit_softcap: bool = False
    causal: bool = True
    """An encoder's layers see every token, and keep none."""


LLAMA = Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
QWEN2 = Family(qkv_bias=True)
QWEN3 = replace(LLAMA, qk_norm="head", mlp_bias=False)
GEMMA = replace(LLAMA, mlp_bias=False)
GEMMA2 = replace(GEMMA, norms=4, pattern=Pattern(2), logit_softcap=True)
GEMMA3 = replace(GEMMA2, qk_norm="head", pattern=Pattern(6, key="sliding_window_pattern"))
GPT2 = Family("layer", qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, positions=0)
GPTJ = Family("layer", 1, mlp_bias=True, head_bias=True, gated=False)
DEEPSEEK = Family(
    mla=True,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    moe=Moe(shared="*n_shared_experts"),
)
GLM_MOE = Family(
    qkv_bias="attention_bias",
    qk_norm="head",
    qk_norm_if="use_qk_norm",
    moe=Moe(shared="*n_shared_experts"),
)
MIXTRAL = Family(moe=Moe(width="intermediate_size"))
GRANITE_MOE = replace(LLAMA, mlp_bias=False, moe=Moe(width="intermediate_size"))
OLMO2 = replace(LLAMA, mlp_bias=False, qk_norm="full")
MAMBA = Family(norms=1, mixer="mamba")
QWEN_NEXT = Family(
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    qk_norm="head",
    gate="q",
    mixer="gated_delta_net",
    pattern=Pattern(4, key="full_attention_interval", other="linear_attention"),
)
QWEN_NEXT_MOE = replace(
    QWEN_NEXT, moe=Moe(shared="shared_expert_intermediate_size", shared_gate=True)
)
FOUR = Pattern(4)
MODERNBERT = Family(
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    head_bias="decoder_bias",
    pattern=Pattern(3, full_at=0, key="global_attn_every_n_layers"),
    extra="modernbert",
)

FAMILIES: dict[str, Family] = {
    "afmoe": Family(qkv_bias="attention_bias", o_bias="attention_bias",
        norms=4, qk_norm="head", gate="full",
        moe=Moe(shared="*num_shared_experts", has_correction_bias=True),
        pattern=Pattern(4, key="global_attn_every_n_layers"),
    ),
    "apertus": replace(LLAMA, mlp_bias=False, gated=False, qk_norm="head", extra="apertus"),
    "arcee": replace(LLAMA, gated=False),
    "aria_text": replace(
        LLAMA, moe=Moe(width="intermediate_size", shared="*moe_num_shared_experts")
    ),
    "bamba": replace(LLAMA, mixer="mamba2"),
    "biogpt": replace(GPT2, positions=2),
    "bitnet": replace(LLAMA, mlp_bias=False, extra="bitnet"),
    "bloom": replace(GPT2, positions=None, extra="embedding_norm"),
    "codegen": GPTJ,
    "cohere": replace(
        LLAMA, mlp_bias=False, norms=1, qk_norm="full", qk_norm_if="use_qk_norm"
    ),
    "cohere2": replace(
        LLAMA, mlp_bias=False, norms=1, pattern=Pattern(4, key="sliding_window_pattern")
    ),
    "cohere2_moe": replace(
        LLAMA, mlp_bias=False, norms=1,
        moe=Moe(width="intermediate_size", shared="*num_shared_experts"),
        pattern=Pattern(4, key="sliding_window_pattern"),
    ),
    "ctrl": Family("layer", qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, head_bias=True),
    "cwm": Family(mlp_bias="mlp_bias", pattern=Pattern(4, full_at=0)),
    "dbrx": Family("rms", moe=Moe(width="ffn_hidden_size")),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": replace(DEEPSEEK, mlp_bias=False),
    "diffllama": replace(LLAMA, mlp_bias=False, extra="diffllama"),
    "doge": replace(LLAMA, qk_norm="head", extra="doge"),
    "dots1": Family(
        qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head",
        moe=Moe(shared="*n_shared_experts"),
    ),
    "ernie4_5": Family(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    "ernie4_5_moe": Family(
        qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", head_bias="use_bias",
        moe=Moe(shared="*moe_num_shared_experts", has_correction_bias=True),
    ),
    "eurobert": replace(LLAMA, head_bias="mlp_bias", causal=False),
    "modernbert": replace(MODERNBERT, causal=False),
    "exaone4": Family(qk_norm="head", pattern=Pattern(4, key="sliding_window_pattern")),
    "exaone_moe": Family(
        qk_norm="head", moe=Moe(shared="*num_shared_experts"),
        pattern=Pattern(4, key="sliding_window_pattern"),
    ),
    "falcon": Family("layer", 1, qkv_bias="bias", o_bias="bias", mlp_bias="bias", gated=False,
                     extra="falcon"),
    "falcon_h1": replace(LLAMA, mixer="mamba2", parallel_mixer=True),
    "falcon_mamba": MAMBA,
    "flex_olmo": replace(OLMO2, moe=Moe(width="intermediate_size")),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma3n_text": replace(GEMMA3, pattern=Pattern(5), extra="gemma3n"),
    "gemma4_text": replace(GEMMA3, extra="gemma4"),
    "gemma4_unified_text": replace(GEMMA3, extra="gemma4"),
    "glm": Family(qkv_bias="attention_bias"),
    "glm4": Family(qkv_bias="attention_bias", norms=4),
    "glm4_moe": GLM_MOE,
    "glm4_moe_lite": replace(DEEPSEEK, moe=Moe(shared="*n_shared_experts", dense_first=1)),
    "glm_moe_dsa": replace(DEEPSEEK, mlp_bias=False),
    "gpt2": GPT2,
    "gpt-sw3": GPT2,
    "gpt_bigcode": replace(GPT2, extra="gpt_bigcode"),
    "gpt_neo": Family("layer", o_bias=True, mlp_bias=True, gated=False, positions=0),
    "gpt_neox": Family(
        "layer", qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias=True, gated=False
    ),
    "gpt_neox_japanese": Family("layer", gated=False, extra="gpt_neox_japanese"),
    "gpt_oss": Family(
        qkv_bias="attention_bias", o_bias="attention_bias", pattern=Pattern(2),
        moe=Moe(width="intermediate_size", router_bias=True, expert_bias=True), extra="sinks",
    ),
    "gptj": GPTJ,
    "granite": LLAMA,
    "granitemoe": GRANITE_MOE,
    "granitemoehybrid": replace(
        GRANITE_MOE, moe=Moe(width="intermediate_size", shared="shared_intermediate_size"),
        mixer="mamba2",
    ),
    "granitemoeshared": replace(
        GRANITE_MOE, moe=Moe(width="intermediate_size", shared="shared_intermediate_size")
    ),
    "helium": replace(LLAMA, o_bias=False),
    "hunyuan_v1_dense": replace(LLAMA, qk_norm="head"),
    "hunyuan_v1_moe": replace(
        LLAMA, qk_norm="head", moe=Moe(width="intermediate_size", shared="intermediate_size")
    ),
    "hy_v3": replace(
        LLAMA, qk_norm="head", moe=Moe(shared="*num_shared_experts", dense_first=1)
    ),
    "hyperclovax": replace(LLAMA, extra="post_norms"),
    "jais2": replace(LLAMA, norm="layer", gated=False),
    "jamba": Family(mixer="mamba", moe=Moe(width="intermediate_size"), extra="jamba"),
    "kimi_linear": replace(DEEPSEEK, mixer="kimi_delta",
                           moe=Moe(shared="*num_shared_experts", dense_first=1)),
    "laguna": replace(
        QWEN3, gate="head",
        moe=Moe(shared="shared_expert_intermediate_size", has_correction_bias=True, dense_first=1),
    ),
    "lfm2": Family(qk_norm="head", mixer="short_conv"),
    "lfm2_moe": Family(qk_norm="head", mixer="short_conv", moe=Moe()),
    "llama": LLAMA,
    "llama4_text": replace(
        LLAMA, mlp_bias=False, moe=Moe(width="intermediate_size", shared="intermediate_size"),
        pattern=Pattern(4, key="no_rope_layer_interval", other="chunked_attention"),
    ),
    "longcat_flash": replace(DEEPSEEK, moe=None, extra="longcat_flash"),
    "mamba": MAMBA,
    "mamba2": replace(MAMBA, mixer="mamba2"),
    "mellum": replace(QWEN3, moe=Moe()),
    "minimax": Family(
        mixer="lightning", moe=Moe(width="intermediate_size"),
        pattern=Pattern(2, full_at=0, other="linear_attention"),
    ),
    "minimax_m2": Family(qk_norm="full", moe=Moe(width="intermediate_size")),
    "minimax_m3_vl_text": Family(
        qk_norm="head", extra="minimax_m3",
        moe=Moe(width="intermediate_size", shared="shared_intermediate_size"),
    ),
    "ministral": Family(),
    "ministral3": Family(),
    "mistral": Family(),
    "mistral4": DEEPSEEK,
    "mixtral": MIXTRAL,
    "mllama_text_model": Family(extra="mllama"),
    "modernbert-decoder": MODERNBERT,
    "moshi": Family(extra="moshi"),
    "mpt": Family(gated=False, extra="mpt"),
    "nanochat": replace(
        LLAMA, norm="none", norms=0, final_norm=False, gated=False, mlp_bias=False,
        logit_softcap=True,
    ),
    "nemotron": replace(LLAMA, norm="layer", gated=False),
    "nemotron_h": Family(
        norms=1, mlp_bias="mlp_bias",
        gated=False, mixer="mamba2", extra="nemotron_h",
        moe=Moe(gated=False, shared="moe_shared_expert_intermediate_size"),
    ),
    "olmo": replace(LLAMA, mlp_bias=False, norm="none", norms=0, final_norm=False),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, pattern=FOUR),
    "olmo_hybrid": replace(
        OLMO2, mixer="gated_delta_net", pattern=Pattern(4, other="linear_attention")
    ),
    "olmoe": replace(OLMO2, moe=Moe(width="intermediate_size")),
    "openai-gpt": replace(GPT2, final_norm=False),
    "opt": Family("layer", qkv_bias="enable_bias", o_bias="enable_bias", mlp_bias="enable_bias",
                  gated=False, positions=2, extra="opt"),
    "persimmon": Family("layer", qkv_bias=True, o_bias=True, mlp_bias=True, gated=False,
                        qk_norm="layer", qk_norm_if="qk_layernorm"),
    "phi": Family("layer", 1, qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True,
                  gated=False, qk_norm="layer", qk_norm_if="qk_layernorm"),
    "phi3": Family(),
    "phimoe": Family("layer", qkv_bias="attention_bias", o_bias="attention_bias",
                     head_bias="lm_head_bias", moe=Moe(width="intermediate_size")),
    "qwen2": QWEN2,
    "qwen2_moe": Family(
        qkv_bias="qkv_bias", moe=Moe(shared="shared_expert_intermediate_size", shared_gate=True)
    ),
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3, moe=Moe()),
    "qwen3_next": QWEN_NEXT_MOE,
    "qwen3_5_text": QWEN_NEXT,
    "qwen3_5_moe_text": QWEN_NEXT_MOE,
    "recurrent_gemma": Family(o_bias=True, mlp_bias=True, qkv_bias="attention_bias",
                              mixer="rg_lru", extra="recurrent_gemma", logit_softcap=True),
    "seed_oss": Family(
        qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"
    ),
    "smollm3": LLAMA,
    "solar_open": replace(GLM_MOE, qk_norm="", qk_norm_if=""),
    "stablelm": Family("layer", qkv_bias="use_qkv_bias", qk_norm="full",
                       qk_norm_if="qk_layernorm", extra="stablelm"),
    "starcoder2": Family("layer", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias",
                         gated=False),
    "vaultgemma": replace(GEMMA2, norms=2),
    "xglm": replace(GPT2, positions=None),
    "youtu": replace(DEEPSEEK, moe=None),
}  # fmt: skip

# Model types that are another one in shape: code that came with the weights, and older names.
SAME_SHAPE = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
    "deepseek": "deepseek_v2",
    "internlm3": "llama",
    "yi": "llama",
    "aquila": "llama",
    "exaone": "llama",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "fuyu": "persimmon",
}
