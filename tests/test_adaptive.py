"""What generate adds is measured once a run for fit, and laws do without where it cannot be."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnprof import adaptive
from attnprof.errors import CannotMeasureError
from attnprof.overheads import FILE, read_overheads
from attnprof.session import Asked
from attnprof.workload import Workload

OURS = Workload(backend="flash", scope="model", model="gpt2", q_len=16, kv_len=16)
LIBRARYS = Workload(**{**vars(OURS), "implementation": "transformers"})


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def weigh(run_dir: Path, *workloads: Workload) -> list[str]:
    """Weigh the engine of a plan of some workloads; the notes that the user is told."""
    notes = Notes()
    grid = SimpleNamespace(workloads=workloads)
    plan: Any = SimpleNamespace(run_dir=run_dir, grid=grid, asked=Asked(device="synthetic"))
    watch: Any = notes
    adaptive._weigh_engine(plan, watch)
    return notes.texts


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One number a launch that has measured it."""
    done: list[int] = []

    def measured(launcher: Any) -> dict[str, float]:
        done.append(len(done))
        return {"first_s": 1e-3 * len(done), "step_s": 1e-4}

    monkeypatch.setattr(adaptive, "_overheads", measured)
    return done


def test_it_is_measured_once_in_several_launches(tmp_path: Path, launches: list[int]) -> None:
    assert weigh(tmp_path, OURS, LIBRARYS) == weigh(tmp_path, OURS, LIBRARYS) == []
    assert len(launches) == adaptive.NUM_LAUNCHES
    assert read_overheads([tmp_path]) == {"first_s": pytest.approx(2e-3), "step_s": 1e-4}


def test_it_is_not_measured_where_the_library_is_not(tmp_path: Path, launches: list[int]) -> None:
    assert weigh(tmp_path, OURS) == []
    assert not launches


def test_where_it_cannot_be_measured_that_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: list[int]
) -> None:
    def lost(launcher: Any) -> dict[str, float]:
        raise CannotMeasureError("a worker was lost: it was killed")

    with monkeypatch.context() as broken:
        broken.setattr(adaptive, "_overheads", lost)
        [note] = weigh(tmp_path, LIBRARYS)
    assert "a worker was lost" in note
    assert not (tmp_path / FILE).exists()
    assert weigh(tmp_path, LIBRARYS) == []
    assert (tmp_path / FILE).exists()
