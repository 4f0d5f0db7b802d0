"""Baselines and the history of their acceptances -> tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.baselines import Acceptance, read_acceptances
from attnprof.render import UNKNOWN, Column, Table
from attnprof.verdicts.comparison import Ratio
from attnprof.verdicts.outputs.sentences import ratio_text

_COLUMNS = (
    Column("accepted", "Accepted"),
    Column("reason", "Reason", wraps=True),
    Column("num_records", "Workloads", align="right", priority=1),
    Column("changes", "Against the one before", priority=1, wraps=True),
    Column("device", "Device", priority=2),
    Column("torch", "torch", priority=3),
    Column("verified", "Verified by", priority=4),
    Column("run", "Run", priority=5),
    Column("digest", "SHA-256", priority=6, format=lambda digest: str(digest)[:12]),
)


def baselines_table(folder: Path, names: Sequence[str]) -> Table:
    """The last acceptance of each baseline."""
    return Table(
        "baselines",
        f"Baselines in {folder}",
        (Column("name", "Baseline"), *_COLUMNS),
        tuple({"name": name, **_row(read_acceptances(folder / name)[-1])} for name in names),
    )


def history_table(folder: Path, name: str) -> Table:
    """All acceptances of one baseline, the last first."""
    rows = tuple(map(_row, reversed(read_acceptances(folder / name))))
    return Table("acceptances", f"Acceptances of baseline {name} in {folder}", _COLUMNS, rows)


def _row(acceptance: Acceptance) -> Mapping[str, Any]:
    known = {key: getattr(acceptance, key) for key in Acceptance.__dataclass_fields__}
    return {**known, "changes": _changes(acceptance)}


def _changes(acceptance: Acceptance) -> str | None:
    changes = acceptance.changes
    if changes is None:
        return None
    if "refused" in changes:
        return f"not comparable: {changes['refused']}"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in changes["counts"].items())
    mean = ratio_text(Ratio(**changes["geometric_mean"]))
    return counts if mean == UNKNOWN else f"{counts}; latency {mean}"
