"""Attention in plain torch operators, which writes every score to memory: the O(n²) that flash
kernels avoid."""

import torch

from attnprof.backends import Attention
from attnprof.backends.masks import allowed
from attnprof.workload import Workload


def prepare(
    workload: Workload, device: torch.device, *, scale: float, bias: torch.Tensor | None
) -> Attention:
    """Softmax(scale · QKᵀ)V, its mask built once and held between calls.

    Query heads that share a KV head are laid side by side as more rows of one matrix product, so
    keys and values are never copied. A soft cap comes before a bias, and that before the mask; a
    head's learned logit is one more column of its scores, which is dropped after the softmax.
    """
    mask = allowed(workload, device)
    hidden = None if mask is None else ~mask
    softcap, constant_bias = workload.softcap, bias

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None = constant_bias,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        batch, num_q_heads, q_len, head_dim = q.shape
        num_kv_heads, kv_len = k.shape[1:3]
        rows = num_q_heads // num_kv_heads * q_len
        by_head = (batch, num_q_heads, q_len, kv_len)
        scores = q.reshape(batch, num_kv_heads, rows, head_dim) @ k.transpose(-2, -1)
        scores = (scores if scale == 1.0 else scores * scale).view(by_head)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is None:
            scores = torch.softmax(scores, dim=-1)
        else:
            column = sinks.view(1, -1, 1, 1).expand(batch, -1, q_len, 1)
            scores = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
        scores = scores.reshape(batch, num_kv_heads, rows, kv_len)
        return (scores @ v).view(batch, num_q_heads, q_len, v.shape[-1])

    held = [tensor.nbytes for tensor in (hidden, bias) if tensor is not None]
    return Attention(attend=attend, mask_bytes=sum(held))
