"""Serving cases: real lines of each engine are explained, and strange ones are said to be so."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.serving_cases.case import case_of, engine_version, gpu_of, setting
from attnprof.serving_cases.model import layer_plan
from attnprof.validate_cases import LIMITS, Validation, validate_serving_cases

SAMPLE = Path(__file__).parent / "data" / "serving_cases_sample.jsonl"


@pytest.fixture(scope="module")
def validation() -> Validation:
    return validate_serving_cases(SAMPLE)


def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]


def test_the_kv_relation_holds_to_half_a_percent(validation: Validation) -> None:
    rows = [row for row in validation.rows if row.group == "KV relation"]
    assert len(rows) > 25
    outside = {row.id for row in rows if row.is_outside}
    assert outside == {"v1-qwen3.6-35b-int4-tp2"}, "an fp8 cache that the line does not state"


def test_every_line_outside_says_why(validation: Validation) -> None:
    for row in validation.rows:
        assert not row.is_outside or row.note, row


def test_tokens_follow_from_settings_alone(validation: Validation) -> None:
    errors = {
        row.id: abs(row.relative_error or 0)
        for row in validation.rows
        if row.term == "kv_tokens_from_settings" and not row.note
    }
    assert set(errors) >= {
        "vllm019-mixtral-8x7b-instruct-v0.1-tp2pp1-8192",
        "vllm019-llama-3.1-8b-instruct-tp1pp4-8192",
    }
    assert max(errors.values()) < 0.03


def test_the_table_has_a_row_for_each_figure_and_sums_up(validation: Validation) -> None:
    document = validation.to_json()
    assert json.loads(json.dumps(document)) == document
    assert {"id", "term", "predicted", "reported", "relative_error"} <= document["rows"][0].keys()
    assert sum(stratum.num_rows for stratum in validation.summary()) == sum(
        row.relative_error is not None for row in validation.rows
    )
    assert {stratum.group for stratum in validation.summary(whole=True)} >= set(LIMITS)
    assert "tgi-copied-number" in dict(validation.skipped)


def test_lines_of_no_sense_are_skipped_with_a_reason(tmp_path: Path) -> None:
    good, bad, odd = _lines()[3], _lines()[4], _lines()[5]
    bad["config"]["num_hidden_layers"] = "many"
    odd["settings"]["cache_type"] = "q17_x"
    bomb = _lines()[6] | {"gpu_total_gib": [1]}
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, (good, bad, odd, bomb))), encoding="utf-8")
    found = validate_serving_cases(path)
    assert {row.id for row in found.rows} == {good["id"]}
    reasons = dict(found.skipped)
    assert "makes no sense" in reasons[bad["id"]]
    assert "q17_x" in reasons[odd["id"]]
    assert "gpu_total_gib is [1]" in reasons[bomb["id"]]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "holds no serving case"),
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is no mapping"),
        ('{"id": "x"}', "line 1: engine is missing"),
        (json.dumps(_lines()[0] | {"reported": 7}), "line 1: reported is 7"),
    ],
)
def test_a_file_that_is_none_is_one_error(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        validate_serving_cases(path)
    assert named in caught.value.problem
    with pytest.raises(UsageError, match="cannot read"):
        validate_serving_cases(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("family", "written", "version"),
    [
        ("vLLM V1", "0.11.1rc6 (ROCm)", ("0.11.1", True)),
        ("vLLM V0", "0.6.4-class (V0)", ("0.6.4", True)),
        ("vLLM V0", "0.8.5.post1 (V0)", ("0.7.9", True)),
        ("vLLM V1", "2025-11", ("0.9", True)),
        ("vLLM V1", "0.2x", ("0.21", False)),
        ("SGLang", "2025-07", ("0.4.7", True)),
        ("llama.cpp family", "2024-09", ("2024.9", True)),
        ("TensorRT-LLM", "0.13.0.dev2024082000", ("0.13.0", True)),
        ("Ollama", "early 2024", ("0.1", False)),
    ],
)
def test_versions_are_read_as_people_write_them(
    family: str, written: str, version: tuple[str, bool]
) -> None:
    assert engine_version({"engine_family": family, "engine_version": written}) == version


@pytest.mark.parametrize(
    ("written", "name"),
    [("H100 80GB", "h100-sxm"), ("A100 40GB", "a100-sxm-40gb"), ("RTX 3090 Ti", "rtx-3090-ti"),
     ("A100 (size unstated)", None), ("24 GB card", None), ("MI300X (not certain)", None)],
)  # fmt: skip
def test_gpus_are_taken_only_where_they_are_named(written: str, name: str | None) -> None:
    gpu = gpu_of(written)
    assert (gpu.name if gpu else None) == name


@pytest.mark.parametrize(
    ("pattern", "counts"),
    [
        ("48 GDN / 16 full", {"gated_delta_net": 48, "full": 16}),
        ("36 Mamba2 / 4 attention", {"mamba2": 36, "full": 4}),
        ("23 Mamba2 / 6 attention / 23 MoE", {"mamba2": 23, "full": 6, "experts": 23}),
        ("5:1 (52 sliding / 10 full)", {"sliding": 52, "full": 10}),
        ("1:1 (18/18)", {"sliding": 18, "full": 18}),
        ("24 layers, attention and Mamba2 in parallel in each", {"parallel": 24}),
        ("", {"full": 24}),
    ],
)
def test_layer_patterns_are_counted(pattern: str, counts: dict[str, int]) -> None:
    total = sum(counts.values())
    plan = layer_plan({"num_hidden_layers": total, "layer_pattern": pattern})
    assert {kind: plan.count(kind) for kind in set(plan)} == counts


def test_settings_keep_what_is_stated_and_lose_what_is_not() -> None:
    assert setting({"x": "0.776 (18.28 of 23.55)"}, "x") == 0.776
    assert setting({"x": "default"}, "x") is None
    assert setting({"x": True}, "x") is None
    case = case_of(_lines()[-1])
    assert case is not None
    assert not case.total_is_known, "a card that is only implied is not taken"
