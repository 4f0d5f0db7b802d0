"""Prefixes: how sizes, times and counts are typed by people and shown to them.

Inside, numbers are seconds, bytes, FLOP and tokens, unscaled.
"""

import math
import re

from attnprof.errors import UsageError

_COUNT_SUFFIXES = {"": 1, "k": 1024, "m": 1024**2}
_BYTE_SUFFIXES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_TIME_SUFFIXES = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0,
    "h": 3600.0,
}  # fmt: skip
TINY_SHARE = 1e-5  # below it a percentage is noise to a reader
LARGEST_COUNT = 2**53  # from where on a float leaves whole numbers out
LARGEST_BYTES = 2**63
_NUMBER = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(?P<suffix>[a-zA-Zµμ]*)")
_PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def plain_number(text: str) -> float | None:
    """A decimal number as every program writes it; None of all else, also of what only Python
    takes for one. Past the largest float it is infinite.

    >>> [plain_number(text) for text in ("1e3", " -2.5 ", "1_0", "nan", "٣", "0x10")]
    [1000.0, -2.5, None, None, None, None]
    """
    stripped = text.strip(" \t")
    return float(stripped) if _PLAIN.fullmatch(stripped) else None


def _split(text: str, what: str, examples: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not {what}", f"write {examples}")
    return float(found["number"]), found["suffix"].lower()


def parse_tokens(text: str) -> int:
    """A whole count, ``k`` and ``m`` meaning 1024 and 1024² as model cards use them. [tokens]

    >>> parse_tokens("32k"), parse_tokens("1000")
    (32768, 1000)
    """
    number, suffix = _split(text, "a count", "512, 8k or 1m")
    scale = _COUNT_SUFFIXES.get(suffix)
    if scale is None or not (number * scale).is_integer() or number * scale >= LARGEST_COUNT:
        raise UsageError(f"{text!r} is not a whole count", "write 512, 8k or 1m")
    return int(number * scale)


def parse_bytes(text: str) -> int:
    """A size. [bytes]

    >>> parse_bytes("80GiB"), parse_bytes("1.5GB")
    (85899345920, 1500000000)
    """
    number, suffix = _split(text, "a size", "80GiB, 1.5GB or 4096")
    scale = _BYTE_SUFFIXES.get(suffix)
    if scale is None or not number * scale <= LARGEST_BYTES:
        raise UsageError(f"{text!r} is not a size", "write 80GiB, 1.5GB or 4096")
    return round(number * scale)


def parse_seconds(text: str) -> float:
    """A time. [s]

    >>> parse_seconds("200ms"), parse_seconds("5m"), parse_seconds("2")
    (0.2, 300.0, 2.0)
    """
    number, suffix = _split(text, "a time", "200ms, 2s or 5m")
    scale = _TIME_SUFFIXES.get(suffix or "s")
    if scale is None or not math.isfinite(number):
        raise UsageError(f"{text!r} is not a time", "write 200ms, 2s or 5m")
    return number * scale


def three_digits(number: float) -> str:
    """Three significant digits, no exponent, no trailing point.

    >>> [three_digits(x) for x in (0.0123, 1.0, 12.345, 999.6, 12345.0)]
    ['0.0123', '1', '12.3', '1000', '12345']
    """
    if number == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(number))))
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(number: float, scales: tuple[tuple[float, str], ...]) -> str:
    for scale, suffix in scales:
        if abs(number) >= 0.9995 * scale:
            return f"{three_digits(number / scale)} {suffix}"
    scale, suffix = scales[-1]
    return f"{three_digits(number / scale)} {suffix}"


def seconds(value: float | None) -> str:
    """A time for people.

    >>> seconds(0.0036), seconds(4.2e-05), seconds(90.0), seconds(None)
    ('3.6 ms', '42 us', '90 s', '–')
    """
    if value is None:
        return "–"
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def capacity(value: float | None) -> str:
    """A size in binary units for people.

    >>> capacity(131072), capacity(85520809984), capacity(12)
    ('128 KiB', '79.6 GiB', '12 B')
    """
    if value is None:
        return "–"
    return _scaled(
        value, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
    )


def rate(value: float | None, unit: str) -> str:
    """A rate in decimal units for people, such as FLOP/s or B/s.

    >>> rate(3.35e12, "B/s"), rate(9.895e14, "FLOP/s"), rate(None, "B/s")
    ('3.35 TB/s', '990 TFLOP/s', '–')
    """
    if value is None:
        return "–"
    prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _scaled(value, tuple((scale, prefix + unit) for scale, prefix in prefixes))


def tokens(value: float | None) -> str:
    """A token count for people: powers of two by their usual names.

    >>> tokens(8192), tokens(1000), tokens(131072), tokens(1536)
    ('8k', '1,000', '128k', '1.5k')
    """
    if value is None:
        return "–"
    if value >= 1024 and (value * 2 / 1024).is_integer():
        return f"{value / 1024:g}k"
    return f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of one as a percentage.

    >>> percent(0.437), percent(0.0012), percent(None), percent(1e-12)
    ('43.7 %', '0.12 %', '–', '< 0.001 %')
    """
    if share is None:
        return "–"
    if 0 < abs(share) < TINY_SHARE:
        return f"< {100 * TINY_SHARE:g} %"
    return f"{three_digits(100 * share)} %"


def counted(count: int, noun: str) -> str:
    """A count and its noun.

    >>> counted(1, "workload"), counted(2, "workload")
    ('1 workload', '2 workloads')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
