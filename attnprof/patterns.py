"""A variant and two lengths -> who sees whom: drawn, counted, and what that costs."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from attnprof.errors import UsageError
from attnprof.variants import VARIANTS, Variant, parameters_of, variant_named

DRAWN_LEN = 16
MOST_CELLS = 32  # of a side of the drawing
LOOKED_AT = 16  # positions of a cell's side that are tried
LONGEST = 2**31
SEEN, PARTLY, UNSEEN = "█", "▒", "·"


@dataclass(frozen=True)
class Row:
    """The queries of one line of the drawing, the first and the last, and a cell for each block of
    keys."""

    first_q: int
    last_q: int
    cells: str


@dataclass(frozen=True)
class Pattern:
    """What a variant lets through of ``q_len × kv_len`` pairs, the queries last among the keys."""

    name: str
    variant: Variant
    q_len: int
    kv_len: int

    @property
    def num_pairs(self) -> int:
        return self.variant.attended_pairs(self.q_len, self.kv_len)

    @property
    def share(self) -> float:
        """Of the full square, and so of its FLOP."""
        return self.num_pairs / (self.q_len * self.kv_len)

    @property
    def cell_len(self) -> int:
        """Tokens along the side of a cell."""
        return -(-self.kv_len // MOST_CELLS)

    def rows(self) -> Iterator[Row]:
        """The drawing, by the queries from the first to the last.

        A cell of several tokens a side is tried at ``LOOKED_AT`` of them, evenly spread.
        """
        side = self.cell_len
        first = self.kv_len - self.q_len
        for q in range(first // side * side, self.kv_len, side):
            queries = _some(max(q, first), min(q + side, self.kv_len))
            cells = [
                self._cell(queries, _some(k, min(k + side, self.kv_len)))
                for k in range(0, self.kv_len, side)
            ]
            yield Row(queries[0], queries[-1], "".join(cells))

    def keys_seen_by(self, q: int) -> int:
        """Keys that the query at position ``q`` sees.

        >>> Pattern("full", variant_named("full"), 4, 4).keys_seen_by(0)
        4
        """
        from_it, after_it = self.kv_len - q, self.kv_len - q - 1
        return self.variant.attended_pairs(from_it, self.kv_len) - self.variant.attended_pairs(
            after_it, self.kv_len
        )

    def _cell(self, queries: list[int], keys: list[int]) -> str:
        seen = [bool(self.variant.allows(q, k)) for q in queries for k in keys]
        return SEEN if all(seen) else PARTLY if any(seen) else UNSEEN


def _some(start: int, stop: int) -> list[int]:
    """Positions from ``start`` to ``stop``, all or evenly spread, both ends among them.

    >>> _some(4, 7), _some(0, 160)[-2:]
    ([4, 5, 6], [148, 159])
    """
    count = stop - start
    if count <= LOOKED_AT:
        return list(range(start, stop))
    return [start + i * (count - 1) // (LOOKED_AT - 1) for i in range(LOOKED_AT)]


def pattern_of(
    name: str, sizes: dict[str, int | None], q_len: int | None = None, kv_len: int | None = None
) -> Pattern:
    """The pattern of the variant called ``name``.

    Args:
        sizes: Of its parameters those that were given; of the rest a quarter of the keys is taken,
            of ``sink_len`` an eighth, so that the drawing shows them.

    >>> pattern_of("sliding", {"window_len": 4}).num_pairs
    58

    Raises:
        UsageError: No such variant, a size that it does not have, or lengths that make no sense.
    """
    if kv_len is None:
        kv_len = DRAWN_LEN if q_len is None else q_len
    if q_len is None:
        q_len = kv_len
    for key, length in (("q_len", q_len), ("kv_len", kv_len)):
        if not 1 <= length <= LONGEST:
            raise UsageError(f"{key} is {length}", f"it is a whole number from 1 to {LONGEST}")
    if q_len > kv_len:
        raise UsageError(
            f"q_len {q_len} is more than kv_len {kv_len}",
            "the queries are the last of the keys: give a kv_len of at least q_len",
        )
    given = {key: size for key, size in sizes.items() if size is not None}
    for key, size in given.items():
        if size > kv_len:
            raise UsageError(f"{key} {size} is longer than the {kv_len} keys", "give a kv_len too")
    parts = {"sink_len": 8}
    usual = {
        key: max(2 if key == "document_len" else 1, kv_len // parts.get(key, 4))
        for key in (parameters_of(name) if name in VARIANTS else ())
        if key not in given
    }
    return Pattern(name, variant_named(name, usual | given), q_len, kv_len)


def said_of(kind: type) -> tuple[str, str]:
    """What a class's docstring says: its first paragraph, and its source; "" where it has none.

    >>> from attnprof.variants import SinkWindow
    >>> said_of(SinkWindow)[0]
    'A sliding window that also sees the first sink_len tokens, wherever it is.'
    """
    text = inspect.getdoc(kind) or ""
    summary = " ".join(text.partition("\n\n")[0].split())
    source = " ".join(text.partition("Source:")[2].split())
    return summary.replace("``", ""), source
