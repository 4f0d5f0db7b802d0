"""What a sweep may vary: each axis by name, and how its values are typed."""

import math
import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from attnprof.dtypes import arithmetic_dtype, dtype_named
from attnprof.errors import UsageError, nearest
from attnprof.positions import POSITIONS
from attnprof.units import parse_tokens, plain_number
from attnprof.variants import VARIANTS
from attnprof.workload import (
    ATTENTIONS,
    CACHE_REGIMES,
    FFNS,
    IMPLEMENTATIONS,
    KV_CACHES,
    MIXERS,
    MLA_FORMS,
    PHASES,
    SCOPES,
)

MAX_WORKLOADS = 10_000
MAX_LENGTH = 2**31
KV_HEADS = ("mha", "mqa")  # as many as query heads, and one

_RANGE = re.compile(r"(?P<start>[^.]+)\.\.(?P<stop>[^x*+]+)(?:(?P<sign>[x*+])(?P<step>.+))?", re.I)


@dataclass(frozen=True)
class Axis:
    """One thing that a grid varies."""

    name: str
    help: str
    parse: Callable[[str], Any]
    default: Any = None
    alias: str | None = None
    is_length: bool = False  # counts, which may be ranges


def _count(text: str) -> int:
    value = parse_tokens(text)
    if not 1 <= value <= MAX_LENGTH:
        raise UsageError(
            f"{text!r} is out of range", f"write a whole number from 1 to {MAX_LENGTH}"
        )
    return value


def _kv_heads(text: str) -> int | str:
    if text in KV_HEADS or text[:1].isdigit():
        return text if text in KV_HEADS else _count(text)
    raise UsageError(f"{text!r} is neither a count nor a name", nearest(text, ("8", *KV_HEADS)))


