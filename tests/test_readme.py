"""The README's commands print what the README says: ``pytest --update-golden`` writes it anew.

A block ``console`` holds commands after ``$`` and what they print at 100 columns; a last line ``…``
stands for the rest.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```$", re.M | re.S)
SHOWN_LINES = 45

COMMANDS = [found["command"] for found in BLOCK.finditer(README.read_text(encoding="utf-8"))]


def printed(command: str, tmp_path: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "attnprof"
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={
            "PATH": "",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
            "ATTNPROF_PROFILES": str(tmp_path),
            "HOME": str(tmp_path),
        },
    )
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_the_readme_says(
    command: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    output = printed(command, tmp_path)
    text = README.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        lines = output.splitlines(keepends=True)
        shown = output if len(lines) <= SHOWN_LINES else "".join(lines[:SHOWN_LINES]) + "…\n"
        text = BLOCK.sub(
            lambda found: (
                f"```console\n$ {command}\n{shown}```" if found["command"] == command else found[0]
            ),
            text,
        )
        README.write_text(text, encoding="utf-8")
    said = next(f["output"] for f in BLOCK.finditer(text) if f["command"] == command)
    beginning = said.removesuffix("…\n")
    assert beginning
    assert output.startswith(beginning)
    assert said.endswith("…\n") or output == said


def test_the_readme_shows_what_it_prints() -> None:
    assert len(COMMANDS) >= 2
