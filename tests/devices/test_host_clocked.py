"""MPS and XPU by their procedure: the queue is emptied on both sides of many calls."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.devices.host_clocked import (  # noqa: E402
    MIN_CALLS,
    HostClockedDevice,
    Runtime,
    mean_s,
)
from attnprof.workload import Workload  # noqa: E402

PREFILL = Workload(backend="math", q_len=16, kv_len=16)


class FakeRuntime:
    """A device on which torch's CPU computes, and which counts what is asked of it."""

    def __init__(self, *, has_peak: bool) -> None:
        self.events: list[str] = []
        self.runtime = Runtime(
            kind="fake",
            device=torch.device("cpu"),
            synchronize=lambda: self.events.append("synchronize"),
            allocated_bytes=lambda: 100,
            free_bytes=lambda: 2**30,
            facts=lambda: {"name": "fake"},
            reset_peak=(lambda: self.events.append("reset")) if has_peak else None,
            peak_bytes=(lambda: 700) if has_peak else None,
        )


def cell_of(fake: FakeRuntime, workload: Workload = PREFILL) -> Any:
    return HostClockedDevice(fake.runtime).build(workload, seed=1)


def test_the_queue_is_emptied_before_and_after_the_calls() -> None:
    fake = FakeRuntime(has_peak=False)
    mean_s(fake.runtime, lambda: fake.events.append("call"), 3)
    assert fake.events == ["synchronize", "call", "call", "call", "synchronize"]


def test_a_sample_is_at_least_twenty_calls() -> None:
    cell = cell_of(FakeRuntime(has_peak=False))
    assert cell.check().passed
    assert cell.warm_up(limit_s=1).wall_s
    samples = cell.sample(3, limit_s=10)
    assert len(samples.wall_s) == 3
    assert samples.inner >= MIN_CALLS
    assert samples.cpu_s == ()


def test_memory_is_the_allocators_peak_where_there_is_one() -> None:
    fake = FakeRuntime(has_peak=True)
    memory = cell_of(fake).weigh()
    assert (memory.peak_activation_bytes, memory.meter) == (600, "allocator")
    assert fake.events[-2:] == ["reset", "synchronize"]


def test_memory_that_is_only_sampled_is_labelled_so() -> None:
    memory = cell_of(FakeRuntime(has_peak=False)).weigh()
    assert (memory.peak_activation_bytes, memory.meter) == (0, "sampled")


def test_a_growing_cache_is_run_on_it() -> None:
    workload = Workload(
        backend="math", phase="kv-growth", q_len=1, kv_len=12, start_len=4, kv_cache="static"
    )
    points = cell_of(FakeRuntime(has_peak=False), workload).grow(limit_s=10)
    assert [point.kv_len for point in points] == list(range(5, 13))
    assert points[0].cpu_s is None
