import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof import units
from attnprof.errors import UsageError


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "80 parsec"),
        (units.parse_bytes, "GiB"),
        (units.parse_bytes, "-1GiB"),
        (units.parse_bytes, "1e999"),
        (units.parse_seconds, "2 fortnights"),
        (units.parse_seconds, ""),
        (units.parse_tokens, "1.3"),
        (units.parse_tokens, "3GiB"),
        (units.parse_tokens, "inf"),
    ],
)
def test_a_text_without_sense_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(UsageError, match="is not a"):
        parse(text)


@given(st.integers(1, 2**50))
def test_shown_sizes_read_back_within_their_digits(size: int) -> None:
    shown = units.capacity(size).replace(" ", "")
    assert units.parse_bytes(shown) == pytest.approx(size, rel=0.006)


@given(st.floats(1e-8, 1e4))
def test_shown_times_read_back_within_their_digits(time_s: float) -> None:
    assert units.parse_seconds(units.seconds(time_s).replace(" ", "")) == pytest.approx(
        time_s, rel=0.006
    )
