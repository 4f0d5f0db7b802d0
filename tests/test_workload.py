from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.combinations import problem
from attnprof.errors import UsageError
from attnprof.workload import Workload, checked

PREFILL = Workload(backend="flash", q_len=1024, kv_len=1024)
DECODE = Workload(backend="flash", phase="decode", q_len=1, kv_len=1024, kv_cache="static")
GROWTH = replace(DECODE, phase="kv-growth", start_len=1)


@given(
    st.builds(
        replace,
        st.sampled_from([PREFILL, DECODE, GROWTH]),
        batch_size=st.integers(1, 3),
        num_q_heads=st.sampled_from([1, 8, 16]),
        num_kv_heads=st.sampled_from([1, 8]),
        num_layers=st.integers(1, 2),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        kv_dtype=st.sampled_from([None, "float16"]),
        cache_regime=st.sampled_from(["warm", "cold"]),
    ),
    st.sampled_from([PREFILL, DECODE, GROWTH]),
)
def test_an_id_names_one_workload_and_survives_json(one: Workload, other: Workload) -> None:
    assert Workload.from_json(one.to_json()) == one
    assert (one.workload_id == other.workload_id) == (one == other)


@pytest.mark.parametrize("name", [field.name for field in fields(Workload)])
def test_every_part_of_a_workload_is_told_by_its_id(name: str) -> None:
    values = {bool: True, float: 30.0, int: 7}
    before = getattr(PREFILL, name)
    if name in ("dtype", "kv_dtype", "weight_dtype"):
        after: object = "float16"
    else:
        after = values.get(type(before), "other" if isinstance(before, str) else 7)
    changed = Workload(**PREFILL.to_json() | {name: after})
    assert changed.workload_id != PREFILL.workload_id


def test_ids_that_were_published_stay() -> None:
    assert GROWTH.workload_id == (
        "kv-growth-causal-flash-float32-b1-q1-kv1024-h8-d64-l1-static-from1"
    )
    assert replace(PREFILL, variant="sliding", window_len=256, num_kv_heads=2).workload_id == (
        "prefill-sliding256-flash-float32-b1-s1024-h8kv2-d64-l1"
    )


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (replace(PREFILL, kv_len=2048), "q_len == kv_len"),
        (replace(DECODE, q_len=2), "one query token"),
        (replace(PREFILL, num_kv_heads=3), "not a multiple"),
        (replace(PREFILL, kv_cache="paged"), "belongs to decode"),
        (replace(DECODE, kv_cache="none"), "needs a kv_cache"),
        (replace(GROWTH, start_len=1024), "from start_len 1024"),
        (replace(DECODE, start_len=4), "belongs to kv-growth"),
        (replace(GROWTH, cache_regime="cold"), "caches are warm"),
    ],
)
def test_a_combination_without_sense_says_why(workload: Workload, words: str) -> None:
    assert words in (problem(workload) or "")


@pytest.mark.parametrize("workload", [PREFILL, DECODE, GROWTH])
def test_a_combination_with_sense_has_no_problem(workload: Workload) -> None:
    assert problem(workload) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"phase": "prefil"}, "did you mean 'prefill'"),
        ({"kv_cache": "page"}, "did you mean 'paged'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"head_dim": -64}, "head_dim is -64"),
        ({"num_layers": 1.5}, "num_layers is 1.5"),
        ({"kv_len": True}, "kv_len is True"),
        ({"dtype": "bfloat61"}, "did you mean 'bfloat16'"),
    ],
)
def test_a_value_that_no_workload_has_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        checked(Workload.from_json(PREFILL.to_json() | change))


def test_an_unknown_key_names_its_neighbour() -> None:
    with pytest.raises(UsageError, match="did you mean 'batch_size'"):
        Workload.from_json(PREFILL.to_json() | {"batchsize": 1})
