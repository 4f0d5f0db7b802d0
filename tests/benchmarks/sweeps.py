"""Real sweeps for the benchmarks: what is asked for into records and fits."""

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnprof.measure import Plan
from attnprof.progress import PlainWatcher
from attnprof.records import read_run
from attnprof.report import FIT_FILE, write_reports
from attnprof.run_header import Header
from attnprof.session import Asked, plan
from attnprof.sweep import Outcome, SweepRequest, run_sweep

# Where only bytes are of interest.
ONCE = Plan(target=0.5, min_samples=1, min_rounds=1, budget_s=1e-3, warmup_s=0.0)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A sweep that has run: what it gave, and the content of its ``run.json`` and ``fit.json``."""

    outcome: Outcome
    header: Header
    fits: dict[str, Any]


def ran(asked: Asked, measuring: Plan | None = None) -> Ran:
    """Run the sweep in a folder that is gone afterwards; it tells of itself on standard error.

    Args:
        measuring: How long each workload is measured; None for the device's own plan.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        request = SweepRequest(
            workloads=plan(replace(asked, output=run_dir)).grid.workloads,
            device=asked.device,
            run_dir=run_dir,
            plan=measuring,
            threads=asked.threads,
        )
        outcome = run_sweep(request, PlainWatcher(sys.stderr))
        write_reports(run_dir)
        return Ran(
            outcome=outcome,
            header=read_run(run_dir).header,
            fits=json.loads((run_dir / FIT_FILE).read_text(encoding="utf-8")),
        )
