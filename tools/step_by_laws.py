"""Published serving results -> whether laws of kernels foretell a step better than its own roofs.

    python tools/step_by_laws.py ../shared/data/serving_perf_open.jsonl --laws decode,prefill

Does what ``tools/fit_serving.py`` does, but takes the named terms of a step from the shipped
calibration of its GPU at the step's own shapes, corrected near what was measured, each law times a
factor that is fitted. What has no law (MLA, experts, weights of four bits) keeps its roof. Nothing
is written: ``docs/accuracy.md`` holds the comparison.
"""

import argparse
import math
from functools import cache, cached_property
from pathlib import Path

import fit_serving
import numpy as np

from attnprof.engines.weights import ranks_of
from attnprof.laws.calibration import Calibration, calibration_named, predict
from attnprof.models.spec import Attention, Layer
from attnprof.profiles import list_profiles
from attnprof.serving.record import Described
from attnprof.serving.step import StepModel, Work

LAWS = ("gemm", "decode", "prefill", "all-reduce")
FACTOR = "law.{}"
FACTOR_SD = {"gemm": 0.1, "decode": 0.15, "prefill": 0.15, "all-reduce": 0.2}
JOINED = {
    "q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up", "q_a": "qkv_a",
    "kv_a": "qkv_a", "shared_gate": "shared", "shared_up": "shared",
}  # fmt: skip
"""Products that engines do at once."""
SPLIT_INNER = ("o", "down", "out", "shared_down")
FORMS = {"fp8": ("gemm.fp8", 1.0), "nvfp4": ("gemm.nvfp4", 0.5625), "mxfp4": ("gemm.bf16", 2.0)}
PLAIN = ("gemm.bf16", 2.0)
TAKEN: set[str] = set()


@cache
def calibration_of(gpu: str) -> Calibration | None:
    name = f"{gpu}--vllm"
    return calibration_named(name) if name in list_profiles("calibrations") else None


@cache
def law_s(gpu: str, key: str, *shape: tuple[str, float]) -> float:
    """One call by a law of a GPU's calibration. [s]"""
    calibration = calibration_of(gpu)
    assert calibration is not None
    return float(predict(calibration, key, {name: np.array([x]) for name, x in shape}).mid[0])


