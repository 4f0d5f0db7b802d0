"""The gate on the synthetic device, in real worker processes of real checkouts."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.gate import COMPARISON_FILE, Gated, GateRequest, measure_pair
from attnprof.interpreters import find_interpreter
from attnprof.pairs import PairRequest
from attnprof.records import read_run
from attnprof.report import run_tables
from attnprof.verdicts.comparison import WorkloadVerdict
from attnprof.verdicts.judging import Asked, compare_sides
from attnprof.verdicts.sides import read_side
from attnprof.workload import Workload
from tests.checkouts import ROOT, changed

PREFILL = [Workload(backend="flash", q_len=n, kv_len=n) for n in (256, 512)]
DECODE = Workload(backend="flash", phase="decode", q_len=1, kv_len=2048, kv_cache="static")
GROWTH = Workload(
    backend="flash", phase="kv-growth", q_len=1, kv_len=64, start_len=1, kv_cache="contiguous"
)
WORKLOADS = (*PREFILL, DECODE, GROWTH)
IDS = [workload.workload_id for workload in WORKLOADS]
DEVICE = "synthetic?noise=0.02&launch=0.01"
SYNTHETIC = "attnprof/devices/synthetic.py"
linux = pytest.mark.skipif(sys.platform != "linux", reason="signals and forks as on Linux")


def law(settings: str) -> Mapping[str, str]:
    """A change to the synthetic device of a side: what its law says, whatever was typed."""
    return {
        SYNTHETIC: f"""

_law_as_typed = parse_law


def parse_law(spec):
    from dataclasses import replace

    return replace(_law_as_typed(spec), seed=7, {settings})
