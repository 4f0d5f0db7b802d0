"""The sweeps that ship: all of each makes sense, and is small enough for two cores."""

from pathlib import Path
from typing import Any

import pytest

from attnprof.backends.support import BACKENDS, unsupported_reason
from attnprof.combinations import problem
from attnprof.grid import USUAL, USUAL_OF_ACCELERATORS, Grid, expand, sweep_groups
from attnprof.profiles import list_profiles, load_profile
from attnprof.records import read_run
from attnprof.workload import Workload

TOPICS = ("positions", "caches", "models", "mla", "recurrent", "training")
MOST_WORKLOADS = 36  # of a topic: at about 4 s each they take two to three minutes
CONTRASTS: dict[str, tuple[str, set[Any]]] = {
    "positions": ("position", {"none", "rope", "alibi", "t5", "shaw", "sinusoidal", "learned"}),
    "caches": ("kv_cache", {"none", "contiguous", "static", "paged", "rolling"}),
    "models": ("phase", {"prefill", "decode", "verify", "mixed"}),
    "mla": ("mla", {"expanded", "absorbed"}),
    "recurrent": ("mixer", {"attention", "rnn", "lstm", "gru", "linear"}),
    "training": ("checkpointing", {True, False}),
}


def grid_of(name: str, usual: dict[str, str] | None = None) -> Grid:
    title, groups = sweep_groups(load_profile("sweeps", name), name)
    assert title == name
    return expand(title, groups, backends=tuple(BACKENDS), usual=usual)


@pytest.mark.parametrize("usual", [USUAL, USUAL_OF_ACCELERATORS], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("name", list_profiles("sweeps"))
def test_nothing_in_a_shipped_sweep_is_without_sense(name: str, usual: dict[str, str]) -> None:
    grid = grid_of(name, usual)
    assert not grid.skipped
    assert all(problem(workload) is None for workload in grid.workloads)
    again = [Workload.from_json(workload.to_json()) for workload in grid.workloads]
    assert again == list(grid.workloads)
    assert len({workload.workload_id for workload in again}) == len(again)


@pytest.mark.parametrize("name", TOPICS)
def test_a_sweep_of_a_topic_is_small_and_holds_what_it_compares(name: str) -> None:
    workloads = grid_of(name).workloads
    assert len(workloads) <= MOST_WORKLOADS
    axis, values = CONTRASTS[name]
    assert values <= {getattr(workload, axis) for workload in workloads}


def test_every_position_scheme_is_measured_against_none() -> None:
    workloads = grid_of("positions").workloads
    for workload in workloads:
        assert any(
            other.position == "none" and other.to_json() | {"position": ""}
            == workload.to_json() | {"position": ""}
            for other in workloads
        )  # fmt: skip


@pytest.mark.parametrize("name", TOPICS)
def test_every_workload_of_a_topic_runs_on_a_cpu(name: str) -> None:
    reasons = {workload.workload_id: unsupported_reason(workload, "cpu")
               for workload in grid_of(name).workloads}  # fmt: skip
    assert not {key: reason for key, reason in reasons.items() if reason is not None}


@pytest.mark.parametrize("name", [*TOPICS, "quick"])
def test_the_kept_run_of_a_preset_measured_all_of_it(name: str) -> None:
    kept = read_run(Path(__file__).parent.parent / "reports" / name)
    planned = {workload.workload_id for workload in grid_of(name).workloads}
    assert {record["workload_id"] for record in kept.records} == planned
    assert {record["status"] for record in kept.records} == {"ok"}
    assert all(record["check"]["passed"] for record in kept.records)
