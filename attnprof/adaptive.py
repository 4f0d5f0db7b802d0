"""A sweep for fit: the design is measured, its law fitted, and points added where it is unsure."""

import contextlib
import json
import time
from dataclasses import replace

from attnprof import design, session
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.fit_laws import OVERHEADS_FILE, RunFit, fit_runs, units_of
from attnprof.laws.fitting import Z80
from attnprof.records import read_header
from attnprof.run_header import ceilings_of, facts_of
from attnprof.sweep import Outcome, Watcher
from attnprof.units import counted
from attnprof.workers import Launcher, WorkerLostError

NUM_LAUNCHES = 3  # in which what generate adds is measured
TIMEOUT_S = 120.0
TARGET = 0.05  # half-width of the 80 % interval that the coefficients leave of a latency


def run(plan: session.SweepPlan, watch: Watcher) -> Outcome:
    """Measure the design, then what the law is least sure of, until it is sure or time is spent.

    All of it is one run directory: what was added stands in ``run.json``, and resuming goes on.
    """
    asked = plan.asked
    stop_at = time.monotonic() + (asked.budget_s or design.BUDGET_S)
    target = TARGET if asked.interval is None else asked.interval
    while True:
        left_s = max(1.0, stop_at - time.monotonic())
        step = replace(plan, asked=replace(asked, budget_s=left_s, interval=None))
        outcome = session.run(step, watch)
        if outcome.interrupted or not outcome.complete:
            return outcome
        _weigh_engine(plan)
        try:
            found = fit_runs([plan.run_dir])
        except UsageError as error:
            watch.note(f"{error.problem}: {error.fix}")
            return outcome
        doubt = _doubt(found, plan)
        width = Z80 * doubt.log_sd
        measured = counted(len(plan.grid.workloads), "point")
        watch.note(f"{measured}: the coefficients leave a latency unsure by up to {width:.1%}")
        if width <= target or not doubt.points or time.monotonic() >= stop_at:
            return outcome
        grid = replace(plan.grid, workloads=(*plan.grid.workloads, *doubt.points))
        asked = replace(asked, resume=True)
        plan = replace(plan, grid=grid, asked=asked)


def _doubt(found: RunFit, plan: session.SweepPlan) -> design.Doubt:
    """By what the device has said of itself by now."""
    header = read_header(plan.run_dir)
    assert plan.limits is not None, "a sweep for fit has them"
    limits = replace(
        plan.limits, ceilings=ceilings_of(header), num_units=units_of(facts_of(header))
    )
    workloads = plan.grid.workloads
    options = design.candidates(design.kernels_of(workloads), limits)
    return design.doubt(found, options, workloads, limits)


def _weigh_engine(plan: session.SweepPlan) -> None:
    """Measure, once a run, what the Transformers library's ``generate`` adds to a model's calls."""
    path = plan.run_dir / OVERHEADS_FILE
    if path.exists() or not _has_library_steps(plan):
        return
    asked = plan.asked
    with contextlib.closing(Launcher(asked.device, threads=asked.threads)) as launcher:
        readings = [_overheads(launcher) for _ in range(NUM_LAUNCHES)]
    path.write_text(json.dumps(readings) + "\n")


def _has_library_steps(plan: session.SweepPlan) -> bool:
    return any(one.implementation == "transformers" for one in plan.grid.workloads)


def _overheads(launcher: Launcher) -> dict[str, float]:
    worker = launcher.start()
    try:
        answer = worker.ask({"command": "overheads"}, lambda phase: TIMEOUT_S)
    except WorkerLostError as lost:
        raise CannotMeasureError(f"a worker was lost: {lost.reason}") from None
    finally:
        worker.close()
    found: dict[str, float] = answer["overheads"]
    return found