"""
    }


def gate(
    tmp_path: Path, changes: Mapping[str, str] | None = None, told: list[str] | None = None,
    **settings: Any,
) -> Gated:  # fmt: skip
    """This Python against a checkout that is changed."""
    new = tmp_path / "changed"
    new.mkdir()
    budget_s = settings.pop("budget_s", 300.0)
    request = GateRequest(
        pair=PairRequest(
            base=find_interpreter(sys.executable),
            new=find_interpreter(str(changed(new, changes or law("")))),
            output=tmp_path / "out",
            **{"device": DEVICE, "workloads": WORKLOADS, **settings},
        ),
        budget_s=budget_s,
    )
    return measure_pair(request, (told if told is not None else []).append)


def verdicts(gated: Gated) -> dict[str, WorkloadVerdict]:
    assert gated.comparison is not None
    return {one.workload_id: one for one in gated.comparison.workloads}


def rounds_of(run_dir: Path, workload_id: str) -> list[int]:
    return [v["round"] for v in read_run(run_dir).visits if v["workload_id"] == workload_id]


def test_identical_code_is_the_same_and_both_runs_are_kept(tmp_path: Path) -> None:
    gated = gate(tmp_path)
    assert gated.comparison is not None
    assert (gated.comparison.verdict, gated.comparison.exit_code) == ("same", 0)
    assert gated.comparison.paired and not gated.interrupted
    for side in ("base", "new"):
        run = read_run(tmp_path / "out" / side)
        assert sorted(record["workload_id"] for record in run.records) == sorted(IDS)
        assert run.header["finished"] and not run.torn
        assert run.header["paired"]["side"] == side
        assert run_tables(tmp_path / "out" / side)
    kept = json.loads((tmp_path / "out" / COMPARISON_FILE).read_text())
    assert (kept["verdict"], kept["paired"]) == ("same", True)
    assert [one["workload_id"] for one in kept["workloads"]] == IDS


def test_the_kept_runs_are_ones_that_compare_takes(tmp_path: Path) -> None:
    gate(tmp_path, law('slow=(("decode*", 1.5),)'))
    base, new = (read_side(tmp_path / "out" / name) for name in ("base", "new"))
    found = {one.workload_id: one.verdict for one in compare_sides(base, new, Asked()).workloads}
    assert found[DECODE.workload_id] == "regressed"


def test_a_slowdown_is_found_on_fresh_launches_of_its_workload_alone(tmp_path: Path) -> None:
    gated = gate(tmp_path, law('slow=(("decode*", 1.2),)'))
    assert gated.comparison is not None and gated.comparison.exit_code == 1
    found = verdicts(gated)
    assert [key for key, one in found.items() if one.verdict == "regressed"] == [DECODE.workload_id]
    latency = found[DECODE.workload_id].metric("latency")
    assert latency is not None and latency.ratio.mid == pytest.approx(1.2, rel=0.05)
    assert latency.num_launches == (5, 5)  # of the fresh ones; those that screened are apart
    for one in found.values():
        shown = one.metric("latency")
        assert shown is not None and shown.base and shown.new
        assert shown.new / shown.base == pytest.approx(shown.ratio.mid, rel=1e-9)
    for side in ("base", "new"):
        assert rounds_of(tmp_path / "out" / side, DECODE.workload_id) == list(range(10))


def test_what_is_faster_is_improved_and_passes(tmp_path: Path) -> None:
    gated = gate(tmp_path, law('slow=(("decode*", 0.7),)'))
    assert gated.comparison is not None and gated.comparison.exit_code == 0
    assert verdicts(gated)[DECODE.workload_id].verdict == "improved"


def test_a_rise_below_the_threshold_is_no_regression(tmp_path: Path) -> None:
    quiet = "synthetic?noise=0.005"
    gated = gate(tmp_path, law('slow=(("decode*", 1.01),)'), device=quiet)
    assert verdicts(gated)[DECODE.workload_id].verdict == "same"


@pytest.mark.parametrize(
    ("metric", "change"),
    [
        ("peak_memory", "activation_bytes_ = activation_bytes\n"
         "activation_bytes = lambda workload: round(1.03 * activation_bytes_(workload))\n"),
        ("kv_bytes", "cache_bytes_ = cache_bytes\n"
         "def cache_bytes(*args):\n"
         "    useful, allocated, peak = cache_bytes_(*args)\n"
         "    return useful, allocated + 2, peak\n"),
    ],
)  # fmt: skip
def test_bytes_are_held_exactly(tmp_path: Path, metric: str, change: str) -> None:
    gated = gate(tmp_path, {SYNTHETIC: f"\n{change}"}, workloads=(PREFILL[1], DECODE))
    assert gated.comparison is not None and gated.comparison.exit_code == 1
    found = verdicts(gated)[PREFILL[1].workload_id if metric == "peak_memory" else IDS[2]]
    judged = found.metric(metric)
    assert judged is not None and judged.verdict == "regressed"


def test_a_workload_that_the_new_side_cannot_run_fails(tmp_path: Path) -> None:
    gated = gate(tmp_path, law('exit=("decode*",)'))
    assert gated.comparison is not None and gated.comparison.exit_code == 1
    found = verdicts(gated)
    assert found[DECODE.workload_id].verdict == "failed"
    assert "crashed" in str(found[DECODE.workload_id].reason)
    assert {found[key].verdict for key in IDS if key != DECODE.workload_id} == {"same"}
    assert rounds_of(tmp_path / "out" / "base", DECODE.workload_id) == [0]


def test_what_was_not_measured_is_never_green(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(CannotMeasureError, match="before anything was measured"):
        gate(tmp_path, told=told, budget_s=0.0)
    assert any("budget was spent" in text for text in told)


class Clock(list[str]):
    """A clock that stands, and jumps by a day when a text is told."""

    def __init__(self, text: str) -> None:
        self.text, self.now = text, 0.0

    def append(self, told: str) -> None:
        super().append(told)
        self.now += 86_400.0 * (self.text in told)

    def monotonic(self) -> float:
        return self.now


def test_a_spent_budget_leaves_what_it_did_not_reach_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock("screening: pair 2 of 5")
    for module in ("attnprof.gate", "attnprof.pairs"):
        monkeypatch.setattr(f"{module}.time", clock)
    gated = gate(tmp_path, told=clock)
    assert gated.comparison is not None
    assert any("budget was spent" in note for note in gated.comparison.notes)
    assert gated.comparison.exit_code == 3
    assert {one.verdict for one in gated.comparison.workloads} == {"inconclusive"}


def test_what_was_flagged_and_not_confirmed_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock("confirming: pair 1 of 5")
    for module in ("attnprof.gate", "attnprof.pairs"):
        monkeypatch.setattr(f"{module}.time", clock)
    gated = gate(tmp_path, law('slow=(("decode*", 1.2),)'), told=clock)
    latency = verdicts(gated)[DECODE.workload_id].metric("latency")
    assert latency is not None and latency.verdict == "inconclusive"
    assert latency.reason == "flagged, and not measured again"
    assert rounds_of(tmp_path / "out" / "new", DECODE.workload_id) == list(range(5))


def test_the_order_of_the_sides_is_drawn_for_each_visit(tmp_path: Path) -> None:
    gate(tmp_path, device=f"{DEVICE}&pace=0.005s")
    visits = {
        name: {(v["round"], v["workload_id"]): v["started"] for v in run.visits}
        for name in ("base", "new")
        for run in [read_run(tmp_path / "out" / name)]
    }
    base_first = [visits["base"][key] < visits["new"][key] for key in visits["base"]]
    assert 0.1 < sum(base_first) / len(base_first) < 0.9
    assert visits["base"].keys() == visits["new"].keys()


def test_an_accelerator_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    text = """

