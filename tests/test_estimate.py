"""Estimates: vectors on which known calculators fail, the document, errors, and lightness."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.capacity.request import EstimateRequest
from attnprof.errors import UsageError
from attnprof.estimate import Estimate, estimate
from attnprof.models.build import build_model
from attnprof.models.spec import ModelSpec

GIB = 2**30
LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
GEMMA_27B = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 5376,
    "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "intermediate_size": 21504, "vocab_size": 262208, "sliding_window": 1024,
    "sliding_window_pattern": 6, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": 2880,
    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128,
    "num_local_experts": 128, "num_experts_per_tok": 4, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
QWEN3_32B = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120,
    "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 25600, "vocab_size": 151936, "max_position_embeddings": 40960,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def _model(config: dict[str, Any]) -> ModelSpec:
    return build_model(config, "test/config.json", str(config["model_type"]))


def _estimate(config: dict[str, Any], gpu: str = "h100", **options: Any) -> Estimate:
    return estimate(EstimateRequest(_model(config), gpu, **options))


def test_llama_8b_on_one_h100_at_8k() -> None:
    found = _estimate(LLAMA_8B, max_model_len=8192)
    assert 54 <= found.plan.kv_bytes / GIB <= 55
    assert 53 <= found.plan.max_concurrency <= 56
    assert found.to_json()["memory_per_gpu"]["total_bytes"] == 81_559 * 2**20


def test_deepseek_v3_on_eight_h200_replicates_the_latent() -> None:
    found = _estimate(DEEPSEEK_V3, "h200", num_gpus=8, tp=8, max_model_len=32768)
    assert 17 <= found.plan.max_concurrency <= 21
    assert found.kv.bytes_per_token_per_rank == 61 * 576 * 2
    assert found.kv.bytes_per_token == 8 * 61 * 576 * 2
    assert any("whole on each of 8 ranks" in note for note in found.notes)


def test_data_parallel_attention_pools_what_tensor_parallelism_replicates() -> None:
    request = EstimateRequest(_model(DEEPSEEK_V3), "h200", num_gpus=8, tp=8, max_model_len=32768)
    tensor, pooled = estimate(request), estimate(replace(request, dp=8))
    assert pooled.deployment.num_gpus == 8
    assert pooled.kv.bytes_per_token == 61 * 576 * 2
    # Eight pools instead of eight copies, less the attention weights that each rank then holds.
    attention = pooled.plan.weight_bytes - tensor.plan.weight_bytes
    assert attention > 0
    grown = 8 * (tensor.plan.kv_bytes - attention) / tensor.plan.kv_bytes
    assert pooled.plan.max_concurrency / tensor.plan.max_concurrency == pytest.approx(
        grown, rel=0.1
    )
    replicas = estimate(replace(request, num_gpus=64, dp=8, expert_parallel=False))
    assert replicas.plan.max_concurrency >= 8 * tensor.plan.max_concurrency


def test_gemma_27b_at_32k_by_who_counts() -> None:
    found = _estimate(GEMMA_27B, max_model_len=32768)
    counts = (found.kv.ideal_bytes, found.kv.admitted_bytes, found.kv.windowless_bytes)
    assert [round(count / GIB, 1) for count in counts] == [2.9, 6.7, 15.5]


def test_gpt_oss_weighs_what_its_file_does() -> None:
    found = _estimate(GPT_OSS)
    assert found.model_weight_bytes / GIB == pytest.approx(60.77, abs=0.01)
    assert found.plan.weight_bytes / GIB == pytest.approx(64.4, abs=0.3), "experts padded to tiles"


def test_qwen3_32b_has_heads_that_hidden_size_does_not_give() -> None:
    found = _estimate(QWEN3_32B)
    assert found.kv.bytes_per_token == 2 * 64 * 8 * 128 * 2


def test_the_document_has_the_designs_keys_and_is_json() -> None:
    document = json.loads(json.dumps(_estimate(LLAMA_8B).to_json()))
    wanted = {
        "model": {"name", "architecture", "num_params", "num_active_params", "weight_bytes"},
        "kv": {"bytes_per_token", "bytes_per_sequence", "bytes_per_token_per_rank",
               "block_tokens", "state_bytes_per_sequence"},
        "memory_per_gpu": {"total_bytes", "usable_bytes", "weight_bytes", "activation_bytes",
                           "graph_bytes", "runtime_bytes", "kv_bytes"},
        "capacity": {"fits", "kv_tokens", "max_concurrency", "max_context_len", "num_blocks"},
        "latency": {"ttft_s", "tpot_s", "output_tokens_per_s"},
        "cost": {"per_hour", "per_million_input_tokens", "per_million_output_tokens", "currency"},
    }  # fmt: skip
    assert document["format"] == 1
    for section, keys in wanted.items():
        assert keys <= document[section].keys()
        for key in keys - {"name", "architecture", "currency"} if section != "cost" else ():
            assert f"{section}.{key}" in document["provenance"]
    assert set(document["provenance"].values()) <= {
        "measured", "calibrated", "computed", "datasheet", "assumed",
    }  # fmt: skip
    for interval in document["latency"].values():
        assert interval["low"] <= interval["mid"] <= interval["high"]
    assert document["binding"] in (
        "kv_memory", "compute", "bandwidth", "interconnect", "scheduler", "weights",
    )  # fmt: skip


def test_what_does_not_fit_says_what_would() -> None:
    found = _estimate(QWEN3_32B, "rtx-4090")
    assert not found.plan.fits
    assert found.binding == "weights"
    assert found.to_json()["memory_per_gpu"]["kv_bytes"] == 0
    assert found.output_tokens_per_s.mid is None
    fitting = {tried.change for tried in found.alternatives if tried.fits}
    assert "--quantization awq" in fitting
    assert any("it would with" in note for note in found.notes)


def test_alternatives_state_their_gain() -> None:
    found = _estimate(LLAMA_8B, max_model_len=32768)
    gains = {tried.change: tried.gain for tried in found.alternatives}
    assert gains["--max-model-len 16384"] == pytest.approx(2, abs=0.1)
    assert gains["--kv-dtype fp8"] == pytest.approx(2, abs=0.1)
    assert gains["--gpus 2 --tp 2"] is not None
    assert gains["--gpus 2 --tp 2"] > 2


def test_users_beyond_the_pool_are_bound_by_it() -> None:
    assert _estimate(LLAMA_8B, max_model_len=8192, users=4).binding == "bandwidth"
    crowded = _estimate(LLAMA_8B, "l4", max_model_len=8192, prompt_len=4096, users=500)
    assert crowded.binding == "kv_memory"
    scheduled = _estimate(LLAMA_8B, max_model_len=8192, max_num_seqs=4)
    assert scheduled.binding == "scheduler"


def test_decode_is_no_faster_than_reading_the_weights() -> None:
    found = _estimate(LLAMA_8B, users=1)
    read = 7.5e9 * 2  # the embedding is a lookup
    assert found.tpot_s.low == pytest.approx(read / 3.35e12, rel=0.03)
    prefill = _estimate(LLAMA_8B, prompt_len=4096)
    flops = 2 * 7.0e9 * 4096 + 4 * 32 * 32 * 128 * 4096**2 / 2
    assert prefill.ttft_s.low == pytest.approx(flops / 989.4e12, rel=0.03)


def test_cost_follows_price_and_throughput() -> None:
    found = _estimate(LLAMA_8B, price="3.6")
    assert found.cost["per_hour"] == 3.6
    assert found.output_tokens_per_s.mid is not None
    per_million = 3.6 / 3600 / found.output_tokens_per_s.mid * 1e6
    assert found.cost["per_million_output_tokens"] == pytest.approx(per_million)
    assert _estimate(LLAMA_8B, "arc-b580").cost["per_hour"] is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gpu": "h10"}, "unknown GPU 'h10'"),
        ({"engine": "vlm"}, "unknown engine 'vlm'"),
        ({"tp": 0}, "tp is 0"),
        ({"tp": 5}, "tp 5 does not divide"),
        ({"pp": 40, "num_gpus": 40}, "40 stages are more than the 32 layers"),
        ({"num_gpus": 3, "tp": 2}, "tp x pp x dp is 2, gpus is 3"),
        ({"num_gpus": 0}, "gpus is 0"),
        ({"num_gpus": 10**9}, "gpus is 1000000000"),
        ({"max_model_len": -5}, "max_model_len is -5"),
        ({"max_model_len": 10**15}, "max_model_len is"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        ({"kv_dtype": "fp9"}, "unknown cache dtype 'fp9'"),
        ({"quantization": "awk"}, "unknown quantization 'awk'"),
        ({"dtype": "fp8"}, "dtype 'fp8' is for weights alone"),
        ({"dtype": "float17"}, "unknown dtype 'float17'"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"prompt_len": 9000, "max_model_len": 8192}, "prompt_len 9000"),
        ({"price": "cheap"}, "unknown price list 'cheap'"),
        ({"price": "-1"}, "price is '-1'"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_error(options: dict[str, Any], named: str) -> None:
    request = {"gpu": "h100", **options}
    with pytest.raises(UsageError) as caught:
        estimate(EstimateRequest(_model(LLAMA_8B), **request))
    assert named in caught.value.problem
    assert caught.value.fix


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(["vllm", "vllm@0.11", "vllm@0.6", "sglang", "llama-cpp", "torch"]),
    context=st.integers(16, 131072),
    tp=st.sampled_from([1, 2, 4]),
)
def test_what_holds_of_any_estimate(engine: str, context: int, tp: int) -> None:
    found = _estimate(LLAMA_8B, engine=engine, max_model_len=context, tp=tp)
    assert found.kv.ideal_bytes <= found.kv.admitted_bytes + 1
    assert found.kv.windowless_bytes >= found.kv.ideal_bytes
    assert found.plan.max_context_len >= min(context, math.floor(found.plan.max_concurrency))
    assert json.dumps(found.to_json())
    if found.plan.fits:
        assert found.plan.max_context_len >= context


def test_an_estimate_loads_no_heavy_library_and_stays_small() -> None:
    code = f"""
