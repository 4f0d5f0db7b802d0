"""Tiny decoders of every family: the Transformers library's classes, and ours with their weights.

Their structural quirks are all there: windows shorter than the sequences, caps that bend scores,
norms far from one, experts in groups, dense layers first, scalings that reach into the lengths.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import transformers

from attnprof.models.architecture import Architecture
from attnprof.models.build_architecture import build_architecture
from attnprof.workload import Workload
from attnprof.workloads.kv_caches import KvCache, new_cache
from attnprof.workloads.transformer import Transformer, build_transformer, op_workload
from attnprof.workloads.transformer.loading import load_transformers_weights

VOCAB, BATCH = 97, 2
LENGTH = 18
CPU = torch.device("cpu")

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    **SIZES, "model_type": "deepseek_v3", "num_key_value_heads": 4, "head_dim": 8,
    "q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 10, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 1.0,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 16,
    },
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama, scaled": {
        **SIZES, "model_type": "llama", "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
        },
    },
    "llama, tied": {
        **SIZES, "model_type": "llama", "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    },
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": 5},
    "mixtral": {
        **SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen2": {
        **SIZES, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 6,
        "max_window_layers": 1,
    },
    "qwen3": {**SIZES, "model_type": "qwen3"},
    "qwen3, experts": {
        **SIZES, **EXPERTS, "model_type": "qwen3_moe", "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3, experts unnormalised": {
        **SIZES, **EXPERTS, "model_type": "qwen3_moe", "norm_topk_prob": False,
    },
    "gemma": {**SIZES, "model_type": "gemma"},
    "gemma-2": {
        **SIZES, "model_type": "gemma2", "sliding_window": 5, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0,
    },
    "gemma-3": {
        **SIZES, "model_type": "gemma3_text", "sliding_window": 5, "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gpt-2": {
        "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4,
        "n_positions": 64, "scale_attn_by_inverse_layer_idx": True, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "gpt-oss": {
        **SIZES, "model_type": "gpt_oss", "sliding_window": 5, "num_local_experts": 6,
        "num_experts_per_tok": 3, "swiglu_limit": 7.0,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1.5e5, "factor": 4.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16,
        },
    },
    "deepseek-v2": {
        **DEEPSEEK, "model_type": "deepseek_v2", "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 2.0,
    },
    "deepseek-v2, lite": {
        **DEEPSEEK, "model_type": "deepseek_v2", "topk_method": "greedy", "q_lora_rank": None,
        "n_group": 1, "topk_group": 1, "mlp_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "deepseek-v3": DEEPSEEK,
    "deepseek-v3, queries of full rank": {
        **DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "attention_bias": True,
        "first_k_dense_replace": 2, "n_shared_experts": 1, "rope_interleave": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


def library_model(config: dict[str, Any], kernel: str = "eager") -> Any:
    """The class of the configuration with random weights, none of them near zero or one."""
    values = dict(config)
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation=kernel)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.dim() < 2 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # zero, which would hide it
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    for module in model.modules():
        if type(module).__name__ == "DeepseekV2Moe":
            module.num_experts = made.n_routed_experts  # which the class reads and does not set
    return model.eval()


def architecture_of(config: dict[str, Any]) -> Architecture:
    return build_architecture(config, "config.json")


def our_model(
    architecture: Architecture, theirs: Any, dtype: str = "float32", backend: str = "eager"
) -> Transformer:
    workload = Workload(backend=backend, dtype=dtype, q_len=LENGTH, kv_len=LENGTH)
    model = build_transformer(architecture, workload, CPU)
    load_transformers_weights(model, theirs.state_dict())
    return model


def tokens_of(length: int = LENGTH, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def new_caches(model: Transformer, kv_cache: str) -> list[KvCache]:
    """An empty cache a layer; of a rolling one only layers with windows have it."""
    made = []
    for block in model.architecture.blocks:
        attention, kind = block.attention, kv_cache
        if kind == "rolling" and attention.window_len is None:
            kind = "static"
        axes: dict[str, Any] = {"kv_cache": kind, "block_tokens": 4 if kind == "paged" else None}
        if kind == "latent":
            assert attention.latent is not None
            latent = attention.latent
            axes |= {"mla": "absorbed", "kv_lora_rank": latent.kv_rank}
            axes |= {"rope_head_dim": latent.rope_dim}
        lengths = {"batch_size": BATCH, "q_len": 1, "kv_len": LENGTH}
        workload = op_workload(model.kernels.workload, attention, **lengths)
        made.append(new_cache(replace(workload, **axes), 0, empty_as(model), seed=0))
    return made


def empty_as(model: Transformer) -> Any:
    dtype = next(model.parameters()).dtype
    return lambda *shape: torch.zeros(shape, dtype=dtype)


def parts_met(model: Transformer) -> list[str]:
    """The parts of what ``model`` runs from now on, in order; none may lie inside another."""
    met: list[str] = []
    inside: list[str] = []

    @contextmanager
    def meter(part: str) -> Iterator[None]:
        assert not inside, f"{part} inside {inside}"
        inside.append(part)
        met.append(part)
        yield
        inside.pop()

    model.meter = meter
    return met
