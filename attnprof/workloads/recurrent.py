"""What attention replaced, and what has its constant state again: RNN, LSTM, GRU, linear attention.

Each is a stack of ``num_layers`` layers of the width that a layer of attention would have.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnprof.measured import Check
from attnprof.theory.recurrent import CHUNK_TOKENS
from attnprof.workload import Workload
from attnprof.workloads.operation import Noise, Operation
from attnprof.workloads.precision import (
    effective_weight,
    held_weight_bytes,
    quantize_weights,
    rms_error,
    torch_dtype,
    unit_roundoff,
)
from attnprof.workloads.recurrent_reference import Rounded, exact, recurrence

CHECKED_TOKENS = 512
CHECKED_SEQUENCES = 4
# Times the root mean square of what roundings do: the largest of 10⁶ normal values lies five
# deviations out, and a gate or a token that is wrong moves its output by all of its size.
SAFETY = 8.0

_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
State = tuple[Tensor, ...]


@dataclass
class RecurrentInputs:
    """The layers and what a call of them reads."""

    layers: nn.Module
    x: Tensor  # [batch, q_len, width]
    state: State  # of a decode, and empty where the tokens start from nothing
    gradient: Tensor | None  # of the output, which a train step sends back


class RecurrentOp(Operation):
    """A stack of layers that keep a state of constant size in place of keys and values.

    A prefill takes all tokens from an empty state; a decode takes one, with a state as large as
    that of the ``kv_len − 1`` before it; a train step is a prefill and its gradients, of every
    weight and of the input.
    """

    inputs: RecurrentInputs

    def prepare(self, kind: str | None) -> None:
        """Nothing to choose: torch takes oneDNN's, cuDNN's or its own cells by itself."""

    def allocate(self) -> RecurrentInputs:
        inputs = self._made(torch_dtype(self.workload.dtype))
        if self.workload.weight_dtype is not None:
            quantize_weights(inputs.layers, self.workload.weight_dtype)
        return inputs

    def run(self, inputs: RecurrentInputs) -> Tensor:
        """The output of the last layer; of a train step the gradient of the input."""
        if inputs.gradient is None:
            return self._forward(inputs)
        return self._gradients(inputs)[0]

    @property
    def kv_bytes(self) -> int:
        """Of the state after any number of tokens."""
        if self.workload.mixer == "linear":
            return sum(part.nbytes for part in self._empty_state())
        return sum(part.nbytes for part in self._zero_state(self.inputs.x))

    @property
    def weight_bytes(self) -> int:
        return held_weight_bytes(self.inputs.layers)

    def compared(self, output: Tensor) -> Check:
        """Of up to four sequences the first 512 tokens, a token at a time in float64.

        A token depends on those before it alone, so these are exact however long the sequence.
        Gradients come from behind: of a longer sequence they are those of its first 512 tokens
        alone. Beyond, everything has to be finite.

        An element may be off by ``SAFETY · (σ + u · |o|)``: σ is the root mean square of what
        roundings do to the same recurrence (see :class:`Rounded`), to the element's row or to all
        of them, whichever is more; u is the unit roundoff of the dtype, and √w times that of
        float32 in which a product is summed up, and o the element.
        A weight's gradient is a sum over n tokens in the dtype, and so off by u · √(n/2) more.
        """
        sequences, tokens = slice(CHECKED_SEQUENCES), slice(CHECKED_TOKENS)
        inputs = _part(self.inputs, sequences, tokens)
        trains = inputs.gradient is not None
        found = [output[sequences, tokens]]
        if trains:
            with torch.inference_mode(False), self.active():
                gradients = self._gradients(inputs)
            is_whole = inputs.x.shape == output.shape
            found = [output if is_whole else gradients[0], *gradients[1:]]
        expected = self._reference(inputs, exact)
        unit = unit_roundoff(self.workload.dtype)
        unit += min(unit, unit_roundoff("float32")) * math.sqrt(self.workload.hidden_size)
        disturbed = self._reference(inputs, Rounded(unit, self.seed, inputs.x.device))
        worst = (-1.0, 0.0, 0.0)
        for number, (one, right, off) in enumerate(zip(found, expected, disturbed, strict=True)):
            summed = math.sqrt(inputs.x.shape[1] / 2) if number else 0.0  # a weight's gradients
            by_row = (off - right).square().mean(-1, keepdim=True)
            spread = by_row.clamp(min=float(by_row.mean())).sqrt()
            spread = spread + unit * summed * float(right.square().mean().sqrt())
            bounds = SAFETY * (spread + unit * right.abs())
            errors = (one.double() - right).abs().nan_to_num(nan=math.inf)
            ratios = (errors / bounds.clamp(min=torch.finfo(torch.float64).tiny)).flatten()
            at = int(ratios.argmax())
            found_here = float(ratios[at]), float(errors.flatten()[at]), float(bounds.flatten()[at])
            worst = max(worst, found_here)
        _, error, bound = worst
        finite = math.isfinite(error) and bool(output.isfinite().all())
        return Check(
            passed=finite and error <= bound,
            max_abs_error=error if finite else None,
            bound=bound,
            rows=inputs.x.shape[0] * inputs.x.shape[1],
            rms_error=self._rms_error(found[0], sequences, tokens) if finite else None,
        )

    def _rms_error(self, found: Tensor, sequences: slice, tokens: slice) -> float:
        """Against weights, inputs and states that are not rounded."""
        drawn = torch.promote_types(torch_dtype(self.workload.dtype), torch.float32)
        with torch.inference_mode(False):
            unrounded = _part(self._made(drawn), sequences, tokens)
        return rms_error(found, self._reference(unrounded, exact)[0])

    def _forward(self, inputs: RecurrentInputs) -> Tensor:
        state: Any = inputs.state or None
        if state is not None and self.workload.mixer in ("rnn", "gru"):
            state = state[0]
        if self.workload.checkpointing and self.workload.mixer != "linear":
            out = checkpoint(inputs.layers, inputs.x, state, use_reentrant=False)
        else:
            out = inputs.layers(inputs.x, state)
        result: Tensor = out[0]
        return result

    def _gradients(self, inputs: RecurrentInputs) -> list[Tensor]:
        """Of the input, then of every weight; not added to those of the last call."""
        leaves = [inputs.x, *inputs.layers.parameters()]
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(self._forward(inputs), inputs.gradient)
        gradients = [leaf.grad for leaf in leaves]
        assert all(gradient is not None for gradient in gradients)
        return [gradient for gradient in gradients if gradient is not None]

    def _made(self, dtype: torch.dtype) -> RecurrentInputs:
        """Weights, tokens and states, the same numbers in every dtype but for their rounding."""
        workload, noise = self.workload, Noise(self.seed, self.device)
        width, trains = workload.hidden_size, workload.phase == "train"
        layers: nn.Module
        if workload.mixer == "linear":
            layers = LinearAttentionStack(workload, self.device, dtype)
        else:
            layers = _CELLS[workload.mixer](
                width, width, workload.num_layers, batch_first=True, device=self.device, dtype=dtype
            )
        scale = 1.0 if workload.mixer == "linear" else 3**-0.5  # torch's own, by default
        with torch.no_grad():
            for weight in layers.parameters():
                weight.requires_grad_(trains)
                drawn = noise(*weight.shape, dtype=torch.float32).to(torch.float64)
                weight.copy_(drawn * (scale * width**-0.5))
        tokens = (workload.batch_size, workload.q_len, width)
        x = noise(*tokens, dtype=dtype).requires_grad_(trains)
        state = self._state(noise, dtype) if workload.phase == "decode" else ()
        return RecurrentInputs(layers, x, state, noise(*tokens, dtype=dtype) if trains else None)

    def _state(self, noise: Noise, dtype: torch.dtype) -> State:
        """Drawn from the distribution of a state after ``kv_len − 1`` normal tokens.

        Of linear attention the sums of as many φ(k)vᵀ and φ(k) with normal k and v.
        """
        workload, num_seen = self.workload, self.workload.kv_len - 1
        if workload.mixer != "linear":
            shape = (workload.num_layers, workload.batch_size, workload.hidden_size)
            parts = 2 if workload.mixer == "lstm" else 1
            drawn = (noise(*shape, dtype=torch.float64).tanh() for _ in range(parts))
            return tuple((one if num_seen else torch.zeros_like(one)).to(dtype) for one in drawn)
        sums, norms = self._empty_state()
        mean, square = 1.1605, 1.9660  # of φ of a normal number, and of its square
        deviation = math.sqrt(num_seen * (square - mean**2))
        sums = noise(*sums.shape, dtype=sums.dtype) * math.sqrt(num_seen * square)
        norms = noise(*norms.shape, dtype=norms.dtype) * deviation + num_seen * mean
        return sums, norms.clamp_(min=0)

    def _empty_state(self) -> State:
        """Of linear attention, in float32 for halves: its sums run over all tokens."""
        w = self.workload
        dtype = torch.float64 if w.dtype == "float64" else torch.float32
        shape = (w.num_layers, w.batch_size, w.num_kv_heads, w.head_dim)
        return (
            torch.zeros(*shape, w.value_dim, dtype=dtype, device=self.device),
            torch.zeros(*shape, dtype=dtype, device=self.device),
        )

    def _zero_state(self, x: Tensor) -> State:
        w = self.workload
        parts = 2 if w.mixer == "lstm" else 1
        return (x.new_zeros(w.num_layers, x.shape[0], w.hidden_size),) * parts

    def _reference(self, inputs: RecurrentInputs, rounded: Any) -> list[Tensor]:
        """The output in float64; of a train step the gradients of input and weights."""
        w, trains = self.workload, inputs.gradient is not None
        with torch.inference_mode(False), torch.set_grad_enabled(trains):
            x = inputs.x.detach().clone().double().requires_grad_(trains)
            layers = [
                [weight.detach().clone().double().requires_grad_(trains) for weight in weights]
                for weights in _weights(inputs.layers, w.num_layers)
            ]
            if inputs.state:
                state: State = inputs.state
            else:
                empty = self._empty_state() if w.mixer == "linear" else self._zero_state(x)
                state = tuple(part[:, : x.shape[0]] for part in empty)
            by_layer = [[part[layer].double() for part in state] for layer in range(w.num_layers)]
            if w.mixer == "linear":
                by_layer = [[x[:, 0], *parts] for parts in by_layer]
            out = recurrence(w.mixer, layers, x, by_layer, (w.head_dim, w.value_dim), rounded)
            if inputs.gradient is None:
                return [out]
            wanted = [x, *(weight for weights in layers for weight in weights)]
            return list(torch.autograd.grad(out, wanted, inputs.gradient.double()))


class LinearAttention(nn.Module):
    """Causal attention whose softmax is a product of positive features, so that its past is a sum.

        o = φ(q)ᵀ S / φ(q)ᵀ z,   S = Σ φ(k) vᵀ,   z = Σ φ(k),   φ(x) = elu(x) + 1

    With projections of Q, K, V and of the output. Many tokens go in chunks of 64: within a chunk
    the masked product of all pairs, and between chunks the sum of the chunks before. One token
    with a state goes by the recurrence. Sums are held in float32 for halves.

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, sections 3.2–3.4; the chunks are those of Hua
        et al. 2022, arXiv:2202.10447, section 3.3.
    """

    def __init__(self, workload: Workload, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.workload = workload
        width, key_dim = workload.hidden_size, workload.head_dim
        num_kv_heads = workload.num_kv_heads

        def projection(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(columns, rows, bias=False, device=device, dtype=dtype)

        self.q = projection(workload.num_q_heads * key_dim, width)
        self.k = projection(num_kv_heads * key_dim, width)
        self.v = projection(num_kv_heads * workload.value_dim, width)
        self.out = projection(width, width)

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        w = self.workload
        q = _features(_heads(self.q(x), w.head_dim))
        k = _features(_heads(self.k(x), w.head_dim))
        v = _heads(self.v(x), w.value_dim)
        attended, state = _chunked(q, k, v) if state is None else _one_more(q, k, v, state)
        projected: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return projected, state


class LinearAttentionStack(nn.Module):
    """Layers of linear attention, one after another."""

    def __init__(self, workload: Workload, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.checkpointing = workload.checkpointing
        self.layers = nn.ModuleList(
            LinearAttention(workload, device, dtype) for _ in range(workload.num_layers)
        )

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        states = []
        for number, layer in enumerate(self.layers):
            before = None if state is None else tuple(part[number] for part in state)
            x, after = (
                checkpoint(layer, x, before, use_reentrant=False)
                if self.checkpointing
                else layer(x, before)
            )
            states.append(after)
        return x, tuple(torch.stack(parts) for parts in zip(*states, strict=True))


def _heads(x: Tensor, width: int) -> Tensor:
    """``[batch, length, heads · width]`` as ``[batch, heads, length, width]``."""
    return torch.unflatten(x, -1, (-1, width)).transpose(1, 2)


def _features(x: Tensor) -> Tensor:
    return nn.functional.elu(x) + 1


def _sums_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _one_more(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
    """One token by the recurrence; a group of query heads shares its KV head's state."""
    sums, norms = state  # [batch, kv heads, key width, value width], and without the last
    k, v, wide = k.to(sums.dtype), v.to(sums.dtype), q.to(sums.dtype)
    sums = sums + k.transpose(-1, -2) * v
    norms = norms + k.squeeze(-2)
    grouped = torch.unflatten(wide, 1, (sums.shape[1], -1)).squeeze(-2)
    attended = grouped @ sums / (grouped * norms[:, :, None]).sum(-1, keepdim=True)
    return attended.flatten(1, 2)[:, :, None].to(q.dtype), (sums, norms)


