"""Groups of measured rows -> calibrated laws: fitted, corrected where it pays, and held out."""

from collections.abc import Mapping, Sequence

import numpy as np

from attnprof.laws.baselines import LONGEST_ROOF
from attnprof.laws.calibration import CalibratedLaw
from attnprof.laws.fitting import FIT_POINTS, coordinates, fit, spread, with_intervals
from attnprof.laws.groups import Group
from attnprof.laws.holdouts import FORM, WITH_RESIDUAL, Outcome, judge, least_rows
from attnprof.laws.residual import LocalResidual, in_cells

LEAST_NEAR_SD = 0.02
LEAST_CELL_ROWS = 5.0  # rows a residual cell, on average; with fewer a cell is noise
MOST_CELLS = 100
_KEY = (
    "law", "kernel", "backend", "q_dtype", "kv_dtype", "dtype", "head_dim", "window", "sharing",
    "ranks", "variant", "kv_cache", "position", "layers", "cache", "weight_dtype", "implementation",
)  # fmt: skip
_USUAL = ("none", "static")  # caches, of a prefill and a decode


def calibrate(
    group: Group, outcomes: Sequence[Outcome] | None = None, num_points: int = FIT_POINTS
) -> CalibratedLaw:
    """The law of a group with everything that its file keeps.

    Args:
        outcomes: Of its hold-outs; made here when left out and the rows are enough.
        num_points: To fit, spread over all; the others correct the law where they are.
    """
    places = coordinates(group.law, group.shapes)
    rows = spread(places, num_points)
    shapes, latency_s = group.rows(rows)
    fitted = with_intervals(fit(group.law, shapes, latency_s, group.hardware), shapes, latency_s)
    residuals = np.log(group.latency_s / fitted.latency_s(group.shapes))
    num_cells = int(min(MOST_CELLS, len(residuals) / LEAST_CELL_ROWS))
    residual = LocalResidual(np.zeros((0, places.shape[1])), np.zeros(0))
    near_sd = fitted.residual_sd
    if num_cells >= 4:
        residual = in_cells(places, residuals, places[spread(places, num_cells)])
        left = residuals - residual.at(places)
        near_sd = max(LEAST_NEAR_SD, float(1.4826 * np.median(np.abs(left))) * 1.2)
    if outcomes is None:
        outcomes = judge(group) if len(group.latency_s) >= least_rows(group) else []
    return CalibratedLaw(
        where={name: value for name, value in group.key.items() if name not in _SHARED},
        fitted=fitted,
        near_sd=near_sd,
        residual=residual,
        domain={
            axis: (float(group.shapes[axis].min()), float(group.shapes[axis].max()))
            for axis in group.law.axes
        },
        errors={
            f"{outcome.holdout}{_BY[outcome.method]}".replace(",", "").replace(" ", "_"): (
                outcome.median,
                outcome.p90,
            )
            for outcome in outcomes
            if outcome.method in _BY and outcome.holdout in _KEPT
        },
    )


_SHARED = ("gpu", "engine", "phase")
_BY = {FORM: "", WITH_RESIDUAL: " with residual", LONGEST_ROOF: " t0 + max"}
_KEPT = ("in-sample", "random", "far", "heads")


def law_key(group: Group) -> str:
    """What a calibration calls the law of a group: ``decode.bf16.fp8.d128.gqa``."""
    parts = {"law": group.law.phase, **group.key}
    skipped = ("kernel",) if group.law.name != "all-reduce" else ()
    return ".".join(
        parts[name]
        for name in _KEY
        if parts.get(name) and name not in skipped and parts[name] not in _USUAL
    )


def by_key(groups: Sequence[Group]) -> Mapping[str, Group]:
    """The groups by key, of two kernels with the same the one with more rows."""
    found: dict[str, Group] = {}
    for group in groups:
        key = law_key(group)
        if key not in found or len(found[key].latency_s) < len(group.latency_s):
            found[key] = group
    return found
