"""RoPE and its scalings -> queries and keys whose product depends on their distance alone.

Frequencies and angles are float32 whatever the dtype of the arithmetic, operation by operation
as in the Transformers library, so that both give the same bits.
"""

import math

import torch

from attnprof.rope import Rope, yarn_mscale
from attnprof.workloads.positions.base import Position


def plain_frequencies(rotated_dim: int, base: float | torch.Tensor = 10_000.0) -> torch.Tensor:
    """How far each pair turns from a token to the next, ``[rotated_dim / 2]``. [radian]

        θ_i = base^(−2i / d),  i = 0 … d/2 − 1

    Source:
        Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2.2.

    >>> plain_frequencies(4, base=100.0).tolist()
    [1.0, 0.10000000149011612]
    """
    return 1.0 / base ** (torch.arange(0, rotated_dim, 2, dtype=torch.float32) / rotated_dim)


def linear_frequencies(rotated_dim: int, base: float, factor: float) -> torch.Tensor:
    """Frequencies over ``factor``, which is as positions over it. [radian]

        θ'_i = θ_i / s

    Source:
        Chen et al. 2023, "Position Interpolation", arXiv:2306.15595, section 2.3, equation 4.
    """
    return plain_frequencies(rotated_dim, base) / factor


def dynamic_frequencies(
    rotated_dim: int, base: float, factor: float, original_len: int, length: int
) -> torch.Tensor:
    """Frequencies of a base that grows with the length of the sequence. [radian]

        base' = base · (s·n / n₀ − (s − 1))^(d / (d − 2)),  n = max(length, n₀)

    Up to ``original_len`` they are the plain ones.

    Source:
        Peng et al. 2023, "YaRN", arXiv:2309.00071, section 3.3 (dynamic scaling) with the base of
        definition 1; s·n/n₀ − (s − 1) is the Transformers library's.
    """
    longest = torch.tensor(max(length, original_len), dtype=torch.float32)
    stretch = factor * longest / original_len - (factor - 1)
    return plain_frequencies(rotated_dim, base * stretch ** (rotated_dim / (rotated_dim - 2)))


