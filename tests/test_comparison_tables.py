"""What stands beside what: only workloads that are equal in all else, and only where there are."""

from typing import Any

import pytest

from attnprof.comparison_tables import (
    comparison_tables,
    parts_memory_table,
    parts_table,
    parts_words,
    position_costs_table,
    position_words,
    precision_table,
    replaced_table,
    replaced_words,
    training_table,
)
from attnprof.workload import Workload


def record(median_s: float = 1e-3, **changes: Any) -> dict[str, Any]:
    beside: dict[str, Any] = {
        key: changes.pop(key) for key in ("parts", "check", "status") if key in changes
    }
    usual: dict[str, Any] = {"backend": "flash", "q_len": 64, "kv_len": 64}
    workload = Workload(**usual | changes)
    return {
        **workload.to_json(), "kv_dtype": workload.cached_dtype, "status": "ok", "device": "cpu",
        "clock": "wall", "median_s": median_s, "median_low_s": median_s * 0.99,
        "median_high_s": median_s * 1.01, "kv_bytes": 4096, **beside,
    }  # fmt: skip


def parts(**shares: float) -> list[dict[str, Any]]:
    return [
        {"name": name, "wall_s": share, "share": share, "cpu_s": None, "peak_bytes": 100}
        for name, share in shares.items()
    ]


def test_tables_of_what_a_run_does_not_hold_have_no_rows() -> None:
    rows = [record(kv_len=n, q_len=n) for n in (64, 128)]
    assert [table.rows for table in comparison_tables(rows, {})] == [()] * 6
    assert not parts_words(rows)
    assert not replaced_words(rows)
    assert not position_words(rows)


def test_shares_of_parts_are_shown_by_length_and_those_of_parts_that_are_there() -> None:
    block: dict[str, Any] = {"scope": "block", "ffn": "gated", "ffn_dim": 8}
    rows = [
        record(**block, q_len=n, kv_len=n, parts=parts(ffn=1 - share, attention=share))
        for n, share in ((512, 0.25), (64, 0.125), (256, 0.2))
    ]
    table = parts_table([*rows, record()])
    assert [column.key for column in table.columns] == ["workload", "attention", "ffn"]
    assert [row["attention"] for row in table.rows] == [0.25, 0.125, 0.2]
    assert parts_memory_table(rows).rows[0]["ffn"] == 100
    (said,) = parts_words(rows)
    assert "takes 12.5 % at 64 and 25 % at 512 of the time of prefill flash" in said
    assert said.endswith("it takes less than all else at each of these lengths.")


def test_the_length_at_which_attention_overtakes_the_rest_is_said() -> None:
    block: dict[str, Any] = {"scope": "block", "ffn": "gated", "ffn_dim": 8}
    rows = [
        record(**block, q_len=n, kv_len=n, parts=parts(ffn=1 - share, attention=share))
        for n, share in ((256, 0.2), (1024, 0.8))
    ]
    (said,) = parts_words(rows)
    assert said.endswith("from about n = 510 it takes more than all else.")


def test_shares_are_of_the_clock_by_which_attention_overtakes_the_rest_or_does_not() -> None:
    """A neighbour on the cores stretches the wall time of what runs on several of them."""
    block: dict[str, Any] = {"scope": "block", "ffn": "gated", "ffn_dim": 8}
    rows = []
    for n, wall, cpu in ((64, 0.1, 0.1), (512, 0.6, 0.4)):
        cut = parts(ffn=1 - wall, attention=wall)
        cut[0]["cpu_s"], cut[1]["cpu_s"] = 1 - cpu, cpu
        row = record(**block, q_len=n, kv_len=n, parts=cut)
        rows.append(row | {"clock": "cpu", "median_cpu_s": 1e-3, "median_wall_s": 2e-3})
    (said,) = parts_words(rows)
    assert "takes 10 % at 64 and 40 % at 512" in said
    assert said.endswith("it takes less than all else at each of these lengths.")
    assert [row["attention"] for row in parts_table(rows).rows] == [0.1, 0.4]


