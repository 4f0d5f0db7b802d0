"""The child side of measuring: messages in, a device at work, messages out.

A worker talks over a channel of its own, in JSON with a length before it, so that what libraries
print cannot disturb it: both their streams end in the parent's file for it.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import re
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO, NoReturn

from attnprof.devices import open_device
from attnprof.devices.base import Cell, Device
from attnprof.errors import (
    AttnprofError,
    OutOfMemoryError,
    UnsupportedError,
)
from attnprof.measured import Check
from attnprof.workload import GROWING, Workload

PROTOCOL = 1  # of the messages; it changes when a worker of before would misunderstand them
MAX_MESSAGE_BYTES = 2**28
MAX_PACKET_BYTES = 2**16
PARENT_POLL_S = 1.0
PARTS_S = 1.0  # at least, for the breakdown of a call
_LENGTH = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1
_SIGNS_OF_FULL_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
_REQUESTED = re.compile(r"tried to allocate (\d+) bytes")


def write_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Send one message: its length, then itself as JSON."""
    body = json.dumps(message).encode()
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end, also where it comes in the middle of a message.

    Raises:
        ValueError: What arrived is not a message.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length:,} bytes")
    body = stream.read(length)
    if len(body) < length:
        return None
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message


def work(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serve one parent until it hangs up. A failure that may have poisoned the device ends it."""
    device: Device | None = None
    while (request := read_message(requests)) is not None:
        try:
            if request["command"] == "open":
                device = _open(request)
                answer = {
                    "kind": device.kind,
                    "free_bytes": device.free_bytes(),
                    "protocol": PROTOCOL,
                }
            else:
                assert device is not None
                answer = _COMMANDS[request["command"]](
                    device, request, lambda phase: write_message(answers, {"entered": phase})
                )
        except AttnprofError as error:
            answer = {
                "error": type(error).__name__,
                "problem": error.problem,
                "fix": error.fix,
            }
        write_message(answers, {"cpu_s": time.process_time(), **answer})
        if answer.get("ends_worker"):
            return


def _open(request: dict[str, Any]) -> Device:
    device = open_device(request["device"], request["threads"], **request["settings"])
    if device.kind == "cpu":
        _limit_data(device.free_bytes())
    return device


def _limit_data(free_bytes: int) -> None:
    """Make an allocation beyond the free memory an error of this process, where Linux can.

    Without it the kernel finds out later, when the pages are touched, and kills whom it likes.
    """
    if sys.platform != "linux" or not free_bytes:
        return
    import resource

    from attnprof.devices.cpu_meters import data_bytes

    used = data_bytes()
    if used is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = used + free_bytes
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


Say = Callable[[str], None]


def _facts(device: Device, request: dict[str, Any], say: Say) -> dict[str, Any]:
    say("ceilings")
    ceilings = device.ceilings(tuple(request["dtypes"]))
    return {"facts": device.facts(), "ceilings": ceilings, "free_bytes": device.free_bytes()}


def _rulers(device: Device, request: dict[str, Any], say: Say) -> dict[str, Any]:
    say("rulers")
    return {"rulers": device.rulers()}


def _overheads(device: Device, request: dict[str, Any], say: Say) -> dict[str, Any]:
    say("overheads")
    found = importlib.import_module("attnprof.workloads.library_generate")
    return {"overheads": found.generate_overheads(device.kind)}


class _Phases:
    """Tells the parent which phase begins, and keeps how long each took and which one failed."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.seconds: dict[str, float] = {}
        self.failed: str | None = None

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._say(name)
        started = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed = name
            raise
        finally:
            elapsed = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed


def visit_request(
    workload: Workload,
    *,
    seed: int,
    first: bool,
    num_samples: int,
    limit_s: float,
    warmup_s: float,
    growth_limit_s: float,
    weighs_energy: bool = False,
) -> dict[str, Any]:
    """What a parent sends for a visit.

    Args:
        first: Check the result and weigh the call too.
        limit_s: Of the timed calls, ``growth_limit_s`` of each growth.
    """
    return {
        "command": "visit",
        "workload": workload.to_json(),
        "seed": seed,
        "first": first,
        "num_samples": num_samples,
        "limit_s": limit_s,
        "warmup_s": warmup_s,
        "growth_limit_s": growth_limit_s,
        "weighs_energy": weighs_energy,
    }


def _visit(device: Device, request: dict[str, Any], say: Say) -> dict[str, Any]:
    """Build, check and weigh (the first time), warm up, take samples, close."""
    phases = _Phases(say)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        found = _visit_phases(device, request, phases)
    except OutOfMemoryError as error:
        found = {
            "status": "out_of_memory",
            "reason": error.problem,
            "requested_bytes": error.requested_bytes,
            "ends_worker": True,
        }
    except UnsupportedError as error:
        found = {"status": "unsupported", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - any failure of a kernel becomes a record
        found = {**_failure(error), "ends_worker": True}
    return {
        "status": "ok",
        "phase": phases.failed,
        **found,
        "phases_s": phases.seconds,
        "started": started,
        "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _visit_phases(device: Device, request: dict[str, Any], phase: _Phases) -> dict[str, Any]:
    workload = Workload.from_json(request["workload"])
    with phase("prepare"):
        cell = device.build(workload, request["seed"])
    try:
        found: dict[str, Any] = {"prepare_s": cell.prepare_s}
        if request["first"]:
            with phase("check"):
                check = cell.check()
            found["check"] = asdict(check)
            if not check.passed:
                found["status"] = "wrong_result"
                found["phase"] = "check"
                found["reason"] = _wrong_words(check)
                return found
        found.update(_timed(cell, workload, request, phase))
        if request["first"]:
            with phase("weigh"):
                found["memory"] = asdict(cell.weigh())
                energy = cell.energy() if request["weighs_energy"] else None
                found["energy"] = None if energy is None else asdict(energy)
            if workload.scope != "op":
                with phase("parts"):
                    parts = cell.parts(max(PARTS_S, request["limit_s"]))
                found["parts"] = [asdict(part) for part in parts]
        found["kernels"] = list(cell.kernels)
        return found
    finally:
        cell.close()


def _wrong_words(check: Check) -> str:
    if check.max_abs_error is None:
        return f"is not finite where {check.reference} is"
    return (
        f"differs from {check.reference} by {check.max_abs_error:.3g}, more than {check.bound:.3g}"
    )


def _timed(
    cell: Cell, workload: Workload, request: dict[str, Any], phase: _Phases
) -> dict[str, Any]:
    if workload.phase in GROWING:
        growths: list[list[dict[str, Any]]] = []
        started = time.perf_counter()
        with phase("measure"):
            while len(growths) < request["num_samples"]:
                points = cell.grow(request["growth_limit_s"])
                growths.append([asdict(point) for point in points])
                if time.perf_counter() - started >= request["limit_s"]:
                    break
        return {"growths": growths}
    with phase("warm-up"):
        warm_up = cell.warm_up(request["warmup_s"])
    with phase("measure"):
        samples = cell.sample(request["num_samples"], request["limit_s"])
    return {"warm_up": asdict(warm_up), "samples": asdict(samples)}


def _failure(error: Exception) -> dict[str, Any]:
    """Torch says in many ways that memory is short; this module has no torch to ask by type."""
    text = str(error).strip()
    lines = text.splitlines() or [""]
    if isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS_OF_FULL_MEMORY):
        requested = _REQUESTED.search(text)
        return {
            "status": "out_of_memory",
            "reason": lines[0] or "out of memory",
            "requested_bytes": int(requested[1]) if requested else None,
        }
    return {"status": "crashed", "reason": f"{type(error).__name__}: {lines[0]}"}


_COMMANDS: dict[str, Callable[[Device, dict[str, Any], Say], dict[str, Any]]] = {
    "facts": _facts,
    "rulers": _rulers,
    "overheads": _overheads,
    "visit": _visit,
}


def die_with(parent_pid: int) -> None:
    """End this process when its parent does, however that ends; Linux sees to it by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)
    elif os.name == "posix":
        threading.Thread(target=_end_after, args=(parent_pid,), daemon=True).start()


def _end_after(parent_pid: int) -> None:
    """A worker that hangs reads no end of its channel, so a thread looks for its parent."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os._exit(1)


def _keep_streams_apart(errors: int) -> None:
    """Nothing to read on standard input; all that is printed goes to the file ``errors``."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    faulthandler.enable(all_threads=True)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)


def run_spawned(parent_pid: int) -> None:
    """A worker whose requests and answers are its standard streams, taken before others print."""
    die_with(parent_pid)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _keep_streams_apart(2)
    with requests, answers:
        work(requests, answers)


def serve_forks(control: socket.socket, parent_pid: int, modules: list[str]) -> None:
    """Load ``modules``, then fork a worker for each request; say who was born and who ended.

    Loads libraries and runs nothing on them: threads and devices do not survive a fork. A request
    is a packet with three descriptors: the worker's requests, its answers, the file for its errors.
    """
    die_with(parent_pid)
    for name in modules:
        with contextlib.suppress(ImportError):  # the device says it better when it is opened
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a child's collector does not copy all pages of the libraries
    wake_up, woken = socket.socketpair()
    for end in (wake_up, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    _send(control, {"ready": True, "cpu_s": time.process_time()})
    living: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_up, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wake_up:
                    with contextlib.suppress(BlockingIOError):
                        wake_up.recv(4096)
                    _report_the_ended(control, living)
                elif not _serve_request(control, living):
                    return


def _serve_request(control: socket.socket, living: set[int]) -> bool:
    """False when the parent has hung up; Linux then ends the workers with this process."""
    packet, descriptors, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 3)
    if not packet:
        return False
    request = json.loads(packet)
    if request["command"] == "kill":
        if request["pid"] in living:  # what it had started is ended when it is reaped
            os.kill(request["pid"], signal.SIGKILL)
        return True
    asked, answered, errors = descriptors
    server_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        _run_forked(asked, answered, errors, server_pid)
    living.add(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    _send(control, {"born": pid})
    return True


def _run_forked(asked: int, answered: int, errors: int, server_pid: int) -> NoReturn:
    """The life of a forked worker; never returns into the server's code."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with(server_pid)
        _keep_streams_apart(errors)
        os.close(errors)
        with os.fdopen(asked, "rb") as requests, os.fdopen(answered, "wb") as answers:
            work(requests, answers)
        code = 0
    except SystemExit as wanted:
        code = wanted.code if isinstance(wanted.code, int) else 1
    except BrokenPipeError:
        pass  # the parent no longer listens
    except BaseException:  # noqa: BLE001 - the traceback goes to the worker's own error file
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report_the_ended(control: socket.socket, living: set[int]) -> None:
    """Say which workers have ended, after whatever they had started has been ended too."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(ended.si_pid, signal.SIGKILL)
        _, status = os.waitpid(ended.si_pid, 0)
        living.discard(ended.si_pid)
        _send(control, {"ended": ended.si_pid, "code": os.waitstatus_to_exitcode(status)})


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        control.send(json.dumps(message).encode())


def main(arguments: list[str]) -> None:
    """``work PARENT`` or ``serve PARENT DESCRIPTOR MODULE...``."""
    if arguments[0] == "serve":
        with socket.socket(fileno=int(arguments[2])) as control:
            serve_forks(control, int(arguments[1]), arguments[3:])
    else:
        run_spawned(int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
