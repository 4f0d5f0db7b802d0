"""Values -> an axis that holds them, with round numbers where it is labelled."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from attnprof import units
from attnprof.figures.base import Axis


def lengths_axis(label: str, lengths: Sequence[float]) -> Axis:
    """A logarithmic axis of tokens, labelled at powers of two."""
    low, high = min(lengths) / 1.25, max(lengths) * 1.25
    return Axis(label, low, high, _powers(low, high, 2.0, 6), units.tokens)


def seconds_axis(label: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis of seconds, labelled at powers of ten."""
    return _log_axis(label, values, 10.0, units.seconds)


def bytes_axis(label: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis of bytes, labelled at powers of two."""
    return _log_axis(label, values, 2.0, units.capacity)


def counts_axis(label: str, values: Sequence[float], show: Callable[[float], str]) -> Axis:
    """A logarithmic axis of anything, labelled at powers of ten."""
    return _log_axis(label, values, 10.0, show)


def _log_axis(
    label: str, values: Sequence[float], base: float, show: Callable[[float], str]
) -> Axis:
    low, high = min(values), max(values)
    room = min(10.0, max(1.4, (high / low) ** 0.08))
    low, high = low / room, high * room
    return Axis(label, low, high, _powers(low, high, base, 6), show)


def linear_axis(
    label: str, low: float, high: float, show: Callable[[float], str], steps: int = 5
) -> Axis:
    """An axis in equal steps of a round number."""
    step = _round_step((high - low) / steps)
    ticks = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Axis(label, low, high, tuple(ticks), show, is_log=False)


def ratios_axis(label: str, low: float, high: float) -> Axis:
    """A logarithmic axis of ratios about 1, in equal steps where it is short."""
    show = "{:,.4g}×".format
    if high / low > 10:
        return Axis(label, low, high, _powers(low, high, 10.0, 6), show)
    return replace(linear_axis(label, low, high, show), is_log=True)


def _round_step(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step * 0.999)


def _powers(low: float, high: float, base: float, most: int) -> tuple[float, ...]:
    """Powers of a base between two ends, every n-th from the last so that there are no more than
    ``most``.

    Of a base of 10 that has fewer than two, also their 2nd and 5th multiples.
    """
    first = math.ceil(math.log(low, base) - 1e-9)
    last = math.floor(math.log(high, base) + 1e-9)
    every = math.ceil(max(1, last - first + 1) / most)
    ticks = [base**k for k in range(first, last + 1) if (last - k) % every == 0]
    if len(ticks) < 3 and base == 10:
        ticks = [
            factor * base**k
            for k in range(first - 1, last + 1)
            for factor in (1, 2, 5)
            if low <= factor * base**k <= high
        ]
    return tuple(ticks) or (math.sqrt(low * high),)


def geometric(low: float, high: float, count: int = 60) -> list[float]:
    """Numbers in equal ratios from one end to the other, both included.

    >>> geometric(1, 100, 3)
    [1.0, 10.0, 100.0]
    """
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
