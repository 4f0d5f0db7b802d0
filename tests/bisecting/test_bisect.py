"""A slowdown planted in a repository of real checkouts comes back by the name of its commit."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.bisecting.bisection import half_way
from attnprof.bisecting.repository import find_commit, git, is_ancestor
from attnprof.bisecting.step import Step, StepPlan, measure_step
from attnprof.workload import Workload
from tests.command import attnprof

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

ROOT = Path(__file__).parents[2]
SYNTHETIC = Path("attnprof/devices/synthetic.py")
WORKLOAD = Workload(backend="flash", q_len=1024, kv_len=1024, num_q_heads=8, num_kv_heads=8)
AXES = ("--axis", "seq_len=1024", "--axis", "heads=8", "--axis", "backend=flash")
DEVICE = "synthetic?noise=0.01&launch=0.01"
NUM_COMMITS = 6
SLOW_FROM = 4


def committed(repository: Path, words: str) -> None:
    git(repository, "add", "--all")
    git(
        repository, "-c", "user.name=A", "-c", "user.email=a@example.com", "-c",
        "commit.gpgsign=false", "commit", "--quiet", "--allow-empty", "-m", words,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This very attnprof in a repository of its own."""
    folder = tmp_path_factory.mktemp("checkout") / "repository"
    for name in ("attnprof", "profiles"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_profiles")
        )
    git(folder, "init", "--quiet", "--initial-branch=main")
    committed(folder, "Begin")
    return folder


@pytest.fixture
def plant(checkout: Path, tmp_path: Path) -> Callable[[Iterable[int]], Path]:
    """Six commits, of which the fourth makes its device slower and some do not run at all."""

    def planted(broken: Iterable[int] = ()) -> Path:
        repository = tmp_path / "repository"
        git(tmp_path, "clone", "--quiet", str(checkout), str(repository))
        whole = (repository / SYNTHETIC).read_text()
        slower = whole.replace("compute_efficiency: float = 0.5", "compute_efficiency: float = 0.4")
        assert slower != whole
        for number in range(1, NUM_COMMITS + 1):
            text = slower if number >= SLOW_FROM else whole
            if number in broken:
                text = f"raise RuntimeError('half done')\n{text}"
            (repository / SYNTHETIC).write_text(text)
            committed(repository, f"Change {number}")
            git(repository, "tag", f"c{number}")
        return repository

    return planted


def bisect(
    repository: Path, *ends: str, more: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    return attnprof(
        "bisect", *ends, "--workload", WORKLOAD.workload_id, *AXES, "--device", DEVICE,
        "--repository", str(repository), "--format", "json",
        "--output", str(repository.parent / "measured"), *more,
    )  # fmt: skip


@pytest.mark.slow
def test_the_planted_commit_is_found_past_commits_that_do_not_run_and_nothing_is_left_behind(
    plant: Callable[..., Path],
) -> None:
    repository = plant(broken=[2])
    (repository / "notes.txt").write_text("not committed")
    before = git(repository, "rev-parse", "HEAD"), git(repository, "status", "--porcelain")
    done = bisect(repository, "c1", "c6")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["first_bad"]["subject"] == "Change 4"
    assert document["ends"]["outcome"] == "bad"
    assert document["ends"]["ratio"] == pytest.approx(1.25, abs=0.05)
    outcomes = {step["subject"]: step["outcome"] for step in document["steps"]}
    assert outcomes["Change 4"] == "bad"
    assert outcomes["Change 3"] == "good"
    assert outcomes.get("Change 2", "skipped") == "skipped"
    assert before == (
        git(repository, "rev-parse", "HEAD"), git(repository, "status", "--porcelain")
    )  # fmt: skip
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not git(repository, "for-each-ref", "refs/bisect")


@pytest.mark.slow
def test_commits_that_do_not_run_beside_the_first_bad_one_leave_it_among_them(
    plant: Callable[..., Path],
) -> None:
    done = bisect(plant(broken=[2, 3]), "c1", "c6")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["first_bad"] is None
    assert {one["subject"] for one in document["candidates"]} == {
        "Change 2",
        "Change 3",
        "Change 4",
    }
    skipped = [step for step in document["steps"] if step["outcome"] == "skipped"]
    assert {step["subject"] for step in skipped} == {"Change 2", "Change 3"}
    assert all("half done" in step["reason"] for step in skipped)


@pytest.mark.slow
def test_ends_that_do_not_differ_are_not_bisected(plant: Callable[..., Path]) -> None:
    repository = plant()
    done = bisect(repository, "c1", "c3")
    assert done.returncode == 3
    assert not done.stdout
    assert "not worse than the good one" in done.stderr
    steps = (repository.parent / "measured" / "steps.jsonl").read_text().splitlines()
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("broken", "words"), [(1, "no worker of 'the good end'"), (6, "no worker of 'the checkout'")]
)
def test_an_end_that_does_not_run_is_no_verdict(
    plant: Callable[..., Path], broken: int, words: str
) -> None:
    done = bisect(plant(broken=[broken]), "c1", "c6")
    assert done.returncode == 3
    assert f"cannot be told apart: {words}" in done.stderr
    assert "half done" in done.stderr


