"""A worker's command line -> a process, which can be waited for, and ended with all of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import attnprof
from attnprof.interpreters import Interpreter


class Process(Protocol):
    """A worker's process."""

    pid: int

    def exit_code(self, timeout_s: float) -> int | None:
        """How it ended, a signal as a negative number; None while it lives."""

    def kill(self) -> None: ...

    @property
    def is_orphan(self) -> bool:
        """Whether the process that started it has ended before it."""


class SpawnedProcess:
    """A process that this one has started itself."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid

    def exit_code(self, timeout_s: float) -> int | None:
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        kill_group(self._popen)

    @property
    def is_orphan(self) -> bool:
        return False


def kill_group(popen: "subprocess.Popen[bytes]") -> None:
    """End a process and what it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
    popen.kill()


def start(
    arguments: list[str],
    environment: dict[str, str],
    interpreter: Interpreter | None = None,
    **streams: Any,
) -> "subprocess.Popen[bytes]":
    """A worker module in a session of its own, which Ctrl-C does not reach: this package's, or
    that of another Python."""
    if interpreter is not None:
        return subprocess.Popen(
            interpreter.worker_command(arguments),
            env={**environment, **interpreter.environment},
            start_new_session=True,
            **streams,
        )
    root = str(Path(attnprof.__file__).parents[1])
    found = dict(environment)
    if "site-packages" not in root:
        found["PYTHONPATH"] = os.pathsep.join(
            part for part in (root, found.get("PYTHONPATH", "")) if part
        )
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "attnprof.worker", *arguments],
        env=found,
        start_new_session=True,
        **streams,
    )
