"""Worker processes that exit, abort, hang, are killed, or write half a message."""

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.worker import read_message, write_message
from attnprof.worker_processes import SpawnedProcess
from attnprof.workers import (
    Launcher,
    ServerLostError,
    StopRequestedError,
    Worker,
    WorkerLostError,
)
from attnprof.workload import Workload

WORKLOAD = Workload(backend="flash", q_len=256, kv_len=256)
KINDS = [
    pytest.param(
        "fork", marks=pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
    ),
    "spawn",
]
posix = pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals are those of POSIX")


def visit_request(workload: Workload = WORKLOAD) -> dict[str, Any]:
    return {
        "command": "visit",
        "workload": workload.to_json(),
        "seed": 1,
        "first": True,
        "num_samples": 4,
        "limit_s": 10.0,
        "warmup_s": 1.0,
        "growth_limit_s": 10.0,
        "weighs_energy": True,
    }


@contextmanager
def worker_on(spec: str, kind: str = "fork") -> Iterator[Worker]:
    if kind == "fork" and sys.platform != "linux":
        kind = "spawn"
    with closing(Launcher(spec, launch_kind=kind, threads=1)) as launcher:
        worker = launcher.start()
        try:
            yield worker
        finally:
            worker.kill()


def limit(phase: str) -> float:
    return 30.0


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], timeout_s: float = 20.0) -> list[int]:
    give_up = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < give_up:
        time.sleep(0.02)
    return left


@pytest.mark.parametrize("kind", KINDS)
def test_a_visit_brings_samples_and_names_its_phases(kind: str) -> None:
    entered: list[str] = []
    with worker_on("synthetic?noise=0", kind) as worker:
        answer = worker.ask(visit_request(), limit, entered.append)
    assert answer["status"] == "ok"
    assert len(answer["samples"]["wall_s"]) == 4
    assert entered == ["prepare", "check", "warm-up", "measure", "weigh"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_libraries_print_does_not_disturb_the_channel(kind: str) -> None:
    with worker_on("synthetic?chatter=*", kind) as worker:
        assert worker.ask(visit_request(), limit)["status"] == "ok"
        assert worker.ask(visit_request(), limit)["status"] == "ok"


@posix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("crash", "killed by signal 6 (SIGABRT)"),
        ("segv", "killed by signal 11 (SIGSEGV): in _segv"),
        ("kill", "killed by signal 9 (out of host memory?)"),
        ("exit", "exited with status 7 without an answer"),
    ],
)
def test_a_worker_that_ends_says_how_and_where(kind: str, failure: str, said: str) -> None:
    with worker_on(f"synthetic?{failure}=*", kind) as worker:
        with pytest.raises(WorkerLostError) as caught:
            worker.ask(visit_request(), limit)
        assert (caught.value.status, caught.value.phase) == ("crashed", "measure")
        assert said in caught.value.reason
        with pytest.raises(WorkerLostError):
            worker.ask(visit_request(), limit)


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_hangs_is_ended_and_says_where_it_was(kind: str) -> None:
    with worker_on("synthetic?hang=*", kind) as worker:
        with pytest.raises(WorkerLostError) as caught:
            worker.ask(visit_request(), lambda phase: 0.5 if phase == "measure" else 30.0)
        assert (caught.value.status, caught.value.phase) == ("timeout", "measure")
        assert "no answer within 0.5 s of phase measure; it was in wait" in caught.value.reason
        assert wait_until_gone([worker.pid]) == []


@pytest.mark.parametrize(
    ("failure", "status", "ends"),
    [
        ("error", "crashed", True),
        ("oom", "out_of_memory", True),
        ("wrong", "wrong_result", False),
        ("unsupported", "unsupported", False),
    ],
)
def test_a_failure_that_may_poison_the_device_ends_the_worker(
    failure: str, status: str, ends: bool
) -> None:
    with worker_on(f"synthetic?{failure}=*") as worker:
        answer = worker.ask(visit_request(), limit)
        assert answer["status"] == status
        assert bool(answer.get("ends_worker")) == ends
        if ends:
            with pytest.raises(WorkerLostError):
                worker.ask(visit_request(), limit)
        else:
            assert worker.ask(visit_request(), limit)["status"] == status


def test_out_of_memory_brings_the_bytes_that_were_asked_for() -> None:
    with worker_on("synthetic?memory=1MiB") as worker:
        answer = worker.ask(visit_request(), limit)
    assert answer["requested_bytes"] > 2**20


