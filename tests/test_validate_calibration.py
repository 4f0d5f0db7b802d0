"""A calibration held against runs: planted laws are foretold, other devices refused."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.validate_calibration import ALL, validate_calibration
from tests.command import attnprof

LATENT = {"mla": "expanded", "kv_lora_rank": 512, "rope_head_dim": 64}
LAW = "synthetic?noise=0.02&t0=30us&compute_efficiency=0.4&memory_efficiency=0.7"
OTHERS = ("--axis", "seq_len=100,900,3000", "--axis", "batch_size=2,6", "--axis", "heads=4",
          "--axis", "kv_heads=2", "--axis", "variant=causal", "--axis", "phase=prefill,decode",
          "--backend", "flash")  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A calibration file, the run that it was fitted to, and another run of the same device."""
    folder = tmp_path_factory.mktemp("runs")
    fitted, held = folder / "fitted", folder / "held"
    done = attnprof("sweep", "--for-fit", "--device", LAW, "-q", "-o", str(fitted))
    assert done.returncode == 0, done.stderr
    done = attnprof("fit", str(fitted))
    assert done.returncode == 0, done.stderr
    done = attnprof("sweep", "--device", LAW, *OTHERS, "-q", "-o", str(held))
    assert done.returncode == 0, done.stderr
    return fitted / "calibration.yaml", fitted, held


def test_what_was_not_measured_is_foretold_and_scored(runs: tuple[Path, Path, Path]) -> None:
    calibration, _, held = runs
    found = validate_calibration([held], str(calibration))
    rows = {row["stratum"]: row for row in found.rows()}
    assert rows[ALL]["num"] == 12
    assert rows["op prefill"]["num"] == rows["op decode"]["num"] == 6
    assert rows[ALL]["median"] < 0.05
    assert rows[ALL]["p90"] < 0.15
    assert rows[ALL]["inside"] >= 0.7
    assert not any("fitted to" in note for note in found.notes)


def test_a_run_that_it_was_fitted_to_is_named(runs: tuple[Path, Path, Path]) -> None:
    calibration, fitted, held = runs
    found = validate_calibration([held, fitted], str(calibration))
    assert any(f"fitted to {fitted}" in note for note in found.notes)


def test_the_command_gives_strata_and_workloads_in_json(runs: tuple[Path, Path, Path]) -> None:
    calibration, _, held = runs
    done = attnprof("validate", "calibration", str(held), "--calibration", str(calibration),
                    "--format", "json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["format"] == 1
    assert [row["stratum"] for row in document["strata"]] == ["op decode", "op prefill", ALL]
    one = document["workloads"][0]
    assert one["low_s"] < one["mid_s"] < one["high_s"]
    assert one["error"] == pytest.approx(one["mid_s"] / one["measured_s"] - 1)


def test_a_run_of_another_device_is_refused(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    calibration, _, held = runs
    other = tmp_path / "calibration.yaml"
    text = calibration.read_text()
    assert "device: 'synthetic'" in text
    other.write_text(text.replace("device: 'synthetic'", "device: 'another'"))
    with pytest.raises(UsageError, match="of another"):
        validate_calibration([held], str(other))


def test_nothing_that_a_law_is_of_cannot_be_judged(
    runs: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    calibration = runs[0]
    run = tmp_path / "run"
    done = attnprof("sweep", "--device", LAW, *OTHERS[:-2], "--backend", "math", "-q", "-o",
                    str(run))  # fmt: skip
    assert done.returncode == 0, done.stderr
    with pytest.raises(CannotMeasureError, match="no law of prefill by math"):
        validate_calibration([run], str(calibration))


def test_a_calibration_is_for_its_own_kind_alone(runs: tuple[Path, Path, Path]) -> None:
    calibration, _, held = runs
    done = attnprof("validate", "kernels", str(held), "--calibration", str(calibration))
    assert done.returncode == 2
    assert "takes no calibration" in done.stderr


def test_a_run_that_is_given_twice_counts_once(runs: tuple[Path, Path, Path]) -> None:
    calibration, _, held = runs
    once, twice = (validate_calibration([held] * num, str(calibration)) for num in (1, 2))
    assert twice.rows() == once.rows()
    assert any("used once" in note for note in twice.notes)


def changed(run: Path, to: Path, change: Mapping[str, object]) -> Path:
    """A copy of a run whose records have some values more, or without those that are None."""
    shutil.copytree(run, to)
    lines = (run / "records.jsonl").read_text().splitlines()
    records = [{**json.loads(line), **change} for line in lines]
    kept = [{key: value for key, value in one.items() if value is not None} for one in records]
    (to / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    return to


@pytest.mark.parametrize("key", ["q_len", "kv_len"])
def test_records_that_leave_out_a_length_are_refused(
    runs: tuple[Path, Path, Path], tmp_path: Path, key: str
) -> None:
    calibration, _, held = runs
    with pytest.raises(UsageError, match=f"has no {key}"):
        validate_calibration([changed(held, tmp_path / "run", {key: None})], str(calibration))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (LATENT, "6 workloads: there is no law of prefill with a latent"),
        ({"attention": "cross"}, "no law of prefill with attention to a source"),
        ({"mixer": "linear"}, "no law of decode by layers with a state"),
        ({"scope": "layer"}, "12 workloads: there is no law of step by flash"),
    ],
)
def test_what_no_law_is_of_is_said_by_name(
    runs: tuple[Path, Path, Path], tmp_path: Path, change: dict[str, object], words: str
) -> None:
    calibration, _, held = runs
    with pytest.raises(CannotMeasureError, match=words):
        validate_calibration([changed(held, tmp_path / "run", change)], str(calibration))


def test_what_another_project_measured_is_refused(
    runs: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    calibration, _, held = runs
    change = {"kind": "attention", "provenance": "imported"}
    with pytest.raises(UsageError, match="another project"):
        validate_calibration([changed(held, tmp_path / "run", change)], str(calibration))


def test_without_a_calibration_of_the_device_it_is_said_how_to_make_one(
    runs: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    with pytest.raises(UsageError, match="no calibration of synthetic") as caught:
        validate_calibration([runs[2]])
    assert "attnprof calibrate" in (caught.value.fix or "")
