"""Workloads -> records: in rounds, in random order, each in a worker, resumable at any instant.

A *visit* is one workload on one worker in one round. Rounds interleave the workloads of a batch, so
that what drifts meets all of them alike, and where workers are forked every round has fresh ones:
samples of one process are alike, and only another process shows how much.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from attnprof import __version__
from attnprof.errors import CannotMeasureError
from attnprof.forecast import expected_call_s, memory_problem, needed_bytes
from attnprof.measure import Next, Plan, Progress, Visit, plan_for, step_samples
from attnprof.medians import Interval
from attnprof.recording import (
    Conditions,
    fingerprint,
    make_record,
    replayed,
    unfinished_record,
    unmeasured_record,
)
from attnprof.records import Run, RunDirectory, open_run_directory
from attnprof.rounds import dominates, drift_notes, timed_share, visiting_order, worker_group
from attnprof.stopping import stop_wishes
from attnprof.worker import visit_request
from attnprof.workers import (
    Launcher,
    ServerLostError,
    StopRequestedError,
    Worker,
    WorkerLostError,
)
from attnprof.workload import GROWING, Workload

BATCH_S = 60.0
KEPT_WORKERS = 4  # where workers are not forked, so many stay, each with its own device context
MAX_PHASE_S = 600.0
MAX_SERVERS = 3  # that may end during one visit


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """What to measure, on what, into which folder.

    Args:
        device: As :func:`attnprof.devices.open_device` names it.
        plan: None for that of the device's kind.
        budget_s: Of the whole sweep; when it is spent, what is left waits for ``resume``.
        timeout_s: Of one phase of one visit, beyond what it may take by plan.
        energy: Measure joules of a call where a meter exists, in windows of two seconds.
        prune: Skip what is larger in every size than a workload that ran out of memory.
        predict_memory: Skip what theory says does not fit.
        launch_kind: ``fork`` or ``spawn``; None for what suits the device.
        grid: What ``run.json`` says of where the workloads come from.
    """

    workloads: tuple[Workload, ...]
    device: str
    run_dir: Path
    resume: bool = False
    plan: Plan | None = None
    seed: int = 0
    threads: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    allocator: str = "pinned"
    budget_s: float | None = None
    timeout_s: float = 60.0
    energy: bool = False
    prune: bool = True
    predict_memory: bool = True
    launch_kind: str | None = None
    command: tuple[str, ...] = ()
    grid: dict[str, Any] = field(default_factory=dict)


class Watcher(Protocol):
    """Is told how the sweep goes on."""

    def started(self, num_workloads: int, num_kept: int) -> None:
        """The device is open; ``num_kept`` workloads have their records from before."""

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None:
        """A phase of a visit begins; samples and interval are those of the visits before it."""

    def record(self, record: dict[str, Any]) -> None:
        """A workload is done."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def time_left(self, left_s: float) -> None:
        """A new estimate of what is left."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a sweep has got.

    Args:
        records: Of all workloads that are done, those from before included, in grid order.
        unfinished: Made from the visits that there were, ``unfinished`` among their flags, not
            kept on disk: resuming goes on with them.
        not_reached: Workloads without any visit.
        timed_share: Of the wall time of visits, what was inside warm-up or timed calls, over
            workloads of 1 ms and more; None when there were none.
        worker_cpu_s: CPU seconds that each fresh worker took before its first command.
    """

    run_dir: Path
    records: tuple[dict[str, Any], ...]
    unfinished: tuple[dict[str, Any], ...]
    not_reached: tuple[Workload, ...]
    notes: tuple[str, ...]
    interrupted: bool
    timed_share: float | None
    worker_cpu_s: tuple[float, ...]

    @property
    def any_ok(self) -> bool:
        """Whether anything was measured, be it to the end or not."""
        return any(record["status"] == "ok" for record in (*self.records, *self.unfinished))

    @property
    def complete(self) -> bool:
        return not self.unfinished and not self.not_reached


def run_sweep(request: SweepRequest, watch: Watcher) -> Outcome:
    """Measure all workloads that have no record yet.

    Raises:
        UsageError: The folder cannot be written or resumed, or another sweep is writing there.
        CannotMeasureError: The device is not there, the disk is full, or the run to resume was
            made under other conditions.
    """
    with (
        stop_wishes() as stop,
        open_run_directory(request.run_dir, resume=request.resume, warn=watch.note) as directory,
        contextlib.closing(
            Launcher(
                request.device,
                threads=request.threads,
                settings=request.settings,
                allocator=request.allocator,
                launch_kind=request.launch_kind,
                should_stop=stop.is_set,
            )
        ) as launcher,
    ):
        sweep = _Sweep(request, watch, directory, launcher)
        try:
            sweep.prepare()
            sweep.measure()
        except StopRequestedError:
            sweep.interrupted = True
        except KeyboardInterrupt:
            sweep.close_workers(kill=True)
            raise
        finally:
            sweep.close_workers(kill=sweep.interrupted)
        return sweep.finish()