def test_a_setup_that_fails_skips_the_commit_and_says_how_it_ended(
    plant: Callable[..., Path],
) -> None:
    repository = plant()
    output = repository.parent / "measured"
    output.mkdir()
    plan = StepPlan(
        workload=WORKLOAD.to_json(), metric="latency", good_folder=str(repository),
        tested_folder=str(repository), output=str(output), device=DEVICE,
        setup="echo no compiler; exit 7",
    )  # fmt: skip
    step = measure_step(plan, lambda text: None)
    assert (step.outcome, step.subject) == ("skipped", "Change 6")
    assert step.reason == "the setup ended with 7: no compiler"
    same = measure_step(replace(plan, setup="true"), lambda text: None)
    assert (same.outcome, same.verdict) == ("good", "same")


def test_whatever_goes_wrong_in_a_step_is_no_verdict_on_the_commit(tmp_path: Path) -> None:
    plan = tmp_path / "bisect.json"
    for content in ("{", "{}", '{"workload": 3, "command": []}'):
        plan.write_text(content)
        done = subprocess.run(
            [
                sys.executable, "-c",
                "import sys; from attnprof.bisecting.step import main; main(sys.argv[1])",
                str(plan),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode >= 128  # at which git gives up; below, it takes it for bad


def test_stopping_it_ends_all_of_it_and_keeps_what_was_measured(plant: Callable[..., Path]) -> None:
    repository = plant()
    output = repository.parent / "measured"
    with subprocess.Popen(
        [
            sys.executable, "-m", "attnprof", "bisect", "c1", "c6", "--workload",
            WORKLOAD.workload_id, *AXES, "--device", f"{DEVICE}&pace=0.3",
            "--repository", str(repository), "--output", str(output),
        ],
        stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        assert started.stderr is not None
        for line in started.stderr:
            if "pair 2" in line:
                break
        started.send_signal(signal.SIGINT)
        said = started.stderr.read()
        assert started.wait(60) == 130, said
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert list(output.glob("*/base/visits.jsonl"))


@pytest.mark.parametrize(
    ("ends", "more", "words"),
    [
        (("c1", "nowhere"), (), "no commit 'nowhere'"),
        (("--upload-pack=x", "c6"), (), ""),
        (("c3", "c3"), (), "are one commit"),
        (("c6", "c1"), (), "came before"),
        (("c1", "c6"), ("--metric", "speed"), "no metric"),
        (("c1", "c6"), ("--workload", "prefill-of-nothing"), "has no workload"),
        (("c1", "c6"), ("--python", "no-such-python"), "does not start"),
        (("c1", "c6"), ("--budget", "soon"), "soon"),
    ],
)
def test_a_request_of_no_sense_is_refused(
    plant: Callable[..., Path], ends: tuple[str, ...], more: tuple[str, ...], words: str
) -> None:
    repository = plant()
    done = bisect(repository, *ends, more=more)
    assert done.returncode in (2, 3)
    assert not done.stdout
    assert words in done.stderr
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_folder_in_no_repository_and_one_that_is_not_empty_are_refused(
    plant: Callable[..., Path], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    done = bisect(outside, "c1", "c6")
    assert done.returncode == 2
    assert "no git repository" in done.stderr
    repository = plant()
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "kept").write_text("mine")
    done = bisect(repository, "c1", "c6")
    assert done.returncode == 2
    assert "is not empty" in done.stderr


def test_the_workload_has_to_be_named(tmp_path: Path) -> None:
    done = attnprof("bisect", "HEAD~1", "HEAD")
    assert done.returncode == 2
    assert "--workload" in done.stderr


def test_commits_are_found_by_branch_tag_and_id(plant: Callable[..., Path]) -> None:
    repository = plant()
    by_tag = find_commit(repository, "c6")
    assert find_commit(repository, "main") == by_tag == find_commit(repository, by_tag.id[:12])
    assert by_tag.subject == "Change 6"
    assert is_ancestor(repository, find_commit(repository, "c2"), by_tag)
    assert not is_ancestor(repository, by_tag, find_commit(repository, "c2"))


def test_a_commit_is_bad_from_half_of_the_ends_rise_on() -> None:
    ends = Step(commit="c", subject="", outcome="bad", ratio=1.44)
    assert half_way(ends) == pytest.approx(0.2)
