"""The whole running half on the synthetic device, in real worker processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.measure import Plan
from attnprof.medians import Interval
from attnprof.recording import unfinished_records
from attnprof.records import RECORDS_FILE, RUN_FILE, VISITS_FILE, read_run
from attnprof.report import run_tables, write_reports
from attnprof.rounds import dominates, drift_notes, visiting_order
from attnprof.sweep import Outcome, SweepRequest, expected_s, run_sweep
from attnprof.workload import Workload

WORKLOADS = (
    *(Workload(backend=b, q_len=n, kv_len=n) for b in ("flash", "eager") for n in (256, 512, 1024)),
    Workload(backend="flash", phase="decode", q_len=1, kv_len=512, kv_cache="static"),
    Workload(
        backend="flash", phase="kv-growth", q_len=1, kv_len=64, start_len=1, kv_cache="contiguous"
    ),
)
IDS = [workload.workload_id for workload in WORKLOADS]
ROOT = Path(__file__).parents[1]
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Log:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.visits: list[tuple[int, str]] = []
        self.recorded: list[str] = []
        self.kept: int | None = None
        self.left_s: list[float] = []

    def started(self, num_workloads: int, num_kept: int) -> None:
        self.kept = num_kept

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None:
        if phase == "prepare":
            self.visits.append((round_, workload.workload_id))

    def record(self, record: dict[str, Any]) -> None:
        self.recorded.append(record["workload_id"])

    def note(self, text: str) -> None:
        self.notes.append(text)

    def time_left(self, left_s: float) -> None:
        self.left_s.append(left_s)


def sweep(
    run_dir: Path, device: str = "synthetic?noise=0.02", log: Log | None = None, **settings: Any
) -> Outcome:
    request = SweepRequest(workloads=WORKLOADS, device=device, run_dir=run_dir, threads=1)
    request = replace(request, **settings)
    grid = {"name": "all", "workloads": [workload.to_json() for workload in request.workloads]}
    return run_sweep(replace(request, grid=grid), log or Log())


def statuses(outcome: Outcome) -> dict[str, str]:
    return {record["workload_id"]: record["status"] for record in outcome.records}


def test_every_workload_gets_one_record_with_the_keys_that_others_rely_on(tmp_path: Path) -> None:
    log = Log()
    outcome = sweep(tmp_path / "run", log=log)
    assert outcome.complete and outcome.any_ok and not outcome.interrupted
    assert sorted(log.recorded) == sorted(IDS)
    assert [record["workload_id"] for record in outcome.records] == IDS
    run = read_run(tmp_path / "run")
    assert sorted(record["workload_id"] for record in run.records) == sorted(IDS)
    assert run.header["finished"] is not None
    keys = {
        "workload_id", "scope", "phase", "attention", "variant", "window_len", "position",
        "kv_cache", "backend", "device", "dtype", "kv_dtype", "batch_size", "q_len", "kv_len",
        "num_q_heads", "num_kv_heads", "head_dim", "num_layers", "status", "reason", "samples_s",
        "num_samples", "median_s", "median_low_s", "median_high_s", "median_cpu_s", "clock",
        "flags", "flops", "bytes_moved", "achieved_flops_per_s", "mfu", "mbu", "weight_bytes",
        "kv_bytes", "peak_activation_bytes", "theory_kv_bytes", "theory_peak_activation_bytes",
        "theory_s",
    }  # fmt: skip
    for record in run.records:
        assert keys - set(record) == set()
        assert record["status"] == "ok"
        assert record["median_low_s"] <= record["median_s"] <= record["median_high_s"]
        assert record["num_samples"] == len(record["samples_s"]) == len(record["sample_launch"])
        assert record["kv_bytes"] == record["theory_kv_bytes"]
        assert record["median_s"] > record["theory_s"]


def test_measured_times_are_those_of_the_law(tmp_path: Path) -> None:
    from attnprof.devices.synthetic import law_s, parse_law

    outcome = sweep(tmp_path / "run", "synthetic?noise=0")
    for record, workload in zip(outcome.records, WORKLOADS, strict=True):
        expected = law_s(parse_law("synthetic"), workload)
        assert record["median_s"] == pytest.approx(expected, rel=0.02)


def test_a_growing_cache_is_recorded_point_by_point(tmp_path: Path) -> None:
    record = sweep(tmp_path / "run").records[-1]
    assert [point["kv_len"] for point in record["growth"]] == list(range(2, 65))
    assert record["mode"] == "growth"


def test_samples_come_from_at_least_three_launches(tmp_path: Path) -> None:
    for record in sweep(tmp_path / "run").records:
        assert len(set(record["sample_launch"])) >= 3


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        ("crash", "crashed", "killed by signal 6"),
        ("segv", "crashed", "killed by signal 11"),
        ("kill", "crashed", "out of host memory?"),
        ("exit", "crashed", "exited with status 7"),
        ("error", "crashed", "RuntimeError: device-side error"),
        ("oom", "out_of_memory", "no room"),
        ("wrong", "wrong_result", "differs from float64"),
        ("unsupported", "unsupported", "flash is unsupported"),
    ],
)
def test_one_failure_is_one_record_and_the_sweep_goes_on(
    tmp_path: Path, failure: str, status: str, said: str
) -> None:
    bad = IDS[1]
    outcome = sweep(tmp_path / "run", f"synthetic?{failure}={bad}", prune=False)
    found = statuses(outcome)
    assert found.pop(bad) == status
    assert set(found.values()) == {"ok"}
    record = next(one for one in outcome.records if one["workload_id"] == bad)
    assert said in record["reason"]
    assert record["median_s"] is None and record["num_samples"] == 0


def test_a_hang_is_a_timeout_that_names_its_phase(tmp_path: Path) -> None:
    outcome = sweep(tmp_path / "run", f"synthetic?hang={IDS[1]}", timeout_s=0.5)
    found = statuses(outcome)
    assert found.pop(IDS[1]) == "timeout"
    assert set(found.values()) == {"ok"}
    assert outcome.records[1]["phase_of_failure"] == "measure"
    assert "in wait (threading.py" in outcome.records[1]["reason"]


def test_a_sweep_without_any_ok_record_says_so(tmp_path: Path) -> None:
    assert not sweep(tmp_path / "run", "synthetic?unsupported=*").any_ok


def test_what_is_larger_than_what_ran_out_of_memory_is_skipped_naming_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["attnprof.sweep"], "BATCH_S", 0.0
    )  # one by one, the smallest first
    spec, workloads = f"synthetic?oom={IDS[0]}", WORKLOADS[:3]
    pruned = sweep(tmp_path / "run", spec, workloads=workloads)
    assert list(statuses(pruned).values()) == ["out_of_memory", "skipped", "skipped"]
    assert all(IDS[0] in record["reason"] for record in pruned.records[1:])
    unpruned = sweep(tmp_path / "run2", spec, workloads=workloads, prune=False)
    assert list(statuses(unpruned).values()) == ["out_of_memory", "ok", "ok"]


def test_pruning_is_remembered_when_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["attnprof.sweep"], "BATCH_S", 0.0)
    spec = f"synthetic?oom={IDS[0]}"
    sweep(tmp_path / "run", spec, workloads=WORKLOADS[:3])
    records = tmp_path / "run" / RECORDS_FILE
    records.write_bytes(records.read_bytes().splitlines(keepends=True)[0])
    again = sweep(tmp_path / "run", spec, workloads=WORKLOADS[:3], resume=True)
    assert list(statuses(again).values()) == ["out_of_memory", "skipped", "skipped"]


def test_pruning_reaches_only_workloads_of_the_same_kind() -> None:
    small = WORKLOADS[0]
    assert dominates(replace(small, q_len=512, kv_len=512), small)
    assert not dominates(replace(small, q_len=512, kv_len=512, batch_size=1, num_layers=1),
                         replace(small, num_layers=2))  # fmt: skip
    assert not dominates(replace(small, backend="eager", kv_len=512, q_len=512), small)
    assert not dominates(replace(small, dtype="bfloat16"), small)


def test_what_theory_says_cannot_fit_is_not_run_unless_asked(tmp_path: Path) -> None:
    spec = "synthetic?memory=8MiB"
    outcome = sweep(tmp_path / "run", spec)
    predicted = [one for one in outcome.records if one["status"] == "predicted_out_of_memory"]
    assert predicted and outcome.any_ok
    assert "free" in predicted[0]["reason"]
    asked = sweep(tmp_path / "run2", spec, predict_memory=False, prune=False)
    assert "predicted_out_of_memory" not in statuses(asked).values()
    assert "out_of_memory" in statuses(asked).values()


def test_a_busy_machine_leaves_cpu_time_and_says_contended(tmp_path: Path) -> None:
    outcome = sweep(tmp_path / "run", "synthetic?contended=1", workloads=WORKLOADS[:2])
    for record in outcome.records:
        assert (record["clock"], record["flags"]) == ("cpu", ["contended"])
        assert record["median_s"] == record["median_cpu_s"] < record["median_wall_s"]


def test_noise_that_stays_is_flagged_and_ends(tmp_path: Path) -> None:
    outcome = sweep(tmp_path / "run", "synthetic?noise=1", workloads=WORKLOADS[2:3])
    assert outcome.records[0]["flags"] == ["noisy"]
    assert outcome.records[0]["median_low_s"] is not None


def test_throttling_seen_by_the_device_is_among_the_flags(tmp_path: Path) -> None:
    outcome = sweep(tmp_path / "run", "synthetic?throttle=*", workloads=WORKLOADS[:1])
    assert outcome.records[0]["flags"] == ["throttled"]


def test_drift_over_the_sweep_is_noted(tmp_path: Path) -> None:
    outcome = sweep(
        tmp_path / "run", "synthetic?drift=0.001", launch_kind="spawn", workloads=WORKLOADS[:3],
        plan=Plan(target=1e-9, max_samples=60),
    )  # fmt: skip
    assert any(note.startswith("drift: a fixed matmul took") for note in outcome.notes)
    assert read_run(tmp_path / "run").header["notes"] == list(outcome.notes)


def test_steady_rulers_and_few_rulers_bring_no_note() -> None:
    assert drift_notes([{"copy_s": 1.0}] * 20) == []
    assert drift_notes([{"copy_s": 1.0}, {"copy_s": 2.0}]) == []
    assert len(drift_notes([{"copy_s": 1.0}] * 6 + [{"copy_s": 1.2}] * 6)) == 1


def test_rounds_interleave_in_an_order_that_the_seed_decides(tmp_path: Path) -> None:
    logs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        log = Log()
        sweep(tmp_path / name, log=log, seed=seed)
        logs.append(log.visits)
    assert logs[0] == logs[1] != logs[2]
    rounds = [[w for r, w in logs[0] if r == round_] for round_ in range(3)]
    assert all(sorted(ids) == sorted(IDS) for ids in rounds)
    assert rounds[0] != rounds[1]


def test_a_worker_group_is_visited_in_one_piece() -> None:
    orders = [visiting_order(WORKLOADS, seed, 0) for seed in range(20)]
    assert all([len({w.backend for w in group}) for group in order] == [1, 1] for order in orders)
    assert {order[0][0].backend for order in orders} == {"flash", "eager"}
    assert len({tuple(w.workload_id for g in order for w in g) for order in orders}) > 15


def test_resuming_a_finished_run_measures_nothing(tmp_path: Path) -> None:
    first = sweep(tmp_path / "run")
    before = {n: (tmp_path / "run" / n).read_bytes() for n in (RECORDS_FILE, VISITS_FILE)}
    log = Log()
    again = sweep(tmp_path / "run", log=log, resume=True)
    assert log.kept == len(IDS)
    assert log.visits == []
    assert {n: (tmp_path / "run" / n).read_bytes() for n in before} == before
    assert json.dumps(again.records) == json.dumps(first.records)


def test_a_budget_that_is_spent_leaves_the_rest_to_resume(tmp_path: Path) -> None:
    first = sweep(tmp_path / "run", "synthetic?pace=50ms", budget_s=0.3)
    assert not first.complete and not first.interrupted
    assert any("budget is spent" in note for note in first.notes)
    assert len(first.records) + len(first.unfinished) + len(first.not_reached) == len(IDS)
    assert all("unfinished" in record["flags"] for record in first.unfinished)
    run = read_run(tmp_path / "run")
    assert run.header["finished"] is None
    stored = unfinished_records(run)
    assert json.dumps(stored) == json.dumps(list(first.unfinished))
    rest = sweep(tmp_path / "run", "synthetic?pace=50ms", resume=True)
    assert rest.complete
    kept = [(v["workload_id"], v["round"]) for v in read_run(tmp_path / "run").visits]
    assert len(kept) == len(set(kept))


def test_the_report_of_a_stopped_sweep_holds_what_there_is(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = sweep(run_dir, "synthetic?pace=50ms", budget_s=0.3)
    assert first.unfinished and first.any_ok
    write_reports(run_dir)
    text = (run_dir / "report.md").read_text()
    assert f"{len(IDS) - len(first.records)} of {len(IDS)} workloads missing" in text
    [latency] = [table for table in run_tables(run_dir) if table.name == "latency"]
    shown = {str(row["workload_id"]) for row in latency.rows if "unfinished" in row["flags"]}
    assert shown == {str(record["workload_id"]) for record in first.unfinished}


def test_a_torn_visit_is_said_and_measured_again(tmp_path: Path) -> None:
    sweep(tmp_path / "run", workloads=WORKLOADS[:1])
    (tmp_path / "run" / RECORDS_FILE).write_bytes(b"")
    visits = tmp_path / "run" / VISITS_FILE
    whole = visits.read_bytes().splitlines(keepends=True)
    visits.write_bytes(b"".join(whole)[:-5])
    log = Log()
    outcome = sweep(tmp_path / "run", log=log, workloads=WORKLOADS[:1], resume=True)
    assert any("visits.jsonl: its last line was cut in half" in note for note in log.notes)
    assert statuses(outcome) == {IDS[0]: "ok"}
    assert visits.read_bytes().splitlines(keepends=True)[: len(whole) - 1] == whole[:-1]
    assert len(log.visits) >= 1


def test_resuming_with_another_grid_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path / "run", workloads=WORKLOADS[:2])
    with pytest.raises(CannotMeasureError, match="workloads: without decode"):
        sweep(tmp_path / "run", workloads=(*WORKLOADS[:2], WORKLOADS[6]), resume=True)


def test_a_device_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown device 'gpu'"):
        sweep(tmp_path / "runs" / "one", "gpu")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_stops_the_sweep_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, 0

    def full_later(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr("os.fsync", full_later)
    with pytest.raises(CannotMeasureError, match="No space left on device"):
        sweep(tmp_path / "run")
    monkeypatch.undo()
    assert read_run(tmp_path / "run").torn == ()
    assert sweep(tmp_path / "run", resume=True).complete


def test_time_left_comes_down_to_nothing(tmp_path: Path) -> None:
    log = Log()
    sweep(tmp_path / "run", log=log)
    assert log.left_s[-1] == 0
    assert log.left_s[0] > 0


def test_expected_time_grows_with_the_call_and_ends_at_ten_budgets() -> None:
    plan = Plan()
    times = [expected_s(WORKLOADS[0], plan, theory_s) for theory_s in (1e-5, 1e-2, 1.0)]
    assert times == sorted(times)
    assert expected_s(WORKLOADS[0], plan, 1e3) < 10 * plan.budget_s + 4e3 * plan.min_rounds


SCRIPT = """
import sys
from pathlib import Path
from attnprof.sweep import run_sweep
from tests.test_sweep import Log, WORKLOADS, SweepRequest
run_dir = Path(sys.argv[1])
outcome = run_sweep(
    SweepRequest(workloads=WORKLOADS, device=sys.argv[2], run_dir=run_dir, threads=1,
                 resume=(run_dir / "run.json").exists()),
    Log(),
)
print("interrupted" if outcome.interrupted else "complete" if outcome.complete else "stopped")
"""


def start(run_dir: Path, device: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run_dir), device],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def wait_for_visits(run_dir: Path, number: int) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        path = run_dir / VISITS_FILE
        if path.exists() and path.read_bytes().count(b"\n") >= number:
            return
        time.sleep(0.01)
    raise AssertionError("no visits")


@linux
@pytest.mark.slow
def test_killing_it_twenty_times_at_random_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    from tests.test_workers import wait_until_gone

    run_dir, draw = tmp_path / "run", random.Random(20)
    device = "synthetic?noise=0.02&pace=150ms"
    kept = visited = b""
    num_killed = 0
    for _ in range(20):
        with start(run_dir, device) as parent:
            deadline = time.monotonic() + draw.uniform(0.2, 1.2)
            while parent.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            workers = descendants(parent.pid)
            num_killed += parent.poll() is None
            parent.kill()
        assert wait_until_gone(workers) == []
        for name, before in ((RECORDS_FILE, kept), (VISITS_FILE, visited)):
            path = run_dir / name
            now = path.read_bytes() if path.exists() else b""
            assert now.startswith(before), "what was kept stays as it was"
        kept = b"".join(whole_lines(run_dir / RECORDS_FILE))
        visited = b"".join(whole_lines(run_dir / VISITS_FILE))
    with start(run_dir, device) as parent:
        out, errors = parent.communicate(timeout=120)
    assert out.strip() == "complete", errors
    assert num_killed >= 5
    run = read_run(run_dir)
    assert (run_dir / RECORDS_FILE).read_bytes().startswith(kept)
    assert sorted(record["workload_id"] for record in run.records) == sorted(IDS)
    visits = [(visit["workload_id"], visit["round"]) for visit in run.visits]
    assert len(visits) == len(set(visits)), "no visit was made twice"
    assert {record["status"] for record in run.records} == {"ok"}
    for record in run.records:
        of_workload = [v for v in run.visits if v["workload_id"] == record["workload_id"]]
        assert record["num_samples"] == sum(len(v["samples"]["wall_s"]) for v in of_workload)


def whole_lines(path: Path) -> Iterator[bytes]:
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if line.endswith(b"\n"):
            yield line


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_once_to_stop_it_stops_cleanly_and_resumes(
    tmp_path: Path, number: signal.Signals
) -> None:
    from tests.test_workers import wait_until_gone

    device = "synthetic?pace=30ms"
    with start(tmp_path / "run", device) as parent:
        wait_for_visits(tmp_path / "run", 5)
        workers = descendants(parent.pid)
        parent.send_signal(number)
        out, errors = parent.communicate(timeout=60)
    assert (out.strip(), parent.returncode) == ("interrupted", 0), errors
    assert wait_until_gone(workers) == []
    run = read_run(tmp_path / "run")
    assert run.torn == ()
    assert len(run.visits) >= 5
    outcome = sweep(tmp_path / "run", device, resume=True)
    assert outcome.complete
    assert read_run(tmp_path / "run").visits[: len(run.visits)] == run.visits


@linux
def test_asked_twice_to_stop_it_ends_at_once_with_its_workers(tmp_path: Path) -> None:
    from tests.test_workers import wait_until_gone

    with start(tmp_path / "run", "synthetic?pace=30ms") as parent:
        wait_for_visits(tmp_path / "run", 2)
        workers = descendants(parent.pid)
        os.kill(parent.pid, signal.SIGSTOP)  # both wishes arrive before it can act on the first
        parent.send_signal(signal.SIGINT)
        os.kill(parent.pid, signal.SIGCONT)
        while parent.poll() is None:
            parent.send_signal(signal.SIGINT)
            time.sleep(0.001)
    assert parent.returncode in (-signal.SIGINT, 0)
    assert wait_until_gone(workers) == []
    assert (tmp_path / "run" / RUN_FILE).exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_sweep_of_the_cpu_measures_real_attention(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    outcome = sweep(tmp_path / "run", "cpu", workloads=(WORKLOADS[1], WORKLOADS[6], WORKLOADS[7]))
    assert set(statuses(outcome).values()) == {"ok"}
    for record in outcome.records:
        assert record["check"]["passed"]
        assert record["median_cpu_s"] > 0
        assert record["kv_bytes"] == record["theory_kv_bytes"]
    assert read_run(tmp_path / "run").header["conditions"]["ceilings"]["matmul"]["float32"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"round": "first"}, "round is 'first', not a whole number"),
        ({"samples": {"wall_s": [0.1, -0.1]}}, r"samples.wall_s\[1\] is -0.1"),
        ({"samples": []}, r"samples is \[\], not keys and values"),
        ({"warm_up": {"wall_s": [0.1]}}, "warm_up.settled is missing"),
        ({"loops": 3}, "'loops' is no key"),
    ],
)
def test_a_visit_of_another_kind_is_named_by_its_line(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    sweep(tmp_path / "run", workloads=WORKLOADS[:1])
    (tmp_path / "run" / RECORDS_FILE).write_bytes(b"")
    visits = tmp_path / "run" / VISITS_FILE
    first, *rest = visits.read_text().splitlines()
    visits.write_text("\n".join([json.dumps(json.loads(first) | changed), *rest]) + "\n")
    with pytest.raises(UsageError, match=rf"visits\.jsonl line 1: {words}"):
        sweep(tmp_path / "run", workloads=WORKLOADS[:1], resume=True)


@linux
def test_a_killed_fork_server_costs_no_workload_its_record(tmp_path: Path) -> None:
    with start(tmp_path / "run", "synthetic?pace=30ms") as parent:
        for number in (1, 4, 8):
            wait_for_visits(tmp_path / "run", number)
            os.kill(server_of(parent.pid), signal.SIGKILL)
        _, errors = parent.communicate(timeout=60)
    assert parent.returncode == 0, errors
    run = read_run(tmp_path / "run")
    assert {record["workload_id"]: record["status"] for record in run.records} == dict.fromkeys(
        IDS, "ok"
    )


def server_of(parent: int) -> int:
    """The process that starts workers; a worker is forked from it later and has its arguments."""
    while True:
        serving = [pid for pid in descendants(parent) if b"serve" in arguments_of(pid)]
        if serving:
            return min(serving)
        time.sleep(0.01)


def arguments_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


@linux
def test_asked_twice_to_stop_it_lets_go_of_a_worker_that_hangs(tmp_path: Path) -> None:
    from tests.test_workers import wait_until_gone

    with start(tmp_path / "run", "synthetic?hang=*") as parent:
        while len(workers := descendants(parent.pid)) < 2 or not (tmp_path / "run").exists():
            time.sleep(0.01)
        os.kill(parent.pid, signal.SIGSTOP)
        parent.send_signal(signal.SIGINT)
        parent.send_signal(signal.SIGTERM)
        os.kill(parent.pid, signal.SIGCONT)
        _, errors = parent.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert wait_until_gone(workers) == []


def scale(times_s: list[float], factor: float) -> None:
    times_s[:] = [factor * one for one in times_s]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda visit: visit["samples"]["cpu_s"].pop(), r"line 1: samples\.cpu_s has \d+, samples"),
        (lambda visit: scale(visit["samples"]["wall_s"], 1e-20), "less than 1e-12"),
        (lambda visit: visit.update(samples=5), "line 1: samples is 5"),
    ],
)
def test_a_visit_that_no_clock_gave_is_named_by_its_file(
    change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    sweep(run_dir, "synthetic?pace=50ms", budget_s=0.3)
    done = {record["workload_id"] for record in read_run(run_dir).records}
    lines = (run_dir / VISITS_FILE).read_text().splitlines()
    visits = [one for one in map(json.loads, lines) if one["workload_id"] not in done]
    change(visits[0])
    (run_dir / VISITS_FILE).write_text("".join(json.dumps(one) + "\n" for one in visits[:1]))
    with pytest.raises(UsageError, match=rf"run/visits\.jsonl.*{words}"):
        unfinished_records(read_run(run_dir))
