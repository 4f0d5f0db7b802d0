"""A price list's name, or a number -> what one GPU costs for an hour, and how that is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest
from attnprof.fields import Fields
from attnprof.profiles import find_profile, list_profiles, read_yaml
from attnprof.units import plain_number

DEFAULT_PRICES = "on-demand-2025"
KIND = "prices"
MOST_PER_HOUR = 1e6
UNSTATED = "unstated"
BASES = ("checked", "recalled", UNSTATED)
"""How prices of a list are known: from the provider's page, from memory, or it does not say."""


@dataclass(frozen=True)
class PriceList:
    """What one GPU costs for an hour, by the name of the GPU.

    Args:
        basis: Of :data:`BASES`.
        date: Of which day the prices are; None where the file does not say.
    """

    name: str
    currency: str
    basis: str
    date: str | None
    source: str
    path: Path
    listed: Mapping[str, Any]

    @property
    def words(self) -> str:
        """As people read it beside a price: ``list on-demand-2025, recalled``."""
        return f"list {self.name}" if self.basis == UNSTATED else f"list {self.name}, {self.basis}"

    def per_hour(self, gpu: str) -> float | None:
        """None of a GPU that is not in it.

        Raises:
            UsageError: The price is no number.
        """
        fields = Fields(self.listed, f"{self.path}: per_gpu_hour")
        return fields.number(gpu, high=MOST_PER_HOUR) if gpu in self.listed else None


@dataclass(frozen=True)
class GpuPrice:
    """What one GPU costs for an hour; None where the list has no price of it."""

    per_hour: float | None
    currency: str
    prices: PriceList | None = None
    """The list that was looked in; None of a number that was typed."""

    @property
    def is_known(self) -> bool:
        """Whether it was typed, or comes from a list that was checked."""
        return self.prices is None or self.prices.basis == "checked"


def price_per_gpu_hour(price: str | None, gpu: str) -> GpuPrice:
    """The price of one GPU for one hour.

    ``price`` is a number, the name of a list in ``profiles/prices``, or the path of one.

    >>> price_per_gpu_hour("2.5", "h100-sxm").per_hour
    2.5

    Raises:
        UsageError: No such list, or a price that is no positive number.
    """
    if price is not None:
        value = plain_number(price.removeprefix("$"))
        if not price.strip():
            raise UsageError("price is empty", "write what one GPU costs for an hour")
        if value is not None:
            if not 0 <= value < MOST_PER_HOUR:
                raise UsageError(f"price is {price!r}", "write what one GPU costs for an hour")
            return GpuPrice(value, "USD")
    prices = prices_named(price or DEFAULT_PRICES)
    return GpuPrice(prices.per_hour(gpu), prices.currency, prices)


def prices_named(name: str) -> PriceList:
    """A list by name, or by the path of its file.

    Raises:
        UsageError: No such list, or its file is none.
    """
    path = _path(name)
    content = read_yaml(path)
    fields = Fields(content, str(path))
    date = content.get("date")
    return PriceList(
        name=path.stem,
        currency=fields.text("currency"),
        basis=fields.one_of("verified", BASES, default=UNSTATED),
        date=None if date is None else str(date),
        source=fields.text("source", default="no source is stated"),
        path=path,
        listed=fields.table("per_gpu_hour"),
    )


def _path(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = find_profile(KIND, name)
    if path is None:
        raise UsageError(f"unknown price list {name!r}", nearest(name, list_profiles(KIND)))
    return path
