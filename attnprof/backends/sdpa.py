"""torch's scaled_dot_product_attention, pinned to one of its kernels."""

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprof.backends import Attention
from attnprof.backends.masks import allowed, is_plain_causal
from attnprof.workload import Workload

_PINS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Beginnings of names: on CPU and MPS the same kernels have the device in the end.
_OPERATORS = {
    "math": ("aten::_scaled_dot_product_attention_math",),
    "flash": (
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",  # XPU's, in place of flash
    ),
    "mem-efficient": ("aten::_scaled_dot_product_efficient_attention",),
    "cudnn": ("aten::_scaled_dot_product_cudnn_attention",),
}


def prepare(workload: Workload, device: torch.device) -> Attention:
    """SDPA with a pin on the kernel that ``workload.backend`` names.

    A causal prefill says ``is_causal``; a window is a mask, built once and held between calls;
    a decode needs neither. ``is_causal`` counts from the first key, so it is never said of a
    decode. KV heads are shared by ``enable_gqa``: what the kernel makes of that (flash reads them
    in place, math repeats them) is its own cost.
    """
    causal = is_plain_causal(workload) and workload.q_len > 1
    mask = None if causal else allowed(workload, device)
    attend = partial(
        _attend,
        mask=mask,
        is_causal=causal,
        enable_gqa=workload.num_kv_heads != workload.num_q_heads,
    )
    name = workload.backend
    return Attention(
        attend=attend,
        pinned=partial(sdpa_kernel, [_PINS[name]]),
        operators=_OPERATORS[name],
        mask_bytes=0 if mask is None else mask.nbytes,
    )


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=enable_gqa
    )
