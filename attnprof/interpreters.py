"""What a user types for one side of a comparison -> a Python that starts, and its attnprof."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.errors import CannotMeasureError, UsageError, nearest_path
from attnprof.worker import PROTOCOL

ELSEWHERE = Path(__file__).parent / "elsewhere.py"
HANDSHAKE_TIMEOUT_S = 60.0  # a cold disk, an environment that has to be made first
_FORMS = "name a python, a folder with attnprof or a venv in it, or 'env PYTHONPATH=... python'"


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A command that starts a Python, and the attnprof that runs in it.

    Args:
        typed: As the user named it.
        environment: Variables to set for it, beyond those that it inherits.
        python: Its version.
        attnprof: Version of the attnprof that it runs, which lies at ``path``.
    """

    typed: str
    command: tuple[str, ...]
    environment: dict[str, str]
    executable: str
    python: str
    attnprof: str
    path: str

    def worker_command(self, arguments: list[str]) -> list[str]:
        """What starts a worker, or a server of workers, in it."""
        return [*self.command, "-P", str(ELSEWHERE), *arguments]


def find_interpreter(typed: str) -> Interpreter:
    """Start what the user named, and have it tell of itself.

    Args:
        typed: A Python, a folder with a checkout of attnprof or with a virtual environment in it,
            or a command that becomes a Python, such as ``env PYTHONPATH=/a/checkout python``.

    Raises:
        UsageError: Nothing starts by that name, what starts is no Python 3.11, or it runs in a
            process of its own, whose end nobody would hear of.
        CannotMeasureError: It lacks a package, or its attnprof speaks another protocol.
    """
    command, environment = _command_of(typed)
    told = _ask(typed, command, environment)
    if os.name == "posix" and told["parent_pid"] != os.getpid():
        raise UsageError(
            f"{typed!r} starts Python in a process of its own",
            f"name that Python itself: {told['executable']}",
        )
    if "missing" in told:
        raise CannotMeasureError(
            f"attnprof does not run in {typed!r}: {told['missing']}",
            "install there what attnprof needs, or attnprof itself",
        )
    if told["protocol"] != PROTOCOL:
        raise CannotMeasureError(
            f"attnprof {told['attnprof']} in {typed!r} speaks protocol {told['protocol']} with "
            f"its workers, and this one speaks {PROTOCOL}",
            "take attnprof out of that environment: this one is then run there",
        )
    return Interpreter(
        typed=typed,
        command=command,
        environment=environment,
        executable=str(told["executable"]),
        python=str(told["python"]),
        attnprof=str(told["attnprof"]),
        path=str(told["path"]),
    )


def _command_of(typed: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command, and what it needs in its environment."""
    try:
        words = tuple(shlex.split(typed))
    except ValueError as error:
        raise UsageError(f"{typed!r} is no command: {error}", _FORMS) from None
    if not words:
        raise UsageError("a side of the comparison is empty", _FORMS)
    folder = Path(typed).expanduser()
    if not folder.is_dir():
        return words, {}
    for python in (folder / "bin" / "python", folder / "Scripts" / "python.exe"):
        if python.exists():
            return (str(python.absolute()),), {}
    if not (folder / "attnprof" / "__init__.py").exists():
        raise UsageError(f"there is neither attnprof nor a Python in {folder}", _FORMS)
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(part for part in (str(folder.resolve()), inherited) if part)
    return (sys.executable,), {"PYTHONPATH": path}


def _ask(typed: str, command: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            [*command, "-P", str(ELSEWHERE), "tell"],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=HANDSHAKE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        hint = nearest_path(Path(command[0]).expanduser()) or _FORMS
        raise UsageError(f"{typed!r} does not start: {error.strerror}", hint) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{typed!r} has not answered within {HANDSHAKE_TIMEOUT_S:g} s", _FORMS
        ) from None
    for line in reversed(ended.stdout.splitlines()):
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and "parent_pid" in told:
            return told
    last = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    raise UsageError(
        f"{typed!r} starts no Python 3.11 or later" + (f": {last.strip()[:200]}" if last else ""),
        _FORMS,
    )
