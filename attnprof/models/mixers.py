"""Adds a recurrent or state-space mixer to a layer: its weights and the state it keeps."""

import math
from collections.abc import Callable

from attnprof.models.config import Config
from attnprof.models.parts import Parts
from attnprof.models.spec import Mixer


def _mamba(config: Config, parts: Parts, hidden_size: int) -> None:
    """Mamba 1: one state of ``state_dim`` per channel, and a step of low rank.

    Source:
        Gu & Dao 2023, "Mamba", arXiv:2312.00752, section 3.
    """
    width = config.optional_count("mamba_d_inner")
    if width is None and config.says("intermediate_size") and config.get("mamba_expand") is None:
        width = config.count("intermediate_size")
    if width is None:
        expand = config.share("mamba_expand", config.share("expand", 2))
        width = int(expand * hidden_size)
    state_dim = config.count("mamba_d_state", 16)
    kernel = config.count("mamba_d_conv", config.count("conv_kernel", 4))
    rank = config.get("mamba_dt_rank", config.get("time_step_rank", "auto"))
    if rank == "auto":
        rank = math.ceil(hidden_size / 16)
    elif not isinstance(rank, int) or rank < 1:
        raise config.wrong("mamba_dt_rank", rank, "a whole number or 'auto'")
    bias = config.flag("mamba_proj_bias", config.flag("use_bias"))
    conv_bias = config.flag("mamba_conv_bias", config.flag("use_conv_bias", True))
    parts.linear("in", "mixer", 2 * width, hidden_size, bias=bias)
    parts.linear("x", "mixer", rank + 2 * state_dim, width)
    parts.linear("dt", "mixer", width, rank, bias=True)
    parts.linear("out", "mixer", hidden_size, width, bias=bias)
    parts.vector(width * kernel + width * conv_bias + width * state_dim + width)
    if config.model_type == "jamba":
        parts.vector(rank + 2 * state_dim)
    parts.mixer = Mixer("mamba", width, 1, state_dim, conv_channels=width, conv_len=kernel - 1)


def _mamba2(config: Config, parts: Parts, hidden_size: int) -> None:
    """Mamba 2: heads that share B and C within a group.

    Source:
        Dao & Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 7.
    """
    expand = config.share("mamba_expand", config.share("expand", 2))
    num_heads = config.get("mamba_num_heads", config.get("mamba_n_heads"))
    if num_heads is None:
        num_heads = config.get("n_mamba_heads", config.get("num_heads"))
    num_heads = config.count("mamba_num_heads", num_heads)
    head_dim = config.get("mamba_head_dim", config.get("mamba_d_head", config.get("mamba_headdim")))
    if config.model_type == "mamba2":
        head_dim = config.get("head_dim", head_dim)
    width = config.optional_count("mamba_d_ssm") or int(expand * hidden_size)
    if isinstance(head_dim, int) and not config.get("mamba_d_ssm"):
        width = num_heads * head_dim
    head_dim = width // num_heads
    groups = config.count("mamba_n_groups", config.get("mamba_ngroups", config.get("n_groups", 1)))
    state_dim = config.count("mamba_d_state", 128)
    kernel = config.count("mamba_d_conv", config.count("conv_kernel", 4))
    bias_keys = {"zamba2": "add_bias_linear", "mamba2": "use_bias", "nemotron_h": "use_bias"}
    bias = config.flag(bias_keys.get(config.model_type, "mamba_proj_bias"))
    conv_bias = config.flag("mamba_conv_bias", config.flag("use_conv_bias", True))
    channels = width + 2 * groups * state_dim
    parts.linear("in", "mixer", width + channels + num_heads, hidden_size, bias=bias)
    out_bias = config.flag("projectors_bias") if config.model_type == "falcon_h1" else bias
    parts.linear("out", "mixer", hidden_size, width, bias=out_bias)
    parts.vector(channels * kernel + channels * conv_bias + 3 * num_heads)
    if config.flag("mamba_rms_norm", True):
        parts.vector(width)
    parts.mixer = Mixer(
        "mamba2", num_heads, head_dim, state_dim, conv_channels=channels, conv_len=kernel - 1
    )


