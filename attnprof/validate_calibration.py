"""A calibration and runs of its device -> how far what it foretells misses what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnprof import units
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.fit_laws import latencies_of
from attnprof.law_shapes import workload_of
from attnprof.laws.calibration import KIND, Calibration, calibration_named
from attnprof.laws.holdouts import errors_of
from attnprof.predicted import Predicted, predict_workloads
from attnprof.profiles import find_profile
from attnprof.records import Run
from attnprof.render import Column, Table
from attnprof.run_header import calibrated_device, slug
from attnprof.several_runs import read_runs
from attnprof.units import counted

FORMAT = 1
ALL = "all"
WORST_ROWS = 10


@dataclass(frozen=True)
class Judged:
    """A measured latency beside the foretold one. [s]"""

    predicted: Predicted
    measured_s: float

    @property
    def error(self) -> float:
        """Foretold over measured, less one."""
        assert self.predicted.mid_s is not None
        return self.predicted.mid_s / self.measured_s - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the 80 % interval holds it."""
        low_s, high_s = self.predicted.low_s, self.predicted.high_s
        assert low_s is not None
        assert high_s is not None
        return low_s <= self.measured_s <= high_s

    @property
    def stratum(self) -> str:
        """Scope, phase, and implementation where it is not our own."""
        workload = self.predicted.workload
        library = "" if workload.implementation == "plain" else f", {workload.implementation}"
        return f"{workload.scope} {workload.phase}{library}"


@dataclass(frozen=True)
class CalibrationValidation:
    """Every workload that was judged, and words on those that were not."""

    calibration: Calibration
    judged: Sequence[Judged]
    left_out: Mapping[str, int]
    notes: Sequence[str]

    def tables(self) -> list[Table]:
        """The worst rows, then errors by stratum."""
        return [self._worst(), self._strata()]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "calibration": self.calibration.name,
            "strata": self.rows(),
            "workloads": [_row(one) for one in self.judged],
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Errors of each stratum, and of all together."""
        strata: dict[str, list[Judged]] = {}
        for one in self.judged:
            strata.setdefault(one.stratum, []).append(one)
        return [_errors(name, strata[name]) for name in sorted(strata)] + [
            _errors(ALL, self.judged)
        ]

    def _strata(self) -> Table:
        left_out = [f"Left out: {words}." for words in _left_out(self.left_out)]
        return Table(
            name="strata",
            title=f"Calibration '{self.calibration.name}' against what was measured",
            columns=(
                Column("stratum", "Workloads"),
                Column("num", "Number", str, "right"),
                Column("median", "Median error", units.percent, "right"),
                Column("p90", "90 % below", units.percent, "right"),
                Column("inside", "In 80 % interval", units.percent, "right"),
                Column("bias", "Median of signed", units.percent, "right", 1),
                Column("beyond", "Beyond domain", str, "right", 1),
            ),
            rows=tuple(self.rows()),
            notes=(*self.notes, *left_out),
        )

    def _worst(self) -> Table:
        worst = sorted(self.judged, key=lambda one: -abs(one.error))[:WORST_ROWS]
        return Table(
            name="worst",
            title=f"The {counted(len(worst), 'workload')} that were missed most",
            columns=(
                Column("workload_id", "Workload", wraps=True),
                Column("measured_s", "Measured", units.seconds, "right"),
                Column("mid_s", "Foretold", units.seconds, "right"),
                Column("error", "Off by", units.percent, "right"),
                Column("inside", "In interval", lambda is_in: "yes" if is_in else "no", "right"),
            ),
            rows=tuple(_row(one) for one in worst),
        )


def _row(one: Judged) -> dict[str, Any]:
    made = one.predicted
    return {
        "workload_id": made.workload.workload_id, "law": made.law_key,
        "measured_s": one.measured_s, "low_s": made.low_s, "mid_s": made.mid_s,
        "high_s": made.high_s, "error": one.error, "inside": one.is_inside,
        "beyond_domain": made.beyond_domain,
    }  # fmt: skip


def _errors(name: str, judged: Sequence[Judged]) -> dict[str, Any]:
    foretold_s, measured_s = (
        np.array(times, dtype=float)
        for times in zip(*((one.predicted.mid_s, one.measured_s) for one in judged), strict=True)
    )
    median, p90 = errors_of(foretold_s, measured_s)
    return {
        "stratum": name,
        "num": len(judged),
        "median": median,
        "p90": p90,
        "inside": sum(one.is_inside for one in judged) / len(judged),
        "bias": statistics.median(one.error for one in judged),
        "beyond": sum(one.predicted.beyond_domain for one in judged),
    }


def validate_calibration(
    paths: Sequence[Path], calibration: str | None = None
) -> CalibrationValidation:
    """Hold a calibration against runs that it was not fitted to.

    Args:
        calibration: By name or file; the one of the runs' device where left out.

    Raises:
        UsageError: No run, no such calibration, or runs of another device.
        CannotMeasureError: Nothing in them of which the calibration has a law.
    """
    runs, used_once = read_runs(paths)
    found = _calibration(runs[0], calibration)
    for run in runs:
        if any(record.get("kind") for record in run.records):
            raise UsageError(
                f"{run.path} holds what another project measured",
                "write attnprof validate kernels FILE, or name a run of this one",
            )
        if calibrated_device(run.header) != found.device:
            raise UsageError(
                f"{run.path} is of {calibrated_device(run.header)}, the calibration of "
                f"{found.device}",
                "give another with --calibration, or calibrate this device",
            )
    judged: list[Judged] = []
    left_out: dict[str, int] = {}
    for run in runs:
        _judge(run, found, judged, left_out)
    if not judged:
        reasons = "; ".join(_left_out(left_out)) or "no record of it has a time"
        raise CannotMeasureError(
            f"calibration {found.name!r} foretells nothing of what was measured: {reasons}",
            "calibrate with these kernels: attnprof calibrate --axis backend=…",
        )
    notes = (*_notes(runs, found), *used_once)
    return CalibrationValidation(found, judged, left_out, notes)


def _calibration(run: Run, name: str | None) -> Calibration:
    """The one that is named, or that of the run's device."""
    device = calibrated_device(run.header)
    if name is None and find_profile(KIND, slug(device)) is None:
        raise UsageError(
            f"there is no calibration of {device}",
            "make it: attnprof calibrate; or give a file with --calibration",
        )
    return calibration_named(name or slug(device))


def _left_out(counts: Mapping[str, int]) -> list[str]:
    return [f"{counted(num, 'workload')}: {why}" for why, num in counts.items()]


def _judge(
    run: Run, calibration: Calibration, judged: list[Judged], left_out: dict[str, int]
) -> None:  # fmt: skip
    measured = [one for one in run.records if one["status"] == "ok" and one.get("median_s")]
    workloads = [workload_of(one) for one in measured]
    times_s = latencies_of(measured, run.header)
    made = predict_workloads(calibration, workloads)
    for predicted, measured_s in zip(made, times_s, strict=True):
        if predicted.problem is not None:
            left_out[predicted.problem] = left_out.get(predicted.problem, 0) + 1
        else:
            judged.append(Judged(predicted, float(measured_s)))


def _notes(runs: Sequence[Run], calibration: Calibration) -> list[str]:
    """What takes from the worth of the table."""
    fitted = calibration.source.get("measured", "").split()
    same = [run for run in runs if str(run.header.get("started")) in fitted]
    notes = ["Foretold over measured, less one; waits for a core are taken off what was measured."]
    if same:
        listed = ", ".join(str(run.path) for run in same)
        notes.append(f"The calibration was fitted to {listed}: its errors there say little.")
    return notes
