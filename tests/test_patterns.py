"""What is drawn is what is computed: each cell against the variant itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.errors import UsageError
from attnprof.patterns import LOOKED_AT, MOST_CELLS, PARTLY, SEEN, UNSEEN, pattern_of, said_of
from attnprof.variants import VARIANTS, parameters_of


@st.composite
def lengths_and_sizes(draw: st.DrawFn, longest: int) -> tuple[str, dict[str, Any], int, int]:
    name = draw(st.sampled_from(list(VARIANTS)))
    kv_len = draw(st.integers(2, longest))
    sizes = {key: draw(st.integers(2, kv_len)) for key in parameters_of(name)}
    return name, sizes, draw(st.integers(1, kv_len)), kv_len


@given(lengths_and_sizes(MOST_CELLS))
def test_a_small_drawing_has_a_cell_a_pair_and_as_many_seen_as_are_counted(given: Any) -> None:
    pattern = pattern_of(*given)
    rows = list(pattern.rows())
    assert [row.first_q for row in rows] == list(range(pattern.kv_len - pattern.q_len, given[3]))
    assert {len(row.cells) for row in rows} == {pattern.kv_len}
    cells = "".join(row.cells for row in rows)
    assert cells.count(SEEN) == pattern.num_pairs
    assert cells.count(UNSEEN) == len(cells) - pattern.num_pairs


@given(lengths_and_sizes(4 * MOST_CELLS))
def test_a_cell_of_many_pairs_says_whether_all_some_or_none_are_seen(given: Any) -> None:
    pattern = pattern_of(*given)
    side = pattern.cell_len
    assert side <= LOOKED_AT  # so that all are looked at
    for row in pattern.rows():
        assert len(row.cells) <= MOST_CELLS
        for number, cell in enumerate(row.cells):
            keys = range(number * side, min(number * side + side, pattern.kv_len))
            seen = {
                bool(pattern.variant.allows(q, k))
                for q in range(row.first_q, row.last_q + 1)
                for k in keys
            }
            assert seen == {SEEN: {True}, UNSEEN: {False}, PARTLY: {True, False}}[cell]


def test_a_long_sequence_is_drawn_as_small_as_a_short_one() -> None:
    rows = list(pattern_of("sliding", {"window_len": 4096}, kv_len=2**20).rows())
    assert len(rows) == MOST_CELLS
    assert all(row.cells[number] == PARTLY for number, row in enumerate(rows))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_drawn_without_being_given_any_size(name: str) -> None:
    assert 0 < pattern_of(name, {}).share <= 1
    assert 0 < pattern_of(name, {}, kv_len=2).share <= 1
    assert said_of(VARIANTS[name])[0].endswith(".")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("slding", {}), "unknown variant 'slding'"),
        (("sliding", {"window_len": 17}), "window_len 17 is longer than the 16 keys"),
        (("causal", {"window_len": 4}), "'causal' with window_len 4"),
        (("packed", {"document_len": 1}), "document_len is 1"),
        (("full", {}, 0), "q_len is 0"),
        (("full", {}, 1, 0), "kv_len is 0"),
        (("full", {}, 9, 8), "q_len 9 is more than kv_len 8"),
        (("full", {}, 1, 2**40), "kv_len is 1099511627776"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        pattern_of(*given)
    assert refused.value.fix
