"""What is run: one attention call, with all that makes its number differ from another's."""

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePath
from typing import Any

from attnprof.dtypes import arithmetic_dtype, dtype_named
from attnprof.errors import UsageError, nearest
from attnprof.kinds import misfit
from attnprof.positions import POSITIONS
from attnprof.variants import PARAMETERS, Variant, variant_named

PHASES = (
    "prefill", "chunked-prefill", "decode", "verify", "mixed", "train", "kv-growth", "generate",
)  # fmt: skip
GROWING = ("kv-growth", "generate")
"""Phases that run step by step from ``start_len`` to ``kv_len``."""
KV_CACHES = ("none", "contiguous", "static", "paged", "rolling", "latent", "cross")
CACHE_REGIMES = ("warm", "cold")
SCOPES = ("op", "layer", "block", "model")
ATTENTIONS = ("self", "cross")
MLA_FORMS = ("expanded", "absorbed")
MIXERS = ("attention", "rnn", "lstm", "gru", "linear")
FFNS = ("plain", "gated", "moe")
IMPLEMENTATIONS = ("plain", "transformers")
PAGED_BLOCK_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Queries ``[batch, num_q_heads, q_len, head_dim]``, keys and values ``[batch, num_kv_heads,
    kv_len, head_dim]``."""

    batch_size: int
    num_q_heads: int
    num_kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One call of attention, or of what is around it, over ``num_layers`` layers that own their
    own tensors.

    ``prefill`` has ``q_len == kv_len``; ``chunked-prefill`` is one chunk, ``q_len`` new tokens
    after ``kv_len - q_len`` cached ones; ``decode`` has ``q_len == 1`` against a cache that holds
    ``kv_len`` tokens, the new one included, and ``verify`` a few (speculative decoding);
    ``mixed`` is a decode of ``batch_size`` sequences with a prompt of ``prefill_len`` tokens in
    the same step; ``train`` is a prefill forward and backward; ``kv-growth`` decodes token by
    token from ``start_len`` cached tokens until there are ``kv_len``; ``generate`` does so after a
    prefill of the first ``start_len``, and without a cache computes everything anew each step.

    A cross-attention has ``kv_len`` keys of the source, cached once. A size that has no meaning
    for a workload is None.
    """

    backend: str
    phase: str = "prefill"
    dtype: str = "float32"
    batch_size: int = 1
    q_len: int
    kv_len: int
    num_q_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int = 64  # of a query and a key, the rotated part of MLA's included
    num_layers: int = 1
    variant: str = "causal"
    window_len: int | None = None
    kv_cache: str = "none"
    kv_dtype: str | None = None  # None: that of the arithmetic
    start_len: int | None = None
    cache_regime: str = "warm"
    scope: str = "op"
    attention: str = "self"
    position: str = "none"
    # Who sees whom.
    prefix_len: int | None = None
    document_len: int | None = None
    sink_len: int | None = None
    min_len: int | None = None  # shortest sequence of a padded batch
    # Heads.
    v_head_dim: int | None = None  # of a value, where it is not head_dim
    mla: str | None = None  # how a latent is attended to: expanded, absorbed
    kv_lora_rank: int | None = None
    rope_head_dim: int | None = None
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    sink_logits: bool = False  # a learned logit a head in each softmax's sum (gpt-oss)
    # The cache and the step.
    block_tokens: int | None = None  # of a paged cache, where it is not 16
    prefill_len: int | None = None
    checkpointing: bool = False  # activations are made again on the way back
    # What is around attention, or in its place.
    mixer: str = "attention"
    ffn: str | None = None
    ffn_dim: int | None = None
    num_experts: int | None = None
    num_active_experts: int | None = None
    model: str | None = None  # a profile's name or a path
    model_digest: str | None = None  # of the configuration at that path
    source_len: int | None = None  # tokens of the encoder of an encoder–decoder
    implementation: str = "plain"
    weight_dtype: str | None = None  # None: that of the arithmetic

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            batch_size=self.batch_size,
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            q_len=self.q_len,
            kv_len=self.kv_len,
            head_dim=self.head_dim,
        )

    @property
    def mask(self) -> Variant:
        return variant_named(self.variant, {name: getattr(self, name) for name in PARAMETERS})

    @property
    def value_dim(self) -> int:
        """Width of a value, and of a head's output."""
        return self.v_head_dim or self.head_dim

    @property
    def block_len(self) -> int:
        """Tokens in a block of a paged cache."""
        return self.block_tokens or PAGED_BLOCK_TOKENS

    @property
    def hidden_size(self) -> int:
        """Width of a token between layers, where no model says another."""
        return self.num_q_heads * self.value_dim

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys of each sequence that are no padding: evenly from ``min_len`` to ``kv_len``.

        >>> Workload(backend="eager", q_len=8, kv_len=8, batch_size=3, min_len=2).lengths
        (2, 5, 8)
        """
        if self.min_len is None or self.batch_size == 1:
            return (self.kv_len,) * self.batch_size
        step = (self.kv_len - self.min_len) / (self.batch_size - 1)
        return tuple(self.min_len + int(step * i) for i in range(self.batch_size))

    @property
    def cached_dtype(self) -> str:
        return self.kv_dtype or self.dtype

    def step(self, kv_len: int) -> "Workload":
        """The call by which a growing workload brings token ``kv_len``: a decode, or without a
        cache everything up to it anew.

        >>> generate = Workload(backend="eager", phase="generate", q_len=1, kv_len=9, start_len=4)
        >>> generate.step(7).q_len, replace(generate, kv_cache="static").step(7).q_len
        (7, 1)
        """
        if self.kv_cache == "none" and self.mixer == "attention":
            return replace(self, phase="prefill", q_len=kv_len, kv_len=kv_len, start_len=None)
        return replace(self, phase="decode", q_len=1, kv_len=kv_len, start_len=None)

    def prompt(self) -> "Workload":
        """The call that computes the first ``start_len`` tokens of a generate."""
        assert self.start_len is not None
        prefill = replace(
            self, phase="prefill", q_len=self.start_len, kv_len=self.start_len, start_len=None
        )
        if self.scope != "op":
            return prefill
        mla = None if self.mla is None else "expanded"
        return replace(prefill, kv_cache="none", kv_dtype=None, block_tokens=None, mla=mla)

    @property
    def workload_id(self) -> str:
        """A name that is the same in every run and on every machine.

        Readable and complete: two workloads share it only when they are equal. What has its
        default is left out, so that a later axis does not rename earlier workloads.

        >>> Workload(backend="flash", q_len=1024, kv_len=1024).workload_id
        'prefill-causal-flash-float32-b1-s1024-h8-d64-l1'
        """
        lengths = (
            f"s{self.kv_len}" if self.q_len == self.kv_len else f"q{self.q_len}-kv{self.kv_len}"
        )
        heads = f"h{self.num_q_heads}"
        if self.num_kv_heads != self.num_q_heads:
            heads += f"kv{self.num_kv_heads}"
        parts = [
            self.phase,
            f"{self.variant}{self.window_len or ''}",
            self.backend,
            self.dtype,
            f"b{self.batch_size}",
            lengths,
            heads,
            f"d{self.head_dim}",
            f"l{self.num_layers}",
        ]
        if self.kv_cache != "none":
            parts.append(self.kv_cache)
        if self.kv_dtype not in (None, self.dtype):
            parts.append(f"kv-{self.kv_dtype}")
        if self.start_len is not None:
            parts.append(f"from{self.start_len}")
        if self.cache_regime != "warm":
            parts.append(self.cache_regime)
        for name, prefix in _IN_ID.items():
            value = getattr(self, name)
            if value == _DEFAULTS[name]:
                continue
            parts.append(prefix if value is True else f"{prefix}{plain_value(value)}")
        return "-".join(parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Workload":
        """The workload that :meth:`to_json` wrote.

        Raises:
            UsageError: A key that a workload does not have, one that it lacks, or a value of
                another kind.
        """
        known = [field.name for field in fields(cls)]
        for key in data:
            if key not in known:
                raise UsageError(f"a workload has no key {key!r}", nearest(key, known))
        found = misfit(data, cls)
        if found is not None:
            raise UsageError(f"not a workload: {found}")
        return cls(**data)


# What its default leaves out of a workload's id, in order, and what stands before its value.
_IN_ID = {
    "scope": "", "attention": "", "position": "", "prefix_len": "prefix", "document_len": "doc",
    "sink_len": "sink", "min_len": "min", "v_head_dim": "v", "mla": "mla-", "kv_lora_rank": "r",
    "rope_head_dim": "rd", "softcap": "cap", "sink_logits": "sinks", "block_tokens": "block",
    "prefill_len": "with", "checkpointing": "checkpointing", "mixer": "", "ffn": "ffn-",
    "ffn_dim": "f", "num_experts": "e", "num_active_experts": "of", "model": "",
    "model_digest": "", "source_len": "src", "implementation": "", "weight_dtype": "w-",
}  # fmt: skip
_DEFAULTS = {field.name: field.default for field in fields(Workload)}


def plain_value(value: Any) -> str:
    """A value as it stands in an id; of a model's path its last part, without the ending.

    >>> plain_value("models/mine/config.json"), plain_value("gpt2"), plain_value(50.0)
    ('mine', 'gpt2', '50')
    """
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    if "/" not in text and not text.endswith(".json"):
        return text
    path = PurePath(text)
    return path.parent.name if path.name == "config.json" else path.stem


NAMES: tuple[tuple[str, Collection[str]], ...] = (
    ("phase", PHASES),
    ("kv_cache", KV_CACHES),
    ("cache_regime", CACHE_REGIMES),
    ("scope", SCOPES),
    ("attention", ATTENTIONS),
    ("position", POSITIONS),
    ("mla", MLA_FORMS),
    ("mixer", MIXERS),
    ("ffn", FFNS),
    ("implementation", IMPLEMENTATIONS),
)
SIZES = (
    "batch_size", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim", "num_layers",
    "min_len", "v_head_dim", "kv_lora_rank", "rope_head_dim", "block_tokens", "prefill_len",
    "ffn_dim", "num_experts", "num_active_experts", "source_len",
)  # fmt: skip


def checked(workload: Workload) -> Workload:
    """``workload``, its dtypes by torch's names, after a look at every single value.

    What is the same as its default (a ``kv_dtype`` that is the arithmetic's own, a ``v_head_dim``
    that is ``head_dim``) becomes None, so that one workload has one id.

    Raises:
        UsageError: A value that no workload can have: an unknown name, or a size below one.
    """
    for name, known in NAMES:
        value = getattr(workload, name)
        if value not in known and not (value is None and _DEFAULTS[name] is None):
            raise UsageError(f"unknown {name} {value!r}", nearest(str(value), list(known)))
    for name in SIZES:
        value = getattr(workload, name)
        if value is None and _DEFAULTS[name] is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name} is {value!r}", "it is a whole number from 1 up")
    if workload.softcap is not None and not 0 < workload.softcap < math.inf:
        raise UsageError(f"softcap is {workload.softcap!r}", "it is a number above zero")
    variant_named(workload.variant, {name: getattr(workload, name) for name in PARAMETERS})
    dtype = arithmetic_dtype(workload.dtype).name
    same_as_default = {
        "kv_dtype": dtype, "weight_dtype": dtype, "v_head_dim": workload.head_dim,
        "block_tokens": PAGED_BLOCK_TOKENS,
    }  # fmt: skip
    normal: dict[str, Any] = {"dtype": dtype}
    for name, default in same_as_default.items():
        value = getattr(workload, name)
        if value is not None and name.endswith("dtype"):
            value = dtype_named(value).name
        normal[name] = None if value == default else value
    return replace(workload, **normal)
