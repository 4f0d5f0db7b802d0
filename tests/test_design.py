"""A sweep for fit: what it shows a law first, what it adds, and a planted law that comes back."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof import design, session
from attnprof.combinations import problem
from attnprof.errors import UsageError
from attnprof.fit_laws import RunFit, fit_runs
from attnprof.grid import USUAL, expand
from attnprof.law_shapes import PHASES
from attnprof.laws.steps import PACKED_FROM
from attnprof.theory.summary import call_bytes, call_flops, theory_weight_bytes
from attnprof.workload import Workload
from tests.command import attnprof

LAW = "synthetic?noise=0.02&t0=30us&compute_efficiency=0.4&memory_efficiency=0.7"
PLANTED = {"launch": 30e-6, "compute": 1 / 0.4, "dram": 1 / 0.7}
LIMITS = design.Limits(
    device_kind="synthetic",
    threads=2,
    ceilings={"copy_bytes_per_s": 1e11, "matmul": {"float32": {"flops_per_s": 1e12}}},
    cache_bytes=32e6,
    num_units=2,
    free_bytes=None,
    call_s=0.3,
)
PREFILL = Workload(backend="flash", phase="prefill", q_len=16, kv_len=16)
DECODE = Workload(backend="flash", phase="decode", q_len=1, kv_len=16, kv_cache="static")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    done = attnprof("sweep", "--for-fit", "--device", LAW, "--interval", "0.02", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert "the coefficients leave a latency unsure by up to" in done.stderr
    return path


@pytest.fixture(scope="module")
def found(run: Path) -> RunFit:
    return fit_runs([run])


def test_a_planted_law_comes_back_from_a_sweep_for_fit(found: RunFit) -> None:
    assert {one.group.law.phase for one in found.groups} == {"prefill", "decode"}
    for one in found.groups:
        assert one.holds, one.words
        fitted = one.law.fitted
        assert fitted.low is not None
        assert fitted.high is not None
        for name, planted in PLANTED.items():
            place = fitted.law.names.index(name)
            assert fitted.low[place] <= planted <= fitted.high[place], (one.key, name)


def test_what_was_not_measured_is_foretold(found: RunFit) -> None:
    """The law of the device is known: t = t0 + F / (0.4·P) + B / (0.7·W)."""
    options = design.candidates([PREFILL, DECODE], LIMITS)
    for one in found.groups:
        alike = [option for option in options if option.phase == one.group.law.phase]
        flops = [call_flops(option) for option in alike]
        moved = [call_bytes(option) for option in alike]
        truth = [30e-6 + f / 4e11 + b / 7e10 for f, b in zip(flops, moved, strict=True)]
        from attnprof.law_shapes import columns_of

        records = [
            {**vars(option), "flops": f, "bytes_moved": b}
            for option, f, b in zip(alike, flops, moved, strict=True)
        ]
        predicted = one.law.fitted.latency_s(columns_of(records))
        misses = sorted(abs(math.log(p / t)) for p, t in zip(predicted, truth, strict=True))
        assert misses[len(misses) // 2] < 0.03
        assert misses[int(0.9 * len(misses))] < 0.08


def test_points_are_added_to_one_run_directory(run: Path) -> None:
    header = json.loads((run / "run.json").read_text())
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert header["grid"]["grows"] is True
    assert header["finished"] is not None
    assert [one["workload_id"] for one in records].sort() == header["workloads"].copy().sort()
    assert len(records) == len(set(header["workloads"])) == len(header["grid"]["workloads"])


def test_a_sweep_for_fit_is_resumed_with_all_its_points(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = attnprof("sweep", "--for-fit", "--device", LAW, "--interval", "0.5", "-o", str(path))
    assert first.returncode == 0, first.stderr
    before = (path / "records.jsonl").read_text()
    again = attnprof("sweep", "--resume", "--device", LAW, "--interval", "0.001", "-o", str(path))
    assert again.returncode == 0, again.stderr
    after = (path / "records.jsonl").read_text()
    assert after.startswith(before)
    assert len(after) > len(before)


def test_a_run_that_is_no_sweep_for_fit_takes_no_points(tmp_path: Path) -> None:
    path = tmp_path / "run"
    done = attnprof("sweep", "--device", LAW, "--axis", "seq_len=64", "-o", str(path))
    assert done.returncode == 0, done.stderr
    again = attnprof("sweep", "--for-fit", "--resume", "--device", LAW, "-o", str(path))
    assert again.returncode == 2
    assert "is no sweep for fit" in again.stderr


@pytest.mark.parametrize("kernel", [PREFILL, DECODE])
def test_the_first_points_show_every_regime(kernel: Workload) -> None:
    options = design.candidates([kernel], LIMITS)
    points = design.first_points(options, LIMITS, lambda one: 1.0, 16.0)
    assert len(points) == design.FIRST_POINTS == len(set(points))
    assert any(call_bytes(one) >= 3 * LIMITS.cache_bytes for one in points)
    assert any(one.batch_size * one.num_kv_heads >= 8 and one.kv_len <= 256 for one in points)
    assert any(one.batch_size == 1 and one.kv_len == 16 for one in points)
    longest = max(one.kv_len for one in options if one.batch_size == 1)
    assert any(one.batch_size == 1 and one.kv_len == longest for one in points)
    assert max(map(call_flops, points)) == max(map(call_flops, options))


def test_a_small_time_leaves_the_fewest_points_of_each_law() -> None:
    options = design.candidates([PREFILL, DECODE], LIMITS)
    points = design.first_points(options, LIMITS, lambda one: 10.0, 1.0)
    for phase in PHASES:
        alike = [one for one in points if one.phase == phase]
        assert len(alike) == design.FEWEST_POINTS


def test_candidates_are_bounded_by_time_and_memory() -> None:
    options = design.candidates([PREFILL, DECODE], LIMITS)
    assert max(map(LIMITS.expected_s, options)) <= LIMITS.call_s
    small = replace(LIMITS, free_bytes=2**24)
    fewer = design.candidates([PREFILL, DECODE], small)
    assert set(fewer) < set(options)


def test_points_are_added_where_they_narrow_the_law(found: RunFit) -> None:
    options = design.candidates(
        design.kernels_of(Workload.from_json(one) for one in _workloads(found)), LIMITS
    )
    doubt = design.doubt(found, options, [], LIMITS)
    assert len(doubt.points) == 2 * design.ADDED_POINTS
    assert doubt.log_sd > 0
    others = design.doubt(found, options, doubt.points, LIMITS)
    assert not set(others.points) & set(doubt.points)


def _workloads(found: RunFit) -> list[dict[str, object]]:
    run = Path(found.calibration.source["runs"])
    kept: list[dict[str, object]] = json.loads((run / "run.json").read_text())["grid"]["workloads"]
    return kept


@pytest.mark.parametrize("axis", ["seq_len=1k", "batch_size=4"])
def test_an_axis_that_the_design_chooses_is_refused(axis: str) -> None:
    asked = session.Asked(for_fit=True, axes=session.typed_axes([axis]), device="synthetic")
    with pytest.raises(UsageError, match="chooses"):
        session.plan(asked)


def test_another_sweep_by_name_is_refused() -> None:
    with pytest.raises(UsageError, match="designs its sweep"):
        session.plan(session.Asked(for_fit=True, spec="quick", device="synthetic"))


def test_a_training_step_has_no_law() -> None:
    with pytest.raises(UsageError, match="prefill and decode"):
        design.kernels_of([replace(PREFILL, phase="train")])


def test_calibrate_keeps_the_law_under_the_name_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path / "mine"))
    done = attnprof(
        "calibrate", "--device", LAW, "-o", str(tmp_path / "run"), "--format", "json", "-q"
    )
    assert done.returncode == 0, done.stderr
    kept = tmp_path / "mine" / "calibrations" / "synthetic.yaml"
    assert json.loads(done.stdout)["calibration"] == str(kept)
    text = kept.read_text()
    assert "device: 'synthetic'" in text
    assert "fingerprint: 'attnprof " in text
    shown = attnprof("show", "calibrations", "--format", "csv")
    assert "synthetic" in shown.stdout
    law = attnprof("show", "calibrations", "synthetic", "--format", "csv")
    assert "decode.flash.float32.causal" in law.stdout


CPU_LIMITS = replace(LIMITS, device_kind="cpu")


def test_of_a_cpu_layers_and_models_are_designed_too() -> None:
    grid = expand("for-fit", design.axes_of({}, "cpu"), {}, ("flash",), USUAL)
    options = design.candidates(design.kernels_of(grid.workloads), CPU_LIMITS)
    points = design.first_points(options, CPU_LIMITS, lambda one: 1.0, 1e6)
    steps = [one for one in points if one.scope != "op"]
    plain = [one for one in steps if one.implementation == "plain"]
    for scope in ("layer", "model"):
        assert sum(one.scope == scope for one in plain) == design.FIRST_STEPS
    assert {one.phase for one in plain} == {"prefill", "decode"}
    rows = {one.batch_size for one in plain if one.phase == "decode"}
    assert min(rows) < PACKED_FROM <= max(rows)
    assert all(problem(one) is None for one in steps)
    weights = [theory_weight_bytes(one) for one in plain]
    assert min(weights) < CPU_LIMITS.cache_bytes < max(weights)


def test_typed_heads_or_scopes_leave_layers_and_models_out() -> None:
    for typed in ({"num_q_heads": 8}, {"scope": "op"}):
        groups = design.axes_of(typed, "cpu")
        assert all("model" not in axes and "scope" not in axes for axes in groups.values())


def test_weights_take_time_before_anything_is_measured() -> None:
    layer = Workload(backend="flash", scope="layer", q_len=16, kv_len=16)
    assert design.set_up_s(PREFILL) == 0
    assert design.set_up_s(replace(layer, num_layers=8)) == 8 * design.set_up_s(layer) > 0
