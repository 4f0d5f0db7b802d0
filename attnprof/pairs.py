"""Two Pythons and a few workloads -> visits of each in turns, in fresh processes, kept on disk.

A *pair* is a fresh process of each side. On a CPU both live together and every workload is visited
on one side and then at once on the other, in random order, so that what drifts or disturbs meets
both alike. An accelerator is held by one process at a time: there the sides take turns by process.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.forecast import expected_call_s, memory_problem, needed_bytes
from attnprof.interpreters import Interpreter
from attnprof.measure import ACCELERATORS, Plan, Progress, Visit
from attnprof.recording import Conditions, fingerprint, make_record, unmeasured_record
from attnprof.records import RUN_FILE, RunDirectory, open_run_directory
from attnprof.rounds import visiting_order
from attnprof.sweep import MAX_PHASE_S, visit_from_answer
from attnprof.worker import visit_request
from attnprof.workers import Launcher, ServerLostError, Worker, WorkerLostError
from attnprof.workload import Workload

SIDES = ("base", "new")
FEWEST_SAMPLES = 1  # of a call that is too long for more
MAX_SERVERS = 3  # that may end during one visit


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a visit is.

    Args:
        num_samples: In every process as many: to stop early would be a choice.
        visit_s: Of timed calls: of a long call fewer samples fit into it, on both sides as many.
        warmup_s: At the most, but two calls at the least.
        timeout_s: Of a phase, beyond what it may take by plan.
    """

    num_samples: int = 10
    visit_s: float = 0.3
    warmup_s: float = 0.05
    timeout_s: float = 60.0


