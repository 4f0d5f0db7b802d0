"""A price list's name, or a number -> what one GPU costs for an hour."""

from pathlib import Path

from attnprof.errors import UsageError, nearest
from attnprof.fields import Fields
from attnprof.profiles import find_profile, list_profiles, read_yaml
from attnprof.units import plain_number

DEFAULT_PRICES = "on-demand-2025"


def price_per_gpu_hour(price: str | None, gpu: str) -> tuple[float | None, str]:
    """The price of one GPU for one hour, and its currency; None when the list has none.

    ``price`` is a number, the name of a list in ``profiles/prices``, or the path of one.

    >>> price_per_gpu_hour("2.5", "h100-sxm")
    (2.5, 'USD')

    Raises:
        UsageError: No such list, or a price that is no positive number.
    """
    if price is not None:
        value = plain_number(price.removeprefix("$"))
        if not price.strip():
            raise UsageError("price is empty", "write what one GPU costs for an hour")
        if value is not None:
            if not 0 <= value < 1e6:
                raise UsageError(f"price is {price!r}", "write what one GPU costs for an hour")
            return value, "USD"
    path = _price_list(price or DEFAULT_PRICES)
    fields = Fields(read_yaml(path), str(path))
    currency = fields.text("currency")
    listed = fields.table("per_gpu_hour")
    if gpu not in listed:
        return None, currency
    return Fields(listed, f"{path}: per_gpu_hour").number(gpu, high=1e6), currency


def _price_list(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = find_profile("prices", name)
    if path is None:
        known = list_profiles("prices")
        raise UsageError(f"unknown price list {name!r}", nearest(name, known))
    return path
