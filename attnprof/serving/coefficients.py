"""``profiles/serving/step.yaml`` -> the coefficients of a step, and how far each may be trusted.

They were fitted to published serving results of some GPUs and engines. On those a figure is
calibrated; on others the same coefficients scale the roofs of another data sheet, it is assumed,
and its interval is wider.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnprof.engines.base import Deployment
from attnprof.errors import UsageError
from attnprof.fields import Fields
from attnprof.profiles import find_profile, read_yaml
from attnprof.serving.own import KERNELS, NOTHING_OWN, OwnKernels
from attnprof.serving.step import TERMS, Step

NAME = "step"
INTERVAL_SDS = 1.2816
"""Standard deviations from the middle to each end of an interval that holds 80 % of the time."""
ENGINE_TERMS = ("engine",)
OWN_KERNELS = ("llama-cpp",)
"""Engines with kernels of their own: what was fitted to them says nothing of the others, which
share theirs, and the other way round."""
OF_KERNELS = {
    "projections": ("gemm_compute", "gemm_memory"), "head": ("gemm_compute", "gemm_memory"),
    "attention": ("decode_memory", "prefill_compute"),
}  # fmt: skip
"""Terms of a step -> the coefficients of kernels that a calibration must have to calibrate them."""


@dataclass(frozen=True)
class Coefficient:
    """A ratio of a time to that at a roof, or an overhead in seconds."""

    value: float
    log_sd: float
    meaning: str


@dataclass(frozen=True)
class StepProfile:
    """The coefficients, what they were fitted to, and their errors on what was left out.

    Args:
        fitted: By engine the GPUs of the results that coefficients were fitted to.
        kernels: By GPU what its calibration (profiles/calibrations) has of a coefficient of
            kernels, over ``kernel_means``, the geometric means of the shipped ones.
        missed_laws: By GPU laws that do not hold on what was held out, and are in ``kernels`` all
            the same, as the GPU has no other of their kind.
        held_out_log_sd: Of TPOT, over models that a fit had not seen.
        elsewhere_log_sd: What is added where a GPU or an engine was not in the fit.
        ttft_log_sd: As ``held_out_log_sd``, of a time to first token under load.
    """

    source: str
    coefficients: Mapping[str, Coefficient]
    fitted: Mapping[str, tuple[str, ...]]
    kernels: Mapping[str, Mapping[str, float]]
    kernel_means: Mapping[str, float]
    missed_laws: Mapping[str, tuple[str, ...]]
    held_out_log_sd: float
    elsewhere_log_sd: float
    ttft_log_sd: float

    def values_on(self, gpu: str, own: OwnKernels = NOTHING_OWN) -> dict[str, float]:
        """The coefficients, those of kernels as a calibration of the GPU's has them in relation:
        ``own`` before the shipped ones."""
        factors = {
            **self.kernels.get(gpu, {}),
            **{name: value / self.kernel_means[name] for name, value in own.values.items()},
        }
        return {name: one.value * factors.get(name, 1.0)
                for name, one in self.coefficients.items()}  # fmt: skip

    def provenance(self, deployment: Deployment, own: OwnKernels = NOTHING_OWN) -> dict[str, str]:
        """How each term of a step is had: ``calibrated`` or ``assumed``.

        Calibrated are the terms of a GPU whose results were in the fit, with this engine or another
        that has such kernels; those of kernels that a calibration of the GPU measured; and what the
        engine adds on the host, where its results were in the fit.
        """
        assert deployment.gpu is not None
        on_gpu = "calibrated" if self.engines_on(deployment) else "assumed"
        by_engine = "calibrated" if deployment.engine.kind in self.fitted else "assumed"
        had = {term: by_engine if term in ENGINE_TERMS else on_gpu for term in TERMS}
        shipped: Mapping[str, float] = self.kernels.get(deployment.gpu.name, {})
        if deployment.engine.kind in OWN_KERNELS:
            shipped = {}
        return had | {
            term: "calibrated" for term, needed in OF_KERNELS.items()
            if own.covers(*needed) or shipped.keys() >= set(needed)
        }  # fmt: skip

    def engines_on(self, deployment: Deployment) -> tuple[str, ...]:
        """Engines whose results on this GPU were in the fit, of those with kernels such as the
        deployment's."""
        assert deployment.gpu is not None
        has_own, gpu = deployment.engine.kind in OWN_KERNELS, deployment.gpu.name
        return tuple(engine for engine, gpus in self.fitted.items()
                     if gpu in gpus and (engine in OWN_KERNELS) == has_own)  # fmt: skip

    def log_sd(self, deployment: Deployment, step: Step, own: OwnKernels = NOTHING_OWN) -> float:
        """Standard deviation of the logarithm of a step's time.

        s² = s₀² + (s₁ · share of the terms that are assumed)²
        """
        total = step.total_s
        had = self.provenance(deployment, own)
        assumed = sum(step.terms[term] for term in TERMS if had[term] == "assumed") / total
        return math.hypot(self.held_out_log_sd, self.elsewhere_log_sd * assumed)


