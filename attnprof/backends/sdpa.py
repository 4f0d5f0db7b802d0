"""torch's scaled_dot_product_attention, pinned to one of its kernels."""

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprof.backends import Attention
from attnprof.backends.masks import allowed, ends_causal, is_plain_causal, merged
from attnprof.backends.support import BACKENDS
from attnprof.positions import POSITIONS
from attnprof.workload import Workload

PINS = {
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


def prepare(
    workload: Workload, device: torch.device, *, scale: float, bias: torch.Tensor | None
) -> Attention:
    """SDPA with a pin on the kernel that ``workload.backend`` names.

    A causal prefill without a bias says ``is_causal``, which counts from the first key and so is
    said of nothing else. Causal queries after cached tokens are told to a kernel that takes no
    mask as torch's own lower-right triangle. Whatever else hides a key is a mask, built once and
    held between calls, and one tensor with a constant bias. KV heads are shared by ``enable_gqa``:
    what the kernel makes of that (flash reads them in place, math repeats them) is its own cost.
    """
    name = workload.backend
    biased = bias is not None or POSITIONS[workload.position].acts == "scores"
    causal = is_plain_causal(workload) and not biased
    takes_masks = device.type in BACKENDS[name].masked_on
    mask: torch.Tensor | None
    if causal:
        mask = None
    elif ends_causal(workload) and not takes_masks:
        # Here, since it loads torch's compiler: a second in every worker, for one kind of call.
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(workload.q_len, workload.kv_len)
    else:
        mask = merged(allowed(workload, device), bias)
    attend = partial(
        _attend,
        mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=workload.num_kv_heads != workload.num_q_heads,
    )
    return Attention(
        attend=attend,
        pinned=partial(sdpa_kernel, [PINS[name]]),
        operators=_OPERATORS[name],
        mask_bytes=0 if mask is None else mask.nbytes,
    )


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask if bias is None else merged(mask, bias), is_causal=is_causal,
        scale=scale, enable_gqa=enable_gqa,
    )  # fmt: skip
