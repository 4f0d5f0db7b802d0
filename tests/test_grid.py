import itertools
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.axes import AXES, MAX_WORKLOADS, axis_named, parse_values
from attnprof.errors import UsageError
from attnprof.grid import (
    USUAL_OF_ACCELERATORS,
    expand,
    sizes_of_model,
    sweep_groups,
)
from attnprof.workload import Workload


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512..8192x2", (512, 1024, 2048, 4096, 8192)),
        ("1k..64k*2", tuple(1024 * 2**i for i in range(7))),
        ("1k..9k*2", (1024, 2048, 4096, 8192)),
        ("4..16+4", (4, 8, 12, 16)),
        ("1k, 4k,1024", (1024, 4096)),
        ([256, "1k"], (256, 1024)),
        (7, (7,)),
    ],
)
def test_an_axis_reads_lists_ranges_and_suffixes(text: Any, values: tuple[int, ...]) -> None:
    assert parse_values(AXES["seq_len"], text) == values


@pytest.mark.parametrize(
    ("axis", "given", "values"),
    [
        ("checkpointing", [False, True], (False, True)),
        ("sink_logits", "yes,no", (True, False)),
        ("softcap", [30.5, 50, "none"], (30.5, 50.0, None)),
    ],
)
def test_yes_no_and_broken_numbers_are_read_as_yaml_has_them(
    axis: str, given: Any, values: tuple[Any, ...]
) -> None:
    assert parse_values(AXES[axis], given) == values


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 9))
def test_a_multiplying_range_holds_every_power_up_to_its_end(a: int, b: int, ratio: int) -> None:
    start, stop = min(a, b), max(a, b)
    values = parse_values(AXES["seq_len"], f"{start}..{stop}x{ratio}")
    assert values[0] == start
    assert all(after == before * ratio for before, after in itertools.pairwise(values))
    assert values[-1] <= stop < values[-1] * ratio


