"""vLLM's budget against what it logged on known cards, by version."""

from dataclasses import replace
from typing import Any

import pytest

from attnprof.engines import vllm
from attnprof.engines.base import Deployment
from attnprof.engines.profile import engine_named
from attnprof.gpus import gpu_named
from attnprof.models.spec import ModelSpec
from attnprof.serving_cases.model import model_of_case

GIB = 2**30
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN3_30B = {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
    "n_experts": 128, "experts_per_token": 8, "moe": True, "moe_intermediate_size": 768,
    "max_position_embeddings": 40960,
}  # fmt: skip
MIXTRAL = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000,
    "n_experts": 8, "experts_per_token": 2, "moe": True, "moe_intermediate_size": 14336,
}  # fmt: skip
QWEN25_72B = {
    "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 29568, "vocab_size": 152064,
    "max_position_embeddings": 32768,
}  # fmt: skip


def _model(config: dict[str, Any], name: str = "model", **settings: Any) -> ModelSpec:
    return model_of_case(config, name, settings)


def _deployment(
    config: dict[str, Any], version: str, gpu: str = "h100", model: ModelSpec | None = None,
    **options: Any,
) -> Deployment:  # fmt: skip
    card = gpu_named(gpu)
    return Deployment(
        model=model or _model(config),
        engine=engine_named(f"vllm@{version}"),
        total_bytes=card.visible_memory_bytes,
        gpu=card,
        **options,
    )


@pytest.mark.parametrize(
    ("deployment", "activation_gib", "tolerance"),
    [
        pytest.param(_deployment(LLAMA_8B, "0.11"), 4.76, 0.01, id="Llama-3.1-8B, 0.11, H100"),
        pytest.param(_deployment(LLAMA_8B, "0.19"), 1.89, 0.01, id="Llama-3.1-8B, 0.19, H100"),
        pytest.param(_deployment(LLAMA_8B, "0.19", dtype="float32"), 2.21, 0.02, id="float32"),
        pytest.param(_deployment(LLAMA_8B, "0.19", tp=4), 1.89, 0.01, id="TP does not divide it"),
        pytest.param(_deployment(QWEN25_72B, "0.19", tp=2), 2.29, 0.01, id="Qwen2.5-72B"),
        pytest.param(_deployment(QWEN3_30B, "0.19"), 2.68, 0.03, id="Qwen3-30B-A3B: workspace"),
        pytest.param(_deployment(MIXTRAL, "0.19", tp=2), 1.21, 0.03, id="Mixtral: workspace"),
        pytest.param(
            _deployment(LLAMA_8B, "0.6.4", gpu="rtx-3090", max_model_len=29000), 2.99, 0.03,
            id="V0 prefills the whole context: Llama-3.1-8B at 29k",
        ),
        pytest.param(
            _deployment(LLAMA_8B, "0.6.4", gpu="w7900", max_model_len=131072), 1.21, 0.05,
            id="V0 chunks above 32k",
        ),
    ],
)  # fmt: skip
def test_activation_peaks_are_those_logged(
    deployment: Deployment, activation_gib: float, tolerance: float
) -> None:
    predicted = vllm.activation_bytes(deployment) / GIB
    assert predicted == pytest.approx(activation_gib, abs=tolerance)


@pytest.mark.parametrize(
    ("deployment", "kv_gib", "tokens"),
    [
        pytest.param(
            _deployment(LLAMA_8B, "0.19", max_model_len=32768, gpu_memory_utilization=0.95),
            58.11, 476_016, id="one H100",
        ),
        pytest.param(
            _deployment(LLAMA_8B, "0.19", tp=4, gpu_memory_utilization=0.95),
            67.44, 2_209_792, id="TP4",
        ),
        pytest.param(
            _deployment(LLAMA_8B, "0.19", pp=4, gpu_memory_utilization=0.95),
            68.9, 2_257_264, id="PP4: the stage that samples decides",
        ),
        pytest.param(
            _deployment(MIXTRAL, "0.19", tp=2, gpu_memory_utilization=0.95),
            28.44, 465_936, id="Mixtral TP2",
        ),
        pytest.param(
            _deployment(QWEN3_30B, "0.19", gpu_memory_utilization=0.95),
            15.41, 168_288, id="Qwen3-30B-A3B",
        ),
    ],
)  # fmt: skip
def test_the_cache_follows_from_the_settings_alone(
    deployment: Deployment, kv_gib: float, tokens: int
) -> None:
    plan = vllm.plan(deployment)
    assert plan.kv_bytes / GIB == pytest.approx(kv_gib, rel=0.01)
    assert plan.kv_tokens == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "version", "sequences", "tokens"),
    [("h100", "0.11", 1024, 8192), ("a100", "0.11", 256, 2048), ("rtx-4090", "0.11", 256, 2048),
     ("h100", "0.6.4", 256, 8192)],
)  # fmt: skip
def test_defaults_depend_on_card_and_version(
    gpu: str, version: str, sequences: int, tokens: int
) -> None:
    deployment = _deployment(LLAMA_8B, version, gpu=gpu)
    assert vllm.max_num_seqs(deployment) == sequences
    assert vllm.max_num_batched_tokens(deployment) == tokens


