"""Limits of latency: who is served within them, by which load it is priced, and what binds."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnprof
from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.capacity_tables import estimate_tables
from attnprof.errors import UsageError
from attnprof.estimate import Estimate, estimate
from attnprof.estimate_grid import Asked, GridRequest, estimate_grid, grid_offers
from attnprof.estimate_words import why_not
from attnprof.figures.capacity import capacity_figure
from attnprof.grid_tables import grid_rows, grid_table
from attnprof.models import load_model
from attnprof.planning import EstimateFlags, answer_estimate
from attnprof.serving.latency import latency_of
from attnprof.serving.load import Load
from attnprof.serving.offers import HOLDS, TOO_SLOW
from tests.command import attnprof as run

LLAMA = load_model("llama-3.1-8b")
LONG = EstimateRequest(
    LLAMA, "l40s", kv_dtype="fp8", max_model_len=32768, prompt_len=30720, output_len=500,
    ttft_s=10.0, tpot_s=0.06, price="1.5",
)  # fmt: skip
FREE = replace(LONG, ttft_s=None, tpot_s=None)
COMMAND = (
    "estimate", "llama-3.1-8b", "--gpu", "l40s", "--kv-dtype", "fp8", "--max-model-len", "32k",
    "--prompt-len", "30k", "--output-len", "500", "--ttft", "10s", "--tpot", "60ms",
)  # fmt: skip


def shown(found: Estimate) -> dict[str, tuple[str, str]]:
    """The rows of the second table by what they are of."""
    [table] = [table for table in estimate_tables(found) if table.name == "capacity"]
    return {row["what"]: (row["value"], row["basis"]) for row in table.rows}


def held(request: EstimateRequest) -> tuple[int, int]:
    slo = estimate(request).slo
    assert slo is not None
    return slo.max_batch_size, slo.safe_batch_size


def test_users_are_answered_by_memory_and_limits_together() -> None:
    most, safe = held(LONG)
    fit = estimate(FREE).settings["users_served"]
    assert 0 < safe < most < fit
    for users in (1, safe, safe + 1, most, most + 1, fit, fit + 1):
        found = estimate(replace(LONG, users=users))
        noun = "user" if users == 1 else "users"
        value, basis = shown(found)[f"{users} {noun} of 31,220"]
        assert found.is_yes is (users <= most)
        assert basis.startswith(f"{fit} fit; {most} within TTFT 10 s and TPOT 60 ms")
        if users <= safe:
            assert value == "yes"
        elif users <= most:
            assert value == "yes, not safely"
            assert basis.endswith(f", safely {safe}")
        else:
            assert value == f"no, {most}"


def test_where_times_are_of_other_lengths_than_memory_the_row_names_them() -> None:
    request = EstimateRequest(LLAMA, "h100-sxm", max_model_len=32768, users=10, tpot_s=0.05)
    _, basis = shown(estimate(request))["10 users of 32k"]
    assert "(prompts of 1k, answers of 256)" in basis


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ((*COMMAND, "--users", "10"), "no: 5 of 10 users within TTFT 10 s and TPOT 60 ms"),
        ((*COMMAND, "--users", "4", "--safely"),
         "no: 2 of 4 users safely within TTFT 10 s and TPOT 60 ms"),
        ((*COMMAND[:-4], "--ttft", "1ms"), "no: none within TTFT 1 ms"),
        (("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--users", "100"),
         "no: 54 of 100 users of 8k fit at once"),
        (("estimate", "llama-3.1-70b", "--gpu", "l4"),
         "no: llama-3.1-70b does not fit on 1 x NVIDIA L4"),
        (("estimate", "llama-3.1-8b", "--gpu", "l4,l40s", "--tpot", "1ms"),
         "no: none of 2 combinations within TPOT 1 ms"),
    ],
)  # fmt: skip
def test_a_no_says_why_in_a_line(args: tuple[str, ...], line: str, folder: Path) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert done.stderr == f"{line}\n"


def test_a_yes_says_nothing_beside_its_tables(folder: Path) -> None:
    done = run(*COMMAND, "--users", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "yes, not safely" in done.stdout


def test_safely_goes_by_the_upper_ends() -> None:
    most, safe = held(LONG)
    for users in (safe, safe + 1, most):
        middle, upper = (
            estimate(replace(LONG, users=users, safely=safely)) for safely in (False, True)
        )
        assert middle.holds_limits is True
        assert upper.holds_limits is upper.is_yes is (users <= safe)
        assert upper.slo is not None and middle.slo is not None
        assert (upper.slo.max_batch_size, upper.slo.safe_batch_size) == (most, safe)
        assert upper.slo.max_prompt_len < middle.slo.max_prompt_len or users == safe
        assert (why_not(upper) == "") is upper.is_yes
    document = estimate(replace(LONG, safely=True)).to_json()
    assert document["slo"]["safely"] is document["settings"]["safely"] is True
    assert document["slo"]["batch_size"] == document["cost"]["batch_size"] == safe
    assert document["slo"]["tpot_s"]["high"] <= 0.06


def test_safely_without_limits_is_refused() -> None:
    with pytest.raises(UsageError, match="none is given") as caught:
        estimate(replace(FREE, safely=True))
    assert "--ttft or --tpot" in (caught.value.fix or "")
    with pytest.raises(UsageError, match="none is given"):
        answer_estimate(EstimateFlags(model="llama-3.1-8b", gpu="l4,l40s", safely=True))


def test_the_help_says_that_the_middle_decides(folder: Path) -> None:
    text = " ".join(run("estimate", "--help").stdout.replace("│", " ").split())
    assert "goes by the middle of the estimate" in text
    assert "--safely" in text


def test_cost_is_of_a_load_that_the_limits_hold() -> None:
    most, safe = held(LONG)
    at = {size: estimate(replace(FREE, users=size)).cost for size in (1, safe, most)}
    for users, safely, size in ((None, False, most), (None, True, safe), (1, False, 1),
                                (most + 5, False, most), (most, True, safe)):  # fmt: skip
        found = estimate(replace(LONG, users=users, safely=safely))
        assert found.cost["batch_size"] == size
        price = found.cost["per_million_output_tokens"]
        assert price == pytest.approx(at[size]["per_million_output_tokens"])
        _, basis = shown(found)["cost of a million output tokens"]
        within = ", safely within the limits" if safely else ", within the limits"
        assert basis == f"at {size} at once{within}, for prompts of 30k, answers of 500"


@pytest.mark.parametrize("safely", [False, True])
def test_where_no_load_holds_the_limits_there_is_no_price(safely: bool) -> None:
    found = estimate(replace(LONG, ttft_s=0.001, safely=safely))
    assert found.cost["per_hour"] == 1.5
    for key in ("per_million_input_tokens", "per_million_output_tokens", "batch_size"):
        assert found.cost[key] is None
    assert shown(found)["cost of a million output tokens"] == ("–", "no load is within the limits")
    assert shown(found)["  output then"] == ("–", "none is held")
    grid = estimate_grid(GridRequest((LLAMA,), ("l40s", "h100-sxm")))
    for offer in grid_offers(grid, Asked(ttft_s=0.001, price="1", safely=safely)):
        assert offer.verdict == TOO_SLOW
        assert offer.per_million_input_tokens is offer.per_million_output_tokens is None
        assert offer.to_json()["priced_batch_size"] is None


def test_without_limits_cost_is_of_all_at_once_and_says_so() -> None:
    found = estimate(EstimateRequest(LLAMA, "h100-sxm", price="2"))
    size = found.settings["batch_size"]
    assert found.cost["batch_size"] == size
    _, basis = shown(found)["cost of a million output tokens"]
    assert basis == f"at {size} at once, for prompts of 1k, answers of 256"
    assert shown(found)["cost of an hour"] == ("2 USD", "by --price")
    listed = shown(estimate(EstimateRequest(LLAMA, "h100-sxm")))["cost of an hour"]
    assert listed[1] == "by list on-demand-2025, recalled"
    unlisted = shown(estimate(EstimateRequest(LLAMA, "rtx-3090")))["cost of an hour"]
    assert unlisted == ("–", "not in list on-demand-2025: give --price")


ALONE = replace(LONG, kv_dtype="auto", users=4)
APART = replace(ALONE, num_gpus=4, dp=4, users=None)


@pytest.mark.parametrize("users", [1, 4, 10, 12, 15, 24, 25])
def test_replicas_hold_whole_sequences_and_are_judged_by_the_fullest(users: int) -> None:
    one = estimate(replace(ALONE, users=-(-users // 4)))
    found = estimate(replace(APART, users=users))
    assert found.settings["users_served"] == 4 * one.settings["users_served"] == 24
    assert one.slo is not None and found.slo is not None
    assert found.slo.max_batch_size == 4 * one.slo.max_batch_size == 12
    assert found.slo.safe_batch_size == 4 * one.slo.safe_batch_size == 8
    assert found.slo.max_prompt_len == one.slo.max_prompt_len
    assert found.is_yes == one.is_yes == (users <= 12)
    if users <= 24:
        assert (found.tpot_s, found.ttft_loaded_s) == (one.tpot_s, one.ttft_loaded_s)
    assert found.plan.max_concurrency == pytest.approx(4 * one.plan.max_concurrency)


def test_replicas_write_together_what_each_writes_as_it_is_filled() -> None:
    def rate(request: EstimateRequest, users: int) -> tuple[float, float, float]:
        return estimate(replace(request, users=users)).output_tokens_per_s.ends

    three, two = rate(ALONE, 3), rate(ALONE, 2)
    expected = tuple(2 * more + 2 * less for more, less in zip(three, two, strict=True))
    assert rate(APART, 10) == pytest.approx(expected, rel=1e-4)
    assert rate(APART, 3) == pytest.approx([3 * end for end in rate(ALONE, 1)])


def test_the_curve_and_the_cost_are_of_whole_sequences_on_each_replica() -> None:
    found = estimate(APART)
    sizes = [point.batch_size for point in found.curve]
    assert sizes == [1, 2, 4, 8, 12, 16, 24]
    one = {point.batch_size: point for point in estimate(ALONE).curve}
    for point in found.curve:
        assert point.tpot_s == one[-(-point.batch_size // 4)].tpot_s
    assert found.cost["batch_size"] == 12
    assert found.cost["per_million_output_tokens"] == pytest.approx(
        estimate(replace(ALONE, users=None)).cost["per_million_output_tokens"]
    )


def test_the_rows_say_how_many_a_replica_holds_and_has() -> None:
    rows = shown(estimate(replace(APART, users=10)))
    held = "all of full length; 4 replicas hold 6 whole ones each"
    assert rows["sequences of 32k at once"] == ("24.4", held)
    assert "(3 on the fullest of 4 replicas)" in rows["time per output token, 10 at once"][1]
    assert "replicas" not in str(shown(estimate(ALONE)))


def test_groups_that_attend_apart_hold_whole_sequences_and_step_at_the_fullest_ones_pace() -> None:
    asked = EstimateRequest(
        load_model("deepseek-v3"), "h200-sxm", engine="sglang", num_gpus=8, tp=8, dp=8,
        max_model_len=32768, prompt_len=30720, output_len=2048,
    )  # fmt: skip
    nine, sixteen = (estimate(replace(asked, users=users)) for users in (9, 16))
    assert nine.deployment.dp_attention
    assert nine.settings["users_served"] == 8 * int(nine.plan.max_concurrency / 8)
    assert nine.tpot_s == sixteen.tpot_s, "they step together, padded to the fullest"
    assert nine.output_tokens_per_s.mid == pytest.approx(
        (sixteen.output_tokens_per_s.mid or 0.0) * 9 / 16
    )


def test_what_is_too_slow_is_bound_by_the_resource_that_makes_it_so() -> None:
    by_first = estimate(replace(LONG, tpot_s=None, ttft_s=4.0))
    assert by_first.binding == "compute"
    assert shown(by_first)["limited by"] == ("compute", "TTFT 4 s")
    by_token = estimate(replace(LONG, ttft_s=None, tpot_s=0.04))
    assert by_token.binding == "bandwidth"
    assert shown(by_token)["limited by"] == ("bandwidth", "TPOT 40 ms")
    assert by_token.to_json()["slo"]["bound_by"] == "tpot"
    loose = estimate(replace(LONG, ttft_s=1000.0, tpot_s=10.0))
    assert loose.slo is not None and loose.slo.bound_by is None
    assert shown(loose)["limited by"] == ("kv_memory", "")
    # Memory for full contexts holds fewer users than the limits do at the lengths that are timed.
    request = EstimateRequest(LLAMA, "h100-sxm", max_model_len=32768, users=50, ttft_s=0.1)
    crowded = estimate(request)
    assert crowded.slo is not None
    assert crowded.settings["users_served"] < crowded.slo.max_batch_size
    assert shown(crowded)["limited by"] == ("kv_memory", "")


def test_what_binds_is_what_one_more_misses() -> None:
    found = estimate(LONG)
    slo = found.slo
    assert slo is not None and slo.bound_by is not None
    more = estimate(replace(FREE, users=slo.max_batch_size + 1))
    late = {"ttft": more.ttft_loaded_s.mid, "tpot": more.tpot_s.mid}[slo.bound_by]
    limit = {"ttft": LONG.ttft_s, "tpot": LONG.tpot_s}[slo.bound_by]
    assert late is not None and limit is not None
    assert late > limit


@pytest.mark.parametrize("prompt", [None, 2048, 30720])
@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s"])
def test_a_quantity_has_one_interval_wherever_it_is_shown(gpu: str, prompt: int | None) -> None:
    request = EstimateRequest(LLAMA, gpu, max_model_len=32768, prompt_len=prompt)
    curve = {point.batch_size: point for point in estimate(request).curve}
    for size in (1, 2, 8):
        found = estimate(replace(request, users=size, tpot_s=100.0))
        assert found.slo is not None
        point = curve.get(size)
        if point is None:
            continue
        assert point.tpot_s == found.tpot_s
        assert point.output_tokens_per_s == found.output_tokens_per_s
        assert point.ttft_loaded_s == found.ttft_loaded_s
        assert point.ttft_s == found.ttft_s
    last = estimate(replace(request, tpot_s=100.0))
    assert last.slo is not None
    assert last.slo.tpot_s == last.tpot_s
    assert last.slo.ttft_loaded_s == last.ttft_loaded_s


@pytest.mark.parametrize("prompt", [256, 30720])
def test_no_part_of_an_interval_beats_the_roofline(prompt: int) -> None:
    request = EstimateRequest(LLAMA, "h100-sxm", max_model_len=32768, prompt_len=prompt)
    law = latency_of(deployment_of(request))
    load = Load(concurrency=1.0, prompt_len=float(prompt), output_len=256.0)
    for point in estimate(request).curve:
        load = replace(load, concurrency=point.batch_size)
        prompt_s, token_s = law.least_prompt(load).total_s, law.least_token(load).total_s
        first_s, rate = point.ttft_loaded_s.low, point.output_tokens_per_s.high
        assert prompt_s is not None and token_s is not None
        assert first_s is not None and rate is not None and point.tpot_s.low is not None
        assert first_s >= prompt_s
        assert point.tpot_s.low >= token_s
        assert rate <= point.batch_size * 256 / (prompt_s + 256 * token_s) * (1 + 1e-12)


def test_the_curve_and_the_cost_name_the_lengths_that_were_not_typed() -> None:
    found = estimate(EstimateRequest(LLAMA, "h100-sxm", max_model_len=131072, users=3))
    [curve] = [table for table in estimate_tables(found) if table.name == "curve"]
    assert curve.title.startswith("Throughput against latency, prompts of 1k and answers of 256 (")
    assert "for prompts of 1k, answers of 256" in shown(found)["cost of a million output tokens"][1]


def test_a_comparison_goes_by_the_upper_ends_where_asked() -> None:
    grid = estimate_grid(GridRequest((LLAMA,), ("rtx-3090", "l4", "l40s", "t4")))
    asked = Asked(prompt_len=4096, ttft_s=10.0, tpot_s=0.06, price="1")
    for middle, upper in zip(
        grid_offers(grid, asked), grid_offers(grid, replace(asked, safely=True)), strict=True
    ):
        assert (upper.batch_size, upper.safe_batch_size) == (
            middle.batch_size, middle.safe_batch_size,
        )  # fmt: skip
        assert (upper.verdict == HOLDS) is bool(upper.safe_batch_size)
        assert upper.priced_batch_size == (upper.safe_batch_size or None)
        if upper.verdict == HOLDS:
            assert upper.tpot_s.high is not None and upper.tpot_s.high <= 0.06
            assert upper.per_million_output_tokens is not None
            assert middle.per_million_output_tokens is not None
            assert upper.per_million_output_tokens > middle.per_million_output_tokens
    rows = grid_table(grid, grid_offers(grid, replace(asked, safely=True)),
                      replace(asked, safely=True)).rows  # fmt: skip
    marks = {row["gpu"]: row["mark"] for row in rows}
    assert marks["l4"] == "not safely, assumed"
    assert [row["verdict"] == HOLDS for row in rows] == sorted(
        (row["verdict"] == HOLDS for row in rows), reverse=True
    )


def test_a_comparison_on_the_upper_ends_prices_as_the_estimate_alone() -> None:
    grid = estimate_grid(GridRequest((LLAMA,), ("h100-sxm", "l40s")))
    asked = Asked(ttft_s=1.0, tpot_s=0.03, safely=True)
    for row in grid_rows(grid, grid_offers(grid, asked)):
        alone = estimate(EstimateRequest(LLAMA, row["gpu"], max_model_len=8192, **vars(asked)))
        assert row["priced_batch_size"] == alone.cost["batch_size"]
        for key in ("per_million_input_tokens", "per_million_output_tokens"):
            assert row[key] == pytest.approx(alone.cost[key])
        assert alone.slo is not None
        if row["verdict"] == HOLDS:
            assert row["tpot_s"] == alone.slo.tpot_s.to_json()


def test_a_verdict_on_an_assumed_latency_says_so_itself() -> None:
    grid = estimate_grid(GridRequest((LLAMA,), ("rtx-3090", "h100-sxm", "l40s", "t4")))
    asked = Asked(prompt_len=4096, tpot_s=0.002)
    marks = {row["gpu"]: row["mark"] for row in
             grid_table(grid, grid_offers(grid, asked), asked).rows}  # fmt: skip
    assert marks == {
        "rtx-3090": "too slow, assumed", "l40s": "too slow, assumed", "h100-sxm": "too slow",
        "t4": "does not fit",
    }  # fmt: skip


@pytest.mark.parametrize("safely", [False, True])
def test_the_figure_of_a_comparison_draws_users_within_the_limits(safely: bool) -> None:
    requests = [replace(LONG, prompt_len=length, safely=safely) for length in (1024, 8192, 30720)]
    figure = capacity_figure([json.loads(json.dumps(estimate(r).to_json())) for r in requests])
    assert figure is not None
    for request in (requests[0], requests[-1]):
        assert f"{held(request)[safely]:,} at" in figure.alt
    assert "latency binds" in figure.alt


def test_a_result_says_in_a_line_what_it_serves() -> None:
    asked: dict[str, Any] = {"kv_dtype": "fp8", "max_model_len": "32k", "prompt_len": "30k",
                             "output_len": 500, "ttft": 10, "tpot": "60ms"}  # fmt: skip
    found = attnprof.estimate("llama-3.1-8b", "l40s", users=10, **asked)
    assert not found.is_yes
    assert repr(found) == (
        "<llama-3.1-8b fits, serves 5 of 10 users within TTFT 10 s and TPOT 60 ms, "
        "on 1 x NVIDIA L40S>"
    )
    safely = attnprof.estimate("llama-3.1-8b", "l40s", users=4, safely=True, **asked)
    assert not safely.is_yes
    assert "serves 2 of 4 users safely within" in repr(safely)
    crowded = attnprof.estimate("llama-3.1-8b", "l40s", users=3000)
    assert repr(crowded) == "<llama-3.1-8b fits, serves 24 of 3,000 users, on 1 x NVIDIA L40S>"


def test_more_at_once_are_never_cheaper_alone_within_tighter_limits() -> None:
    prices = [
        estimate(replace(LONG, ttft_s=None, tpot_s=limit)).cost["per_million_output_tokens"]
        for limit in (0.03, 0.05, 0.08, 0.5)
    ]
    for tight, loose in itertools.pairwise(prices):
        assert tight >= loose
