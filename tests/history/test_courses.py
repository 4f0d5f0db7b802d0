"""Folders of runs as a history reads them: what belongs together, what is told, what is refused."""

import csv
import io
import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.history.asking import asked_of, exit_code, history_of
from attnprof.history.courses import Course, History, read_history
from attnprof.history.tables import chart_table, history_tables, sparkline
from attnprof.workload import Workload
from tests.command import attnprof

pytest.importorskip("ruptures")

PREFILL = Workload(backend="flash", q_len=512, kv_len=512)
DECODE = Workload(backend="math", phase="decode", q_len=1, kv_len=4096)
FIRST_DAY = datetime(2026, 9, 1, tzinfo=UTC)
FACTS = {
    "attnprof": "0.1.0", "kind": "cpu", "name": "AMD EPYC", "threads": 1, "torch": "2.12.0",
    "memory_bytes": 2**34, "environment": {"OMP_WAIT_POLICY": "passive"},
}  # fmt: skip


def write_run(
    folder: Path,
    week: float,
    latencies: dict[Workload, float],
    *,
    noise: float = 0.01,
    facts: dict[str, Any] | None = None,
    **record: Any,
) -> None:
    """A run of five launches, as a sweep leaves it."""
    rng = random.Random(f"{folder.name} {week}")
    folder.mkdir(parents=True)
    started = (FIRST_DAY + timedelta(weeks=week)).isoformat()
    header = {
        "format": 1, "attnprof": "0.1.0", "started": started, "finished": started, "device": "cpu",
        "conditions": {"device_kind": "cpu", "threads": 1, "ceilings": {}},
        "fingerprint": {**FACTS, **(facts or {})}, "facts": {"name": "AMD EPYC"},
        "workloads": [workload.workload_id for workload in latencies],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(header))
    lines = []
    for workload, latency_s in latencies.items():
        samples = [latency_s * math.exp(rng.gauss(0, noise)) for _ in range(5)]
        lines.append(
            {
                "format": 1, "workload_id": workload.workload_id, **workload.to_json(),
                "status": "ok", "mode": "host", "samples_s": [9.0] * 5, "samples_cpu_s": samples,
                "sample_launch": [1, 2, 3, 4, 5], "kv_bytes": 4096, "weight_bytes": 0,
                "peak_activation_bytes": 10_000, "memory_meter": "profiler", **record,
            }
        )  # fmt: skip
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def one_course(found: History, workload: Workload = PREFILL) -> Course:
    courses = [one for one in found.courses if one.workload_id == workload.workload_id]
    assert len(courses) == 1
    return courses[0]


def test_a_creep_of_one_percent_a_week_is_told_with_its_pace_and_the_steady_one_is_not(
    tmp_path: Path,
) -> None:
    for week in range(11):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01 * 1.01**week, DECODE: 0.002})
    found = read_history(tmp_path)
    creeping = one_course(found)
    assert (creeping.verdict, creeping.shape) == ("regressed", "creep")
    assert creeping.changes
    assert creeping.per_week == pytest.approx(0.01, abs=0.003)
    assert creeping.ratio == pytest.approx(1.01**10, abs=0.02)
    assert creeping.first == pytest.approx(0.01, rel=0.02)
    steady = one_course(found, DECODE)
    assert (steady.verdict, steady.shape, steady.changes) == ("same", None, ())
    assert found.courses[0] is creeping


def test_a_step_is_told_with_the_runs_between_and_what_else_changed_there(tmp_path: Path) -> None:
    for week in range(10):
        is_new = week >= 6
        write_run(
            tmp_path / f"w{week}", week, {PREFILL: 0.011 if is_new else 0.01},
            facts={"torch": "2.13.0" if is_new else "2.12.0", "memory_bytes": 2**34 + week},
        )  # fmt: skip
    (change,) = one_course(read_history(tmp_path)).changes
    assert (change.last_before, change.first_after) == ("w5", "w6")
    assert change.software == ("torch 2.12.0 → 2.13.0",)
    assert change.ratio == pytest.approx(1.1, abs=0.02)
    assert change.started == FIRST_DAY + timedelta(weeks=6)


