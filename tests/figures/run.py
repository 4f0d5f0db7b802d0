"""A real run with its fits, as figures take it, and a panel drawn, to be looked into."""

import json
from pathlib import Path
from typing import Any

from attnprof.figures.base import LIGHT, Figure
from attnprof.fit import fit_run
from attnprof.run_header import in_grid_order

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
GOLDEN = ROOT / "tests" / "golden" / "cpu-run"

Parts = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]


def run_of(folder: Path) -> Parts:
    """Header, records and fits of a run directory."""
    header = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = in_grid_order(header, [json.loads(line) for line in lines])
    return header, records, fit_run(header, records)


def drawn(figure: Figure, panel: int = 0) -> Any:
    """The axes of one panel, drawn."""
    from matplotlib.figure import Figure as Canvas

    axes = Canvas().add_subplot()
    figure.panels[panel].draw(axes, LIGHT)
    return axes


def points_of(axes: Any, colour: str, marker: str = "o") -> list[tuple[float, float]]:
    """Where markers of a colour are."""
    return [
        point
        for line in axes.lines
        if line.get_color() == colour and line.get_marker() == marker
        for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