def _gated_delta_net(config: Config, parts: Parts, hidden_size: int) -> None:
    """Gated delta net: a fast-weight matrix per value head, decayed and corrected each step.

    Source:
        Yang et al. 2024, "Gated Delta Networks", arXiv:2412.06464, section 3.
    """
    heads = config.get("num_attention_heads")
    num_k_heads = config.count("linear_num_key_heads", heads)
    num_v_heads = config.count("linear_num_value_heads", heads)
    k_dim = config.count("linear_key_head_dim", int(0.75 * hidden_size / num_k_heads))
    v_dim = config.count("linear_value_head_dim", 2 * k_dim)
    kernel = config.count("linear_conv_kernel_dim", 4)
    k_width, v_width = num_k_heads * k_dim, num_v_heads * v_dim
    parts.linear("qkvz", "mixer", 2 * k_width + 2 * v_width, hidden_size)
    parts.linear("ba", "mixer", 2 * num_v_heads, hidden_size)
    parts.linear("out", "mixer", hidden_size, v_width)
    channels = 2 * k_width + v_width
    parts.vector(channels * kernel + 2 * num_v_heads + v_dim)
    parts.mixer = Mixer(
        "gated_delta_net", num_v_heads, v_dim, k_dim, conv_channels=channels, conv_len=kernel - 1
    )


def _kimi_delta(config: Config, parts: Parts, hidden_size: int) -> None:
    """Kimi delta attention: a gated delta net whose decay is one number a channel.

    Source:
        Kimi Team 2025, "Kimi Linear", arXiv:2510.26692, section 3.
    """
    nested = config.get("linear_attn_config")
    linear = nested if isinstance(nested, dict) else {}
    num_heads = config.count("linear_num_heads", linear.get("num_heads"))
    head_dim = config.count("linear_head_dim", linear.get("head_dim"))
    kernel = config.count("linear_conv_kernel_dim", linear.get("short_conv_kernel_size", 4))
    width = num_heads * head_dim
    for name in ("q", "k", "v"):
        parts.linear(name, "mixer", width, hidden_size)
    for name in ("f", "g"):
        parts.linear(name + "_a", "mixer", head_dim, hidden_size, sharding="replicated")
        parts.linear(name + "_b", "mixer", width, head_dim)
    parts.linear("b", "mixer", num_heads, hidden_size)
    parts.linear("out", "mixer", hidden_size, width)
    parts.vector(3 * width * kernel + num_heads + width + head_dim)
    parts.mixer = Mixer(
        "kimi_delta", num_heads, head_dim, head_dim, conv_channels=3 * width, conv_len=kernel - 1
    )


def _lightning(config: Config, parts: Parts, hidden_size: int) -> None:
    """Lightning attention: linear attention with a fixed decay and an output gate.

    Source:
        MiniMax 2025, "MiniMax-01", arXiv:2501.08313, section 2.2.
    """
    num_heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", hidden_size // num_heads)
    width = num_heads * head_dim
    parts.linear("qkv", "mixer", 3 * width, hidden_size)
    parts.linear("gate", "mixer", width, hidden_size)
    parts.linear("out", "mixer", hidden_size, width)
    parts.vector(width)
    parts.mixer = Mixer("lightning", num_heads, head_dim, head_dim)


def _rg_lru(config: Config, parts: Parts, hidden_size: int) -> None:
    """The real-gated linear recurrent unit of Griffin, with gates in blocks of a head.

    Source:
        De et al. 2024, "Griffin", arXiv:2402.19427, section 2.4.
    """
    width = config.count("lru_width", hidden_size)
    num_heads = config.count("num_attention_heads")
    kernel = config.count("conv1d_width", 4)
    block = width // num_heads
    for name in ("y", "x"):
        parts.linear(name, "mixer", width, hidden_size, bias=True)
    parts.linear("gates", "mixer", block, block, count=2 * num_heads, active=2 * num_heads)
    parts.linear("out", "mixer", hidden_size, width, bias=True)
    parts.vector(width * kernel + width + width + 2 * width)
    parts.mixer = Mixer("rg_lru", num_heads, block, 1, conv_channels=width, conv_len=kernel - 1)


def _short_conv(config: Config, parts: Parts, hidden_size: int) -> None:
    """The gated short convolution of LFM2."""
    kernel = config.count("conv_L_cache", 3)
    bias = config.flag("conv_bias")
    parts.linear("in", "mixer", 3 * hidden_size, hidden_size, bias=bias)
    parts.linear("out", "mixer", hidden_size, hidden_size, bias=bias)
    parts.vector(hidden_size * kernel + hidden_size * bias)
    parts.mixer = Mixer("short_conv", 0, 0, 0, conv_channels=hidden_size, conv_len=kernel - 1)


MIXERS: dict[str, Callable[[Config, Parts, int], None]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "gated_delta_net": _gated_delta_net,
    "kimi_delta": _kimi_delta,
    "lightning": _lightning,
    "rg_lru": _rg_lru,
    "short_conv": _short_conv,
}
