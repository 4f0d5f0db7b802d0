"""Changes that an estimate suggests: each does what it says, and the context is the longest."""

from dataclasses import replace
from typing import Any

import pytest

from attnprof.capacity.request import EstimateRequest
from attnprof.estimate import Estimate, estimate
from attnprof.models import load_model

LLAMA = load_model("llama-3.1-8b")
TOO_LONG = EstimateRequest(LLAMA, "rtx-3090", max_model_len=100_000)


def suggested(found: Estimate) -> list[int]:
    flag = "--max-model-len "
    return [int(tried.change.removeprefix(flag)) for tried in found.alternatives
            if tried.change.startswith(flag)]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_memory_utilization": 0.75, "max_model_len": 29_000},
        {"gpu_memory_utilization": 0.75, "max_model_len": 17_000},
        {"engine": "vllm@0.6"},
        {"engine": "tgi"},
        {"engine": "llama-cpp"},
        {"model": load_model("gemma-3-12b"), "gpu": "l40s", "max_model_len": 2**20,
         "gpu_memory_utilization": 0.6},
    ],
)  # fmt: skip
def test_the_context_that_would_fit_is_the_longest_that_does(change: dict[str, Any]) -> None:
    request = replace(TOO_LONG, **change)
    found = estimate(request)
    assert not found.plan.fits
    [length] = suggested(found)
    assert any(f"it would with --max-model-len {length}" in note for note in found.notes)
    assert estimate(replace(request, max_model_len=length)).plan.fits
    limit = request.model.max_position_embeddings
    if length != limit:
        longer = estimate(replace(request, max_model_len=length + found.plan.block_tokens))
        assert not longer.plan.fits


def test_no_context_beyond_the_models_is_suggested() -> None:
    request = replace(TOO_LONG, gpu="h100-sxm", max_model_len=2**20)
    assert suggested(estimate(request)) == [LLAMA.max_position_embeddings]


def test_a_context_without_room_for_the_prompt_is_no_suggestion() -> None:
    request = replace(TOO_LONG, prompt_len=90_000, output_len=100)
    found = estimate(request)
    assert not found.plan.fits
    assert suggested(found) == []
    fits = EstimateRequest(LLAMA, "h100-sxm", max_model_len=32768, prompt_len=30_000)
    assert suggested(estimate(fits)) == []
    assert suggested(estimate(replace(fits, prompt_len=10_000))) == [16384]


def test_every_change_does_what_is_said_of_it() -> None:
    flags: dict[str, dict[str, Any]] = {
        "--kv-dtype fp8": {"kv_dtype": "fp8"},
        "--gpus 2 --tp 2": {"num_gpus": 2, "tp": 2},
        "--quantization fp8": {"quantization": "fp8"},
        "--quantization awq": {"quantization": "awq"},
    }
    tried = {one.change: one for one in estimate(TOO_LONG).alternatives}
    for change, options in flags.items():
        plan = estimate(replace(TOO_LONG, **options)).plan
        assert (tried[change].fits, tried[change].max_concurrency) == (
            plan.fits, plan.max_concurrency,
        )  # fmt: skip