import json, pathlib, sys
from attnprof.capacity.request import EstimateRequest
from attnprof.estimate import estimate
from attnprof.models.build import build_model
config = json.loads({json.dumps(json.dumps(DEEPSEEK_V3))})
estimate(EstimateRequest(build_model(config, "c"), "h200", tp=8)).to_json()
status = pathlib.Path("/proc/self/status")
peak = 0
if status.exists():  # what a parent held before the fork does not count here, unlike in rusage
    peak = int(status.read_text().split("VmHWM:")[1].split()[0])
print(json.dumps([sorted(sys.modules), peak]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, peak_kib = json.loads(done.stdout)
    assert not {"numpy", "torch", "pandas", "scipy", "rich", "typer"} & set(modules)
    assert peak_kib < 60 * 1024


def test_an_encoder_keeps_no_cache_and_the_scheduler_bounds_it() -> None:
    bert = {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "vocab_size": 30522, "max_position_embeddings": 512, "torch_dtype": "float32",
    }  # fmt: skip
    found = _estimate(bert)
    assert found.plan.fits
    assert found.plan.kv_tokens == found.kv.bytes_per_token == found.kv.admitted_bytes == 0
    assert found.plan.max_concurrency == 1024
    assert found.deployment.dtype == "float16", "engines halve float32 unless told"
    assert _estimate(bert, engine="torch").deployment.dtype == "float32"