_open_as_typed = open_synthetic


def open_synthetic(spec):
    device = _open_as_typed(spec)
    device.kind = "cuda"
    return device
"""
    sides = [changed(tmp_path / name, {SYNTHETIC: text}) for name in ("one", "other")]
    request = PairRequest(
        base=find_interpreter(str(sides[0])),
        new=find_interpreter(str(sides[1])),
        workloads=(*PREFILL, DECODE),
        output=tmp_path / "out",
        device=f"{DEVICE}&pace=0.01s",
    )
    asked = Asked(allow_different=("device", "driver", "torch"))  # unknown on both sides
    gated = measure_pair(GateRequest(pair=request, asked=asked))
    assert gated.comparison is not None
    turns: dict[int, list[tuple[str, str]]] = {}
    for name in ("base", "new"):
        for visit in read_run(tmp_path / "out" / name).visits:
            turns.setdefault(visit["round"], []).append((visit["started"], name))
    for visits in turns.values():
        order = [name for _, name in sorted(visits)]
        changes = sum(one != other for one, other in itertools.pairwise(order))
        assert changes == 1  # all workloads of one side, then all of the other


def test_what_is_left_open_is_screened_further_but_not_for_ever(tmp_path: Path) -> None:
    told: list[str] = []
    gate(tmp_path, told=told, device="synthetic?noise=0.01&launch=0.09", workloads=tuple(PREFILL))
    assert any("left open, measured further" in text for text in told)
    rounds = [len(rounds_of(tmp_path / "out" / "new", one.workload_id)) for one in PREFILL]
    assert max(rounds) > 5
    assert max(rounds) <= 15 + 30


def test_both_sides_have_the_same_inputs_and_as_many_samples(tmp_path: Path) -> None:
    gate(tmp_path, workloads=tuple(PREFILL))
    counts = [
        [len(v["samples"]["wall_s"]) for v in read_run(tmp_path / "out" / name).visits]
        for name in ("base", "new")
    ]
    assert set(counts[0]) == set(counts[1]) == {10}


def test_a_folder_with_a_comparison_is_not_written_over(tmp_path: Path) -> None:
    gate(tmp_path, workloads=tuple(PREFILL[:1]))
    before = (tmp_path / "out" / COMPARISON_FILE).read_bytes()
    (tmp_path / "again").mkdir()
    with pytest.raises(UsageError, match="holds a comparison already"):
        request = PairRequest(
            base=find_interpreter(sys.executable),
            new=find_interpreter(sys.executable),
            workloads=tuple(PREFILL),
            output=tmp_path / "out",
            device=DEVICE,
        )
        measure_pair(GateRequest(pair=request))
    assert (tmp_path / "out" / COMPARISON_FILE).read_bytes() == before


def test_sides_on_other_devices_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    text = "\nSyntheticDevice.facts = lambda self: {'name': 'another', 'memory_bytes': 1}\n"
    with pytest.raises(CannotMeasureError, match=r"name: .*another") as refused:
        gate(tmp_path, {SYNTHETIC: text})
    assert "--allow-different device" in refused.value.fix
    assert not read_run(tmp_path / "out" / "base").visits


def command(tmp_path: Path, *args: str, base: str = sys.executable) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            sys.executable, "-m", "attnprof", "gate", *(["--base", base] if base else []), *args,
            "--output", str(tmp_path / "out"),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "160"},
    )  # fmt: skip


AXES = ("--axis", "seq_len=256,512", "--axis", "backend=flash,math")


def test_the_command_names_the_workload_and_exits_with_1(tmp_path: Path) -> None:
    slower = changed(tmp_path / "slower", law('slow=(("*-math-*s512*", 1.4),)'))
    ended = command(tmp_path, "--new", str(slower), "--device", DEVICE, *AXES, "--format", "json")
    out, err = ended.communicate(timeout=200)
    assert ended.returncode == 1, err
    document = json.loads(out)
    assert document["verdict"] == "regressed"
    bad = [one["workload_id"] for one in document["workloads"] if one["verdict"] == "regressed"]
    assert len(bad) == 1 and "math" in bad[0] and "s512" in bad[0]
    assert "screening: pair 1 of 5" in err and "confirming" in err


def test_the_command_wants_a_base(tmp_path: Path) -> None:
    ended = command(tmp_path, "--device", DEVICE, base="")
    out, err = ended.communicate(timeout=60)
    assert (ended.returncode, out) == (2, "")
    assert "nothing to hold against" in err and "--base" in err


@linux
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    ended = command(tmp_path, "--device", f"{DEVICE}&pace=0.3s", *AXES, "--junit", str(junit))
    visits = tmp_path / "out" / "new" / "visits.jsonl"
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        if visits.exists() and len(visits.read_bytes().splitlines()) >= 6:
            break
        time.sleep(0.1)
    ended.send_signal(signal.SIGINT)
    _, err = ended.communicate(timeout=60)
    assert ended.returncode == 130, err
    for side in ("base", "new"):
        run = read_run(tmp_path / "out" / side)
        assert run.records and run.visits
        assert {record["status"] for record in run.records} == {"ok"}
    kept = json.loads((tmp_path / "out" / COMPARISON_FILE).read_text())
    assert "regressed" not in {one["verdict"] for one in kept["workloads"]}
    assert (kept["interrupted"], kept["exit_code"]) == (True, 130)
    assert '<error message="' in junit.read_text() and "interrupted" in junit.read_text()


@linux
def test_an_interrupt_while_the_sides_are_opened_is_one_and_no_bug(tmp_path: Path) -> None:
    hangs = "\nimport time\nSyntheticDevice.facts = lambda self: time.sleep(60)\n"
    new = changed(tmp_path / "changed", {SYNTHETIC: hangs})
    junit = tmp_path / "junit.xml"
    ended = command(tmp_path, "--new", str(new), "--device", DEVICE, *AXES, "--junit", str(junit))
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and not (tmp_path / "out" / "base" / "run.json").exists():
        time.sleep(0.1)
    ended.send_signal(signal.SIGINT)
    _, err = ended.communicate(timeout=60)
    assert ended.returncode == 130, err
    assert "interrupted before anything could be compared" in err
    assert "<error" in junit.read_text()


@pytest.mark.torch
@linux
def test_a_side_that_waits_awake_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    base = f"env OMP_WAIT_POLICY=active {sys.executable}"
    ended = command(tmp_path, "--device", "cpu", "--axis", "seq_len=64", base=base)
    _, err = ended.communicate(timeout=120)
    assert ended.returncode == 3, err
    assert "OMP_WAIT_POLICY" in err and "--allow-different environment" in err


@pytest.mark.torch
@pytest.mark.slow
@linux
def test_a_kernel_that_is_changed_from_flash_to_math_turns_it_red(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = '\nPINS["flash"] = PINS["math"]\n_OPERATORS["flash"] = _OPERATORS["math"]\n'
    slower = changed(tmp_path / "slower", {"attnprof/backends/sdpa.py": text})
    axes = ("--axis", "seq_len=384", "--axis", "backend=flash,math", "--axis", "heads=4")
    ended = command(
        tmp_path, "--new", str(slower), "--device", "cpu", *axes, "--format", "json", "--budget",
        "4m",
    )  # fmt: skip
    out, err = ended.communicate(timeout=280)
    assert ended.returncode == 1, err
    found = {one["workload_id"]: one["verdict"] for one in json.loads(out)["workloads"]}
    red = [key for key, verdict in found.items() if verdict == "regressed"]
    assert len(red) == 1 and "-flash-" in red[0]
