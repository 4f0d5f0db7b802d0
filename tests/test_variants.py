import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.errors import UsageError
from attnprof.variants import VARIANTS, Causal, SlidingWindow, variant_named


@pytest.mark.parametrize("name", VARIANTS)
@given(data=st.data(), kv_len=st.integers(1, 40), window_len=st.integers(1, 45))
def test_attended_pairs_are_those_the_mask_allows(
    name: str, data: st.DataObject, kv_len: int, window_len: int
) -> None:
    variant = variant_named(name, window_len if name == "sliding" else None)
    q_len = data.draw(st.integers(1, kv_len))
    pairs = sum(
        bool(variant.allows(q_pos, kv_pos))
        for q_pos in range(kv_len - q_len, kv_len)
        for kv_pos in range(kv_len)
    )
    assert variant.attended_pairs(q_len, kv_len) == pairs


def test_a_window_as_long_as_the_sequence_is_causal() -> None:
    assert SlidingWindow(64).attended_pairs(64, 64) == Causal().attended_pairs(64, 64) == 2080


@pytest.mark.parametrize(
    ("name", "window_len", "words"),
    [
        ("casual", None, "did you mean 'causal'"),
        ("sliding", None, "window_len goes with"),
        ("full", 16, "window_len goes with"),
    ],
)
def test_a_variant_that_is_none_is_refused(name: str, window_len: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        variant_named(name, window_len)
