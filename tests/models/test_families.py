"""Parameters of every family: against the library's counts, published ones, and flags flipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnprof.models import load_model
from attnprof.models.build import build_model
from attnprof.models.families import FAMILIES, SAME_SHAPE
from attnprof.profiles import list_profiles

COUNTS: dict[str, dict[str, int]] = json.loads(
    (Path(__file__).parent / "data" / "default_counts.json").read_text(encoding="utf-8")
)["counts"]
DEFAULTS = [
    pytest.param(model_type, name, num_params, id=f"{model_type} {name}")
    for model_type, classes in COUNTS.items()
    for name, num_params in classes.items()
]
FLIPPED: list[dict[str, Any]] = [
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    {"model_type": "mistral", "head_dim": 96, "num_hidden_layers": 5},
    {"model_type": "qwen3", "tie_word_embeddings": True, "num_key_value_heads": 1},
    {"model_type": "qwen2_moe", "mlp_only_layers": [0, 2], "decoder_sparse_step": 2},
    {"model_type": "gemma4_text", "num_kv_shared_layers": 10, "use_double_wide_mlp": True},
    {"model_type": "gemma4_text", "attention_k_eq_v": True, "num_global_key_value_heads": 2},
    {"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 16,
     "top_k_experts": 2, "moe_intermediate_size": 704},
    {"model_type": "falcon", "multi_query": False, "alibi": True, "bias": True},
    {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8,
     "hidden_size": 8192, "num_attention_heads": 128},
    {"model_type": "cohere", "use_qk_norm": True},
    {"model_type": "stablelm", "qk_layernorm": True, "use_parallel_residual": True},
    {"model_type": "deepseek_v3", "q_lora_rank": None, "first_k_dense_replace": 5},
    {"model_type": "mamba2", "n_groups": 1, "use_conv_bias": False, "use_bias": True},
    {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1},
    {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 16},
    {"model_type": "opt", "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    {"model_type": "phi", "qk_layernorm": True, "num_key_value_heads": 8},
    {"model_type": "dots1", "n_routed_experts": 16, "n_shared_experts": 2,
     "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    {"model_type": "lfm2", "layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    {"model_type": "nemotron", "num_key_value_heads": 8},
    {"model_type": "zamba2", "use_shared_attention_adapter": True},
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "name", "num_params"), DEFAULTS)
def test_a_familys_defaults_make_the_librarys_count(
    model_type: str, name: str, num_params: int
) -> None:
    spec = build_model({"model_type": model_type, "architectures": [name]}, "config.json")
    assert (spec.num_params, spec.exact) == (num_params, True)


def test_the_parts_of_a_model_add_up_to_its_parameters() -> None:
    for model_type, classes in COUNTS.items():
        values = {"model_type": model_type, "architectures": [next(iter(classes))]}
        spec = build_model(values, "config.json")
        assert sum(spec.params_by_role().values()) == spec.num_params, model_type
        assert 0 < spec.num_active_params <= spec.num_params, model_type


@pytest.mark.parametrize("name", list_profiles("models"))
def test_a_shipped_profile_loads_and_holds_its_published_count(name: str) -> None:
    spec = load_model(name)  # refuses a profile whose num_params is not what its config makes
    assert spec.name == name
    assert spec.source
    assert spec.num_params > 10**7


@pytest.mark.parametrize(
    ("name", "num_params"),
    [
        pytest.param("llama-3.1-405b", 405_853_388_800, id="Llama-3.1-405B on the hub"),
        pytest.param("deepseek-v2", 235_741_434_880, id="DeepSeek-V2 on the hub"),
        pytest.param("gemma-3-27b", 27_432_406_640, id="Gemma-3-27B with its vision tower"),
        pytest.param("gpt-oss-120b", 116_829_156_672, id="gpt-oss-120b model card: 116.83 B"),
        pytest.param("whisper-large-v3", 1_543_490_560, id="whisper-large-v3 on the hub"),
        pytest.param("gpt2-xl", 1_557_611_200, id="GPT-2 XL: 1.5 B"),
    ],
)
def test_published_counts_are_met(name: str, num_params: int) -> None:
    assert load_model(name).num_params == num_params


@pytest.mark.parametrize(
    ("name", "published_billions"),
    [
        pytest.param("deepseek-v3", 37, id="DeepSeek-V3: 37 B activated"),
        pytest.param("kimi-k2", 32, id="Kimi-K2: 32 B activated"),
        pytest.param("qwen3-30b-a3b", 3.3, id="Qwen3-30B-A3B: 3.3 B activated"),
        pytest.param("mixtral-8x7b", 12.9, id="Mixtral-8x7B: 12.9 B active"),
        pytest.param("gpt-oss-120b", 5.1, id="gpt-oss-120b: 5.1 B active, embedding left out"),
    ],
)
def test_active_parameters_are_the_published_ones(name: str, published_billions: float) -> None:
    spec = load_model(name)
    embedding = spec.vocab_size * spec.hidden_size / 1e9
    active = spec.num_active_params / 1e9
    assert active - embedding <= published_billions * 1.03
    assert published_billions <= active * 1.03


def test_an_unknown_family_is_counted_by_the_common_shape_and_says_so() -> None:
    llama = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "vocab_size": 100, "tie_word_embeddings": False}  # fmt: skip
    known = build_model({**llama, "model_type": "llama"}, "config.json")
    unknown = build_model({**llama, "model_type": "new_thing"}, "config.json")
    assert unknown.num_params == known.num_params
    assert not unknown.exact
    assert any("new_thing is not known" in note for note in unknown.notes)


def test_old_names_of_keys_mean_the_same() -> None:
    new = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
           "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    old = {"n_embd": 64, "n_inner": 256, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    counts = {build_model(v, "x").num_params for v in (new, old)}
    assert len(counts) == 1


def test_a_nested_text_configuration_is_the_language_models() -> None:
    text = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": 4, "intermediate_size": 128}  # fmt: skip
    plain = build_model(text, "x")
    nested = build_model({"model_type": "some_vlm", "text_config": text}, "x")
    assert nested.num_params == plain.num_params


def test_a_family_that_shares_anothers_shape_points_at_one_that_exists() -> None:
    assert set(SAME_SHAPE.values()) <= set(FAMILIES)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("values", FLIPPED, ids=lambda values: str(values)[:60])
def test_flags_and_sizes_change_the_count_as_in_the_library(values: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[values["model_type"]](
        **{key: value for key, value in values.items() if key != "model_type"}
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert build_model(values, "config.json").num_params == counted
