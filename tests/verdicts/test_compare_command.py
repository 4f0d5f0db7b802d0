"""attnprof compare as a user meets it: tables, documents, exit codes, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import attnprof
from tests.verdicts.runs import IDS, failed, record, whole, write_run

Spoil = Callable[[Path], object]


@pytest.fixture
def runs(folder: Path) -> Path:
    """A folder with ``base``, ``same``, and ``slow``, in which two workloads are slower."""
    write_run(folder / "base", whole())
    write_run(folder / "same", whole(seed=1))
    slow = whole(lambda place: {"factor": 1.25 if place >= 6 else 1.0}, seed=2)
    slow[0]["peak_activation_bytes"] *= 2
    slow[1] = failed(1, "out_of_memory", "wanted 80 GiB")
    write_run(folder / "slow", slow, libc="glibc 2.40")
    return folder


@pytest.mark.parametrize("columns", [80, 160])
def test_tables_fit_their_terminal_and_show_what_needs_attention_first(
    runs: Path, columns: int, golden: Callable[[str, str], None]
) -> None:
    done = attnprof("compare", "base", "slow", columns=columns)
    assert done.returncode == 1, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= columns
    golden(f"compare-{columns}.txt", done.stdout)


def test_the_same_code_passes(runs: Path) -> None:
    done = attnprof("compare", "base", "same")
    assert done.returncode == 0, done.stderr
    assert "same against base: same; 8 of 8 workloads compared (8 same)" in done.stdout


def test_the_document_holds_all_and_is_alone_on_standard_output(runs: Path) -> None:
    done = attnprof("compare", "base", "slow", "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["format"] == 1
    assert (document["verdict"], document["exit_code"], document["paired"]) == (
        "regressed", 1, False,
    )  # fmt: skip
    assert document["counts"] == {"regressed": 3, "failed": 1, "same": 4}
    by_id = {one["workload_id"]: one for one in document["workloads"]}
    assert list(by_id) == list(IDS)
    [latency, peak, kv] = by_id[IDS[7]]["metrics"]
    assert latency["metric"] == "latency" and latency["verdict"] == "regressed"
    assert latency["ratio"]["low"] < 1.25 < latency["ratio"]["high"]
    assert (peak["verdict"], kv["verdict"]) == ("same", "same")
    assert by_id[IDS[7]]["axes"]["kv_len"] == 4096
    assert "REGRESSED; 7 of 8 workloads compared" in done.stderr


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_other_formats_hold_every_workload(runs: Path, form: str) -> None:
    done = attnprof("compare", "base", "slow", "--format", form)
    assert done.returncode == 1
    assert all(key in done.stdout for key in IDS)


def test_rows_without_news_are_left_out_where_there_are_many_and_shown_when_asked(
    folder: Path,
) -> None:
    many = [record(place % 8) | {"workload_id": f"w{place}"} for place in range(60)]
    write_run(folder / "base", many)
    done = attnprof("compare", "base", "base")
    assert "20 more rows are the same (--all" in done.stdout
    assert len(attnprof("compare", "base", "base", "--all").stdout.splitlines()) > 60


def test_thresholds_change_the_verdict_and_their_reason_is_shown(runs: Path) -> None:
    (runs / "t.yaml").write_text(
        f"""
format: 1
rules: [{{match: 'decode-*', latency: 50%, reason: noisy}}]
allow:
  - {{match: '{IDS[0]}', metric: peak_memory, reason: the scores are kept}}
  - {{match: '{IDS[1]}', reason: a known crash}}