def _chunked(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, State]:
    """All tokens from an empty state, in chunks; tokens that fill the last one are zeros.

    What came before a chunk is multiplied as a mean: as a sum it leaves float16's range.
    """
    length, num_kv_heads = q.shape[2], k.shape[1]
    chunk = min(CHUNK_TOKENS, length)
    padding = -length % chunk
    if padding:
        q, k, v = (nn.functional.pad(part, (0, 0, 0, padding)) for part in (q, k, v))
    k, v = (torch.unflatten(part, 2, (-1, chunk)) for part in (k, v))
    q = torch.unflatten(q, 2, (-1, chunk))
    q = torch.unflatten(q, 1, (num_kv_heads, -1)).transpose(2, 3)
    group = q.shape[3]
    rows = q.flatten(3, 4)  # [batch, kv heads, chunks, group · chunk, key width]
    wide = _sums_dtype(q.dtype)
    sums = (k.transpose(-1, -2) @ v).to(wide).cumsum(2)
    norms = k.sum(-2, dtype=wide).cumsum(2)
    num_before = chunk * torch.arange(sums.shape[2], device=q.device).clamp(min=1)[:, None, None]
    before = nn.functional.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))
    means = (before / num_before).to(q.dtype)
    norms_before = nn.functional.pad(norms[:, :, :-1], (0, 0, 1, 0))
    sees = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    scores = (rows @ k.transpose(-1, -2)).masked_fill(~sees.repeat(group, 1), 0)
    numerator = (rows @ means).to(wide) * num_before + (scores @ v).to(wide)
    weight = (rows * norms_before[:, :, :, None]).sum(-1, keepdim=True)
    weight = weight + scores.sum(-1, keepdim=True, dtype=wide)
    if padding:
        weight = weight.masked_fill(weight == 0, 1)  # of tokens that are cut off below
    attended = torch.unflatten((numerator / weight).to(v.dtype), 3, (group, chunk))
    attended = attended.transpose(2, 3).flatten(1, 2).flatten(2, 3)[:, :, :length]
    return attended, (sums[:, :, -1], norms[:, :, -1])


def _weights(layers: nn.Module, num_layers: int) -> list[Sequence[Tensor]]:
    """Of each layer, in the order of the module; of quantised ones what they stand for."""
    if isinstance(layers, LinearAttentionStack):
        return [
            [effective_weight(one) for one in layer.children() if isinstance(one, nn.Linear)]
            for layer in layers.layers
        ]
    flat = list(layers.parameters())
    each = len(flat) // num_layers
    return [flat[i * each : (i + 1) * each] for i in range(num_layers)]


def _part(inputs: RecurrentInputs, sequences: slice, tokens: slice) -> RecurrentInputs:
    gradient = inputs.gradient
    trains = gradient is not None
    with torch.inference_mode(False):
        x = inputs.x.detach()[sequences, tokens].requires_grad_(trains)
    return RecurrentInputs(
        inputs.layers,
        x,
        tuple(part[:, sequences] for part in inputs.state),
        None if gradient is None else gradient[sequences, tokens],
    )
