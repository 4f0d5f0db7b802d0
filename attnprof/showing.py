"""A run directory -> its tables, and beside it figures and a page, read and fitted once."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from attnprof.errors import UsageError
from attnprof.files import write_whole
from attnprof.fit import fit_run
from attnprof.imports.summary import is_foreign_run
from attnprof.records import Run
from attnprof.render import Table, room_of
from attnprof.report import (
    read_in_grid_order,
    report_foreign,
    results_table,
    tables,
    write_all,
)

PAGE_FILE = "report.html"
FIGURES_FOLDER = "figures"


@dataclass(frozen=True)
class Wanted:
    """What is to be made of a run beside its tables.

    Args:
        figures: SVG files, light and dark, which ``report.md`` shows.
        png: The same as PNG, for what takes no SVG.
        page: ``report.html``.
        charts: Small ones of text.
    """

    figures: bool = False
    png: bool = False
    page: bool = False
    charts: bool = False

    @property
    def draws(self) -> bool:
        """Whether figures have to be made."""
        return self.figures or self.page


@dataclass(frozen=True)
class Shown:
    """What was made of a run.

    Args:
        written: Files beside those that every report writes.
        charts: Makes the text of small charts for a stream; None where none are wanted.
    """

    tables: list[Table]
    written: tuple[Path, ...] = ()
    charts: Callable[[TextIO], str] | None = None


def show_run(run_dir: Path, wanted: Wanted, *, tidy: bool = False) -> Shown:
    """The tables of a run, its report files written anew, and what else is wanted.

    Raises:
        UsageError: No run there, it cannot be written to, or it is of times that others measured,
            of which there are no figures.
        CannotMeasureError: Figures are wanted, and matplotlib is not installed.
    """
    run = read_in_grid_order(run_dir)
    if is_foreign_run(run.records):
        if wanted == Wanted():
            return Shown(report_foreign(run, tidy=tidy))
        raise UsageError(
            f"{run_dir} holds times that others measured, of which there are no figures",
            "leave --figures, --html and --plot out",
        )
    fits = fit_run(run.header, run.records)
    has_figures = (run_dir / FIGURES_FOLDER).is_dir()
    pictures, written = _drawn(run, fits, wanted) if has_figures or wanted.draws else ("", [])
    made = tables(run.header, run.records, fits)
    write_all(run, fits, made, pictures)
    return Shown(
        tables=[results_table(run.records)] if tidy else made,
        written=tuple(written),
        charts=(lambda stream: _charts(run, fits, stream)) if wanted.charts else None,
    )


def _charts(run: Run, fits: Mapping[str, Any], stream: TextIO) -> str:
    from attnprof.plots import ASCII, Marks, run_charts

    width, has_signs = room_of(stream, "".join(vars(Marks()).values()))
    text = run_charts(run.records, fits, width, Marks() if has_signs else ASCII)
    return f"{text}\n" if text else "no series of three lengths to draw\n\n"


def _drawn(run: Run, fits: Mapping[str, Any], wanted: Wanted) -> tuple[str, list[Path]]:
    """Markdown that shows the figures, those that were drawn before too, and what was written."""
    from attnprof.figures.files import is_drawn, pictures_markdown, write_figures
    from attnprof.figures.of_run import run_figures

    figures = run_figures(run.header, run.records, fits)
    folder, written = run.path / FIGURES_FOLDER, []
    if wanted.figures:
        suffixes = (".svg", ".png") if wanted.png else (".svg",)
        written = write_figures(figures, folder, suffixes)
    pictures = pictures_markdown([one for one in figures if is_drawn(one, folder)], FIGURES_FOLDER)
    if wanted.page:
        from attnprof.pages.page import report_page

        command = shlex.join(["attnprof", "report", str(run.path), "--html"])
        write_whole(run.path / PAGE_FILE, report_page(run, fits, figures, command))
        written.append(run.path / PAGE_FILE)
    return pictures, written
