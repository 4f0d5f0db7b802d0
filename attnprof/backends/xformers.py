"""The xFormers package: memory_efficient_attention, which picks among its own kernels."""

import torch

from attnprof.backends import Attention
from attnprof.backends.masks import sees_all
from attnprof.workload import Workload


def prepare(
    workload: Workload, device: torch.device, *, scale: float, bias: torch.Tensor | None
) -> Attention:
    """Takes ``[batch, len, kv heads, query heads a kv head, head_dim]``; KV heads are shared by a
    stride of zero, not by a copy."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import (
        LowerTriangularFromBottomRightLocalAttentionMask,
        LowerTriangularFromBottomRightMask,
    )

    assert bias is None
    mask = None
    if not sees_all(workload):
        window = workload.window_len
        mask = (
            LowerTriangularFromBottomRightMask()
            if window is None
            else LowerTriangularFromBottomRightLocalAttentionMask(window)
        )
    num_kv_heads = workload.num_kv_heads
    group = workload.num_q_heads // num_kv_heads

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if group == 1:
            heads = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
            out: torch.Tensor = memory_efficient_attention(*heads, attn_bias=mask, scale=scale)
            return out.transpose(1, 2)
        batch, _, q_len, head_dim = q.shape
        queries = q.view(batch, num_kv_heads, group, q_len, head_dim).permute(0, 3, 1, 2, 4)
        keys, values = (
            t.transpose(1, 2).unsqueeze(3).expand(-1, -1, -1, group, -1) for t in (k, v)
        )
        grouped: torch.Tensor = memory_efficient_attention(
            queries, keys, values, attn_bias=mask, scale=scale
        )
        return grouped.permute(0, 2, 3, 1, 4).flatten(1, 2)

    return Attention(attend=attend)
