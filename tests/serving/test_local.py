"""Plain torch on this CPU: an estimate by its calibration, and what is refused without one."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.capacity import local_cpu
from attnprof.capacity.latency import Interval
from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.capacity_tables import estimate_tables
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.estimate import Estimate, estimate
from attnprof.estimate_grid import Asked, GridRequest, estimate_grid, grid_offers
from attnprof.laws.calibration import Calibration, calibration_text, read_calibration
from attnprof.models.load import load_model
from attnprof.models.spec import ModelSpec
from attnprof.predicted import Predicted, predict_workloads
from attnprof.serving.latency import latency_of
from attnprof.serving.offers import UNKNOWN as UNKNOWN_VERDICT
from attnprof.workload import Workload
from tests.calibrations import cpu_calibration

NAME, THREADS = "a CPU", 1
REQUEST = EstimateRequest(
    model=load_model("smollm2-135m"), gpu="cpu", engine="torch", dtype="float32", prompt_len=100,
    output_len=40, users=1,
)  # fmt: skip
TOKEN = Workload(
    backend="flash", phase="decode", q_len=1, kv_len=120, num_q_heads=9, num_kv_heads=3,
    num_layers=30, kv_cache="contiguous", scope="model", model="smollm2-135m",
    implementation="transformers",
)  # fmt: skip


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Calibration]:
    """This computer is a CPU that was calibrated."""
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    monkeypatch.setattr(local_cpu, "cpu_name", lambda: NAME)
    monkeypatch.setattr(local_cpu, "default_threads", lambda: THREADS)
    found = cpu_calibration("a-cpu-1-thread", f"{NAME}, {THREADS} thread")
    (tmp_path / "calibrations").mkdir()
    (tmp_path / "calibrations" / "a-cpu-1-thread.yaml").write_text(calibration_text(found))
    yield found


@pytest.fixture
def found(calibration: Calibration) -> Estimate:
    return estimate(REQUEST)


def test_a_token_takes_a_step_of_the_law_and_what_generate_adds(
    found: Estimate, calibration: Calibration
) -> None:
    (step,) = predict_workloads(calibration, [TOKEN])
    assert step.mid_s is not None
    assert found.tpot_s.mid == pytest.approx(step.mid_s + calibration.overheads["step_s"], rel=1e-3)
    low, mid, high = found.tpot_s.low, found.tpot_s.mid, found.tpot_s.high
    assert low is not None and mid is not None and high is not None
    assert low < mid < high


def test_overheads_come_back_from_the_file(calibration: Calibration, tmp_path: Path) -> None:
    kept = read_calibration(tmp_path / "calibrations" / "a-cpu-1-thread.yaml")
    assert kept.overheads == calibration.overheads


@pytest.mark.parametrize("line", ["first_s: -1.0", "first_s: .inf", "first_s: soon", "more_s: 1.0"])
def test_overheads_of_no_sense_are_refused(
    calibration: Calibration, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "calibrations" / "a-cpu-1-thread.yaml"
    path.write_text(path.read_text().replace("first_s: 0.002", line))
    with pytest.raises(UsageError, match="overheads"):
        read_calibration(path)


def test_the_prompt_of_a_batch_is_read_at_once(calibration: Calibration) -> None:
    one, four = (estimate(replace(REQUEST, users=users)) for users in (1, 4))
    assert one.ttft_loaded_s == one.ttft_s
    assert four.ttft_s == one.ttft_s
    assert four.ttft_loaded_s.mid is not None and one.ttft_s.mid is not None
    assert 3 < four.ttft_loaded_s.mid / one.ttft_s.mid < 5


def test_the_estimate_says_that_it_is_calibrated_and_by_what(found: Estimate) -> None:
    document = found.to_json()
    assert document["provenance"]["latency.tpot_s.mid"] == "calibrated"
    assert document["provenance"]["memory_per_gpu.total_bytes"] == "measured"
    assert document["settings"]["calibration"] == "a-cpu-1-thread"
    assert any("a-cpu-1-thread" in note for note in document["notes"])
    assert json.dumps(document)


def test_the_sum_by_term_is_the_time_of_a_token(found: Estimate) -> None:
    assert found.step is not None
    assert found.step.token_s == pytest.approx(found.tpot_s.mid)
    assert found.step.prompt_s == pytest.approx(found.ttft_s.mid)


def test_limits_are_held_by_a_batch(calibration: Calibration) -> None:
    tpot_s = estimate(replace(REQUEST, users=8)).tpot_s.mid
    assert tpot_s is not None
    found = estimate(replace(REQUEST, users=None, tpot_s=1.01 * tpot_s))
    assert found.slo is not None
    assert found.slo.max_batch_size >= 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "vllm"}, "not planned on a CPU"),
        ({"num_gpus": 2}, "one device"),
        ({"calibration": "h100-sxm--vllm"}, "not of this CPU"),
    ],
)
def test_what_the_laws_of_a_cpu_do_not_say_is_refused(
    calibration: Calibration, change: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        estimate(replace(REQUEST, **change))  # type: ignore[arg-type]


UNKNOWN = [
    ({"dtype": "bfloat16"}, "no law of bfloat16: write --dtype float32, or measure it: attnprof"),
    ({"quantization": "awq"}, "no law of weights in awq"),
    ({"kv_dtype": "fp8"}, "no law of a cache in fp8"),
    ({"num_draft_tokens": 2}, "no law of drafts"),
    ({"model": load_model("bart-base")}, "no law of prefill with attention to a source"),
    ({"model": load_model("falcon-h1-1.5b")}, "no law of layers with a state"),
    ({"model": load_model("mamba2-2.7b")}, "no law of layers with a state"),
]


@pytest.mark.parametrize(("change", "words"), UNKNOWN)
def test_what_the_laws_say_nothing_of_is_unknown_beside_memory_that_is_not(
    calibration: Calibration, change: dict[str, object], words: str
) -> None:
    found = estimate(replace(REQUEST, **change))  # type: ignore[arg-type]
    assert found.plan.fits
    assert found.ttft_s.mid is found.tpot_s.mid is found.output_tokens_per_s.mid is None
    assert not found.curve
    assert found.step is None
    assert found.to_json()["provenance"]["latency.tpot_s.mid"] != "calibrated"
    assert any(words in note for note in found.notes)
    shown = {row.get("what"): row for table in estimate_tables(found) for row in table.rows}
    assert "unknown" in shown["time to first token"]["basis"]


@pytest.mark.parametrize(("change", "words"), UNKNOWN)
def test_limits_of_what_is_unknown_cannot_be_judged(
    calibration: Calibration, change: dict[str, object], words: str
) -> None:
    with pytest.raises(CannotMeasureError, match=words):
        estimate(replace(REQUEST, tpot_s=1.0, **change))  # type: ignore[arg-type]


def test_where_only_another_dtype_has_a_law_the_row_and_the_error_say_what_to_type(
    calibration: Calibration,
) -> None:
    in_its_own = replace(REQUEST, dtype=None)  # the model's: bfloat16
    found = estimate(in_its_own)
    assert found.latency_fix == "--dtype float32"
    shown = {row.get("what"): row for table in estimate_tables(found) for row in table.rows}
    for what in ("time to first token", "  among the others", "time per output token, 1 at once"):
        assert shown[what]["basis"].endswith("unknown: write --dtype float32")
    with pytest.raises(CannotMeasureError) as caught:
        estimate(replace(in_its_own, tpot_s=1.0))
    assert caught.value.fix == "write --dtype float32"
    assert estimate(REQUEST).latency_fix is None
    # Where it would not help either, it is not said.
    for change in ({"num_draft_tokens": 2}, {"model": load_model("bart-base")}):
        other = estimate(replace(in_its_own, **change))
        assert other.latency_fix is None
        assert not any("--dtype float32" in note for note in other.notes)


def test_a_law_of_this_cpu_that_does_not_hold_is_said_in_plain_words(
    calibration: Calibration, tmp_path: Path
) -> None:
    missing = {key: replace(law, errors={"random": (9.0, 9.0)}) if key == "library" else law
               for key, law in calibration.laws.items()}  # fmt: skip
    text = calibration_text(replace(calibration, laws=missing))
    (tmp_path / "calibrations" / "a-cpu-1-thread.yaml").write_text(text)
    [words] = [note for note in estimate(REQUEST).notes if "missed much" in note]
    assert "the law of a whole step (library)" in words
    assert "the times, and the costs by them, may lie outside their intervals" in words


def test_experts_have_no_law_in_the_library(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}  # fmt: skip
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    path.write_text(json.dumps({"model_type": "mixtral", **sizes, **experts}))
    found = estimate(replace(REQUEST, model=load_model(str(path))))
    assert found.tpot_s.mid is None
    assert any("no law of experts" in note for note in found.notes)


def test_what_lies_in_the_cache_is_not_held_to_the_roof_of_memory(
    calibration: Calibration,
) -> None:
    law = latency_of(deployment_of(REQUEST))
    assert law.floored(Interval(1.0, 2.0, 4.0), 3.0) == Interval(1.0, 2.0, 4.0)
    on_gpu = latency_of(deployment_of(replace(REQUEST, gpu="h100-sxm")))
    assert on_gpu.floored(Interval(1.0, 2.0, 4.0), 3.0) == Interval(3.0, 3.0, 4.0)


def test_without_a_law_of_the_library_that_of_our_own_layers_is_taken(
    calibration: Calibration, tmp_path: Path
) -> None:
    plain = replace(
        calibration, laws={key: law for key, law in calibration.laws.items() if key != "library"}
    )
    (tmp_path / "calibrations" / "a-cpu-1-thread.yaml").write_text(calibration_text(plain))
    (step,) = predict_workloads(plain, [replace(TOKEN, implementation="plain")])
    assert step.mid_s is not None
    assert estimate(REQUEST).tpot_s.mid == pytest.approx(step.mid_s + plain.overheads["step_s"])


def test_no_call_is_foretold_twice_for_one_estimate(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Workload] = []

    def counted(
        laws: Calibration, workloads: Sequence[Workload], spec: ModelSpec | None = None
    ) -> list[Predicted]:
        asked.extend(workloads)
        return predict_workloads(laws, workloads, spec)

    monkeypatch.setattr("attnprof.predicted.predict_workloads", counted)
    estimate(replace(REQUEST, users=None, tpot_s=0.2))
    assert asked
    assert len(asked) == len(set(asked))


def test_a_calibration_that_was_made_again_is_read_again(
    calibration: Calibration, tmp_path: Path
) -> None:
    before = estimate(REQUEST).tpot_s.mid
    path = tmp_path / "calibrations" / "a-cpu-1-thread.yaml"
    path.write_text(path.read_text().replace("step_s: 0.0002", "step_s: 0.5"))
    os.utime(path, ns=(1, 1))
    after = estimate(REQUEST).tpot_s.mid
    assert before is not None and after is not None
    assert after == pytest.approx(before + 0.5 - 2e-4)


def test_a_comparison_takes_the_cpu_beside_gpus(calibration: Calibration) -> None:
    """Where an engine or ranks do not go on it, the GPUs stay and it is said."""
    request = GridRequest(
        models=(REQUEST.model, load_model("bart-base")), gpus=("h100-sxm", "cpu", "l4"),
        engines=("torch", "vllm"), tps=(1, 3), dtype="float32",
    )  # fmt: skip
    grid = estimate_grid(request)
    rows = [{**row, "offer": offer} for row, offer in
            zip(grid.rows(), grid_offers(grid, Asked(100, 40)), strict=True)]  # fmt: skip
    on_cpu = {row["model"]: row for row in rows if row["gpu"] == "cpu"}
    assert len(on_cpu) == 2
    assert len(rows) > 10
    alone = estimate(REQUEST)
    assert on_cpu["smollm2-135m"]["kv_bytes"] == alone.plan.kv_bytes
    most = on_cpu["smollm2-135m"]["offer"].batch_size
    assert on_cpu["smollm2-135m"]["offer"].tpot_s == estimate(replace(REQUEST, users=most)).tpot_s
    assert on_cpu["bart-base"]["offer"].verdict == UNKNOWN_VERDICT
    assert "to a source" in on_cpu["bart-base"]["offer"].reason
    reasons = {reason for what, reason in grid.skipped if what.get("gpu") == "cpu"}
    assert reasons == {"engine vllm is not planned on a CPU", "a CPU is one device"}


def test_a_comparison_with_a_cpu_that_was_not_calibrated_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    with pytest.raises(UsageError, match="nothing is known of this CPU"):
        estimate_grid(GridRequest(models=(REQUEST.model,), gpus=("h100-sxm", "CPU")))


def test_without_a_calibration_it_is_said_how_to_make_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    with pytest.raises(UsageError, match="nothing is known of this CPU") as caught:
        estimate(REQUEST)
    assert "attnprof calibrate" in (caught.value.fix or "")
