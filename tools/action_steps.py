"""The steps of a composite action -> a script's exit code, as a runner would have it.

    python tools/action_steps.py action.yml --workspace CHECKOUT [--input NAME=VALUE ...]

Reads the steps from the file itself and runs each with bash as GitHub's runner does, with its
variables and files. Knows no more of the expressions than our own action uses: a name, a text,
`==` and `||`. Prints the step summary last.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.S)


@dataclass
class Outcome:
    """How the steps ended, and what they told the runner."""

    exit_code: int
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""


def value_of(expression: str, names: Mapping[str, str]) -> str:
    """What an expression is: ``true`` and ``false`` of a comparison, nothing of an unknown name.

    >>> value_of("inputs.a || 'b'", {"inputs.a": ""}), value_of("inputs.a == ''", {"inputs.a": ""})
    ('b', 'true')
    """
    found = ""
    for alternative in expression.split("||"):
        one, is_compared, other = alternative.partition("==")
        found = _term(one, names)
        if is_compared:
            found = "true" if found == _term(other, names) else "false"
        if found not in ("", "false"):
            break
    return found


def _term(text: str, names: Mapping[str, str]) -> str:
    text = text.strip()
    if re.fullmatch(r"'[^']*'", text):
        return text[1:-1]
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", text):
        raise ValueError(f"{text!r} is more than a name or a text")
    return names.get(text, "")


def filled_in(text: str, names: Mapping[str, str]) -> str:
    """``text`` with its expressions replaced."""
    return _EXPRESSION.sub(lambda found: value_of(found[1], names), text)


def run_steps(
    action: Path,
    workspace: Path,
    temporary: Path,
    inputs: Mapping[str, str],
    event: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the steps of ``action`` in ``workspace`` until one fails.

    Args:
        temporary: An empty folder, in place of the runner's.
        event: Names of the event, such as ``github.event.before``.
    """
    content: dict[str, Any] = yaml.safe_load(action.read_text(encoding="utf-8"))
    unknown = set(inputs) - set(content["inputs"])
    if unknown:
        raise ValueError(f"the action has no input {', '.join(sorted(unknown))}")
    names = {f"inputs.{key}": str(one.get("default", "")) for key, one in content["inputs"].items()}
    names |= {f"inputs.{key}": value for key, value in inputs.items()}
    names |= {"runner.temp": str(temporary), "github.action_path": str(action.resolve().parent)}
    names |= event or {}
    outcome = Outcome(0)
    summary = temporary / "summary.md"
    summary.touch()
    for number, step in enumerate(content["runs"]["steps"]):
        if "if" in step and filled_in(step["if"], names) in ("", "false"):
            continue
        sys.stderr.write(f"::group::{step['name']}\n")
        output = temporary / f"output-{number}"
        output.touch()
        script = temporary / f"step-{number}.sh"
        script.write_text(filled_in(step["run"], names), encoding="utf-8")
        given = {key: filled_in(str(text), names) for key, text in step.get("env", {}).items()}
        environment = {
            **os.environ,
            **given,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_WORKSPACE": str(workspace),
            "RUNNER_TEMP": str(temporary),
        }
        ended = subprocess.run([*BASH, str(script)], cwd=workspace, env=environment, check=False)
        told = dict(line.split("=", 1) for line in output.read_text().splitlines())
        outcome.outputs[step["id"]] = told
        names |= {f"steps.{step['id']}.outputs.{key}": value for key, value in told.items()}
        if ended.returncode != 0:
            outcome.exit_code = ended.returncode
            break
    outcome.summary = summary.read_text(encoding="utf-8")
    return outcome


def main() -> None:
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    reader.add_argument("action", type=Path)
    reader.add_argument("--workspace", type=Path, default=Path.cwd())
    reader.add_argument("--input", action="append", default=[], metavar="NAME=VALUE")
    typed = reader.parse_args()
    inputs = dict(one.split("=", 1) for one in typed.input)
    with tempfile.TemporaryDirectory() as temporary:
        outcome = run_steps(typed.action, typed.workspace.resolve(), Path(temporary), inputs)
    sys.stdout.write(outcome.summary)
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()
