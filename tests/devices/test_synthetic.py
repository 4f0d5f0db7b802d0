import math
import statistics
from dataclasses import replace

import pytest

from attnprof.devices import open_device
from attnprof.devices.synthetic import Law, law_s, open_synthetic, parse_law
from attnprof.errors import OutOfMemoryError, UnsupportedError, UsageError
from attnprof.theory.flops import attention_flops
from attnprof.theory.traffic import attention_bytes
from attnprof.workload import Workload

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
    with pytest.raises(UsageError, match="out of bounds"):
        parse_law(f"synthetic?{setting}")


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="'hang' is given twice"):
        parse_law("synthetic?hang=a*&hang=b*")


@pytest.mark.parametrize("name", ["cpu:1", "cpu?noise=1", "auto:0", "synthetic:3", "mps?x"])
def test_what_a_device_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="takes no"):
        open_device(name)