class LawStep(StepModel):
    """A step whose named terms are laws of kernels."""

    @cached_property
    def _laws(self) -> frozenset[str]:
        gpu = self.deployment.gpu
        assert gpu is not None
        calibration = None if self.engine == "llama-cpp" else calibration_of(gpu.name)
        return frozenset(calibration.laws if calibration else ())

    def _by_law(self, law: str, key: str, **shape: float) -> float | None:
        if law not in TAKEN or key not in self._laws:
            return None
        assert self.deployment.gpu is not None
        seconds = law_s(self.deployment.gpu.name, key, *shape.items())
        return self.coefficients[FACTOR.format(law)] * seconds

    def _add_layer(self, terms, layer, count, products, work):  # type: ignore[no-untyped-def]
        plain = products
        if "gemm" in TAKEN and self._laws:
            plain, seconds = self._gemms(layer, products, work)
            terms["projections"] += count * seconds
        super()._add_layer(terms, layer, count, plain, work)

    def _gemms(self, layer: Layer, products, work: Work):  # type: ignore[no-untyped-def]
        """The products that no law describes, and the time of the others."""
        quantization = self.deployment.model.quantization
        matrices = [matrix for matrix in layer.matrices if matrix.role != "embedding"]
        widths: dict[tuple[str, str, float, float], float] = {}
        plain = []
        for product, matrix in zip(products, matrices, strict=True):
            form = PLAIN
            if quantization is not None and matrix.role not in quantization.skipped_roles:
                form = FORMS.get(quantization.method, ("", 0.0))
            if matrix.role == "experts" or form[0] not in self._laws:
                plain.append(product)
                continue
            ranks = ranks_of(matrix, layer, self.deployment)
            inner = matrix.name in SPLIT_INNER
            depth = matrix.in_features / (ranks if inner else 1)
            call = (JOINED.get(matrix.name, matrix.name), *form, depth)
            width = matrix.out_features / (1 if inner else ranks)
            widths[call] = widths.get(call, 0.0) + width
        seconds = sum(
            self._by_law("gemm", key, m=work.tokens, n=width, k=depth, size=size) or 0.0
            for (_, key, size, depth), width in widths.items()
        )
        return plain, seconds

    def _attention(self, phase: str, attention: Attention, **shape: float) -> float | None:
        usual = attention.kind in ("full", "sliding") and attention.indexer is None
        if not usual or attention.reads_other_layer or attention.tokens_per_entry > 1:
            return None
        size = self.deployment.element_bytes
        key = f"{phase}.bf16.{'fp8' if size == 1 else 'bf16'}.d{attention.head_dim}"
        if phase == "decode":
            group = attention.num_q_heads / max(1, attention.num_kv_heads)
            key += ".mha" if group == 1 else ".wide" if group > 32 else ".gqa"
        return self._by_law(
            phase, key, **shape, q_heads=max(1, attention.num_q_heads / self.deployment.tp),
            kv_heads=max(1, attention.num_kv_heads / self.deployment.tp),
            head_dim=attention.head_dim, window=attention.window_len or 0, kv_size=size,
        )  # fmt: skip

    def _decode_s(self, attention: Attention, batch: float, context: float) -> float:
        found = self._attention("decode", attention, batch=batch, q_len=1, kv_len=context)
        return super()._decode_s(attention, batch, context) if found is None else found

    def _prefill_s(self, attention: Attention, new: float, past: float) -> float:
        found = self._attention("prefill", attention, batch=1, q_len=new, kv_len=new + past)
        return super()._prefill_s(attention, new, past) if found is None else found

    def _sum_s(self, ranks: int, message_bytes: float) -> float:
        key = f"all-reduce.vLLM_custom_graph.bf16.r{ranks}"
        found = self._by_law("all-reduce", key, ranks=ranks, bytes=message_bytes)
        return super()._sum_s(ranks, message_bytes) if found is None else found


def model_of(case: Described, coefficients: dict[str, float]) -> StepModel:
    factors = fit_serving.FACTORS.get(fit_serving.gpu(case), {})
    scaled = {name: value * factors.get(name, 1.0) for name, value in coefficients.items()}
    return LawStep(case.deployment, scaled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--laws", default="", help=f"Of {', '.join(LAWS)}, with commas.")
    arguments = parser.parse_args()
    TAKEN.update(name for name in arguments.laws.split(",") if name)
    if TAKEN - {*LAWS}:
        parser.error(f"no law {', '.join(sorted(TAKEN - {*LAWS}))}")
    for law in TAKEN:
        fit_serving.PRIORS[FACTOR.format(law)] = (1.0, FACTOR_SD[law], "over its law")
    fit_serving.model_of = model_of
    logs, means = fit_serving.kernel_logs()
    for name, of in logs.items():
        fit_serving.FACTORS[name] = {key: math.exp(of[key] - means[key]) for key in of}
    found = fit_serving.lines_of(arguments.file)
    cases = [case for _, case in found]
    measured = np.log([line["measured"]["tpot_ms_mean"] / 1e3 for line, _ in found])
    served = np.array([line["set"] != "llamacpp_gpu_bench" for line, _ in found])
    free = [name for name, (_, sd, _) in fit_serving.PRIORS.items() if sd > 0]
    fitted, _ = fit_serving.fit(cases, measured, free)
    families = [fit_serving.family(case) for case in cases]
    judged = {
        "fitted": np.log([fit_serving.predict(case, fitted) for case in cases]) - measured,
        "its model left out": fit_serving.left_out(cases, measured, free, families, fitted),
    }
    for what, errors in judged.items():
        fit_serving.say(
            f"{what}: all {fit_serving.error_words(errors)}, "
            f"of serving engines {fit_serving.error_words(errors[served])}"
        )
    for law in sorted(TAKEN):
        fit_serving.say(f"{law}: {fitted[FACTOR.format(law)]:.3f} times its law")


if __name__ == "__main__":
    main()
