"""Price lists -> the tables that list them and show one."""

from collections.abc import Sequence

from attnprof import units
from attnprof.prices import DEFAULT_PRICES, PriceList
from attnprof.render import Column, Table

_BASES = (
    "Prices are: recalled, written down from memory and not checked against a provider's page; "
    "checked, read from it on that date; unstated, the file does not say. Give yours with --price "
    "NUMBER, or with --price FILE.yaml, a list like these."
)


def price_lists_table(lists: Sequence[PriceList]) -> Table:
    """Every price list in a line."""
    return Table(
        name="prices",
        title=units.counted(len(lists), "price list"),
        columns=(
            Column("name", "Name"),
            Column("num_gpus", "GPUs", align="right"),
            Column("currency", "Currency"),
            Column("date", "Of"),
            Column("basis", "Prices are"),
            Column("source", "Source", priority=1, wraps=True),
        ),
        rows=tuple(
            {
                "name": one.name,
                "num_gpus": len(one.listed),
                **{key: getattr(one, key) for key in ("currency", "date", "basis", "source")},
            }
            for one in lists
        ),
        notes=(f"Without --price, estimate takes {DEFAULT_PRICES}. {_BASES}",),
    )


def price_list_table(prices: PriceList) -> Table:
    """One price list, GPU by GPU."""
    return Table(
        name="price_list",
        title=f"Prices of {prices.name}, of one GPU for one hour",
        columns=(
            Column("gpu", "GPU"),
            Column("per_hour", "An hour", "{:.3f}".format, "right"),
            Column("currency", "Currency"),
            Column("date", "Of", priority=1),
            Column("basis", "Price is", priority=1),
        ),
        rows=tuple(
            {
                "gpu": gpu,
                "per_hour": prices.per_hour(gpu),
                **{key: getattr(prices, key) for key in ("currency", "date", "basis")},
            }
            for gpu in prices.listed
        ),
        notes=(f"{prices.source} ({prices.path})", _BASES),
    )
