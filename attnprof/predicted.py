"""A calibration and workloads -> how long each will take, with an interval, or why none can say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attnprof.errors import AttnprofError, UsageError
from attnprof.law_shapes import (
    AttentionTime,
    columns_of_all,
    identity_of,
    is_step,
    why_no_call,
)
from attnprof.laws.base import log_jacobian
from attnprof.laws.calibration import CalibratedLaw, Calibration, find_law, predict
from attnprof.models.spec import ModelSpec
from attnprof.workload import Workload

_ALIKE = ("backend", "dtype", "weight_dtype", "implementation")  # else another law says nothing


@dataclass(frozen=True)
class Predicted:
    """The latency of a call, and the interval that should hold it 80 times in 100.

    Args:
        beyond_domain: Whether it lies beyond what was measured, so that the interval is wider.
        shares: Of the latency, by the coefficient that it hangs on; they add up to one.
        problem: Why nothing can be said; then there are no times.
    """

    workload: Workload
    low_s: float | None = None
    mid_s: float | None = None
    high_s: float | None = None
    law_key: str | None = None
    beyond_domain: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None


def predict_workloads(
    calibration: Calibration, workloads: Sequence[Workload], spec: ModelSpec | None = None
) -> list[Predicted]:
    """What the laws of a device say of workloads of any scope.

    Args:
        spec: Of the model of all; read by its name where left out.
    """
    return [_predict_one(calibration, workload, spec) for workload in workloads]


def attention_times(calibration: Calibration) -> AttentionTime:
    """What gives the time of attention alone, by the nearest law of a calibration.

    Raises:
        UsageError: None of them is of such a kernel.
    """

    def attention_s(workload: Workload) -> float:
        made = _predict_one(calibration, workload)
        if made.mid_s is None:
            raise UsageError(made.problem or "unknown", "measure scope op with it")
        return made.mid_s

    return attention_s


def _predict_one(
    calibration: Calibration, workload: Workload, spec: ModelSpec | None = None
) -> Predicted:
    values = vars(workload)
    other = why_no_call(values)
    if other is not None:
        return Predicted(workload, problem=f"there is no law of {other}")
    where = {name: value for name, value in identity_of(values) if value}
    phase = where.pop("phase")
    alike = {
        key: law for key, law in calibration.laws.items()
        if all(law.where.get(name, "") == where.get(name, "") for name in _ALIKE)
    }  # fmt: skip
    layers, one_layer = 1, workload
    if not is_step(values):  # tensors of their own, one layer after another
        layers, one_layer = workload.num_layers, replace(workload, num_layers=1)
        where.pop("layers", None)
    found = find_law(replace(calibration, laws=alike), phase, where)
    if found is None:
        words = " ".join(where[name] for name in _ALIKE if where.get(name))
        return Predicted(workload, problem=f"there is no law of {phase} by {words}")
    key, extra_sd = found
    try:
        columns = columns_of_all([one_layer], attention_times(calibration), spec)
    except AttnprofError as error:
        return Predicted(workload, problem=error.problem)
    own = _sharing_cache(calibration.laws[key], layers)
    made = predict(replace(calibration, laws={key: own}), key, columns, extra_sd=extra_sd)
    low_s, mid_s, high_s = (layers * float(one[0]) for one in made[:3])
    law = own.fitted.law
    terms = law.terms(columns, own.fitted.hardware)
    parts = log_jacobian(law, terms, own.fitted.coefficients)[:, 0]
    shares = dict(zip(law.names, map(float, parts), strict=True))
    return Predicted(
        workload, low_s, mid_s, high_s, key, bool(np.any(made.beyond_domain)), shares
    )  # fmt: skip


def _sharing_cache(law: CalibratedLaw, layers: int) -> CalibratedLaw:
    """A law of a layer among others, each of which finds its share of the cache."""
    hardware = law.fitted.hardware
    hardware = replace(hardware, cache_bytes=hardware.cache_bytes / layers)
    return replace(law, fitted=replace(law.fitted, hardware=hardware))
