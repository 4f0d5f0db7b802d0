"""The calibration of this CPU -> TTFT, TPOT and throughput of a model that plain torch runs on it.

A batch is read at once and written step by step, all of it: nothing joins before it has ended.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from attnprof.capacity.latency import Interval
from attnprof.engines.base import Deployment
from attnprof.serving.coefficients import StepProfile
from attnprof.serving.latency import Figures, Latency, Sum, missed_words
from attnprof.serving.load import Load, Served
from attnprof.serving.own import OwnKernels
from attnprof.serving.step import TERMS, Step, StepModel
from attnprof.workload import Workload

if TYPE_CHECKING:
    from attnprof.laws.calibration import CalibratedLaw, Calibration
    from attnprof.predicted import Predicted

LIBRARY = "transformers"
BACKEND = "flash"  # the kernel that scaled_dot_product_attention takes on a CPU
_TERM_OF = {
    "attention": "attention", "kv": "attention", "launch": "kernels", "kernel": "kernels",
    "rows": "kernels", "rows_cache": "kernels",
}  # fmt: skip
"""Coefficients of the law of a step -> the term that shows them; the others are products."""


@dataclass(frozen=True)
class LocalLatency(Latency):
    """The latencies of plain torch on this CPU, by the laws that were fitted here."""

    calibration: "Calibration | None" = None

    @property
    def _laws(self) -> "tuple[CalibratedLaw, ...]":
        assert self.calibration is not None
        return tuple(self.calibration.laws.values())

    @property
    def _dtypes(self) -> list[str]:
        """Those that some law is of, in the calibration's order."""
        named = (law.where.get("dtype") for law in self._laws)
        return [dtype for dtype in dict.fromkeys(named) if dtype]

    @cached_property
    def fix(self) -> str | None:
        """The dtype that there are laws of, where times can be had in it."""
        deployment = self.model.deployment
        if deployment.dtype in self._dtypes:
            return None
        for dtype in self._dtypes:
            placed = replace(deployment, dtype=dtype)
            if replace(self, model=replace(self.model, deployment=placed)).problem is None:
                return f"--dtype {dtype}"
        return None

    @cached_property
    def problem(self) -> str | None:
        """What the laws say nothing of: then there are no times."""
        deployment = self.model.deployment
        quantization = deployment.model.quantization
        if quantization is not None:
            return f"there is no law of weights in {quantization.method}"
        if deployment.element_bytes != deployment.dtype_bytes:
            return f"there is no law of a cache in {deployment.kv_dtype}"
        if deployment.num_draft_tokens:
            return "there is no law of drafts"
        if deployment.model.is_moe:
            return f"there is no law of experts as {LIBRARY} runs them"
        if deployment.dtype not in self._dtypes:
            measure = f"attnprof calibrate --device cpu --axis dtype={deployment.dtype}"
            known = f"write {self.fix}, or measure it: " if self.fix else ""
            return f"there is no law of {deployment.dtype}: {known}{measure}"
        load = Load(concurrency=1.0, prompt_len=16.0, output_len=1.0)
        calls = [_prompt(deployment, load)]
        if deployment.model.kind != "encoder":
            calls.append(_token(deployment, load))
        return next((made.problem for made in map(self._made, calls) if made.problem), None)

    @property
    def provenance(self) -> str:
        return "calibrated" if self.problem is None else "assumed"

    @property
    def words(self) -> str:
        """Where the times come from."""
        assert self.calibration is not None
        return (
            f"latency follows the laws of {self.calibration.device} that calibrate fitted "
            f"({self.calibration.name}): a batch is read at once, and written step by step"
        )

    def floored(self, interval: Interval, roofline_s: float | None) -> Interval:
        """The interval itself: what lies in the cache comes faster than from memory."""
        return interval

    @property
    def missed_laws(self) -> tuple[str, ...]:
        assert self.calibration is not None
        return tuple(
            missed_words(key, law.fitted.law.name, is_tested=bool(law.errors))
            for key, law in self.calibration.laws.items()
            if not law.holds
        )

    def figures(self, load: Load) -> Figures:
        first, alone = self._prompt(load), self._prompt(replace(load, concurrency=1.0))
        token = self._token(load) if load.output_len else Interval()
        rate = Interval()
        if load.output_len:
            fast, mid, slow = (
                load.concurrency * load.output_len / (a + (load.output_len - 1) * b)
                for a, b in zip(first.ends, token.ends, strict=True)
            )
            rate = Interval(slow, mid, fast)
        step = Step(self._terms(load, token)) if load.output_len else Step({})
        return Figures(
            batch_size=load.concurrency,
            ttft_s=alone,
            ttft_loaded_s=first,
            tpot_s=token,
            output_tokens_per_s=rate,
            served=Served(
                decode=step, tpot_s=token.mid or 0.0, ttft_idle_s=alone.mid or 0.0,
                ttft_next_s=first.mid or 0.0, ttft_loaded_s=first.mid or 0.0,
                ttft_burst_s=first.mid or 0.0, queue_s=0.0, output_tokens_per_s=rate.mid or 0.0,
            ),
        )  # fmt: skip

    def summed(self, load: Load) -> Sum:
        alone = replace(load, concurrency=1.0)
        token = self._terms(load, self._token(load)) if load.output_len else {}
        prompt = self._terms(alone, self._prompt(alone), is_prompt=True)
        return Sum({**token, "others": 0.0}, prompt, dict.fromkeys(TERMS, "calibrated"))

    def _prompt(self, load: Load) -> Interval:
        return _beside(
            self._predicted(_prompt(self.model.deployment, load)), self._added("first_s")
        )

    def _token(self, load: Load) -> Interval:
        made = self._predicted(_token(self.model.deployment, load))
        return _beside(made, self._added("step_s"))

    def _added(self, name: str) -> float:
        """What ``generate`` adds; nothing where it was not measured."""
        assert self.calibration is not None
        return self.calibration.overheads.get(name, 0.0)

    @cached_property
    def _known(self) -> "dict[Workload, Predicted]":
        return {}

    def _made(self, workload: Workload) -> "Predicted":
        """By the library's law, or that of our own layers where no law is of the library's."""
        from attnprof.predicted import predict_workloads

        assert self.calibration is not None
        if all(law.where.get("implementation") != LIBRARY for law in self._laws):
            workload = replace(workload, implementation="plain")
        if workload not in self._known:
            spec = self.model.deployment.model
            (self._known[workload],) = predict_workloads(self.calibration, [workload], spec)
        return self._known[workload]

    def _predicted(self, workload: Workload) -> "Predicted":
        made = self._made(workload)
        assert made.problem is None, made.problem
        return made

    def _terms(
        self, load: Load, whole: Interval, *, is_prompt: bool = False
    ) -> dict[str, float]:  # fmt: skip
        """The time of a step shared out by the terms of its law."""
        deployment = self.model.deployment
        workload = _prompt(deployment, load) if is_prompt else _token(deployment, load)
        made = self._predicted(workload)
        terms = dict.fromkeys(TERMS, 0.0)
        for name, share in made.shares.items():
            terms[_TERM_OF.get(name, "projections")] += share * (made.mid_s or 0.0)
        terms["engine"] = (whole.mid or 0.0) - (made.mid_s or 0.0)
        return terms


