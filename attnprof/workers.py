"""The parent side of measuring: starts workers, talks with them, ends those that hang."""

import contextlib
import importlib.util
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

from attnprof import errors as attnprof_errors
from attnprof.devices.environment import default_threads, worker_environment
from attnprof.errors import AttnprofError, CannotMeasureError
from attnprof.interpreters import Interpreter
from attnprof.worker import MAX_PACKET_BYTES, PROTOCOL, read_message, write_message
from attnprof.worker_processes import Process, SpawnedProcess, kill_group, start

POLL_S = 0.2  # how soon a wish to stop is heard
START_TIMEOUT_S = 300.0  # torch is slow to load from a cold disk
EXIT_TIMEOUT_S = 5.0
DUMP_TIMEOUT_S = 2.0
TAIL_BYTES = 16_384
PRELOADED = {"cpu": ("attnprof.devices.cpu",), "auto": ("attnprof.devices.cpu",)}

_INNERMOST = re.compile(
    r'Current thread.*\n\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<in>.*)'
)


class WorkerLostError(Exception):
    """A worker ended or hung instead of answering."""

    def __init__(self, status: str, reason: str, phase: str | None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.phase = phase


class ServerLostError(WorkerLostError):
    """A worker ended because the process that starts workers did: no fault of what it ran."""

    def __init__(self, phase: str | None = None) -> None:
        super().__init__("crashed", "the process that starts workers has ended", phase)


class StopRequestedError(Exception):
    """The user wants the sweep to stop."""


class _ForkedProcess:
    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid

    def exit_code(self, timeout_s: float) -> int | None:
        return self._server.exit_code(self.pid, timeout_s)

    def kill(self) -> None:
        self._server.kill(self.pid)

    @property
    def is_orphan(self) -> bool:
        return self._server.has_ended and self._server.exit_code(self.pid, 0.0) is None


class Worker:
    """A process with a device in it, and the channel to it."""

    def __init__(
        self,
        process: Process,
        requests: BinaryIO,
        answers: BinaryIO,
        errors: IO[bytes],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.launch = -1
        self.kind = ""
        self.free_bytes: int | None = None
        self.ruled_round: int | None = None  # in which it has last read the rulers
        self._process = process
        self._requests = requests
        self._errors = errors
        self._should_stop = should_stop
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(answers,), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self, answers: BinaryIO) -> None:
        """In a thread, so that waiting with a deadline is the same on every system."""
        with answers, contextlib.suppress(OSError, ValueError):
            while (message := read_message(answers)) is not None:
                self._messages.put(message)
        self._messages.put(None)

    def ask(
        self,
        request: dict[str, Any],
        limit_s: Callable[[str], float],
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> dict[str, Any]:
        """The worker's answer.

        Args:
            limit_s: How long each phase may take; the phase before the first is the command.
            on_phase: Told of every phase that begins.

        Raises:
            WorkerLostError: It ended, or exceeded the limit and has been ended.
            StopRequestedError: ``should_stop`` said so.
            AttnprofError: The device said so.
        """
        phase = str(request["command"])
        deadline = time.monotonic() + limit_s(phase)
        try:
            write_message(self._requests, request)
        except OSError:
            raise self._ended(phase) from None
        while True:
            if self._should_stop():
                raise StopRequestedError
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._hangs(phase, limit_s(phase))
            try:
                message = self._messages.get(timeout=min(left_s, POLL_S))
            except queue.Empty:
                continue
            if message is None:
                raise self._ended(phase)
            if "error" in message:
                raise _error_of(message)
            if "entered" not in message:
                return message
            phase = message["entered"]
            deadline = time.monotonic() + limit_s(phase)
            on_phase(phase)

    def close(self) -> None:
        """Hang up; a worker that does not leave by itself is ended."""
        with contextlib.suppress(OSError):
            self._requests.close()
        if self._process.exit_code(EXIT_TIMEOUT_S) is None:
            self._process.kill()
            self._process.exit_code(EXIT_TIMEOUT_S)
        self._errors.close()

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def _ended(self, phase: str) -> WorkerLostError:
        code = self._process.exit_code(EXIT_TIMEOUT_S)
        if self._process.is_orphan:
            return ServerLostError(phase)
        if code is None:
            self._process.kill()
            reason = "closed its channel and lived on"
        elif code < 0:
            reason = f"killed by signal {-code} ({_signal_name(-code)})"
            if -code == getattr(signal, "SIGKILL", 9):
                reason = f"killed by signal {-code} (out of host memory?)"
        else:
            reason = f"exited with status {code} without an answer"
        last = _last_words(self._tail())
        return WorkerLostError("crashed", f"{reason}: {last}" if last else reason, phase)

    def _hangs(self, phase: str, limit_s: float) -> WorkerLostError:
        where = self._where_it_is()
        self._process.kill()
        self._process.exit_code(EXIT_TIMEOUT_S)
        reason = f"no answer within {limit_s:.3g} s of phase {phase}"
        return WorkerLostError("timeout", f"{reason}; it was {where}" if where else reason, phase)

    def _where_it_is(self) -> str | None:
        """The innermost line of Python that a hanging worker is at, by its own account."""
        if not hasattr(signal, "SIGUSR1"):
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._process.pid, signal.SIGUSR1)
        give_up = time.monotonic() + DUMP_TIMEOUT_S
        while time.monotonic() < give_up:
            found = _INNERMOST.search(self._tail())
            if found is not None:
                return f"in {found['in']} ({Path(found['file']).name}:{found['line']})"
            time.sleep(0.02)
        return None

    def _tail(self) -> str:
        """The end of what it printed. Its offset is shared with the worker, so it is not moved."""
        self._errors.flush()
        size = os.fstat(self._errors.fileno()).st_size
        if hasattr(os, "pread"):
            tail = os.pread(self._errors.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        else:
            self._errors.seek(max(0, size - TAIL_BYTES))
            tail = self._errors.read(TAIL_BYTES)
        return tail.decode("utf-8", "replace")


def _error_of(message: dict[str, Any]) -> AttnprofError:
    kind = getattr(attnprof_errors, str(message["error"]), CannotMeasureError)
    if kind not in (attnprof_errors.UsageError, CannotMeasureError):
        return CannotMeasureError(str(message["problem"]), str(message["fix"]))
    return kind(str(message["problem"]), str(message["fix"]))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _last_words(printed: str) -> str:
    """What a worker printed that tells most of its end: the frame of a fatal error, the last line
    of a traceback, else nothing."""
    found = _INNERMOST.search(printed)
    if found is not None:
        return f"in {found['in']} ({Path(found['file']).name}:{found['line']})"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1][:200] if lines and "Traceback" in printed else ""


class ForkServer:
    """A process that has loaded the libraries and run nothing, from which workers are forked."""

    def __init__(
        self,
        environment: dict[str, str],
        modules: tuple[str, ...],
        interpreter: Interpreter | None = None,
    ) -> None:
        self._ended: dict[int, int] = {}
        self._hung_up = False
        self._changed = threading.Condition()
        self._born: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = start(
                ["serve", str(os.getpid()), str(theirs.fileno()), *modules],
                environment,
                interpreter,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def wait_until_ready(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until the libraries are loaded."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up:
            if should_stop():
                raise StopRequestedError
            try:
                if self._ready.get(timeout=POLL_S) is not None:
                    return
            except queue.Empty:
                continue
            break
        raise CannotMeasureError(
            "the process that starts workers did not come up",
            "try --launch spawn, which starts each worker by itself",
        )

    def fork(self, should_stop: Callable[[], bool] = lambda: False) -> Worker:
        """A fresh worker."""
        asked, ask_end = os.pipe()
        answer_end, answered = os.pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - the worker closes it
        requests, answers = os.fdopen(ask_end, "wb"), os.fdopen(answer_end, "rb")
        try:
            socket.send_fds(
                self._control, [b'{"command":"fork"}'], [asked, answered, errors.fileno()]
            )
            pid = self._born.get(timeout=EXIT_TIMEOUT_S)
        except (OSError, queue.Empty):
            for stream in (requests, answers, errors):
                stream.close()
            raise ServerLostError from None
        finally:
            os.close(asked)
            os.close(answered)
        return Worker(_ForkedProcess(self, pid), requests, answers, errors, should_stop)

    def kill(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"command": "kill", "pid": pid}).encode())

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ended or self._hung_up, timeout_s)
            return self._ended.get(pid)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(EXIT_TIMEOUT_S)
        kill_group(self._popen)
        self._popen.wait()
        self._control.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while packet := self._control.recv(MAX_PACKET_BYTES):
                message = json.loads(packet)
                if "born" in message:
                    self._born.put(message["born"])
                elif "ended" in message:
                    with self._changed:
                        self._ended[message["ended"]] = message["code"]
                        self._changed.notify_all()
                else:
                    self._ready.put(message)
        with self._changed:
            self._hung_up = True
            self._changed.notify_all()
        self._ready.put(None)


