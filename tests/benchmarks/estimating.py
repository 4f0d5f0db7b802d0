"""How light an estimate is: CPU as a ratio to ``import typer``, memory, and a grid of 100,000."""

import time
from collections.abc import Mapping

from attnprof.estimate_grid import GridRequest, estimate_grid
from attnprof.gpus import all_gpus
from attnprof.models.load import load_model
from tests.benchmarks.number import Number
from tests.benchmarks.processes import (
    IMPORT_TYPER,
    TURNS,
    Seen,
    Spent,
    least_spent,
    seen_at_the_end,
)

MODEL = "llama-3.1-8b"
COMMAND = ("estimate", MODEL, "--gpu", "h100", "--max-model-len", "8k")
RATIO = 4.0
PEAK_BYTES = 60e6
GRID_S = 2.0
NEVER_LOADED = ("torch", "pandas", "scipy")


def numbers(busy: bool) -> list[Number]:
    request = grid_request()
    grid_s = min(grid_cpu_s(request) for _ in range(3))
    return of_measured(spent_by_commands(), seen_at_the_end(*COMMAND), request, grid_s)


def of_measured(
    spent: Mapping[str, Spent], seen: Seen, request: GridRequest, grid_s: float
) -> list[Number]:
    typer, command = spent["import typer"], spent["estimate"]
    loaded = [name for name in NEVER_LOADED if name in seen.heavy]
    return [
        Number(
            name="CPU of attnprof estimate",
            found=f"{command.cpu_s / typer.cpu_s:.2f}×",
            wanted=f"{RATIO:g}× import typer at most",
            met=command.cpu_s <= RATIO * typer.cpu_s,
            how=f"attnprof {' '.join(COMMAND)}: {command.cpu_s:.3f} s to {typer.cpu_s:.3f} s; "
            f"least of {TURNS} processes, in turns",
        ),
        Number(
            name="memory of attnprof estimate",
            found="unknown" if seen.peak_bytes is None else f"{seen.peak_bytes / 1e6:.1f} MB",
            wanted=f"{PEAK_BYTES / 1e6:.0f} MB at most",
            met=None if seen.peak_bytes is None else seen.peak_bytes <= PEAK_BYTES,
            how="most that the process has held (VmHWM)",
        ),
        Number(
            name="heavy modules behind estimate",
            found=", ".join(loaded) or "none",
            wanted="none",
            met=not loaded,
            how=f"of {', '.join(NEVER_LOADED)}, at its end",
        ),
        Number(
            name=f"a grid of {request.num_combinations:,} estimates",
            found=f"{grid_s:.2f} s CPU",
            wanted=f"{GRID_S:g} s at most",
            met=grid_s <= GRID_S,
            how=f"least of 3; {grid_s / typer.cpu_s:.1f}× import typer",
        ),
    ]


def spent_by_commands(turns: int = TURNS) -> dict[str, Spent]:
    commands = {"import typer": IMPORT_TYPER, "estimate": ("-m", "attnprof", *COMMAND)}
    return least_spent(commands, turns)


def grid_request(num_lens: int = 63) -> GridRequest:
    """One model on every GPU by engine, context, tensor parallelism and KV dtype."""
    return GridRequest(
        models=(load_model(MODEL),),
        gpus=tuple(gpu.name for gpu in all_gpus()),
        engines=("vllm", "vllm@0.11", "sglang"),
        max_model_lens=tuple(1024 * number for number in range(1, num_lens + 1)),
        tps=(1, 2, 4, 8),
        kv_dtypes=("auto", "fp8"),
    )


def grid_cpu_s(request: GridRequest) -> float:
    started = time.process_time()
    grid = estimate_grid(request)
    spent_s = time.process_time() - started
    assert len(grid) == request.num_combinations
    return spent_s
