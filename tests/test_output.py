"""Standard output that cannot be written to: one error, exit code 3, whatever was asked for."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = ROOT / "reports" / "quick"
COMMANDS = (
    "--help",
    "sweep --help",
    "--version",
    "--show-completion bash",
    "show gpus",
    f"compare {shlex.quote(str(QUICK))} {shlex.quote(str(QUICK))} --format json",
    "estimate llama-3.1-8b --gpu h100-sxm --format json",
    "baseline show --format json",
)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.replace(str(ROOT), ""))
@pytest.mark.parametrize(
    ("to", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")]
)
def test_output_that_cannot_be_written_is_said_and_is_no_bug(
    command: str, to: str, why: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m attnprof {command} {to}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == (
        f"error cannot write to standard output: {why}\n"
        "  fix send it to a terminal, a pipe or a file\n"
    )


@pytest.mark.parametrize(
    "command", ["sweep", "import", "report", "baseline show --folder", "audit"]
)
def test_a_path_that_no_file_can_have_is_no_bug(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attnprof", *command.split(), "x" * 5000],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "name too long" in done.stderr and "  fix " in done.stderr
