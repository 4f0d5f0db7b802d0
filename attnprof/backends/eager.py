"""Attention in plain torch operators, which writes every score to memory: the O(n²) that flash
kernels avoid."""

import torch

from attnprof.backends import Attention
from attnprof.backends.masks import allowed
from attnprof.workload import Workload


def prepare(workload: Workload, device: torch.device) -> Attention:
    """Softmax(scale · QKᵀ)V, its mask built once and held between calls.

    Query heads that share a KV head are laid side by side as more rows of one matrix product, so
    keys and values are never copied.
    """
    scale = workload.head_dim**-0.5
    mask = allowed(workload, device)
    hidden = None if mask is None else ~mask

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, num_q_heads, q_len, head_dim = q.shape
        num_kv_heads, kv_len = k.shape[1:3]
        rows = num_q_heads // num_kv_heads * q_len
        scores = q.reshape(batch, num_kv_heads, rows, head_dim) @ k.transpose(-2, -1)
        scores = scores * scale
        if hidden is not None:
            by_head = (batch, num_q_heads, q_len, kv_len)
            scores = scores.view(by_head).masked_fill(hidden, float("-inf")).view_as(scores)
        scores = torch.softmax(scores, dim=-1)
        return (scores @ v).view(batch, num_q_heads, q_len, head_dim)

    return Attention(attend=attend, mask_bytes=0 if hidden is None else hidden.nbytes)
