"""GGUF and safetensors headers: exact bytes from whole ones, one error from broken ones."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.errors import UsageError
from attnprof.models import load_model
from attnprof.models.build import build_model
from attnprof.models.safetensors import read_header
from attnprof.theory.weights import GGML_BLOCKS, weight_bytes

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


def safetensors_bytes(tensors: dict[str, Any], data_bytes: int) -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(data_bytes)


def one_tensor(shape: list[int], dtype: str = "BF16", end: int = 16) -> bytes:
    return safetensors_bytes({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}, 16)


def whole_tensor(shape: list[int], element_bytes: int = 2) -> bytes:
    size = math.prod(shape) * element_bytes
    dtype = {2: "BF16", 4: "F32"}[element_bytes]
    return safetensors_bytes({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}},
                             size)  # fmt: skip


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_token_list([f"token {index}" for index in range(96)])
    writer.add_tensor("token_embd.weight", numpy.zeros((96, 64), dtype=numpy.float16))
    writer.add_tensor("output_norm.weight", numpy.zeros(64, dtype=numpy.float32))
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for block in range(2):
        for name, rows, columns in (
            ("attn_q", 64, 64), ("attn_k", 32, 64), ("attn_v", 32, 64), ("attn_output", 64, 64),
            ("ffn_gate", 256, 64), ("ffn_up", 256, 64), ("ffn_down", 64, 256),
        ):  # fmt: skip
            data = gguf.quants.quantize(numpy.zeros((rows, columns), dtype=numpy.float32), q8_0)
            writer.add_tensor(f"blk.{block}.{name}.weight", data, raw_dtype=q8_0)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{name}.weight", numpy.zeros(64, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_header_tells_the_model_and_its_exact_bytes(tiny_gguf: Path) -> None:
    spec = load_model(str(tiny_gguf))
    same = build_model(TINY, "config.json")
    assert spec.num_params == same.num_params
    assert spec.layers[0].attention == same.layers[0].attention
    matrices = sum(matrix.num_params for layer in same.layers for matrix in layer.matrices)
    expected = matrices * 34 // 32 + 96 * 64 * 2 + (1 + 2 * 2) * 64 * 4
    assert spec.stored_weight_bytes == expected
    assert spec.tied_embeddings


def test_the_block_sizes_are_those_of_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    sizes = {kind.name.lower(): size for kind, size in constants.GGML_QUANT_SIZES.items()}
    assert {name: sizes[name] for name in GGML_BLOCKS} == GGML_BLOCKS


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1))
def test_a_cut_off_gguf_header_is_one_error(share: float, tmp_path_factory: Any) -> None:
    pytest.importorskip("gguf")
    whole = tmp_path_factory.getbasetemp() / "whole.gguf"
    if not whole.exists():
        whole.write_bytes(_gguf_header(num_tensors=2))
    content = whole.read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "cut.gguf"
    cut.write_bytes(content[: int(share * (len(content) - 1))])
    with pytest.raises(UsageError) as caught:
        load_model(str(cut))
    assert str(cut) in caught.value.problem


def _gguf_header(num_tensors: int, num_keys: int = 1, extent: int = 64) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    content = struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, num_keys)
    content += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for index in range(min(num_tensors, 2)):
        content += text(f"blk.{index}.attn_q.weight")
        content += struct.pack("<IQQIQ", 2, extent, 64, 0, 0)
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(_gguf_header(10**15), "claims 1000000000000000 tensors", id="10^15 tensors"),
        pytest.param(_gguf_header(1, 10**15), "1000000000000000 values", id="10^15 values"),
        pytest.param(_gguf_header(2, extent=2**62), "has extents", id="absurd extents"),
        pytest.param(_gguf_header(2), "embedding_length is None", id="no shape"),
        pytest.param(b"PK\x03\x04" + bytes(100), "is no GGUF file", id="a zip file"),
        pytest.param(b"GGUF" + struct.pack("<I", 99) + bytes(64), "GGUF version 99", id="version"),
    ],
)
def test_a_gguf_that_claims_too_much_is_one_error(
    tmp_path: Path, content: bytes, said: str
) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_model(str(path))
    assert said in caught.value.problem


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(struct.pack("<Q", 10**15) + b"{}", "claims 1000000000000000 bytes", id="size"),
        pytest.param(b"\x00\x01", "ends after 2 bytes", id="two bytes"),
        pytest.param(struct.pack("<Q", 4) + b"\xff\xfe\x00\x01", "is not JSON", id="no JSON"),
        pytest.param(one_tensor([2, 4], "Q9"), "has dtype 'Q9'", id="dtype"),
        pytest.param(one_tensor([2, -4]), "has shape", id="negative shape"),
        pytest.param(one_tensor([2, 4], end=99), "lies at 0..99", id="beyond the end"),
        pytest.param(one_tensor([10**9, 10**9]), "is not 16 bytes", id="shape against bytes"),
    ],
)
def test_a_broken_safetensors_header_is_one_error(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_header(path)
    assert said in caught.value.problem
    assert str(path) in caught.value.problem


def test_safetensors_files_give_the_exact_bytes_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "a.safetensors").write_bytes(whole_tensor([1000, 100]))
    (tmp_path / "b.safetensors").write_bytes(whole_tensor([400], 4))
    assert load_model(str(tmp_path)).stored_weight_bytes == 201_600
    assert load_model(str(tmp_path / "config.json")).stored_weight_bytes is None


def test_of_missing_shards_the_indexs_total_is_taken_and_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    index = {"metadata": {"total_size": 123450}, "weight_map": {"w": "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    spec = load_model(str(tmp_path))
    assert spec.stored_weight_bytes == 123450
    assert any("not all shards" in note for note in spec.notes)


def test_one_shard_stands_for_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    first, second = (tmp_path / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    first.write_bytes(whole_tensor([1000, 100]))
    with pytest.raises(UsageError, match="lacks model-00002-of-00002"):
        load_model(str(first))
    second.write_bytes(whole_tensor([200, 100]))
    assert load_model(str(first)).stored_weight_bytes == 240_000


@pytest.mark.parametrize("shape", [[1], [4000, 4000]])
def test_files_of_another_model_are_one_error(tmp_path: Path, shape: list[int]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors").write_bytes(whole_tensor(shape))
    with pytest.raises(UsageError, match=r"its tensors hold \d+ bytes, its config.json makes"):
        load_model(str(tmp_path))


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    index = {"weight_map": {"w": "../../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match="names no files"):
        load_model(str(tmp_path))


def test_plain_weights_take_their_dtype() -> None:
    spec = build_model(TINY, "config.json")
    assert weight_bytes(spec) == 2 * spec.num_params
    assert weight_bytes(spec, dtype="float32") == 4 * spec.num_params
