"""Queries and keys turned by RoPE's tables, laid out so that all heads of a token turn at once."""

import torch


def spread(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables ``[tokens, dim]`` for the heads of tokens, ``[tokens, 1, dim]``."""
    return cos[:, None], sin[:, None]


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads ``[batch, tokens, heads, head_dim]`` turned by :func:`spread` tables.

    Elements beyond the tables' width stay as they are.
    """
    dim = cos.shape[-1]
    whole = dim == x.shape[-1]
    part = x if whole else x[..., :dim]
    part = torch.addcmul(part * cos, part.roll(dim // 2, -1), sin)
    return part if whole else torch.cat((part, x[..., dim:]), dim=-1)
