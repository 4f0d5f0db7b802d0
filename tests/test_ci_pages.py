"""The action and the snippets of docs/ci.md: linted, complete, and without a way in for others."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnprof.verdicts.outputs.files import SUMMARY_VARIABLE
from attnprof.verdicts.thresholds import read_thresholds
from tests.ci_pages import ACTION, PAGE, snippet
from tools.action_steps import filled_in, run_steps

ACTION_CONTENT: dict[str, Any] = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
SCHEMAS = {
    "github-actions": ACTION.read_text(encoding="utf-8"),
    "github-workflows": snippet("On GitHub"),
    "gitlab-ci": snippet("On GitLab"),
}


def lint(schema: str, path: Path) -> subprocess.CompletedProcess[str]:
    """By the copy of the schema that the linter brings: nothing is fetched."""
    linter = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*linter, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_ci_reads_is_valid(schema: str, tmp_path: Path) -> None:
    path = tmp_path / "linted.yml"
    path.write_text(SCHEMAS[schema], encoding="utf-8")
    done = lint(schema, path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ("github-actions", "using: composite", "using: compsite"),
        ("github-workflows", "runs-on:", "run-on:"),
        ("gitlab-ci", "exit_codes: 3", "exit_codes: three"),
    ],
)
def test_the_linter_finds_a_slip(schema: str, right: str, wrong: str, tmp_path: Path) -> None:
    assert SCHEMAS[schema].count(right) == 1
    path = tmp_path / "linted.yml"
    path.write_text(SCHEMAS[schema].replace(right, wrong), encoding="utf-8")
    assert lint(schema, path).returncode == 1


def test_no_step_pastes_an_expression_into_its_script() -> None:
    workflow = yaml.safe_load(snippet("On GitHub"))
    steps = [*ACTION_CONTENT["runs"]["steps"], *workflow["jobs"]["gate"]["steps"]]
    scripts = [step["run"] for step in steps if "run" in step]
    assert len(scripts) == 4
    assert not any("${{" in script for script in scripts)


def test_the_page_explains_every_input_and_no_other() -> None:
    table = PAGE.read_text(encoding="utf-8").split("| Input |")[1].split("\n\n")[0]
    explained = {
        name for row in table.splitlines() for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])
    }
    assert explained == set(ACTION_CONTENT["inputs"])


def test_the_workflow_gives_inputs_that_the_action_has() -> None:
    workflow = yaml.safe_load(snippet("On GitHub"))
    used = next(step for step in workflow["jobs"]["gate"]["steps"] if step.get("uses") == "./")
    assert set(used["with"]) <= set(ACTION_CONTENT["inputs"])
    assert SUMMARY_VARIABLE == "GITHUB_STEP_SUMMARY"


def test_the_thresholds_of_the_page_are_read(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(snippet("Thresholds"), encoding="utf-8")
    found = read_thresholds(path)
    assert len(found.rules) == len(found.allowances) == len(found.limits) == 1


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("inputs.ref || github.event.before", "abc"),
        ("inputs.base == ''", "false"),
        ("inputs.ref == ''", "true"),
        ("inputs.ref || 'usual'", "usual"),
        ("steps.none.outputs.folder", ""),
    ],
)
def test_expressions_are_what_a_runner_makes_of_them(expression: str, expected: str) -> None:
    names = {"inputs.ref": "", "inputs.base": "a || b == ''", "github.event.before": "abc"}
    assert filled_in(f"${{{{ {expression} }}}}", names) == expected


@pytest.mark.parametrize("expression", ["always()", "inputs.a && inputs.b", "'a' != 'b'"])
def test_an_expression_that_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="more than a name or a text"):
        filled_in(f"${{{{ {expression} }}}}", {})


def test_an_input_that_the_action_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no input bace"):
        run_steps(ACTION, tmp_path, tmp_path, {"bace": "main"})
