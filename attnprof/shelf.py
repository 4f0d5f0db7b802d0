"""What can be chosen by name -> the tables of ``attnprof show``."""

from collections.abc import Callable

from attnprof.errors import UsageError, nearest
from attnprof.grid import AXES, expand, sweep_groups
from attnprof.listing import backends_table, profiles_table
from attnprof.profiles import list_profiles, load_profile
from attnprof.render import Column, Table

KINDS = ("models", "gpus", "engines", "backends", "sweeps", "axes")


def shelf_tables(kind: str, name: str | None = None) -> list[Table]:
    """The tables of one kind, or of one thing of that kind.

    Raises:
        UsageError: No such kind, or nothing of that name.
    """
    if kind not in KINDS:
        raise UsageError(f"nothing to show of {kind!r}", nearest(kind, KINDS))
    if kind in _BY_KIND:
        listed, explained = _BY_KIND[kind]
        return [listed() if name is None else explained(name)]
    table = backends_table() if kind == "backends" else _axes_table()
    if name is None:
        return [table]
    rows = tuple(row for row in table.rows if row["name"] == name)
    if not rows:
        known = [str(row["name"]) for row in table.rows]
        raise UsageError(f"no {kind.removesuffix('s')} {name!r}", nearest(name, known))
    return [Table(table.name, table.title, table.columns, rows)]


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
        notes=(f"{len(grid.workloads)} workloads, 'all' backends counted as one.",),
    )


def _gpus_table() -> Table:
    from attnprof.capacity_tables import gpus_table
    from attnprof.gpus import all_gpus

    return gpus_table(all_gpus())


def _gpu_table(name: str) -> Table:
    from attnprof.capacity_tables import gpu_table
    from attnprof.gpus import gpu_named

    return gpu_table(gpu_named(name))


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
}


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) else str(values)


def _axes_table() -> Table:
    return Table(
        name="axes",
        title="Axes of a sweep",
        columns=(
            Column("name", "Axis"),
            Column("alias", "Also"),
            Column("default", "Default"),
            Column("help", "Values", wraps=True),
        ),
        rows=tuple(
            {
                "name": axis.name,
                "alias": axis.alias or "",
                "default": axis.default,
                "help": axis.help,
            }
            for axis in AXES.values()
        ),
        notes=("Lengths and counts take 512, 8k, lists 1k,4k and ranges 512..8192x2, 4..16+4.",),
    )
