"""What can be chosen by name -> the tables of ``attnprof show``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from attnprof import choice_tables
from attnprof.axes import AXIS_GROUPS
from attnprof.errors import UsageError, nearest
from attnprof.grid import expand, sweep_groups
from attnprof.listing import backends_table, profiles_table
from attnprof.profiles import list_profiles, load_profile
from attnprof.render import Column, Table
from attnprof.units import counted
from attnprof.variants import PARAMETERS, VARIANTS

KINDS = (
    "models", "gpus", "engines", "backends", "sweeps", "axes", "variants", "positions", "caches",
    "calibrations", "prices",
)  # fmt: skip
_OF_PROFILES = ("models", "gpus", "engines", "sweeps", "calibrations", "prices")
DRAWN = ("q_len", "kv_len", *PARAMETERS)
"""What a variant may be drawn with, by the names of the axes."""


def shelf_tables(
    kind: str, name: str | None = None, sizes: Mapping[str, int | None] | None = None
) -> list[Table]:
    """The tables of one kind, or of one thing of that kind.

    Args:
        kind: In the singular too: ``variant``.
        sizes: Lengths that a variant is drawn with; None or left out where they were not given.

    Raises:
        UsageError: No such kind, nothing of that name, or sizes for what has none.
    """
    kind = _SINGULAR.get(kind, kind)
    if kind not in KINDS:
        raise UsageError(f"nothing to show of {kind!r}", _kind_hint(kind))
    given = {key: size for key, size in (sizes or {}).items() if size is not None}
    if kind == "variants" and name is not None:
        return _variant_tables(name, given)
    for key in given:
        option = f"--{key.replace('_', '-')}"
        raise UsageError(f"{option} is of a variant", f"attnprof show variant sliding {option} 4")
    if kind == "calibrations":
        return _calibration_tables(name)
    if kind in _BY_KIND:
        listed, explained = _BY_KIND[kind]
        return [listed() if name is None else explained(name)]
    tables = _TABLES[kind]()
    if name is None:
        return tables
    for table in tables:
        rows = tuple(row for row in table.rows if row["name"] == name)
        if rows:
            return [Table(table.name, table.title, table.columns, rows)]
    known = [str(row["name"]) for table in tables for row in table.rows]
    singular = {plural: one for one, plural in _SINGULAR.items()}[kind]
    raise UsageError(f"no {singular} {name!r}", nearest(name, known))


def names_of(kind: str) -> list[str]:
    """The names of all things of a kind, which :func:`shelf_tables` explains one by one.

    >>> names_of("variant")[:2]
    ['full', 'causal']

    Raises:
        UsageError: No such kind.
    """
    kind = _SINGULAR.get(kind, kind)
    if kind not in KINDS:
        raise UsageError(f"nothing to show of {kind!r}", _kind_hint(kind))
    if kind in _OF_PROFILES:
        return list_profiles(kind)
    return [str(row["name"]) for table in _TABLES[kind]() for row in table.rows]


def _kind_hint(word: str) -> str:
    """What to type for a word that is no kind: the kind goes before the name of a thing."""
    kinds = [kind for kind in _OF_PROFILES if word in list_profiles(kind)]
    if word in VARIANTS:
        kinds.append("variants")
    if kinds:
        return f"write {' or '.join(f'attnprof show {kind} {word}' for kind in kinds)}"
    return nearest(word, KINDS)


def _variant_tables(name: str, sizes: Mapping[str, int]) -> list[Table]:
    """A variant drawn; or, of a model, which of its layers have which."""
    q_len, kv_len = sizes.get("q_len"), sizes.get("kv_len")
    others: dict[str, int | None] = {key: sizes[key] for key in PARAMETERS if key in sizes}
    if name in VARIANTS:
        return choice_tables.variant_tables(name, others, q_len, kv_len)
    models = list_profiles("models")
    if name not in models and "/" not in name and not Path(name).exists():
        hint = nearest(name, [*VARIANTS, *models])
        if hint.startswith("use one of"):
            hint = f"use one of: {', '.join(VARIANTS)}; or a model (attnprof show models)"
        raise UsageError(f"no variant or model {name!r}", hint)
    from attnprof.models.load import load_model

    if others or q_len is not None:
        raise UsageError(f"model {name!r} has sizes of its own", "give --kv-len or nothing")
    return [choice_tables.layers_table(load_model(name), kv_len)]


def _calibration_tables(name: str | None) -> list[Table]:
    """All that can be read in a table, or the laws and coefficients of one."""
    from attnprof.law_tables import calibration_tables, calibrations_table
    from attnprof.laws.calibration import KIND, calibration_named

    if name is not None:
        return calibration_tables(calibration_named(name))
    read, left_out = [], []
    for one in list_profiles(KIND):
        try:
            read.append(calibration_named(one))
        except UsageError as error:
            left_out.append(f"Left out, as it cannot be read: {error.problem}.")
    table = calibrations_table(read)
    return [replace(table, notes=(*table.notes, *left_out))]


def _sweeps_table() -> Table:
    return profiles_table(
        "sweeps", {name: load_profile("sweeps", name) for name in list_profiles("sweeps")}
    )


def _sweep_table(name: str) -> Table:
    """The groups of a sweep as its file has them, and how many workloads they make."""
    content = load_profile("sweeps", name)
    title, groups = sweep_groups(content, f"sweep {name!r}")
    grid = expand(title, groups, backends=("every one that runs here",))
    return Table(
        name="sweep",
        title=f"Sweep '{title}': {content.get('description', '')}",
        columns=(
            Column("group", "Group"),
            Column("axis", "Axis"),
            Column("values", "Values", wraps=True),
        ),
        rows=tuple(
            {"group": group, "axis": axis, "values": _listed(values)}
            for group, axes in groups.items()
            for axis, values in axes.items()
        ),
        notes=(f"{counted(len(grid.workloads), 'workload')}, 'all' backends counted as one.",),
    )


def _gpus_table() -> Table:
    from attnprof.capacity_tables import gpus_table
    from attnprof.gpus import all_gpus

    return gpus_table(all_gpus())


def _gpu_table(name: str) -> Table:
    from attnprof.capacity_tables import gpu_table
    from attnprof.gpus import gpu_named

    return gpu_table(gpu_named(name))


def _prices_table() -> Table:
    from attnprof.price_tables import price_lists_table
    from attnprof.prices import prices_named

    return price_lists_table([prices_named(name) for name in list_profiles("prices")])


def _price_table(name: str) -> Table:
    from attnprof.price_tables import price_list_table
    from attnprof.prices import prices_named

    return price_list_table(prices_named(name))


def _engines_table() -> Table:
    from attnprof.capacity_tables import engines_table
    from attnprof.engines.profile import all_engines

    return engines_table(all_engines())


def _engine_table(name: str) -> Table:
    from attnprof.capacity_tables import engine_table
    from attnprof.engines.profile import engine_named

    return engine_table(engine_named(name))


def _models_table() -> Table:
    """Every model profile, counted."""
    from attnprof.model_tables import models_table
    from attnprof.models.load import load_model

    return models_table([load_model(name) for name in list_profiles("models")])


def _model_table(name: str) -> Table:
    from attnprof.model_tables import model_table
    from attnprof.models.load import load_model

    return model_table(load_model(name))


_BY_KIND: dict[str, tuple[Callable[[], Table], Callable[[str], Table]]] = {
    "models": (_models_table, _model_table),
    "gpus": (_gpus_table, _gpu_table),
    "engines": (_engines_table, _engine_table),
    "sweeps": (_sweeps_table, _sweep_table),
    "prices": (_prices_table, _price_table),
}


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) else str(values)


def _axes_tables() -> list[Table]:
    """The axes, in a table for each thing that they are about."""
    columns = (
        Column("name", "Axis"),
        Column("alias", "Also"),
        Column("default", "Default"),
        Column("help", "Values", wraps=True),
    )
    tables = [
        Table(
            name="axes",
            title=f"Axes of a sweep: {group}",
            columns=columns,
            rows=tuple(
                {
                    "name": axis.name,
                    "alias": axis.alias or "",
                    "default": {False: "no"}.get(axis.default, axis.default),
                    "help": axis.help,
                }
                for axis in axes
            ),
        )
        for group, axes in AXIS_GROUPS.items()
    ]
    words = "Lengths and counts take 512, 8k, lists 1k,4k and ranges 512..8192x2, 4..16+4."
    return [*tables[:-1], replace(tables[-1], notes=(words,))]


_TABLES: dict[str, Callable[[], list[Table]]] = {
    "backends": lambda: [backends_table()],
    "axes": _axes_tables,
    "positions": lambda: [choice_tables.positions_table()],
    "caches": lambda: [choice_tables.caches_table()],
    "variants": lambda: [choice_tables.variants_table()],
}
_SINGULAR = {"axis": "axes"} | {kind[:-1]: kind for kind in KINDS if kind != "axes"}
