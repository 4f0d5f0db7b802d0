"""Workloads that differ in any axis are never one series, and never have one name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.series import (
    IDENTITY,
    LENGTHS,
    Kept,
    contests,
    group_series,
    label,
    varying_keys,
    what_is_common,
)
from attnprof.workload import Workload

VALUES: dict[str, tuple[Any, ...]] = {
    "phase": ("prefill", "decode", "verify", "chunked-prefill", "mixed", "train", "generate"),
    "backend": ("eager", "flash"),
    "dtype": ("float32", "bfloat16"),
    "q_len": (1, 4),
    "kv_len": (64, 128, 256),
    "scope": ("op", "layer", "block", "model"),
    "attention": ("self", "cross"),
    "variant": ("causal", "full", "sliding"),
    "position": ("none", "rope", "alibi"),
    "kv_cache": ("none", "static", "paged"),
    "kv_dtype": (None, "int8"),
    "cache_regime": ("warm", "cold"),
    "mla": (None, "expanded", "absorbed"),
    "softcap": (None, 30.0, 50.0),
    "sink_logits": (False, True),
    "checkpointing": (False, True),
    "mixer": ("attention", "rnn", "lstm"),
    "ffn": (None, "gated", "moe"),
    "model": (None, "gpt2", "t5-small"),
    "implementation": ("plain", "transformers"),
    "weight_dtype": (None, "int8"),
    "model_digest": (None, "1a2b3c4d"),
}
COUNTED = {field.name for field in fields(Workload)} - set(VALUES)


def as_record(workload: Workload) -> dict[str, Any]:
    timed = {"median_s": workload.kv_len * 1e-6, "median_low_s": 0.0, "median_high_s": 1.0}
    return {
        **workload.to_json(), **timed, "kv_dtype": workload.cached_dtype, "status": "ok",
        "device": "cpu", "clock": "wall", "peak_activation_bytes": workload.kv_len,
    }  # fmt: skip


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Workloads whose axes are anything, sense or none, as far as labels and series see them."""
    chosen: dict[str, Any] = {
        "q_len": 4,
        "kv_len": draw(st.sampled_from(VALUES["kv_len"])),
        "backend": "flash",
    }
    for name in draw(st.sets(st.sampled_from([*VALUES, *sorted(COUNTED)]), max_size=4)):
        chosen[name] = draw(st.sampled_from(VALUES.get(name, (8, 16, 32))))
    made = Workload(**chosen)
    changes: dict[str, Any] = {}
    if made.mixer != "attention":
        changes["backend"] = "eager"
    if made.phase in ("prefill", "train") and made.attention == "self":
        changes["q_len"] = made.kv_len
    if made.variant == "sliding":
        changes["window_len"] = made.window_len or 32
    return Workload(**made.to_json() | changes)


def test_every_axis_of_a_workload_tells_workloads_apart() -> None:
    assert {*IDENTITY, *LENGTHS} == {field.name for field in fields(Workload)} | {"device"}


@given(st.lists(workloads(), min_size=2, max_size=8, unique=True))
def test_no_two_workloads_of_a_run_have_one_name(chosen: list[Workload]) -> None:
    records = [as_record(workload) for workload in chosen]
    varying = varying_keys(records)
    names = [label(record, varying) for record in records]
    assert len(set(names)) == len(names), names


@given(st.lists(workloads(), min_size=2, max_size=12, unique=True))
def test_the_workloads_of_a_series_differ_in_its_axis_alone(chosen: list[Workload]) -> None:
    records = [as_record(workload) for workload in chosen]
    for series in group_series(records):
        first, *others = series.records
        along = {"seq_len": {"q_len", "kv_len"}}.get(series.axis, {series.axis})
        for other in others:
            changed = {key for key in (*IDENTITY, *LENGTHS) if first[key] != other[key]}
            if series.axis == "num_q_heads":
                along |= {"num_kv_heads"}
            assert changed <= along
        if series.axis != "seq_len":
            assert series.where["q_len"] == first["q_len"] or series.axis == "q_len"


