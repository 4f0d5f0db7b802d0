import itertools
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from attnprof.combinations import problem
from attnprof.devices import open_device
from attnprof.devices.synthetic import Law, law_s, open_synthetic, parse_law
from attnprof.errors import OutOfMemoryError, UnsupportedError, UsageError
from attnprof.theory.flops import attention_flops
from attnprof.theory.summary import theory_kv_bytes, theory_weight_bytes
from attnprof.theory.traffic import attention_bytes
from attnprof.workload import GROWING, KV_CACHES, Workload, checked

PREFILL = Workload(backend="flash", q_len=4096, kv_len=4096, num_layers=2)
GROWTH = Workload(
    backend="flash", phase="kv-growth", q_len=1, kv_len=64, start_len=1, kv_cache="contiguous"
)


def test_time_follows_the_law() -> None:
    device = open_synthetic("synthetic?noise=0&t0=1ms&flops=1e12&compute_efficiency=0.25")
    samples = device.build(PREFILL, seed=1).sample(5, 1e9)
    expected = (
        1e-3
        + 2 * attention_flops(PREFILL.shape, PREFILL.mask) / 0.25e12
        + attention_bytes(PREFILL) / 0.8e11
    )
    assert samples.wall_s == pytest.approx((expected,) * 5)


def test_noise_leaves_the_median_at_the_law() -> None:
    device = open_synthetic("synthetic?noise=0.1&spikes=0.05")
    samples = device.build(PREFILL, seed=1).sample(4001, 1e9)
    assert statistics.median(samples.wall_s) == pytest.approx(law_s(device.law, PREFILL), rel=0.02)
    assert max(samples.wall_s) > 2 * statistics.median(samples.wall_s)


def test_the_same_seed_gives_the_same_samples_and_another_does_not() -> None:
    def samples(spec: str, seed: int) -> tuple[float, ...]:
        return open_synthetic(spec).build(PREFILL, seed).sample(5, 1e9).wall_s

    assert samples("synthetic", 1) == samples("synthetic", 1)
    assert samples("synthetic", 1) != samples("synthetic", 2)
    assert samples("synthetic", 1) != samples("synthetic?seed=1", 1)


def test_slow_names_workloads_and_a_factor() -> None:
    law = parse_law("synthetic?slow=prefill*:1.1,decode*:2")
    assert law_s(law, PREFILL) == pytest.approx(1.1 * law_s(Law(), PREFILL))
    assert law_s(law, GROWTH) == law_s(Law(), GROWTH)


def test_drift_makes_later_calls_and_rulers_slower() -> None:
    device = open_synthetic("synthetic?noise=0&drift=0.01")
    before = device.rulers()["copy_s"]
    first, last = device.build(PREFILL, seed=1).sample(100, 1e9).wall_s[::99]
    assert last == pytest.approx(first * 1.99)
    assert device.rulers()["copy_s"] == pytest.approx(2 * before)


def test_contended_samples_wait_and_their_cpu_time_does_not() -> None:
    device = open_synthetic("synthetic?noise=0&contended=1")
    samples = device.build(PREFILL, seed=1).sample(4, 1e9)
    assert samples.wall_s == tuple(2 * cpu_s for cpu_s in samples.cpu_s)
    assert samples.run_delay_s == samples.cpu_s


def test_throttled_workloads_say_so() -> None:
    device = open_synthetic("synthetic?throttle=prefill*")
    assert device.build(PREFILL, seed=1).sample(1, 1.0).flags == ("throttled",)


def test_what_exceeds_the_memory_is_refused_with_its_bytes() -> None:
    device = open_synthetic("synthetic?memory=1MiB")
    with pytest.raises(OutOfMemoryError) as caught:
        device.build(PREFILL, seed=1)
    assert caught.value.requested_bytes is not None
    assert caught.value.requested_bytes > 2**20


def test_quadratic_backends_weigh_their_scores() -> None:
    device = open_synthetic("synthetic")

    def peak(backend: str, n: int) -> int:
        cell = device.build(replace(PREFILL, backend=backend, q_len=n, kv_len=n), seed=1)
        found = cell.weigh().peak_activation_bytes
        assert found is not None
        return found

    assert math.log2(peak("eager", 4096) / peak("eager", 2048)) == pytest.approx(2, abs=0.05)
    assert math.log2(peak("flash", 4096) / peak("flash", 2048)) == 1


