"""The flash-attn package (Dao), which has windows, soft caps and shared KV heads of its own."""

import torch

from attnprof.backends import Attention
from attnprof.backends.masks import sees_all
from attnprof.workload import Workload


def prepare(
    workload: Workload, device: torch.device, *, scale: float, bias: torch.Tensor | None
) -> Attention:
    """``flash_attn_func``; it takes ``[batch, len, heads, head_dim]``, given as views.

    Its causal triangle ends at the last key, so queries after cached tokens need no mask.
    """
    from flash_attn import flash_attn_func

    assert bias is None
    causal = not sees_all(workload)
    left = workload.window_len - 1 if causal and workload.window_len else -1
    window = (left, 0) if left >= 0 else (-1, -1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flash_attn_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
            softmax_scale=scale, causal=causal, window_size=window,
            softcap=workload.softcap or 0.0,
        )  # fmt: skip
        return out.transpose(1, 2)

    return Attention(attend=attend)
