"""Laws: derivatives, limits, and planted coefficients that come back."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.laws.base import Floats, Hardware, Law, latency, log_jacobian
from attnprof.laws.fitting import coordinates, fit, spread, with_intervals
from attnprof.laws.known import LAWS
from attnprof.laws.residual import LocalResidual

H100 = Hardware(989e12, 3.35e12, 50e6, 132, 450e9)
NAMES = sorted(LAWS)
CACHED = (
    ("dram", "cache"), ("few", "few_cache"), ("many", "many_cache"), ("rows", "rows_cache"),
)  # fmt: skip


def shapes_of(law: Law, rng: np.random.Generator, num: int) -> dict[str, Floats]:
    """Shapes as a sweep for fit has them: every regime of the law is there."""

    def powers(low: int, high: int) -> Floats:
        return np.asarray(2.0 ** rng.integers(low, high + 1, num), dtype=float)

    if law.name == "gemm":
        sizes = np.where(rng.random(num) < 0.5, 1.0, 2.0)
        return {"m": powers(0, 15), "n": powers(8, 15), "k": powers(8, 15), "size": sizes}
    if law.name == "all-reduce":
        return {"ranks": np.full(num, 8.0), "bytes": powers(8, 30)}
    if law.phase == "step":
        return step_shapes(powers)
    kv_heads = powers(0, 3)
    shapes = {
        "batch": powers(0, 8), "q_heads": kv_heads * powers(1, 4), "kv_heads": kv_heads,
        "head_dim": np.full(num, 128.0), "window": np.zeros(num), "kv_size": np.full(num, 2.0),
        "kv_len": powers(4, 14),
    }  # fmt: skip
    shapes["q_len"] = shapes["kv_len"] if law.name == "prefill" else np.ones(num)
    return shapes


def step_shapes(powers: Callable[[int, int], Floats]) -> dict[str, Floats]:
    """Layers with one product of weights each, few rows or many."""
    layers, tokens, weights = powers(0, 5), powers(0, 12), powers(14, 28)
    has_few = tokens < 4
    kv_bytes = powers(10, 30)
    return {
        "batch": np.ones_like(tokens), "num_tokens": tokens, "num_layers": layers,
        "num_kernels": 4 * layers, "num_shared": np.where(tokens > 1, 4 * layers, 0.0),
        "flops": tokens * weights / 2 * layers,
        "weight_bytes": weights * layers,
        "few_rows_bytes": np.where(has_few, weights * layers, 0.0),
        "few_rows_reads_bytes": np.where(has_few, weights * layers * tokens, 0.0),
        "many_rows_bytes": np.where(has_few, 0.0, weights * layers),
        "row_products_bytes": np.zeros_like(tokens),
        "largest_bytes": np.where(has_few, 0.0, weights),
        "rows_bytes": tokens * powers(10, 14) * layers, "kv_bytes": kv_bytes,
        "copied_bytes": np.where(powers(0, 1) > 1, 2 * kv_bytes, 0.0),
        "attention_s": 2.0 ** -powers(2, 4) * layers, "bytes": weights * layers,
    }  # fmt: skip


_DOUBLED_WITH_LAYERS = (
    "num_layers", "num_kernels", "num_shared", "flops", "weight_bytes", "few_rows_bytes",
    "few_rows_reads_bytes", "row_products_bytes", "many_rows_bytes", "rows_bytes", "kv_bytes",
    "copied_bytes", "attention_s", "bytes",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_jacobian_is_what_finite_differences_give(name: str, seed: int) -> None:
    law = LAWS[name]
    rng = np.random.default_rng(seed)
    terms = law.terms(shapes_of(law, rng, 20), H100)
    logs = rng.normal(np.log(law.medians), law.log_sds)
    slopes = log_jacobian(law, terms, np.exp(logs))
    for i in range(len(logs)):
        step = np.zeros_like(logs)
        step[i] = 1e-5
        up, down = (latency(law, terms, np.exp(logs + sign * step)) for sign in (1, -1))
        assert np.allclose((np.log(up) - np.log(down)) / 2e-5, slopes[i], atol=1e-6)
    assert np.allclose(slopes.sum(axis=0), 1.0)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_latency_is_positive_and_grows_with_every_size(name: str, seed: int) -> None:
    law = LAWS[name]
    rng = np.random.default_rng(seed)
    shapes = shapes_of(law, rng, 30)
    coefficients = np.exp(rng.normal(np.log(law.medians), law.log_sds))
    # From the cache a byte may cost more than from memory only where a fit says so, against sense.
    for dram, cache in CACHED:
        if cache in law.names:
            places = law.names.index(dram), law.names.index(cache)
            coefficients[places[1]] = min(coefficients[list(places)])
    before = latency(law, law.terms(shapes, H100), coefficients)
    assert (before > 0).all()
    for axis in law.axes:
        if axis == "q_heads":
            larger = {**shapes, axis: shapes[axis] * 2}
        elif axis == "kv_heads":
            larger = {**shapes, axis: shapes[axis] * 2, "q_heads": shapes["q_heads"] * 2}
        elif axis == "num_layers":
            larger = {**shapes, **{one: shapes[one] * 2 for one in _DOUBLED_WITH_LAYERS}}
        elif axis == "q_len":
            larger = {**shapes, axis: shapes[axis] * 2, "kv_len": shapes["kv_len"] * 2}
        else:
            larger = {**shapes, axis: shapes[axis] * 2}
        after = latency(law, law.terms(larger, H100), coefficients)
        grew = after >= before * (1 - 1e-9)
        if name == "cpu-decode" and axis != "kv_len":
            # With as many heads as cores keys are no longer split, and there are fewer tasks.
            grew |= shapes["batch"] * shapes["q_heads"] < H100.num_units
        assert grew.all(), axis


@pytest.mark.parametrize("name", NAMES)
def test_planted_coefficients_come_back_within_their_intervals(name: str) -> None:
    law = LAWS[name]
    inside = asked = 0
    for trial in range(16):
        rng = np.random.default_rng(1000 + trial)
        shapes = shapes_of(law, rng, 60)
        planted = np.exp(rng.normal(np.log(law.medians), law.log_sds))
        terms = law.terms(shapes, H100)
        measured = latency(law, terms, planted) * np.exp(rng.normal(0, 0.05, 60))
        found = with_intervals(fit(law, shapes, measured, H100), shapes, measured)
        assert found.low is not None
        assert found.high is not None
        inside += int(((found.low <= planted) & (planted <= found.high)).sum())
        asked += len(planted)
    assert inside / asked >= 0.95


@pytest.mark.parametrize("name", NAMES)
def test_a_spike_moves_a_law_little(name: str) -> None:
    law = LAWS[name]
    rng = np.random.default_rng(5)
    shapes = shapes_of(law, rng, 60)
    clean = latency(law, law.terms(shapes, H100), law.medians)
    spiked = clean.copy()
    spiked[::20] *= 10
    found = fit(law, shapes, spiked, H100).latency_s(shapes)
    assert np.median(np.abs(found / clean - 1)) < 0.02


def test_a_coefficient_that_no_point_shows_is_said_not_to_be_seen() -> None:
    law = LAWS["prefill"]
    shapes = {name: column[:24] for name, column in shapes_of(
        law, np.random.default_rng(0), 24).items()}  # fmt: skip
    shapes["q_len"] = shapes["kv_len"] = np.full(24, 16.0)
    shapes["batch"] = np.ones(24)
    measured = latency(law, law.terms(shapes, H100), law.medians)
    found = fit(law, shapes, measured, H100)
    seen = dict(zip(law.names, found.is_seen, strict=True))
    assert seen["launch"]
    assert not seen["compute"]
    assert not seen["dram"]


def test_without_points_a_law_is_what_was_expected_before() -> None:
    law = LAWS["decode"]
    nothing = {name: column[:0] for name, column in shapes_of(
        law, np.random.default_rng(0), 1).items()}  # fmt: skip
    found = fit(law, nothing, np.zeros(0), H100)
    assert np.allclose(found.coefficients, law.medians)


def test_spread_points_lie_in_every_corner_and_in_the_middle() -> None:
    grid = np.array([[x, y] for x in range(11) for y in range(11)], dtype=float)
    chosen = grid[spread(grid, 40)]
    for corner in ([0, 0], [0, 10], [10, 0], [10, 10]):
        assert (chosen == corner).all(axis=1).any()
    few = grid[spread(grid, 9)]
    assert len(np.unique(few, axis=0)) == 9
    assert ((few >= 1) & (few <= 9)).all(), "each stands for what is around it"


def test_points_that_repeat_are_spread_once_each() -> None:
    twice = np.array([[0.0, 1.0], [4.0, 1.0]] * 50)
    assert np.array_equal(spread(twice, 12), [0, 1])


def test_a_residual_is_felt_nearby_and_gone_far_away() -> None:
    known = LocalResidual(np.zeros((1, 2)), np.array([0.3]))
    here, two, far = known.at(np.array([[0.0, 0.0], [2.0, 0.0], [20.0, 0.0]]))
    assert here == pytest.approx(0.3, rel=0.03)
    assert 0.05 < two < 0.2
    assert far == pytest.approx(0.0, abs=1e-9)


def test_many_measured_shapes_pull_towards_what_they_show() -> None:
    law = replace(LAWS["all-reduce"])
    rng = np.random.default_rng(2)
    shapes = shapes_of(law, rng, 200)
    planted = law.medians * np.array([3.0, 0.2, 2.0])
    measured = latency(law, law.terms(shapes, H100), planted)
    found = fit(law, shapes, measured, H100)
    assert np.allclose(found.latency_s(shapes), measured, rtol=0.05)
    assert coordinates(law, shapes).shape == (200, 1)
