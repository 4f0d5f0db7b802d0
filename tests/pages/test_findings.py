"""The findings of a page are those of its run, and say what the records say."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from attnprof.fit import fit_run
from attnprof.pages.findings import Finding, headlines
from attnprof.pages.measured import measured_rows
from attnprof.units import three_digits
from tests.figures.run import GOLDEN, ROOT, run_of

RUNS = ["quick", "models", "caches", "recurrent", "positions", "mla", "training"]
Record = dict[str, Any]


def found_in(name: str) -> tuple[list[Finding], list[Record], dict[str, Any]]:
    _, records, fits = run_of(ROOT / "reports" / name)
    return headlines(records, fits), records, fits


def about(found: Sequence[Finding], word: str) -> Finding:
    (one,) = [finding for finding in found if word in finding.of]
    return one


def cpu_s(records: Sequence[Record], holds: Callable[[Record], bool]) -> float:
    (one,) = [record for record in records if holds(record)]
    return float(statistics.median(one["samples_cpu_s"]))


def close_to(finding: Finding, value: float, by: float = 0.05) -> bool:
    """To the digits that are shown; medians leave out samples that other work disturbed."""
    shown = float(finding.number.rstrip("×% tokens").replace(",", ""))
    return abs(shown / value - 1) < by


@pytest.mark.parametrize("name", RUNS)
def test_each_kept_run_has_three_findings_each_with_a_number_and_of_its_own_kind(name: str) -> None:
    found, _, _ = found_in(name)
    assert len(found) == 3
    assert len({one.of for one in found}) == 3
    for one in found:
        assert one.number[0].isdigit()
        assert one.said.endswith(".")
        assert one.said != one.of


def test_a_cache_of_the_wrong_size_is_the_first_finding() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    wrong = [
        {**record, "kv_bytes": 4 * record["kv_bytes"]} if record["kv_bytes"] else record
        for record in records
    ]
    first = headlines(wrong, fit_run(header, wrong))[0]
    assert first.number == "4×"
    assert ": wrong." in first.said


def test_of_nothing_that_was_measured_nothing_is_found() -> None:
    header, records, _ = run_of(GOLDEN)
    failed = [{**record, "status": "timeout", "kv_bytes": None} for record in records]
    assert headlines(failed, fit_run(header, failed)) == []


def test_twice_the_length_takes_two_to_the_exponent_times_as_long() -> None:
    found, _, fits = found_in("quick")
    growth = about(found, "twice the length")
    (series,) = [
        one
        for one in fits["series"]
        if one["quantity"] == "latency" and growth.said.startswith(f"{one['name']} takes")
    ]
    assert growth.number == f"{three_digits(2 ** series['exponent'])}×"
    assert f"{series['exponent_low']:.2f} to {series['exponent_high']:.2f}" in growth.said


def test_the_backends_that_differ_most_are_told_with_their_ratio() -> None:
    found, records, _ = found_in("quick")
    by_name = {
        record["backend"]: record["median_s"]
        for record in records
        if (record["phase"], record["kv_len"], record["variant"]) == ("prefill", 2048, "causal")
    }
    assert close_to(about(found, "over flash"), by_name["math"] / by_name["flash"])


def test_memory_is_said_to_be_full_only_within_reach_of_what_was_measured() -> None:
    for name, is_near in (("quick", True), ("mla", False)):
        found, _, fits = found_in(name)
        lengths = [one for one in fits["passes_device"] if one["seq_len"]]
        soonest = min(lengths, key=lambda one: one["seq_len"])
        assert (soonest["seq_len"] < 32 * soonest["longest_measured"]) is is_near
        full = [one for one in found if one.of == "would fill the memory"]
        assert [close_to(one, soonest["seq_len"]) for one in full] == [True] * is_near


def test_generation_without_a_cache_is_held_against_that_with_one() -> None:
    found, records, _ = found_in("caches")
    total_s = {
        record["kv_cache"]: sum(point["wall_s"] for point in record["growth"])
        for record in records
        if record["phase"] == "generate"
    }
    assert close_to(about(found, "without a KV cache"), total_s["none"] / total_s["static"])


def test_bytes_of_a_token_are_told_of_the_smallest_and_the_largest_cache() -> None:
    found, records, _ = found_in("mla")
    a_token = [
        record["kv_bytes"] / record["kv_len"] for record in records if record["phase"] == "decode"
    ]
    assert close_to(about(found, "bytes of a token"), max(a_token) / min(a_token), by=0.01)


def test_layers_in_place_of_attention_are_held_against_the_fastest_attention() -> None:
    found, records, _ = found_in("recurrent")

    def at_end(name: str) -> float:
        return cpu_s(
            records,
            lambda one: (
                (one["phase"], one["kv_len"]) == ("prefill", 4096)
                and name in (one["mixer"], one["backend"] if one["mixer"] == "attention" else None)
            ),
        )

    assert at_end("flash") < at_end("eager")
    finding = about(found, "in place of prefill flash")
    assert close_to(finding, at_end("rnn") / at_end("flash"), by=0.15)
    order = [finding.said.index(f"prefill {name}") for name in ("rnn", "linear", "lstm", "gru")]
    assert order == sorted(order)


def test_where_attention_takes_over_its_share_passes_one_half() -> None:
    found, records, _ = found_in("models")
    at = float(about(found, "attention takes more").number.split()[0].replace(",", ""))
    shares = {}
    for record in records:
        if (record["phase"], record["backend"], record["scope"]) == ("prefill", "eager", "block"):
            parts = {part["name"]: part["cpu_s"] for part in record["parts"]}
            shares[record["kv_len"]] = parts["attention"] / sum(parts.values())
    assert all((share > 0.5) is (n > at) for n, share in shares.items())
    assert len(shares) == 3


def test_positions_are_held_against_none() -> None:
    found, records, _ = found_in("positions")
    flash = [one for one in records if (one["backend"], one["phase"]) == ("flash", "prefill")]
    with_t5 = cpu_s(flash, lambda one: one["position"] == "t5")
    without = cpu_s(flash, lambda one: one["position"] == "none")
    assert close_to(about(found, "without positions"), with_t5 / without)


def test_training_is_held_against_forward_and_checkpointing_against_keeping() -> None:
    found, records, _ = found_in("training")

    def held(checkpointing: bool) -> int:
        (one,) = [
            record
            for record in records
            if (record["phase"], record["backend"]) == ("train", "eager")
            and (record["scope"], record["kv_len"]) == ("block", 512)
            and record["checkpointing"] is checkpointing
        ]
        return int(one["peak_activation_bytes"])

    assert close_to(about(found, "saved by checkpointing"), 100 * (1 - held(True) / held(False)))
    low, high = about(found, "training step").number.rstrip("×").split("–")
    assert 2 < float(low) < float(high) < 5


def test_what_was_measured_names_the_device_and_counts_each_phase() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    rows = dict(measured_rows(header, records))
    assert rows["Device"] == "AMD EPYC, cpu, 2 threads, 23.5 GiB of memory"
    for phase in ("prefill", "decode", "kv-growth"):
        count = sum(record["phase"] == phase for record in records)
        assert f": {count} workloads of " in rows[phase]
    assert rows["decode"].endswith("of 2k to 16k tokens, by eager and flash")


def test_of_a_device_that_says_nothing_of_itself_nothing_is_made_up() -> None:
    assert measured_rows({"device": "a box"}, []) == [("Device", "a box, unknown kind")]