def test_graphs_are_outside_the_budget_until_021() -> None:
    before, after = (vllm.plan(_deployment(LLAMA_8B, version)) for version in ("0.20", "0.21"))
    assert before.kv_bytes - after.kv_bytes == pytest.approx(after.graph_bytes, abs=1)
    eager = vllm.plan(_deployment(LLAMA_8B, "0.21", enforce_eager=True))
    assert eager.graph_bytes == 0
    assert eager.kv_bytes == before.kv_bytes


def test_graphs_and_sampler_beyond_the_head_room_are_noted() -> None:
    config = LLAMA_8B | {"vocab_size": 201_088}
    crowded = vllm.plan(_deployment(config, "0.19", gpu_memory_utilization=0.99))
    assert any("outside the budget" in note for note in crowded.notes)
    roomy = vllm.plan(_deployment(config, "0.19", gpu_memory_utilization=0.8))
    assert not any("outside the budget" in note for note in roomy.notes)


def test_kv_heads_are_copied_when_ranks_are_more() -> None:
    per_rank = [
        vllm.pool(_deployment(LLAMA_8B, "0.19", tp=tp)).bytes_per_block for tp in (1, 8, 16, 32)
    ]
    assert per_rank == [16 * 131072, 16 * 16384, 16 * 16384, 16 * 16384]


def test_a_latent_is_whole_on_each_rank_and_was_expanded_before_mla() -> None:
    config = {
        "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    }  # fmt: skip
    one, eight = (vllm.pool(_deployment(config, "0.19", tp=tp)).bytes_per_block for tp in (1, 8))
    assert one == eight == 16 * 27 * 576 * 2
    before = vllm.pool(_deployment(config, "0.6.4"))
    assert before.bytes_per_block == 16 * 442_368, "as logged: K and V padded to 256"


def test_v0_concurrency_is_tokens_over_context() -> None:
    config = QWEN25_72B | {
        "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4,
    }  # fmt: skip
    pool = vllm.pool(_deployment(config, "0.6.4", gpu="l4", max_model_len=200))
    assert pool.concurrency(11836, 200) == pytest.approx(946.88)


def test_measured_overheads_replace_the_constants() -> None:
    deployment = _deployment(LLAMA_8B, "0.19")
    measured = replace(
        deployment.engine,
        overheads=replace(
            deployment.engine.overheads, runtime_bytes=GIB, graph_bytes=2 * GIB,
            activation_scale=2.0, weight_scale=1.1,
        ),
    )  # fmt: skip
    plain, audited = vllm.plan(deployment), vllm.plan(replace(deployment, engine=measured))
    assert audited.runtime_bytes == GIB
    assert audited.graph_bytes == 2 * GIB
    assert plain.activation_bytes is not None
    assert audited.activation_bytes == pytest.approx(2 * plain.activation_bytes, abs=1)
    assert audited.weight_bytes == pytest.approx(1.1 * plain.weight_bytes, abs=1)


def test_expert_parallel_replicas_share_the_experts_and_copy_the_rest() -> None:
    shared = _deployment(QWEN3_30B, "0.19", dp=4, dp_attention=True, expert_parallel=True)
    tensor, data = (
        vllm.plan(deployment).weight_bytes
        for deployment in (_deployment(QWEN3_30B, "0.19", tp=4), shared)
    )
    assert data > tensor
    whole = vllm.plan(_deployment(QWEN3_30B, "0.19")).weight_bytes
    assert data < whole / 2


@pytest.mark.parametrize(
    ("quantization", "gib"),
    [pytest.param("fp8", 8.49, id="fp8 online, logged"), pytest.param("", 14.99, id="bfloat16")],
)
def test_weights_are_those_logged(quantization: str, gib: float) -> None:
    model = _model(LLAMA_8B, quantization=quantization)
    deployment = _deployment(LLAMA_8B, "0.19", model=model)
    assert vllm.plan(deployment).weight_bytes / GIB == pytest.approx(gib, abs=0.006)
