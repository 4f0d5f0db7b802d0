"""A scheme's name or a configuration's rope_parameters -> what RoPE is made with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from attnprof.errors import UsageError
from attnprof.positions import ROTARY_SHARE

Scaling = Literal["default", "linear", "dynamic", "yarn", "llama3"]

BASE = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Rope:
    """What RoPE is made with; a value that a scaling does not read is left at its default.

    The first ``rotated_dim`` elements of each head are turned in pairs, an element with the one
    half of ``rotated_dim`` further on.
    """

    rotated_dim: int
    base: float = BASE
    scaling: Scaling = "default"
    factor: float = 1.0  # how many times longer than ``original_len`` a sequence may be
    original_len: int = 4096  # of the sequences that the model was first trained on
    beta_fast: float = 32.0  # YaRN: turns over original_len from which a pair is left alone
    beta_slow: float = 1.0  # YaRN: turns up to which it is slowed by the whole factor
    truncate: bool = True  # YaRN: whether the ramp between them begins and ends at whole pairs
    attention_factor: float | None = None  # YaRN: of cosines and sines; None: by its formula
    mscale: float | None = None  # YaRN as DeepSeek has it
    mscale_all_dim: float | None = None
    low_freq_factor: float = 1.0  # Llama 3: wavelengths over original_len / this are slowed
    high_freq_factor: float = 4.0  # Llama 3: those under original_len / this are left alone

    @property
    def varies_beyond(self) -> int | None:
        """The length beyond which frequencies depend on it; None where they never do."""
        return self.original_len if self.scaling == "dynamic" else None


# Of the schemes by name: Llama 2's first length stretched fourfold, and Llama 3.1 as it is.
_NAMED: dict[str, dict[str, Any]] = {
    "rope": {},
    "rope-partial": {},
    "rope-linear": {"scaling": "linear", "factor": 4.0},
    "rope-dynamic": {"scaling": "dynamic", "factor": 4.0, "original_len": 4096},
    "rope-yarn": {"scaling": "yarn", "factor": 4.0, "original_len": 4096},
    "rope-llama3": {
        "scaling": "llama3", "base": 500_000.0, "factor": 8.0, "original_len": 8192,
    },
}  # fmt: skip


def rope_named(name: str, head_dim: int) -> Rope:
    """The RoPE of the scheme called ``name``, for heads of ``head_dim``.

    >>> rope_named("rope-partial", 64).rotated_dim
    16
    """
    return Rope(rotated_dim=int(head_dim * ROTARY_SHARE.get(name, 1.0)), **_NAMED[name])


def rope_of_parameters(
    parameters: Mapping[str, Any], rotated_dim: int, max_len: int | None = None
) -> Rope:
    """The RoPE of a configuration's ``rope_parameters``, or of ``rope_scaling`` before it.

    Args:
        parameters: ``rope_type`` (or ``type``), ``rope_theta``, and what the scaling needs.
        max_len: The configuration's ``max_position_embeddings``.

    Source:
        Transformers 5, modeling_rope_utils.py.

    >>> rope_of_parameters({"type": "linear", "factor": 2.0, "rope_theta": 1e6}, 64).factor
    2.0

    Raises:
        UsageError: A scaling that is not served, one that lacks a number, or a width that has no
            halves.
    """
    scaling = parameters.get("rope_type") or parameters.get("type") or "default"
    if scaling not in _READ:
        raise UsageError(f"rope_type {scaling!r} is not served", f"served: {', '.join(_READ)}")
    if rotated_dim < 2 or rotated_dim % 2:
        raise UsageError(f"RoPE turns pairs, and cannot halve {rotated_dim}", "give an even width")
    if scaling == "dynamic" and rotated_dim == 2:
        raise UsageError(
            "dynamic RoPE spreads its scaling over pairs, and 2 elements are but one",
            "give a width of 4 or more",
        )
    given: dict[str, Any] = {
        name: parameters[name] for name in _READ[scaling] if parameters.get(name) is not None
    }
    if scaling in _FROM_A_LENGTH:
        # Dynamic NTK counts from the longest length, whatever else is said.
        said = None if scaling == "dynamic" else parameters.get("original_max_position_embeddings")
        given["original_len"] = said or max_len
        if given["original_len"] is None:
            raise UsageError(
                f"rope_type {scaling!r} without original_max_position_embeddings",
                "add it, or max_position_embeddings",
            )
    if scaling == "yarn" and "factor" not in given and max_len is not None:
        given["factor"] = max_len / given["original_len"]
    if scaling != "default" and "factor" not in given:
        raise UsageError(f"rope_type {scaling!r} without a factor", "add factor")
    return Rope(
        rotated_dim=rotated_dim,
        base=float(parameters.get("rope_theta") or BASE),
        scaling=cast("Scaling", scaling),
        **given,
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's square root of a temperature: 0.1·m·ln s + 1, and 1 where nothing is stretched.

    DeepSeek multiplies the scale of its scores with the square of that of ``mscale_all_dim``.

    Source:
        Peng et al. 2023, "YaRN", arXiv:2309.00071, section 3.4, equation 22.

    >>> round(yarn_mscale(40.0), 4)
    1.3689
    """
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


_YARN = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
_READ: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", *_YARN),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_FROM_A_LENGTH = ("dynamic", "yarn", "llama3")
