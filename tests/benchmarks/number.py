"""A number that attnprof holds itself to: what was found, what was wanted, how it was had."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Number:
    """One row of the table; what is only shown, and not judged, wants nothing and meets None."""

    name: str
    found: str
    wanted: str | None = None
    met: bool | None = None
    how: str


Theme = Callable[[bool], Sequence[Number]]  # told whether every core is kept busy meanwhile
