"""Calibrations and fitted laws -> tables."""

from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.laws.baselines import BASELINES
from attnprof.laws.holdouts import FORM
from attnprof.render import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attnprof.fit_laws import FittedGroup, RunFit
    from attnprof.laws.calibration import CalibratedLaw, Calibration

WORST_RESIDUALS = 10


def calibrations_table(calibrations: "Sequence[Calibration]") -> Table:
    """Every calibration in a line."""
    return Table(
        name="calibrations",
        title=units.counted(len(calibrations), "calibration"),
        columns=(
            Column("name", "Name"),
            Column("device", "Device"),
            Column("engine", "Engine"),
            Column("num_laws", "Laws", str, "right"),
            Column("laws", "Of"),
            Column("random", "Random hold-out", units.percent, "right"),
            Column("far", "Four times longer", units.percent, "right"),
            Column("source", "Source", priority=1, wraps=True),
        ),
        rows=tuple(
            {
                "name": one.name,
                "device": one.device,
                "engine": one.engine,
                "num_laws": len(one.laws),
                "laws": ", ".join(dict.fromkeys(law.fitted.law.phase for law in one.laws.values())),
                "random": _median(one, "random_with_residual", "random"),
                "far": _median(one, "far_with_residual", "far"),
                "source": one.source.get("repository") or one.source.get("made_by"),
            }
            for one in calibrations
        ),
        notes=("Errors: medians over the laws of each law's median.",),
    )


def _median(calibration: "Calibration", *names: str) -> float | None:
    """Of the first error that a law has."""
    import statistics

    found = []
    for law in calibration.laws.values():
        known = next((law.errors[name] for name in names if name in law.errors), None)
        if known is not None:
            found.append(known[0])
    return statistics.median(found) if found else None


def calibration_tables(calibration: "Calibration") -> list[Table]:
    """One calibration: its laws with their errors, every coefficient, and where it comes from."""
    rows = tuple(_law_row(key, law) for key, law in calibration.laws.items())
    laws = Table(
        name="laws",
        title=f"Calibration '{calibration.name}': {calibration.engine} on {calibration.device}",
        columns=(
            Column("key", "Law"),
            Column("num_points", "Points", str, "right"),
            Column("in_sample", "In-sample", units.percent, "right", 1),
            Column("random", "Random hold-out", units.percent, "right"),
            Column("random_p90", "90 % below", units.percent, "right"),
            Column("far", "Four times longer", units.percent, "right"),
            Column("far_p90", "90 % below", units.percent, "right"),
            Column("baseline", "t0 + max, random", units.percent, "right", 1),
            Column("domain", "Fitted from … to", priority=2),
        ),
        rows=rows,
        notes=tuple(f"{name}: {value}" for name, value in calibration.source.items()),
    )
    return [laws, coefficients_table(calibration.laws)]


def _law_row(key: str, law: "CalibratedLaw") -> dict[str, Any]:
    errors = law.errors
    random = errors.get("random_with_residual") or errors.get("random")
    far = errors.get("far_with_residual") or errors.get("far")
    in_sample, baseline = errors.get("in-sample"), errors.get("random_t0_+_max")
    return {
        "key": key,
        "num_points": law.fitted.num_points,
        "in_sample": in_sample and in_sample[0],
        "random": random and random[0],
        "random_p90": random and random[1],
        "far": far and far[0],
        "far_p90": far and far[1],
        "baseline": baseline and baseline[0],
        "domain": ", ".join(
            f"{axis} {low:g} … {high:g}" for axis, (low, high) in law.domain.items()
        ),
    }


def coefficients_table(laws: "Mapping[str, CalibratedLaw]") -> Table:
    """Every coefficient of some laws, as a time or as a share of a roof."""
    rows = []
    for key, law in laws.items():
        fitted = law.fitted
        for i, one in enumerate(fitted.law.coefficients):
            low = None if fitted.low is None else float(fitted.low[i])
            high = None if fitted.high is None else float(fitted.high[i])
            rows.append(
                {
                    "law": key,
                    "coefficient": one.name,
                    "value": float(fitted.coefficients[i]),
                    "low": low,
                    "high": high,
                    "is_time": one.is_time,
                    "shown": _shown(float(fitted.coefficients[i]), one.is_time),
                    "shown_low": _shown(low, one.is_time),
                    "shown_high": _shown(high, one.is_time),
                    "share": float(fitted.largest_shares[i]),
                    "seen": fitted.is_seen[i],
                    "meaning": one.meaning,
                }
            )
    return Table(
        name="coefficients",
        title="Coefficients, each with its 95 % interval",
        columns=(
            Column("law", "Law"),
            Column("coefficient", "Coefficient"),
            Column("shown", "Value", align="right"),
            Column("shown_low", "Low", align="right"),
            Column("shown_high", "High", align="right"),
            Column("share", "Largest share", units.percent, "right"),
            Column("seen", "Pinned down", lambda seen: "yes" if seen else "no"),
            Column("meaning", "Is", priority=1, wraps=True),
        ),
        rows=tuple(rows),
        notes=(
            "Not pinned down: under 20 % of every latency, or an interval over four times wide; "
            "its value leans on what was expected before anything was measured.",
        ),
    )


