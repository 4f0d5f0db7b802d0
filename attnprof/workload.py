"""What is run: one attention call, with all that makes its number differ from another's."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from attnprof.dtypes import dtype_named
from attnprof.errors import UsageError, nearest
from attnprof.kinds import misfit
from attnprof.variants import Variant, variant_named

PHASES = ("prefill", "decode", "kv-growth")
KV_CACHES = ("none", "contiguous", "static", "paged")
CACHE_REGIMES = ("warm", "cold")
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
    """One attention call over ``num_layers`` layers that own their own tensors.

    ``prefill`` has ``q_len == kv_len``; ``decode`` has ``q_len == 1`` against a cache that holds
    ``kv_len`` tokens, the new one included; ``kv-growth`` decodes token by token from
    ``start_len`` cached tokens until the cache holds ``kv_len``.
    """

    backend: str
    phase: str = "prefill"
    dtype: str = "float32"
    batch_size: int = 1
    q_len: int
    kv_len: int
    num_q_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int = 64
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
        return variant_named(self.variant, self.window_len)

    @property
    def cached_dtype(self) -> str:
        return self.kv_dtype or self.dtype

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
            self.variant + (f"{self.window_len}" if self.window_len is not None else ""),
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
        for name, usual in (("scope", "op"), ("attention", "self"), ("position", "none")):
            if (value := getattr(self, name)) != usual:
                parts.append(value)
        return "-".join(parts)

    def problem(self) -> str | None:
        """Why this combination makes no sense, or None when it does."""
        if self.phase == "prefill" and self.q_len != self.kv_len:
            return f"prefill has q_len == kv_len, not {self.q_len} and {self.kv_len}"
        if self.phase != "prefill" and self.q_len != 1:
            return f"{self.phase} has one query token, not {self.q_len}"
        if self.num_q_heads % self.num_kv_heads:
            return (
                f"num_q_heads {self.num_q_heads} is not a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        if self.phase == "prefill" and self.kv_cache != "none":
            return f"prefill attends to its own keys; kv_cache {self.kv_cache!r} belongs to decode"
        if self.phase != "prefill" and self.kv_cache == "none":
            return f"{self.phase} needs a kv_cache: contiguous, static or paged"
        if self.phase == "kv-growth":
            if self.start_len is None or not 0 < self.start_len < self.kv_len:
                return f"kv-growth from start_len {self.start_len} to kv_len {self.kv_len}"
            if self.cache_regime != "warm":
                return "the steps of a kv-growth follow each other: their caches are warm"
        elif self.start_len is not None:
            return f"start_len {self.start_len} belongs to kv-growth"
        return None

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


def checked(workload: Workload) -> Workload:
    """``workload``, its dtypes by torch's names, after a look at every single value.

    A ``kv_dtype`` that is the arithmetic's own becomes None, so that one workload has one id.

    Raises:
        UsageError: A value that no workload can have: an unknown name, or a size below one.
    """
    for name, known in (
        ("phase", PHASES),
        ("kv_cache", KV_CACHES),
        ("cache_regime", CACHE_REGIMES),
    ):
        value = getattr(workload, name)
        if value not in known:
            raise UsageError(f"unknown {name} {value!r}", nearest(str(value), known))
    for name in (
        "batch_size", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim", "num_layers",
    ):  # fmt: skip
        value = getattr(workload, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name} is {value!r}", "it is a whole number from 1 up")
    variant_named(workload.variant, workload.window_len)
    dtype = dtype_named(workload.dtype).name
    kv_dtype = None if workload.kv_dtype is None else dtype_named(workload.kv_dtype).name
    return replace(workload, dtype=dtype, kv_dtype=None if kv_dtype == dtype else kv_dtype)
