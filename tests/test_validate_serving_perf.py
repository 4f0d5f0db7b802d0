"""Serving results: every line is predicted or says why not; the open ones within the goal."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.profiles import profile_dir
from attnprof.render import terminal_text
from attnprof.serving.record import described, engine_called, gpu_called
from attnprof.validate_serving_perf import FLAGS, PerfValidation, validate_serving_perf

OPEN = Path(__file__).parents[2] / "shared" / "data" / "serving_perf_open.jsonl"
LINE: dict[str, Any] = {
    "id": "one", "set": "made", "model": "RedHatAI/Llama-3.1-8B-Instruct-FP8", "gpu": "h100_sxm",
    "num_gpus": 1, "tp": 1, "precision": "fp8", "engine": "vllm", "engine_version": "0.12.0",
    "workload": {"arrival": "closed_loop", "concurrency": 16, "isl_mean": 1024, "osl_mean": 256},
    "measured": {"tpot_ms_mean": 8.0, "ttft_ms_mean": 80.0, "output_tok_s": 1900.0}, "flags": [],
}  # fmt: skip


def _validated(tmp_path: Path, *lines: dict[str, Any]) -> PerfValidation:
    path = tmp_path / "perf.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return validate_serving_perf(path)


@pytest.fixture(scope="module")
def opened() -> PerfValidation:
    if not OPEN.is_file():
        pytest.skip("the published results are not here")
    return validate_serving_perf(OPEN)


def test_tpot_of_the_open_lines_is_within_the_goal(opened: PerfValidation) -> None:
    goal = opened.goal()
    assert goal is not None
    assert goal["num_rows"] >= 70
    assert goal["met"], goal
    assert 0.7 <= goal["share_within"] <= 0.95, "of an 80 % interval"


def test_workers_that_only_write_were_in_no_fit_and_are_met(opened: PerfValidation) -> None:
    [row] = [row for row in opened.strata()
             if row["kind"] == "disaggregated closed_loop" and row["of"] == "all"
             and row["figure"] == "tpot"]  # fmt: skip
    assert row["num_rows"] >= 30
    assert row["median_error"] < 0.15


def test_every_open_line_is_predicted_or_says_why_not(opened: PerfValidation) -> None:
    ids = {json.loads(text)["id"] for text in OPEN.read_text(encoding="utf-8").splitlines()}
    predicted = {row.id for row in opened.rows}
    skipped = {one for one, _, _ in opened.skipped}
    assert predicted | skipped == ids
    assert not predicted & skipped
    assert all(why for _, _, why in opened.skipped)
    assert sum(opened.reasons().values()) == len(skipped)


def test_a_line_gives_each_figure_with_an_interval(tmp_path: Path) -> None:
    found = _validated(tmp_path, LINE)
    assert [row.figure for row in found.rows] == ["tpot", "output_tokens_per_s", "ttft_loaded"]
    for row in found.rows:
        assert row.low < row.predicted < row.high
        assert row.model == "llama-3.1-8b"
        assert row.is_calibrated
    assert 0.004 < found.rows[0].predicted < 0.02
    assert found.goal() is not None
    assert found.to_json()["goal"]["num_rows"] == 1


def test_what_was_measured_moves_no_prediction(tmp_path: Path) -> None:
    other = {**LINE, "measured": {"tpot_ms_mean": 1.0, "ttft_ms_mean": 1.0, "output_tok_s": 1.0}}
    one, two = _validated(tmp_path, LINE), _validated(tmp_path, other)
    assert [row.predicted for row in one.rows] == [row.predicted for row in two.rows]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "someone/Unheard-Of-12B"}, "no model"),
        ({"gpu": "ZX Spectrum"}, "no GPU profile"),
        ({"engine": "abacus"}, "no engine profile"),
        ({"precision": "fp3"}, "precision 'fp3' is not known"),
        ({"num_gpus": 4, "tp": None}, "parallelism not stated"),
        ({"workload": {**LINE["workload"], "isl_mean": None}}, "prompt length not stated"),
        ({"workload": {**LINE["workload"], "concurrency": None}}, "concurrency not stated"),
        ({"workload": {**LINE["workload"], "isl_mean": "long"}}, "makes no sense"),
        ({"workload": {**LINE["workload"], "concurrency": 10**6}}, "more requests at once"),
        ({"workload": {**LINE["workload"], "arrival": "poisson"}}, "rate of arrival not stated"),
    ],
)
def test_what_cannot_be_predicted_says_why(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    found = _validated(tmp_path, {**LINE, **change}, LINE)
    [(name, _, reason)] = found.skipped
    assert name == "one"
    assert why in reason
    assert found.rows, "the other line is predicted"


def test_a_file_of_which_nothing_is_predicted_cannot_be_judged(tmp_path: Path) -> None:
    unknown = {**LINE, "model": "someone/Unheard-Of-12B"}
    with pytest.raises(
        CannotMeasureError, match=r"no model \(2\); no GPU profile \(1\)"
    ) as refused:
        _validated(tmp_path, unknown, unknown, {**LINE, "gpu": "ZX Spectrum"})
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    "broken",
    [{"workload": 3}, {"measured": None}, {"num_gpus": -1}, {"tp": "x"}, {"flags": None}],
)
def test_a_line_that_is_no_result_is_one_error(tmp_path: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="line 1"):
        _validated(tmp_path, {**LINE, **broken})
    with pytest.raises(UsageError, match="id is missing"):
        _validated(tmp_path, {key: value for key, value in LINE.items() if key != "id"})


def test_a_flag_speaks_against_its_figures_alone(tmp_path: Path) -> None:
    flagged = {**LINE, "flags": ["throughput_derived_littles_law"]}
    rows = {row.figure: row for row in _validated(tmp_path, flagged).rows}
    assert rows["output_tokens_per_s"].flags
    assert not rows["tpot"].flags
    assert rows["tpot"].counts_for_goal
    strange = {**LINE, "flags": ["never_seen_before"]}
    assert all(row.flags for row in _validated(tmp_path, strange).rows), "an unknown flag, all"
    assert "tpot" in FLAGS["tpot_reported_is_per_sse_event"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("b200_sxm", "b200-sxm"), ("NVIDIA H200 SXM5 141GB", "h200-sxm"), ("4090 24GB", "rtx-4090"),
        ("AMD MI300X 192GB", "mi300x"), ("M2 Ultra 76-Core GPU 192GB", "m2-ultra"),
        ("NVIDIA RTX PRO 6000 Blackwell SE", "rtx-pro-6000-server"), ("NVIDIA H100", "h100-sxm"),
        ("RTX A6000 48GB", "rtx-a6000"), ("A100 PCIe 80GB", "a100-pcie-80gb"),
    ],
)  # fmt: skip
def test_gpus_are_found_by_the_names_people_write(name: str, expected: str) -> None:
    assert gpu_called(name).name == expected


def test_versions_that_are_none_fall_back_to_the_engine() -> None:
    assert engine_called("trtllm", "1.2.0rc6.post3").kind == "tensorrt-llm"
    assert engine_called("sglang", "nightly-dev").name == "sglang"
    assert engine_called("vllm", "0.12.0").version.startswith("0.12")


def test_parallelism_is_read_as_each_set_writes_it() -> None:
    moe = {**LINE, "model": "deepseek-ai/DeepSeek-R1", "num_gpus": 8, "gpu": "h200_sxm"}
    apart = described({**moe, "tp": 1, "dp": 8, "ep": True}).deployment
    assert (apart.tp, apart.dp, apart.dp_attention, apart.expert_parallel) == (1, 8, True, True)
    spread = described({**moe, "tp": 8, "moe_tp": 1, "moe_ep": 8}).deployment
    assert (spread.tp, spread.dp, spread.expert_parallel) == (8, 1, True)
    assert not described({**moe, "tp": 8, "moe_tp": 8, "moe_ep": 1}).deployment.expert_parallel
    split = {"mode": "disagg", "prefill_workers": 1, "decode_workers": 2, "decode_tp": 1,
             "decode_attention_dp": 8, "decode_moe_ep": 8, "prefill_tp": 8}  # fmt: skip
    written = described({**moe, "tp": None, "num_gpus": 24, "topology": split})
    assert (written.deployment.dp, written.load.concurrency) == (8, 8.0)


def test_narrow_tables_keep_the_errors(tmp_path: Path) -> None:
    split = {**LINE, "topology": {"prefill_workers": 1, "decode_workers": 1, "gpus_per_worker": 1}}
    lines, errors = _validated(tmp_path, LINE, split).tables()
    shown = terminal_text(lines, io.StringIO(), width=80).splitlines()
    assert all(heading in shown[1] for heading in ("Figure", "Predicted", "Measured", "Error"))
    shown = terminal_text(errors, io.StringIO(), width=80).splitlines()
    assert all(heading in shown[1] for heading in ("Load", "Of", "Lines", "Median", "90 %"))
    assert any("closed loop, split" in line for line in shown)


def test_own_calibrations_that_predictions_follow_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "calibrations"
    folder.mkdir()
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    assert _validated(tmp_path, LINE).notes == ()
    shipped = (profile_dir("calibrations") / "h100-sxm--vllm.yaml").read_text(encoding="utf-8")
    mine = shipped.replace("name: 'h100-sxm--vllm'", "name: 'mine'")
    (folder / "mine.yaml").write_text(mine, encoding="utf-8")
    found = _validated(tmp_path, LINE, LINE)
    assert found.notes[0] == "Kernels of h100-sxm follow the calibration mine."
    assert found.notes[0] in found.tables()[-1].notes
    assert found.to_json()["notes"] == list(found.notes)
