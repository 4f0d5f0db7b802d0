"""What a sweep refuses and foretells before it runs: by the calibration of this CPU, if any."""

import math
from pathlib import Path
from typing import Any

import pytest

from attnprof import machine, session
from attnprof.capacity import local_cpu
from attnprof.errors import UsageError
from attnprof.laws.calibration import calibration_text
from attnprof.session import Asked
from tests.calibrations import cpu_calibration

NAME, FILE = "a CPU", "a-cpu-1-thread.yaml"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the calibration of this CPU with one thread."""
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    monkeypatch.setattr(local_cpu, "cpu_name", lambda: NAME)
    monkeypatch.setattr(machine, "has_package", lambda name: True)
    path = tmp_path / "calibrations" / FILE
    path.parent.mkdir()
    path.write_text(calibration_text(cpu_calibration("a-cpu-1-thread", f"{NAME}, 1 thread")))
    return path


def planned(folder: Path, threads: int = 1) -> session.SweepPlan:
    axes = {"seq_len": "512", "variant": "causal", "backend": "flash,math"}
    return session.plan(Asked(axes=axes, device="cpu", threads=threads, output=folder / "run"))


def test_calls_of_which_there_is_a_law_have_an_interval(kept: Path, tmp_path: Path) -> None:
    table = planned(tmp_path).table
    flash, math = sorted(table.rows, key=lambda row: "math" in row["workload_id"])
    assert flash["call_low_s"] < flash["call_s"] < flash["call_high_s"]
    assert math["call_low_s"] is math["call_high_s"] is None
    assert any("calibration 'a-cpu-1-thread'" in note for note in table.notes)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("format: 1", "format: 2", "has format 2"),
        ("device: 'a CPU, 1 thread'", "device: 'another CPU, 1 thread'", "of 'another CPU"),
        ("device: 'a CPU, 1 thread'", "device: 'a CPU, 8 threads'", "of 'a CPU, 8 threads'"),
        ("laws:", "laws: [", "not YAML"),
    ],
)
def test_a_calibration_that_cannot_be_used_is_named_and_not_followed(
    kept: Path, tmp_path: Path, before: str, after: str, words: str
) -> None:
    text = kept.read_text()
    assert before in text
    kept.write_text(text.replace(before, after, 1))
    table = planned(tmp_path).table
    assert all(row.get("call_low_s") is None for row in table.rows)
    assert any("cannot be used" in note and words in note for note in table.notes)


def test_a_calibration_with_other_threads_is_not_followed(kept: Path, tmp_path: Path) -> None:
    table = planned(tmp_path, threads=2).table
    assert all(row.get("call_low_s") is None for row in table.rows)
    assert not any("calibration" in note for note in table.notes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("interval", math.nan), ("interval", 0), ("interval", "a"), ("interval", 0.6),
        ("budget_s", math.nan), ("budget_s", -1), ("budget_s", 0), ("budget_s", math.inf),
        ("timeout_s", math.nan), ("timeout_s", 0),
        ("threads", 0), ("threads", 1.5), ("threads", True), ("threads", 2000),
        ("seed", "x"), ("seed", 1.5), ("seed", None), ("seed", -1), ("seed", 2**63),
    ],
)  # fmt: skip
def test_a_setting_out_of_its_bounds_is_refused_before_there_is_a_folder(
    setting: str, value: Any, tmp_path: Path
) -> None:
    asked: Any = {"spec": "quick", "device": "synthetic", setting: value}
    with pytest.raises(UsageError) as raised:
        session.plan(Asked(output=tmp_path / "run", **asked))
    assert f"{setting.removesuffix('_s')} {value!r}" in raised.value.problem
    assert not (tmp_path / "run").exists()
