"""Configurations -> what is computed; that it is right is shown by the weights of real classes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.errors import AttnprofError, UsageError
from attnprof.models.architecture import Architecture, Experts
from attnprof.models.architecture_decoders import DECODERS
from attnprof.models.build_architecture import architecture_of, build_architecture
from attnprof.models.load import load_model
from attnprof.profiles import list_profiles

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "vocab_size": 99, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


def built(model_type: str = "llama", **values: Any) -> Architecture:
    return build_architecture({**SIZES, "model_type": model_type, **values}, "config.json")


def test_every_profile_is_built_as_it_is_counted_or_refused_by_its_type() -> None:
    num_built = 0
    for name in list_profiles("models"):
        try:
            architecture = architecture_of(name)
        except UsageError as error:
            assert "cannot be built" in error.problem
            continue
        spec = load_model(name)
        if architecture.model_type not in DECODERS and architecture.model_type != "kimi_k2":
            continue
        num_built += 1
        assert architecture.num_layers == len(spec.layers)
        assert architecture.tied_head == spec.tied_embeddings
        for block, layer in zip(architecture.blocks, spec.layers, strict=True):
            counted = layer.attention
            assert counted is not None
            heads = (counted.num_q_heads, counted.num_kv_heads, counted.head_dim)
            found = block.attention
            assert (found.num_q_heads, found.num_kv_heads, found.head_dim) == heads
            assert found.v_head_dim == counted.v_head_dim
            counted_experts = {m.active_count for m in layer.matrices if m.role == "experts"}
            sparse = {block.ffn.num_active} if isinstance(block.ffn, Experts) else set()
            assert sparse == counted_experts
    assert num_built > 40


def test_gemma_3_turns_its_windows_by_another_base_from_old_keys_as_from_new() -> None:
    old = built(
        "gemma3_text", head_dim=16, num_hidden_layers=6, rope_theta=5e5,
        rope_local_base_freq=2e3, rope_scaling={"rope_type": "linear", "factor": 8.0},
    )  # fmt: skip
    new = built(
        "gemma3_text", head_dim=16, num_hidden_layers=6,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
        },
    )  # fmt: skip
    assert old == new
    ropes = [block.attention.rope for block in old.blocks]
    assert [(rope.base, rope.factor) for rope in ropes if rope] == [(2e3, 1.0)] * 5 + [(5e5, 8.0)]


def test_a_window_beyond_the_context_still_turns_as_a_window_does() -> None:
    blocks = built("gemma3_text", head_dim=16, sliding_window=1024).blocks
    assert [block.attention.window_len for block in blocks] == [1024] * 3
    assert {block.attention.rope.base for block in blocks if block.attention.rope} == {10_000.0}


def test_a_model_inside_a_larger_one_is_its_language_model() -> None:
    text = {**SIZES, "model_type": "gemma3_text", "head_dim": 16}
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    assert build_architecture(outer, "config.json") == build_architecture(text, "config.json")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"head_dim": 15}, "15"),
        ({"hidden_size": 65}, "hidden_size is 65"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "'su' is not served"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "factor is 'two'"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_parameters": 7}, "rope_parameters is 7"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types is 'mixer'"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
         "num_experts_per_tok is 5"),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": 1, "n_routed_experts": 12,
          "n_group": 8}, "n_group is 8"),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": 1, "n_routed_experts": 16,
          "n_group": 8, "topk_group": 2, "num_experts_per_tok": 6}, "topk_group is 2"),
        ({"model_type": "rwkv"}, "'rwkv' cannot be built"),
        ({"model_type": "gemma2", "sliding_window": 0}, "sliding_window is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        built(**values)
    assert said in caught.value.problem
    assert caught.value.problem.startswith("config.json")


values_of_any_kind = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=6,
)
KEYS = [
    *SIZES, "head_dim", "sliding_window", "layer_types", "num_experts", "rope_parameters",
    "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "hidden_act",
    "hidden_activation", "activation_function", "rms_norm_eps", "layer_norm_epsilon", "n_group",
    "topk_group", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor", "kv_lora_rank",
    "q_lora_rank", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "first_k_dense_replace", "qk_rope_head_dim", "tie_word_embeddings", "text_config",
    "original_max_position_embeddings", "scale_attn_weights", "rope_interleave",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from(sorted(DECODERS)),
    change=st.dictionaries(st.sampled_from(KEYS), values_of_any_kind, max_size=3),
    rope=st.dictionaries(
        st.sampled_from(["rope_type", "type", "factor", "rope_theta", "low_freq_factor",
                         "high_freq_factor", "mscale_all_dim", "truncate",
                         "original_max_position_embeddings", "partial_rotary_factor"]),
        st.sampled_from(["linear", "yarn", "llama3", "dynamic", 1, 2.0, True]) | values_of_any_kind,
        max_size=4,
    ),
)  # fmt: skip
def test_whatever_a_key_holds_it_is_an_architecture_or_one_error(
    model_type: str, change: dict[str, Any], rope: dict[str, Any]
) -> None:
    try:
        architecture = built(model_type, **{"rope_scaling": rope, **change})
    except AttnprofError as error:
        assert "config.json" in error.problem
    else:
        assert hash(architecture) is not None
        assert architecture.blocks
