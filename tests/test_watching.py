"""Following a sweep: each record is told once, in order, until nobody writes any more."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.importing import import_sources
from attnprof.imports.parts import Asked
from attnprof.medians import Interval
from attnprof.records import LOCK_FILE, RECORDS_FILE
from attnprof.showing import Wanted, show_run
from attnprof.watching import follow, is_being_written
from attnprof.workload import Workload
from tests.figures.run import GOLDEN


class Heard:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.ids: list[str] = []
        self.visits: list[str] = []

    def started(self, num_workloads: int, num_kept: int) -> None:
        self.begun.append((num_workloads, num_kept))

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None:
        self.visits.append(workload.workload_id)

    def record(self, record: dict[str, Any]) -> None:
        self.ids.append(record["workload_id"])

    def note(self, text: str) -> None: ...

    def time_left(self, left_s: float) -> None: ...


def lines_of_golden() -> list[str]:
    return (GOLDEN / RECORDS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of which two records are written."""
    shutil.copy(GOLDEN / "run.json", tmp_path)
    (tmp_path / RECORDS_FILE).write_text("".join(lines_of_golden()[:2]), encoding="utf-8")
    return tmp_path


def test_each_new_record_is_told_once_even_where_a_line_comes_in_two_halves(run_dir: Path) -> None:
    lines = lines_of_golden()
    heard = Heard()
    writes = iter([lines[2], lines[3][:100], lines[3][100:], "".join(lines[4:])])
    is_over = False

    def sleep(_seconds: float) -> None:
        nonlocal is_over
        more = next(writes, None)
        is_over = more is None
        with (run_dir / RECORDS_FILE).open("a", encoding="utf-8") as file:
            file.write(more or "")

    is_done = follow(run_dir, heard, is_written=lambda path: not is_over, sleep=sleep)
    header = json.loads((run_dir / "run.json").read_text())
    assert heard.begun == [(len(header["workloads"]), 2)]
    assert heard.ids == [json.loads(line)["workload_id"] for line in lines[2:]]
    assert is_done == (len(lines) >= len(header["workloads"]))


def test_visits_are_told_by_their_workload(run_dir: Path) -> None:
    heard = Heard()
    first = json.loads((run_dir / "run.json").read_text())["workloads"][0]
    told = iter([json.dumps({"workload_id": first, "round": 1}) + "\n"])

    def sleep(_seconds: float) -> None:
        with (run_dir / "visits.jsonl").open("a", encoding="utf-8") as file:
            file.write(next(told, ""))

    asked = iter([True, False])
    follow(run_dir, heard, is_written=lambda path: next(asked), sleep=sleep)
    assert heard.visits == [first]


def test_what_nobody_writes_ends_at_once_and_says_that_it_is_not_done(run_dir: Path) -> None:
    def never(_seconds: float) -> None:
        raise AssertionError("waited for a run that nobody writes")

    assert follow(run_dir, Heard(), sleep=never) is False


def test_a_directory_is_written_as_long_as_its_lock_is_held(run_dir: Path) -> None:
    from filelock import FileLock

    assert not is_being_written(run_dir)
    with FileLock(run_dir / LOCK_FILE):
        assert is_being_written(run_dir)
    assert not is_being_written(run_dir)


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        follow(tmp_path, Heard())


def test_a_lock_that_cannot_be_opened_ends_the_watching_of_a_finished_run(run_dir: Path) -> None:
    (run_dir / LOCK_FILE).mkdir()  # as where the folder may not be written to
    header = json.loads((run_dir / "run.json").read_text())
    assert header["finished"]
    assert not is_being_written(run_dir)
    (run_dir / "run.json").write_text(json.dumps(header | {"finished": None}))
    with pytest.raises(UsageError, match="cannot tell whether a sweep still writes"):
        is_being_written(run_dir)


def test_a_run_that_was_imported_is_not_followed(run_dir: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    show_run(run_dir, Wanted())
    import_sources([run_dir / "results.csv"], taken, None, Asked(), ["attnprof", "import"])
    with pytest.raises(UsageError, match="there is nothing to follow"):
        follow(taken, Heard())
