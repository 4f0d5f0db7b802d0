"""Scoring parameter counts against a file of known ones."""

import json
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.json_lines import read_json_lines
from attnprof.validate_parameters import to_json, validate_parameters

LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100,
         "num_attention_heads": 4, "tie_word_embeddings": False}  # fmt: skip
LLAMA_PARAMS = 2 * 100 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)


def written(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_each_line_stands_beside_its_count(tmp_path: Path) -> None:
    line = {"model_type": "llama", "head": "causal", "config": LLAMA, "num_params": LLAMA_PARAMS}
    path = written(tmp_path / "f.jsonl", line, {**line, "num_params": LLAMA_PARAMS * 2})
    right, wrong = validate_parameters(path)
    assert (right.id, right.relative_error, right.is_outside) == ("llama causal", 0.0, False)
    assert (wrong.relative_error, wrong.is_outside) == (-0.5, True)
    document = to_json([right, wrong])
    assert (document["num_exact"], document["num_rows"]) == (1, 2)
    assert document["rows"][0]["predicted"] == LLAMA_PARAMS


def test_the_head_says_which_class_where_the_configuration_names_none(tmp_path: Path) -> None:
    bert = {"model_type": "bert", "config": {}, "num_params": 1}
    path = written(tmp_path / "f.jsonl", {**bert, "head": "masked"}, {**bert, "head": "base"})
    masked, base = validate_parameters(path)
    assert masked.predicted == 109_514_298
    assert base.predicted == 109_482_240  # no head, a pooler


def test_a_line_that_makes_no_model_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnprof.models.meta_count.is_available", lambda: False)
    line = {"model_type": "llama", "config": {**LLAMA, "hidden_size": -1}, "num_params": 5}
    (row,) = validate_parameters(written(tmp_path / "f.jsonl", line))
    assert row.predicted is None
    assert "hidden_size is -1" in row.note


def test_a_family_unknown_here_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnprof.models.meta_count.is_available", lambda: False)
    line = {"model_type": "new_thing", "config": LLAMA, "num_params": LLAMA_PARAMS}
    (row,) = validate_parameters(written(tmp_path / "f.jsonl", line))
    assert "new_thing is not known" in row.note


@pytest.mark.parametrize("content", ["", "not json", "[1]", '{"config": 1}', '{"config": {}}'])
def test_a_file_of_something_else_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"f\.jsonl"):
        validate_parameters(path)


@pytest.mark.torch
@pytest.mark.slow
def test_the_library_counts_what_is_not_known_here(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    line = {"model_type": "git", "config": {"architectures": ["GitForCausalLM"]},
            "num_params": 176_619_066}  # fmt: skip
    (row,) = validate_parameters(written(tmp_path / "f.jsonl", line))
    assert not row.is_outside
    assert "Transformers library" in row.note


def test_a_separator_within_a_text_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    line = json.dumps({"id": "a\u2028b\x85c", "b": 1}, ensure_ascii=False)
    path.write_text("\ufeff" + line + "\r\n\r\n" + line + "\n", encoding="utf-8")
    numbers = [number for number, _ in read_json_lines(path, "configuration")]
    assert numbers == [1, 3]