def some(phase: str, lengths: tuple[int, ...], **changes: Any) -> list[Mapping[str, Any]]:
    square = phase in ("prefill", "train") and changes.get("attention") != "cross"
    made: list[Mapping[str, Any]] = []
    for n in lengths:
        usual: dict[str, Any] = {"backend": "flash", "kv_len": n, "q_len": n if square else 4}
        made.append(as_record(Workload(phase=phase, **usual | changes)))
    return made


@pytest.mark.parametrize(
    ("phase", "changes", "axis", "degree"),
    [
        ("prefill", {}, "seq_len", 2),
        ("train", {"scope": "block"}, "seq_len", 2),
        ("prefill", {"scope": "layer", "mixer": "lstm", "backend": "eager"}, "seq_len", 1),
        ("prefill", {"attention": "cross"}, "kv_len", 1),
        ("chunked-prefill", {}, "kv_len", 1),
        ("verify", {}, "kv_len", 1),
        ("decode", {"q_len": 1}, "kv_len", 1),
        ("mixed", {"q_len": 1, "prefill_len": 8}, "kv_len", 1),
    ],
)
def test_the_length_of_a_phase_is_that_which_its_work_grows_with(
    phase: str, changes: dict[str, Any], axis: str, degree: int
) -> None:
    (series, peak) = group_series(some(phase, (64, 128, 256), **changes))
    assert (series.axis, series.degree, series.n) == (axis, degree, (64, 128, 256))
    assert (peak.axis, peak.quantity) == (axis, "peak_memory")


def test_what_a_query_of_a_verify_costs_is_a_series_of_its_own() -> None:
    records = [record for q in (2, 4, 8) for record in some("verify", (128,), q_len=q)]
    axes = {series.axis: series.n for series in group_series(records)}
    assert axes == {"q_len": (2, 4, 8)}


def test_chunks_of_two_sizes_are_two_series_with_two_names() -> None:
    records = [record for q in (16, 32) for record in some("chunked-prefill", (64, 128), q_len=q)]
    names = [series.name for series in group_series(records) if series.quantity == "latency"]
    assert names == ["chunked-prefill flash q16", "chunked-prefill flash q32"]


def test_what_a_model_says_of_itself_is_not_said_beside_its_name() -> None:
    heads = {"gpt2": 12, "t5-small": 8}
    records = [
        record
        for model, num_heads in heads.items()
        for record in some("prefill", (64, 128), model=model, scope="model",
                           num_q_heads=num_heads, num_kv_heads=num_heads)
    ]  # fmt: skip
    varying = varying_keys(records)
    assert label(records[0], varying) == "prefill flash gpt2 64"
    assert "num_q_heads" not in what_is_common(records)[0]
    fewer = {**records[0], "num_layers": 2}
    names = [label(record, varying_keys([*records, fewer])) for record in (*records, fewer)]
    assert (names[0], names[-1]) == ("prefill flash l1 gpt2 64", "prefill flash l2 gpt2 64")


def test_what_is_usual_is_not_said_and_what_is_not_is() -> None:
    (said,) = what_is_common(some("prefill", (64, 128)))
    assert not {"mixer", "implementation", "softcap", "checkpointing"} & set(said.split())
    (said,) = what_is_common(some("train", (64, 128), checkpointing=True, model="gpt2"))
    assert said.endswith("checkpointing.")
    assert "model gpt2" in said


@given(st.lists(workloads(), max_size=12))
def test_what_is_kept_of_records_is_what_is_found_in_them(found: list[Workload]) -> None:
    records = [as_record(workload) for workload in found]
    kept = Kept(records)
    for _ in range(2):
        assert varying_keys(kept) == varying_keys(records)
        assert group_series(kept) == group_series(records)
        for axes in (("backend",), ("position",)):
            assert contests(kept, axes) == contests(records, axes)


def test_series_of_kept_records_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(as_record(Workload(backend="flash", q_len=n, kv_len=n)) for n in (64, 128, 256))
    first = group_series(kept)
    monkeypatch.setattr("attnprof.series._groups", None)
    assert group_series(kept) == first
    assert len(first) == 2
