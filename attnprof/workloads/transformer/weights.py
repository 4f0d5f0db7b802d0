"""Seeded random weights, scaled so that activations stay finite at any depth and width."""

import torch
from torch import nn

from attnprof.workloads.operation import Noise
from attnprof.workloads.transformer.attention import SelfAttention
from attnprof.workloads.transformer.cross import CrossAttention
from attnprof.workloads.transformer.norms import LayerNorm, RmsNorm

_SMALL = 0.02  # of biases and sinks, as most families are initialised


def fill_with_noise(model: nn.Module, seed: int) -> None:
    """Fill every parameter: norms near one, matrices by 1/√(inputs), all else small.

    Queries whose scores are not scaled are by 1/√head_dim smaller instead, as T5's are.

    Source:
        Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural
        networks", section 4.2 (a variance of one over the inputs keeps that of the outputs).
    """
    noise = Noise(seed, next(model.parameters()).device)
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, RmsNorm | LayerNorm)
        for parameter in (module.weight,)
    }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(noise(*parameter.shape, dtype=parameter.dtype))
            if id(parameter) in norms:
                parameter.mul_(_SMALL).add_(1.0)
            elif parameter.dim() < 2:
                parameter.mul_(_SMALL)
            else:
                parameter.mul_(parameter.shape[-1] ** -0.5)
        for module in model.modules():
            if isinstance(module, SelfAttention | CrossAttention) and module.block.scale == 1.0:
                matrix = module.qkv if isinstance(module, SelfAttention) else module.q
                width = module.block.num_q_heads * module.block.head_dim
                matrix.weight[:width].mul_(module.block.head_dim**-0.5)