def spawn_worker(
    environment: dict[str, str],
    should_stop: Callable[[], bool] = lambda: False,
    interpreter: Interpreter | None = None,
) -> Worker:
    """A worker that starts from nothing, in another Python where one is named."""
    return worker_from(["work", str(os.getpid())], environment, should_stop, interpreter)


def worker_from(
    arguments: list[str],
    environment: dict[str, str],
    should_stop: Callable[[], bool],
    interpreter: Interpreter | None = None,
) -> Worker:
    """A worker that a command of its own starts, its streams its channel."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the worker closes it
    popen = start(
        arguments,
        environment,
        interpreter,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    assert popen.stdin is not None and popen.stdout is not None
    return Worker(
        SpawnedProcess(popen),
        popen.stdin,  # type: ignore[arg-type]
        popen.stdout,  # type: ignore[arg-type]
        errors,
        should_stop,
    )


def can_fork(device: str) -> bool:
    """Whether fresh workers are forked: where a fork is safe, and the device is not initialised
    by loading its libraries."""
    return sys.platform == "linux" and device.split("?")[0] in ("auto", "cpu", "synthetic")


class Launcher:
    """Starts workers with the device open in them, forked where that is possible.

    Args:
        interpreter: The Python that they run in; None for this one.
    """

    def __init__(
        self,
        device: str,
        *,
        threads: int | None = None,
        settings: dict[str, Any] | None = None,
        allocator: str = "pinned",
        launch_kind: str | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        first_launch: int = 0,
        interpreter: Interpreter | None = None,
    ) -> None:
        self.device = device
        self.interpreter = interpreter
        self.threads = threads or default_threads()
        self.settings = settings or {}
        self.environment = worker_environment(self.threads, allocator)
        self.launch_kind = launch_kind or ("fork" if can_fork(device) else "spawn")
        self.num_launches = first_launch
        self._should_stop = should_stop
        self._server: ForkServer | None = None
        self.start_cpu_s: list[float] = []

    @property
    def server_pid(self) -> int | None:
        """The process from which workers are forked; None while there is none."""
        return None if self._server is None else self._server.pid

    def start(self) -> Worker:
        """A worker with its device open.

        Raises:
            CannotMeasureError: The device is not there.
            WorkerLostError: It ended while it opened the device; also the process that starts
                workers may have, and is started anew the next time.
        """
        environment = {**os.environ, **self.environment}
        if self.launch_kind == "fork":
            if self._server is not None and self._server.has_ended:
                self.close()
            if self._server is None:
                modules = _preloaded(self.device, self.interpreter)
                self._server = ForkServer(environment, modules, self.interpreter)
                self._server.wait_until_ready(self._should_stop)
            worker = self._server.fork(self._should_stop)
        else:
            worker = spawn_worker(environment, self._should_stop, self.interpreter)
        worker.launch, self.num_launches = self.num_launches, self.num_launches + 1
        request = {
            "command": "open",
            "device": self.device,
            "threads": self.threads,
            "settings": self.settings,
        }
        try:
            opened = worker.ask(request, lambda phase: START_TIMEOUT_S)
        except BaseException:
            worker.kill()
            raise
        if opened.get("protocol") != PROTOCOL:
            worker.close()
            raise CannotMeasureError(
                f"a worker speaks protocol {opened.get('protocol', 0)}, and this attnprof "
                f"{PROTOCOL}",
                "measure both sides with the same attnprof",
            )
        self.start_cpu_s.append(opened["cpu_s"])
        worker.kind = opened["kind"]
        if self.device == "auto":
            self.device = worker.kind
            if self.launch_kind == "fork" and not can_fork(self.device):
                worker.close()
                self.close()
                self.launch_kind = "spawn"
                return self.start()
        worker.free_bytes = opened["free_bytes"]
        return worker

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _preloaded(device: str, interpreter: Interpreter | None) -> tuple[str, ...]:
    """What a fork server loads: nothing where torch is missing, so that opening can say so.

    Of another Python it is not known from here; its server leaves out what it lacks.
    """
    known = interpreter is not None or importlib.util.find_spec("torch") is not None
    return PRELOADED.get(device, ()) if known else ()
