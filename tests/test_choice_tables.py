import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from attnprof.choice_tables import CACHES, layers_table, variants_table
from attnprof.cli import planning
from attnprof.errors import UsageError
from attnprof.models.load import load_model
from attnprof.positions import POSITIONS
from attnprof.shelf import DRAWN, shelf_tables
from attnprof.variants import VARIANTS
from attnprof.workload import KV_CACHES


def test_every_variant_position_and_cache_is_listed() -> None:
    listed = {
        kind: [row["name"] for row in shelf_tables(kind)[0].rows]
        for kind in ("variants", "positions", "caches")
    }
    assert listed == {
        "variants": list(VARIANTS), "positions": list(POSITIONS), "caches": list(KV_CACHES)
    }  # fmt: skip
    assert list(CACHES) == list(KV_CACHES)


def test_a_variant_is_drawn_in_its_sizes_and_counted() -> None:
    drawing, costs = shelf_tables("variant", "sliding", {"window_len": 2, "kv_len": 4})
    assert [row["keys"] for row in drawing.rows] == ["█···", "██··", "·██·", "··██"]
    assert [row["num_keys"] for row in drawing.rows] == [1, 2, 2, 2]
    figures = {row["key"]: row["value"] for row in costs.rows}
    assert figures["pairs computed"] == 7
    assert figures["share of the square"] == 7 / 16
    assert figures["against causal"] == 7 / 10
    assert figures["keys the next token sees"] == 2
    assert "Mistral" in costs.notes[-1]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_each_query_sees_as_many_keys_as_are_drawn(name: str) -> None:
    drawing, costs = shelf_tables("variant", name, {"q_len": 7, "kv_len": 12})
    assert [row["num_keys"] for row in drawing.rows] == [
        row["keys"].count("█") for row in drawing.rows
    ]
    computed = next(row["value"] for row in costs.rows if row["key"] == "pairs computed")
    assert sum(row["num_keys"] for row in drawing.rows) == computed


def test_show_takes_every_size_that_a_variant_is_drawn_with() -> None:
    assert set(DRAWN) <= set(inspect.signature(planning.show_command).parameters)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpt-oss-20b", [("sliding", 128, 12), ("causal", None, 12)]),
        ("gemma-3-1b", [("sliding", 512, 22), ("causal", None, 4)]),
        ("llama-4-scout-17b-16e", [("chunked", 8192, 36), ("causal", None, 12)]),
        ("bert-base-uncased", [("full", None, 12)]),
        ("t5-small", [("full", None, 6), ("causal", None, 6), ("full", None, 6)]),
    ],
)
def test_the_mix_of_a_model_is_that_of_its_configuration(name: str, kinds: list[Any]) -> None:
    (table,) = shelf_tables("variant", name)
    assert [(row["variant"], row["window_len"], row["num_layers"]) for row in table.rows] == kinds


def test_a_mix_costs_what_its_layers_cost_together() -> None:
    table = layers_table(load_model("gpt-oss-20b"), 256)
    causal, sliding = 256 * 257 // 2, 128 * 129 // 2 + 128 * 128
    assert f"{(sliding / causal + 1) / 2:.3g} of the pairs" in table.notes[-1]


def test_sizes_are_of_variants_alone() -> None:
    for kind, name in (("models", "gpt2"), ("variants", None), ("variant", "gpt2")):
        with pytest.raises(UsageError):
            shelf_tables(kind, name, {"window_len": 4})


@pytest.mark.parametrize(
    ("name", "nearest"), [("chunkd", "chunked"), ("gpt-os-20b", "gpt-oss-20b")]
)
def test_a_misspelt_variant_or_model_is_answered_by_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"no variant or model '{name}'.*'{nearest}'"):
        shelf_tables("variant", name)


def test_the_mix_of_a_configuration_of_ones_own_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "mistral", "hidden_size": 64, "intermediate_size": 128,
                "vocab_size": 99, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "sliding_window": 16,
            }
        )
    )  # fmt: skip
    (table,) = shelf_tables("variant", str(path), {"kv_len": 32})
    (row,) = table.rows
    assert (row["variant"], row["window_len"], row["num_layers"]) == ("sliding", 16, 3)
    assert row["against_causal"] == (16 * 17 // 2 + 16 * 16) / (32 * 33 // 2)


def test_a_source_and_a_sentence_stand_beside_every_variant_that_somebody_published() -> None:
    rows = variants_table().rows
    assert all(row["summary"] for row in rows)
    assert {row["name"] for row in rows if not row["source"]} == {"full", "causal"}
