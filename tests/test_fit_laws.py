"""Laws of our own runs: planted ones come back, and what cannot be fitted is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.fit_laws import RunFit, fit_runs
from attnprof.law_tables import WORST_RESIDUALS, fit_tables
from attnprof.laws.baselines import BASELINES
from attnprof.laws.calibration import read_calibration
from attnprof.planning import answer_fit
from attnprof.render import csv_text, markdown_text
from tests.command import attnprof

LAW = "synthetic?noise=0.02&t0=30us&compute_efficiency=0.4&memory_efficiency=0.7"
AXES = ("--axis", "seq_len=64..16kx2", "--axis", "batch_size=1,4,16", "--axis", "heads=32",
        "--axis", "kv_heads=8", "--axis", "head_dim=128", "--axis", "variant=causal",
        "--axis", "phase=prefill,decode")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    done = attnprof("sweep", "--device", LAW, *AXES, "--backend", "flash", "-o", str(path), "-q")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def found(run: Path) -> RunFit:
    return fit_runs([run])


def changed(run: Path, to: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Path:
    """A copy of a run whose records are changed, those given as None left out."""
    shutil.copytree(run, to)
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    kept = [new for line in lines if (new := change(line)) is not None]
    (to / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    return to


def test_planted_efficiencies_come_back(found: RunFit) -> None:
    laws = {one.group.law.name: one for one in found.groups}
    fitted = laws["prefill"].law.fitted
    values = dict(zip(fitted.law.names, fitted.coefficients, strict=True))
    assert values["compute"] == pytest.approx(1 / 0.4, rel=0.03)
    assert fitted.low is not None
    assert fitted.high is not None
    compute = fitted.law.names.index("compute")
    assert fitted.low[compute] <= 2.5 <= fitted.high[compute]
    decode = laws["decode"].law.fitted
    assert decode.low is not None
    assert decode.high is not None
    for name, planted in (("dram", 1 / 0.7), ("launch", 30e-6)):
        place = decode.law.names.index(name)
        assert decode.low[place] <= planted <= decode.high[place], name


def test_a_law_foretells_what_was_held_out(found: RunFit) -> None:
    for one in found.groups:
        outcomes = {(outcome.holdout, outcome.method): outcome for outcome in one.outcomes}
        assert outcomes["random", "law"].median < 0.03
        assert outcomes["far", "law"].median < 0.05
        assert outcomes["far", "law"].median < outcomes["far", "log interpolation"].median
        assert one.holds
        assert "the law holds" in one.words[0]


def test_it_says_what_binds_where(found: RunFit) -> None:
    words = {one.group.law.name: " ".join(one.words) for one in found.groups}
    assert "at batch 1 most of the time is arithmetic from 64" in words["prefill"]
    assert "launch from 64" in words["decode"]


def test_the_calibration_is_written_and_reads_back(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    answer, words = answer_fit([run], path)
    assert words == f"wrote {path}"
    assert answer.is_yes
    assert [table.name for table in answer.tables] == [
        "laws", "bindings", "coefficients", "holdouts", "residuals",
    ]  # fmt: skip
    again = read_calibration(path)
    assert again.device == "synthetic"
    assert set(again.laws) == {"prefill.flash.float32.causal", "decode.flash.float32.causal"}


def test_the_first_table_says_whether_each_law_holds_and_what_naive_ones_miss(
    run: Path, found: RunFit
) -> None:
    table = fit_tables(found)[0]
    assert table.title == "Laws of synthetic: 2 of 2 hold"
    for row, one in zip(table.rows, found.groups, strict=True):
        outcomes = {(outcome.holdout, outcome.method): outcome for outcome in one.outcomes}
        held = outcomes["random", "law"]
        assert (row["law"], row["holds"]) == (one.key, True)
        assert (row["median"], row["p90"], row["in_80"]) == (held.median, held.p90, held.in_80)
        assert row["naive"] == min(row[name] for name in BASELINES)
        assert row["far"] == outcomes["far", "law"].median
    assert not any("the law holds" in row["words"] for row in fit_tables(found)[1].rows)


def test_people_are_shown_the_worst_residuals_and_programs_all(found: RunFit) -> None:
    table = fit_tables(found)[-1]
    num_points = sum(len(one.group.latency_s) for one in found.groups)
    assert len(table.rows) == num_points > WORST_RESIDUALS
    sizes = [abs(row["residual"]) for row in table.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(csv_text(table).splitlines()) == num_points + 1
    shown = markdown_text(table)
    assert shown.count("| prefill") + shown.count("| decode") == WORST_RESIDUALS
    assert f"And {num_points - WORST_RESIDUALS} more in --format csv or json" in shown


def test_a_run_given_twice_is_used_once_and_said(run: Path, tmp_path: Path, found: RunFit) -> None:
    (tmp_path / "link").symlink_to(run)
    shutil.copytree(run, tmp_path / "copy")
    again = run.parent / ".." / run.parent.name / run.name
    answer, _ = answer_fit([run, run, again, tmp_path / "link", tmp_path / "copy"], None)
    words = answer.document["used_once"]
    assert [line.partition(" ")[2] for line in words] == [
        f"is {run} again: it is used once",
        f"is {run} again: it is used once",
        f"is {run} again: it is used once",
        f"measured nothing that is not in {run}: left out",
    ]
    assert set(answer.tables[0].notes) >= {f"{line}." for line in words}
    points = {row["law"]: row["num_points"] for row in answer.document["laws"]}
    assert points == {one.key: one.law.fitted.num_points for one in found.groups}


def test_too_few_points_are_counted_and_the_missing_named(run: Path, tmp_path: Path) -> None:
    few = changed(
        run, tmp_path / "few", lambda r: r if r["batch_size"] == 1 and r["kv_len"] < 1024 else None
    )
    with pytest.raises(UsageError) as error:
        fit_runs([few])
    assert "decode.flash.float32.causal: 4 points, a law needs 8" in error.value.problem
    assert "missing: " in error.value.problem
    assert "many sequences" in error.value.problem


def test_a_single_length_makes_no_law(run: Path, tmp_path: Path) -> None:
    one = changed(run, tmp_path / "one", lambda r: r if r["kv_len"] == 1024 else None)
    with pytest.raises(UsageError, match="q_len is 1024 in all 3 records"):
        fit_runs([one])


@pytest.mark.parametrize("time_s", [0.0, -1e-3, 1e-300])
def test_a_time_that_is_none_is_refused(run: Path, tmp_path: Path, time_s: float) -> None:
    bad = changed(run, tmp_path / "bad", lambda r: {**r, "median_s": time_s})
    with pytest.raises(UsageError, match=r"median_s is (0|-0.001|1e-300)"):
        fit_runs([bad])


def test_records_of_two_devices_are_not_mixed(run: Path, tmp_path: Path) -> None:
    other = changed(run, tmp_path / "other", lambda r: r)
    header = json.loads((other / "run.json").read_text())
    header["facts"]["name"] = "another"
    (other / "run.json").write_text(json.dumps(header))
    with pytest.raises(UsageError, match=r"different devices: synthetic .* and another"):
        fit_runs([run, other])


def test_records_of_two_devices_in_one_run_are_not_mixed(run: Path, tmp_path: Path) -> None:
    bad = changed(
        run, tmp_path / "bad", lambda r: {**r, "device": "cpu" if r["batch_size"] > 1 else "cuda"}
    )
    with pytest.raises(UsageError, match=r"is of cpu, the first record of cuda"):
        fit_runs([bad])


@pytest.mark.parametrize("size", ["batch_size", "kv_len", "num_kv_heads"])
def test_a_size_that_is_none_is_refused(run: Path, tmp_path: Path, size: str) -> None:
    bad = changed(run, tmp_path / "bad", lambda r: {**r, size: 0})
    with pytest.raises(UsageError, match=f"{size} is 0, less than 1"):
        fit_runs([bad])


@pytest.mark.parametrize(
    ("wall", "cpu", "wait"),
    [
        (7.0, 1.0, 6.0),  # one thread waited
        (7.0, 1.0, 12.0),  # two did at once: what they computed is the least
        (1.0, 0.5, 0.0),  # nothing disturbed, and one of two threads had no work
    ],
)
def test_waits_for_a_core_are_taken_off_what_a_record_took(
    run: Path, tmp_path: Path, wall: float, cpu: float, wait: float
) -> None:
    def contended(record: dict[str, Any]) -> dict[str, Any]:
        samples = record["samples_s"]
        threads = record["threads"] or 1
        return {
            **record, "clock": "cpu", "median_wall_s": wall * record["median_s"],
            "median_cpu_s": cpu * threads * record["median_s"],
            "samples_s": [wall * one for one in samples],
            "samples_cpu_s": [cpu * threads * one for one in samples],
            "run_delay_s": [wait * one for one in samples],
        }  # fmt: skip

    found = fit_runs([changed(run, tmp_path / "contended", contended)])
    plain = fit_runs([run])
    for one, other in zip(found.groups, plain.groups, strict=True):
        assert one.group.latency_s == pytest.approx(other.group.latency_s, rel=1e-6)
        assert any("its waits for one are taken off" in words for words in one.words)
        assert one.law.where["clock"] == "contended"


def test_clocks_that_leave_no_time_are_not_believed(run: Path, tmp_path: Path) -> None:
    def waited(record: dict[str, Any]) -> dict[str, Any]:
        samples = record["samples_s"]
        return {**record, "samples_cpu_s": [0.0] * len(samples), "run_delay_s": samples}

    found = fit_runs([changed(run, tmp_path / "waited", waited)])
    for one, other in zip(found.groups, fit_runs([run]).groups, strict=True):
        assert one.group.latency_s == pytest.approx(other.group.latency_s, rel=0.1)


def test_noise_without_a_law_is_said_not_to_hold(run: Path, tmp_path: Path) -> None:
    import random

    draw = random.Random(0)

    def wild(record: dict[str, Any]) -> dict[str, Any]:
        factor = draw.choice((0.2, 1.0, 5.0))
        return {
            **record, "median_s": factor * record["median_s"],
            "median_wall_s": factor * record["median_s"],
            "samples_s": [factor * one for one in record["samples_s"]],
            "samples_cpu_s": [factor * one for one in record["samples_cpu_s"]],
        }  # fmt: skip

    found = fit_runs([changed(run, tmp_path / "wild", wild)])
    assert not any(one.holds for one in found.groups)
    assert all("DOES NOT HOLD" in one.words[0] for one in found.groups)


def test_the_command_fits_and_exits_with_what_it_found(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    done = attnprof("fit", str(run), "--output", str(path), "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["format"] == 1
    assert {row["coefficient"] for row in document["coefficients"]} >= {"launch", "compute", "dram"}
    shown = attnprof("show", "calibrations", str(path), "--format", "csv")
    assert "prefill.flash.float32.causal" in shown.stdout