def test_runs_are_ordered_by_when_they_started_and_not_by_name(tmp_path: Path) -> None:
    for week in range(8):
        write_run(tmp_path / f"{99 - week}", week, {PREFILL: 0.01 if week < 4 else 0.005})
    course = one_course(read_history(tmp_path))
    assert [point.run for point in course.points] == [str(99 - week) for week in range(8)]
    assert course.verdict == "improved"


def test_another_machine_or_number_of_threads_is_another_course(tmp_path: Path) -> None:
    for week in range(6):
        write_run(tmp_path / "a" / f"{week}", week, {PREFILL: 0.01})
        write_run(tmp_path / "b" / f"{week}", week, {PREFILL: 0.02}, facts={"name": "Graviton"})
    found = read_history(tmp_path)
    assert sorted(course.place["name"] or "" for course in found.courses) == [
        "AMD EPYC",
        "Graviton",
    ]
    assert {course.verdict for course in found.courses} == {"same"}
    names = [row["workload"] for row in history_tables(found, charts=False)[0].rows]
    assert any("Graviton" in name for name in names)
    assert any("AMD EPYC" in name for name in names)


def test_too_few_runs_decide_nothing(tmp_path: Path) -> None:
    for week in range(5):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01 * 2**week})
    course = one_course(read_history(tmp_path))
    assert (course.verdict, course.reason) == ("inconclusive", "5 of 6 runs")


def test_bytes_are_counted_so_one_more_that_stays_is_told(tmp_path: Path) -> None:
    for week in range(8):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01}, kv_bytes=4096 + (week >= 5))
    found = read_history(tmp_path, metrics=("kv_bytes", "peak_memory"))
    by_metric = {course.metric: course for course in found.courses}
    assert by_metric["kv_bytes"].verdict == "regressed"
    assert by_metric["kv_bytes"].last == 4097
    assert by_metric["peak_memory"].verdict == "same"


def test_figures_of_zero_bytes_have_no_ratio_and_no_change(tmp_path: Path) -> None:
    for week in range(6):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01}, kv_bytes=0)
    course = one_course(read_history(tmp_path, metrics=("kv_bytes",)))
    assert (course.verdict, course.first, course.ratio) == ("same", 0, None)
    assert sparkline(course)


def test_a_workload_that_no_longer_runs_is_named(tmp_path: Path) -> None:
    for week in range(7):
        measured = {PREFILL: 0.01} if week == 6 else {PREFILL: 0.01, DECODE: 0.002}
        write_run(tmp_path / f"w{week}", week, measured)
    notes = " ".join(read_history(tmp_path).notes)
    assert f"The newest run has no figure of {DECODE.workload_id}." in notes


def test_a_terminal_shows_news_and_says_how_many_rows_without_any_it_leaves_out(
    tmp_path: Path,
) -> None:
    many = {replace(PREFILL, q_len=n, kv_len=n): 0.001 for n in range(100, 150)}
    for week in range(6):
        write_run(tmp_path / f"w{week}", week, {**many, PREFILL: 0.01 if week < 3 else 0.02})
    found = read_history(tmp_path)
    shown = history_tables(found, charts=False, everything=False)[0]
    assert len(shown.rows) == 40
    assert shown.rows[0]["verdict"] == "regressed"
    assert any("11 rows without news" in note for note in shown.notes)
    assert len(history_tables(found, charts=False)[0].rows) == 51


def test_the_base_of_a_pair_is_no_point_of_the_history(tmp_path: Path) -> None:
    for week in range(3):
        for side in ("base", "new"):
            folder = tmp_path / f"w{week}" / side
            write_run(folder, week, {PREFILL: 0.01})
            header = json.loads((folder / "run.json").read_text())
            (folder / "run.json").write_text(json.dumps({**header, "paired": {"side": side}}))
    found = read_history(tmp_path)
    assert [point.run for point in one_course(found).points] == [f"w{w}/new" for w in range(3)]
    assert any("base of a pair" in note and "3" in note for note in found.notes)


def test_the_small_chart_has_a_bar_where_the_level_changed_and_charts_fit_80_columns(
    tmp_path: Path,
) -> None:
    for week in range(10):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01 if week < 5 else 0.02})
    course = one_course(read_history(tmp_path))
    assert sparkline(course) == "▁▁▁▁▁│█████"
    chart = chart_table(course, "prefill")
    assert next(row["level"] for row in chart.rows if row["level"]).startswith("20")
    drawn = [str(row["plot"]) for row in chart.rows]
    assert sum(line.count("●") for line in drawn) == 10
    assert max(map(len, drawn)) <= 61


