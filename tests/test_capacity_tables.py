"""Tables of estimates, audits, validations and profiles hold what was found, in each format."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.audit import audit_file
from attnprof.capacity.request import EstimateRequest
from attnprof.capacity_tables import (
    audit_table,
    engine_table,
    engines_table,
    estimate_tables,
    gpu_table,
    gpus_table,
    validation_tables,
)
from attnprof.engines.profile import all_engines, engine_named
from attnprof.estimate import estimate
from attnprof.estimate_grid import GridRequest, estimate_grid
from attnprof.gpus import all_gpus, gpu_named
from attnprof.grid_tables import grid_table
from attnprof.models import load_model
from attnprof.render import Table, csv_text, json_text, markdown_text
from attnprof.serving_cases.model import model_of_case
from attnprof.validate_cases import validate_serving_cases

HERE = Path(__file__).parent
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
MODEL = model_of_case(LLAMA_8B, "llama-3.1-8b", {})


def _tables() -> dict[str, Table]:
    found = [
        *estimate_tables(estimate(EstimateRequest(MODEL, "h100"))),
        grid_table(estimate_grid(GridRequest((MODEL,), ("h100", "t4"), tps=(1, 3)))),
        audit_table(audit_file(HERE / "logs_data" / "vllm-0.19-llama-8b-tp4.log", model=MODEL)),
        *validation_tables(validate_serving_cases(HERE / "data" / "serving_cases_sample.jsonl")),
        gpus_table(all_gpus()),
        gpu_table(gpu_named("h100")),
        engines_table(all_engines()),
        engine_table(engine_named("vllm@0.19")),
    ]
    return {table.name: table for table in found}


TABLES = _tables()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_written_in_each_format(name: str) -> None:
    table = TABLES[name]
    assert table.rows
    assert len(json.loads(json_text([table]))) >= 1
    assert csv_text(table).count("\n") >= len(table.rows)
    assert markdown_text(table)


def test_the_memory_table_adds_up_to_the_budget() -> None:
    sizes = {row["part"]: row["bytes"] for row in TABLES["memory"].rows}
    parts = ("weights", "activations, at their peak", "outside torch: context, communication",
             "KV cache")  # fmt: skip
    (budget,) = (size for part, size in sizes.items() if part.startswith("budget"))
    assert sum(sizes[part] for part in parts) == budget


def test_the_terms_of_a_step_add_up_to_the_times_that_are_shown() -> None:
    found = estimate(EstimateRequest(MODEL, "h100", users=16))
    assert found.step is not None
    table = next(table for table in estimate_tables(found) if table.name == "step")
    *terms, total = table.rows
    assert sum(row["token_s"] for row in terms) == pytest.approx(found.tpot_s.mid)
    assert sum(row["prompt_s"] or 0 for row in terms) == pytest.approx(found.ttft_s.mid)
    assert total["token_s"] == found.step.token_s
    assert sum(row["share"] for row in terms) == pytest.approx(1)
    names = {row["term"] for row in terms}
    assert {"products with weights", "attention", "head", "norms and small kernels",
            "engine, on the host"} <= names  # fmt: skip
    assert "sums over the ranks" not in names, "of one rank"
    document = found.to_json()
    assert sum(document["step"]["token_s"].values()) == pytest.approx(found.tpot_s.mid)
    assert document["provenance"]["step"] == "calibrated"


def test_an_encoders_sum_is_of_what_it_reads_alone() -> None:
    tables = estimate_tables(estimate(EstimateRequest(load_model("bert-base-uncased"), "h100")))
    [table] = [table for table in tables if table.name == "step"]
    assert all(row["token_s"] is None for row in table.rows)
    assert table.rows[-1]["prompt_s"] > 0


def test_limits_are_answered_by_the_middle_and_safely_in_one_place() -> None:
    found = estimate(EstimateRequest(MODEL, "h100", tpot_s=0.02))
    assert found.slo is not None
    assert found.slo.max_batch_size > found.slo.safe_batch_size > 0
    table = next(table for table in estimate_tables(found) if table.name == "capacity")
    [value] = [row["value"] for row in table.rows if row["what"].startswith("most at once")]
    assert value == f"{found.slo.max_batch_size}, safely {found.slo.safe_batch_size}"


def test_the_grid_says_what_it_left_out() -> None:
    table = TABLES["grid"]
    assert [row["gpu"] for row in table.rows] == ["h100", "t4"]
    assert any("tp 3" in note and "does not divide" in note for note in table.notes)
    assert table.alarming is not None
    assert [table.alarming(row) for row in table.rows] == [False, True]


def test_what_is_outside_comes_first() -> None:
    outside = [row["outside"] for row in TABLES["serving_cases"].rows]
    assert outside == sorted(outside, reverse=True)


def test_an_engines_constants_name_the_release_that_brought_them() -> None:
    basis = {row["key"]: row["basis"] for row in TABLES["engine"].rows}
    assert basis["sampler_bytes_per_logit"].startswith("since 0.17")
    assert basis["hybrid_groups"].startswith("since 0.9")


def test_the_curve_says_of_each_batch_whether_it_holds_the_limits() -> None:
    request = EstimateRequest(
        model=load_model("llama-3.1-8b"), gpu="h100-sxm", max_model_len=32768, prompt_len=30720,
        output_len=500, users=10, ttft_s=10.0, tpot_s=0.06,
    )  # fmt: skip
    found = estimate(request)
    assert found.slo is not None
    (table,) = [table for table in estimate_tables(found) if table.name == "curve"]
    within = {row["batch_size"]: row["within"] for row in table.rows}
    assert within[found.slo.safe_batch_size] == "safely"
    assert within[found.slo.max_batch_size] == "yes"
    assert within[10] == "safely"
    assert set(within.values()) == {"safely", "yes"}
    free = estimate(replace(request, ttft_s=None, tpot_s=None))
    (table,) = [table for table in estimate_tables(free) if table.name == "curve"]
    assert "within" not in [column.key for column in table.columns]
