import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.errors import UsageError
from attnprof.variants import (
    VARIANTS,
    Causal,
    Packed,
    SlidingWindow,
    Variant,
    parameters_of,
    variant_named,
)


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    name = draw(st.sampled_from(list(VARIANTS)))
    return variant_named(name, {key: draw(st.integers(2, 45)) for key in parameters_of(name)})


@given(variants(), st.data(), st.integers(1, 60))
def test_attended_pairs_and_visible_keys_are_those_the_mask_allows(
    variant: Variant, data: st.DataObject, kv_len: int
) -> None:
    q_len = data.draw(st.integers(1, kv_len))
    seen = [
        (q_pos, kv_pos)
        for q_pos in range(kv_len - q_len, kv_len)
        for kv_pos in range(kv_len)
        if variant.allows(q_pos, kv_pos)
    ]
    keys = {kv_pos for _, kv_pos in seen}
    assert variant.attended_pairs(q_len, kv_len) == len(seen)
    assert variant.num_visible(q_len, kv_len) == len(keys)
    assert variant.first_visible(q_len, kv_len) == min(keys)


@given(variants(), st.integers(1, 60))
def test_every_query_sees_itself(variant: Variant, kv_len: int) -> None:
    assert all(variant.allows(pos, pos) for pos in range(kv_len))


@given(st.integers(2, 20))
def test_packed_documents_have_the_length_that_was_asked_for_on_average(length: int) -> None:
    packed = Packed(length)
    first_keys = {packed.first_visible(1, kv_len) for kv_len in range(1, 6 * length + 1)}
    assert len(first_keys) == 6


def test_a_window_as_long_as_the_sequence_is_causal() -> None:
    assert SlidingWindow(64).attended_pairs(64, 64) == Causal().attended_pairs(64, 64) == 2080


@pytest.mark.parametrize(
    ("name", "window_len", "words"),
    [
        ("casual", None, "did you mean 'causal'"),
        ("sliding", None, "has no window_len"),
        ("full", 16, "window_len goes with"),
    ],
)
def test_a_variant_that_is_none_is_refused(name: str, window_len: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        variant_named(name, {"window_len": window_len})
