"""Curves that cross where they were planted."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.crossings import Crossing, mixer_crossings, part_crossings, sign_changes
from attnprof.workload import Workload

LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def record(workload: Workload, seconds: float, spread: float = 0.0, **more: Any) -> dict[str, Any]:
    samples = [seconds * (1 - spread), seconds, seconds * (1 + spread)]
    return {
        "workload_id": workload.workload_id,
        **workload.to_json(),
        "device": "cpu",
        "status": "ok",
        "clock": "wall",
        "median_s": seconds,
        "median_low_s": samples[0],
        "median_high_s": samples[-1],
        "median_wall_s": seconds,
        "median_cpu_s": 2 * seconds,
        "samples_s": samples,
        "samples_cpu_s": [2 * sample for sample in samples],
        **more,
    }


def layer(length: int, mixer: str = "attention", **more: Any) -> Workload:
    backend = "flash" if mixer == "attention" else "eager"
    return Workload(
        backend=backend, scope="layer", q_len=length, kv_len=length, mixer=mixer, **more
    )


def planted(
    attention_per_pair: float, rnn_per_token: float, spread: float = 0.0
) -> list[dict[str, Any]]:
    """Attention that costs by the pair, and an RNN that costs by the token."""
    return [
        one
        for n in LENGTHS
        for one in (
            record(layer(n), attention_per_pair * n**2, spread),
            record(layer(n, "rnn"), rnn_per_token * n, spread),
        )
    ]


def only(crossings: list[Crossing]) -> Crossing:
    assert len(crossings) == 1
    return crossings[0]


@given(at=st.floats(130, 4000))
def test_a_square_and_a_line_cross_where_they_were_planted(at: float) -> None:
    found = only(mixer_crossings(planted(1e-9, 1e-9 * at)))
    assert found.at == pytest.approx(at)
    assert found.between is not None and found.between[0] <= at <= found.between[1]
    assert found.num_changes == 1
    assert found.longer_at_end == found.first.name
    assert "rnn" in found.second.name and "flash" in found.first.name


def test_the_interval_of_a_crossing_grows_with_that_of_its_points() -> None:
    narrow = only(mixer_crossings(planted(1e-9, 1e-6, spread=0.01)))
    wide = only(mixer_crossings(planted(1e-9, 1e-6, spread=0.1)))
    for one in (narrow, wide):
        assert one.low is not None and one.high is not None
        assert one.low < 1000 < one.high
    assert wide.high / wide.low > narrow.high / narrow.low  # type: ignore[operator]


def test_curves_that_do_not_cross_have_no_crossing_and_none_is_foretold_unasked() -> None:
    found = only(mixer_crossings(planted(1e-9, 1e-9 * 20_000)))
    assert (found.at, found.between, found.num_changes) == (None, None, 0)
    assert (found.beyond, found.why_not) == (None, None)
    assert found.longer_at_end == found.second.name


def test_a_crossing_beyond_is_foretold_by_both_laws_when_asked() -> None:
    found = only(mixer_crossings(planted(1e-9, 1e-9 * 20_000, spread=1e-3), foretold_on={}))
    assert found.at is None
    assert found.beyond == pytest.approx(20_000, rel=0.02)


def test_no_crossing_is_foretold_further_than_laws_reach() -> None:
    found = only(mixer_crossings(planted(1e-9, 1e-9 * 1e7, spread=1e-3), foretold_on={}))
    assert found.beyond is None
    assert found.why_not


def test_layers_of_another_width_or_batch_are_not_compared() -> None:
    narrow = [record(layer(n), 1e-9 * n**2) for n in LENGTHS]
    wide = [record(layer(n, "gru", num_q_heads=16, num_kv_heads=16), 1e-6 * n) for n in LENGTHS]
    batched = [record(layer(n, "gru", batch_size=2), 1e-6 * n) for n in LENGTHS]
    assert mixer_crossings([*narrow, *wide, *batched]) == []


def test_each_mixer_is_held_against_each_attention() -> None:
    records = [
        record(layer(n, mixer), per_token * n)
        for mixer, per_token in (("rnn", 1e-6), ("lstm", 2e-6))
        for n in LENGTHS
    ]
    records += [record(layer(n), 1e-9 * n**2) for n in LENGTHS]
    found = mixer_crossings(records)
    assert [round(one.at or 0) for one in found] == [1000, 2000]


def test_a_disturbed_row_puts_both_curves_on_the_cpu_clock() -> None:
    records = planted(1e-9, 1e-6)
    records[0]["flags"] = ["contended"]
    found = only(mixer_crossings(records))
    assert found.clock == "cpu"
    assert found.first.seconds[0] == pytest.approx(2e-9 * LENGTHS[0] ** 2)
    assert found.at == pytest.approx(1000)


def test_attention_overtakes_the_rest_of_a_block_where_its_part_does() -> None:
    def parts(n: int) -> list[dict[str, Any]]:
        each = {"attention": 1e-9 * n**2, "ffn": 4e-7 * n, "projection": 3e-7 * n}
        return [{"name": name, "wall_s": s, "cpu_s": None} for name, s in each.items()]

    block = {"scope": "block", "ffn": "gated", "ffn_dim": 1024}
    records = [
        record(
            Workload(backend="flash", q_len=n, kv_len=n, **block),  # type: ignore[arg-type]
            1e-9 * n**2 + 7e-7 * n,
            parts=parts(n),
        )
        for n in LENGTHS
    ]
    found = only(part_crossings(records))
    assert found.at == pytest.approx(700)
    assert (found.low, found.high) == (None, None)
    assert found.longer_at_end == found.first.name


def test_records_without_parts_have_no_crossing_of_parts() -> None:
    assert part_crossings(planted(1e-9, 1e-6)) == []


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0]), min_size=1, max_size=8))
def test_signs_change_as_often_as_those_of_the_points_that_have_one(gaps: list[float]) -> None:
    n = [2**i for i in range(len(gaps))]
    signs = [math.copysign(1, gap) for gap in gaps if gap]
    found = sign_changes(n, gaps)
    assert len(found) == sum(a != b for a, b in itertools.pairwise(signs))
    assert all(left <= at <= right for at, (left, right) in found)