@pytest.mark.parametrize("num_runs", [1, 7, 61, 200])
def test_every_run_has_its_place_in_a_chart_of_any_length(tmp_path: Path, num_runs: int) -> None:
    for number in range(num_runs):
        write_run(tmp_path / f"{number}", number / 7, {PREFILL: 0.01})
    course = one_course(read_history(tmp_path))
    assert len(sparkline(course)) <= 26
    chart = chart_table(course, "prefill")
    assert max(len(str(row["plot"])) for row in chart.rows) <= 61


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format": 1}\n', "records.jsonl line 1"),
        ("", "holds no records"),
        ('{"format": 2, "workload_id": "x", "status": "ok"}\n', "format"),
        ('{"format": 1, "workload_id": "x", "sta', "cut in half"),
        (
            '{"format":1,"workload_id":"x","status":"ok","samples_s":[-1.0],"sample_launch":[0]}\n',
            "samples_s",
        ),
        (
            '{"format":1,"workload_id":"x","status":"ok","samples_s":[NaN],"sample_launch":[0]}\n',
            "NaN",
        ),
    ],
)
def test_one_broken_run_is_an_error_that_names_it(tmp_path: Path, content: str, words: str) -> None:
    for week in range(6):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01})
    (tmp_path / "w3" / "records.jsonl").write_text(content)
    done = attnprof("history", str(tmp_path))
    assert done.returncode == 2
    assert not done.stdout
    assert words in done.stderr
    assert "w3" in done.stderr


def test_a_run_that_does_not_say_when_it_was_made_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "w0", 0, {PREFILL: 0.01})
    header = json.loads((tmp_path / "w0" / "run.json").read_text())
    (tmp_path / "w0" / "run.json").write_text(json.dumps({**header, "started": "yesterday"}))
    with pytest.raises(UsageError, match="yesterday"):
        read_history(tmp_path)


def test_a_folder_without_runs_and_a_pattern_without_workloads_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no runs"):
        read_history(tmp_path)
    write_run(tmp_path / "w0", 0, {PREFILL: 0.01})
    with pytest.raises(UsageError, match="'nothing"):
        read_history(tmp_path, workloads=("nothing*",))


@pytest.mark.parametrize(
    "typed",
    [
        {"metric": "latencies"}, {"metric": ","}, {"smallest": "a lot"}, {"smallest": "-2%"},
        {"smallest": "150%"}, {"fail_on": "slower"},
    ],
)  # fmt: skip
def test_a_request_of_no_sense_is_refused(typed: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        asked_of(**typed)


def test_it_fails_only_on_what_it_was_told_to_fail_on(tmp_path: Path) -> None:
    for week in range(8):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01 if week < 4 else 0.013})
    write_run(tmp_path / "w8", 8, {PREFILL: 0.013, DECODE: 0.001})
    assert {
        fail_on: exit_code(history_of(tmp_path, asked), asked)
        for fail_on in (None, "regressed", "inconclusive")
        for asked in [asked_of(fail_on=fail_on)]
    } == {None: 0, "regressed": 1, "inconclusive": 3}


def test_the_command_writes_every_format_and_fails_when_asked(tmp_path: Path) -> None:
    for week in range(10):
        write_run(tmp_path / f"w{week}", week, {PREFILL: 0.01 if week < 5 else 0.012})
    shown = attnprof("history", str(tmp_path), columns=80)
    assert shown.returncode == 0, shown.stderr
    assert "regressed" in shown.stdout
    assert "●" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    document = json.loads(attnprof("history", str(tmp_path), "--format", "json").stdout)
    assert document["courses"][0]["changes"][0]["first_after"] == "w5"
    assert [point["level"] for point in document["courses"][0]["points"]] == [0] * 5 + [1] * 5
    rows = list(csv.DictReader(io.StringIO(
        attnprof("history", str(tmp_path), "--format", "csv").stdout
    )))  # fmt: skip
    assert [row["run"] for row in rows] == [f"w{week}" for week in range(10)]
    assert "### Where a level changed" in attnprof(
        "history", str(tmp_path), "--format", "markdown"
    ).stdout  # fmt: skip
    assert attnprof("history", str(tmp_path), "--fail-on", "regressed").returncode == 1