@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
def test_a_growing_cache_is_weighed_at_every_length(kv_cache: str) -> None:
    cell = open_synthetic("synthetic?noise=0").build(replace(GROWTH, kv_cache=kv_cache), seed=1)
    points = cell.grow(1e9)
    token_bytes = 2 * 8 * 64 * 4
    assert [point.kv_len for point in points] == list(range(2, 65))
    assert [point.useful_bytes for point in points] == [n * token_bytes for n in range(2, 65)]
    tenth = points[8]
    slots = {"contiguous": 10, "static": 64, "paged": 16}[kv_cache]
    assert tenth.allocated_bytes == slots * token_bytes
    old_v_bytes = {"contiguous": 9 * token_bytes // 2, "static": 0, "paged": 0}[kv_cache]
    assert tenth.peak_bytes == slots * token_bytes + old_v_bytes


def test_failures_that_raise_are_those_of_a_device() -> None:
    device = open_synthetic(
        "synthetic?unsupported=*s4096*&oom=kv-growth*&wrong=*s512*&error=*s512*"
    )
    with pytest.raises(UnsupportedError):
        device.build(PREFILL, seed=1)
    with pytest.raises(OutOfMemoryError):
        device.build(GROWTH, seed=1)
    cell = device.build(replace(PREFILL, q_len=512, kv_len=512), seed=1)
    assert not cell.check().passed
    with pytest.raises(RuntimeError):
        cell.sample(1, 1.0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("synthetic?nose=1", "did you mean 'noise'?"),
        ("synthetic?noise=loud", "noise='loud' is not a number"),
        ("synthetic?noise", "'noise' has no value"),
        ("synthetic?noise=-1", "noise='-1' is out of bounds"),
        ("synthetic?memory=lots", "'lots' is not a size"),
        ("synthetic?slow=decode*", "names no factor"),
    ],
)
def test_a_law_that_cannot_be_read_says_what_is_wrong(spec: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_device(spec)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        "bandwidth=0", "flops=0", "compute_efficiency=0", "memory=0", "memory=1e40GiB", "slow=*:0",
        "slow=*:nan", "slow=*:-1", "slow=*:1e400", "noise=1e9", "drift=1e308", "spikes=7",
        "t0=1e300s", "bandwidth=1e-300", "flops=inf",
    ],
)  # fmt: skip
def test_a_law_under_which_no_time_passes_or_none_ends_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match=r"out of bounds|is not a size"):
        parse_law(f"synthetic?{setting}")


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="'hang' is given twice"):
        parse_law("synthetic?hang=a*&hang=b*")


@pytest.mark.parametrize("name", ["cpu:1", "cpu?noise=1", "auto:0", "synthetic:3", "mps?x"])
def test_what_a_device_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="takes no"):
        open_device(name)


