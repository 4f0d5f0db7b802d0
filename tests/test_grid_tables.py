"""Comparisons: each row is what the estimate alone says, the cheapest is marked, widths fit."""

import io
import json
from typing import Any

import pytest

from attnprof.capacity.request import EstimateRequest
from attnprof.errors import UsageError
from attnprof.estimate import estimate
from attnprof.estimate_grid import (
    MAX_OFFERS,
    Asked,
    GridRequest,
    cheapest_of,
    estimate_grid,
    grid_offers,
)
from attnprof.grid_tables import grid_rows, grid_table
from attnprof.models import load_model
from attnprof.planning import EstimateFlags, answer_estimate
from attnprof.render import Table, csv_text, markdown_text, terminal_text
from attnprof.serving.offers import FITS_NOT, HOLDS, TOO_SLOW, UNKNOWN, Offer

LLAMA = load_model("llama-3.1-8b")
QWEN = load_model("qwen3-32b")
LIMITS = Asked(prompt_len=2048, output_len=512, ttft_s=2.0, tpot_s=0.03)
REQUEST = GridRequest((LLAMA, QWEN), ("h100-sxm", "l40s", "rtx-4090"), ("vllm", "sglang"), tps=(2,))
GRID = estimate_grid(REQUEST)
OFFERS = grid_offers(GRID, LIMITS)


def table_of(asked: Asked) -> Table:
    return grid_table(GRID, grid_offers(GRID, asked), asked)


@pytest.mark.parametrize("asked", [LIMITS, Asked(), Asked(price="3")])
def test_a_row_is_what_the_estimate_alone_says(asked: Asked) -> None:
    models = {model.name: model for model in REQUEST.models}
    for row in grid_rows(GRID, grid_offers(GRID, asked)):
        alone = estimate(
            EstimateRequest(
                models[row["model"]], row["gpu"], engine=row["engine"], tp=row["tp"],
                max_model_len=row["max_model_len"], **vars(asked),
            )
        )  # fmt: skip
        assert (row["verdict"] == FITS_NOT) is (not alone.plan.fits)
        if row["verdict"] == FITS_NOT:
            continue
        assert row["latency_is"] == alone.provenance["latency.tpot_s"]
        assert row["num_gpus"] == 2
        assert row["per_hour"] == alone.cost["per_hour"]
        assert alone.cost["per_million_input_tokens"] == pytest.approx(
            row["per_million_input_tokens"]
        )
        if alone.slo is None:
            assert row["safe_batch_size"] is None
            assert row["batch_size"] == alone.settings["batch_size"]
            assert row["output_tokens_per_s"] == alone.output_tokens_per_s.to_json()
            cost = alone.cost["per_million_output_tokens"]
            assert row["per_million_output_tokens"] == cost
            continue
        assert row["batch_size"] == alone.slo.max_batch_size
        assert row["safe_batch_size"] == alone.slo.safe_batch_size
        assert row["output_tokens_per_s"] == alone.slo.output_tokens_per_s.to_json()
        if row["verdict"] == HOLDS:
            assert row["tpot_s"]["mid"] <= 0.03
            assert row["ttft_s"]["mid"] <= 2


def test_what_is_too_slow_shows_how_fast_it_is_alone_and_no_cost() -> None:
    asked = Asked(tpot_s=0.001)
    for offer in grid_offers(GRID, asked):
        assert offer.verdict in (TOO_SLOW, FITS_NOT)
        assert offer.per_million_output_tokens is None
        if offer.verdict == TOO_SLOW:
            assert offer.tpot_s.mid is not None
            assert offer.tpot_s.mid > 0.001


def test_the_cheapest_that_holds_is_marked_and_comes_first() -> None:
    table = table_of(LIMITS)
    marks = [row["mark"] for row in table.rows]
    assert [mark.split(",")[0] for mark in marks].count("cheapest") == 1
    assert marks[0].startswith("cheapest")
    costs = [row["per_million_output_tokens"] for row in table.rows if row["verdict"] == HOLDS]
    assert len(costs) > 3
    assert costs == sorted(costs)
    holding = [row["verdict"] == HOLDS for row in table.rows]
    assert holding == sorted(holding, reverse=True)
    assert table.alarming is not None
    assert [table.alarming(row) for row in table.rows] == [not holds for holds in holding]


