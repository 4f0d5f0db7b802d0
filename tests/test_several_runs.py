"""Runs that are given twice, or that hold the same measurements, count once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnprof.records import read_run
from attnprof.several_runs import read_runs

CPU_RUN = Path(__file__).parent / "golden" / "cpu-run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CPU_RUN, tmp_path / "run"))


def rewritten(run: Path, to: Path, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Path:
    """A copy of a run, each of its records changed."""
    shutil.copytree(run, to)
    lines = (run / "records.jsonl").read_text().splitlines()
    records = [change(number, json.loads(line)) for number, line in enumerate(lines)]
    (to / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return to


def measured_again(number: int, record: dict[str, Any]) -> dict[str, Any]:
    times = ("median_s", "median_low_s", "median_high_s")
    return {**record, **{name: record[name] * 1.01 for name in times if record.get(name)}}


def test_one_run_is_read_as_it_is(run: Path) -> None:
    assert read_runs([run]) == ([read_run(run)], [])


def test_a_folder_by_another_path_is_the_same_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(run, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    ways = [run, Path("run"), Path("link"), run / ".." / "run"]
    runs, words = read_runs(ways)
    assert [one.path for one in runs] == [run]
    assert words == [f"{way} is {run} again: it is used once" for way in ways[1:]]


def test_a_copy_is_left_out(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    runs, words = read_runs([run, copy])
    assert [one.path for one in runs] == [run]
    assert words == [f"{copy} measured nothing that is not in {run}: left out"]


def test_of_a_run_that_holds_some_records_of_another_the_rest_is_used(
    run: Path, tmp_path: Path
) -> None:
    other = rewritten(
        run, tmp_path / "more", lambda n, record: record if n < 5 else measured_again(n, record)
    )
    runs, words = read_runs([run, other])
    assert runs[0] == read_run(run)
    assert runs[1].records == read_run(other).records[5:]
    assert words == [f"{other}: 5 records also in {run}, used once"]


def test_the_same_workloads_measured_again_are_other_records(run: Path, tmp_path: Path) -> None:
    other = rewritten(run, tmp_path / "again", measured_again)
    runs, words = read_runs([run, other])
    assert [len(one.records) for one in runs] == [len(read_run(run).records)] * 2
    assert words == []


def test_two_devices_with_the_same_times_are_not_one(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    header = json.loads((other / "run.json").read_text())
    header["facts"]["name"] = "another processor"
    (other / "run.json").write_text(json.dumps(header))
    runs, words = read_runs([run, other])
    assert [one.path for one in runs] == [run, other]
    assert words == []
