"""Which query may look at which key: each variant as a predicate and as a closed-form count."""

from dataclasses import dataclass
from typing import Any, Protocol

from attnprof.errors import UsageError, nearest


class Variant(Protocol):
    """Said twice, so that each checks the other.

    Positions count from the first key. The ``q_len`` queries are the last positions of the
    ``kv_len`` keys, so a decode's one query sits at ``kv_len - 1``.
    """

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        """Whether the query at ``q_pos`` sees the key at ``kv_pos``; ints or tensors alike."""

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        """How many of the ``q_len × kv_len`` pairs are allowed."""


@dataclass(frozen=True)
class Full:
    """Every query sees every key, as in an encoder."""

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos >= 0) & (q_pos >= 0)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return q_len * kv_len


@dataclass(frozen=True)
class Causal:
    """A query sees its own position and those before it."""

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return kv_pos <= q_pos

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        before = kv_len - q_len
        return q_len * before + q_len * (q_len + 1) // 2


@dataclass(frozen=True)
class SlidingWindow:
    """Causal, and no further back than ``window_len`` positions, its own included."""

    window_len: int = 4096

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos <= q_pos) & (q_pos - kv_pos < self.window_len)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return self._pairs_up_to(kv_len) - self._pairs_up_to(kv_len - q_len)

    def _pairs_up_to(self, length: int) -> int:
        """Pairs of the first ``length`` queries: a ramp up to the window, then level."""
        ramp = min(length, self.window_len)
        return ramp * (ramp + 1) // 2 + (length - ramp) * self.window_len


VARIANTS = ("full", "causal", "sliding")


def variant_named(name: str, window_len: int | None = None) -> Variant:
    """The variant called ``name``; ``window_len`` belongs to ``sliding`` alone.

    Raises:
        UsageError: No such variant, or a window where none belongs, or none where one does.
    """
    if name not in VARIANTS:
        raise UsageError(f"unknown variant {name!r}", nearest(name, VARIANTS))
    if (name == "sliding") != (window_len is not None):
        raise UsageError(
            f"variant {name!r} with window_len {window_len}",
            "window_len goes with variant 'sliding', and with it alone",
        )
    if window_len is not None:
        return SlidingWindow(window_len)
    return Full() if name == "full" else Causal()