"""
    )
    done = attnprof("compare", "base", "slow", "--thresholds", "t.yaml", columns=250)
    assert done.returncode == 0, done.stdout
    assert "allowed: the scores are kept" in done.stdout
    assert "allowed: a known crash" in done.stdout
    assert "2 of them allowed" in done.stdout


def test_metrics_margin_and_verdicts_that_fail_can_be_chosen(runs: Path) -> None:
    assert attnprof("compare", "base", "slow", "--metric", "kv_bytes").returncode == 1  # failed
    only = ("--metric", "kv_bytes", "--fail-on", "regressed")
    assert attnprof("compare", "base", "slow", *only).returncode == 0
    lax = ("--metric", "latency", "--margin", "30%", "--fail-on", "regressed")
    assert attnprof("compare", "base", "slow", *lax).returncode == 0


def test_other_conditions_end_with_3_and_are_named(runs: Path) -> None:
    write_run(runs / "other", whole(seed=1), torch="2.12.0", threads=2)
    done = attnprof("compare", "base", "other")
    assert done.returncode == 3
    assert "torch: 2.13.0+cpu, 2.12.0" in done.stderr and "threads: 1, 2" in done.stderr
    assert "--allow-different torch" in done.stderr and "--allow-different threads" in done.stderr
    assert not done.stdout
    allowed = ("--allow-different", "torch", "--allow-different", "threads")
    done = attnprof("compare", "base", "other", *allowed)
    assert done.returncode == 0
    assert "What differed" in done.stdout and "subject" in done.stdout


def test_what_ci_reads_is_written_beside_the_tables(runs: Path) -> None:
    done = attnprof(
        "compare", "base", "slow", "--junit", "j.xml", "--markdown", "c.md", "--annotations"
    )
    assert done.returncode == 1
    assert "<failure" in (runs / "j.xml").read_text()
    assert "regressed" in (runs / "c.md").read_text()
    assert "::error" in done.stderr


def _line(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    lines = (path / "records.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    change(first)
    (path / "records.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")


def _cut(path: Path) -> None:
    data = (path / "records.jsonl").read_bytes()
    (path / "records.jsonl").write_bytes(data[:-40])


def _header(path: Path, **changes: object) -> None:
    header = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(header | changes))


SPOILT: dict[str, tuple[Spoil, str]] = {
    "there is no such folder": (shutil.rmtree, "holds no run"),
    "run.json is cut": (lambda p: (p / "run.json").write_text('{"format": 1,'), "JSON"),
    "run.json is of another format": (lambda p: _header(p, format=7), "format 7"),
    "run.json is foreign": (lambda p: (p / "run.json").write_text("[1, 2]"), "JSON"),
    "the last record is cut": (_cut, "is cut in half"),
    "records are binary": (
        lambda p: (p / "records.jsonl").write_bytes(b"\x89PNG\r\n\x00\xff\n\x01\n"), "JSON",
    ),
    "records are gone": (lambda p: (p / "records.jsonl").unlink(), "holds no records"),
    "records are empty": (lambda p: (p / "records.jsonl").write_text(""), "holds no records"),
    "a record is of another format": (
        lambda p: _line(p, lambda one: one.update(format=2)), "format is 2",
    ),
    "a record has no format": (lambda p: _line(p, lambda one: one.pop("format")), "format is None"),
    "a sample is NaN": (
        lambda p: _line(p, lambda one: one.update(samples_s=[float("nan")] * 50)), "line 1",
    ),
    "the last record's sample is NaN": (
        lambda p: (p / "records.jsonl").write_text(
            json.dumps(record() | {"samples_s": [float("nan")] * 50}) + "\n"
        ), "NaN",
    ),
    "a sample is negative": (
        lambda p: _line(p, lambda one: one.update(samples_s=[-1.0] * 50)), "samples_s[0] is -1.0",
    ),
    "a CPU sample is text": (
        lambda p: _line(p, lambda one: one.update(samples_cpu_s=["1"] * 50)), "samples_cpu_s[0]",
    ),
    "samples are a number": (lambda p: _line(p, lambda one: one.update(samples_s=3)), "samples_s"),
    "a launch is missing": (
        lambda p: _line(p, lambda one: one.update(sample_launch=[0])), "50 samples, of 1",
    ),
    "launches are unknown": (
        lambda p: _line(p, lambda one: one.pop("sample_launch")), "50 samples, of 0",
    ),
    "launches are text": (
        lambda p: _line(p, lambda one: one.update(sample_launch="0" * 50)), "sample_launch",
    ),
    "an ok record has no samples": (
        lambda p: _line(p, lambda one: one.update(samples_s=[], samples_cpu_s=[])), "no samples",
    ),
    "bytes are negative": (lambda p: _line(p, lambda one: one.update(kv_bytes=-1)), "kv_bytes"),
    "a status is missing": (lambda p: _line(p, lambda one: one.pop("status")), "status"),
    "a status is none that there is": (
        lambda p: _line(p, lambda one: one.update(status="fine")), "no status 'fine'",
    ),
    "a length is text": (lambda p: _line(p, lambda one: one.update(kv_len="")), "kv_len is ''"),
    "a token that was generated has no time": (
        lambda p: _line(p, lambda one: one.update(growth=[{"kv_len": 1}])), "wall_s is missing",
    ),
    "a record was imported": (
        lambda p: _line(p, lambda one: one.update(provenance="imported")), "it is imported",
    ),
    "a workload is there twice": (
        lambda p: (p / "records.jsonl").write_text(f"{json.dumps(record())}\n" * 2), "twice",
    ),
    "rulers are cut": (lambda p: (p / "rulers.jsonl").write_text('{"rulers"'), "rulers.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("side", ["base", "new"])
@pytest.mark.parametrize("name", SPOILT)
def test_a_run_that_cannot_be_read_is_one_error_and_never_green(
    folder: Path, name: str, side: str
) -> None:
    from typer.testing import CliRunner

    from attnprof.cli.app import app
    from attnprof.errors import UsageError

    for one in ("base", "new"):
        write_run(folder / one, whole(seed=len(one)))
    spoil, words = SPOILT[name]
    spoil(folder / side)
    (folder / "junit.xml").write_text("<testsuites/>")  # of an earlier run, and green
    files = ["--junit", "junit.xml", "--markdown", "comment.md"]
    done = CliRunner().invoke(app, ["compare", "base", "new", *files])
    assert "<error" in (folder / "junit.xml").read_text()
    assert "not compared" in (folder / "comment.md").read_text()
    assert isinstance(done.exception, UsageError), done.exception
    assert words in done.exception.problem
    assert f"{side}" in done.exception.problem
    assert done.exception.fix
    assert not done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("base", "same", "--metric", "speed"), "speed"),
        (("base", "same", "--fail-on", "slower"), "slower"),
        (("base", "same", "--margin", "3"), "--margin 3"),
        (("base", "same", "--allow-different", "devise"), "devise"),
        (("base", "same", "--thresholds", "gone.yaml"), "gone.yaml"),
        (("base", "other"), "no workload in common"),
        (("failed", "same"), "no workload that is ok"),
    ],
)
def test_a_question_without_sense_ends_with_2(
    runs: Path, args: tuple[str, ...], words: str
) -> None:
    write_run(runs / "other", [record() | {"workload_id": "another"}])
    write_run(runs / "failed", [failed(0, "crashed", "no torch")])
    done = attnprof("compare", *args)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error ") == 1 and "  fix " in done.stderr
    assert not done.stdout


def test_two_synthetic_sweeps_of_which_one_is_slower(folder: Path) -> None:
    axes = ("--axis", "phase=prefill,decode", "--axis", "seq_len=1k,2k", "--axis", "kv_len=1k,2k")
    for name, law in (("base", ""), ("new", "&slow=decode*:1.5")):
        device = f"synthetic?noise=0.01{law}"
        swept = attnprof("sweep", *axes, "--device", device, "--quiet", "-o", name)
        assert swept.returncode == 0, swept.stderr
    done = attnprof("compare", "base", "new", "--format", "json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    regressed = {
        one["workload_id"] for one in document["workloads"] if one["verdict"] == "regressed"
    }
    decodes = {
        one["workload_id"] for one in document["workloads"] if one["axes"]["phase"] == "decode"
    }
    assert decodes and regressed == decodes
    assert attnprof("compare", "base", "base").returncode == 0
