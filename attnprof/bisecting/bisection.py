"""A good end, a bad end and a workload -> the first bad commit, by ``git bisect run``.

Every step measures the good end anew, in turns with the commit that git asks about: what was
measured minutes ago was measured on another machine, as far as its neighbours and clocks go.
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import attnprof
from attnprof.bisecting.repository import (
    Commit,
    checkouts,
    find_ends,
    git,
    git_environment,
    left_of_bisection,
    num_between,
)
from attnprof.bisecting.step import EXIT_CODES, Step, StepPlan, prepare, read_steps
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.stopping import stop_wishes
from attnprof.workload import Workload

FORMAT = 1
POLL_S = 0.3
ENDING_S = 15.0  # for a step to close its workers
_STEP = "import sys; sys.path.insert(0, sys.argv[1]); "
_STEP += "from attnprof.bisecting.step import main; main(sys.argv[2])"


@dataclass(frozen=True, kw_only=True)
class BisectRequest:
    """What to look for, and where.

    Args:
        plan: What every step does; its folders and its threshold are filled in here.
    """

    good: str
    bad: str
    repository: Path
    workload: Workload
    plan: StepPlan


@dataclass(frozen=True)
class Bisected:
    """What a bisection found.

    Args:
        ends: The bad end beside the good one.
        steps: What git asked about, in order.
        candidates: The first bad commit; where commits had to be skipped, those it is among.
    """

    good: Commit
    bad: Commit
    workload_id: str
    metric: str
    ends: Step
    steps: tuple[Step, ...]
    candidates: tuple[Commit, ...]
    output: Path

    @property
    def first_bad(self) -> Commit | None:
        return self.candidates[0] if len(self.candidates) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """The document of ``--format json``."""
        return {
            "format": FORMAT,
            "workload_id": self.workload_id,
            "metric": self.metric,
            "good": asdict(self.good),
            "bad": asdict(self.bad),
            "first_bad": None if self.first_bad is None else asdict(self.first_bad),
            "candidates": [asdict(commit) for commit in self.candidates],
            "ends": asdict(self.ends),
            "steps": [asdict(step) for step in self.steps],
            "output": str(self.output),
        }


def bisect(request: BisectRequest, tell: Callable[[str], None] = lambda text: None) -> Bisected:
    """Prove that the ends differ, and find the commit from which on they do.

    Args:
        tell: Told how it goes on.

    Raises:
        UsageError: No repository, no such commit, or ends that are no two ends.
        CannotMeasureError: The ends do not differ, or one of them does not run.
        KeyboardInterrupt: The user stopped it; what was measured is kept.
    """
    repository, good, bad = find_ends(request.repository, request.good, request.bad)
    output = Path(request.plan.output).resolve()
    _make_output(output)
    with checkouts(repository, good, bad) as (good_folder, tested), stop_wishes() as stop:
        plan = replace(
            request.plan,
            workload=request.workload.to_json(),
            good_folder=str(good_folder),
            tested_folder=str(tested),
            output=str(output),
        )
        prepare(plan, good_folder)
        ends = _prove(plan, tell, stop)
        plan = replace(plan, threshold=half_way(ends))
        number = num_between(repository, good, bad)
        tell(
            f"{number} commits, about {math.ceil(math.log2(number + 1))} steps: bad is "
            f"{plan.threshold:+.1%} over the good end, half of what the bad end is"
        )
        git(tested, "bisect", "start", bad.id, good.id)
        command = ["git", "-C", str(tested), "bisect", "run", *_step_command(plan)]
        code = _run(command, stop, quiet=plan.quiet)
        candidates = left_of_bisection(tested)
    steps = read_steps(output)[1:]
    _check(code, candidates, [ends, *steps])
    return Bisected(
        good=good,
        bad=bad,
        workload_id=request.workload.workload_id,
        metric=plan.metric,
        ends=ends,
        steps=tuple(steps),
        candidates=tuple(candidates),
        output=output,
    )


def half_way(ends: Step) -> float:
    """The rise that makes a commit bad: half of that between the ends, on a log scale. [share]

    Good and bad commits are then equally far from it, so that each is told as well as the other.

    >>> half_way(Step(commit="c", subject="", outcome="bad", ratio=1.21)) # doctest: +ELLIPSIS
    0.1...
    """
    return math.sqrt(ends.ratio) - 1 if ends.ratio else 0.0


def _make_output(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        is_empty = not any(output.iterdir())
    except OSError as error:
        raise UsageError(
            f"cannot write {output}: {error.strerror}", "name another folder with --output"
        ) from None
    if not is_empty:
        raise UsageError(f"{output} is not empty", "name another folder with --output")


def _step_command(plan: StepPlan) -> list[str]:
    """What makes a step: with this attnprof, whatever lies in the folder that it is run in."""
    root = str(Path(attnprof.__file__).parent.parent)
    return [sys.executable, "-P", "-c", _STEP, root, str(plan.write())]


def _prove(plan: StepPlan, tell: Callable[[str], None], stop: Event) -> Step:
    """The bad end beside the good one; it has to be worse."""
    tell("first the two ends")
    code = _run(_step_command(plan), stop, Path(plan.tested_folder))
    steps = read_steps(Path(plan.output))
    if code not in EXIT_CODES.values() or not steps:
        raise CannotMeasureError("the good end cannot be measured", "see above what it lacks")
    (ends,) = steps
    if ends.outcome == "skipped":
        raise CannotMeasureError(
            f"the two ends cannot be told apart: {ends.reason}",
            "name ends that run, or give it longer with --budget",
        )
    if ends.outcome == "good":
        interval = f"{_times(ends.ratio)} [{_times(ends.ratio_low)}, {_times(ends.ratio_high)}]"
        raise CannotMeasureError(
            f"the bad end is not worse than the good one: {interval}",
            "look at this workload with attnprof gate; it may be another one that got worse",
        )
    return ends


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3f}×"


def _run(
    command: Sequence[str], stop: Event, folder: Path | None = None, *, quiet: bool = False
) -> int:
    """Run it apart from the terminal, so that Ctrl-C reaches it through us and in order.

    Raises:
        KeyboardInterrupt: The user wants it to stop; it has ended then.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=git_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet or not _has_file(sys.stderr) else sys.stderr.fileno(),
        start_new_session=True,
    ) as process:
        while True:
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    break
            except KeyboardInterrupt:
                break
        _end(process)
    raise KeyboardInterrupt


def _has_file(stream: Any) -> bool:
    try:
        return stream is not None and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask it and all below it to end, and see to it that they do."""
    for number in (signal.SIGINT, signal.SIGKILL):
        end_at = time.monotonic() + ENDING_S
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < end_at:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(POLL_S)
        except (ProcessLookupError, PermissionError):
            return


def _check(code: int, candidates: Sequence[Commit], steps: Sequence[Step]) -> None:
    """That git ended as it should, and that the first bad commit was found to be bad by us."""
    if code >= 128 or not candidates:
        raise CannotMeasureError(
            f"git bisect run gave up with {code}", "see above why; what was measured is kept"
        )
    found_bad = {step.commit for step in steps if step.outcome == "bad"}
    if len(candidates) == 1 and candidates[0].id not in found_bad:
        raise CannotMeasureError(
            f"git names {candidates[0].short}, which was not found to be bad",
            "see above what git says",
        )
