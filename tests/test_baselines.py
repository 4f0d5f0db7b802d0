"""Baselines: what is kept and why, what is refused, and that it is what was accepted."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attnprof.baselines import (
    ACCEPTANCES_FILE,
    accept_baseline,
    baseline_names,
    find_baseline,
    read_acceptances,
)
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.records import RECORDS_FILE, RUN_FILE
from attnprof.verdicts.sides import read_side
from tests.command import attnprof

RUN = Path(__file__).parent / "golden" / "cpu-run"
GREW = "decode-causal-flash-float32-b8-q1-kv2048-h8kv2-d64-l4-static"
MORNING = datetime(2027, 1, 2, 6, 7, 8, tzinfo=UTC)


@pytest.fixture
def run_with(folder: Path) -> Callable[..., Path]:
    """Copies the kept run, with changes to its header and to one record."""

    def make(name: str, *, header: Any = None, record: Any = None) -> Path:
        made = folder / name
        shutil.copytree(RUN, made)
        if header:
            known = json.loads((made / RUN_FILE).read_text())
            (made / RUN_FILE).write_text(json.dumps({**known, **header}))
        lines = (made / RECORDS_FILE).read_text().splitlines()
        found = [json.loads(line) for line in lines]
        changed = [
            {**one, **(record or {})} if one["workload_id"] == GREW else one for one in found
        ]
        (made / RECORDS_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in changed))
        return made

    return make


def test_a_baseline_is_a_run_and_keeps_every_reason(run_with: Callable[..., Path]) -> None:
    accept_baseline(run_with("a"), "the first", now=MORNING)
    more = run_with("b", record={"kv_bytes": 2**30})
    accept_baseline(
        more, "a larger cache,\nsee 41", verify=run_with("again", record={"kv_bytes": 2**30})
    )
    place = find_baseline("main")
    assert (place / RECORDS_FILE).read_bytes() == (more / RECORDS_FILE).read_bytes()
    assert read_side(place).observed[GREW].size("kv_bytes") == 2**30
    first, second = read_acceptances(place)
    assert (first.accepted, first.reason, first.changes) == (
        "2027-01-02T06:07:08+00:00", "the first", None,
    )  # fmt: skip
    assert (second.reason, second.verified) == (
        "a larger cache, see 41",
        str(more.parent / "again"),
    )
    assert second.changes is not None
    assert list(second.changes["regressed"]) == [GREW]
    assert first.digest != second.digest


def test_the_same_run_has_the_same_digest(run_with: Callable[..., Path]) -> None:
    digests = {accept_baseline(run_with(name), "why", name=name).digest for name in ("a", "b")}
    assert len(digests) == 1
    assert baseline_names() == ["a", "b"]


def test_a_baseline_of_another_machine_may_be_replaced_and_that_is_said(
    run_with: Callable[..., Path],
) -> None:
    accept_baseline(RUN, "here")
    header = json.loads((RUN / RUN_FILE).read_text())
    header["fingerprint"]["name"] = "another CPU"
    accept_baseline(run_with("elsewhere", header=header), "moved")
    assert len(read_acceptances(Path("attnprof-baselines/main"))) == 2


def test_a_second_run_that_disagrees_is_refused_and_nothing_is_kept(
    run_with: Callable[..., Path],
) -> None:
    other = run_with("other", record={"kv_bytes": 2**30})
    with pytest.raises(CannotMeasureError, match=f"disagree on {GREW}.*KV cache regressed"):
        accept_baseline(RUN, "why", verify=other)
    with pytest.raises(UsageError, match="cannot verify itself"):
        accept_baseline(RUN, "why", verify=RUN)
    assert baseline_names() == []


def test_a_second_run_of_which_nothing_can_be_told_verifies_nothing(
    run_with: Callable[..., Path],
) -> None:
    single = [json.loads(line) for line in (RUN / RECORDS_FILE).read_text().splitlines()]
    runs = run_with("one"), run_with("two")
    for run in runs:
        lines = [
            {**one, "sample_launch": [1] * len(one["samples_s"]), "kv_bytes": None,
             "peak_activation_bytes": None}
            for one in single
        ]  # fmt: skip
        (run / RECORDS_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    with pytest.raises(CannotMeasureError, match="too noisy to tell"):
        accept_baseline(runs[0], "why", verify=runs[1])
    assert baseline_names() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"header": {"finished": None}}, "is not finished", id="interrupted"),
        pytest.param({"header": {"format": 9}}, "format 9", id="of another format"),
        pytest.param({"record": {"samples_s": [-1.0] * 10}}, "samples_s", id="negative times"),
        pytest.param({"record": {"format": 2}}, "format is 2", id="a record of another format"),
    ],
)
def test_a_run_that_is_none_becomes_no_baseline(
    run_with: Callable[..., Path], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        accept_baseline(run_with("bad", **changes), "why")
    assert baseline_names() == []


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", "/root", ".hidden", "a\nb", "x" * 101])
def test_a_name_never_leaves_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no name of a baseline"):
        accept_baseline(RUN, "why", name=name)
    with pytest.raises(UsageError, match="no name of a baseline"):
        find_baseline(name)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_without_a_reason_nothing_is_accepted(folder: Path, reason: str) -> None:
    with pytest.raises(UsageError, match="for a reason"):
        accept_baseline(RUN, reason)


def test_a_changed_baseline_is_found_out(folder: Path) -> None:
    accept_baseline(RUN, "why")
    records = Path("attnprof-baselines/main") / RECORDS_FILE
    records.write_text(records.read_text().replace("0.0", "0.1", 1))
    with pytest.raises(UsageError, match="not those that were accepted"):
        find_baseline("main")
    accept_baseline(RUN, "accepted anew")
    find_baseline("main")


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ("", "is empty"),
        ('{"format": 1', "cut in half"),
        ('{"format": 1}\n', "accepted is missing"),
        ("nonsense\n{}\n", "line 1 is not a JSON object"),
    ],
)
def test_a_broken_history_is_an_error_and_is_kept(folder: Path, history: str, problem: str) -> None:
    accept_baseline(RUN, "why")
    path = Path("attnprof-baselines/main") / ACCEPTANCES_FILE
    path.write_text(history)
    for use in (lambda: find_baseline("main"), lambda: accept_baseline(RUN, "again")):
        with pytest.raises(UsageError, match=problem):
            use()
    assert path.read_text() == history


def test_the_commands_accept_and_show(folder: Path) -> None:
    accepted = attnprof("baseline", "accept", str(RUN), "--reason", "release 1.2")
    assert (accepted.returncode, accepted.stdout) == (0, "")
    assert "26 workloads" in accepted.stderr
    shown = attnprof("baseline", "show")
    assert "release 1.2" in shown.stdout
    document = json.loads(attnprof("baseline", "show", "main", "--format", "json").stdout)
    assert document["baselines"][0]["acceptances"][0]["reason"] == "release 1.2"
    unknown = attnprof("baseline", "show", "mian")
    assert unknown.returncode == 2
    assert "did you mean 'main'?" in unknown.stderr
    assert attnprof("baseline", "accept", str(RUN)).returncode == 2


def test_a_run_is_compared_with_a_baseline_by_its_name(run_with: Callable[..., Path]) -> None:
    accept_baseline(RUN, "why")
    grown = run_with("grown", record={"kv_bytes": 2**30})
    found = attnprof("compare", "--baseline", "main", str(grown), "--format", "json")
    document = json.loads(found.stdout)
    assert (found.returncode, document["base"]["path"]) == (1, "attnprof-baselines/main")
    regressed = [w["workload_id"] for w in document["workloads"] if w["verdict"] == "regressed"]
    assert regressed == [GREW]
    for wrong in (["--baseline", "main", "a", "b"], ["--baseline", "mian", "a"], ["a"]):
        refused = attnprof("compare", *wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "fix" in refused.stderr