def test_of_one_offer_or_none_with_a_price_nothing_is_the_cheapest() -> None:
    assert cheapest_of([]) is None
    assert cheapest_of([Offer(HOLDS, 1), Offer(FITS_NOT, 1)]) is None
    assert cheapest_of([offer for offer in OFFERS if offer.verdict == HOLDS][:1]) is None


@pytest.mark.parametrize("asked", [LIMITS, Asked()])
@pytest.mark.parametrize("width", [80, 160])
def test_the_comparison_fits_its_width_and_uses_it(asked: Asked, width: int) -> None:
    text = terminal_text(table_of(asked), io.StringIO(), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for heading in ("Model", "GPU", "Engine", "At once", "Output", "USD/M", "Verdict"):
        assert heading in lines[1], lines[1]
    if width == 160:
        for heading in ("Per token", "First token", "At most", "Latency is"):
            assert heading in lines[1], lines[1]


def test_the_comparison_is_written_in_each_format() -> None:
    table = table_of(LIMITS)
    header = csv_text(table).splitlines()[0].split(",")
    assert {"batch_size", "safe_batch_size", "tpot_s_mid", "per_million_output_tokens"} <= {*header}
    assert "within TTFT 2 s and TPOT 30 ms" in markdown_text(table)


def test_a_context_without_room_is_unknown_with_the_reason() -> None:
    grid = estimate_grid(GridRequest((LLAMA,), ("h100-sxm",), max_model_lens=(1024, 8192)))
    asked = Asked(prompt_len=4096, output_len=128)
    offers = grid_offers(grid, asked)
    assert [offer.verdict for offer in offers] == [UNKNOWN, HOLDS]
    assert any("more than max_model_len 1024" in note
               for note in grid_table(grid, offers, asked).notes)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(ttft_s=0.0), "ttft is 0 s"),
        (Asked(prompt_len=2**40), "prompt_len is"),
        (Asked(price="cheap"), "cheap"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: Asked, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        grid_offers(GRID, asked)


def test_a_grid_too_large_for_latencies_has_its_memory_alone() -> None:
    contexts = ",".join(str(1000 + n) for n in range(MAX_OFFERS + 1))
    plain = EstimateFlags(model="llama-3.1-8b", gpu="h100-sxm", max_model_len=contexts)
    rows = answer_estimate(plain).document["rows"]
    assert len(rows) == MAX_OFFERS + 1
    assert "tpot_s" not in rows[0]
    asked = EstimateFlags(model="llama-3.1-8b", gpu="h100-sxm", max_model_len=contexts, tpot="1s")
    with pytest.raises(UsageError, match="latency of 501 combinations is asked for"):
        answer_estimate(asked)


@pytest.mark.parametrize(("tpot", "is_yes"), [("30ms", True), ("1ms", False)])
def test_the_answer_is_yes_where_any_holds_the_limits(tpot: str, is_yes: bool) -> None:
    flags = EstimateFlags(model="llama-3.1-8b", gpu="h100-sxm,l40s", num_gpus=2, tpot=tpot)
    answer = answer_estimate(flags)
    assert answer.is_yes is is_yes
    rows: list[dict[str, Any]] = json.loads(json.dumps(answer.document))["rows"]
    assert [row["tp"] for row in rows] == [2, 2]
    assert sum(row["cheapest"] for row in rows) == is_yes


def test_gpus_and_tp_do_not_both_go_with_lists() -> None:
    flags = EstimateFlags(model="llama-3.1-8b", gpu="h100-sxm,l40s", num_gpus=2, tp="2")
    with pytest.raises(UsageError, match="--gpus and --tp"):
        answer_estimate(flags)