def _one_of(what: str, known: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise UsageError(f"unknown {what} {text!r}", nearest(text, known))
        return text

    return parse


def _backend(text: str) -> str:
    from attnprof.backends.support import BACKENDS

    return _one_of("backend", (*BACKENDS, "all"))(text)


def _dtype(text: str) -> str:
    return arithmetic_dtype(text).name


def _stored(text: str) -> str:
    return dtype_named(text).name


def flag(text: str) -> bool:
    """Yes or no.

    Raises:
        UsageError: It is neither.
    """
    if text.lower() not in ("true", "false", "yes", "no", "on", "off"):
        raise UsageError(f"{text!r} is neither yes nor no", "write yes or no")
    return text.lower() in ("true", "yes", "on")


def _cap(text: str) -> float | None:
    number = plain_number(text)
    if number is None and text != "none":
        raise UsageError(f"{text!r} is not a number", "write a number such as 50, or none")
    return number


_YAML_KINDS: dict[Callable[[str], Any], type] = {flag: bool, _cap: float}
"""Axes whose values YAML reads as something else than text and whole numbers."""


def _words(known: Iterable[str]) -> str:
    return ", ".join(known)


def _named(name: str, known: Iterable[str], default: Any = None, **more: Any) -> Axis:
    names = tuple(known)
    return Axis(name, _words(names), _one_of(name, names), default, **more)


def _length(name: str, help: str, default: Any = None, alias: str | None = None) -> Axis:
    return Axis(name, help, _count, default, alias, is_length=True)


AXIS_GROUPS: dict[str, tuple[Axis, ...]] = {
    "what runs": (
        _named("phase", PHASES, "prefill"),
        _named("scope", SCOPES, "op"),
        Axis("backend", "kernels, or 'all'", _backend, "flash"),
        Axis(
            "dtype",
            "float32, bfloat16, float16, ...; an accelerator's default is bfloat16, else float32",
            _dtype,
        ),
        _length("batch_size", "sequences in a call", 1, "batch"),
        _length("seq_len", "sequence length", None, "n"),
        _length("q_len", "query length: of a chunk, of a verify"),
        _length("kv_len", "cached tokens of a decode"),
        _length("source_len", "tokens of the source, of a cross-attention or an encoder"),
        _length("prefill_len", "tokens of the prompt in a mixed step"),
        _length("start_len", "cached tokens where kv-growth starts, the prompt of generate", 1),
        _length("num_layers", "layers, each with its tensors", 1, "layers"),
        Axis("checkpointing", "make activations again on the way back: yes, no", flag, False),
    ),
    "who sees whom, and where": (
        _named("attention", ATTENTIONS, "self"),
        _named("variant", VARIANTS, "causal"),
        _length("window_len", "tokens that 'sliding' sees, or of a chunk", None, "window"),
        _length("sink_len", "first tokens that 'sink' always sees", 4),
        _length("prefix_len", "first tokens that 'prefix-lm' shows to all"),
        _length("document_len", "mean length of the documents of 'packed'"),
        _length("min_len", "shortest sequence of a padded batch; kv_len is the longest"),
        _named("position", POSITIONS, "none"),
    ),
    "heads": (
        _length("num_q_heads", "query heads", 8, "heads"),
        Axis("num_kv_heads", "KV heads, or mha, mqa", _kv_heads, "mha", "kv_heads", is_length=True),
        _length("head_dim", "width of a head", 64),
        _length("v_head_dim", "width of a value, if another"),
        Axis("softcap", "cap of the scores, such as 50, or none", _cap),
        Axis("sink_logits", "a learned logit in each softmax: yes, no", flag, False),
        _named("mla", MLA_FORMS),
        _length("kv_lora_rank", "width of MLA's latent", 512),
        _length("rope_head_dim", "rotated part of MLA's head_dim", 64),
    ),
    "cache": (
        _named("kv_cache", KV_CACHES, "static"),
        Axis("kv_dtype", "element type of the cache, if another: int8, int4, fp8, ...", _stored),
        _length("block_tokens", "tokens in a block of a paged cache"),
        Axis(
            "cache_regime",
            "warm or cold; an accelerator's default is cold, a CPU's warm",
            _one_of("cache_regime", CACHE_REGIMES),
        ),
    ),
    "around attention, or in its place": (
        Axis("model", "a model's profile or config.json", str),
        _named("implementation", IMPLEMENTATIONS, "plain"),
        Axis("weight_dtype", "element type of the weights, if another", _stored),
        _named("ffn", FFNS),
        _length("ffn_dim", "width of the FFN, or of an expert"),
        _length("num_experts", "experts of a moe"),
        _length("num_active_experts", "experts that a token goes through"),
        _named("mixer", MIXERS, "attention"),
    ),
}
AXES = {axis.name: axis for axes in AXIS_GROUPS.values() for axis in axes}
_ALIASES = {axis.alias: axis.name for axis in AXES.values() if axis.alias}


def axis_names() -> list[str]:
    """What an axis may be called, the short names of the field included."""
    return [*AXES, *_ALIASES]


def axis_named(name: str) -> Axis:
    """The axis called ``name``, dashes and the short names of the field included.

    >>> axis_named("kv-heads").name
    'num_kv_heads'

    Raises:
        UsageError: No such axis.
    """
    plain = name.strip().replace("-", "_")
    found = AXES.get(_ALIASES.get(plain, plain))
    if found is None:
        raise UsageError(
            f"unknown axis {name!r}", nearest(plain, axis_names(), "attnprof show axes")
        )
    return found


def parse_values(axis: Axis, given: Any) -> tuple[Any, ...]:
    """The values of one axis, from text such as ``1k,4k`` or ``512..8192x2``, or a YAML list.

    ``a..bxr`` and ``a..b*r`` multiply by ``r`` while they stay at or below ``b``; ``a..b+s`` adds.

    >>> parse_values(AXES["seq_len"], "512..4kx2")
    (512, 1024, 2048, 4096)
    >>> parse_values(AXES["num_q_heads"], "4..8+2, 32")
    (4, 6, 8, 32)

    Raises:
        UsageError: A value that the axis does not have, or a range with no end.
    """
    if isinstance(given, list | tuple):
        parts = list(given)
    elif isinstance(given, str):
        parts = [part for part in (piece.strip() for piece in given.split(",")) if part]
    else:
        parts = [given]
    if not parts:
        raise UsageError(f"axis {axis.name} has no value", f"it takes {axis.help}")
    values: list[Any] = []
    for part in parts:
        values.extend(_parse_part(axis, part))
        if len(values) > MAX_WORKLOADS:
            raise UsageError(
                f"axis {axis.name} has more than {MAX_WORKLOADS:,} values", "take fewer"
            )
    return tuple(dict.fromkeys(values))


def _parse_part(axis: Axis, part: Any) -> Iterable[Any]:
    if isinstance(part, _YAML_KINDS.get(axis.parse, ())):
        part = str(part)
    if isinstance(part, bool) or not isinstance(part, str | int):
        raise UsageError(f"axis {axis.name} got {reprlib.repr(part)}", f"it takes {axis.help}")
    text = str(part).strip()
    span = _RANGE.fullmatch(text)
    try:
        if span is None:
            return [axis.parse(text)]
        if not axis.is_length:
            raise UsageError(f"{text!r} is a range", f"it takes {axis.help}")
        return _range(text, span)
    except UsageError as error:
        raise UsageError(f"axis {axis.name}: {error.problem}", error.fix) from None


def _range(text: str, span: re.Match[str]) -> Iterable[int]:
    start, stop = _count(span["start"]), _count(span["stop"])
    if span["sign"] is None:
        raise UsageError(
            f"range {text!r} has no step", f"write {text}x2 to double or {text}+1 to count"
        )
    step = _count(span["step"])
    multiplies = span["sign"] != "+"
    if start > stop or (multiplies and step < 2):
        raise UsageError(f"range {text!r} has no end", "write 512..8192x2 or 4..16+4")
    num_values = (
        math.floor(math.log(stop / start, step) + 1e-9) + 1
        if multiplies
        else (stop - start) // step + 1
    )
    if num_values > MAX_WORKLOADS:
        raise UsageError(f"range {text!r} has {num_values:,} values", "take a larger step")
    return [start * step**i if multiplies else start + i * step for i in range(num_values)]
