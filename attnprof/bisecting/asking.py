"""What was typed of a bisection -> what is asked of it."""

from pathlib import Path
from typing import Any

from attnprof.bisecting.bisection import BisectRequest
from attnprof.bisecting.step import StepPlan
from attnprof.errors import UsageError, nearest
from attnprof.grid import Grid
from attnprof.verdicts.comparison import METRICS


def request_of(
    good: str,
    bad: str,
    repository: Path,
    *,
    workload_id: str,
    grid: Grid,
    listing: str,
    metric: str,
    output: Path,
    **of_steps: Any,
) -> BisectRequest:
    """The request, its names checked.

    Args:
        grid: The workloads among which the one is.
        listing: The command that lists them.
        of_steps: The rest of :class:`StepPlan`.

    Raises:
        UsageError: No such metric, or no such workload in the grid.
    """
    if metric not in METRICS:
        raise UsageError(f"no metric is called {metric!r}", nearest(metric, METRICS))
    by_id = {workload.workload_id: workload for workload in grid.workloads}
    if workload_id not in by_id:
        raise UsageError(
            f"sweep {grid.name!r} has no workload {workload_id!r}",
            f"{nearest(workload_id, list(by_id), listing)}; or name the sweep that has it with "
            "--spec or --axis",
        )
    return BisectRequest(
        good=good,
        bad=bad,
        repository=repository,
        workload=by_id[workload_id],
        plan=StepPlan(
            workload={}, metric=metric, good_folder="", tested_folder="", output=str(output),
            **of_steps,
        ),
    )  # fmt: skip
