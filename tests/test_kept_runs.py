"""The runs kept in ``reports`` say what is made of them now; ``--update-golden`` renews that."""

import re
import shutil
from pathlib import Path

import pytest

from attnprof.figures.files import is_drawn
from attnprof.figures.of_run import run_figures
from attnprof.showing import FIGURES_FOLDER, Wanted, show_run
from tests.figures.run import REPORTS, run_of

KEPT = sorted(path.parent for path in REPORTS.rglob("run.json"))
WITH_FIGURES = [path for path in KEPT if path.parent == REPORTS]
MADE = ("report.md", "results.csv", "fit.json")


def name_of(path: Path) -> str:
    return path.relative_to(REPORTS).as_posix()


@pytest.mark.parametrize("kept", KEPT, ids=name_of)
def test_what_lies_beside_the_records_is_what_is_made_of_them(
    kept: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--update-golden"):
        pytest.importorskip("matplotlib")
        show_run(kept, Wanted(figures=kept in WITH_FIGURES))
    copy = tmp_path / "run"
    shutil.copytree(kept, copy)
    show_run(copy, Wanted())
    for name in MADE:
        said = (kept / name).read_text(encoding="utf-8") if (kept / name).is_file() else None
        assert said is None or said == (copy / name).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("kept", WITH_FIGURES, ids=name_of)
def test_a_kept_run_has_every_figure_beside_it_and_no_other(kept: Path) -> None:
    figures = run_figures(*run_of(kept))
    folder = kept / FIGURES_FOLDER
    assert [one.name for one in figures if not is_drawn(one, folder)] == []
    assert len(list(folder.iterdir())) == 2 * len(figures)
    report = (kept / "report.md").read_text(encoding="utf-8")
    assert len(re.findall(r"<picture>", report)) == len(figures)


def test_the_kept_runs_are_there() -> None:
    assert {"quick", "models", "caches"} <= {name_of(path) for path in WITH_FIGURES}
