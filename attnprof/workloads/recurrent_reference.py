"""Recurrences, a token at a time in float64: what the layers in :mod:`.recurrent` have to give.

Written from the equations, and not from the layers: no chunk, no fused gate, no library cell.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]  # what a kernel's arithmetic does to each value it makes
Weights = Sequence[Tensor]  # of one layer, as its module names them in order


def exact(value: Tensor) -> Tensor:
    """What a float64 reference rounds: nothing."""
    return value


class Rounded:
    """Each value off by a normal relative error of ``unit``, and so is each gradient.

    What comes out of a recurrence so disturbed tells how far roundings that are as large drive a
    kernel that is right from the exact result.

    Source:
        Parker 1997, "Monte Carlo Arithmetic", UCLA CSD-970002.
    """

    def __init__(self, unit: float, seed: int, device: torch.device) -> None:
        self.unit = unit
        self._generator = torch.Generator(device).manual_seed(seed % 2**63)

    def __call__(self, value: Tensor) -> Tensor:
        rounded: Tensor = _BothWays.apply(value, self)  # type: ignore[no-untyped-call]
        return rounded

    def off(self, value: Tensor) -> Tensor:
        noise = torch.randn(
            value.shape, dtype=value.dtype, device=value.device, generator=self._generator
        )
        return value * (1 + self.unit * noise)


class _BothWays(torch.autograd.Function):
    """Rounds a value on its way, and the gradient on its way back, each by itself."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, rounded: Rounded) -> Tensor:
        ctx.rounded = rounded
        return rounded.off(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rounded.off(gradient), None


def recurrence(
    mixer: str,
    layers: Sequence[Weights],
    x: Tensor,
    states: Sequence[Sequence[Tensor]],
    head_dims: tuple[int, int],
    rounded: Rounding = exact,
) -> Tensor:
    """``x [batch, length, width]`` through all layers, each from its own state.

    Args:
        head_dims: Widths of a key and a value, of linear attention alone.

    Source:
        Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014 (the reset gate after the
        product, as in cuDNN and torch); Katharopoulos et al. 2020, arXiv:2006.16236, eqs. 16–20.
    """
    step = {"rnn": _rnn, "lstm": _lstm, "gru": _gru}.get(mixer)
    for weights, state in zip(layers, states, strict=True):
        outputs = []
        for token in x.unbind(1):
            if step is None:
                state = _linear(weights, token, state, head_dims, rounded)
            else:
                state = step(weights, token, state, rounded)
            outputs.append(state[0])
        x = torch.stack(outputs, dim=1)
    return x


def _gates(weights: Weights, token: Tensor, hidden: Tensor, rounded: Rounding) -> list[Tensor]:
    """Products with the token and with the state, apart, each with its bias."""
    w_input, w_hidden, b_input, b_hidden = weights
    return [rounded(token @ w_input.T + b_input), rounded(hidden @ w_hidden.T + b_hidden)]


def _rnn(
    weights: Weights, token: Tensor, state: Sequence[Tensor], rounded: Rounding
) -> list[Tensor]:
    of_token, of_state = _gates(weights, token, state[0], rounded)
    return [rounded((of_token + of_state).tanh())]


def _lstm(
    weights: Weights, token: Tensor, state: Sequence[Tensor], rounded: Rounding
) -> list[Tensor]:
    hidden, cell = state
    of_token, of_state = _gates(weights, token, hidden, rounded)
    keep_in, forget, new, out = rounded(of_token + of_state).chunk(4, dim=-1)
    cell = rounded(forget.sigmoid() * cell + rounded(keep_in.sigmoid() * new.tanh()))
    return [rounded(out.sigmoid() * rounded(cell.tanh())), cell]


def _gru(
    weights: Weights, token: Tensor, state: Sequence[Tensor], rounded: Rounding
) -> list[Tensor]:
    hidden = state[0]
    of_token, of_state = _gates(weights, token, hidden, rounded)
    reset_x, update_x, new_x = of_token.chunk(3, dim=-1)
    reset_h, update_h, new_h = of_state.chunk(3, dim=-1)
    reset = rounded(reset_x + reset_h).sigmoid()
    update = rounded((update_x + update_h).sigmoid())
    new = rounded(rounded(new_x + rounded(reset * new_h)).tanh())
    return [rounded(rounded((1 - update) * new) + rounded(update * hidden))]


def _linear(
    weights: Weights,
    token: Tensor,
    state: Sequence[Tensor],
    head_dims: tuple[int, int],
    rounded: Rounding,
) -> list[Tensor]:
    """The output first, then the sum of φ(k)vᵀ and that of φ(k).

    What goes two ways is rounded on each, because so are the gradients that come back.
    """
    _, sums, norms = state
    w_q, w_k, w_v, w_out = weights
    key_dim, value_dim = head_dims
    q = torch.unflatten(_positive(rounded(rounded(token) @ w_q.T), rounded), -1, (-1, key_dim))
    k = torch.unflatten(_positive(rounded(rounded(token) @ w_k.T), rounded), -1, (-1, key_dim))
    v = torch.unflatten(rounded(rounded(token) @ w_v.T), -1, (-1, value_dim))
    sums = sums + rounded(k[..., :, None] * v[..., None, :])
    norms = norms + rounded(k)
    group = q.shape[1] // k.shape[1]
    seen = rounded(sums).repeat_interleave(group, dim=1)
    weight = rounded(norms).repeat_interleave(group, dim=1)
    above = rounded((rounded(q)[..., None] * seen).sum(-2))
    below = rounded((rounded(q) * weight).sum(-1, keepdim=True))
    return [rounded(rounded(above / below).flatten(1) @ w_out.T), sums, norms]


def _positive(x: Tensor, rounded: Rounding) -> Tensor:
    """φ(x) = elu(x) + 1, both rounded: a small φ keeps the rounding of a number near one."""
    return rounded(rounded(torch.where(x > 0, x, x.clamp(max=0).exp() - 1)) + 1)