def test_a_call_that_failed_has_no_parts() -> None:
    assert not parts_table([record(parts=parts(ffn=1.0), status="wrong_result")]).rows


def test_a_recurrence_is_held_against_attention_of_the_same_width_and_length() -> None:
    layer: dict[str, Any] = {"scope": "layer"}
    rows = [
        record(n * seconds, **layer, **kind, q_len=n, kv_len=n)
        for n in (64, 256)
        for seconds, kind in (
            (1e-6 * n, {}),
            (1e-6 * 2 * n, {"backend": "eager"}),
            (1e-4, {"backend": "eager", "mixer": "lstm"}),
        )
    ]
    table = replaced_table(rows, {})
    by_kernel = {row["attention"]: row for row in table.rows}
    assert set(by_kernel) == {"prefill flash", "prefill eager"}
    assert {row["layer"] for row in table.rows} == {"prefill lstm"}
    flash = by_kernel["prefill flash"]
    assert (flash["shortest"], flash["longest"]) == (64, 256)
    assert flash["ratio_shortest"] == pytest.approx(1e-4 / 64e-6)
    assert flash["ratio_longest"] == pytest.approx(1e-4 / 256e-6)
    assert flash["crossing"] == pytest.approx(100)
    assert by_kernel["prefill eager"]["crossing"] is None
    narrow = [row | {"head_dim": 32} for row in rows if row["mixer"] == "lstm"]
    assert not replaced_table([*rows[:1], *rows[3:4], *narrow], {}).rows
    said = replaced_words(rows)
    assert any("0.391× the time at 256" in one and "n = 100" in one for one in said)


def test_a_position_costs_what_it_takes_beyond_none() -> None:
    rows = [
        record(1e-3), record(1.5e-3, position="rope"), record(3e-3, position="alibi"),
        record(9e-3, position="rope", backend="eager"),  # without a none of its own
    ]  # fmt: skip
    table = position_costs_table(rows)
    assert {row["position"]: row["ratio"] for row in table.rows} == pytest.approx(
        {"rope": 1.5, "alibi": 3.0}
    )
    assert table.rows[0]["more_s"] == pytest.approx(0.5e-3)
    assert all(0.02 < row["half_width"] < 0.04 for row in table.rows)
    (said,) = position_words(rows)
    assert said.endswith("alibi 3×, rope 1.5×.")


def test_a_training_step_stands_beside_the_forward_pass_in_time_and_bytes() -> None:
    rows = [
        record(3e-3, phase="train") | {"peak_activation_bytes": 800},
        record(4e-3, phase="train", checkpointing=True) | {"peak_activation_bytes": 300},
        record(1e-3) | {"peak_activation_bytes": 100},
        record(9e-3, phase="train", backend="eager"),  # without a forward pass of its own
    ]
    table = training_table(rows)
    assert [(row["step"], row["ratio"], row["peak_ratio"]) for row in table.rows] == [
        ("prefill", 1.0, 1.0),
        ("train", pytest.approx(3.0), 8.0),
        ("train, checkpointing", pytest.approx(4.0), 3.0),
    ]
    assert {row["workload"] for row in table.rows} == {"flash 64"}


def test_an_error_stands_beside_what_it_buys_the_widest_type_first() -> None:
    decode: dict[str, Any] = {"phase": "decode", "q_len": 1, "kv_cache": "static"}
    rows = [
        record(1e-3, **decode, dtype="bfloat16", kv_dtype="int8", check={"rms_error": 1e-2}),
        record(4e-3, **decode, check={"rms_error": 1e-7}),
        record(2e-3, **decode, dtype="bfloat16", check={"rms_error": 3e-3}),
    ]
    table = precision_table(rows)
    assert [row["precision"] for row in table.rows] == ["fp32", "bf16", "bf16, cache int8"]
    assert [row["rms_error"] for row in table.rows] == [1e-7, 3e-3, 1e-2]
    assert [row["ratio"] for row in table.rows] == pytest.approx([1, 0.5, 0.25])


def test_without_a_known_error_no_precision_is_praised() -> None:
    assert not precision_table([record(), record(dtype="bfloat16", check={})]).rows
