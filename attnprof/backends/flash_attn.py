"""The flash-attn package (Dao), which has windows and shared KV heads of its own."""

import torch

from attnprof.backends import Attention
from attnprof.workload import Workload


def prepare(workload: Workload, device: torch.device) -> Attention:
    """``flash_attn_func``; it takes ``[batch, len, heads, head_dim]``, given as views."""
    from flash_attn import flash_attn_func

    causal = workload.variant != "full" and workload.q_len > 1
    windowed = workload.window_len is not None and workload.q_len > 1
    window = (workload.window_len - 1, 0) if windowed and workload.window_len else (-1, -1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flash_attn_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
            causal=causal, window_size=window,
        )  # fmt: skip
        return out.transpose(1, 2)

    return Attention(attend=attend)
