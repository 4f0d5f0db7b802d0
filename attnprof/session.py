"""What a user asks of ``sweep`` and ``doctor`` -> a plan, a run, and the tables that answer."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof import machine
from attnprof.axes import axis_named
from attnprof.backends.support import BACKENDS
from attnprof.devices import kind_of
from attnprof.devices.cpu_meters import available_bytes, cache_bytes
from attnprof.devices.environment import check_allocator, default_threads
from attnprof.errors import CannotMeasureError, UsageError, nearest, to_install
from attnprof.forecast import (
    Forecast,
    assumed_ceilings,
    forecast,
    remember_ceilings,
    remembered_ceilings,
)
from attnprof.grid import (
    USUAL,
    USUAL_OF_ACCELERATORS,
    Grid,
    expand,
    sizes_of_model,
    sweep_groups,
)
from attnprof.measure import ACCELERATORS, Plan, plan_for
from attnprof.profiles import list_profiles, load_profile, read_yaml
from attnprof.render import Table
from attnprof.run_header import TYPED
from attnprof.units import counted
from attnprof.workload import Workload

if TYPE_CHECKING:
    from attnprof.design import Limits
    from attnprof.predicted import Predicted
    from attnprof.sweep import Outcome

RUNS_DIR = Path("attnprof-runs")
FOR_FIT = "for-fit"  # the name of a sweep that a design chooses
ASSUMED_CACHE_BYTES, ASSUMED_UNITS = 50e6, 132.0  # of an accelerator, before it is opened
# What may be asked for, both ends included; the command line says the same in its help.
INTERVALS, THREADS = (0.001, 0.5), (1, 1024)
LONGEST_S = 1e6  # eleven days
LARGEST_SEED = 2**62


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line of ``sweep``, parsed."""

    spec: str | None = None
    axes: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    threads: int | None = None
    output: Path | None = None
    resume: bool = False
    budget_s: float | None = None
    timeout_s: float = 60.0
    interval: float | None = None
    seed: int = 0
    allocator: str = "pinned"
    prune: bool = True
    predict_memory: bool = True
    energy: bool = False
    allow_shared: bool = False
    for_fit: bool = False
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_allocator(self.allocator)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the device; only what was asked for, since not every device knows every setting."""
        return {"allow_shared": True} if self.allow_shared else {}


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What will be run, where its records go, and what it is expected to need."""

    asked: Asked
    grid: Grid
    run_dir: Path
    table: Table
    summary: str
    limits: "Limits | None" = None  # of the design, of a sweep for fit


