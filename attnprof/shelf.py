"""What can be chosen by name -> the tables of ``attnprof show``."""

from attnprof.errors import UsageError, nearest
from attnprof.grid import AXES, expand, sweep_groups
from attnprof.listing import backends_table, profiles_table
from attnprof.profiles import list_profiles, load_profile
from attnprof.render import Column, Table

KINDS = ("backends", "axes", "sweeps")


def shelf_tables(kind: str, name: str | None = None) -> list[Table]:
    """The tables of one kind, or of one thing of that kind.

    Raises:
        UsageError: No such kind, or nothing of that name.
    """
    if kind not in KINDS:
        raise UsageError(f"nothing to show of {kind!r}", nearest(kind, KINDS))
    if kind == "sweeps":
        return [_sweeps_table() if name is None else _sweep_table(name)]
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
