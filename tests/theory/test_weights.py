"""Weight bytes: published checkpoint sizes, limits, and each method's packing by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.models import load_model
from attnprof.models.quantization import read_quantization
from attnprof.models.spec import Matrix, Quantization
from attnprof.theory.model_cache import kv_bytes_per_token, state_bytes_per_sequence
from attnprof.theory.weights import matrix_bytes, weight_bytes

GIB, GB = 2**30, 1e9
AWQ = Quantization("awq", 4, 128, has_zeros=True)
UP = Matrix("up", "ffn", 512, 256)


@pytest.mark.parametrize(
    ("name", "quantization", "published_gb"),
    [
        pytest.param("gpt-oss-120b", None, 60.77 * GIB / GB, id="gpt-oss-120b: 60.77 GiB"),
        pytest.param("llama-3.1-8b", AWQ, 5.73, id="Llama-3.1-8B AWQ: 5.73 GB"),
        pytest.param("qwen2.5-7b", AWQ, 5.57, id="Qwen2.5-7B AWQ: 5.57 GB"),
        pytest.param("llama-3.1-8b", Quantization("fp8", 8), 9.08, id="Llama-3.1-8B FP8: 9.08 GB"),
        pytest.param("llama-3.1-70b", None, 141.1, id="Llama-3.1-70B bf16: 141.1 GB"),
    ],
)
def test_published_checkpoint_sizes_are_met(
    name: str, quantization: Quantization | None, published_gb: float
) -> None:
    assert weight_bytes(load_model(name), quantization) / GB == pytest.approx(
        published_gb, rel=0.002
    )


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        pytest.param(None, 2 * 512 * 256, id="plain: two bytes"),
        pytest.param(Quantization("fp8", 8), 512 * 256 + 4 * 512, id="fp8: a float32 a row"),
        pytest.param(Quantization("fp8", 8, block_shape=(128, 128)), 512 * 256 + 4 * 4 * 2,
                     id="fp8 in blocks: a float32 a block"),
        pytest.param(AWQ, 512 * 128 + 512 * 2 * 2 + 512 * 2 // 2, id="awq: scales and zeros"),
        pytest.param(Quantization("mxfp4", 4, 32), 512 * 128 + 512 * 8, id="mxfp4: a byte of 32"),
        pytest.param(Quantization("nvfp4", 4, 16), 512 * 128 + 512 * 16 + 4, id="nvfp4"),
        pytest.param(Quantization("bitsandbytes", 4, 64), 512 * 128 + 4 * 512 * 4, id="nf4"),
        pytest.param(Quantization("q4_k", 4.5), 512 * 144, id="GGML q4_k: 144 B of 256"),
    ],
)  # fmt: skip
def test_a_matrix_takes_its_packed_weights_and_its_scales(
    quantization: Quantization | None, expected: int
) -> None:
    assert matrix_bytes(UP, 2, quantization) == expected


@given(
    rows=st.integers(1, 600),
    columns=st.integers(1, 600),
    method=st.sampled_from(["awq", "gptq", "int4", "mxfp4", "nvfp4", "bitsandbytes"]),
)
def test_four_bits_lie_between_half_a_byte_and_plain_weights(
    rows: int, columns: int, method: str
) -> None:
    matrix = Matrix("up", "ffn", rows, 64 * columns)
    packed = matrix_bytes(matrix, 2, Quantization(method, 4, 32))
    assert matrix.num_params / 2 < packed < 2 * matrix.num_params


def test_skipped_roles_stay_in_the_models_dtype() -> None:
    kept = replace(AWQ, skipped_roles=frozenset({"ffn"}))
    assert matrix_bytes(UP, 2, kept) == 2 * UP.num_params


def test_what_a_checkpoint_leaves_alone_is_read_from_its_lists() -> None:
    section = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]}
    found = read_quantization(section, "x", num_layers=32)
    assert found is not None
    assert "ffn" not in found.skipped_roles  # one layer of 32
    every = [f"model.layers.{index}.self_attn.q_proj" for index in range(32)]
    found = read_quantization({**section, "modules_to_not_convert": every}, "x", num_layers=32)
    assert found is not None
    assert "attention" in found.skipped_roles


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("gptq", 8, None)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("bitsandbytes", 8, None)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", 4, 16)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
            "num_bits": 4, "type": "int", "group_size": 32}}}}, ("int4", 4, 32)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
            "num_bits": 8, "type": "float"}}}}, ("fp8", 8, None)),
    ],
)  # fmt: skip
def test_each_houses_way_of_writing_it_is_read(
    section: dict[str, object], expected: tuple[str, int, int | None]
) -> None:
    found = read_quantization(section, "x", num_layers=4)
    assert found is not None
    assert (found.method, found.bits, found.group_size) == expected


@pytest.mark.parametrize(
    ("name", "expected_bytes"),
    [
        pytest.param("deepseek-v3", 70_272, id="DeepSeek-V3: 61 x 576 x 2"),
        pytest.param("opt-13b", 819_200, id="OPT-13B, PagedAttention section 3: 800 KB"),
        pytest.param("llama-3.1-8b", 131_072, id="Llama-3.1-8B: 128 KiB"),
        pytest.param("qwen3-32b", 2 * 64 * 8 * 128 * 2, id="Qwen3-32B: head_dim 128"),
        pytest.param("gpt-oss-120b", 2 * 36 * 8 * 64 * 2, id="gpt-oss-120b"),
        pytest.param("mamba-2.8b", 0, id="Mamba keeps no keys"),
        pytest.param("bert-base-uncased", 0, id="an encoder keeps none"),
    ],
)
def test_kv_bytes_per_token_are_the_published_ones(name: str, expected_bytes: int) -> None:
    assert kv_bytes_per_token(load_model(name)) == expected_bytes


def test_latent_attention_that_an_engine_lacks_costs_seventy_times_more() -> None:
    deepseek = load_model("deepseek-v3")
    ratio = kv_bytes_per_token(deepseek, expanded=True) / kv_bytes_per_token(deepseek)
    assert ratio == pytest.approx(71.1, abs=0.1)


def test_a_state_does_not_depend_on_the_context_and_is_divided_among_ranks() -> None:
    granite = load_model("granite-4.0-h-small")
    whole = state_bytes_per_sequence(granite, 2, 2)
    # 36 layers: 128 heads x 64 x 128, and 3 inputs of 8,448 channels, two bytes each.
    assert whole == 36 * (128 * 64 * 128 + 3 * 8448) * 2
    assert state_bytes_per_sequence(granite, 2, 2, tp=2) == whole / 2
