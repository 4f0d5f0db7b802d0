"""The command line as a user meets it: what it prints, where, and the exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof import cli
from attnprof.errors import CannotMeasureError, UsageError

HEAVY = {"torch", "pandas", "scipy", "numpy", "matplotlib", "pyarrow"}


def attnprof(*args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a shell would."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}
    environment.update(kwargs.pop("env", {}))  # type: ignore[call-overload]
    return subprocess.run(
        [sys.executable, "-m", "attnprof", *args],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        **kwargs,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("sweep", "--help")])
def test_help_and_version_load_nothing_heavy(args: tuple[str, ...]) -> None:
    code = (
        "import sys, json\n"
        f"sys.argv = ['attnprof', *{list(args)!r}]\n"
        "from attnprof.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert not HEAVY & {name.split(".")[0] for name in json.loads(done.stderr)}


def test_an_unknown_command_is_a_usage_error_with_the_nearest_name() -> None:
    done = attnprof("swep")
    assert done.returncode == 2
    assert "sweep" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("a is 3", "write 4"), 2, "error a is 3\n  fix write 4\n"),
        (CannotMeasureError("no such device"), 3, "error no such device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_expected_failure_says_what_and_what_to_do(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code
    assert capsys.readouterr() == ("", words)


def test_a_bug_keeps_its_traceback_in_a_file_that_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == cli.EXIT_BUG
    said = capsys.readouterr().err
    assert "bug of attnprof: ZeroDivisionError: oh" in said
    kept = Path(said.split("report it with ")[1].strip())
    assert "Traceback" in kept.read_text()
    assert "Traceback" not in said
