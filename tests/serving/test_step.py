"""Steps: no faster than their roofs, slower with more of anything, and each kind of layer."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.weights import read_weight_bytes
from attnprof.models import load_model
from attnprof.serving.coefficients import step_profile
from attnprof.serving.step import StepModel, Work, attended, fullest_rank, visible

MODELS = ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b", "glm-5", "qwen3.5-27b",
          "gemma-3-27b", "llama-4-scout-17b-16e", "mamba2-2.7b"]  # fmt: skip


def model_of(name: str, gpu: str = "h200", **options: Any) -> StepModel:
    deployment = deployment_of(EstimateRequest(load_model(name), gpu, **options))
    assert deployment.gpu is not None
    return StepModel(deployment, step_profile().values_on(deployment.gpu.name))


@pytest.mark.parametrize("name", MODELS)
def test_a_decode_reads_every_weight_at_the_bandwidth_or_slower(name: str) -> None:
    model = model_of(name)
    least = read_weight_bytes(model.deployment, 1, encodes=False) / model.bytes_per_s
    assert model.step(Work(batch=1, context=1)).total_s > least


@pytest.mark.parametrize("name", MODELS)
def test_more_sequences_context_and_prompts_are_never_faster(name: str) -> None:
    model = model_of(name)

    @settings(max_examples=40, deadline=None)
    @given(
        batch=st.integers(1, 512), context=st.integers(1, 65_536), new=st.integers(0, 8192),
        more=st.integers(1, 64),
    )  # fmt: skip
    def check(batch: int, context: int, new: int, more: int) -> None:
        work = Work(batch=batch, context=context, new=new)
        here = model.step(work).total_s
        assert math.isfinite(here)
        for grown in (
            replace(work, batch=batch + more),
            replace(work, context=context + more),
            replace(work, new=new + more),
        ):
            assert model.step(grown).total_s >= here * (1 - 1e-9)

    check()


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-v3", "qwen3-235b-a22b"])
@pytest.mark.parametrize("work", [Work(batch=64, context=8192), Work(new=8192)])
def test_more_ranks_do_large_steps_sooner(name: str, work: Work) -> None:
    times = [model_of(name, tp=tp, num_gpus=tp).step(work).total_s for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] < 8 * times[-1], "and no sooner than their number"


def test_a_faster_gpu_is_faster_and_no_graphs_are_slower() -> None:
    work = Work(batch=16, context=2048)
    h100, h200, b200 = (model_of("llama-3.1-70b", gpu, tp=4, num_gpus=4).step(work).total_s
                        for gpu in ("h100", "h200", "b200"))  # fmt: skip
    assert h100 > h200 > b200
    eager = model_of("llama-3.1-8b", enforce_eager=True).step(work).total_s
    assert eager > model_of("llama-3.1-8b").step(work).total_s


def test_quantised_weights_are_read_faster_and_experts_only_as_chosen() -> None:
    one = Work(batch=1, context=128)
    plain = model_of("llama-3.1-70b", tp=8, num_gpus=8).step(one).terms["projections"]
    fp8 = model_of("llama-3.1-70b", tp=8, num_gpus=8, quantization="fp8").step(one)
    assert 0.45 * plain < fp8.terms["projections"] < 0.75 * plain
    model = model_of("qwen3-235b-a22b", tp=8, num_gpus=8)
    few, many = (model.step(Work(batch=b, context=128)).terms["experts"] for b in (1, 512))
    # 8 of 128 experts serve one sequence; of 512 all of them serve.
    assert 8 < many / few < 16


def test_windows_and_latents_bound_what_a_decode_reads() -> None:
    def growth(name: str) -> float:
        model = model_of(name)
        short, long = (model.step(Work(batch=32, context=n)).terms["attention"]
                       for n in (4096, 65_536))  # fmt: skip
        return long - short

    spec = load_model("gemma-3-27b")
    full = sum(la.attention is not None and la.attention.window_len is None for la in spec.layers)
    model = model_of("gemma-3-27b")
    per_layer = 32 * (65_536 - 4096) * 2 * 16 * 128 * 2 / model.bytes_per_s
    factor = step_profile().values_on("h200-sxm")["decode_memory"]
    assert growth("gemma-3-27b") == pytest.approx(full * per_layer * factor, rel=0.15)


def test_replicas_of_attention_share_the_experts() -> None:
    spread = model_of("deepseek-v3", num_gpus=8, tp=8, dp=8, engine="sglang")
    together = model_of("deepseek-v3", num_gpus=8, tp=8, engine="sglang")
    assert spread.deployment.dp_attention
    wide, narrow = (
        spread.step(Work(batch=32, context=8192)),
        together.step(Work(batch=256, context=8192)),
    )
    assert wide.terms["attention"] < narrow.terms["attention"] / 2, "each holds its own latents"


def test_an_expected_excess_of_the_fullest_rank() -> None:
    assert fullest_rank(256, 256, 8) == 32
    assert 4 < fullest_rank(32, 256, 8) < 32
    assert fullest_rank(31, 256, 8) < fullest_rank(64, 256, 8) <= fullest_rank(200, 256, 8)


@pytest.mark.parametrize(("new", "past"), [(1, 0), (5, 0), (5, 3), (300, 0), (300, 1000)])
def test_attended_pairs_are_those_counted_one_by_one(new: int, past: int) -> None:
    for name in ("llama-3.1-8b", "gpt-oss-120b", "glm-5"):
        for layer in set(load_model(name).layers):
            assert layer.attention is not None
            one_by_one = sum(visible(layer.attention, past + i + 1) for i in range(new))
            assert attended(layer.attention, new, past) == pytest.approx(one_by_one)
