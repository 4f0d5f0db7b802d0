"""Decoders of every family, with the weights of the Transformers library's own classes."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attnprof.models.build_architecture import build_architecture  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.kv_caches import new_cache  # noqa: E402
from attnprof.workloads.transformer import Transformer, build_transformer, op_workload  # noqa: E402
from attnprof.workloads.transformer.loading import load_transformers_weights  # noqa: E402

pytestmark = pytest.mark.torch

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama", "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}},
    "llama, tied": {**SIZES, "model_type": "llama", "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": 5},
    "qwen2": {**SIZES, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 6,
        "max_window_layers": 1},
    "qwen3": {**SIZES, "model_type": "qwen3"},
    "qwen3_moe": {**SIZES, "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "mixtral": {**SIZES, "model_type": "mixtral", "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": None},
    "gemma": {**SIZES, "model_type": "gemma"},
    "gemma2": {**SIZES, "model_type": "gemma2", "sliding_window": 5, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gemma3": {**SIZES, "model_type": "gemma3_text", "sliding_window": 5,
        "query_pre_attn_scalar": 24, "layer_types": ["sliding_attention", "full_attention",
            "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "gpt2": {"model_type": "gpt2", "vocab_size": 97, "n_embd": 48, "n_layer": 3, "n_head": 4,
        "n_positions": 64, "scale_attn_by_inverse_layer_idx": True},
    "gpt_oss": {**SIZES, "model_type": "gpt_oss", "sliding_window": 5, "num_local_experts": 6,
        "num_experts_per_tok": 3},
    "deepseek_v3": {**SIZES, "model_type": "deepseek_v3", "num_key_value_heads": 4,
        "head_dim": 8, "q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12, "v_head_dim": 10, "moe_intermediate_size": 24,
        "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
            "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 16}},
    "deepseek_v3, wide queries": {**SIZES, "model_type": "deepseek_v3", "num_key_value_heads": 4,
        "head_dim": 8, "q_lora_rank": None, "kv_lora_rank": 24, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12, "v_head_dim": 10, "moe_intermediate_size": 24,
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 2, "attention_bias": True,
        "rope_interleave": False},
}  # fmt: skip
PROMPT, STEPS, VERIFIED = 11, 4, 3
LENGTH = PROMPT + STEPS + VERIFIED


def library_model(config: dict[str, Any], dtype: Any = torch.float32) -> Any:
    """The class of the configuration with random weights, none of them near zero or one."""
    config = dict(config)
    kind = config.pop("model_type")
    made = transformers.AutoConfig.for_model(kind, **config)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in (*model.parameters(), *model.buffers()):
            if parameter.is_floating_point() and parameter.dim() and "inv" not in str(parameter):
                pass
        for _, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() < 2 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model.to(dtype).eval()


def our_model(config: dict[str, Any], theirs: Any, **axes: Any) -> Transformer:
    workload = Workload(
        **{"backend": "eager", "dtype": "float32", "q_len": LENGTH, "kv_len": LENGTH, **axes}
    )
    model = build_transformer(
        build_architecture(config, "config.json"), workload, torch.device("cpu")
    )
    load_transformers_weights(model, theirs.state_dict())
    return model


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    torch.set_num_threads(1)
    return FAMILIES[request.param]


def new_caches(model: Transformer, kv_cache: str = "contiguous") -> list[Any]:
    def empty(*shape: int) -> Any:
        return torch.zeros(shape)

    made = []
    for block in model.architecture.blocks:
        workload = op_workload(
            model.kernels.workload, block.attention, batch_size=2, q_len=1, kv_len=LENGTH
        )
        import dataclasses
        workload = dataclasses.replace(workload, kv_cache=kv_cache)
        made.append(new_cache(workload, 0, empty, seed=0))
    return made


def test_a_prefill_gives_the_librarys_logits(config: dict[str, Any]) -> None:
    theirs = library_model(config)
    tokens = torch.randint(0, 97, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = theirs(tokens, use_cache=False).logits
        found = our_model(config, theirs)(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


def test_the_cache_gives_the_librarys_logits(config: dict[str, Any]) -> None:
    theirs = library_model(config)
    ours = our_model(config, theirs)
    tokens = torch.randint(0, 97, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    caches, held, start = new_caches(ours), None, 0
    with torch.inference_mode():
        for length in (PROMPT, *[1] * STEPS, VERIFIED):
            new = tokens[:, start : start + length]
            said = theirs(new, past_key_values=held, use_cache=True)
            held = said.past_key_values
            found = ours(new, caches, start)
            expected = said.logits
            torch.testing.assert_close(
                found, expected, rtol=1e-4, atol=1e-4 * float(expected.std())
            )
            start += length
