import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.kinds import misfit
from attnprof.measure import (
    Plan,
    Pooled,
    Progress,
    Visit,
    figure,
    plan_for,
    pool,
    step_samples,
)
from attnprof.measured import GrowthPoint, Part, Samples
from attnprof.record_values import _KeptRecord
from attnprof.recording import Conditions, make_record, unmeasured_record
from attnprof.theory.summary import theory_kv_bytes
from attnprof.workload import Workload

WORKLOAD = Workload(backend="flash", q_len=1024, kv_len=1024)
PLAN = Plan()
CONDITIONS = Conditions(
    device_kind="cpu",
    threads=1,
    ceilings={
        "copy_bytes_per_s": 2e10,
        "copy_bytes_per_cpu_s": 1e10,
        "matmul": {"float32": {"flops_per_s": 1e11, "flops_per_cpu_s": 5e10}},
    },
)


def visit(round_: int, wall_s: list[float], **parts: object) -> Visit:
    samples = Samples(wall_s=tuple(wall_s), **parts)  # type: ignore[arg-type]
    return Visit(
        workload_id=WORKLOAD.workload_id,
        round=round_,
        launch=round_,
        launch_kind="fork",
        samples=samples,
    )


def run(progress: Progress, time_s: Callable[[], float]) -> list[int]:
    """Visit until settled, each visit at its limit; the quotas."""
    quotas = []
    while not progress.settled:
        following = progress.next_visit()
        walls: list[float] = []
        while len(walls) < following.num_samples and (not walls or sum(walls) < following.limit_s):
            walls.append(time_s())
        quotas.append(len(walls))
        progress.add(visit(len(quotas) - 1, walls))
    return quotas


def test_steady_times_settle_at_the_first_look_after_three_rounds() -> None:
    progress = Progress(WORKLOAD, PLAN)
    assert run(progress, lambda: 1e-3) == [4, 3, 3]
    assert not progress.noisy


def test_looks_come_at_one_and_a_half_times_the_last() -> None:
    draw = random.Random(1)
    progress = Progress(WORKLOAD, replace(PLAN, target=1e-6, max_samples=60))
    quotas = run(progress, lambda: 1e-3 * draw.lognormvariate(0, 0.1))
    totals = [sum(quotas[: i + 1]) for i in range(len(quotas))]
    assert totals == [4, 7, 10, 15, 23, 35, 53, 60]
    assert progress.noisy


def test_noise_that_no_budget_resolves_ends_noisy_with_its_interval() -> None:
    draw = random.Random(2)
    progress = Progress(WORKLOAD, PLAN)
    run(progress, lambda: 0.05 * draw.lognormvariate(0, 0.5))
    assert progress.noisy
    assert progress.figure.interval.half_width is not None
    assert progress.spent_s < 2 * PLAN.budget_s


@pytest.mark.parametrize(
    ("call_s", "num_samples"),
    [
        pytest.param(1.0, 6, id="six samples though the budget pays for two"),
        pytest.param(5.0, 4, id="fewer where six take over ten budgets"),
        pytest.param(300.0, 1, id="one at the least"),
    ],
)
def test_heavy_calls_get_few_samples(call_s: float, num_samples: int) -> None:
    progress = Progress(WORKLOAD, PLAN)
    assert sum(run(progress, lambda: call_s)) == num_samples


def test_a_heavy_call_that_is_noisy_at_six_samples_gets_two_more_looks() -> None:
    draw = random.Random(3)
    progress = Progress(WORKLOAD, PLAN)
    assert run(progress, lambda: draw.uniform(0.5, 1.5)) == [1, 3, 2, 4, 5]
    assert progress.noisy


def test_a_heavy_call_that_becomes_steady_is_not_noisy() -> None:
    draw = random.Random(3)
    times = iter([1.0, 1.3, 0.8, 1.2, 0.7, 1.0, *(draw.uniform(0.999, 1.001) for _ in range(9))])
    progress = Progress(WORKLOAD, PLAN)
    run(progress, lambda: next(times))
    assert progress.figure.interval.meets(PLAN.target)
    assert not progress.noisy


@given(st.floats(1e-6, 1e3), st.floats(0, 1), st.sampled_from(["cpu", "cuda"]), st.integers(0, 99))
def test_measuring_always_ends(call_s: float, sd: float, kind: str, seed: int) -> None:
    draw = random.Random(seed)
    plan = plan_for(kind)
    progress = Progress(WORKLOAD, plan)
    quotas = run(progress, lambda: call_s * draw.lognormvariate(0, sd))
    assert len(quotas) <= 40
    assert sum(quotas) <= plan.max_samples


