"""Estimates: vectors on which known calculators fail, the document, errors, and lightness."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.capacity.request import EstimateRequest
from attnprof.engines.weights import rank_weight_bytes
from attnprof.errors import UsageError
from attnprof.estimate import Estimate, estimate
from attnprof.gpus import gpu_named
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
    assert found.tpot_s.low is not None
    assert found.tpot_s.mid is not None
    assert read / 3.35e12 <= found.tpot_s.low < found.tpot_s.mid < 2 * read / 3.35e12
    prefill = _estimate(LLAMA_8B, prompt_len=4096)
    flops = 2 * 7.0e9 * 4096 + 4 * 32 * 32 * 128 * 4096**2 / 2
    assert prefill.ttft_s.low is not None
    assert prefill.ttft_s.mid is not None
    least = 0.97 * flops / 989.4e12
    assert least <= prefill.ttft_s.low < prefill.ttft_s.mid < 2.5 * least


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
        ({"ttft_s": 0.0}, "ttft is 0 s"),
        ({"tpot_s": -1.0}, "tpot is -1 s"),
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
    assert found.to_json()["memory_per_gpu"]["kv_bytes"] == 0
    latency, cost = found.to_json()["latency"], found.to_json()["cost"]
    for name in ("tpot_s", "output_tokens_per_s"):
        assert set(latency[name].values()) == {None}, "an encoder writes no tokens"
    assert cost["per_million_output_tokens"] is None
    assert latency["ttft_s"]["mid"] > 0
    assert cost["per_million_input_tokens"] > 0
    assert not any("--kv-dtype" in tried.change for tried in found.alternatives)
    with pytest.raises(UsageError, match="writes no tokens"):
        _estimate(bert, output_len=10)
    assert found.deployment.dtype == "float16", "engines halve float32 unless told"
    assert _estimate(bert, engine="torch").deployment.dtype == "float32"


def _leaves(document: Any, path: str = "") -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(document, int | float):
        yield path


@pytest.mark.parametrize("section", ["model", "kv", "memory_per_gpu", "capacity", "latency"])
def test_every_number_says_how_it_was_had(section: str) -> None:
    document = _estimate(LLAMA_8B).to_json()
    numbers = set(_leaves(document[section], section))
    assert numbers
    assert numbers <= document["provenance"].keys()


def test_what_does_not_start_has_no_times() -> None:
    document = _estimate(QWEN3_32B, "rtx-4090").to_json()
    for interval in document["latency"].values():
        assert set(interval.values()) == {None}
    assert document["cost"]["per_million_input_tokens"] is None
    assert document["cost"]["per_hour"] > 0


def test_an_encoder_decoder_reads_its_source_once() -> None:
    whisper = {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32,
        "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120, "vocab_size": 51866, "max_source_positions": 1500,
        "max_target_positions": 448, "num_mel_bins": 128, "torch_dtype": "float16",
    }  # fmt: skip
    spec, gpu = _model(whisper), gpu_named("l4")
    found = _estimate(whisper, "l4", users=1)
    encoder = sum(layer.num_params for layer in spec.encoder_layers)
    prefill, decode = found.ttft_s.low, found.tpot_s.low
    assert prefill is not None
    assert decode is not None
    # The encoder's 1,500 frames cost more than the decoder's prompt; a step reads the decoder.
    peak = gpu.peak_flops_per_s("float16")
    assert peak is not None
    assert prefill > 2 * encoder * 1500 / peak
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    assert decode < 2 * spec.num_params / bandwidth
    assert decode > 2 * (spec.num_params - encoder) / bandwidth * 0.9


def test_stages_of_a_pipeline_share_a_batch() -> None:
    one = _estimate(LLAMA_8B, users=64)
    two = _estimate(LLAMA_8B, users=64, pp=2, num_gpus=2)
    split = _estimate(LLAMA_8B, users=64, tp=2, num_gpus=2, engine="llama-cpp")
    assert one.tpot_s.low is not None
    assert two.tpot_s.low is not None
    assert split.tpot_s.low is not None
    assert two.tpot_s.low < one.tpot_s.low
    assert split.deployment.pp == 2, "llama.cpp gives whole layers to each GPU"
    alone = _estimate(LLAMA_8B, users=64, engine="llama-cpp")
    assert split.tpot_s.mid == pytest.approx(alone.tpot_s.mid, rel=0.02), "which take turns"


def test_limits_of_latency_are_held_by_what_is_said_to_hold_them() -> None:
    free = _estimate(LLAMA_8B)
    assert free.slo is None
    assert free.holds_limits is None
    found = _estimate(LLAMA_8B, tpot_s=0.02, ttft_s=1.0)
    assert found.slo is not None
    assert 1 <= found.slo.safe_batch_size <= found.slo.max_batch_size
    assert found.slo.max_batch_size < found.settings["batch_size"]
    at_most = _estimate(LLAMA_8B, users=found.slo.max_batch_size)
    beyond = _estimate(LLAMA_8B, users=found.slo.max_batch_size + 1)
    assert at_most.tpot_s.mid is not None
    assert beyond.tpot_s.mid is not None
    assert at_most.tpot_s.mid <= 0.02 < beyond.tpot_s.mid
    assert found.holds_limits is True
    assert _estimate(LLAMA_8B, tpot_s=0.02, users=200).holds_limits is False
    assert _estimate(LLAMA_8B, tpot_s=1e-4).holds_limits is False
    longest = _estimate(LLAMA_8B, ttft_s=0.1, max_model_len=32768).slo
    assert longest is not None
    reached = _estimate(
        LLAMA_8B, users=1, prompt_len=longest.max_prompt_len, max_model_len=32768
    ).ttft_s.mid
    assert reached == pytest.approx(0.1, rel=0.01)


def test_a_curve_trades_latency_for_throughput() -> None:
    document = _estimate(LLAMA_8B, price="2").to_json()
    curve = document["curve"]
    assert [point["batch_size"] for point in curve[:3]] == [1, 2, 4]
    assert curve[-1]["batch_size"] == document["settings"]["batch_size"]
    for less, more in itertools.pairwise(curve):
        assert less["tpot_s"]["mid"] <= more["tpot_s"]["mid"]
        assert less["output_tokens_per_s"]["mid"] <= more["output_tokens_per_s"]["mid"]
        assert less["per_million_output_tokens"] >= more["per_million_output_tokens"]
    assert document["provenance"]["curve"] == document["provenance"]["latency.tpot_s"]


def test_latency_is_calibrated_where_it_was_fitted_and_wider_where_not() -> None:
    def spread(gpu: str, engine: str = "vllm") -> tuple[str, float]:
        found = _estimate(LLAMA_8B, gpu, engine=engine, users=1, max_model_len=8192)
        assert found.tpot_s.high is not None
        assert found.tpot_s.mid is not None
        return found.provenance["latency.tpot_s"], found.tpot_s.high / found.tpot_s.mid

    fitted, (how, elsewhere) = spread("h100"), spread("mi300x")
    assert fitted[0] == "calibrated"
    assert how == "assumed"
    assert elsewhere > 1.1 * fitted[1]
    assert spread("h100", "tgi")[0] == "assumed"
    # Results of llama.cpp alone are known of this card.
    assert spread("rtx-4090", "llama-cpp")[0] == "calibrated"
    assert spread("rtx-4090", "vllm")[0] == "assumed"


def test_layers_split_among_gpus_cut_no_head() -> None:
    found = _estimate(LLAMA_8B, num_gpus=3, tp=3, engine="llama-cpp", max_model_len=4096)
    assert found.deployment.pp == 3
    assert found.kv.bytes_per_token_per_rank == 11 * 4096, "11 of 32 layers on the fullest"


@pytest.mark.parametrize(
    ("engine", "grows"),
    [
        pytest.param("vllm", 10, id="vLLM lets a full window grow no more"),
        pytest.param("vllm@0.7", 62, id="V0 planned windows as full attention"),
        pytest.param("llama-cpp", 10, id="llama.cpp keeps the window"),
        pytest.param("tensorrt-llm", 62, id="TensorRT-LLM is planned without windows"),
        pytest.param("sglang", 10 + 0.8 * 52, id="SGLang's window pool follows the full one"),
    ],
)
def test_growth_of_windows_is_the_engines(engine: str, grows: float) -> None:
    found = _estimate(GEMMA_27B, engine=engine, max_model_len=32768)
    assert found.kv.bytes_per_token == pytest.approx(grows * 2 * 16 * 128 * 2)


@pytest.mark.parametrize("model_type", ["phi3", "mistral", "qwen2", "starcoder2"])
def test_llama_cpp_ignores_windows_that_it_has_no_use_for(model_type: str) -> None:
    config = LLAMA_8B | {"model_type": model_type, "sliding_window": 2048}
    config.pop("architectures")
    found = _estimate(config, engine="llama-cpp", max_model_len=16384)
    assert found.kv.admitted_bytes == 16384 * 131072


def test_compressed_latents_stand_beside_a_window() -> None:
    config = {
        "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 4,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
        "moe_intermediate_size": 2048, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
        "index_head_dim": 128, "sliding_window": 128, "vocab_size": 1000,
        "compress_ratios": [0, 128, 4, 4], "max_position_embeddings": 2**20,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    found = _estimate(config, max_model_len=32768)
    latent = 512 * 2
    assert found.kv.bytes_per_token == latent * (1 / 128 + 2 / 4)
    assert found.kv.ideal_bytes == latent * (32768 // 128 + 2 * 32768 // 4 + 4 * 128)


def test_engines_without_a_rotary_table_load_the_model_alone() -> None:
    spec = _model(LLAMA_8B)
    torch_plan = _estimate(LLAMA_8B, engine="torch").plan
    assert torch_plan.weight_bytes == 2 * spec.num_params
    table = 131072 * 128 * 2
    assert _estimate(LLAMA_8B).plan.weight_bytes == 2 * spec.num_params + table
    embedding = 2 * 128256 * 4096
    llama = _estimate(LLAMA_8B, engine="llama-cpp").plan
    assert llama.weight_bytes == 2 * spec.num_params - embedding, "looked up on the host"


@pytest.mark.parametrize("dtype_bytes", [2, 4])
def test_stored_bytes_scale_what_a_rank_loads(dtype_bytes: int) -> None:
    config = LLAMA_8B | {"torch_dtype": {2: "bfloat16", 4: "float32"}[dtype_bytes]}
    plain = _model(config)
    stored = replace(plain, stored_weight_bytes=dtype_bytes * plain.num_params + 10**9)
    grown = 1 + 10**9 / (dtype_bytes * plain.num_params)
    for tp in (1, 4):
        one, other = (
            estimate(EstimateRequest(spec, "h100", tp=tp)).plan.weight_bytes
            for spec in (plain, stored)
        )
        table = 131072 * 128 * 2
        assert other - table == pytest.approx(grown * (one - table), rel=1e-6)


def test_multi_token_prediction_loads_its_layer() -> None:
    config = DEEPSEEK_V3 | {"num_nextn_predict_layers": 1}
    plain = _estimate(config, "h200", num_gpus=8, tp=8)
    drafting = _estimate(config, "h200", num_gpus=8, tp=8, num_draft_tokens=1)
    layer = drafting.deployment.model.draft_layers[0].num_params
    more = drafting.plan.weight_bytes - plain.plan.weight_bytes
    assert layer / 8 < more < layer / 8 * 1.3, "FP8, but norms and the latent whole on each rank"
    outside = _estimate(LLAMA_8B, num_draft_tokens=3)
    assert any("draft model's weights are not counted" in note for note in outside.notes)


def test_data_parallel_attention_says_what_it_pools_and_what_it_costs() -> None:
    request = EstimateRequest(_model(DEEPSEEK_V3), "h200", num_gpus=8, tp=8, max_model_len=32768)
    tensor, pooled = estimate(request), estimate(replace(request, dp=8))
    change = next(one for one in tensor.alternatives if one.change.startswith("data-parallel"))
    assert change.change.endswith("--gpus 8 --tp 8 --dp 8")
    assert change.max_concurrency == pooled.plan.max_concurrency
    note = next(note for note in tensor.notes if "pools in place of 8 copies" in note)
    assert f"{change.gain:.2f} times here" in note
    assert any("8 pools of latents" in note and "16.3 GiB" in note for note in pooled.notes)
    assert pooled.binding == "kv_memory", "the scheduler's limit is each group's"


def test_sglangs_groups_split_dense_blocks_and_the_head() -> None:
    vllm, sglang = (
        _estimate(DEEPSEEK_V3, "h200", num_gpus=8, tp=8, dp=8, engine=engine).deployment
        for engine in ("vllm", "sglang")
    )
    assert rank_weight_bytes(sglang) < rank_weight_bytes(vllm)
    replicas = _estimate(DEEPSEEK_V3, "h200", num_gpus=64, tp=8, dp=8, engine="sglang").deployment
    assert not replicas.dp_attention
    assert replicas.expert_ranks == 8
