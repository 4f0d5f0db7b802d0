"""What a configuration may hold: defaults where it is silent, errors where it makes no sense."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.errors import AttnprofError, UsageError
from attnprof.models import ModelSpec, load_model
from attnprof.models.build import build_model

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
MOE = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def windows(spec: ModelSpec) -> str:
    """One letter a layer: f full, s sliding, c chunked, m latent, r recurrent, - none."""
    letters = {"full": "f", "sliding": "s", "chunked": "c", "mla": "m", "state": "r", "none": "-"}
    return "".join(letters[layer.cache_kind] for layer in spec.layers)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": -4096}, "hidden_size is -4096"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": 4096.5}, "hidden_size is 4096.5"),
        ({"hidden_size": [1] * 100}, "hidden_size is [1, 1"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 7}, "num_key_value_heads is 7"),
        ({"num_key_value_heads": 64}, "num_key_value_heads is 64"),
        ({"num_attention_heads": 8192}, "num_attention_heads is 8192"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"layer_types": ["full_attention"]}, "layer_types is"),
        ({"layer_types": ["nonsense"] * 32}, "layer_types is 'nonsense'"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"model_type": 7}, "model_type is 7"),
        ({"quantization_config": {"quant_method": "zip"}}, "quant_method is 'zip'"),
        ({"quantization_config": {"quant_method": "awq", "bits": -4}}, "bits is -4"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}},
            "weight_block_size is 0",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "g": {"weights": {"num_bits": 8, "block_structure": ["a", 1]}}
                    },
                }
            },
            "block_structure is 'a'",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"g": {"weights": []}},
                }
            },
            "weights of a group are []",
        ),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "num_bits is None"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_attention_heads": 33}, "num_attention_heads is 33"),
        ({"torch_dtype": "float17"}, "torch_dtype is 'float17'"),
        ({"text_config": [1]}, "text_config is [1]"),
        ({"model_type": "\x1b[31mllama"}, "model_type is '\\x1b[31mllama'"),
        ({"model_type": "gpt2", "n_embd": 2048}, "hidden_size is 4096"),
        ({**MOE, "num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({**MOE, "num_local_experts": 10**9}, "num_experts is 1000000000"),
    ],
)
def test_an_error_names_file_key_and_value(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(UsageError) as caught:
        load_model(str(path))
    assert str(path) in caught.value.problem
    assert named in caught.value.problem
    assert caught.value.fix


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "vocab_size"]
)  # fmt: skip
def test_a_file_that_leaves_out_a_size_gets_no_default_in_its_place(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in LLAMA.items() if name != key}))
    with pytest.raises(UsageError, match=f"config.json: {key} is missing"):
        load_model(str(path))


def test_a_nested_configuration_that_leaves_out_a_default_says_which(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    vision = {"model_type": "siglip_vision_model"}
    path.write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": vision})
    )
    spec = load_model(str(path))
    assert spec.vocab_size == 262_208
    assert any("vocab_size 262208" in note for note in spec.notes)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    assert load_model(str(path)).num_params == 8_030_261_248


@pytest.mark.parametrize("name", ["x" * 5000, "a/" + "b" * 300, "org/" + "é" * 300])
def test_a_name_too_long_for_a_file_is_one_error(name: str) -> None:
    with pytest.raises(UsageError, match="characters"):
        load_model(name)


@pytest.mark.parametrize("kind", ["modernbert", "eurobert"])
def test_an_encoder_of_a_decoders_shape_keeps_nothing(kind: str) -> None:
    spec = build_model({"model_type": kind}, "config.json")
    assert spec.kind == "encoder"
    assert windows(spec).strip("-") == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x81\x00binary", "is not JSON"),
        (b"", "is not JSON"),
        (b"[1, 2]", "holds no JSON object"),
        (b'{"hidden_size": ', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "is missing"),
    ],
)
def test_a_file_of_another_kind_is_one_error(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_model(str(path))
    assert said in caught.value.problem


values_of_any_kind = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=6,
)
KEYS = [
    *LLAMA, "head_dim", "sliding_window", "layer_types", "num_experts", "quantization_config",
    "text_config", "tie_word_embeddings", "mlp_layer_types", "rope_scaling", "max_window_layers",
    "partial_rotary_factor", "num_nextn_predict_layers", "kv_lora_rank", "torch_dtype",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from(
        ["llama", "gemma3_text", "qwen3_next", "deepseek_v3", "jamba", "bert", "t5", "nemotron_h",
         "granitemoehybrid", "llama4", "gemma4_text", "zamba2", "unheard_of"]
    ),
    change=st.dictionaries(st.sampled_from(KEYS), values_of_any_kind, max_size=3),
)  # fmt: skip
def test_whatever_a_key_holds_it_is_a_model_or_one_error(
    model_type: str, change: dict[str, Any]
) -> None:
    values = {**LLAMA, "model_type": model_type, **change}
    try:
        spec = build_model(values, "config.json")
    except AttnprofError as error:
        assert "config.json" in error.problem
    else:
        assert spec.num_params > 0


def test_a_silent_key_takes_the_librarys_default() -> None:
    bare = build_model({"model_type": "mistral"}, "config.json")
    assert bare.layers[0].attention is not None
    assert bare.layers[0].attention.num_kv_heads == 8
    assert windows(bare) == "s" * 32  # the class's own window, 4,096


def test_an_explicit_null_is_not_the_default() -> None:
    assert windows(build_model({"model_type": "mistral", "sliding_window": None}, "x")) == "f" * 32


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({"model_type": "gemma3_text"}, "sssssf", id="Gemma-3: 5 to 1"),
        pytest.param({"model_type": "gemma2"}, "sf", id="Gemma-2: 1 to 1"),
        pytest.param({"model_type": "gpt_oss"}, "sf", id="gpt-oss: 1 to 1"),
        pytest.param({"model_type": "cohere2"}, "sssf", id="Command-A: 3 to 1"),
        pytest.param({"model_type": "llama4_text"}, "cccf", id="Llama-4: 3 chunked to 1"),
        pytest.param({"model_type": "qwen3_next"}, "rrrf", id="Qwen3-Next: 3 linear to 1"),
        pytest.param({"model_type": "jamba"}, "rrrrfrrr", id="Jamba: 7 to 1"),
        pytest.param({"model_type": "recurrent_gemma"}, "rrs", id="Griffin: 2 to 1"),
        pytest.param({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*",
                      "num_hidden_layers": 4}, "r-rf", id="Nemotron-H: by letters"),
        pytest.param({"model_type": "deepseek_v3"}, "m", id="DeepSeek-V3: latent"),
        pytest.param({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "-",
                     id="BERT keeps nothing"),
        pytest.param({"model_type": "qwen2", "use_sliding_window": False}, "f",
                     id="Qwen2: a window that is off"),
    ],
)  # fmt: skip
def test_which_layers_keep_what(values: dict[str, Any], expected: str) -> None:
    found = windows(build_model(values, "config.json"))
    assert found == (expected * len(found))[: len(found)]


def test_head_dim_is_not_always_hidden_size_over_heads() -> None:
    attention = load_model("qwen3-32b").layers[0].attention
    assert attention is not None
    assert attention.head_dim == 128 != 5120 // 64


def test_kv_heads_are_divided_then_replicated_and_a_latent_is_not() -> None:
    llama, deepseek = load_model("llama-3.1-8b"), load_model("deepseek-v3")
    assert llama.layers[0].attention is not None
    assert deepseek.layers[0].attention is not None
    kept = [llama.layers[0].attention.cached_elements(tp) for tp in (1, 8, 16)]
    assert kept == [(1024, 1024), (128, 128), (128, 128)]
    assert [deepseek.layers[0].attention.cached_elements(tp)[0] for tp in (1, 8)] == [576, 576]


def test_layers_that_read_anothers_cache_keep_none() -> None:
    values = {"model_type": "gemma3n_text"}
    kept = [layer.cache_kind != "none" for layer in build_model(values, "x").layers]
    assert kept == [True] * 20 + [False] * 15


def test_equal_layers_are_one_object() -> None:
    layers = build_model({**LLAMA, "num_hidden_layers": 10_000}, "config.json").layers
    assert len(layers) == 10_000
    assert len({id(layer) for layer in layers}) == 1


def test_draft_layers_are_not_parameters_of_the_model() -> None:
    spec = load_model("deepseek-v3")
    assert len(spec.draft_layers) == 1
    # Published: 14 B with the copies of the embedding and the head, which are 1.85 B.
    assert 11.5e9 < sum(layer.num_params for layer in spec.draft_layers) < 11.7e9