def expected_s(workload: Workload, plan: Plan, call_s: float) -> float:
    """About how long a workload will take, for plans and for the time left. [s]

    Args:
        call_s: Of one call, of a growing workload of a whole growth; a guess.
    """
    sample_s = max(1e-3, call_s)
    warm_s = 0.0 if workload.phase in GROWING else min(plan.warmup_s, 7 * sample_s) + call_s
    timed_s = max(
        min(plan.budget_s, 2 * plan.min_samples * sample_s), min(6 * call_s, 10 * plan.budget_s)
    )
    return plan.min_rounds * (0.1 + warm_s) + timed_s


class _Sweep:
    """A sweep under way."""

    def __init__(
        self, request: SweepRequest, watch: Watcher, directory: RunDirectory, launcher: Launcher
    ) -> None:
        self.request = request
        self.watch = watch
        self.directory = directory
        self.launcher = launcher
        self.interrupted = False
        self.notes: list[str] = []
        self.records: dict[str, dict[str, Any]] = {}
        self.progress: dict[str, Progress] = {}
        self.plan = request.plan or Plan()
        self.conditions = Conditions(device_kind=request.device)
        self.workers: dict[tuple[str, str], Worker] = {}
        self.rulers: list[dict[str, float]] = []
        self.free_bytes: int | None = None
        self.out_of_memory: list[Workload] = []
        self.expectations: dict[Workload, float] = {}
        self.stop_at = float("inf")
        self.mark = 0.0

    def prepare(self) -> None:
        """Open the device, write ``run.json`` or hold it against the one there, replay visits."""
        request, earlier = self.request, self.directory.earlier
        started = _now()
        dtypes = sorted({workload.dtype for workload in request.workloads})
        worker = self._start_worker()
        try:
            facts = worker.ask(
                {"command": "facts", "dtypes": [] if earlier else dtypes},
                lambda phase: MAX_PHASE_S,
            )
        except WorkerLostError as lost:
            raise CannotMeasureError(f"the device could not be measured: {lost.reason}") from None
        finally:
            worker.close()
        self.plan = request.plan or plan_for(worker.kind)
        self.conditions = Conditions(
            device_kind=worker.kind,
            threads=self.launcher.threads if worker.kind == "cpu" else None,
            ceilings=earlier.header["conditions"]["ceilings"] if earlier else facts["ceilings"],
        )
        self.free_bytes = worker.free_bytes
        self.directory.start(
            {
                "attnprof": __version__,
                "command": request.command,
                "started": started,
                "finished": None,
                "device": self.launcher.device,
                "launch_kind": self.launcher.launch_kind,
                "conditions": asdict(self.conditions),
                "facts": facts["facts"],
                "fingerprint": fingerprint(facts["facts"], worker.kind),
                "plan": asdict(self.plan),
                "seed": request.seed,
                "grid": request.grid,
                "workloads": [workload.workload_id for workload in request.workloads],
            }
        )
        self._replay(earlier)
        self.watch.started(len(request.workloads), len(self.records))

    def _replay(self, earlier: Run | None) -> None:
        self.progress = replayed(earlier, self.request.workloads, self.plan, self.conditions)
        if earlier is None:
            return
        self.records = {record["workload_id"]: record for record in earlier.records}
        self.rulers = [line["rulers"] for line in earlier.rulers]
        self.launcher.num_launches = 1 + max(
            (visit["launch"] for visit in earlier.visits), default=-1
        )
        for workload in self.request.workloads:
            record = self.records.get(workload.workload_id)
            if record is not None and record["status"] == "out_of_memory":
                self.out_of_memory.append(workload)
        for progress in self.progress.values():
            if progress.settled and progress.workload.workload_id not in self.records:
                self._keep(progress)

    def measure(self) -> None:
        """All batches, each until its last workload is settled or the budget is spent."""
        if self.request.budget_s is not None:
            self.stop_at = time.monotonic() + self.request.budget_s
        left = [w for w in self.request.workloads if w.workload_id not in self.records]
        for batch in self._batches(left):
            self._drop_workers_except({worker_group(workload) for workload in batch})
            round_ = 1 + max(
                (v.round for w in batch for v in self.progress[w.workload_id].visits), default=-1
            )
            while pending := [w for w in batch if w.workload_id not in self.records]:
                if time.monotonic() >= self.stop_at:
                    self._note("the budget is spent; --resume goes on with what is left")
                    return
                self._round(pending, round_)
                round_ += 1

    def _batches(self, workloads: Sequence[Workload]) -> Iterator[list[Workload]]:
        batch: list[Workload] = []
        batch_s = 0.0
        for workload in workloads:
            workload_s = self._expected_s(workload)
            groups = {worker_group(one) for one in (*batch, workload)}
            crowded = self.launcher.launch_kind != "fork" and len(groups) > KEPT_WORKERS
            if batch and (batch_s + workload_s > BATCH_S or crowded):
                yield batch
                batch, batch_s = [], 0.0
            batch.append(workload)
            batch_s += workload_s
        if batch:
            yield batch

    def _expected_s(self, workload: Workload) -> float:
        """A guess that no visit changes, and that the time left asks for at every one."""
        if workload not in self.expectations:
            call_s = self._call_s(workload)
            self.expectations[workload] = expected_s(workload, self.plan, call_s)
        return self.expectations[workload]

    def _call_s(self, workload: Workload) -> float:
        conditions = self.conditions
        return expected_call_s(
            workload, conditions.device_kind, conditions.threads or 1, conditions.ceilings
        )

    def _round(self, pending: Sequence[Workload], round_: int) -> None:
        """Every pending workload once; groups and the workloads in them in random order."""
        for group in visiting_order(pending, self.request.seed, round_):
            self.mark = time.monotonic()
            for workload in group:
                if time.monotonic() >= self.stop_at:
                    break
                if not self._decided_unrun(workload):
                    self._visit(workload, round_)
            if self.launcher.launch_kind == "fork":
                self._drop_workers_except(set())

    def _decided_unrun(self, workload: Workload) -> bool:
        """Whether a record has been made of a workload that will not run."""
        progress = self.progress[workload.workload_id]
        if progress.visits:
            return False
        status, reason = self._prediction(workload)
        if status is None or reason is None:
            return False
        record = unmeasured_record(workload, self.conditions, status, reason)
        self._keep_record(record)
        return True

    def _prediction(self, workload: Workload) -> tuple[str | None, str | None]:
        if self.request.prune:
            for failed in self.out_of_memory:
                if dominates(workload, failed):
                    return "skipped", (
                        f"larger than {failed.workload_id}, which ran out of memory (dominated)"
                    )
        if self.request.predict_memory:
            conditions = self.conditions
            needed = needed_bytes(workload, conditions.device_kind, conditions.threads or 1)
            problem = memory_problem(needed, self.free_bytes)
            if problem is not None:
                return "predicted_out_of_memory", problem
        return None, None

    def _visit(self, workload: Workload, round_: int) -> None:
        progress = self.progress[workload.workload_id]
        for _ in range(MAX_SERVERS):
            try:
                self._take(progress, round_, *self._answer(progress, round_))
                return
            except ServerLostError as lost:
                last = lost
                self.close_workers(kill=True)
        raise CannotMeasureError(f"{last.reason}, time and again", "go on with --resume")

    def _answer(self, progress: Progress, round_: int) -> tuple[Worker, dict[str, Any]]:
        """What a worker says of the next visit, or that it was lost."""
        workload = progress.workload
        worker = self._worker(worker_group(workload), round_)
        following = progress.next_visit()
        seed = crc32(f"{self.request.seed}/{workload.workload_id}/{round_}".encode())
        request = visit_request(
            workload,
            seed=seed,
            first=not progress.visits,
            num_samples=following.num_samples,
            limit_s=following.limit_s,
            warmup_s=self.plan.warmup_s,
            growth_limit_s=self.request.timeout_s,
            weighs_energy=self.request.energy,
        )
        try:
            return worker, worker.ask(
                request,
                lambda phase: self._limit_s(phase, progress, following),
                lambda phase: self.watch.visit(
                    workload, round_, phase, progress.num_samples, progress.figure.interval
                ),
            )
        except ServerLostError:
            raise
        except WorkerLostError as lost:
            return worker, {
                "status": lost.status, "reason": lost.reason, "phase": lost.phase,
                "ended": _now(), "ends_worker": True,
            }  # fmt: skip

    def _take(
        self, progress: Progress, round_: int, worker: Worker, answer: dict[str, Any]
    ) -> None:
        """Keep a finished visit, and the record when it was the last one."""
        if answer.pop("ends_worker", False):
            self.workers.pop(worker_group(progress.workload)).close()
        now = time.monotonic()
        visit = visit_from_answer(
            answer,
            progress.workload,
            round=round_,
            launch=worker.launch,
            launch_kind=self.launcher.launch_kind,
            turnaround_s=now - self.mark,
        )
        self.mark = now
        self.directory.add_visit(visit.to_json())
        progress.add(visit)
        if progress.settled:
            self._keep(progress)
        self.watch.time_left(self._time_left_s())

    def _keep(self, progress: Progress) -> None:
        record = make_record(progress, self.conditions)
        if record["status"] == "out_of_memory":
            self.out_of_memory.append(progress.workload)
        self._keep_record(record)

    def _keep_record(self, record: dict[str, Any]) -> None:
        self.directory.add_record(record)
        self.records[record["workload_id"]] = record
        self.watch.record(record)

    def _limit_s(self, phase: str, progress: Progress, following: Next) -> float:
        """The plan's own time for a phase, and beyond it the timeout, longer for heavy calls."""
        call_s = progress.seconds_per_sample or 3 * self._call_s(progress.workload)
        beyond_s = max(self.request.timeout_s, min(MAX_PHASE_S, 10 * call_s))
        if phase == "warm-up":
            return self.plan.warmup_s + beyond_s
        if phase == "measure":
            return following.limit_s + beyond_s
        return beyond_s

    def _worker(self, group: tuple[str, str], round_: int) -> Worker:
        """The group's worker; one that is new, or new in this round, reads the rulers first."""
        worker = self.workers.get(group)
        if worker is None:
            worker = self.workers[group] = self._start_worker()
            self.free_bytes = worker.free_bytes
        if worker.ruled_round != round_:
            worker.ruled_round = round_
            try:
                rulers = worker.ask({"command": "rulers"}, lambda phase: MAX_PHASE_S)
            except ServerLostError:
                raise
            except WorkerLostError as lost:
                raise CannotMeasureError(f"no ruler could be read: {lost.reason}") from None
            self.rulers.append(rulers["rulers"])
            self.directory.add_rulers(
                {
                    "launch": worker.launch,
                    "round": round_,
                    "when": _now(),
                    "rulers": rulers["rulers"],
                }
            )
        return worker

    def _start_worker(self) -> Worker:
        for attempt in range(3):
            try:
                return self.launcher.start()
            except WorkerLostError as lost:
                if attempt == 2:
                    raise CannotMeasureError(
                        f"no worker can open {self.request.device}: {lost.reason}",
                        "see what attnprof doctor says of it",
                    ) from None
        raise AssertionError("the loop returns or raises")

    def _drop_workers_except(self, groups: set[tuple[str, str]]) -> None:
        for group in [group for group in self.workers if group not in groups]:
            self.workers.pop(group).close()

    def close_workers(self, *, kill: bool) -> None:
        for worker in self.workers.values():
            if kill:
                worker.kill()
            else:
                worker.close()
        self.workers.clear()

    def _time_left_s(self) -> float:
        """Expected time of what is left, scaled by how the visits so far compare."""
        spent_s = expected = left = 0.0
        for key, progress in self.progress.items():
            guess_s = self._expected_s(progress.workload)
            took_s = sum(visit.turnaround_s or 0.0 for visit in progress.visits)
            if key in self.records:
                if progress.visits:
                    spent_s += took_s
                    expected += guess_s
            else:
                left += max(0.0, guess_s - took_s)
        left *= spent_s / expected if expected else 1.0
        return min(left, max(0.0, self.stop_at - time.monotonic()))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.watch.note(text)

    def finish(self) -> Outcome:
        """What there is, and its end in ``run.json``."""
        unfinished = [
            progress
            for key, progress in self.progress.items()
            if progress.visits and key not in self.records
        ]
        not_reached = tuple(
            workload
            for workload in self.request.workloads
            if workload.workload_id not in self.records
            and not (self.progress and self.progress[workload.workload_id].visits)
        )
        for text in drift_notes(self.rulers):
            self._note(text)
        share = timed_share(self.progress.values())
        complete = not unfinished and not not_reached
        if self.directory.is_started:
            self.directory.finish(
                finished=_now() if complete else None, notes=self.notes, timed_share=share
            )
        return Outcome(
            run_dir=self.request.run_dir,
            records=tuple(
                self.records[workload.workload_id]
                for workload in self.request.workloads
                if workload.workload_id in self.records
            ),
            unfinished=tuple(
                unfinished_record(progress, self.conditions) for progress in unfinished
            ),
            not_reached=not_reached,
            notes=tuple(self.notes),
            interrupted=self.interrupted,
            timed_share=share,
            worker_cpu_s=tuple(self.launcher.start_cpu_s),
        )


def visit_from_answer(answer: dict[str, Any], workload: Workload, **about: Any) -> Visit:
    """A worker's answer as the visit that is kept."""
    known = {key: answer[key] for key in Visit.__dataclass_fields__ if key in answer}
    visit = Visit.from_json(known | {"workload_id": workload.workload_id} | about)
    if not visit.growths:
        return visit
    prompt_len = workload.start_len if workload.phase == "generate" else None
    return replace(visit, samples=step_samples(visit.growths, prompt_len))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
