"""SGLang, llama.cpp, Ollama, TensorRT-LLM and the rest against what they logged."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from attnprof.engines import llama_cpp, ollama, sglang, share
from attnprof.engines.base import Deployment, cached_element_bytes
from attnprof.engines.profile import engine_named
from attnprof.engines.quantize import METHODS, quantized
from attnprof.engines.registry import PLANNERS, plan_memory
from attnprof.errors import UsageError
from attnprof.gpus import gpu_named
from attnprof.serving_cases.model import model_of_case

GIB, MIB = 2**30, 2**20
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA_270M = {
    "num_hidden_layers": 18, "hidden_size": 640, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "vocab_size": 262144,
    "tie_word_embeddings": True, "sliding_window": 512, "layer_pattern": "5:1 (15/3)",
}  # fmt: skip
DEEPSEEK = {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
QWEN38_27B = {
    "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 24,
    "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 17408, "vocab_size": 248320,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "layer_pattern": "48 GDN / 16 full",
}  # fmt: skip


def _deployment(
    config: dict[str, Any], engine: str, gpu: str = "h100", name: str = "llama", **options: Any
) -> Deployment:
    card = gpu_named(gpu)
    return Deployment(
        model=model_of_case(config, name, {}),
        engine=engine_named(engine),
        total_bytes=card.visible_memory_bytes,
        gpu=card,
        **options,
    )


@pytest.mark.parametrize(
    ("ctx_size", "slots", "mib"),
    [(4096, 1, 27.0), (4096, 2, 42.0), (4096, 4, 72.0), (4096, 8, 72.0), (8192, 1, 39.0),
     (8192, 2, 54.0)],
)  # fmt: skip
def test_llama_cpp_sliding_cells_are_those_logged(ctx_size: int, slots: int, mib: float) -> None:
    spec = model_of_case(GEMMA_270M, "gemma-3-270m", {})
    cells = llama_cpp.Cells(ctx_size, parallel=slots)
    assert llama_cpp.kv_bytes(spec, cells) / MIB == mib


@pytest.mark.parametrize(
    ("config", "cells", "mib"),
    [
        pytest.param(LLAMA_8B, llama_cpp.Cells(1024, k_dtype="iq4_nl"), 82.0, id="iq4_nl keys"),
        pytest.param(DEEPSEEK, llama_cpp.Cells(163840), 10980.0, id="R1: the latent alone"),
        pytest.param(DEEPSEEK, llama_cpp.Cells(163840, mla=1), 20740.0, id="and a transposed copy"),
        pytest.param(DEEPSEEK, llama_cpp.Cells(2048, mla=0), 9760.0, id="all heads"),
        pytest.param(QWEN38_27B, llama_cpp.Cells(262144), 16384.0, id="a quarter of the layers"),
        pytest.param(
            QWEN38_27B, llama_cpp.Cells(172032, k_dtype="q8_0", v_dtype="q8_0"), 5712.0, id="q8_0"
        ),
    ],
)
def test_llama_cpp_caches_are_those_logged(
    config: dict[str, Any], cells: llama_cpp.Cells, mib: float
) -> None:
    assert llama_cpp.kv_bytes(model_of_case(config, "", {}), cells) / MIB == mib


@pytest.mark.parametrize(("parallel", "draft", "mib"), [(1, 6, 1047.375), (2, 0, 299.25)])
def test_llama_cpp_states_are_kept_for_slots_and_draft_positions(
    parallel: int, draft: int, mib: float
) -> None:
    cells = llama_cpp.Cells(4096, parallel=parallel, num_draft_tokens=draft)
    assert llama_cpp.state_bytes(model_of_case(QWEN38_27B, "", {}), cells) / MIB == mib


def test_llama_cpp_compute_buffers_are_those_logged() -> None:
    spec = model_of_case(LLAMA_8B, "", {})
    cells = llama_cpp.Cells(1024)
    assert llama_cpp.compute_bytes(spec, cells) / MIB == 266.5
    long = llama_cpp.Cells(40960)
    assert llama_cpp.compute_bytes(spec, long, flash_attention=False) == 32 * 40960 * 512 * 4
    capped = replace(spec, logit_softcap=True)
    grown = llama_cpp.compute_bytes(capped, cells) - llama_cpp.compute_bytes(spec, cells)
    assert grown == spec.vocab_size * 512 * 4


@pytest.mark.parametrize(
    ("name", "config", "context", "vocab", "mib"),
    [
        ("llama3:8b", LLAMA_8B, 2048, False, 164.0),
        ("llama3.2:3b", LLAMA_8B | {"hidden_size": 3072, "num_attention_heads": 24}, 4096, True,
         256.5),
        ("deepseek-r1:671b", DEEPSEEK, 2048, True, 654.0),
    ],
)  # fmt: skip
def test_ollama_graph_estimates_are_those_logged(
    name: str, config: dict[str, Any], context: int, vocab: bool, mib: float
) -> None:
    spec = model_of_case(config, name, {})
    found = ollama.graph_bytes(spec, context, vocab_in_graph=vocab)
    assert found is not None
    assert found / MIB == pytest.approx(mib, abs=0.05)


def test_an_unknown_family_has_no_ollama_graph() -> None:
    assert ollama.graph_bytes(model_of_case(LLAMA_8B, "phi4:14b", {}), 2048) is None


@pytest.mark.parametrize(
    ("gpu", "version", "tp", "fraction"),
    [
        pytest.param("rtx-4090", "0.4.8", 1, 0.879, id="a 24 GB card, as implied by a log"),
        pytest.param("h100", "0.4.8", 1, 0.874, id="80 GB: 9.5 + 0.5 GiB"),
        pytest.param("h100", "0.4", 8, 0.81, id="by ranks in early 2025"),
    ],
)
def test_sglang_default_fractions(gpu: str, version: str, tp: int, fraction: float) -> None:
    deployment = _deployment(LLAMA_8B, f"sglang@{version}", gpu=gpu, tp=tp)
    assert sglang.static_fraction(deployment) == pytest.approx(fraction, abs=0.001)


def test_sglang_tokens_follow_the_fraction() -> None:
    deployment = _deployment(LLAMA_8B, "sglang@0.5", gpu_memory_utilization=0.85)
    plan = plan_memory(deployment)
    free = deployment.total_bytes - plan.runtime_bytes
    assert plan.kv_bytes == pytest.approx(free * 0.85 - plan.weight_bytes, abs=2)
    assert plan.kv_tokens == plan.kv_bytes // 131072


def test_sglang_window_pools_hold_a_ratio_of_the_full_pool() -> None:
    deployment = _deployment(GEMMA_270M, "sglang@0.5")
    assert sglang.bytes_per_token(deployment) == 3 * 1024 + 0.8 * 15 * 1024


def test_sglang_states_rival_the_cache() -> None:
    slots = _deployment(QWEN38_27B, "sglang@0.5", name="qwen3.8-27b", max_num_seqs=8)
    more = replace(slots, max_num_seqs=16)
    assert plan_memory(more).kv_tokens < plan_memory(slots).kv_tokens
    assert plan_memory(slots).max_concurrency <= 8


def test_tensorrt_llm_rounds_blocks_up() -> None:
    config = LLAMA_8B | {"num_key_value_heads": 32, "vocab_size": 151936}
    deployment = _deployment(config, "tensorrt-llm@0.13", gpu="a100-40gb")
    pool = share.pool(deployment, 64)
    assert pool.bytes_per_block == 64 * 524288
    low, high = ((0.9 * gib * GIB / pool.bytes_per_block) for gib in (21.885, 21.895))
    assert low < 631 <= high + 1, "as logged: 631 blocks of 21.89 GiB"
    plan = plan_memory(deployment)
    assert plan.num_blocks * pool.bytes_per_block >= plan.kv_bytes


def test_old_lmdeploy_takes_a_share_of_the_total() -> None:
    old, new = (
        plan_memory(_deployment(LLAMA_8B, f"lmdeploy@{version}", gpu_memory_utilization=0.5))
        for version in ("0.1", "0.6")
    )
    assert old.kv_bytes == old.total_bytes // 2
    assert new.kv_bytes < old.kv_bytes


@pytest.mark.parametrize("engine", PLANNERS)
def test_every_engine_shrinks_with_weights_and_grows_with_memory(engine: str) -> None:
    here = _deployment(LLAMA_8B, engine, gpu="l40s")
    larger = replace(here, total_bytes=here.total_bytes + 8 * GIB)
    heavier = replace(here, model=replace(here.model, vision_params=10**9))
    plan = plan_memory(here)
    assert plan.fits
    assert plan_memory(larger).max_concurrency > plan.max_concurrency
    assert plan_memory(heavier).max_concurrency < plan.max_concurrency
    assert plan.max_context_len >= 8192
    hopeless = replace(here, total_bytes=8 * GIB)
    assert not plan_memory(hopeless).fits
    assert plan_memory(hopeless).kv_tokens == 0


@pytest.mark.parametrize("engine", [kind for kind in PLANNERS if kind not in ("llama-cpp",)])
def test_an_eight_bit_cache_doubles_the_tokens(engine: str) -> None:
    plain = plan_memory(_deployment(LLAMA_8B, engine))
    eighth = plan_memory(_deployment(LLAMA_8B, engine, kv_dtype="fp8"))
    assert eighth.kv_tokens == pytest.approx(2 * plain.kv_tokens, rel=0.001)


@pytest.mark.parametrize(
    ("name", "size"),
    [("auto", 2.0), ("f16", 2.0), ("fp8_e4m3", 1.0), ("q8_0", 34 / 32), ("q4_0", 18 / 32),
     ("nvfp4", 0.5625), ("int4", 0.5)],
)  # fmt: skip
def test_cached_bytes_count_the_scales(name: str, size: float) -> None:
    assert cached_element_bytes(name, "bfloat16") == size


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda: cached_element_bytes("q7_0", "float16"), id="cache dtype"),
        pytest.param(lambda: quantized(model_of_case(LLAMA_8B, "", {}), "awk"), id="quantization"),
        pytest.param(lambda: engine_named("vlm"), id="engine"),
        pytest.param(lambda: engine_named("vllm@latest"), id="version"),
    ],
)
def test_a_wrong_name_is_a_usage_error(act: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as caught:
        act()
    assert caught.value.fix


@pytest.mark.parametrize("method", METHODS)
def test_each_quantisation_makes_weights_smaller(method: str) -> None:
    plain = _deployment(LLAMA_8B, "vllm")
    smaller = replace(plain, model=quantized(plain.model, method))
    dense_in_mxfp4 = method == "mxfp4"  # which stores experts alone, and there are none
    shrunk = plan_memory(smaller).weight_bytes < plan_memory(plain).weight_bytes
    assert shrunk is not dense_in_mxfp4