@dataclass
class Visited:
    """A workload on one side: its visits in the pairs that screen, and in those after them."""

    workload: Workload
    screening: Progress
    confirming: Progress
    prediction: str | None = None  # why it is not run at all

    @property
    def visits(self) -> tuple[Visit, ...]:
        return (*self.screening.visits, *self.confirming.visits)

    @property
    def every(self) -> Progress:
        """All visits together, as a record is made of them."""
        progress = Progress(self.workload, self.screening.plan, self.screening.threads)
        for visit in self.visits:
            progress.add(visit)
        return progress

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more visits, since one failed or none is tried."""
        statuses = (self.screening.status, self.confirming.status)
        return self.prediction is not None or statuses != ("ok", "ok")

    def record(self, conditions: Conditions, look: str) -> dict[str, Any] | None:
        """What there is of it; None before its first visit."""
        if self.prediction is not None:
            status = "predicted_out_of_memory"
            return unmeasured_record(self.workload, conditions, status, self.prediction)
        progress: Progress = getattr(self, look)
        return make_record(progress, conditions) if progress.visits else None


@dataclass
class Side:
    """One of the two, with the device that it found."""

    name: str
    interpreter: Interpreter
    launcher: Launcher
    directory: RunDirectory
    conditions: Conditions
    free_bytes: int | None
    header: Mapping[str, Any]
    visited: dict[str, Visited] = field(default_factory=dict)
    rulers: dict[str, list[float]] = field(default_factory=dict)
    # One thread as long as the side lives: Linux ends a process with the thread that started it.
    starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    worker: Worker | None = None

    def close_worker(self, *, kill: bool = False) -> None:
        if self.worker is not None:
            if kill:
                self.worker.kill()
            else:
                self.worker.close()
            self.worker = None

    def records(self, look: str = "every") -> list[dict[str, Any]]:
        """Of all workloads that were visited, or will not be, in the order of the grid.

        Args:
            look: ``every`` visit, or those of ``screening`` or ``confirming`` alone.
        """
        found = [visited.record(self.conditions, look) for visited in self.visited.values()]
        return [record for record in found if record is not None]


@dataclass(frozen=True, kw_only=True)
class PairRequest:
    """What to measure on both sides.

    Args:
        output: A folder that gets the two run directories, ``base`` and ``new``.
        threads: One keeps the CPU's own clock apart from waiting.
        num_screening: Pairs that every workload has; what comes after them is told by the round.
    """

    base: Interpreter
    new: Interpreter
    workloads: tuple[Workload, ...]
    output: Path
    device: str = "auto"
    threads: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    allocator: str = "pinned"
    launch_kind: str | None = None
    seed: int = 0
    pace: Pace = field(default_factory=Pace)
    num_screening: int = 5
    command: tuple[str, ...] = ()
    grid_name: str = ""


@contextlib.contextmanager
def open_pairs(
    request: PairRequest, should_stop: Callable[[], bool] = lambda: False
) -> Iterator["Pairs"]:
    """Both devices opened and both run directories begun; whatever was visited has its record when
    it is left, however that happens.

    Raises:
        UsageError: The folder holds a run already, or cannot be written.
        CannotMeasureError: The device is not there, or the two sides find different ones.
    """
    for name in SIDES:
        if (request.output / name / RUN_FILE).exists():
            raise UsageError(
                f"{request.output} holds a comparison already", "write to another folder"
            )
    with contextlib.ExitStack() as stack:
        sides = tuple(
            _open_side(name, interpreter, request, stack, should_stop)
            for name, interpreter in zip(SIDES, (request.base, request.new), strict=True)
        )
        kinds = [side.conditions.device_kind for side in sides]
        if kinds[0] != kinds[1]:
            raise CannotMeasureError(
                f"the base would be measured on {kinds[0]}, and the new side on {kinds[1]}",
                "name a device that both have with --device",
            )
        pairs = Pairs(request, sides)
        try:
            yield pairs
        finally:
            pairs.close()


def _open_side(
    name: str,
    interpreter: Interpreter,
    request: PairRequest,
    stack: contextlib.ExitStack,
    should_stop: Callable[[], bool],
) -> Side:
    launcher = stack.enter_context(
        contextlib.closing(
            Launcher(
                request.device,
                threads=request.threads,
                settings=request.settings,
                allocator=request.allocator,
                launch_kind=request.launch_kind,
                should_stop=should_stop,
                interpreter=interpreter,
            )
        )
    )
    started = _now()
    worker = _started(launcher, interpreter)
    try:
        answer = worker.ask({"command": "facts", "dtypes": []}, lambda phase: MAX_PHASE_S)
    except WorkerLostError as lost:
        raise CannotMeasureError(f"the {name} side has no device: {lost.reason}") from None
    finally:
        worker.close()
    conditions = Conditions(
        device_kind=worker.kind,
        threads=request.threads if worker.kind == "cpu" else None,
        ceilings=answer["ceilings"],
    )
    header = {
        "attnprof": interpreter.attnprof,
        "command": request.command,
        "started": started,
        "finished": None,
        "device": launcher.device,
        "launch_kind": launcher.launch_kind,
        "conditions": asdict(conditions),
        "facts": answer["facts"],
        "fingerprint": {
            **fingerprint(answer["facts"], worker.kind),
            "attnprof": interpreter.attnprof,
            "python": interpreter.python,
        },
        "plan": asdict(
            Plan(min_samples=request.pace.num_samples, min_rounds=request.num_screening)
        ),
        "seed": request.seed,
        "grid": {
            "name": request.grid_name,
            "workloads": [workload.to_json() for workload in request.workloads],
            "skipped": [],
        },
        "workloads": [workload.workload_id for workload in request.workloads],
        "paired": {
            "side": name,
            "typed": interpreter.typed,
            "path": interpreter.path,
            "num_screening": request.num_screening,
        },
    }
    directory = stack.enter_context(open_run_directory(request.output / name))
    directory.start(header)
    return Side(name, interpreter, launcher, directory, conditions, worker.free_bytes, header)


def _started(launcher: Launcher, interpreter: Interpreter) -> Worker:
    for attempt in range(MAX_SERVERS):
        try:
            return launcher.start()
        except WorkerLostError as lost:
            if attempt + 1 == MAX_SERVERS:
                raise CannotMeasureError(
                    f"no worker of {interpreter.typed!r} can open {launcher.device}: {lost.reason}",
                    "see what attnprof doctor says of it",
                ) from None
    raise AssertionError("the loop returns or raises")


class Pairs:
    """The two sides under way."""

    def __init__(self, request: PairRequest, sides: tuple[Side, ...]) -> None:
        self.request = request
        self.sides = sides
        self.stop_at = float("inf")
        self.round = 0
        self.num_visits = 0
        self.num_samples: dict[str, int] = {}
        self.took_s: dict[str, float] = {}  # of the last pair of a workload, both sides
        self.notes: list[str] = []
        for side in sides:
            for workload in request.workloads:
                side.visited[workload.workload_id] = self._unvisited(side, workload)

    @property
    def base(self) -> Side:
        return self.sides[0]

    @property
    def new(self) -> Side:
        return self.sides[1]

    def _unvisited(self, side: Side, workload: Workload) -> Visited:
        threads = side.conditions.threads
        plan = Plan(**side.header["plan"])
        kind = side.conditions.device_kind
        free_bytes = side.free_bytes
        if free_bytes is not None and self._together:
            free_bytes //= 2
        return Visited(
            workload,
            Progress(workload, plan, threads),
            Progress(workload, plan, threads),
            memory_problem(needed_bytes(workload, kind, threads or 1), free_bytes),
        )

    @property
    def _together(self) -> bool:
        """Whether a process of each side may hold the device at once."""
        return self.base.conditions.device_kind not in ACCELERATORS

    def has_ended(self, workload: Workload) -> bool:
        """Whether either side has given the workload up."""
        return any(side.visited[workload.workload_id].has_ended for side in self.sides)

    def measure(
        self,
        workloads: Sequence[Workload],
        *,
        confirming: bool,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> bool:
        """One pair of each of ``workloads`` that has not ended; False when time was over before.

        Args:
            progress: Told how many of how many have had theirs.

        Raises:
            StopRequestedError: The user wants it to stop.
            CannotMeasureError: No worker starts any more.
        """
        for side in self.sides:
            side.launcher.launch_kind = self._launch_kind(side, confirming)
        left = [workload for workload in workloads if not self.has_ended(workload)]
        order = random.Random(f"{self.request.seed}/{self.round}/sides")
        done = 0
        for group in visiting_order(left, self.request.seed, self.round) if left else ():
            blocks = [[workload] for workload in group] if self._together else [group]
            if self._together and time.monotonic() < self.stop_at:
                self._start_both()
            for block in blocks:
                if time.monotonic() >= self.stop_at:
                    self._close_workers()
                    return False
                for side in order.sample(self.sides, len(self.sides)):
                    for workload in block:
                        self._visit(side, workload, confirming)
                    if not self._together:
                        side.close_worker()
                for workload in block:
                    self._learn(workload)
                done += len(block)
                progress(done, len(left))
            self._close_workers()
        self.round += 1
        return True

    def _start_both(self) -> None:
        """Both workers at once: what starts from nothing takes seconds, and nothing is timed."""
        starts = [
            side.starter.submit(_started, side.launcher, side.interpreter) for side in self.sides
        ]
        for side, start in zip(self.sides, starts, strict=True):
            if start.exception() is None:
                side.worker = start.result()
        for start in starts:
            start.result()
        for side in self.sides:
            try:
                self._read_rulers(side)
            except ServerLostError:
                side.close_worker(kill=True)

    def _launch_kind(self, side: Side, confirming: bool) -> str:
        """What confirms is started from nothing: processes forked of one have one layout of
        memory, so that on each side all of them share its luck."""
        if confirming and side.conditions.device_kind == "cpu":
            return "spawn"
        return str(side.header["launch_kind"])

    def _visit(self, side: Side, workload: Workload, confirming: bool) -> None:
        visited = side.visited[workload.workload_id]
        if visited.has_ended:
            return
        progress = visited.confirming if confirming else visited.screening
        mark = time.monotonic()
        for _ in range(MAX_SERVERS):
            try:
                worker, answer = self._answer(side, visited)
                break
            except ServerLostError as lost:
                reason = lost.reason
                side.close_worker(kill=True)
        else:
            raise CannotMeasureError(f"{reason}, time and again")
        if answer.pop("ends_worker", False):
            side.close_worker()
        visit = visit_from_answer(
            answer,
            workload,
            round=self.round,
            launch=worker.launch,
            launch_kind=side.launcher.launch_kind,
            turnaround_s=time.monotonic() - mark,
        )
        side.directory.add_visit(visit.to_json())
        progress.add(visit)
        self.num_visits += 1

    def _answer(self, side: Side, visited: Visited) -> tuple[Worker, dict[str, Any]]:
        """What a worker says of the next visit, or that it was lost."""
        workload, pace = visited.workload, self.request.pace
        worker = self._worker(side)
        known = self.num_samples.get(workload.workload_id)
        request = visit_request(
            workload,
            seed=crc32(f"{self.request.seed}/{workload.workload_id}/{self.round}".encode()),
            first=not visited.visits,
            num_samples=pace.num_samples if known is None else known,
            limit_s=pace.visit_s if known is None else pace.timeout_s,
            warmup_s=pace.warmup_s,
            growth_limit_s=pace.timeout_s,
        )
        beyond_s = max(pace.timeout_s, min(MAX_PHASE_S, 20 * self._call_s(side, workload)))
        try:
            return worker, worker.ask(request, lambda phase: pace.timeout_s + beyond_s)
        except ServerLostError:
            raise
        except WorkerLostError as lost:
            return worker, {
                "status": lost.status, "reason": lost.reason, "phase": lost.phase,
                "ended": _now(), "ends_worker": True,
            }  # fmt: skip

    def _call_s(self, side: Side, workload: Workload) -> float:
        conditions = side.conditions
        return expected_call_s(
            workload, conditions.device_kind, conditions.threads or 1, conditions.ceilings
        )

    def _worker(self, side: Side) -> Worker:
        """The side's worker; a new one reads the rulers first."""
        if side.worker is None:
            side.worker = _started(side.launcher, side.interpreter)
            self._read_rulers(side)
        return side.worker

    def _read_rulers(self, side: Side) -> None:
        assert side.worker is not None
        try:
            answer = side.worker.ask({"command": "rulers"}, lambda phase: MAX_PHASE_S)
        except ServerLostError:
            raise
        except WorkerLostError as lost:
            raise CannotMeasureError(f"no ruler could be read: {lost.reason}") from None
        for name, value in answer["rulers"].items():
            side.rulers.setdefault(name, []).append(value)
        side.directory.add_rulers(
            {
                "launch": side.worker.launch,
                "round": self.round,
                "when": _now(),
                "rulers": answer["rulers"],
            }
        )

    def _learn(self, workload: Workload) -> None:
        """From the first pair, how many samples fit into a visit; from each, how long it takes."""
        key = workload.workload_id
        every = [side.visited[key].visits for side in self.sides]
        last = [visits[-1] for visits in every if visits]
        self.took_s[key] = sum(visit.turnaround_s or 0.0 for visit in last)
        taken = [visit for visit in last if visit.samples is not None]
        if key not in self.num_samples and len(taken) == len(self.sides):
            sample_s = max(
                visit.phases_s.get("measure", 0.0) / max(1, len(visit.samples.wall_s))
                for visit in taken
                if visit.samples is not None
            )
            most = self.request.pace.num_samples
            affordable = int(self.request.pace.visit_s / sample_s) if sample_s else most
            self.num_samples[key] = max(FEWEST_SAMPLES, min(most, affordable))

    def _close_workers(self, *, kill: bool = False) -> None:
        for side in self.sides:
            side.close_worker(kill=kill)

    def close(self) -> None:
        """End the workers and give every workload that was visited its record."""
        self._close_workers(kill=True)
        for side in self.sides:
            side.starter.shutdown()
            records = side.records()
            for record in records:
                side.directory.add_record(record)
            complete = len(records) == len(self.request.workloads)
            side.directory.finish(finished=_now() if complete else None, notes=self.notes)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