def yarn_frequencies(
    rotated_dim: int,
    base: float,
    factor: float,
    original_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> torch.Tensor:
    """Fast pairs left alone, slow ones slowed by ``factor``, a ramp between. [radian]

        θ'_i = (1 − γ_i)·θ_i / s + γ_i·θ_i

    γ falls from 1 to 0 between the pairs that make ``beta_fast`` and ``beta_slow`` turns over
    ``original_len``; pair d·ln(n₀ / 2πβ) / (2·ln base) makes β of them.

    Args:
        truncate: Begin and end the ramp at whole pairs.

    Source:
        Peng et al. 2023, "YaRN", arXiv:2309.00071, section 3.2, definition 2; the ramp goes by
        the pair's number, as in the authors' code and the Transformers library.
    """

    def pair_with(turns: float) -> float:
        wavelength = original_len / (turns * 2 * math.pi)
        return (rotated_dim * math.log(wavelength)) / (2 * math.log(base))

    begin, end = pair_with(beta_fast), pair_with(beta_slow)
    if truncate:
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, rotated_dim - 1)
    if begin == end:
        end += 0.001
    pairs = torch.arange(rotated_dim // 2, dtype=torch.float32)
    kept = 1 - torch.clamp((pairs - begin) / (end - begin), 0, 1)
    wavelengths = base ** (torch.arange(0, rotated_dim, 2, dtype=torch.float32) / rotated_dim)
    return (1.0 / (factor * wavelengths)) * (1 - kept) + (1.0 / wavelengths) * kept


def llama3_frequencies(
    rotated_dim: int,
    base: float,
    factor: float = 8.0,
    original_len: int = 8192,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> torch.Tensor:
    """Wavelengths over n₀/l slowed by ``factor``, those under n₀/h left alone. [radian]

        θ'_i = (1 − γ_i)·θ_i / s + γ_i·θ_i,  γ_i = (n₀ / λ_i − l) / (h − l) within 0 … 1

    Source:
        Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.4.2;
        the formula is that of Meta's llama-models, ``apply_scaling``.
    """
    plain = plain_frequencies(rotated_dim, base)
    wavelengths = 2 * math.pi / plain
    longest, shortest = original_len / low_freq_factor, original_len / high_freq_factor
    scaled = torch.where(wavelengths > longest, plain / factor, plain)
    share = (original_len / wavelengths - low_freq_factor) / (high_freq_factor - low_freq_factor)
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, (1 - share) * scaled / factor + share * scaled, scaled)


def frequencies(rope: Rope, length: int) -> torch.Tensor:
    """Those of ``rope`` for a sequence of ``length`` tokens, ``[rotated_dim / 2]``. [radian]"""
    width, base = rope.rotated_dim, rope.base
    match rope.scaling:
        case "default":
            return plain_frequencies(width, base)
        case "linear":
            return linear_frequencies(width, base, rope.factor)
        case "dynamic":
            return dynamic_frequencies(width, base, rope.factor, rope.original_len, length)
        case "yarn":
            betas = (rope.beta_fast, rope.beta_slow)
            return yarn_frequencies(
                width, base, rope.factor, rope.original_len, *betas, rope.truncate
            )
        case "llama3":
            bounds = (rope.low_freq_factor, rope.high_freq_factor)
            return llama3_frequencies(width, base, rope.factor, rope.original_len, *bounds)


def attention_factor(rope: Rope) -> float:
    """What cosines and sines are multiplied with, so that scores are by its square."""
    if rope.scaling != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        scales = (rope.mscale, rope.mscale_all_dim)
        above, below = (yarn_mscale(rope.factor, scale) for scale in scales)
        return above / below
    return yarn_mscale(rope.factor)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first elements of each head of ``x`` turned, as many as there are cosines.

        (x_a, x_b) → (x_a·cos mθ − x_b·sin mθ, x_b·cos mθ + x_a·sin mθ),  b = a + d / 2

    Args:
        x: ``[..., head_dim]``.
        cos: Of the angle of each element, broadcast to all but the last dimension of ``x``.
        sin: Likewise; negative in the first half.

    Source:
        Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.4.2, equation 34.
    """
    width = cos.shape[-1]
    if width == x.shape[-1]:
        return torch.addcmul(x * cos, x.roll(width // 2, -1), sin)
    return torch.cat((turned(x[..., :width], cos, sin), x[..., width:]), dim=-1)


class Rotary(Position):
    """RoPE: pairs of elements turned by angles in proportion to the position.

    Cosines and sines are read from tables in the dtype of the arithmetic, that grow when a
    sequence does; what a call costs is the turning. Dynamic NTK beyond its first length has other
    frequencies for every length: each call of a new length makes its rows anew, and keys that are
    cached stay turned as they were, as in the Transformers library.

    Args:
        max_len: Positions that the tables hold from the beginning.
    """

    def __init__(self, rope: Rope, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        self.rope, self._device, self._dtype = rope, device, dtype
        self._factor = attention_factor(rope)
        self._held: tuple[int, int] | None = None
        held_len = max_len if rope.varies_beyond is None else min(max_len, rope.varies_beyond)
        self._cos, self._sin = self._rows(0, held_len)

    @property
    def table_bytes(self) -> int:
        return self._cos.nbytes + self._sin.nbytes

    def tables(self, first: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What :func:`turned` takes of ``tokens`` positions, ``[tokens, rotated_dim]`` each."""
        end, varies_beyond = first + tokens, self.rope.varies_beyond
        if varies_beyond is not None and end > varies_beyond:
            if self._held != (first, end):
                self._varied, self._held = self._rows(first, end), (first, end)
            return self._varied
        if end > len(self._cos):
            longer = 2 * end if varies_beyond is None else varies_beyond
            self._cos, self._sin = self._rows(0, longer)
        return self._cos[first:end], self._sin[first:end]

    def _rows(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode(False):  # tables are read by training steps too
            positions = torch.arange(first, end, dtype=torch.float32, device=self._device)
            turns = frequencies(self.rope, end).to(self._device)
            angles = positions[:, None] * turns
            cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
            both_cos = torch.cat((cos, cos), dim=-1).to(self._dtype)
            return both_cos, torch.cat((-sin, sin), dim=-1).to(self._dtype)

    def rotate(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """``x`` turned; elements beyond ``rotated_dim`` stay as they are."""
        return turned(x, *self.tables(first, x.shape[-2]))