def test_replaying_the_visits_leads_to_the_same_next_visit() -> None:
    draw = random.Random(4)
    first = Progress(WORKLOAD, replace(PLAN, target=1e-6))
    for round_ in range(5):
        quota = first.next_visit().num_samples
        first.add(visit(round_, [draw.uniform(1e-3, 2e-3) for _ in range(quota)]))
    again = Progress(WORKLOAD, replace(PLAN, target=1e-6))
    for one in first.visits:
        again.add(Visit.from_json(json.loads(json.dumps(one.to_json()))))
    assert again.visits == first.visits
    assert again.next_visit() == first.next_visit()
    assert again.figure == first.figure


def pooled(num_clean: int, num_waiting: int, *, clean_s: float = 1.0) -> Pooled:
    draw = random.Random(5)

    def noisy(value: float, sd: float) -> float:
        return value * draw.lognormvariate(0, sd)

    return Pooled(
        wall_s=tuple(
            [noisy(clean_s, 0.005) for _ in range(num_clean)]
            + [noisy(3.0, 0.3) for _ in range(num_waiting)]
        ),
        cpu_s=tuple(noisy(0.98, 0.01) for _ in range(num_clean + num_waiting)),
        clean=tuple([True] * num_clean + [False] * num_waiting),
    )


def test_clean_samples_carry_wall_time_and_the_others_do_not_count() -> None:
    found = figure(pooled(20, 10), 0.02)
    assert (found.clock, found.contended) == ("wall", False)
    assert found.interval.median_s == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("num_clean", "num_waiting"), [(4, 6), (0, 10), (8, 30)])
def test_too_few_clean_samples_leave_cpu_time_contended(num_clean: int, num_waiting: int) -> None:
    found = figure(pooled(num_clean, num_waiting), 0.02)
    assert (found.clock, found.contended) == ("cpu", True)
    assert found.interval.median_s == pytest.approx(0.98, rel=0.01)


def test_few_samples_that_are_all_clean_were_not_contended() -> None:
    found = figure(pooled(4, 0), 0.02)
    assert (found.clock, found.contended) == ("wall", False)


def test_cpu_time_stands_where_some_waited_and_wall_time_misses_the_target() -> None:
    few_clean = pooled(5, 5)  # five are too few for an interval
    assert figure(few_clean, 0.02).clock == "cpu"


def test_cpu_time_stands_where_the_kernel_counts_no_wait_but_wall_time_alone_is_unsteady() -> None:
    draw = random.Random(6)
    stolen = Pooled(
        wall_s=tuple(draw.uniform(1.0, 1.5) for _ in range(12)),
        cpu_s=tuple(draw.uniform(0.99, 1.0) for _ in range(12)),
        clean=(True,) * 12,
    )
    found = figure(stolen, 0.02)
    assert (found.clock, found.contended) == ("cpu", True)


def test_without_a_cpu_clock_wall_time_stands() -> None:
    found = figure(Pooled(wall_s=(1.0,) * 10), 0.02)
    assert (found.clock, found.contended) == ("wall", False)


def test_run_delay_of_all_threads_is_shared_out_among_them() -> None:
    one = visit(0, [1.0] * 6, cpu_s=(2.0,) * 6, run_delay_s=(0.08,) * 6)
    assert pool([one], threads=1).clean == (False,) * 6
    assert pool([one], threads=2).clean == (True,) * 6


def test_a_meter_that_one_visit_lacks_is_unknown_for_all() -> None:
    visits = [visit(0, [1.0], cpu_s=(1.0,)), visit(1, [1.0])]
    assert pool(visits, 1).cpu_s == ()
    assert pool(visits, 1).launch == (0, 1)


def settled(**parts: object) -> Progress:
    progress = Progress(WORKLOAD, PLAN, threads=1)
    for round_ in range(3):
        progress.add(visit(round_, [0.02] * 4, **parts))
    return progress


def test_rates_and_shares_are_on_the_clock_of_the_figure() -> None:
    calm = make_record(settled(cpu_s=(0.01,) * 4, run_delay_s=(0.0,) * 4), CONDITIONS)
    busy = make_record(settled(cpu_s=(0.01,) * 4, run_delay_s=(0.01,) * 4), CONDITIONS)
    assert (calm["clock"], calm["median_s"]) == ("wall", 0.02)
    assert (busy["clock"], busy["median_s"]) == ("cpu", 0.01)
    assert busy["flags"] == ["contended"]
    assert calm["achieved_flops_per_s"] == calm["flops"] / 0.02
    assert busy["achieved_flops_per_s"] == busy["flops"] / 0.01
    assert calm["mfu"] == pytest.approx(calm["flops"] / 0.02 / 1e11)
    assert busy["mfu"] == pytest.approx(busy["flops"] / 0.01 / 5e10)
    assert busy["mbu"] == pytest.approx(busy["bytes_moved"] / 0.01 / 1e10)
    for record in (calm, busy):
        assert (record["median_wall_s"], record["median_cpu_s"]) == (0.02, 0.01)


