"""Two runs -> verdicts: of latency by tests, of bytes by counting, of the rest by name."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.verdicts.asking import compare_runs
from attnprof.verdicts.comparison import Comparison, MetricVerdict
from attnprof.verdicts.judging import Asked
from attnprof.verdicts.thresholds import Limit, Selector, Thresholds
from tests.verdicts.runs import IDS, failed, record, whole, write_run

Changes = Mapping[str, Any]


def compared(
    folder: Path, new: list[dict[str, Any]], base: list[dict[str, Any]] | None = None,
    asked: Asked | None = None, *, base_run: Changes = {}, new_run: Changes = {},  # noqa: B006
) -> Comparison:  # fmt: skip
    one = write_run(folder / "base", base or whole(), **base_run)
    other = write_run(folder / "new", new, **new_run)
    return compare_runs(one, other, asked or Asked())


def the(comparison: Comparison, place: int, metric: str = "latency") -> MetricVerdict:
    found = comparison.workloads[place].metric(metric)
    assert found is not None
    return found


def test_launches_of_the_same_code_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(seed=1))
    assert found.verdict == "same"
    assert found.exit_code == 0
    assert found.num_compared == found.num_expected == len(IDS)
    mean = found.geometric_mean
    assert mean.low is not None and mean.high is not None and mean.low < 1.0 < mean.high


def test_a_slower_workload_is_named_with_its_ratio_and_what_would_have_been_seen(
    tmp_path: Path,
) -> None:
    found = compared(tmp_path, whole(lambda place: {"factor": 1.2 if place == 3 else 1.0}, seed=1))
    assert found.verdict == "regressed"
    assert found.exit_code == 1
    assert [one.workload_id for one in found.failing] == [IDS[3]]
    latency = the(found, 3)
    assert latency.ratio.low is not None and latency.ratio.high is not None
    assert latency.ratio.low < 1.2 < latency.ratio.high
    assert latency.smallest_seen is not None and 0.02 < latency.smallest_seen < 0.2
    assert latency.num_launches == (5, 5)
    assert latency.clock == "cpu"
    assert all(the(found, place).smallest_seen is not None for place in range(len(IDS)))


def test_a_faster_workload_is_an_improvement_and_fails_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(lambda place: {"factor": 0.8 if place == 3 else 1.0}, seed=1))
    assert found.workloads[3].verdict == "improved"
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("change", "metric", "verdict"),
    [
        ({"peak_activation_bytes": int(1.03 * 2**16 * 512)}, "peak_memory", "regressed"),
        ({"peak_activation_bytes": int(0.97 * 2**16 * 512)}, "peak_memory", "improved"),
        ({"peak_activation_bytes": int(1.005 * 2**16 * 512)}, "peak_memory", "same"),
        ({"kv_bytes": 4096 * 512 + 1}, "kv_bytes", "regressed"),
        ({"kv_bytes": 4096 * 512 - 1}, "kv_bytes", "improved"),
        ({"kv_bytes": None}, "kv_bytes", "incomparable"),
        ({"memory_meter": "sampled"}, "peak_memory", "incomparable"),
    ],
)
def test_bytes_are_counted(tmp_path: Path, change: Changes, metric: str, verdict: str) -> None:
    found = compared(tmp_path, whole(lambda place: change if place == 0 else {}, seed=1))
    assert the(found, 0, metric).verdict == verdict
    assert found.workloads[0].verdict == verdict
    assert found.exit_code == {"regressed": 1, "incomparable": 3}.get(verdict, 0)


def test_three_percent_of_a_small_peak_is_seen_too(tmp_path: Path) -> None:
    base = whole(lambda _: {"peak_activation_bytes": 200_000})
    more = whole(lambda _: {"peak_activation_bytes": 206_000}, seed=1)
    assert the(compared(tmp_path, more, base), 0, "peak_memory").verdict == "regressed"
    tiny = whole(lambda _: {"peak_activation_bytes": 2048})
    more = whole(lambda _: {"peak_activation_bytes": 2110}, seed=1)
    assert the(compared(tmp_path, more, tiny), 0, "peak_memory").verdict == "regressed"


def test_one_launch_a_side_decides_nothing_of_latency(tmp_path: Path) -> None:
    slower = whole(lambda _: {"factor": 2.0, "num_launches": 1}, seed=1)
    found = compared(tmp_path, slower)
    assert the(found, 0).verdict == "inconclusive"
    assert the(found, 0).ratio.mid == pytest.approx(2.0, rel=0.1)
    assert the(found, 0).new == pytest.approx(2.0 * (the(found, 0).base or 0.0), rel=0.1)
    assert the(found, 0).num_launches == (5, 1)
    assert found.exit_code == 3
    assert compared(tmp_path, slower, asked=Asked(metrics=("kv_bytes",))).exit_code == 0


def test_what_stopped_working_fails_and_says_how(tmp_path: Path) -> None:
    new = whole(seed=1)
    new[2] = failed(2, "crashed", "killed by signal 11")
    found = compared(tmp_path, new)
    assert (found.workloads[2].verdict, found.workloads[2].reason) == (
        "failed", "crashed: killed by signal 11",
    )  # fmt: skip
    assert found.exit_code == 1


def test_what_is_not_there_is_no_success(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(seed=1)[:-1])
    assert found.workloads[-1].verdict == "missing"
    assert found.exit_code == 3
    assert found.num_compared == len(IDS) - 1
    assert (
        compared(tmp_path, whole(seed=1)[:-1], asked=Asked(fail_on=("regressed",))).exit_code == 0
    )


def test_a_base_that_lacks_what_it_lists_is_no_success(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(seed=1), whole()[:-1], base_run={"listed": IDS})
    assert found.workloads[-1].verdict == "incomparable"
    assert found.exit_code == 3


def test_a_workload_that_only_the_new_run_has_is_new_and_fails_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(seed=1), whole()[:-1])
    assert found.workloads[-1].verdict == "new"
    assert found.exit_code == 0


def test_what_runs_on_neither_side_is_the_same(tmp_path: Path) -> None:
    base, new = whole(), whole(seed=1)
    base[0] = new[0] = failed(0, "unsupported", "no such kernel")
    found = compared(tmp_path, new, base)
    assert (found.workloads[0].verdict, found.workloads[0].metrics) == ("same", ())
    assert found.exit_code == 0


def test_wall_time_counts_where_cpu_time_is_no_cost_and_not_where_others_ran(
    tmp_path: Path,
) -> None:
    active: Changes = {"threads": 2, "environment": {"OMP_WAIT_POLICY": "active"}}
    slower = whole(lambda _: {"factor": 1.5}, seed=1)
    found = compared(tmp_path, slower, base_run=active, new_run=active)
    assert (the(found, 0).clock, the(found, 0).verdict) == ("wall", "regressed")
    crowded = whole(lambda _: {"factor": 1.5, "flags": ["contended"]}, seed=1)
    found = compared(tmp_path, crowded, base_run=active, new_run=active)
    assert the(found, 0).verdict == "inconclusive"
    assert "other work" in (the(found, 0).reason or "")
    assert found.exit_code == 3


def test_on_another_machine_by_its_rulers_wall_time_decides_nothing(tmp_path: Path) -> None:
    active: Changes = {"threads": 2, "environment": {"OMP_WAIT_POLICY": "active"}}
    rulers = [0.001 * (1 + 0.001 * number) for number in range(8)]
    slow = [1.2 * value for value in rulers]
    slower = whole(lambda _: {"factor": 1.2}, seed=1)
    found = compared(
        tmp_path, slower, base_run={**active, "rulers": rulers},
        new_run={**active, "rulers": slow},
    )  # fmt: skip
    assert the(found, 0).verdict == "inconclusive"
    assert any("a fixed matmul took 1.20×" in note for note in found.notes)
    on_cpu = compared(tmp_path, slower, base_run={"rulers": rulers}, new_run={"rulers": slow})
    assert the(on_cpu, 0).verdict == "regressed"
    assert any("a fixed matmul took 1.20×" in note for note in on_cpu.notes)


def test_other_ways_of_timing_and_other_models_are_not_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(lambda _: {"mode": "graph"}, seed=1))
    assert the(found, 0).verdict == "incomparable"
    found = compared(tmp_path, whole(lambda _: {"model_digest": "other"}, seed=1))
    assert found.workloads[0].verdict == "incomparable"
    assert found.exit_code == 3


@pytest.mark.parametrize(
    ("most", "verdict", "code"),
    [
        ({"peak_memory": 2.0**24}, "regressed", 1),
        ({"peak_memory": 2.0**40}, "same", 0),
        ({"total_memory": 2.0**24}, "regressed", 1),
        ({"latency": 1e-9}, "regressed", 1),
        ({"ttft": 0.2}, "incomparable", 3),
    ],
)
def test_an_absolute_limit_holds_of_the_new_side_alone(
    tmp_path: Path, most: dict[str, float], verdict: str, code: int
) -> None:
    limited = Thresholds(limits=(Limit(Selector(IDS[0]), most, None),))
    found = compared(tmp_path, whole(seed=1), asked=Asked(thresholds=limited))
    [metric] = most
    assert the(found, 0, metric).limit == most[metric]
    assert found.workloads[0].verdict == verdict
    assert found.exit_code == code


def test_a_limit_is_held_against_the_figure_that_is_shown(tmp_path: Path) -> None:
    new = whole(lambda _: {"median_s": 1e3}, seed=1)  # of another clock, or wrong
    limited = Thresholds(limits=(Limit(Selector(IDS[0]), {"latency": 1.0}, None),))
    found = compared(tmp_path, new, asked=Asked(thresholds=limited))
    assert (the(found, 0).verdict, the(found, 0).limit) == ("same", 1.0)
    alone = compared(tmp_path, new, whole()[1:], asked=Asked(thresholds=limited))
    (limit,) = (one for one in alone.workloads if one.workload_id == IDS[0])
    assert limit.metrics[0].new == pytest.approx(the(found, 0).new)


@pytest.mark.parametrize(("most_s", "verdict"), [(0.1, "regressed"), (0.3, "same")])
def test_a_limit_of_the_first_token_is_held_against_the_time_of_the_prompt(
    tmp_path: Path, most_s: float, verdict: str
) -> None:
    growth = [
        {"kv_len": 256, "wall_s": 0.9, "cpu_s": 0.2}, {"kv_len": 257, "wall_s": 0.01, "cpu_s": 0.01}
    ]  # fmt: skip
    new = whole(lambda _: {"phase": "generate", "start_len": 256, "growth": growth}, seed=1)
    limited = Thresholds(limits=(Limit(Selector(IDS[0]), {"ttft": most_s}, None),))
    found = compared(tmp_path, new, asked=Asked(thresholds=limited))
    assert (the(found, 0, "ttft").verdict, the(found, 0, "ttft").new) == (verdict, 0.2)


def test_a_limit_holds_of_a_new_workload_too(tmp_path: Path) -> None:
    limited = Thresholds(limits=(Limit(Selector(IDS[-1]), {"peak_memory": 1.0}, None),))
    found = compared(tmp_path, whole(seed=1), whole()[:-1], asked=Asked(thresholds=limited))
    assert found.workloads[-1].verdict == "regressed"
    assert found.exit_code == 1


def test_other_conditions_are_refused_by_name_and_allowed_by_name(tmp_path: Path) -> None:
    other: Changes = {"torch": "2.12.0"}
    with pytest.raises(CannotMeasureError, match=r"torch: 2\.13\.0\+cpu, 2\.12\.0"):
        compared(tmp_path, whole(seed=1), new_run=other)
    found = compared(
        tmp_path, whole(seed=1), asked=Asked(allow_different=("torch",)), new_run=other
    )
    assert [(one.key, one.weight) for one in found.differences] == [("torch", "subject")]


def test_nothing_in_common_and_nothing_that_ran_are_errors(tmp_path: Path) -> None:
    crashed = [failed(place, "crashed", "no torch") for place in range(len(IDS))]
    with pytest.raises(UsageError, match="no workload that is ok"):
        compared(tmp_path, whole(), crashed)
    with pytest.raises(CannotMeasureError, match="no torch"):
        compared(tmp_path, crashed)
    with pytest.raises(UsageError, match="no workload in common"):
        compared(tmp_path, whole()[4:], whole()[:4])


def test_an_unfinished_run_and_one_run_twice_are_told(tmp_path: Path) -> None:
    found = compared(tmp_path, whole(seed=1), new_run={"finished": False})
    assert any("is not finished" in note for note in found.notes)
    base, copied = tmp_path / "base", shutil.copytree(tmp_path / "base", tmp_path / "copied")
    for again in (base, base / "run.json", tmp_path / "new" / ".." / "base", copied):
        (note,) = compare_runs(base, again, Asked()).notes
        assert "both sides are the same run" in note
    assert not any("same run" in note for note in compared(tmp_path, whole(seed=1)).notes)


def test_few_launches_are_taken_as_advice(tmp_path: Path) -> None:
    few = whole(lambda _: {"num_launches": 3})
    found = compared(tmp_path, whole(lambda _: {"num_launches": 3}, seed=1), few)
    assert any("3 launches a side" in note for note in found.notes)
    assert not any("launches a side" in note for note in compared(tmp_path, whole(seed=1)).notes)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"metrics": ("speed",)}, "no metric is called 'speed'"),
        ({"metrics": ()}, "no metric is compared"),
        ({"fail_on": ("slower",)}, "no run fails on 'slower'"),
        ({"fail_on": ("same",)}, "no run fails on 'same'"),
        ({"fail_on": ()}, "no verdict fails"),
    ],
)
def test_questions_without_sense_are_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Asked(**asked)


def test_a_record_of_zero_seconds_is_no_latency(tmp_path: Path) -> None:
    none = [0.0] * len(record()["samples_s"])
    new = whole(lambda _: {"samples_s": none, "samples_cpu_s": none}, seed=1)
    assert the(compared(tmp_path, new), 0).verdict == "incomparable"
