"""Norms as torch's own functions, which compute in float32 what is narrower."""

import torch
from torch import nn

from attnprof.models.architecture import Norm


class RmsNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.shape, self.eps = (width,), norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.shape, self.weight, self.eps)


class UnitNorm(nn.Module):
    """x / √(mean(x²) + eps)."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.shape, self.eps = (width,), norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.shape, None, self.eps)


class LayerNorm(nn.Module):
    """(x - mean(x)) / √(var(x) + eps) · weight + bias."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.shape, self.eps = (width,), norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


def new_norm(width: int, norm: Norm) -> RmsNorm | LayerNorm | UnitNorm:
    """The module of a norm over ``width`` elements."""
    match norm.kind:
        case "rms":
            return RmsNorm(width, norm)
        case "layer":
            return LayerNorm(width, norm)
        case "unit":
            return UnitNorm(width, norm)