@pytest.mark.parametrize(
    ("axis", "text", "words"),
    [
        ("seq_len", "0", "out of range"),
        ("seq_len", "-5", "not a count"),
        ("seq_len", "1.5", "whole count"),
        ("seq_len", "", "has no value"),
        ("seq_len", "512..8192", "has no step"),
        ("seq_len", "8192..512x2", "has no end"),
        ("seq_len", "1..8x1", "has no end"),
        ("seq_len", "1..1000000+1", "take a larger step"),
        ("seq_len", None, "got None"),
        ("seq_len", True, "got True"),
        ("seq_len", 1.5, "got 1.5"),
        ("checkpointing", "maybe", "neither yes nor no"),
        ("softcap", "high", "not a number"),
        ("seq_len", "nan", "not a count"),
        ("dtype", "a..b", "is a range"),
        ("backend", "falsh", "did you mean 'flash'"),
        ("phase", "decod", "did you mean 'decode'"),
        ("position", "yarn", "did you mean 'rope-yarn'"),
    ],
)
def test_a_value_that_an_axis_lacks_is_refused(axis: str, text: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        parse_values(AXES[axis], text)
    assert axis in error.value.problem or "range" in error.value.problem
    assert error.value.fix


def test_axes_answer_to_their_short_names() -> None:
    assert axis_named("heads").name == "num_q_heads"
    with pytest.raises(UsageError, match="did you mean 'seq_len'"):
        axis_named("seqlen")


def test_every_axis_is_of_a_workload_and_every_part_of_a_workload_an_axis() -> None:
    made_of_others = {"seq_len"}
    derived = {"model_digest"}
    assert set(AXES) - made_of_others == {field.name for field in fields(Workload)} - derived


def test_the_product_holds_each_combination_once() -> None:
    grid = expand(
        "t",
        {"a": {"seq_len": [64, 128], "backend": ["eager", "flash"]}, "b": {"seq_len": 64}},
    )
    assert len(grid.workloads) == 4  # group b repeats a workload of a
    assert {(w.q_len, w.kv_len) for w in grid.workloads} == {(64, 64), (128, 128)}


def test_axes_of_other_phases_and_variants_do_not_multiply() -> None:
    grid = expand(
        "t",
        {
            "all": {
                "phase": ["prefill", "decode"],
                "seq_len": 64,
                "kv_cache": ["static", "paged"],
                "variant": ["full", "sliding"],
                "window_len": [8, 16],
            }
        },
    )
    prefill = [w for w in grid.workloads if w.phase == "prefill"]
    assert [w.kv_cache for w in prefill] == ["none"] * 3  # full, sliding 8, sliding 16
    assert len(grid.workloads) == 3 + 2 * 3


def test_combinations_without_sense_are_named_and_the_rest_stays() -> None:
    grid = expand("t", {"g": {"seq_len": 64, "heads": [8, 6], "kv_heads": 4}})
    assert [w.num_q_heads for w in grid.workloads] == [8]
    assert "6 is not a multiple" in grid.skipped[0].reason


@pytest.mark.parametrize(
    ("groups", "overrides", "words"),
    [
        ({"g": {"seq_len": 64, "heads": 6, "kv_heads": 4}}, {}, "nothing to run.*multiple"),
        ({"g": {"heads": 6}}, {}, "nothing to run.*no length"),
        ({"g": {"seq_len": "1..9999+1", "batch": "1..9999+1"}}, {}, "combinations, more than"),
        ({"g": {"sequence": 64}}, {}, "unknown axis 'sequence'"),
        ({"g": {"seq_len": 64}}, {"backend": "falsh"}, "unknown backend"),
        ({"g": {"seq_len": {"from": 1}}}, {}, "got {'from': 1}"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(
    groups: dict[str, dict[str, Any]], overrides: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        expand("t", groups, overrides)


def test_a_typed_axis_replaces_that_of_every_group() -> None:
    grid = expand(
        "t",
        {"a": {"seq_len": [64, 128]}, "b": {"phase": "decode", "seq_len": 256}},
        {"seq-len": "32"},
    )
    assert [w.kv_len for w in grid.workloads] == [32, 32]


def test_all_backends_are_those_of_the_device() -> None:
    grid = expand("t", {"g": {"seq_len": 64, "backend": "all"}}, backends=("eager", "math"))
    assert [w.backend for w in grid.workloads] == ["eager", "math"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "holds no mapping"),
        ({"group": {}}, "unknown key 'group'"),
        ({"groups": []}, r"groups is \[\]"),
        ({"groups": {"a": 3}}, "group 'a' is 3"),
        ({"groups": {"a": {}}, "defaults": 4}, "groups is"),
    ],
)
def test_a_sweep_file_of_another_shape_is_refused(data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sweep_groups(data, "x.yaml")


def test_a_product_is_counted_before_it_is_made() -> None:
    ranges = {"seq_len": "1..1000+1", "batch": "1..1000+1", "heads": "1..1000+1"}
    assert math.prod([1000] * 3) > MAX_WORKLOADS
    with pytest.raises(UsageError, match="1,000,000,000 combinations"):
        expand("t", {"g": ranges})


def test_what_a_group_does_not_name_is_what_the_device_usually_has() -> None:
    groups: dict[str, dict[str, Any]] = {
        "a": {"seq_len": 64},
        "b": {"seq_len": 64, "cache_regime": "warm"},
    }
    grid = expand("t", groups, usual=USUAL_OF_ACCELERATORS)
    assert [w.cache_regime for w in grid.workloads] == ["cold", "warm"]
    assert {w.dtype for w in grid.workloads} == {"bfloat16"}
    assert {w.dtype for w in expand("t", groups).workloads} == {"float32"}


def test_a_growing_cache_is_warm_on_every_device() -> None:
    group = {"phase": "kv-growth", "kv_len": 64}
    (growth,) = expand("t", {"a": group}, usual=USUAL_OF_ACCELERATORS).workloads
    assert growth.cache_regime == "warm"


def test_typed_phases_choose_among_the_groups() -> None:
    groups: dict[str, dict[str, Any]] = {
        "a": {"phase": "prefill", "seq_len": 64},
        "b": {"phase": ["decode", "kv-growth"], "seq_len": 128, "num_layers": 4},
        "c": {"seq_len": 256},
    }
    decodes = expand("t", groups, {"phase": "decode"})
    assert [(w.phase, w.kv_len) for w in decodes.workloads] == [("decode", 128), ("decode", 256)]
    with pytest.raises(UsageError, match="no group has that phase"):
        expand("t", {"a": groups["a"]}, {"phase": "decode"})


@pytest.mark.parametrize(
    "overrides",
    [{"seq_len": "1k", "n": "2k"}, {"kv-heads": "1", "num_kv_heads": "2"}],
)
def test_an_axis_given_under_two_of_its_names_is_refused(overrides: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="given twice"):
        expand("x", {"g": {}}, overrides)


def test_a_group_overrides_a_default_under_another_of_its_names() -> None:
    data = {"name": "x", "defaults": {"heads": 4}, "groups": {"g": {"num_q_heads": 2, "n": 8}}}
    _, groups = sweep_groups(data, "x.yaml")
    assert [one.num_q_heads for one in expand("x", groups).workloads] == [2]


def test_all_groups_together_are_counted() -> None:
    groups = {f"g{i}": {"seq_len": "1..9999+1", "head_dim": i} for i in range(1, 1000)}
    with pytest.raises(UsageError, match="in all its groups"):
        expand("x", groups)


def test_the_values_of_an_axis_are_counted_while_they_are_read() -> None:
    with pytest.raises(UsageError, match="more than 10,000 values"):
        parse_values(AXES["seq_len"], ["1..10000+1"] * 10**7)


def test_a_model_gives_its_layers_and_heads_and_its_files_content_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 99,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    digests = []
    for vocab_size in (99, 100):
        path.write_text(json.dumps({**sizes, "vocab_size": vocab_size}))
        sizes_of_model.cache_clear()
        (workload,) = expand("x", {"x": {"model": str(path), "seq_len": "8"}}).workloads
        shape = (workload.num_layers, workload.num_q_heads, workload.num_kv_heads)
        assert (*shape, workload.head_dim, workload.variant) == (3, 4, 2, 16, "causal")
        assert workload.scope == "model"
        digests.append(workload.model_digest)
    assert None not in digests and digests[0] != digests[1]
    assert sizes_of_model("gpt2")["model_digest"] is None


def test_more_layers_than_a_model_has_are_skipped_by_name() -> None:
    grid = expand("x", {"x": {"model": "gpt2", "seq_len": "8", "num_layers": "2,12,13"}})
    assert [workload.num_layers for workload in grid.workloads] == [2, 12]
    assert [skipped.reason for skipped in grid.skipped] == ["num_layers 13: gpt2 has 12"]


def test_a_model_without_a_plain_implementation_is_refused_by_its_type() -> None:
    with pytest.raises(UsageError, match=r"'mpt'.* cannot be built") as caught:
        expand("x", {"x": {"model": "mpt-7b", "seq_len": "8"}})
    assert "llama" in caught.value.fix
    axes = {"model": "mpt-7b", "seq_len": "8", "implementation": "transformers"}
    assert expand("x", {"x": axes}).workloads


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"phase": "mixed"}, "give prefill_len"),
        ({"scope": "model"}, "give model, a profile's name or a config.json"),
    ],
)
def test_what_an_axis_lacks_is_named_to_be_given(axes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        expand("typed", {"typed": {"seq_len": "16", **axes}})


@pytest.mark.parametrize("axis", ["kv_dtype=int8", "checkpointing=yes", "window_len=16"])
def test_an_axis_that_no_workload_takes_is_named(axis: str) -> None:
    name, value = axis.split("=")
    assert expand("t", {"g": {}}, {"seq_len": 64, name: value}).unused == (name,)
    takers = {"phase": ["decode", "train"], "variant": ["causal", "sliding"], "seq_len": 64}
    assert expand("t", {"g": takers}, {name: value}).unused == ()


def test_a_chunk_without_a_length_is_half_of_a_short_prompt() -> None:
    chunks = expand("t", {"g": {"phase": "chunked-prefill", "seq_len": [64, 4096]}}).workloads
    assert [(chunk.q_len, chunk.kv_len) for chunk in chunks] == [(32, 64), (512, 4096)]
