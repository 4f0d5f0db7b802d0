"""Laws of a CPU: what its kernels compute and read besides, and planted coefficients."""

import numpy as np
import pytest

from attnprof.laws.base import Floats, Hardware, Law, latency
from attnprof.laws.cpu import (
    CPU_DECODE,
    CPU_PREFILL,
    CPU_SCORES_PREFILL,
    computed_pairs,
    query_block,
)
from attnprof.laws.fitting import fit, with_intervals

TWO_CORES = Hardware(2e11, 5.5e10, 12e6, 2.0)
PLANTED = {
    "launch": 9e-6, "wake": 8e-6, "compute": 1.3, "score": 3e-10, "task": 2e-6, "dram": 1.5,
    "ragged": 0.25,
    "cache": 0.4,
}  # fmt: skip


def shapes(law: Law, seed: int = 0, num: int = 60) -> dict[str, Floats]:
    draw = np.random.default_rng(seed)
    kv_heads = draw.choice([1.0, 2.0, 8.0], num)
    lengths = 2.0 ** draw.integers(4, 12 if law.phase == "prefill" else 17, num)
    return {
        "batch": 2.0 ** draw.integers(0, 6, num),
        "q_len": lengths if law.phase == "prefill" else np.ones(num),
        "kv_len": lengths,
        "q_heads": kv_heads * draw.choice([1.0, 4.0], num),
        "kv_heads": kv_heads,
        "head_dim": draw.choice([64.0, 128.0], num),
        "window": np.zeros(num),
        "kv_size": np.full(num, 4.0),
    }


def one(**sizes: float) -> dict[str, Floats]:
    usual = {
        "batch": 1, "q_len": 1, "q_heads": 8, "kv_heads": 8, "head_dim": 64, "window": 0,
        "kv_size": 4, "kv_len": 1024,
    }  # fmt: skip
    return {name: np.array([float(value)]) for name, value in {**usual, **sizes}.items()}


def brute_force_pairs(queries: int) -> int:
    """Keys in whole blocks of 512 that each block of queries meets before its diagonal ends."""
    rows = int(query_block(np.array([float(queries)]))[0])
    total = 0
    for first in range(0, queries, rows):
        last = min(first + rows, queries)
        for key in range(0, last, 512):
            total += (last - first) * (min(key + 512, queries) - key)
    return total


@pytest.mark.parametrize("queries", [1, 16, 100, 200, 511, 512, 513, 700, 1024, 3000])
def test_a_causal_call_computes_whole_blocks_of_keys(queries: int) -> None:
    n = np.array([float(queries)])
    assert computed_pairs(n, n, n * (n + 1) / 2) == brute_force_pairs(queries)


def test_another_mask_computes_every_pair() -> None:
    n = np.array([2048.0])
    assert computed_pairs(n, n, n * 100) == 2048**2


@pytest.mark.parametrize("law", [CPU_PREFILL, CPU_SCORES_PREFILL, CPU_DECODE])
def test_planted_coefficients_come_back_within_their_intervals(law: Law) -> None:
    planted = np.array([PLANTED[name] for name in law.names])
    misses = total = 0
    for seed in range(12):
        asked = shapes(law, seed)
        noise = np.random.default_rng(seed).normal(0, 0.03, len(asked["batch"]))
        truth = latency(law, law.terms(asked, TWO_CORES), planted)
        fitted = with_intervals(
            fit(law, asked, truth * np.exp(noise), TWO_CORES), asked, truth * np.exp(noise)
        )
        assert fitted.low is not None
        assert fitted.high is not None
        misses += int(((planted < fitted.low) | (planted > fitted.high)).sum())
        total += len(planted)
        others = shapes(law, seed + 100)
        foretold = fitted.latency_s(others)
        expected = latency(law, law.terms(others, TWO_CORES), planted)
        assert np.median(np.abs(foretold / expected - 1)) < 0.03
    assert misses <= 0.05 * total


def test_query_heads_read_again_what_the_cache_does_not_hold() -> None:
    """Twice as long a context costs grouped heads more than twice once it leaves the cache."""
    dram = CPU_DECODE.names.index("dram")

    def from_dram(kv_len: int, q_heads: int) -> float:
        columns = one(kv_len=kv_len, q_heads=q_heads, kv_heads=1)
        return float(CPU_DECODE.terms(columns, TWO_CORES)[dram][0])

    assert from_dram(262_144, 8) == pytest.approx(8 * from_dram(262_144, 1), rel=0.02)
    assert from_dram(1024, 8) < 1e-3 * from_dram(262_144, 1)


def test_no_unit_is_woken_for_a_single_task() -> None:
    wake = CPU_DECODE.names.index("wake")
    single = CPU_DECODE.terms(one(q_heads=1, kv_heads=1, kv_len=64), TWO_CORES)
    several = CPU_DECODE.terms(one(q_heads=8, kv_heads=8, kv_len=64), TWO_CORES)
    assert (single[wake][0], several[wake][0]) == (0.0, 1.0)


def test_three_heads_on_two_units_take_as_long_as_four() -> None:
    compute = CPU_DECODE.names.index("compute")

    def compute_s(heads: int) -> float:
        terms = CPU_DECODE.terms(one(q_heads=heads, kv_heads=heads), TWO_CORES)
        return float(terms[compute][0])

    assert compute_s(3) == pytest.approx(compute_s(4))


def test_scores_that_are_kept_are_traffic() -> None:
    dram = CPU_PREFILL.names.index("dram")
    long = one(q_len=4096, kv_len=4096)
    kept = CPU_SCORES_PREFILL.terms(long, TWO_CORES)[dram][0]
    assert kept > 20 * CPU_PREFILL.terms(long, TWO_CORES)[dram][0]