def _beside(made: "Predicted", added_s: float) -> Interval:
    return Interval(
        *(added_s + (time_s or 0.0) for time_s in (made.low_s, made.mid_s, made.high_s))
    )


def _prompt(deployment: Deployment, load: Load) -> Workload:
    length = round(load.prompt_len)
    return _call(deployment, load, "prefill", length, length)


def _token(deployment: Deployment, load: Load) -> Workload:
    context = round(load.prompt_len + load.output_len / 2)
    return _call(deployment, load, "decode", 1, max(2, context))


def _call(deployment: Deployment, load: Load, phase: str, q_len: int, kv_len: int) -> Workload:
    spec = deployment.model
    attentions = [layer.attention for layer in spec.layers if layer.attention is not None]
    return Workload(
        backend=BACKEND,
        phase=phase,
        dtype=deployment.dtype,
        batch_size=max(1, round(load.concurrency)),
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=attentions[0].num_q_heads if attentions else 1,
        num_kv_heads=attentions[0].num_kv_heads if attentions else 1,
        num_layers=len(spec.layers),
        kv_cache="contiguous" if phase == "decode" else "none",
        scope="model",
        model=spec.name,
        source_len=load.source_len or None,
        implementation=LIBRARY,
    )


def local_latency(
    model: StepModel, profile: StepProfile, calibration: "Calibration"
) -> LocalLatency:  # fmt: skip
    """The latencies of a deployment on this CPU."""
    own = OwnKernels({}, (calibration.name,))
    return LocalLatency(model, profile, own, calibration)
