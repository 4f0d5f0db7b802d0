"""Rows of one kernel -> how far a law and its rivals miss rows that they were not fitted to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnprof.laws import baselines
from attnprof.laws.base import Floats
from attnprof.laws.fitting import FIT_POINTS, Z80, Z90, Fitted, coordinates, fit, spread
from attnprof.laws.groups import Group, Mask, gpu_of
from attnprof.laws.residual import LocalResidual

FORM, WITH_RESIDUAL = "law", "law + residual"
METHODS = (FORM, WITH_RESIDUAL, *baselines.BASELINES)
RANDOM_SHARE = 0.20
FAR = 4.0  # times longer than the longest row that was fitted
HEADS_SEEN = (8, 32)
LEAST_ROWS = 40  # of a group; fewer say nothing of a hold-out
LEAST_TEST = 3
IN_SAMPLE_POINTS = 1000
USUAL_SIZE = 512  # of n and k: smaller products are those of no model
FEW = (12, 24)
NUM_FOLDS = 5
SAME_FAMILY, OTHER_FAMILY = "same family, not measured", "other family, not measured"
_FAMILIES = (
    ("a100", "Ampere"), ("a30", "Ampere"), ("a10", "Ampere, graphics"), ("a40", "Ampere, graphics"),
    ("rtx-30", "Ampere, graphics"), ("rtx-a", "Ampere, graphics"), ("gh200", "Hopper"),
    ("h1", "Hopper"), ("h2", "Hopper"), ("h8", "Hopper"), ("l4", "Ada"), ("rtx-40", "Ada"),
    ("rtx-6000-ada", "Ada"), ("b2", "Blackwell"), ("b3", "Blackwell"), ("gb2", "Blackwell"),
    ("gb3", "Blackwell"), ("rtx-50", "Blackwell, graphics"), ("rtx-pro", "Blackwell, graphics"),
)  # fmt: skip
_LENGTH = {
    "prefill": "q_len", "decode": "kv_len", "gemm": "m", "all-reduce": "bytes",
    "step": "num_tokens",
}  # fmt: skip
_FAR_OF = {"all-reduce": 16.0}
_FEW_OF = {"all-reduce": (6, 12)}
_LEAST_OF = {"all-reduce": 12}


@dataclass(frozen=True)
class Outcome:
    """Errors of one method on the rows that were held out."""

    holdout: str
    method: str
    num_fitted: int
    num_judged: int
    median: float
    p90: float
    in_80: float | None = None
    in_90: float | None = None


def least_rows(group: Group) -> int:
    """How many rows a group needs to be judged."""
    return _LEAST_OF.get(group.law.phase, LEAST_ROWS)


def judge(group: Group, seed: int = 0) -> list[Outcome]:
    """Every hold-out that the rows of a group allow, by every method."""
    found: list[Outcome] = []
    everything = np.ones(len(group.latency_s), dtype=bool)
    places = coordinates(group.law, group.shapes)
    for name, held in _holdouts(group, seed).items():
        seen = ~held
        if held.sum() >= LEAST_TEST and seen.sum() >= least_rows(group) // 2:
            found += _judged(group, places, name, np.flatnonzero(seen), held, all_methods=True)
    for num in (0, *_FEW_OF.get(group.law.phase, FEW)):
        few = spread(places, num) if num else np.zeros(0, dtype=np.int64)
        found += _judged(group, places, f"{num} points", few, everything, all_methods=False)
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(places))[:IN_SAMPLE_POINTS]
    found += _judged(group, places, "in-sample", some, everything, all_methods=False)
    if group.law.name == "gemm":
        found += _of_usual_size(group, places)
    return found


def judge_few(group: Group) -> list[Outcome]:
    """The same for a sweep of few rows: each is foretold once from the four fifths without it, and
    the far corner, the longest lengths and the largest batches, from all others."""
    places = coordinates(group.law, group.shapes)
    rows = np.arange(len(places))
    fold = np.random.default_rng(0).permutation(rows) % NUM_FOLDS
    folds = [_predicted(group, places, np.flatnonzero(fold != i), fold == i)
             for i in range(min(NUM_FOLDS, len(rows)))]  # fmt: skip
    order = np.concatenate([np.flatnonzero(fold == i) for i in range(len(folds))])
    truth_s = group.latency_s[order]
    found = []
    for method in folds[0]:
        predicted = np.concatenate([made[method][0] for made in folds])
        band = np.concatenate([made[method][1] for made in folds])
        found.append(
            _outcome("random", method, len(rows) - len(rows) // NUM_FOLDS, predicted, band, truth_s)
        )
    length, batch = group.shapes[_LENGTH[group.law.phase]], group.shapes["batch"]
    corner = (length > length.max() / FAR) | ((batch > batch.max() / FAR) & (batch.max() > 1))
    if corner.sum() >= LEAST_TEST and (~corner).sum() >= len(group.law.coefficients) - 2:
        made = _predicted(group, places, np.flatnonzero(~corner), corner)
        found += [
            _outcome("far", method, int((~corner).sum()), *values, group.latency_s[corner])
            for method, values in made.items()
        ]
    return found


def _predicted(
    group: Group, places: Floats, seen: NDArray[np.int64], held: Mask
) -> dict[str, tuple[Floats, Floats]]:
    """Latencies by method, and the standard deviation of their logarithm."""
    fitted = fit(group.law, *group.rows(seen), group.hardware)
    asked, _ = group.rows(held)
    band = fitted.log_sd(asked)
    made = {FORM: fitted.latency_s(asked), **_rivals(group, places, seen, held, seen)}
    return {method: (predicted, band) for method, predicted in made.items()}


def _outcome(
    holdout: str, method: str, num: int, predicted: Floats, band: Floats, truth_s: Floats
) -> Outcome:
    misses = np.abs(np.log(truth_s / predicted))
    is_form = method == FORM
    return Outcome(
        holdout,
        method,
        num,
        len(truth_s),
        *errors_of(predicted, truth_s),
        in_80=float((misses <= Z80 * band).mean()) if is_form else None,
        in_90=float((misses <= Z90 * band).mean()) if is_form else None,
    )


def judge_transfers(groups: Sequence[Group]) -> list[tuple[Group, Outcome]]:
    """Every group by the law of the same kernel on another GPU, of its family where there is one.

    The coefficients are the other's, the hardware facts its own: nothing of it was measured.
    """
    by_kernel: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        if len(group.latency_s) >= least_rows(group):
            by_kernel.setdefault(_kernel_of(group), []).append(group)
    found = []
    for alike in by_kernel.values():
        fits = [(one, _spread_fit(one)) for one in alike]
        for group in alike:
            for is_family in (True, False):
                made = [
                    _missed(group, replace(fitted, hardware=group.hardware))
                    for one, fitted in fits
                    if one.key["gpu"] != group.key["gpu"]
                    and (_family(one) == _family(group)) == is_family
                ]
                if made:
                    name = SAME_FAMILY if is_family else OTHER_FAMILY
                    middle = sorted(made)[len(made) // 2]
                    outcome = Outcome(name, FORM, FIT_POINTS, len(group.latency_s), *middle)
                    found.append((group, outcome))
    return found


def _kernel_of(group: Group) -> tuple[str, ...]:
    return tuple(v for name, v in group.key.items() if name not in ("gpu", "engine_version"))


def _spread_fit(group: Group) -> Fitted:
    rows = spread(coordinates(group.law, group.shapes), FIT_POINTS)
    return fit(group.law, *group.rows(rows), group.hardware)


def _missed(group: Group, fitted: Fitted) -> tuple[float, float]:
    return errors_of(fitted.latency_s(group.shapes), group.latency_s)


def _family(group: Group) -> str:
    name = gpu_of(group.key["gpu"]).name
    return next((family for start, family in _FAMILIES if name.startswith(start)), name)


def _of_usual_size(group: Group, places: Floats) -> list[Outcome]:
    """The same for products whose columns and depth are at least :data:`USUAL_SIZE`."""
    usual = (group.shapes["n"] >= USUAL_SIZE) & (group.shapes["k"] >= USUAL_SIZE)
    rows = np.flatnonzero(usual)
    if len(rows) < least_rows(group):
        return []
    words = f", n and k from {USUAL_SIZE}"
    few = rows[spread(places[rows], FEW[0])]
    seen = np.random.default_rng(0).permutation(rows)[:IN_SAMPLE_POINTS]
    return [
        *_judged(group, places, f"{FEW[0]} points{words}", few, usual, all_methods=False),
        *_judged(group, places, f"in-sample{words}", seen, usual, all_methods=False),
    ]


def _holdouts(group: Group, seed: int) -> Mapping[str, Mask]:
    rng = np.random.default_rng(seed)
    length = group.shapes[_LENGTH[group.law.phase]]
    held = {
        "random": rng.random(len(length)) < RANDOM_SHARE,
        "far": length > length.max() / _FAR_OF.get(group.law.phase, FAR),
    }
    if "q_heads" in group.shapes:
        heads = group.shapes["q_heads"]
        seen = [_nearest(heads, wanted) for wanted in HEADS_SEEN]
        held["heads"] = ~np.isin(heads, seen)
    return held


def _nearest(values: Floats, wanted: float) -> float:
    known = np.unique(values)
    return float(known[np.abs(np.log(known / wanted)).argmin()])


def _judged(
    group: Group, places: Floats, holdout: str, seen: NDArray[np.int64], held: Mask, *,
    all_methods: bool,
) -> list[Outcome]:  # fmt: skip
    fitted_rows = seen[spread(places[seen], FIT_POINTS)] if all_methods else seen
    fitted = fit(group.law, *group.rows(fitted_rows), group.hardware)
    asked, truth_s = group.rows(held)
    form_s = fitted.latency_s(asked)
    made = {FORM: form_s}
    if all_methods:
        shapes, latency_s = group.rows(seen)
        known = LocalResidual(places[seen], np.log(latency_s / fitted.latency_s(shapes)))
        made[WITH_RESIDUAL] = form_s * np.exp(known.at(places[held]))
        made |= _rivals(group, places, seen, held, fitted_rows)
    band = fitted.log_sd(asked)
    return [
        _outcome(
            holdout,
            method,
            len(seen) if method == baselines.NEIGHBOURING else len(fitted_rows),
            predicted,
            band,
            truth_s,
        )
        for method, predicted in made.items()
    ]


def _rivals(
    group: Group, places: Floats, seen: NDArray[np.int64], held: Mask,
    fitted_rows: NDArray[np.int64],
) -> dict[str, Floats]:  # fmt: skip
    law, hardware = group.law, group.hardware
    shapes, latency_s = group.rows(fitted_rows)
    asked, _ = group.rows(held)
    return {
        baselines.WORK_ONLY: baselines.work_only_s(law, shapes, latency_s, asked),
        baselines.LONGEST_ROOF: baselines.longest_roof_s(law, shapes, latency_s, asked, hardware),
        baselines.ROOFLINE: baselines.roofline_s(law, asked, hardware),
        baselines.NEIGHBOURING: baselines.neighbours_s(
            places[seen], group.latency_s[seen], places[held]
        ),
    }


def errors_of(predicted_s: Floats, truth_s: Floats) -> tuple[float, float]:
    """Median and 90th percentile of how far predicted times are off, as shares of the truth."""
    errors = np.abs(predicted_s / truth_s - 1.0)
    return float(np.median(errors)), float(np.quantile(errors, 0.9))
