"""Planted laws come back within the uncertainty that the fit states, and planted knots by name."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.errors import CannotMeasureError
from attnprof.fit import fit_run, predict
from attnprof.regression import (
    nonnegative_least_squares,
    polynomial_law,
    power_law,
    ruling_terms,
    student_t95,
)

MIB = 2**20
CPU = {"name": "a CPU", "kind": "cpu", "memory_bytes": 16 * 2**30, "l2_bytes": MIB}
DEVICE = {**CPU, "l3_bytes": 32 * MIB}
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


def record(**changes: Any) -> dict[str, Any]:
    """A good prefill of one layer, as ``records.jsonl`` holds it."""
    made = {
        "scope": "op", "phase": "prefill", "attention": "self", "variant": "causal",
        "window_len": None, "position": "none", "kv_cache": "none", "backend": "flash",
        "device": "cpu", "dtype": "float32", "kv_dtype": None, "batch_size": 1, "q_len": 1024,
        "kv_len": 1024, "num_q_heads": 8, "num_kv_heads": 8, "head_dim": 64, "num_layers": 1,
        "status": "ok", "clock": "wall", "flags": [], "weight_bytes": 0,
    } | changes  # fmt: skip
    if "median_s" in made:
        made.setdefault("median_low_s", made["median_s"] * 0.99)
        made.setdefault("median_high_s", made["median_s"] * 1.01)
    return made


def prefills(
    law: Callable[[int], float], lengths: Sequence[int] = LENGTHS, **changes: Any
) -> list[dict[str, Any]]:
    return [record(q_len=n, kv_len=n, median_s=law(n), **changes) for n in lengths]


def noisy(law: Callable[[int], float], sd: float, seed: int) -> Callable[[int], float]:
    rng = random.Random(seed)
    return lambda n: law(n) * math.exp(rng.gauss(0, sd))


def quadratic(n: int) -> float:
    return 2e-5 + 4e-7 * n + 1.3e-8 * n**2


def only(records: list[dict[str, Any]], quantity: str = "latency") -> dict[str, Any]:
    found = fit_run({"facts": DEVICE}, records)["series"]
    (one,) = [series for series in found if series["quantity"] == quantity]
    assert isinstance(one, dict)
    return one


# Arithmetic


@pytest.mark.parametrize(
    ("dof", "published"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_student_t_is_that_of_the_printed_tables(dof: int, published: float) -> None:
    assert student_t95(dof) == pytest.approx(published, rel=2e-3)


MATRICES = st.integers(1, 4).flatmap(
    lambda columns: st.lists(
        st.lists(st.floats(0.01, 10), min_size=columns + 1, max_size=columns + 1),
        min_size=columns,
        max_size=columns + 3,
    )
)


@given(rows=MATRICES)
def test_no_nonnegative_coefficients_fit_better_than_those_found(rows: list[list[float]]) -> None:
    """Held against the optimality conditions, and against every point of a grid around it."""
    data = np.array(rows)
    matrix, target = data[:, :-1], data[:, -1]
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    gradient = matrix.T @ (matrix @ found - target)
    scale = np.abs(matrix.T) @ np.abs(target) + 1
    assert (gradient >= -1e-6 * scale).all()
    loss = np.sum((matrix @ found - target) ** 2)
    for steps in itertools.product((-0.3, 0.0, 0.3), repeat=len(found)):
        moved = np.maximum(found + np.array(steps), 0)
        assert loss <= np.sum((matrix @ moved - target) ** 2) + 1e-9 * (1 + loss)


@given(
    coefficients=st.lists(st.floats(1e-6, 1e6) | st.just(0.0), min_size=3, max_size=3),
    x=st.floats(1e-3, 1e9),
)
def test_the_ruling_term_is_the_largest_one(coefficients: list[float], x: float) -> None:
    ruling = [power for power, start in ruling_terms(coefficients) if start <= x]
    terms = [c * x**power for power, c in enumerate(coefficients)]
    if any(terms):
        assert terms[ruling[-1]] == pytest.approx(max(terms))
    else:
        assert not ruling


# Coverage: the stated 95 % holds


@pytest.mark.parametrize("sd", [0.005, 0.03])
def test_planted_coefficients_lie_in_their_intervals_at_least_92_times_of_100(sd: float) -> None:
    planted = (2e-5, 4e-7, 1.3e-8)
    inside = [0, 0, 0]
    for seed in range(100):
        law = noisy(quadratic, sd, seed)
        fitted = polynomial_law(LENGTHS, [law(n) for n in LENGTHS], [0.01] * 6, degree=2)
        for k, term in enumerate((*fitted.lower, fitted.top[0])):
            assert term.low is not None
            assert term.high is not None
            assert term.low <= term.value <= term.high
            inside[k] += term.low <= planted[k] <= term.high
    assert min(inside) >= 92


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_planted_exponent_lies_in_its_interval_at_least_92_times_of_100(count: int) -> None:
    inside = 0
    for seed in range(100):
        law = noisy(lambda n: 1e-9 * n**1.9, 0.03, seed)
        lengths = LENGTHS[:count]
        fitted = power_law(lengths, [law(n) for n in lengths], [0.01] * count)
        assert fitted.low is not None
        assert fitted.high is not None
        inside += fitted.low <= 1.9 <= fitted.high
    assert inside >= 92


# Series


def test_a_quadratic_law_comes_back_with_units_in_its_names() -> None:
    fitted = only(prefills(quadratic))
    assert fitted["coefficients"] == pytest.approx(
        {"a_s": 2e-5, "b_s_per_token": 4e-7, "c_s_per_token2": 1.3e-8}
    )
    assert fitted["worst_residual"] == pytest.approx(0, abs=1e-9)
    assert [rule["term"] for rule in fitted["rules"]] == ["constant", "linear", "quadratic"][::2]
    assert fitted["extrapolates"]
    assert predict(fitted, 65536) == pytest.approx(quadratic(65536))


def test_the_exponent_is_taken_where_the_constant_hardly_weighs() -> None:
    fitted = only(prefills(lambda n: 3e-3 + 1e-8 * n**2))
    assert fitted["exponent_over"] == [2048, 8192]
    assert fitted["exponent"] == pytest.approx(2, abs=0.1)


def test_decode_has_no_quadratic_term_to_fit_noise_with() -> None:
    rows = [
        record(phase="decode", q_len=1, kv_len=n, kv_cache="static", median_s=1e-5 + 2e-8 * n,
               kv_bytes=4096 * n, theory_kv_bytes=4096 * n)
        for n in LENGTHS
    ]  # fmt: skip
    fitted = only(rows)
    assert set(fitted["coefficients"]) == {"a_s", "b_s_per_token"}
    assert fitted["axis"] == "kv_len"


@pytest.mark.parametrize("axis", ["batch_size", "num_layers", "num_kv_heads", "num_q_heads"])
def test_a_count_that_varies_alone_is_a_series_too(axis: str) -> None:
    rows = [record(**{"num_kv_heads": 1, axis: n}, median_s=3e-3 * n) for n in (1, 2, 4, 8)]
    if axis == "num_q_heads":
        rows = [row | {"num_kv_heads": row["num_q_heads"]} for row in rows]
    fitted = only(rows)
    assert fitted["axis"] == axis
    assert fitted["exponent"] == pytest.approx(1)
    assert axis not in fitted["where"]


def test_workloads_that_differ_in_more_than_the_length_are_not_one_series() -> None:
    rows = prefills(quadratic) + prefills(quadratic, dtype="bfloat16")
    names = [one["name"] for one in fit_run({}, rows)["series"]]
    assert names == ["prefill flash fp32", "prefill flash bf16"]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_lengths_are_no_series(count: int) -> None:
    assert fit_run({}, prefills(quadratic, LENGTHS[:count]))["series"] == []


def test_two_lengths_give_an_exponent_without_an_interval_and_no_law() -> None:
    fitted = only(prefills(lambda n: 1e-8 * n**2, (1024, 2048)))
    assert fitted["exponent"] == pytest.approx(2)
    assert fitted["exponent_low"] is None
    assert fitted["coefficients"] is None
    with pytest.raises(CannotMeasureError, match="2 points do not tell"):
        predict(fitted, 4096)


def test_three_lengths_give_a_law_without_intervals() -> None:
    fitted = only(prefills(lambda n: 1e-8 * n**2, (1024, 2048, 4096)))
    assert fitted["coefficients"]["c_s_per_token2"] == pytest.approx(1e-8)
    assert fitted["coefficients_high"]["c_s_per_token2"] is None


@pytest.mark.parametrize("bad", [0, None, float("nan"), float("inf"), -1.0, "fast", True])
def test_a_row_whose_time_is_no_time_is_left_out(bad: object) -> None:
    rows = prefills(quadratic)
    rows[2] |= {"median_s": bad}
    assert only(rows)["n"] == [256, 512, 2048, 4096, 8192]


@pytest.mark.parametrize("status", ["wrong_result", "timeout", "out_of_memory", "unsupported"])
def test_only_good_rows_are_fitted(status: str) -> None:
    rows = prefills(quadratic)
    rows[-1] |= {"status": status}
    assert only(rows)["n"][-1] == 4096


def test_one_contended_row_puts_the_complete_series_on_the_cpu_clock() -> None:
    rows = [
        row | {"median_wall_s": row["median_s"], "median_cpu_s": 2 * row["median_s"]}
        for row in prefills(quadratic)
    ]
    assert only(rows)["clock"] == "wall"
    slow = rows[1]
    slow |= {"flags": ["contended"], "clock": "cpu"}
    slow |= {"median_s": slow["median_cpu_s"], "median_wall_s": 9.0}
    fitted = only(rows)
    assert fitted["clock"] == "cpu"
    assert fitted["values"] == pytest.approx([2 * quadratic(n) for n in LENGTHS])


# Knots


def eager(law: Callable[[int], float], lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    """Rows of a kernel that holds two float32 score matrices; they pass 32 MiB beyond n = 1024."""
    rows = prefills(law, lengths, backend="eager")
    return [row | {"peak_activation_bytes": 8 * 8 * row["kv_len"] ** 2} for row in rows]


def cliff(n: int) -> float:
    return 1e-5 + (1.2e-8 if n <= 1024 else 3e-8) * n**2


def test_a_planted_change_of_regime_is_found_and_named() -> None:
    for seed in range(20):
        fitted = only(eager(noisy(cliff, 0.02, seed)))
        (knot,) = fitted["knots"]
        assert knot["between"] == [1024, 2048]
        assert knot["name"] == "scores leave L3 (32 MiB)"
        assert knot["ratio"] == pytest.approx(2.5, rel=0.2)
        assert [segment["num_points"] for segment in fitted["segments"]] == [3, 3]


def test_no_value_is_foretold_across_a_knot() -> None:
    fitted = only(eager(cliff))
    with pytest.raises(CannotMeasureError, match="scores leave L3"):
        predict(fitted, 1500)
    assert predict(fitted, 700) == pytest.approx(cliff(700), rel=0.02)
    assert predict(fitted, 3000) == pytest.approx(cliff(3000), rel=0.02)
    assert predict(fitted, 16384) == pytest.approx(cliff(16384), rel=0.02)


def test_a_knot_with_too_little_beyond_it_forbids_extrapolation() -> None:
    fitted = only(eager(cliff, LENGTHS[:5]))
    assert fitted["knots"]
    assert not fitted["extrapolates"]
    assert "only 2 of the points lie beyond" in fitted["why_not"]
    with pytest.raises(CannotMeasureError, match="only 2 of the points"):
        predict(fitted, 8192)


@pytest.mark.parametrize("sd", [0.01, 0.04])
def test_no_knot_is_invented_on_a_clean_quadratic(sd: float) -> None:
    invented = sum(bool(only(eager(noisy(quadratic, sd, seed)))["knots"]) for seed in range(100))
    assert invented <= 2


def test_three_points_are_too_few_for_a_knot() -> None:
    rows = eager(lambda n: 1e-8 * n**2 if n < 2048 else 3e-8 * n**2, (512, 1024, 2048))
    assert only(rows)["knots"] == []


def test_four_points_are_enough_where_the_law_is_plain() -> None:
    rows = eager(lambda n: 1e-8 * n**2 if n < 2048 else 3e-8 * n**2, (256, 512, 1024, 2048))
    assert len(only(rows)["knots"]) == 1


def test_noise_that_its_intervals_admit_is_no_knot() -> None:
    def widened(seed: int) -> list[dict[str, Any]]:
        return [
            row | {"median_low_s": 0.5 * row["median_s"], "median_high_s": 1.6 * row["median_s"]}
            for row in eager(noisy(quadratic, 0.25, seed))
        ]

    assert sum(bool(only(widened(seed))["knots"]) for seed in range(50)) <= 2


def test_a_change_without_a_cause_gets_no_knot_and_is_refused() -> None:
    fitted = only(prefills(cliff))  # a fused kernel: it holds no scores
    assert fitted["knots"] == []
    assert "no named change of regime" in fitted["why_not"]
    with pytest.raises(CannotMeasureError, match="misses a measured point"):
        predict(fitted, 1024)


def test_a_decode_whose_cache_leaves_l3_has_its_knot_there() -> None:
    rows = [
        record(phase="decode", q_len=1, kv_len=n, kv_cache="static", kv_bytes=4096 * n,
               median_s=1e-5 + (1e-8 if n <= 8192 else 3e-8) * n)
        for n in (1024, 2048, 4096, 8192, 16384, 32768, 65536)
    ]  # fmt: skip
    (knot,) = only(rows)["knots"]
    assert knot["between"] == [8192, 16384]
    assert knot["name"] == "KV leaves L3 (32 MiB)"


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"libc": "glibc 2.36"}, "page faults begin (32 MiB)"),
        ({"libc": "glibc 2.36", "environment": {"MALLOC_MMAP_THRESHOLD_": str(2**40)}}, None),
        ({"libc": "musl"}, None),
    ],
)
def test_page_faults_begin_where_the_allocator_hands_blocks_back(
    facts: dict[str, Any], name: str | None
) -> None:
    (series,) = [
        one
        for one in fit_run({"facts": CPU | facts}, eager(cliff))["series"]
        if one["quantity"] == "latency"
    ]
    assert [knot["name"] for knot in series["knots"]] == ([name] if name else [])


def test_an_accelerator_has_no_page_faults() -> None:
    rows = [row | {"device": "cuda"} for row in eager(cliff)]
    document = fit_run({"facts": {"libc": "glibc 2.36"}}, rows)
    assert all(one["knots"] == [] for one in document["series"])


def test_counted_page_faults_say_where_they_begin() -> None:
    rows = eager(cliff)
    for row in rows:
        pages = row["peak_activation_bytes"] // 4096
        row["minor_faults"] = [pages if row["kv_len"] > 1024 else 0] * 5
    (series,) = [
        one for one in fit_run({"facts": CPU}, rows)["series"] if one["quantity"] == "latency"
    ]
    assert series["knots"][0]["name"] == "page faults begin"


# Foretelling


def test_nothing_is_foretold_where_the_next_cache_ends() -> None:
    fitted = only(eager(quadratic, (128, 256, 512, 640)))
    assert fitted["extrapolates"]
    assert fitted["holds_up_to"] == pytest.approx(1024)
    assert predict(fitted, 1000) == pytest.approx(quadratic(1000), rel=1e-6)
    with pytest.raises(CannotMeasureError, match="scores leave L3 at 1024"):
        predict(fitted, 1100)


def test_nothing_is_foretold_by_a_term_that_was_hardly_there() -> None:
    fitted = only(prefills(lambda n: 1e-2 + 1e-7 * n + 3e-10 * n**2, (64, 128, 256, 512)))
    with pytest.raises(CannotMeasureError, match="was hardly there"):
        predict(fitted, 8000)


@pytest.mark.parametrize("n", [8192 * 17, 256 // 17])
def test_nothing_is_foretold_sixteen_times_off(n: int) -> None:
    with pytest.raises(CannotMeasureError, match="16 times off"):
        predict(only(prefills(quadratic)), n)


# Memory


def peaks(peak: Callable[[int], int], lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    return [
        record(q_len=n, kv_len=n, peak_activation_bytes=peak(n), kv_bytes=4096 * n) for n in lengths
    ]


def flash_on_two_threads(n: int) -> int:
    """Output, log-sums, and a block for each thread that is smaller for short inputs."""
    q_block = 64 if n < 768 else 256
    return 8 * n * 64 * 4 + 8 * n * 4 + 2 * q_block * (512 + 2 + 64) * 4


def test_flash_memory_grows_linearly_above_a_constant() -> None:
    fitted = only(peaks(flash_on_two_threads), "peak_memory")
    assert fitted["exponent"] == pytest.approx(1, abs=0.01)
    assert fitted["fitted_from"] == 1024
    assert fitted["constant_removed"] == pytest.approx(2 * 256 * 578 * 4, rel=0.01)


def test_score_memory_grows_quadratically_until_it_fills_the_device() -> None:
    def math_peak(n: int) -> int:
        return 8 * n * n * 9 + 8 * n * 64 * 4

    document = fit_run({"facts": DEVICE}, peaks(math_peak, LENGTHS[:4]))
    assert document["series"][0]["exponent"] == pytest.approx(2, abs=0.05)
    (full,) = document["passes_device"]
    n = full["seq_len"]

    def held(n: int) -> int:
        return math_peak(n) + 4096 * n + 8 * n * 64 * 4

    assert held(n) <= 16 * 2**30 < held(n + 2)


def decodes(peak: Callable[[int], int], kv_bytes: Callable[[int], int]) -> list[dict[str, Any]]:
    """Decodes at four lengths, with a peak of a call and a cache that is held between calls."""
    static = record(phase="decode", kv_cache="static", q_len=1)
    return [
        static | {"kv_len": n, "kv_bytes": kv_bytes(n), "peak_activation_bytes": peak(n)}
        for n in (2048, 4096, 8192, 16384)
    ]


def test_a_cache_fills_the_device_at_the_length_that_its_tokens_and_the_peak_take() -> None:
    (full,) = fit_run({"facts": DEVICE}, decodes(lambda n: 1024 * n, lambda n: 4096 * n))[
        "passes_device"
    ]
    assert full["axis"] == "kv_len"
    assert full["seq_len"] == pytest.approx(16 * 2**30 / (1024 + 4096), rel=1e-4)


def test_a_cache_that_rolls_never_fills_the_device_and_the_fit_says_why() -> None:
    (full,) = fit_run({"facts": DEVICE}, decodes(lambda n: 8192, lambda n: 2**20))["passes_device"]
    assert full["seq_len"] is None
    assert full["why_not"] == "it does not grow with the length"


def test_what_fills_the_device_at_any_length_says_so() -> None:
    (full,) = fit_run({"facts": DEVICE}, decodes(lambda n: 8192, lambda n: 2**40))["passes_device"]
    assert full["seq_len"] is None
    assert "fills it already" in full["why_not"]


def test_a_length_that_fills_an_unknown_memory_is_not_given() -> None:
    assert fit_run({"facts": {}}, peaks(lambda n: 72 * n * n))["passes_device"] == []


# The KV cache


def growth(
    allocated: Callable[[int], int], peak: Callable[[int], int] | None = None, per_token: int = 4096
) -> list[dict[str, Any]]:
    return [
        {"kv_len": n, "wall_s": 1e-5 + 1e-8 * n, "cpu_s": 1e-5 + 1e-8 * n,
         "useful_bytes": per_token * n, "allocated_bytes": allocated(n),
         "peak_bytes": peak(n) if peak else allocated(n)}
        for n in range(1, 257)
    ]  # fmt: skip


def grown(points: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    row = record(phase="kv-growth", q_len=1, kv_len=256, theory_kv_bytes=4096 * 256,
                 growth=points, **changes)  # fmt: skip
    (entry,) = fit_run({}, [row])["kv"]
    assert isinstance(entry, dict)
    return entry


def test_a_concatenated_cache_shows_its_overshoot() -> None:
    entry = grown(growth(lambda n: 4096 * n, lambda n: 4096 * (2 * n - 1)))
    assert entry["bytes_per_token"] == pytest.approx(4096)
    assert entry["verdict"] == "equal"
    assert entry["overshoot_bytes"] == 4096 * 255
    assert entry["overshoot"] == pytest.approx(255 / 256)
    assert entry["fragmentation"] == 0


def test_a_paged_cache_shows_its_steps() -> None:
    entry = grown(growth(lambda n: 4096 * 16 * math.ceil(n / 16)))
    assert (entry["step_bytes"], entry["step_tokens"]) == (65536, 16)
    assert entry["overshoot_bytes"] == 0
    assert entry["fragmentation"] == 0
    assert entry["worst_fragmentation"] == pytest.approx(15 / 16)


def test_a_paged_cache_shows_its_steps_where_not_every_length_was_kept() -> None:
    kept = {length for edge in range(64, 257, 64) for length in (edge, edge + 1, edge + 3)}
    points = growth(lambda n: 4096 * 16 * math.ceil(n / 16))
    entry = grown([point for point in points if point["kv_len"] in kept])
    assert (entry["step_bytes"], entry["step_tokens"]) == (65536, 16)


def test_a_static_cache_shows_its_empty_slots() -> None:
    entry = grown(growth(lambda n: 4096 * 512))
    assert entry["fragmentation"] == pytest.approx(1 / 2)
    assert (entry["useful_bytes"], entry["allocated_bytes"]) == (4096 * 256, 4096 * 512)
    assert entry["step_bytes"] is None


@pytest.mark.parametrize("first", [1, 100])
def test_a_rolling_cache_is_held_against_its_window(first: int) -> None:
    points = [
        {**point, "useful_bytes": 4096 * min(point["kv_len"], 64), "allocated_bytes": 4096 * 64}
        for point in growth(lambda n: 0)
        if point["kv_len"] >= first
    ]
    row = record(phase="kv-growth", q_len=1, kv_len=256, kv_cache="rolling", window_len=64,
                 variant="sliding", theory_kv_bytes=4096 * 64, growth=points)  # fmt: skip
    (entry,) = fit_run({}, [row])["kv"]
    assert entry["verdict"] == "equal"
    assert entry["bytes_per_token"] == pytest.approx(4096)
    assert entry["worst_fragmentation"] == pytest.approx(63 / 64 if first == 1 else 0)


def generated(kv_cache: str, step_s: float, last: int = 9) -> dict[str, Any]:
    """A prompt of 4 tokens in 1 s, and then a token each ``step_s``."""
    points = [
        {
            "kv_len": n, "wall_s": 1.0 if n == 4 else step_s, "cpu_s": None,
            "total_s": 1.0 + (n - 4) * step_s, "useful_bytes": 0 if kv_cache == "none" else n,
            "allocated_bytes": 0 if kv_cache == "none" else 16, "peak_bytes": None,
        }
        for n in range(4, last + 1)
    ]  # fmt: skip
    return record(
        phase="generate", q_len=1, kv_len=9, start_len=4, kv_cache=kv_cache, growth=points
    )


def test_what_a_cache_buys_is_a_number() -> None:
    rows = [generated("none", 2.0), generated("static", 0.1), generated("paged", 0.2)]
    none, static, paged = fit_run({}, rows)["generation"]
    assert none["speedup"] is None
    assert static["speedup"] == pytest.approx(11 / 1.5)
    assert paged["speedup"] == pytest.approx(11 / 2)
    assert (static["ttft_s"], static["itl_s"], static["total_s"]) == pytest.approx((1, 0.1, 1.5))
    assert (static["prompt_len"], static["num_tokens"]) == (4, 5)


def test_a_generation_that_was_cut_short_is_compared_where_both_had_come() -> None:
    _, static = fit_run({}, [generated("none", 2.0, last=6), generated("static", 0.1)])[
        "generation"
    ]
    assert static["speedup_at"] == 6
    assert static["speedup"] == pytest.approx(5 / 1.2)


def test_a_generation_of_another_length_is_no_baseline() -> None:
    other = {**generated("none", 2.0), "kv_len": 8}
    assert fit_run({}, [other, generated("static", 0.1)])["generation"][1]["speedup"] is None


@pytest.mark.parametrize(("per_token", "verdict"), [(4096 * 1.02, "wrong"), (4100, "equal")])
def test_bytes_a_token_off_by_over_one_percent_are_called_wrong(
    per_token: float, verdict: str
) -> None:
    assert grown(growth(lambda n: 1, per_token=per_token))["verdict"] == verdict  # type: ignore[arg-type]


def test_decodes_of_several_lengths_give_the_bytes_of_one_sequence() -> None:
    rows = [
        record(phase="decode", q_len=1, kv_len=n, kv_cache="static", batch_size=3,
               kv_bytes=3 * 4096 * n, theory_kv_bytes=3 * 4096 * n)
        for n in (1024, 4096)
    ]  # fmt: skip
    (entry,) = fit_run({}, rows)["kv"]
    assert entry["bytes_per_token"] == entry["theory_bytes_per_token"] == 4096


def test_steps_of_a_growing_cache_are_a_latency_series() -> None:
    fitted = only(
        [record(phase="kv-growth", q_len=1, kv_len=256, growth=growth(lambda n: 4096 * n))]
    )
    assert fitted["coefficients"]["b_s_per_token"] == pytest.approx(1e-8, rel=1e-6)


@pytest.mark.parametrize(
    ("bytes_at", "per_token"),
    [
        (lambda n: 2**20 + 4096 * n, 4096),  # a source's keys beside those of the tokens
        (lambda n: 2**20, 0),  # a window that was full at every length
    ],
)
def test_what_does_not_grow_is_no_part_of_a_tokens_bytes(
    bytes_at: Callable[[int], int], per_token: int
) -> None:
    rows = [
        record(phase="decode", q_len=1, kv_len=n, kv_cache="static", median_s=1e-3,
               kv_bytes=bytes_at(n), theory_kv_bytes=bytes_at(n))
        for n in (512, 1024)
    ]  # fmt: skip
    (entry,) = fit_run({}, rows)["kv"]
    assert (entry["bytes_per_token"], entry["verdict"]) == (pytest.approx(per_token), "equal")
    rows[1]["kv_bytes"] += 2**20
    assert fit_run({}, rows)["kv"][0]["verdict"] == "wrong"


def test_a_cache_that_grew_is_held_against_theory_at_each_length() -> None:
    points = [
        {**point, "useful_bytes": 2**20 + point["useful_bytes"],
         "theory_bytes": 2**20 + point["useful_bytes"]}
        for point in growth(lambda n: 4096 * n)
    ]  # fmt: skip
    entry = grown(points)
    assert (entry["theory_bytes_per_token"], entry["verdict"]) == (pytest.approx(4096), "equal")
    for point in points:
        point["theory_bytes"] = 2 * point["useful_bytes"]
    assert grown(points)["verdict"] == "wrong"


def test_the_exponent_of_a_single_length_is_unknown() -> None:
    found = power_law([512, 512, 512], [1.0, 1.1, 1.2], [0.01] * 3)
    assert math.isnan(found.value)
    assert found.low is found.high is None


def test_a_cache_that_ends_empty_has_no_share_and_no_step() -> None:
    points = growth(lambda n: 4096 * n, lambda n: 4096 * (2 * n - 1))
    points[-1] |= {"allocated_bytes": 0}
    assert grown(points)["overshoot"] is None
    points[-1] |= {"useful_bytes": 0}
    assert grown(points)["step_tokens"] is None
