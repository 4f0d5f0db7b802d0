"""The action's steps and the GitLab job, run as scripts in clean clones: once green, once red.

The fault is a real slower kernel: the change pins math where flash was. Environments take torch
and the rest from the one that runs the tests, so that nothing is fetched.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import Failure, JUnitXml

from tests.ci_pages import ROOT, snippet
from tools.action_steps import BASH, Outcome, run_steps

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no git checkout"
    ),
]

SLOWER = "prefill-causal-flash-float32-b1-s512-h8-d64-l1"
STEADY = "prefill-causal-eager-float32-b1-s512-h8-d64-l1"
AXES = "--axis backend=flash,eager --axis q_len=512 --axis num_q_heads=8 --axis head_dim=64"
# What a loaded machine decides soon: math takes several times as long as flash.
THRESHOLDS = "format: 1\nthresholds: {latency: 40%}\n"
BUDGET = "90s"
# In the place of pip: the checkout itself, then whatever else the tests have.
SETUP = """
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\\n' "$PWD" '{packages}' > "$site/side.pth"
printf '#!/bin/sh\\nexec "$(dirname "$0")/python" -m attnprof "$@"\\n' > "$VIRTUAL_ENV/bin/attnprof"
chmod +x "$VIRTUAL_ENV/bin/attnprof"
""".format(packages=sysconfig.get_path("purelib"))


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout as a commit, and after it one that pins math for flash."""
    made = tmp_path_factory.mktemp("repository")
    for name in git(ROOT, "ls-files", "-co", "--exclude-standard", "-z").split("\0"):
        if name.split("/")[0] in ("attnprof", "profiles", "pyproject.toml", "action.yml"):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, made / name)
    git(made, "init", "--quiet", "--initial-branch=main")
    git(made, "add", ".")
    git(made, "commit", "--quiet", "-m", "What was there before")
    git(made, "branch", "before")
    kernels = made / "attnprof" / "backends" / "sdpa.py"
    text = kernels.read_text(encoding="utf-8")
    slower = text.replace(
        '"flash": SDPBackend.FLASH_ATTENTION', '"flash": SDPBackend.MATH'
    ).replace(
        '"aten::_scaled_dot_product_flash_attention"', '"aten::_scaled_dot_product_attention_math"'
    )
    assert slower.count("MATH") == text.count("MATH") + 1
    kernels.write_text(slower, encoding="utf-8")
    git(made, "commit", "--quiet", "-a", "-m", "Use the math kernel for flash")
    return made


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    made = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository), str(made))
    return made


def run_action(clone: Path, tmp_path: Path, **inputs: str) -> Outcome:
    own = tmp_path / "attnprof"
    own.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(clone)!r})\n"
        "from attnprof.cli import main\nmain()\n"
    )
    own.chmod(0o755)
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    temporary = tmp_path / "runner"
    temporary.mkdir()
    given = {
        "setup": SETUP,
        "attnprof": str(own),
        "python": sys.executable,
        "arguments": AXES,
        "budget": BUDGET,
        "thresholds": str(tmp_path / "thresholds.yaml"),
        **inputs,
    }
    return run_steps(clone / "action.yml", clone, temporary, given)


def verdicts(folder: Path) -> dict[str, str]:
    document = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert document["paired"]
    return {one["workload_id"]: one["verdict"] for one in document["workloads"]}


def red_in_junit(folder: Path) -> list[str]:
    document = JUnitXml.fromfile(str(folder / "junit.xml"))
    return [
        str(case.name)
        for suite in document
        for case in suite
        if any(isinstance(result, Failure) for result in case.result)
    ]


def test_the_steps_are_red_where_flash_became_math_and_name_it(
    clone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = run_action(clone, tmp_path, **{"base-ref": "HEAD~1"})
    said = capfd.readouterr().err
    assert outcome.exit_code == 1, said
    assert outcome.outputs["gate"] == {"output": "attnprof-gate", "exit-code": "1"}
    folder = clone / "attnprof-gate"
    assert verdicts(folder)[SLOWER] == "regressed"
    assert verdicts(folder)[STEADY] != "regressed"
    assert red_in_junit(folder) == [SLOWER]
    assert f"::error title={SLOWER}::latency regressed" in said
    assert SLOWER in outcome.summary
    assert outcome.summary == (folder / "comment.md").read_text(encoding="utf-8")


def test_the_steps_are_green_where_nothing_changed(clone: Path, tmp_path: Path) -> None:
    git(clone, "checkout", "--quiet", "HEAD~1")
    outcome = run_action(clone, tmp_path, **{"base-ref": "origin/before"})
    assert outcome.exit_code == 0
    folder = clone / "attnprof-gate"
    assert set(verdicts(folder)) == {SLOWER, STEADY}
    assert red_in_junit(folder) == []
    assert "nothing got worse" in outcome.summary


def test_the_gitlab_job_is_red_likewise(clone: Path, tmp_path: Path) -> None:
    job: dict[str, Any] = yaml.safe_load(snippet("On GitLab"))["attention"]
    environment = {
        **os.environ,
        **job["variables"],
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": git(clone, "rev-parse", "HEAD~1"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SETUP": SETUP,
        "ARGUMENTS": f"{AXES} --budget {BUDGET}",
    }
    (tmp_path / "python3").symlink_to(sys.executable)
    script = tmp_path / "job.sh"
    script.write_text("\n".join(job["script"]), encoding="utf-8")
    ended = subprocess.run([*BASH, str(script)], cwd=clone, env=environment, check=False)
    assert ended.returncode == 1
    (written,) = job["artifacts"]["paths"]
    assert red_in_junit(clone / written) == [SLOWER]
    assert (clone / job["artifacts"]["reports"]["junit"]).is_file()


def test_a_base_that_is_not_there_is_an_error_and_measures_nothing(
    clone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for ref in ("", "no-such-branch", "--upload-pack=touch harm"):
        shutil.rmtree(tmp_path / "runner", ignore_errors=True)
        outcome = run_action(clone, tmp_path, **{"base-ref": ref})
        assert outcome.exit_code == 2
        assert "to hold against: set base-ref" in capfd.readouterr().err
    assert not (clone / "attnprof-gate").exists()
    assert not (clone / "harm").exists()
