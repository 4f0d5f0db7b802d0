"""Keys or values -> the tensors that they lie in: as they are, or codes and a scale for them."""

from dataclasses import dataclass
from typing import Protocol

import torch

from attnprof.theory.kv_cache import SCALED
from attnprof.workloads.precision import torch_dtype

Planes = tuple[torch.Tensor, ...]
"""What a cache holds: tensors ``[..., tokens, width]`` that all have the same tokens."""

_SCALE_DTYPE = torch.float32
_INT4_ZERO = 8  # what is added to a code from -7 to 7, so that it is a nibble
_LARGEST = {"int8": 127.0, "int4": 7.0}


class Codec(Protocol):
    """Turns keys, or values, into what is stored of them, and back."""

    @property
    def width(self) -> int:
        """Elements of a token in a head."""

    @property
    def planes(self) -> tuple[tuple[int, torch.dtype], ...]:
        """Width and type of each tensor that holds one token of one head."""

    @property
    def keeps_all(self) -> bool:
        """Whether what is stored is what was given."""

    def encode(self, given: torch.Tensor) -> Planes:
        """What is stored of ``given [..., width]``."""

    def decode(self, planes: Planes) -> torch.Tensor:
        """What is stored, in the type of the arithmetic."""


@dataclass(frozen=True)
class Plain:
    """Elements of ``stored``, which is the type of the arithmetic or a cast away."""

    width: int
    stored: torch.dtype
    dtype: torch.dtype

    @property
    def planes(self) -> tuple[tuple[int, torch.dtype], ...]:
        return ((self.width, self.stored),)

    @property
    def keeps_all(self) -> bool:
        return self.stored == self.dtype

    def encode(self, given: torch.Tensor) -> Planes:
        return (given.to(self.stored),)

    def decode(self, planes: Planes) -> torch.Tensor:
        return planes[0].to(self.dtype)


@dataclass(frozen=True)
class Scaled:
    """int8, fp8 or int4 codes, and a float32 scale for each token, head and group of elements.

        scale = max |x| / largest code,  code = round(x / scale)

    Symmetric: zero is a code. A token is scaled by itself when it comes, so nothing is calibrated
    and no later token changes what an earlier one is read back as. int4 lays the code of element i
    and that of element i + width / 2 in one byte. All codes lie as bytes, which every layout can
    copy on every device. They are read back in float32 and then in the type of the arithmetic: a
    copy that is part of every call.

    Source:
        Liu et al. 2023, "LLM-QAT", arXiv:2305.17888, section 2.2 (symmetric, a scale a token);
        Micikevicius et al. 2022, "FP8 Formats for Deep Learning", arXiv:2209.05433, section 3.
    """

    groups: tuple[int, ...]  # widths of the stretches that have a scale each
    name: str
    dtype: torch.dtype

    @property
    def width(self) -> int:
        return sum(self.groups)

    @property
    def planes(self) -> tuple[tuple[int, torch.dtype], ...]:
        packed = self.name == "int4"
        codes = (self.width // 2 if packed else self.width, torch.uint8)
        return (codes, (len(self.groups), _SCALE_DTYPE))

    @property
    def keeps_all(self) -> bool:
        return False

    def encode(self, given: torch.Tensor) -> Planes:
        wide = given.to(torch.float32)
        parts = torch.split(wide, list(self.groups), dim=-1)
        largest = [part.abs().amax(-1, keepdim=True) for part in parts]
        scales = torch.cat(largest, dim=-1) / self._largest
        scales = scales.clamp_min(torch.finfo(_SCALE_DTYPE).tiny)
        codes = (wide / self._spread(scales)).clamp_(-self._largest, self._largest)
        if self.name == "int4":
            low, high = codes.round_().add_(_INT4_ZERO).to(torch.uint8).chunk(2, dim=-1)
            return low | high << 4, scales
        codes = codes.round_() if self.name == "int8" else codes
        return codes.to(self._code_dtype).view(torch.uint8), scales

    def decode(self, planes: Planes) -> torch.Tensor:
        codes, scales = planes
        if self.name == "int4":
            half = codes.shape[-1]
            wide = torch.empty(*codes.shape[:-1], 2 * half, device=codes.device)
            wide[..., :half] = codes & 15
            wide[..., half:] = codes >> 4
            wide -= _INT4_ZERO
        else:
            wide = codes.view(self._code_dtype).to(torch.float32)
        return wide.mul_(self._spread(scales)).to(self.dtype)

    @property
    def _code_dtype(self) -> torch.dtype:
        return torch_dtype(self.name)

    @property
    def _largest(self) -> float:
        return _LARGEST.get(self.name) or torch.finfo(self._code_dtype).max

    def _spread(self, scales: torch.Tensor) -> torch.Tensor:
        """The scales of groups as those of elements."""
        if len(self.groups) == 1:
            return scales
        columns = torch.split(scales, 1, dim=-1)
        pairs = zip(columns, self.groups, strict=True)
        return torch.cat([column.expand(*column.shape[:-1], w) for column, w in pairs], dim=-1)


def codec_of(groups: tuple[int, ...], stored: str, dtype: str) -> Codec:
    """How elements of the arithmetic's ``dtype`` are kept as ``stored``.

    Args:
        groups: Widths of the stretches that are scaled apart, where anything is scaled.
    """
    if stored != dtype and stored in SCALED:
        return Scaled(groups, stored, torch_dtype(dtype))
    return Plain(sum(groups), torch_dtype(stored), torch_dtype(dtype))