def test_shares_of_unknown_roofs_are_unknown() -> None:
    record = make_record(settled(), Conditions(device_kind="cpu", threads=1))
    assert (record["mfu"], record["mbu"], record["theory_s"]) == (None, None, None)
    assert record["median_cpu_s"] is None


def test_a_failed_workload_keeps_its_samples_and_has_no_figure() -> None:
    progress = Progress(WORKLOAD, PLAN, threads=1)
    progress.add(visit(0, [0.02] * 4))
    progress.add(
        Visit(
            workload_id=WORKLOAD.workload_id,
            round=1,
            launch=1,
            launch_kind="fork",
            status="timeout",
            reason="no answer",
            phase="measure",
        )
    )
    record = make_record(progress, CONDITIONS)
    assert (record["status"], record["phase_of_failure"]) == ("timeout", "measure")
    assert record["num_samples"] == 4
    assert record["median_s"] is None and record["mfu"] is None


def test_a_workload_that_was_not_run_has_a_record_with_theory_and_no_samples() -> None:
    record = unmeasured_record(WORKLOAD, CONDITIONS, "skipped", "too large")
    assert (record["status"], record["reason"]) == ("skipped", "too large")
    assert record["flops"] > 0
    assert record["samples_s"] == () and record["launches"] == []
    assert record["kv_bytes"] is None


def test_growths_are_sampled_by_their_median_step_and_merged_by_length() -> None:
    def point(kv_len: int, wall_s: float) -> GrowthPoint:
        return GrowthPoint(
            kv_len=kv_len,
            wall_s=wall_s,
            cpu_s=wall_s,
            useful_bytes=kv_len,
            allocated_bytes=kv_len,
            peak_bytes=None,
        )

    growths = tuple(
        tuple(point(kv_len, kv_len * scale) for kv_len in (2, 3, 4)) for scale in (1.0, 2.0, 3.0)
    )
    samples = step_samples(growths)
    assert samples.wall_s == samples.cpu_s == (3.0, 6.0, 9.0)
    workload = replace(
        WORKLOAD, phase="kv-growth", q_len=1, kv_len=4, start_len=1, kv_cache="paged"
    )
    progress = Progress(workload, PLAN, threads=1)
    progress.add(replace(visit(0, []), samples=samples, growths=growths))
    growth = make_record(progress, CONDITIONS)["growth"]
    assert [(one["kv_len"], one["wall_s"]) for one in growth] == [(2, 4.0), (3, 6.0), (4, 8.0)]
    at_end = theory_kv_bytes(workload)
    assert [one["theory_bytes"] for one in growth] == [at_end // 2, at_end // 4 * 3, at_end]


def test_a_generate_has_its_first_token_and_its_gaps_beside_its_growth() -> None:
    points = tuple(
        GrowthPoint(
            kv_len=kv_len, wall_s=wall_s, cpu_s=None, useful_bytes=kv_len, allocated_bytes=kv_len,
            peak_bytes=None,
        )
        for kv_len, wall_s in ((4, 1.0), (5, 0.25), (6, 0.5))
    )  # fmt: skip
    workload = replace(
        WORKLOAD, phase="generate", q_len=1, kv_len=6, start_len=4, kv_cache="static"
    )
    progress = Progress(workload, PLAN, threads=1)
    progress.add(replace(visit(0, []), samples=step_samples([points]), growths=(points,)))
    record = make_record(progress, CONDITIONS)
    assert (record["ttft_s"], record["itl_s"]) == (1.0, [0.25, 0.5])


def test_parts_are_kept_longest_first_with_their_shares() -> None:
    progress = Progress(WORKLOAD, PLAN, threads=1)
    parts = (Part(name="norm", wall_s=1.0), Part(name="ffn", wall_s=3.0, cpu_s=2.0, peak_bytes=8))
    kept = Visit.from_json(json.loads(json.dumps(replace(visit(0, [4.0]), parts=parts).to_json())))
    progress.add(kept)
    record = make_record(progress, CONDITIONS)
    assert record["parts"] == [
        {"name": "ffn", "wall_s": 3.0, "cpu_s": 2.0, "peak_bytes": 8, "share": 0.75},
        {"name": "norm", "wall_s": 1.0, "cpu_s": None, "peak_bytes": None, "share": 0.25},
    ]
    assert misfit(record, _KeptRecord) is None