def typed_axes(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUES`` as typed into axes.

    Raises:
        UsageError: No ``=`` in one, no such axis, or one that is given twice.
    """
    found = {}
    for text in texts:
        typed, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--axis {text!r} has no '='", "write --axis seq_len=1k..8k*2")
        name = axis_named(typed).name
        if name in found:
            raise UsageError(f"--axis {typed} is given twice", f"write --axis {name}=1k,2k")
        found[name] = values
    return found


def plan(asked: Asked) -> SweepPlan:
    """Expand the grid, find the run directory and say what the sweep needs; measure nothing.

    Raises:
        UsageError: The sweep, an axis, a setting or the folder makes no sense.
        CannotMeasureError: torch is not installed.
    """
    from attnprof.listing import plan_table

    _check_settings(asked)
    kind = _device_kind(asked.device)
    threads = asked.threads or default_threads()
    run_dir = _resumed_dir(asked) if asked.resume else asked.output or _new_dir(asked)
    measured = remembered_ceilings(kind, threads)
    limits = None
    if asked.resume and (asked.for_fit or not _names_grid(asked)):
        grid = _resumed_grid(run_dir)
        if grid.name == FOR_FIT:
            limits = _limits(kind, threads)
        elif asked.for_fit:
            raise UsageError(f"{run_dir} is no sweep for fit", "leave --for-fit out")
    elif asked.for_fit:
        limits = _limits(kind, threads)
        grid = _designed(asked, kind, limits)
    else:
        grid = _grid(asked, kind)
    forecasts = forecast(
        grid.workloads,
        kind,
        threads,
        measured or assumed_ceilings(kind, threads),
        available_bytes() if kind == "cpu" else None,
    )
    roofs = "roofs measured here before" if measured else "assumed roofs: none was measured yet"
    foretold, words = _foretold(grid.workloads, kind, threads)
    source = f"a guess, from {roofs}{words}"
    return SweepPlan(
        asked=asked,
        grid=grid,
        run_dir=run_dir,
        table=plan_table(grid.name, forecasts, grid.skipped, foretold, source),
        summary=_summary(grid, forecasts, kind, run_dir),
        limits=limits,
    )


def _check_settings(asked: Asked) -> None:
    """Refuse a setting that no sweep can have, before there is a folder of it.

    Raises:
        UsageError: A number out of its bounds, or something that is no number.
    """
    least, most = INTERVALS
    if asked.interval is not None and not _is_number(asked.interval, least, most):
        raise UsageError(
            f"interval {asked.interval!r} is no half-width of an interval, as a share",
            f"give one from {least:g} to {most:g}: 0.02",
        )
    for name, time_s in (("budget", asked.budget_s), ("timeout", asked.timeout_s)):
        if time_s is not None and not (_is_number(time_s, 0, LONGEST_S) and time_s > 0):
            raise UsageError(f"{name} {time_s!r} is no time", "give seconds above zero, 90s or 5m")
    for name, count, (least, most) in (
        ("threads", asked.threads, THREADS),
        ("seed", asked.seed, (0, LARGEST_SEED)),
    ):
        is_left_out = count is None and name == "threads"
        if not (is_left_out or (isinstance(count, int) and _is_number(count, least, most))):
            raise UsageError(
                f"{name} {count!r} is no whole number from {least} to {most}", f"give {name}=1"
            )


def _is_number(value: Any, least: float, most: float) -> bool:
    """Whether it is a number between two ends; NaN is not."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and least <= value <= most


def _foretold(
    workloads: Sequence[Workload], kind: str, threads: int
) -> tuple[dict[Workload, "Predicted"], str]:
    """What the calibration of this CPU says of workloads; and words on it, or on why it is silent.

    Of a device that must be opened to know its name nothing is foretold before that.
    """
    if kind != "cpu":
        return {}, ""
    from attnprof.capacity.local_cpu import find_calibration
    from attnprof.predicted import predict_workloads

    try:
        calibration = find_calibration(threads)
    except UsageError as error:
        return {}, f"; the calibration cannot be used: {error.problem}"
    if calibration is None:
        return {}, ""
    made = predict_workloads(calibration, workloads)
    found = {one.workload: one for one in made if one.problem is None}
    return found, f"; with an 80 % interval by calibration '{calibration.name}' where it has a law"


def grid_of(asked: Asked) -> Grid:
    """The workloads that were asked for, on a device that others open: torch may be missing here.

    Raises:
        UsageError: The sweep or an axis makes no sense.
    """
    name = kind_of(asked.device)
    return _grid(asked, machine.likely_device_kind() if name == "auto" else name)


def new_dir(name: str) -> Path:
    """A folder among the runs, named after the time, which no run has yet."""
    stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = RUNS_DIR / f"{stem}{suffix}"
        if not path.exists():
            return path
    raise UsageError(f"too many runs at {stem}", "name the folder with --output")


def _device_kind(device: str) -> str:
    """The kind of device that will be opened, as far as it can be told without torch."""
    name = kind_of(device)
    if name == "synthetic":
        return name
    if not machine.has_package("torch"):
        raise CannotMeasureError(
            "torch is not installed, and attention is measured with it",
            to_install("torch"),
        )
    return machine.likely_device_kind() if name == "auto" else name


def _grid(asked: Asked, kind: str) -> Grid:
    name, groups = _groups(asked)
    return expand(name, groups, asked.axes, _backends(kind), _usual(kind))


def _backends(kind: str) -> tuple[str, ...]:
    """What ``all`` stands for."""
    return tuple(
        backend.name
        for backend in BACKENDS.values()
        if kind == "synthetic" or (kind in backend.dtypes and backend.installed)
    )


def _usual(kind: str) -> dict[str, Any]:
    return USUAL_OF_ACCELERATORS if kind in ACCELERATORS else USUAL


def _limits(kind: str, threads: int) -> "Limits":
    """What a design may ask, by what is known of the device before it is opened."""
    from attnprof.design import LONGEST_CALL_S, Limits

    is_cpu = kind in ("cpu", "synthetic")
    caches = [cache_bytes(3) or cache_bytes(2)] if kind == "cpu" else []
    return Limits(
        device_kind=kind,
        threads=threads,
        ceilings=remembered_ceilings(kind, threads) or assumed_ceilings(kind, threads),
        cache_bytes=float(next(filter(None, caches), ASSUMED_CACHE_BYTES)),
        num_units=float(threads) if is_cpu else ASSUMED_UNITS,
        free_bytes=available_bytes() if kind == "cpu" else None,
        call_s=LONGEST_CALL_S.get(kind, LONGEST_CALL_S[""]),
    )


def _designed(asked: Asked, kind: str, limits: "Limits") -> Grid:
    """The first design of a sweep for fit, as its budget allows."""
    from attnprof import design
    from attnprof.sweep import expected_s

    if asked.spec is not None:
        raise UsageError(
            f"--for-fit designs its sweep, and {asked.spec!r} is another", "leave one of them out"
        )
    kernels = expand(
        FOR_FIT, design.axes_of(asked.axes, kind), asked.axes, _backends(kind), _usual(kind)
    )
    options = design.candidates(design.kernels_of(kernels.workloads), limits)
    if not options:
        raise UsageError(f"nothing of this runs on {kind}", "see what does: attnprof show backends")

    def cost_s(workload: Workload) -> float:
        call_s = limits.expected_s(workload)
        return expected_s(workload, for_fit_plan(kind), call_s) + design.set_up_s(workload)

    total_s = design.FIRST_SHARE * (asked.budget_s or design.BUDGET_S)
    return Grid(FOR_FIT, tuple(design.first_points(options, limits, cost_s, total_s)))


def for_fit_plan(kind: str) -> Plan:
    """A law is missed by more than 3 %: many points tell more of it than sharp ones."""
    usual = plan_for(kind)
    return replace(usual, target=max(0.03, usual.target), max_samples=100, budget_s=1, warmup_s=0.5)


def _groups(asked: Asked) -> tuple[str, dict[str, dict[str, Any]]]:
    """The groups of the named sweep; where none is named, the typed axes alone, else ``quick``."""
    if asked.spec is None and asked.axes:
        return TYPED, {TYPED: {}}
    spec = "quick" if asked.spec is None else asked.spec
    path = Path(spec)
    if path.suffix in (".yaml", ".yml") or os.sep in spec:
        return sweep_groups(read_yaml(path), str(path))
    known = list_profiles("sweeps")
    if spec not in known:
        raise UsageError(f"unknown sweep {spec!r}", nearest(spec, known))
    return sweep_groups(load_profile("sweeps", spec), f"sweep {spec!r}")


def _names_grid(asked: Asked) -> bool:
    return bool(asked.axes) or asked.spec is not None


def _resumed_grid(run_dir: Path) -> Grid:
    from attnprof.records import read_header, workloads_of

    header = read_header(run_dir)
    workloads = workloads_of(run_dir, header)
    if not workloads:
        raise UsageError(f"{run_dir} does not say what it was to measure", "name the sweep again")
    for one in workloads:
        if one.model is not None and one.model_digest is not None:
            now = sizes_of_model(one.model, one.implementation)["model_digest"]
            if now != one.model_digest:
                raise UsageError(
                    f"{one.model} has changed since {run_dir} was begun",
                    "put it back as it was, or sweep into another folder",
                )
    return Grid(str((header.get("grid") or {}).get("name")), workloads)


def _resumed_dir(asked: Asked) -> Path:
    """``--output``, or the newest run that is not finished."""
    if asked.output is not None:
        return asked.output
    from attnprof.records import RUN_FILE, read_header

    runs = sorted(
        (path.parent for path in RUNS_DIR.glob(f"*/{RUN_FILE}")),
        key=lambda run: run.stat().st_mtime,
        reverse=True,
    )
    for run in runs:
        if read_header(run).get("finished") is None:
            return run
    raise UsageError(f"no unfinished run in {RUNS_DIR}", "name the run with --output")


def _new_dir(asked: Asked) -> Path:
    """A folder named after the time and the sweep, which no run has yet."""
    if asked.for_fit:
        name = FOR_FIT
    else:
        name = Path(_groups(asked)[0]).stem if asked.spec is None else Path(asked.spec).stem
    return new_dir(name)


def _summary(grid: Grid, forecasts: Sequence[Forecast], kind: str, run_dir: Path) -> str:
    """In a line or two: how much, how long, how large, where to."""
    from attnprof import units
    from attnprof.progress import time_words
    from attnprof.sweep import expected_s

    runnable = [one for one in forecasts if one.problem is None]
    total_s = sum(expected_s(one.workload, plan_for(kind), one.call_s) for one in runnable)
    words = f"sweep '{grid.name}': {counted(len(grid.workloads), 'workload')} on {kind}"
    if len(runnable) < len(forecasts):
        words += f", {len(forecasts) - len(runnable)} of which will not run"
    if grid.skipped:
        words += f", {len(grid.skipped)} combinations left out"
    if grid.unused:
        words += f", none of which takes {' or '.join(grid.unused)}"
    if runnable:
        words += f"; {time_words(total_s)}"
        largest = max(runnable, key=lambda one: one.needed_bytes)
        words += f", up to {units.capacity(largest.needed_bytes)} of memory"
    return f"{words}; into {run_dir}"


def run(plan: SweepPlan, watch: Any) -> "Outcome":
    """Run the sweep that was planned. Gives a ``sweep.Outcome``."""
    from attnprof.sweep import SweepRequest, run_sweep

    asked = plan.asked
    kind = _device_kind(asked.device)
    outcome = run_sweep(
        SweepRequest(
            workloads=plan.grid.workloads,
            device=asked.device,
            run_dir=plan.run_dir,
            resume=asked.resume,
            plan=_measuring(plan, kind),
            seed=asked.seed,
            threads=asked.threads,
            settings=asked.settings,
            allocator=asked.allocator,
            budget_s=asked.budget_s,
            timeout_s=asked.timeout_s,
            energy=asked.energy,
            prune=asked.prune,
            predict_memory=asked.predict_memory,
            command=asked.command,
            grid={
                "name": plan.grid.name,
                **({"grows": True} if plan.limits is not None else {}),
                "workloads": [workload.to_json() for workload in plan.grid.workloads],
                "skipped": [vars(skipped) for skipped in plan.grid.skipped],
            },
        ),
        watch,
    )
    if outcome.records or outcome.unfinished:
        _remember_roofs(plan.run_dir, asked.threads or default_threads())
    return outcome


def _measuring(plan: SweepPlan, kind: str) -> Plan | None:
    """How each workload is measured; None for what is usual."""
    if plan.limits is not None:
        return for_fit_plan(kind)
    interval = plan.asked.interval
    return None if interval is None else replace(plan_for(kind), target=interval)


def _remember_roofs(run_dir: Path, threads: int) -> None:
    from attnprof.records import read_header

    conditions = read_header(run_dir)["conditions"]
    remember_ceilings(conditions["device_kind"], threads, conditions["ceilings"])


def closing_words(outcome: Any) -> str:
    """What to know when a sweep has ended: what is there, what is missing, where it lies."""
    num_ok = sum(record["status"] == "ok" for record in outcome.records)
    words = f"{counted(num_ok, 'workload')} measured"
    if num_ok < len(outcome.records):
        words += f", {len(outcome.records) - num_ok} not"
    left = len(outcome.unfinished) + len(outcome.not_reached)
    if left:
        words += f"; {left} left: attnprof sweep --resume --output {outcome.run_dir}"
    if outcome.records or outcome.unfinished:
        words += f"; report in {outcome.run_dir / 'report.md'}"
    return words


def doctor(
    device: str, threads: int | None, *, self_test: bool, tell: Callable[[str], None]
) -> tuple[list[Table], str]:
    """What disturbs this machine, and, measured, what it can tell apart."""
    from attnprof.listing import abilities_table, findings_table, spreads_table

    tables = [findings_table(machine.findings())]
    try:
        tables.append(abilities_table(_device_kind(device)))
    except CannotMeasureError as error:
        return tables, f"{error.problem}: {error.fix}"
    if not self_test:
        return tables, "no self-test was made"
    from attnprof.doctor import CANNED, NUM_LAUNCHES, verdict
    from attnprof.doctor import self_test as test
    from attnprof.launches import launch_medians

    with launch_medians(device, threads, CANNED) as launch:

        def told(index: int) -> Mapping[str, tuple[float, float | None]]:
            tell(f"self-test: launch {index + 1} of {NUM_LAUNCHES}")
            return launch(index)

        spreads = test(told)
    return [*tables, spreads_table(spreads, NUM_LAUNCHES)], verdict(spreads)