def test_a_wish_to_stop_is_heard_while_a_worker_hangs() -> None:
    stop = False
    with closing(Launcher("synthetic?hang=*", threads=1, should_stop=lambda: stop)) as launcher:
        worker = launcher.start()

        def stop_in(phase: str) -> None:
            nonlocal stop
            stop = phase == "measure"

        with pytest.raises(StopRequestedError):
            worker.ask(visit_request(), limit, stop_in)
        worker.kill()


def test_a_device_that_cannot_be_opened_raises_what_it_says() -> None:
    with (
        closing(Launcher("synthetic?nose=1", threads=1)) as launcher,
        pytest.raises(UsageError) as caught,
    ):
        launcher.start()
    assert caught.value.fix == "did you mean 'noise'?"


@pytest.mark.parametrize(
    "half",
    [
        pytest.param("w(b'\\x00\\x00')", id="half a length"),
        pytest.param("w(b'\\x00\\x00\\x00\\x10{')", id="half a body"),
        pytest.param("w(b'\\x00\\x00\\x00\\x02[]')", id="no object"),
        pytest.param("w(b'\\xff' * 64)", id="an absurd length"),
        pytest.param("w(b'\\x00\\x00\\x00\\x02{]')", id="no JSON"),
    ],
)
def test_a_worker_that_writes_half_a_message_has_crashed(half: str) -> None:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the worker closes it
    popen = subprocess.Popen(
        [sys.executable, "-c", f"import os; w = lambda b: os.write(1, b); {half}; os._exit(3)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )
    assert popen.stdin is not None and popen.stdout is not None
    worker = Worker(SpawnedProcess(popen), popen.stdin, popen.stdout, errors)  # type: ignore[arg-type]
    with pytest.raises(WorkerLostError, match="exited with status 3 without an answer"):
        worker.ask({"command": "rulers"}, limit)
    worker.close()


def test_messages_come_out_as_they_went_in() -> None:
    stream = io.BytesIO()
    messages: list[dict[str, Any]] = [{"a": 1}, {"text": "µs\n"}, {"list": [1.5] * 100}]
    for message in messages:
        write_message(stream, message)
    stream.seek(0)
    assert [read_message(stream) for _ in range(4)] == [*messages, None]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends the children of the dead")
@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_a_killed_parent_leaves_no_orphan(kind: str) -> None:
    script = (
        "import sys\n"
        "from attnprof.workers import Launcher\n"
        "from tests.test_workers import visit_request\n"
        f"launcher = Launcher('synthetic?hang=*', launch_kind='{kind}', threads=1)\n"
        "worker = launcher.start()\n"
        "say = lambda phase: print(worker.pid, launcher.server_pid or 0, phase, flush=True)\n"
        "worker.ask(visit_request(), lambda phase: 60.0, say)\n"
    )
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root
    ) as parent:
        assert parent.stdout is not None
        line = ""
        for line in parent.stdout:
            if "measure" in line:
                break
        pids = [int(pid) for pid in line.split()[:2] if pid != "0"]
        assert len(pids) == (2 if kind == "fork" else 1)
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
    assert wait_until_gone(pids) == []


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_a_fork_server_that_died_is_said_to_be_dead_and_another_serves() -> None:
    workload = Workload(backend="flash", q_len=64, kv_len=64)
    with closing(Launcher("synthetic", launch_kind="fork", threads=1)) as launcher:
        worker = launcher.start()
        assert launcher.server_pid is not None
        os.kill(launcher.server_pid, 9)
        assert wait_until_gone([launcher.server_pid, worker.pid]) == []
        with pytest.raises(ServerLostError, match="that starts workers has ended"):
            worker.ask(visit_request(workload), lambda phase: 30.0)
        worker.close()
        fresh = launcher.start()
        assert fresh.ask(visit_request(workload), lambda phase: 30.0)["status"] == "ok"
        fresh.close()


@pytest.mark.torch
def test_a_forked_worker_with_threads_gives_the_same_result_as_a_spawned_one() -> None:
    pytest.importorskip("torch")
    workload = Workload(backend="flash", q_len=512, kv_len=512)
    checks = []
    for kind in ("fork", "spawn") if sys.platform == "linux" else ("spawn", "spawn"):
        with closing(Launcher("cpu", launch_kind=kind, threads=2)) as launcher:
            worker = launcher.start()
            answer = worker.ask(visit_request(workload), lambda phase: 120.0)
            worker.close()
        assert answer["status"] == "ok", answer
        checks.append((answer["check"], answer["memory"]["peak_activation_bytes"]))
    assert checks[0] == checks[1]
