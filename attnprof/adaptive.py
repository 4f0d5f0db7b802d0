"""A sweep for fit: the design is measured, its law fitted, and points added where it is unsure."""

import contextlib
import time
from dataclasses import replace

from attnprof import design, session
from attnprof.errors import AttnprofError, CannotMeasureError, UsageError
from attnprof.fit_laws import RunFit, fit_runs, units_of
from attnprof.laws.fitting import Z80
from attnprof.overheads import FILE, write_overheads
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
    is_weighed = False
    while True:
        left_s = max(1.0, stop_at - time.monotonic())
        step = replace(plan, asked=replace(asked, budget_s=left_s, interval=None))
        outcome = session.run(step, watch)
        if outcome.interrupted or not outcome.complete:
            return outcome
        if not is_weighed:
            _weigh_engine(plan, watch)
            is_weighed = True
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


def _weigh_engine(plan: session.SweepPlan, watch: Watcher) -> None:
    """Measure, once a run, what the Transformers library's ``generate`` adds to a model's calls.

    Laws do without: where it cannot be measured it is said, and the next resume tries again.
    """
    if (plan.run_dir / FILE).exists() or not _has_library_steps(plan):
        return
    asked = plan.asked
    try:
        with contextlib.closing(Launcher(asked.device, threads=asked.threads)) as launcher:
            readings = [_overheads(launcher) for _ in range(NUM_LAUNCHES)]
    except AttnprofError as error:
        watch.note(f"what generate adds was not measured: {error.problem}")
        return
    write_overheads(plan.run_dir, readings)


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
