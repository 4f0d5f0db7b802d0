"""One commit beside the good end -> good, bad or skipped, as an exit code of ``git bisect run``."""

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attnprof.bisecting.repository import describe, git
from attnprof.errors import AttnprofError, CannotMeasureError
from attnprof.files import replace_file
from attnprof.gate import GateRequest, measure_pair
from attnprof.interpreters import Interpreter, find_interpreter
from attnprof.pairs import Pace, PairRequest
from attnprof.records import strict_json
from attnprof.verdicts.comparison import Comparison
from attnprof.verdicts.judging import Asked
from attnprof.verdicts.thresholds import DEFAULTS, Threshold, Thresholds
from attnprof.workload import Workload

PLAN_FILE = "bisect.json"
STEPS_FILE = "steps.jsonl"
EXIT_CODES = {"good": 0, "bad": 1, "skipped": 125}
EXIT_STOP = 130  # from 128 on, git gives the bisection up
_OUTCOMES = {"regressed": "bad", "same": "good", "improved": "good"}


class StoppedError(Exception):
    """The user wants it to stop."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What every step of one bisection does.

    Args:
        workload: As :meth:`Workload.to_json` writes it.
        threshold: The rise that makes a commit bad, as a share; None takes the gate's own.
        python: What runs a checkout, ``{}`` standing for its folder.
        setup: A command that makes a checkout ready, run by the shell in it.
        good_folder, tested_folder: Checkouts of the good end, and of the commit that is looked at.
        output: The folder that gets what is measured, a folder each commit.
    """

    workload: dict[str, Any]
    metric: str
    good_folder: str
    tested_folder: str
    output: str
    threshold: float | None = None
    python: str = "{}"
    setup: str | None = None
    device: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    seed: int = 0
    budget_s: float = 240.0
    timeout_s: float = 60.0
    quiet: bool = False
    command: tuple[str, ...] = ()

    def write(self) -> Path:
        """Keep it where a step finds it."""
        path = Path(self.output) / PLAN_FILE
        replace_file(path, strict_json(asdict(self)))
        return path


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one commit was found to be.

    Args:
        outcome: ``good``, ``bad`` or ``skipped``.
        verdict: The comparison's; None where it did not come to one.
        ratio: Of the commit over the good end, with its interval.
    """

    commit: str
    subject: str
    outcome: str
    verdict: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    threshold: float | None = None
    reason: str | None = None


def read_steps(output: Path) -> list[Step]:
    """The steps so far, in the order in which they were made."""
    try:
        text = (output / STEPS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [Step(**json.loads(line)) for line in text.splitlines()]


def main(plan_path: str) -> None:
    """Make one step; the process ends with the code that git reads.

    Whatever is no verdict on the commit, a bug among it, stops the bisection: taken for a verdict
    it would name the wrong commit.
    """
    code = EXIT_STOP
    try:
        content = json.loads(Path(plan_path).read_text(encoding="utf-8"))
        plan = StepPlan(**{**content, "command": tuple(content["command"])})
        step = measure_step(plan, (lambda text: None) if plan.quiet else _tell)
        with (Path(plan.output) / STEPS_FILE).open("a", encoding="utf-8") as file:
            file.write(strict_json(asdict(step)) + "\n")
        if not plan.quiet:
            _tell(step_words(step))
        code = EXIT_CODES[step.outcome]
    except AttnprofError as error:
        _tell(f"error {error.problem}")
        if error.fix:
            _tell(f"  fix {error.fix}")
    except (StoppedError, KeyboardInterrupt):
        _tell("interrupted")
    except Exception:  # noqa: BLE001 - whatever is left is ours, and no verdict on the commit
        traceback.print_exc()
    sys.exit(code)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def step_words(step: Step) -> str:
    """A step in a line."""
    why = f" ({step.reason})" if step.reason else ""
    ratio = "" if step.ratio is None else f", {step.ratio:.3f}× the good end"
    return f"{step.commit[:10]} is {step.outcome}{ratio}{why}: {step.subject}"


def measure_step(plan: StepPlan, tell: Callable[[str], None]) -> Step:
    """Measure the checked out commit beside the good end.

    Raises:
        CannotMeasureError: The good end does not run.
        StoppedError: The user wants it to stop.
    """
    tested = Path(plan.tested_folder)
    commit = describe(tested, git(tested, "rev-parse", "HEAD"))
    known = Step(commit=commit.id, subject=commit.subject, outcome="skipped")
    tell(f"{commit.short}: {commit.subject}")
    base = _interpreter(plan, Path(plan.good_folder))
    try:
        prepare(plan, tested)
        new = _interpreter(plan, tested)
        request = _gate_request(plan, base, new, commit.id)
        gated = measure_pair(request, tell)
    except AttnprofError as error:
        reason = error.problem.replace(plan.good_folder, "the good end")
        return replace(known, reason=reason.replace(plan.tested_folder, "the checkout"))
    if gated.interrupted or gated.comparison is None:
        raise StoppedError
    return _judged(known, plan, gated.comparison)


def prepare(plan: StepPlan, folder: Path) -> None:
    """Run the setup in a checkout.

    Raises:
        CannotMeasureError: It fails.
    """
    if plan.setup is None:
        return
    done = subprocess.run(
        plan.setup,
        shell=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        raise CannotMeasureError(
            f"the setup ended with {done.returncode}: {last.strip()[:200]}",
            f"try it in {folder.name}",
        )


def _interpreter(plan: StepPlan, folder: Path) -> Interpreter:
    return find_interpreter(plan.python.replace("{}", str(folder)))


def _gate_request(
    plan: StepPlan, base: Interpreter, new: Interpreter, commit_id: str
) -> GateRequest:
    workload = Workload.from_json(plan.workload)
    return GateRequest(
        pair=PairRequest(
            base=base,
            new=new,
            workloads=(workload,),
            output=_free_folder(Path(plan.output), commit_id[:10]),
            device=plan.device,
            threads=plan.threads,
            settings=plan.settings,
            seed=plan.seed,
            pace=Pace(timeout_s=plan.timeout_s),
            command=plan.command,
        ),
        asked=Asked(metrics=(plan.metric,), thresholds=_thresholds(plan)),
        budget_s=plan.budget_s,
    )


def _thresholds(plan: StepPlan) -> Thresholds:
    if plan.threshold is None:
        return Thresholds()
    return Thresholds(defaults={**DEFAULTS, plan.metric: Threshold(plan.threshold)})


def _free_folder(output: Path, name: str) -> Path:
    """git may look at a commit again."""
    taken = sum(path.name.split("-")[0] == name for path in output.iterdir())
    return output / (f"{name}-{taken + 1}" if taken else name)


def _judged(known: Step, plan: StepPlan, comparison: Comparison) -> Step:
    (found,) = comparison.workloads
    metric = found.metric(plan.metric)
    if metric is None:
        return replace(known, verdict=found.verdict, reason=found.reason or found.verdict)
    outcome = _OUTCOMES.get(metric.verdict, "skipped")
    return replace(
        known,
        outcome=outcome,
        verdict=metric.verdict,
        ratio=metric.ratio.mid,
        ratio_low=metric.ratio.low,
        ratio_high=metric.ratio.high,
        threshold=metric.threshold,
        reason=metric.reason or (metric.verdict if outcome == "skipped" else None),
    )
