"""Which query may look at which key: each variant as a predicate and as a closed-form count."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
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

    def first_visible(self, q_len: int, kv_len: int) -> int:
        """The first key that any of the queries sees; those before it need not be given."""

    def num_visible(self, q_len: int, kv_len: int) -> int:
        """Keys that at least one query sees."""


class _FromTheFirst:
    """What is so of variants whose queries see the first key, and together all keys."""

    def first_visible(self, q_len: int, kv_len: int) -> int:
        return 0

    def num_visible(self, q_len: int, kv_len: int) -> int:
        return kv_len


@dataclass(frozen=True)
class Full(_FromTheFirst):
    """Every query sees every key, as in an encoder or from a decoder into one."""

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos >= 0) & (q_pos >= 0)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return q_len * kv_len


@dataclass(frozen=True)
class Causal(_FromTheFirst):
    """A query sees its own position and those before it."""

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return kv_pos <= q_pos

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return _triangle(kv_len) - _triangle(kv_len - q_len)


@dataclass(frozen=True)
class SlidingWindow:
    """Causal, and no further back than ``window_len`` positions, its own included.

    Source:
        Beltagy et al. 2020, "Longformer", arXiv:2004.05150, section 3.1; Jiang et al. 2023,
        "Mistral 7B", arXiv:2310.06825, section 2.
    """

    window_len: int

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos <= q_pos) & (q_pos - kv_pos < self.window_len)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return _ramp(kv_len, self.window_len) - _ramp(kv_len - q_len, self.window_len)

    def first_visible(self, q_len: int, kv_len: int) -> int:
        return max(0, kv_len - q_len + 1 - self.window_len)

    def num_visible(self, q_len: int, kv_len: int) -> int:
        return kv_len - self.first_visible(q_len, kv_len)


@dataclass(frozen=True)
class Chunked:
    """Causal within chunks of ``window_len`` that begin at its multiples, blind across them.

    Source:
        Meta 2025, Llama 4: chunked attention of 8,192 tokens in three of four layers.
    """

    window_len: int

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos <= q_pos) & (q_pos // self.window_len == kv_pos // self.window_len)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return self._pairs_up_to(kv_len) - self._pairs_up_to(kv_len - q_len)

    def _pairs_up_to(self, length: int) -> int:
        whole, rest = divmod(length, self.window_len)
        return whole * _triangle(self.window_len) + _triangle(rest)

    def first_visible(self, q_len: int, kv_len: int) -> int:
        return (kv_len - q_len) // self.window_len * self.window_len

    def num_visible(self, q_len: int, kv_len: int) -> int:
        return kv_len - self.first_visible(q_len, kv_len)


@dataclass(frozen=True)
class PrefixLm(_FromTheFirst):
    """Causal, but the first ``prefix_len`` tokens are seen by all, by each other too.

    Source:
        Raffel et al. 2020, "T5", arXiv:1910.10683, section 3.2.1; Beyer et al. 2024, "PaliGemma",
        arXiv:2407.07726, section 3.2.
    """

    prefix_len: int

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos <= q_pos) | (kv_pos < self.prefix_len)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        prefix, first = min(self.prefix_len, kv_len), kv_len - q_len
        inside = max(0, prefix - first)
        return inside * prefix + _triangle(kv_len) - _triangle(first + inside)


@dataclass(frozen=True)
class Packed:
    """Documents laid end to end in one sequence, each causal in itself and blind to the others.

    Their lengths repeat: half of ``document_len``, all of it, half as much again, so that batches
    are ragged as real ones are, and ``document_len`` is the mean.

    Source:
        Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination",
        arXiv:2107.02027, section 3.2.
    """

    document_len: int

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        return (kv_pos <= q_pos) & (self._document(q_pos) == self._document(kv_pos))

    def _document(self, pos: Any) -> Any:
        """The number of the document at a position, of ints and tensors alike."""
        half, period = self.document_len // 2, 3 * self.document_len
        within = pos % period
        return 3 * (pos // period) + (within >= half) + (within >= half + self.document_len)

    def _starts(self) -> tuple[int, int, int]:
        half = self.document_len // 2
        return (0, half, half + self.document_len)

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        return self._pairs_up_to(kv_len) - self._pairs_up_to(kv_len - q_len)

    def _pairs_up_to(self, length: int) -> int:
        period = 3 * self.document_len
        whole, rest = divmod(length, period)
        ends = (*self._starts()[1:], period)
        sizes = [end - start for start, end in zip(self._starts(), ends, strict=True)]
        begun = [
            min(size, max(0, rest - start))
            for start, size in zip(self._starts(), sizes, strict=True)
        ]
        return whole * sum(map(_triangle, sizes)) + sum(map(_triangle, begun))

    def first_visible(self, q_len: int, kv_len: int) -> int:
        periods, within = divmod(kv_len - q_len, 3 * self.document_len)
        start = max(start for start in self._starts() if start <= within)
        return periods * 3 * self.document_len + start

    def num_visible(self, q_len: int, kv_len: int) -> int:
        return kv_len - self.first_visible(q_len, kv_len)


@dataclass(frozen=True)
class SinkWindow(_FromTheFirst):
    """A sliding window that also sees the first ``sink_len`` tokens, wherever it is.

    Source:
        Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks",
        arXiv:2309.17453, section 3.2.
    """

    window_len: int
    sink_len: int

    def allows(self, q_pos: Any, kv_pos: Any) -> Any:
        near = (q_pos - kv_pos < self.window_len) | (kv_pos < self.sink_len)
        return (kv_pos <= q_pos) & near

    def attended_pairs(self, q_len: int, kv_len: int) -> int:
        seen = self.window_len + self.sink_len
        return _ramp(kv_len, seen) - _ramp(kv_len - q_len, seen)

    def num_visible(self, q_len: int, kv_len: int) -> int:
        return min(kv_len, self.sink_len + self.window_len - 1 + q_len)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _ramp(length: int, window: int) -> int:
    """Pairs of the first ``length`` queries: a ramp up to the window, then level."""
    ramp = min(length, window)
    return _triangle(ramp) + (length - ramp) * window


VARIANTS: dict[str, type[Variant]] = {
    "full": Full,
    "causal": Causal,
    "sliding": SlidingWindow,
    "chunked": Chunked,
    "prefix-lm": PrefixLm,
    "packed": Packed,
    "sink": SinkWindow,
}


def parameters_of(name: str) -> tuple[str, ...]:
    """The sizes that the variant called ``name`` is made with, by the names of their axes.

    >>> parameters_of("sink")
    ('window_len', 'sink_len')
    """
    return tuple(field.name for field in fields(VARIANTS[name]))  # type: ignore[arg-type]  # each is a dataclass


PARAMETERS = tuple(dict.fromkeys(key for name in VARIANTS for key in parameters_of(name)))


def variant_named(name: str, sizes: Mapping[str, int | None] | None = None) -> Variant:
    """The variant called ``name``.

    Args:
        sizes: Its parameters by name; those of other variants are None or left out.

    >>> variant_named("sliding", {"window_len": 4})
    SlidingWindow(window_len=4)

    Raises:
        UsageError: No such variant, a size where none belongs, none where one does, or one that
            is too small.
    """
    if name not in VARIANTS:
        raise UsageError(f"unknown variant {name!r}", nearest(name, list(VARIANTS)))
    given = {key: value for key, value in (sizes or {}).items() if value is not None}
    wanted = parameters_of(name)
    for key in wanted:
        if key not in given:
            raise UsageError(f"variant {name!r} has no {key}", f"give {key}")
    for key, value in given.items():
        if key not in wanted:
            owners = ", ".join(other for other in VARIANTS if key in parameters_of(other))
            raise UsageError(
                f"variant {name!r} with {key} {value}", f"{key} goes with variants: {owners}"
            )
        least = 2 if key == "document_len" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{key} is {value!r}", f"it is a whole number from {least} up")
    return VARIANTS[name](**given)
