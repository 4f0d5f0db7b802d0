"""What generate adds: kept whole beside a run, its median taken, nonsense refused."""

import json
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.overheads import FILE, read_overheads, write_overheads


def test_what_was_written_comes_back_as_medians_over_launches_of_all_runs(tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "two", tmp_path / "without"]
    for run in runs:
        run.mkdir()
    write_overheads(runs[0], [{"first_s": 1e-3, "step_s": 3e-4}, {"first_s": 9e-3, "step_s": 0.0}])
    write_overheads(runs[1], [{"first_s": 2e-3, "step_s": 2e-4}])
    assert read_overheads(runs) == {"first_s": 2e-3, "step_s": 2e-4}
    assert [path.name for path in runs[0].iterdir()] == [FILE]


def test_runs_that_did_not_measure_it_say_nothing(tmp_path: Path) -> None:
    assert read_overheads([tmp_path]) == {}


GOOD = {"first_s": 1e-3, "step_s": 1e-4}


@pytest.mark.parametrize(
    "content",
    [
        "", '[{"first_s": 1', "3", "null", "[]", "[3]", "{}", json.dumps(GOOD), "[" * 100_000,
        json.dumps([{"first_s": 1e-3}]), json.dumps([GOOD | {"more_s": 1.0}]),
        *(json.dumps([GOOD, GOOD | {"step_s": bad}])
          for bad in (-1e-9, 11.0, True, "3", None, float("nan"), float("inf"))),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UsageError, match=FILE) as caught:
        read_overheads([tmp_path])
    assert caught.value.fix == "remove it"


def test_bytes_or_a_folder_in_its_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=FILE):
        read_overheads([tmp_path])
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        read_overheads([tmp_path])