SHAPE = Workload(
    backend="eager", q_len=16, kv_len=16, num_q_heads=4, num_kv_heads=2, head_dim=8, num_layers=2
)
SCOPES: list[dict[str, Any]] = [
    {},
    {"scope": "layer"},
    {"scope": "block", "ffn": "gated", "ffn_dim": 32},
    {"scope": "block", "ffn": "moe", "ffn_dim": 32, "num_experts": 4, "num_active_experts": 2},
    {"scope": "model", "model": "llama-3.2-1b"},
    {"scope": "model", "model": "gemma-3-270m"},
    {"scope": "model", "model": "deepseek-v3"},
    {"scope": "model", "model": "bart-base"},
]
PHASE_SIZES: dict[str, dict[str, Any]] = {
    "prefill": {},
    "train": {},
    "chunked-prefill": {"q_len": 4},
    "decode": {"q_len": 1},
    "verify": {"q_len": 3},
    "mixed": {"q_len": 1, "prefill_len": 8},
    "kv-growth": {"q_len": 1, "start_len": 3},
    "generate": {"q_len": 1, "start_len": 3},
}
SIGHTS: list[dict[str, Any]] = [
    {},
    {"variant": "full"},
    {"variant": "sliding", "window_len": 5},
    {"variant": "chunked", "window_len": 5},
    {"variant": "prefix-lm", "prefix_len": 5},
    {"variant": "packed", "document_len": 4},
    {"variant": "sink", "window_len": 5, "sink_len": 2},
    {"variant": "full", "min_len": 4, "batch_size": 3},
    {"attention": "cross", "variant": "full", "kv_cache": "cross"},
]
HEADS: list[dict[str, Any]] = [
    {},
    {"v_head_dim": 4},
    {"softcap": 20.0, "sink_logits": True},
    {"num_kv_heads": 4, "mla": "expanded", "kv_lora_rank": 6, "rope_head_dim": 4},
    {"num_kv_heads": 4, "mla": "absorbed", "kv_lora_rank": 6, "rope_head_dim": 4},
]
MIXED_IN: list[dict[str, Any]] = [
    {},
    {"mixer": "lstm", "scope": "layer"},
    {"mixer": "linear", "scope": "layer"},
    {"position": "rope"},
    {"position": "alibi"},
    {"position": "learned"},
    {"kv_dtype": "int8"},
    {"kv_dtype": "int4"},
    {"dtype": "bfloat16"},
    {"dtype": "tf32"},
    {"weight_dtype": "int8"},
    {"checkpointing": True},
    {"block_tokens": 3},
]


@st.composite
def sensible_workloads(draw: st.DrawFn) -> Workload:
    phase = draw(st.sampled_from(sorted(PHASE_SIZES)))
    cached = {"kv_cache": draw(st.sampled_from(KV_CACHES))}
    changes: dict[str, Any] = {"phase": phase, **PHASE_SIZES[phase], **cached}
    for choices in (SCOPES, SIGHTS, HEADS, MIXED_IN):
        changes |= draw(st.sampled_from(choices))
    workload = replace(SHAPE, **changes)
    assume(problem(workload) is None)
    return checked(workload)


@given(workload=sensible_workloads())
@settings(
    max_examples=150, deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
def test_whatever_makes_sense_runs_by_the_law(workload: Workload) -> None:
    cell = open_synthetic("synthetic?noise=0").build(workload, seed=1)
    check = cell.check()
    assert check.passed and check.rms_error is not None and check.rms_error > 0
    memory = cell.weigh()
    assert memory.kv_bytes >= theory_kv_bytes(workload) or workload.phase in GROWING
    assert memory.weight_bytes == theory_weight_bytes(workload)
    assert memory.peak_activation_bytes is not None and memory.peak_activation_bytes > 0
    if workload.phase in GROWING:
        points = cell.grow(1e9)
        first = 3 if workload.phase == "generate" else 4
        assert [point.kv_len for point in points] == list(range(first, 17))
        for before, after in itertools.pairwise(points):
            assert before.useful_bytes <= after.useful_bytes <= after.allocated_bytes
        totals = [point.total_s for point in points]
        assert totals[-1] == pytest.approx(sum(point.wall_s for point in points))
        assert law_s(Law(), workload) > 0
    else:
        assert cell.sample(3, 1e9).wall_s == pytest.approx((law_s(Law(), workload),) * 3)
    parts = cell.parts(1.0)
    assert bool(parts) == (workload.scope != "op" and workload.mixer == "attention")
    if parts:
        named = {part.name: part.wall_s for part in parts}
        assert len(named) == len(parts)
        assert {"attention", "projection"} <= set(named)
        assert min(named.values()) > 0


def test_what_a_cache_buys_grows_with_the_tokens() -> None:
    base = replace(SHAPE, phase="generate", q_len=1, start_len=64, num_q_heads=64, num_layers=8)
    bought = []
    for kv_len in (128, 1024):
        totals = []
        for kv_cache in ("none", "static"):
            workload = replace(base, kv_len=kv_len, kv_cache=kv_cache)
            (*_, last) = open_synthetic("synthetic?noise=0").build(workload, seed=1).grow(1e9)
            assert last.total_s is not None
            totals.append(last.total_s)
        bought.append(totals[0] / totals[1])
    assert 1 < bought[0] < bought[1]
