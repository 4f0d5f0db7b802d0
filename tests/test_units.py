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
        (units.parse_tokens, "1_0"),
        (units.parse_tokens, "٣"),
        (units.parse_tokens, "8\u212a"),
        (units.parse_tokens, "1e300"),
        (units.parse_tokens, "9007199254740993"),
        (units.parse_bytes, "1_0GiB"),
        (units.parse_bytes, "1e300GB"),
        (units.parse_seconds, "1_0ms"),
        (units.parse_seconds, "2\u017f"),
        (units.parse_seconds, "nan"),
    ],
)
def test_a_text_without_sense_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(UsageError, match="is not a"):
        parse(text)


@given(st.text(max_size=8) | st.floats().map(str) | st.integers().map(str))
def test_a_plain_number_is_one_that_every_program_reads(text: str) -> None:
    number = units.plain_number(text)
    if number is not None:
        assert text.isascii()
        assert set(text.strip()) <= set("0123456789.eE+-")
        assert number == float(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_reads_back(number: float) -> None:
    assert units.plain_number(repr(number)) == number


@given(st.integers(1, 2**50))
def test_shown_sizes_read_back_within_their_digits(size: int) -> None:
    shown = units.capacity(size).replace(" ", "")
    assert units.parse_bytes(shown) == pytest.approx(size, rel=0.006)


@given(st.floats(1e-8, 1e4))
def test_shown_times_read_back_within_their_digits(time_s: float) -> None:
    assert units.parse_seconds(units.seconds(time_s).replace(" ", "")) == pytest.approx(
        time_s, rel=0.006
    )
