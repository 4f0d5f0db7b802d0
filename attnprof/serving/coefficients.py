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
from attnprof.gpus import gpu_named
from attnprof.profiles import find_profile, read_yaml, user_profile_dir
from attnprof.serving.step import TERMS, Step

NAME = "step"
CALIBRATION_FORMAT = 1
INTERVAL_SDS = 1.2816
"""Standard deviations from the middle to each end of an interval that holds 80 % of the time."""
ENGINE_TERMS = ("engine",)
OWN_KERNELS = ("llama-cpp",)
"""Engines with kernels of their own: what was fitted to them says nothing of the others, which
share theirs, and the other way round."""
KERNELS = {
    "gemm_compute": ("gemm", "compute"),
    "gemm_memory": ("gemm", "dram"),
    "decode_memory": ("decode", "dram"),
    "prefill_compute": ("prefill", "compute"),
}
"""Coefficients of a step -> the law of a calibration, and its coefficient, that says the same."""
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3  # of a kernel's time over that at its roof
HALVES = ("bf16", "bfloat16", "fp16", "float16")


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
            kernels, over ``kernel_means``, the geometric means of the shipped ones. A calibration
            in the user's own folder goes before it.
        held_out_log_sd: Of TPOT, over models that a fit had not seen.
        elsewhere_log_sd: What is added where a GPU or an engine was not in the fit.
        ttft_log_sd: As ``held_out_log_sd``, of a time to first token under load.
    """

    source: str
    coefficients: Mapping[str, Coefficient]
    fitted: Mapping[str, tuple[str, ...]]
    kernels: Mapping[str, Mapping[str, float]]
    kernel_means: Mapping[str, float]
    held_out_log_sd: float
    elsewhere_log_sd: float
    ttft_log_sd: float

    def values_on(self, gpu: str) -> dict[str, float]:
        """The coefficients, those of kernels as a calibration of the GPU's has them in relation."""
        own = own_kernels(gpu)
        factors = {
            **self.kernels.get(gpu, {}),
            **{name: value / self.kernel_means[name] for name, value in own.items()},
        }
        return {name: one.value * factors.get(name, 1.0)
                for name, one in self.coefficients.items()}  # fmt: skip

    def provenance(self, deployment: Deployment) -> dict[str, str]:
        """How each term of a step is had: ``calibrated`` or ``assumed``."""
        assert deployment.gpu is not None
        engine, gpu = deployment.engine.kind, deployment.gpu.name
        alike = [gpus for other, gpus in self.fitted.items()
                 if (other in OWN_KERNELS) == (engine in OWN_KERNELS)]  # fmt: skip
        known = gpu in self.kernels or any(gpu in gpus for gpus in alike)
        on_gpu = "calibrated" if known else "assumed"
        by_engine = "calibrated" if engine in self.fitted else "assumed"
        return {term: by_engine if term in ENGINE_TERMS else on_gpu for term in TERMS}

    def log_sd(self, deployment: Deployment, step: Step) -> float:
        """Standard deviation of the logarithm of a step's time.

        s² = s₀² + (s₁ · share of the terms that are assumed)²
        """
        total = step.total_s
        had = self.provenance(deployment)
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
        fitted=_fitted(fields, path),
        kernels=_kernels(fields, path),
        kernel_means=_factors(fields.table("kernel_means"), f"{path}: kernel_means"),
        **{key: float(value or 0.0) for key, value in errors.items()},
    )
    fields.done()
    missing = sorted(NEEDED - set(coefficients))
    if missing:
        raise UsageError(f"{path} lacks the coefficient {missing[0]!r}", "add it")
    return profile


def _fitted(fields: Fields, path: Path) -> dict[str, tuple[str, ...]]:
    listed = fields.table("fitted")
    engines = Fields(listed, f"{path}: fitted")
    return {engine: engines.texts(engine) for engine in listed}


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


def kernels_of(calibration: Mapping[str, Any]) -> dict[str, float]:
    """What a calibration has of the kernels of a step: geometric means over its plain kernels.

    Plain ones compute and cache in half precision, over all keys, and share KV heads where any do.
    """
    logs: dict[str, list[float]] = {}
    for law in calibration["laws"].values():
        where = law.get("where", {})
        dtype = where.get("dtype", where.get("q_dtype", HALVES[0]))
        if dtype not in HALVES or where.get("kv_dtype", dtype) not in (*HALVES, "auto"):
            continue
        if "window" in where or where.get("sharing", "gqa") != "gqa":
            continue
        rows = (line.split() for line in law["coefficients"].splitlines() if line.strip())
        values = {row[0]: float(row[1]) for row in rows}
        for name, (kind, coefficient) in KERNELS.items():
            if law["law"] == kind:
                logs.setdefault(name, []).append(math.log(values[coefficient]))
    return {name: math.exp(sum(those) / len(those)) for name, those in logs.items()}


def own_kernels(gpu: str) -> dict[str, float]:
    """Kernels of a GPU by the calibrations in the user's own folder, none where there are none.

    Raises:
        UsageError: One of them cannot be read.
    """
    found: dict[str, float] = {}
    for path in sorted((user_profile_dir() / "calibrations").glob("*.yaml")):
        content = read_yaml(path)
        try:
            if gpu_named(str(content["device"])).name != gpu:
                continue
        except (UsageError, KeyError):
            continue  # a device that is no GPU of the profiles
        version = content.get("format")
        if version != CALIBRATION_FORMAT:
            raise UsageError(
                f"{path} has format {version!r}, this version reads {CALIBRATION_FORMAT}",
                "fit it again: attnprof fit RUN --output FILE",
            )
        try:
            own = kernels_of(content)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path} is no calibration: {error}", "fit it again") from None
        for name, factor in own.items():
            if not LEAST_FACTOR <= factor <= MOST_FACTOR:
                raise UsageError(f"{path} is no calibration: {name} is {factor:g}", "fit it again")
        found |= own
    return found


NEEDED = frozenset(
    {
        "gemm_compute", "gemm_memory", "experts_compute", "experts_memory", "decode_compute",
        "decode_memory", "prefill_compute", "all_reduce_link", "launch", "attention", "mixer",
        "indexer", "layer", "all_reduce", "sequence", "imbalance", "eager", "launches.other",
        "step.other", "interference.other", "first.other",
    }
)  # fmt: skip