@cache
def step_profile() -> StepProfile:
    """The profile, the user's own before the shipped one.

    Raises:
        UsageError: It is missing, or a number in it makes no sense.
    """
    path = find_profile("serving", NAME)
    if path is None:
        raise UsageError(f"there is no profile serving/{NAME}.yaml", "install attnprof again")
    return read_step_profile(path)


def read_step_profile(path: Path) -> StepProfile:
    """The profile in a file, every key and number checked."""
    fields = Fields(read_yaml(path), str(path))
    listed = fields.table("coefficients")
    coefficients = {}
    for name, values in listed.items():
        if not isinstance(values, dict):
            raise UsageError(f"{path}: {name} is {values!r}", "write value, log_sd and meaning")
        one = Fields(values, f"{path}: {name}")
        value, log_sd = one.number("value", low=1e-12, high=1e12), one.number("log_sd", high=10)
        assert value is not None and log_sd is not None
        coefficients[name] = Coefficient(value, log_sd, one.text("meaning"))
        one.done()
    errors = {
        key: fields.number(key, low=0.01, high=3)
        for key in ("held_out_log_sd", "elsewhere_log_sd", "ttft_log_sd")
    }
    fields.text("name")
    profile = StepProfile(
        source=fields.text("source"),
        coefficients=coefficients,
        fitted=_listed(fields, "fitted", path),
        kernels=_kernels(fields, path),
        missed_laws=_listed(fields, "missed_laws", path),
        kernel_means=_factors(fields.table("kernel_means"), f"{path}: kernel_means"),
        **{key: float(value or 0.0) for key, value in errors.items()},
    )
    fields.done()
    missing = sorted(NEEDED - set(coefficients))
    if missing:
        raise UsageError(f"{path} lacks the coefficient {missing[0]!r}", "add it")
    return profile


def _listed(fields: Fields, key: str, path: Path) -> dict[str, tuple[str, ...]]:
    listed = fields.table(key)
    texts = Fields(listed, f"{path}: {key}")
    return {name: texts.texts(name) for name in listed}


def _kernels(fields: Fields, path: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for gpu, factors in fields.table("kernels").items():
        if not isinstance(factors, dict):
            raise UsageError(f"{path}: kernels of {gpu} are {factors!r}", "write a mapping")
        found[gpu] = _factors(factors, f"{path}: kernels of {gpu}")
    return found


def _factors(values: Mapping[str, Any], where: str) -> dict[str, float]:
    fields = Fields(values, where)
    found = {name: fields.number(name, low=0.05, high=20, needed=False) for name in KERNELS}
    fields.done()
    return {name: value for name, value in found.items() if value is not None}


NEEDED = frozenset(
    {
        "gemm_compute", "gemm_memory", "experts_compute", "experts_memory", "decode_compute",
        "decode_memory", "prefill_compute", "all_reduce_link", "launch", "attention", "mixer",
        "indexer", "layer", "all_reduce", "sequence", "imbalance", "eager", "launches.other",
        "step.other", "interference.other", "first.other",
    }
)  # fmt: skip
