"""The profile of steps: complete, sourced, and refused where a number makes no sense."""

import math
import statistics
from pathlib import Path

import pytest

from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.errors import UsageError
from attnprof.gpus import gpu_named
from attnprof.laws.calibration import calibration_named
from attnprof.models import load_model
from attnprof.profiles import list_profiles, profile_dir
from attnprof.serving.coefficients import NEEDED, read_step_profile, step_profile
from attnprof.serving.latency import latency_of
from attnprof.serving.own import KERNELS, kernels_of

SHIPPED = profile_dir("serving") / "step.yaml"


def test_the_shipped_profile_says_what_it_was_fitted_to() -> None:
    profile = step_profile()
    assert set(profile.coefficients) >= NEEDED
    assert "tools/fit_serving.py" in profile.source
    assert "Apache-2.0" in profile.source
    fitted = [gpu for gpus in profile.fitted.values() for gpu in gpus]
    for name in (*fitted, *profile.kernels):
        assert gpu_named(name).name == name
    assert all(one.meaning for one in profile.coefficients.values())


@pytest.mark.parametrize(
    ("gpu", "engine", "provenance", "words"),
    [
        ("h100-sxm", "vllm", "calibrated", "results, vLLM on this GPU among them; the interval of"),
        ("l40s", "llama-cpp", "calibrated", "results, llama.cpp on this GPU among them; the"),
        ("gb200", "vllm", "calibrated", "of this GPU with other engines and of vLLM on other GPUs"),
        ("h100-sxm", "tgi", "assumed", "this GPU with other engines, none of Text Generation Inf"),
        ("l40s", "vllm", "assumed", "engines alone that have other kernels and of vLLM on other"),
        ("h100-sxm", "llama-cpp", "assumed", "that have other kernels and of llama.cpp on other"),
        ("arc-b580", "llama-cpp", "assumed", "of other GPUs alone, llama.cpp among their engines"),
        ("a100-sxm-40gb", "vllm", "assumed", "of other GPUs alone, vLLM among their engines; it"),
        ("mi300x", "tgi", "assumed", "of other GPUs alone, none of Text Generation Inference; it"),
    ],
)
def test_the_words_are_of_what_was_in_the_fit(
    gpu: str, engine: str, provenance: str, words: str
) -> None:
    asked = EstimateRequest(load_model("llama-3.1-8b"), gpu, engine=engine)
    law = latency_of(deployment_of(asked))
    is_pair = gpu in law.profile.fitted.get(engine, ())
    assert ("on this GPU among them" in law.words) == is_pair
    assert (law.provenance, words in law.words) == (provenance, True), law.words
    assert ("intervals are wider" in law.words) == (provenance == "assumed")


def test_what_was_measured_of_kernels_alone_calibrates_the_terms_of_those_kernels_alone() -> None:
    law = latency_of(deployment_of(EstimateRequest(load_model("llama-3.1-8b"), "l40s")))
    had = law.profile.provenance(law.model.deployment)
    assert {term for term, how in had.items() if how == "calibrated"} == {
        "projections", "head", "attention", "engine",
    }  # fmt: skip
    assert "products and attention follow measurements of this GPU's kernels" in law.words


def test_an_interval_is_said_to_have_held_only_what_it_was_made_wide_for() -> None:
    law = latency_of(deployment_of(EstimateRequest(load_model("llama-3.1-8b"), "h100-sxm")))
    assert "the interval of a token's time is as wide as held 80 %" in law.words
    assert "the intervals held" not in law.words


def test_kernels_of_a_calibrated_gpu_are_in_relation_to_its_calibration() -> None:
    profile = step_profile()
    plain, scaled = profile.values_on("mi300x"), profile.values_on("l40s")
    assert plain["gemm_memory"] == profile.coefficients["gemm_memory"].value
    assert scaled["gemm_compute"] > plain["gemm_compute"], "L40S multiplies less near its peak"


def test_shipped_laws_that_do_not_hold_are_named() -> None:
    deployment = deployment_of(EstimateRequest(load_model("llama-3.1-8b"), "l40s"))
    [words] = latency_of(deployment).missed_laws
    assert words.startswith("the law of products with weights (gemm.bf16) missed much of what")
    assert "held out" not in words, "a word of who fits laws, not of who reads their times"
    other = deployment_of(EstimateRequest(load_model("llama-3.1-8b"), "b200"))
    assert latency_of(other).missed_laws == ()


@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "b200-sxm", "a100-sxm-80gb"])
def test_those_named_are_those_of_the_shipped_calibrations(gpu: str) -> None:
    found = [kernels_of(calibration_named(name)) for name in list_profiles("calibrations")
             if name.startswith(f"{gpu}--")]  # fmt: skip
    held = {KERNELS[name][0] for values, _ in found for name in values}
    missed = [key for _, keys in found for key in keys if key.split(".")[0] not in held]
    assert sorted(step_profile().missed_laws.get(gpu, ())) == sorted(missed)


def test_kernels_in_relation_to_a_mean_are_around_one() -> None:
    factors = [value for of in step_profile().kernels.values() for value in of.values()]
    assert math.exp(statistics.mean(map(math.log, factors))) == pytest.approx(1, rel=0.05)
    assert all(0.5 < value < 2 for value in factors)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("held_out_log_sd: ", "held_out_log_sd: -", "held_out_log_sd"),
        ("  launch: {value: ", "  launch: {value: -", "launch: value"),
        ("  launch: {", "  lunch: {", "lacks the coefficient 'launch'"),
        ("name: step", "name: step\nnmae: x", "unknown key 'nmae'"),
    ],
)
def test_a_profile_with_nonsense_is_one_error(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "step.yaml"
    text = SHIPPED.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_step_profile(path)