def _shown(value: float | None, is_time: bool) -> str | None:
    if value is None:
        return None
    return units.seconds(value) if is_time else f"{units.three_digits(value)}×"


def fit_tables(found: "RunFit") -> list[Table]:
    """What a fit found: whether each law holds, what binds where, coefficients, then the rest."""
    return [
        _verdicts_table(found),
        *_bindings_tables(found),
        coefficients_table(found.calibration.laws),
        _holdouts_table(found.groups),
        _residuals_table(found.groups),
    ]


def _verdicts_table(found: "RunFit") -> Table:
    """A law a line: whether it holds on what was held out, and what naive laws miss of the same."""
    num_held = sum(one.holds for one in found.groups)
    return Table(
        name="laws",
        title=f"Laws of {found.calibration.device}: {num_held} of {len(found.groups)} hold",
        columns=(
            Column("law", "Law"),
            Column("holds", "Holds", lambda holds: "yes" if holds else "NO"),
            Column("median", "Median", units.percent, "right"),
            Column("p90", "90 %", units.percent, "right"),
            Column("in_80", "80 % band", units.percent, "right"),
            Column("naive", "Naive", units.percent, "right"),
            Column("far", "Far", units.percent, "right", 1),
            Column("num_points", "Points", str, "right", 1),
            *(Column(name, name, units.percent, "right", 2) for name in BASELINES),
        ),
        rows=tuple(_verdict_row(one) for one in found.groups),
        notes=(
            "Errors on points held out at random: half are below the median, nine in ten below "
            "90 %; 80 % band: the share of the points that it holds. Naive: the best median of n² "
            "alone, rooflines and interpolation. Far: the median of the longest and largest points "
            "from the others.",
            *(f"No law of {note}." for note in found.notes),
            *(f"{words}." for words in found.used_once),
        ),
        alarming=lambda row: row["holds"] is False,
    )


def _verdict_row(one: "FittedGroup") -> dict[str, Any]:
    by = {(outcome.holdout, outcome.method): outcome for outcome in one.outcomes}
    held, far = by.get(("random", FORM)), by.get(("far", FORM))
    naive = {name: by["random", name].median for name in BASELINES if ("random", name) in by}
    return {
        "law": one.key,
        "holds": one.holds if held else None,
        "median": held and held.median,
        "p90": held and held.p90,
        "in_80": held and held.in_80,
        "naive": min(naive.values(), default=None),
        "far": far and far.median,
        "num_points": one.law.fitted.num_points,
        **naive,
    }


def _bindings_tables(found: "RunFit") -> list[Table]:
    """What is said of each law beyond whether it holds, which the table before has."""
    rows = tuple(
        {"law": one.key, "words": words, "holds": one.holds}
        for one in found.groups
        for words in one.words[1:]
    )
    table = Table(
        name="bindings",
        title=f"What binds where on {found.calibration.device}",
        columns=(Column("law", "Law"), Column("words", "Says", wraps=True)),
        rows=rows,
    )
    return [table] if rows else []


def _holdouts_table(groups: "Sequence[FittedGroup]") -> Table:
    return Table(
        name="holdouts",
        title="Errors on what was held out",
        columns=(
            Column("law", "Law"),
            Column("holdout", "Hold-out"),
            Column("method", "By"),
            Column("num_judged", "Judged", str, "right", 1),
            Column("median", "Median", units.percent, "right"),
            Column("p90", "90 %", units.percent, "right"),
            Column("in_80", "80 % band", units.percent, "right", 1),
        ),
        rows=tuple(
            {
                "law": one.key,
                "holdout": outcome.holdout,
                "method": outcome.method,
                "num_judged": outcome.num_judged,
                "median": outcome.median,
                "p90": outcome.p90,
                "in_80": outcome.in_80,
            }
            for one in groups
            for outcome in one.outcomes
        ),
        notes=("Far: the longest lengths and the largest batches, from the shorter and smaller.",),
    )


def _residuals_table(groups: "Sequence[FittedGroup]") -> Table:
    return Table(
        name="residuals",
        title="Residuals of the laws alone, the worst first",
        columns=(
            Column("law", "Law"),
            Column("shape", "Shape", wraps=True),
            Column("measured_s", "Measured", units.seconds, "right"),
            Column("fitted_s", "Fitted", units.seconds, "right"),
            Column("residual", "Off by", "{:+.1%}".format, "right"),
        ),
        rows=tuple(sorted(_residuals(groups), key=lambda row: -abs(row["residual"]))),
        notes=("Off by: measured over fitted, less one.",),
        most_shown=WORST_RESIDUALS,
    )


def _residuals(groups: "Sequence[FittedGroup]") -> "Iterator[dict[str, Any]]":
    for one in groups:
        axes, shapes = one.group.law.axes, one.group.shapes
        times = zip(one.group.latency_s.tolist(), one.residuals.tolist(), strict=True)
        for i, (measured_s, residual) in enumerate(times):
            yield {
                "law": one.key,
                "shape": " ".join(f"{axis}={shapes[axis][i]:g}" for axis in axes),
                "measured_s": measured_s,
                "fitted_s": measured_s / (1 + residual),
                "residual": residual,
            }
