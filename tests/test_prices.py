"""Price lists: which one a price is of and how it is known, and how they are shown."""

import csv
import io
import json
from pathlib import Path

import pytest

from attnprof.capacity.request import EstimateRequest
from attnprof.errors import UsageError
from attnprof.estimate import Estimate, estimate
from attnprof.estimate_words import cost_rows
from attnprof.models import load_model
from attnprof.planning import EstimateFlags, answer_estimate
from attnprof.prices import DEFAULT_PRICES, price_per_gpu_hour, prices_named
from attnprof.render import csv_text, json_text, markdown_text
from attnprof.shelf import shelf_tables

GPT2 = load_model("gpt2")


def _of_an_hour(found: Estimate) -> str:
    return cost_rows(found)[0][2]


def _written(folder: Path, **values: str) -> Path:
    path = folder / "mine.yaml"
    lines = {"currency": "EUR", "per_gpu_hour": "{l4: 0.5}", **values}
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


@pytest.mark.parametrize("name", [None, "on-demand-2025", "aws-on-demand"])
def test_a_price_says_which_list_it_is_of_and_that_it_is_recalled(name: str | None) -> None:
    found = estimate(EstimateRequest(GPT2, "l4", price=name))
    assert _of_an_hour(found) == f"by list {name or DEFAULT_PRICES}, recalled"
    assert found.provenance["cost.per_hour"] == "assumed", "nobody checked it"
    cost = found.to_json()["cost"]
    assert (cost["price_list"], cost["price_list_is"]) == (name or DEFAULT_PRICES, "recalled")


def test_a_price_that_was_typed_is_of_no_list() -> None:
    found = estimate(EstimateRequest(GPT2, "l4", price="2"))
    assert _of_an_hour(found) == "by --price"
    assert found.provenance["cost.per_hour"] == "datasheet"
    assert found.cost["price_list"] is found.cost["price_list_is"] is None


@pytest.mark.parametrize(
    ("values", "words", "provenance"),
    [
        ({}, "by list mine", "assumed"),
        ({"verified": "checked"}, "by list mine, checked", "datasheet"),
        ({"verified": "recalled"}, "by list mine, recalled", "assumed"),
    ],
)
def test_a_list_of_ones_own_is_named_and_says_how_it_is_known(
    values: dict[str, str], words: str, provenance: str, tmp_path: Path
) -> None:
    path = str(_written(tmp_path, **values))
    found = estimate(EstimateRequest(GPT2, "l4", price=path))
    assert (_of_an_hour(found), found.provenance["cost.per_hour"]) == (words, provenance)
    assert (found.cost["per_hour"], found.cost["currency"]) == (0.5, "EUR")
    assert price_per_gpu_hour(path, "t4").per_hour is None


def test_a_list_whose_basis_is_no_word_for_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="verified is 'guessed'"):
        prices_named(str(_written(tmp_path, verified="guessed")))


def test_a_comparison_says_which_list_its_prices_are_of() -> None:
    answer = answer_estimate(EstimateFlags(model="gpt2", gpu="l4,t4"))
    assert "Prices: by list on-demand-2025, recalled (attnprof show prices)." in (
        answer.tables[0].notes
    )
    assert {row["price_list_is"] for row in answer.document["rows"]} == {"recalled"}
    typed = answer_estimate(EstimateFlags(model="gpt2", gpu="l4,t4", price="1"))
    assert not any("Prices" in note for note in typed.tables[0].notes)


def test_lists_are_shown_with_source_date_and_basis() -> None:
    (table,) = shelf_tables("prices")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(csv_text(table)))}
    assert rows["on-demand-2025"]["num_gpus"] == "28"
    for row in rows.values():
        assert (row["date"], row["basis"]) == ("2025-11-01", "recalled")
        assert "on-demand" in row["source"]
    assert "recalled, written down from memory" in table.notes[0]


def test_a_list_is_shown_gpu_by_gpu() -> None:
    (table,) = shelf_tables("price", "aws-on-demand")
    (document,) = json.loads(json_text([table]))["tables"]
    assert document["rows"][0] == {
        "gpu": "t4", "per_hour": 0.526, "currency": "USD", "date": "2025-11-01",
        "basis": "recalled",
    }  # fmt: skip
    assert document["notes"][0].startswith("AWS EC2 on-demand")
    assert "14.240" in markdown_text(table)
