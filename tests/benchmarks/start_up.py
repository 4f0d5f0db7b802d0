"""How light the command line is: CPU as a ratio to ``import typer``, modules, time to a plan."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.number import Number
from tests.benchmarks.processes import IMPORT_TYPER, TURNS, Spent, least_spent, seen_at_the_end

RATIO = 3.0
PLAN_S = 0.3
COMMANDS = {"--help": ("--help",), "--version": ("--version",)}
PLAN = ("sweep", "quick", "--device", "cpu", "--dry-run")
TINY = ("sweep", "--seq-len", "64", "--heads", "1", "--quiet")
HOW = f"least of {TURNS} processes, in turns"


def numbers(busy: bool) -> list[Number]:
    loaded = {name for one in COMMANDS.values() for name in seen_at_the_end(*one).heavy}
    return [
        *of_times(spent_by_commands(), busy),
        Number(
            name="heavy modules behind --help, --version",
            found=", ".join(sorted(loaded)) or "none",
            wanted="none",
            met=not loaded,
            how="modules that the process has loaded at its end",
        ),
        *(_torch_number(device) for device in ("synthetic", "cpu")),
    ]


def of_times(spent: Mapping[str, Spent], busy: bool) -> list[Number]:
    typer_s = spent["import typer"].cpu_s
    ratios = [
        Number(
            name=f"CPU of attnprof {name}",
            found=f"{spent[name].cpu_s / typer_s:.2f}×",
            wanted=f"{RATIO:g}× import typer at most",
            met=spent[name].cpu_s <= RATIO * typer_s,
            how=f"{spent[name].cpu_s:.3f} s to {typer_s:.3f} s; {HOW}",
        )
        for name in COMMANDS
    ]
    return [*ratios, _plan_number(spent["plan"], busy)]


def _plan_number(plan: Spent, busy: bool) -> Number:
    """Judged by the wall clock, as a user meets it; beside other work by CPU time."""
    judged_s, clock = (plan.cpu_s, "CPU") if busy else (plan.wall_s, "wall")
    return Number(
        name="sweep prints its plan",
        found=f"{judged_s:.3f} s {clock}",
        wanted=f"{PLAN_S:g} s at most",
        met=judged_s <= PLAN_S,
        how=f"attnprof {' '.join(PLAN)}, start to end: {plan.wall_s:.3f} s wall, "
        f"{plan.cpu_s:.3f} s CPU; {HOW}",
    )


def _torch_number(device: str) -> Number:
    heavy = heavy_after_sweep(device)
    return Number(
        name=f"torch in the process of a sweep on {device}",
        found="loaded" if "torch" in heavy else "absent",
        wanted="absent",
        met="torch" not in heavy,
        how="modules of the parent at its end; workers load their own",
    )


def spent_by_commands(turns: int = TURNS) -> dict[str, Spent]:
    ours = {**COMMANDS, "plan": PLAN}
    commands = {name: ("-m", "attnprof", *arguments) for name, arguments in ours.items()}
    return least_spent({"import typer": IMPORT_TYPER, **commands}, turns)


def heavy_after_sweep(device: str) -> tuple[str, ...]:
    """Heavy modules in the parent process of a sweep that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "run")
        return seen_at_the_end(*TINY, "--device", device, "--output", output).heavy
