"""Threads and allocator of a worker, from what a machine says of itself."""

from pathlib import Path

import pytest

from attnprof.devices.environment import (
    default_threads,
    logical_cores,
    physical_cores,
    quota_cores,
    recorded_environment,
    worker_environment,
)
from attnprof.errors import UsageError

HYPER_THREADED = """\
processor\t: 0
physical id\t: 0
core id\t\t: 0

processor\t: 1
physical id\t: 0
core id\t\t: 0

processor\t: 2
physical id\t: 1
core id\t\t: 0
"""


def test_waiting_is_passive_and_the_allocator_keeps_its_pages() -> None:
    variables = worker_environment(3)
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "3"
    assert int(variables["MALLOC_MMAP_THRESHOLD_"]) > 2**35


def test_the_default_allocator_is_left_alone() -> None:
    assert not any(name.startswith("MALLOC") for name in worker_environment(1, "default"))


def test_an_unknown_allocator_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'pinned'"):
        worker_environment(1, "pined")


def test_the_environment_is_recorded_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    recorded = recorded_environment()
    assert recorded["OMP_NUM_THREADS"] == "7"
    assert recorded["OMP_WAIT_POLICY"] is None


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(HYPER_THREADED)
    assert physical_cores(cpuinfo) == 2
    assert physical_cores(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("nonsense", None)],
)
def test_a_quota_is_rounded_down_to_whole_cores(
    tmp_path: Path, cpu_max: str, cores: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(cpu_max)
    assert quota_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("390000", 3)])
def test_the_first_version_of_control_groups_has_quotas_too(
    tmp_path: Path, quota: str, cores: int | None
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert quota_cores(tmp_path) == cores


def test_by_default_no_more_threads_than_can_run_at_once() -> None:
    assert 1 <= default_threads() <= logical_cores()
