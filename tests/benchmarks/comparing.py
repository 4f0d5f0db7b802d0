"""How light a comparison of two large runs is: its CPU time, and what it loads."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.number import Number
from tests.benchmarks.processes import HEAVY, TURNS, Seen, Spent, least_spent, seen_at_the_end
from tests.verdicts.runs import SHAPES, record, write_run

NUM_WORKLOADS = 1000
CPU_S = 0.6
NEVER_LOADED = HEAVY


def numbers(busy: bool) -> list[Number]:
    with tempfile.TemporaryDirectory() as folder:
        command = written_runs(Path(folder), NUM_WORKLOADS)
        spent = least_spent({"compare": ("-m", "attnprof", *command)})["compare"]
        return of_measured(spent, seen_at_the_end(*command))


def written_runs(folder: Path, num_workloads: int) -> Sequence[str]:
    """The command that compares two runs of so many workloads, which are made: five launches of
    ten samples each."""
    paths = []
    for seed, name in enumerate(("base", "new")):
        records = [
            record(place % len(SHAPES), seed=1000 * place + seed)
            | {"workload_id": f"{name_of(place)}", "batch_size": 1 + place}
            for place in range(num_workloads)
        ]
        paths.append(str(write_run(folder / name, records)))
    return ["compare", *paths]


def name_of(place: int) -> str:
    phase, kv_len = SHAPES[place % len(SHAPES)]
    return f"{phase}-causal-flash-float32-b{1 + place}-s{kv_len}-h8-d64-l1"


def of_measured(spent: Spent, seen: Seen) -> list[Number]:
    loaded = [name for name in NEVER_LOADED if name in seen.heavy]
    return [
        Number(
            name=f"CPU of attnprof compare, {NUM_WORKLOADS:,} workloads",
            found=f"{spent.cpu_s:.3f} s",
            wanted=f"{CPU_S:g} s at most",
            met=spent.cpu_s <= CPU_S,
            how=f"two runs of five launches of ten samples each; least of {TURNS} processes",
        ),
        Number(
            name="heavy modules behind compare",
            found=", ".join(loaded) or "none",
            wanted="none",
            met=not loaded,
            how=f"of {', '.join(NEVER_LOADED)}, at its end",
        ),
    ]
