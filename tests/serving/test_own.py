"""Own calibrations: read with every check, used where they hold, and left out with a word."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.capacity.request import EstimateRequest
from attnprof.errors import UsageError
from attnprof.estimate import estimate
from attnprof.gpus import gpu_named
from attnprof.laws.calibration import (
    CalibratedLaw,
    Calibration,
    calibration_named,
    calibration_text,
)
from attnprof.models import load_model
from attnprof.serving.coefficients import step_profile
from attnprof.serving.own import NOTHING_OWN, own_kernels
from attnprof.shelf import shelf_tables

H100 = gpu_named("h100-sxm")
SHIPPED = calibration_named("h100-sxm--vllm")
LLAMA = load_model("llama-3.1-8b")


def law_with(key: str, **coefficients: float) -> CalibratedLaw:
    """A shipped law with other coefficients."""
    law = SHIPPED.laws[key]
    values = law.fitted.coefficients.copy()
    for name, value in coefficients.items():
        values[law.fitted.law.names.index(name)] = value
    return replace(law, fitted=replace(law.fitted, coefficients=values, low=values, high=values))


GEMM = {
    "gemm.bf16": law_with("gemm.bf16", compute=2.6, dram=1.5),
    "gemm.fp8": law_with("gemm.fp8", compute=9.9, dram=9.9),
}


def text_of(laws: Mapping[str, CalibratedLaw], **changed: str) -> str:
    mine = Calibration(
        name=changed.get("name", "mine"),
        device=changed.get("device", "NVIDIA H100 80GB HBM3"),
        engine="attnprof",
        source={"runs": "mine"},
        laws=laws,
    )
    return calibration_text(mine)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "calibrations"
    folder.mkdir()
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    return folder


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_users_own_calibration_goes_before_the_shipped_one(own_folder: Path) -> None:
    write(own_folder / "mine.yaml", text_of(GEMM))
    profile = step_profile()
    own = own_kernels(H100)
    found = profile.values_on("h100-sxm", own)
    plain = profile.coefficients["gemm_compute"].value
    assert found["gemm_compute"] == pytest.approx(
        plain * 2.6 / profile.kernel_means["gemm_compute"]
    )
    assert found["decode_memory"] == profile.values_on("h100-sxm")["decode_memory"], (
        "which the own one says nothing of"
    )
    assert own.names == ("mine",)
    assert own_kernels(gpu_named("h200-sxm")) == NOTHING_OWN, "of another GPU"


def test_an_estimate_says_whose_laws_its_kernels_follow(own_folder: Path) -> None:
    before = estimate(EstimateRequest(LLAMA, "h100-sxm"))
    write(own_folder / "mine.yaml", text_of(GEMM))
    after = estimate(EstimateRequest(LLAMA, "h100-sxm"))
    assert before.settings["calibration"] is None
    assert after.settings["calibration"] == "mine"
    assert "kernels follow the calibration mine: its laws of gemm" in after.notes
    assert before.ttft_s.mid is not None
    assert after.ttft_s.mid is not None
    assert after.ttft_s.mid > 1.5 * before.ttft_s.mid


def test_a_law_that_does_not_hold_is_left_out_and_said_so(own_folder: Path) -> None:
    missed = replace(GEMM["gemm.bf16"], errors={"random": (0.2, 0.3)})
    unchecked = replace(SHIPPED.laws["prefill.bf16.bf16.d128"], errors={})
    held = SHIPPED.laws["decode.bf16.bf16.d128.gqa"]
    laws = {"gemm.bf16": missed, "prefill.x": unchecked, "decode.x": held}
    write(own_folder / "mine.yaml", text_of(laws))
    own = own_kernels(H100)
    assert set(own.values) == {"decode_memory"}
    [note] = own.notes
    assert "left out gemm.bf16, prefill.x, which do not hold" in note
    assert note in estimate(EstimateRequest(LLAMA, "h100-sxm")).notes


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("format: 1", "format: 2", "has format 2, this version reads 1"),
        ("      compute 2.6", "      compute much", "compute"),
        ("      compute 2.6", "      compute nan", "compute"),
        ("      dram 1.5", "      drum 1.5", "drum"),
        ("name: 'mine'", "name: '../../etc'", "name is '../../etc'"),
        ("device: 'NVIDIA H100 80GB HBM3'", "{[", "is not YAML"),
    ],
)
def test_one_that_cannot_be_read_is_left_out_with_a_note_and_refused_by_name(
    own_folder: Path, before: str, after: str, problem: str
) -> None:
    text = text_of(GEMM)
    assert before in text
    path = write(own_folder / "broken.yaml", text.replace(before, after, 1))
    decode = {"decode.x": SHIPPED.laws["decode.bf16.bf16.d128.gqa"]}
    write(own_folder / "good.yaml", text_of(decode, name="good"))
    own = own_kernels(H100)
    assert own.names == ("good",)
    [note] = own.notes
    assert "left out a calibration that cannot be read" in note
    assert problem in note
    for name in ("broken", str(path)):
        with pytest.raises(UsageError) as refused:
            own_kernels(H100, name)
        assert problem in refused.value.problem


@pytest.mark.parametrize(
    "line",
    [
        "device: h100-sxm # mine", 'device: "NVIDIA H100 80GB HBM3"   # mine', "device: 'h100-sxm'",
        "device:\n  h100-sxm", '"device": h100-sxm', "device:\th100-sxm\r",
    ],
)  # fmt: skip
def test_the_device_counts_however_its_line_is_written(own_folder: Path, line: str) -> None:
    text = text_of(GEMM)
    before = "device: 'NVIDIA H100 80GB HBM3'"
    assert before in text
    (own_folder / "mine.yaml").write_text(text.replace(before, line, 1), newline="")
    assert own_kernels(H100).names == ("mine",)
    assert own_kernels(gpu_named("l4")) == NOTHING_OWN


def test_a_pipe_among_the_own_calibrations_is_not_waited_for(own_folder: Path) -> None:
    os.mkfifo(own_folder / "pipe.yaml")
    assert own_kernels(H100) == NOTHING_OWN


def test_two_of_one_name_are_named_once(own_folder: Path) -> None:
    for name in ("one", "two"):
        write(own_folder / f"{name}.yaml", text_of(GEMM))
    assert own_kernels(H100).names == ("mine",)


def test_of_very_many_that_cannot_be_read_a_few_are_named(own_folder: Path) -> None:
    for number in range(20):
        write(own_folder / f"{number:02}.yaml", "{[")
    notes = own_kernels(H100).notes
    assert len(notes) == 4
    assert notes[-1] == "left out 17 more that cannot be read"


def test_a_calibration_that_is_named_goes_alone(own_folder: Path) -> None:
    write(own_folder / "mine.yaml", text_of(GEMM))
    shipped = own_kernels(H100, "h100-sxm--vllm")
    assert shipped.names == ("h100-sxm--vllm",)
    assert shipped.covers("gemm_compute", "gemm_memory", "decode_memory", "prefill_compute")
    assert shipped.values["gemm_compute"] < 2, "and not that of the user's own"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": "l40s"}, "is of 'l40s', not of h100-sxm"),
        ({"device": "Some CPU, 8 threads"}, "not of h100-sxm"),
        ({"device": "../../gpus/h100-sxm.yaml"}, "not of h100-sxm"),
    ],
)
def test_one_of_another_device_is_refused_by_name_and_passed_over_in_the_folder(
    own_folder: Path, changed: dict[str, str], words: str
) -> None:
    write(own_folder / "mine.yaml", text_of(GEMM, **changed))
    assert own_kernels(H100) == NOTHING_OWN
    with pytest.raises(UsageError, match=words):
        own_kernels(H100, "mine")


def test_one_without_a_law_to_use_is_refused_by_name_with_the_reason(own_folder: Path) -> None:
    missed = replace(GEMM["gemm.bf16"], errors={"random": (0.2, 0.3)})
    write(own_folder / "missed.yaml", text_of({"gemm.bf16": missed}, name="missed"))
    with pytest.raises(UsageError, match=r"no law that a step goes by: gemm\.bf16"):
        own_kernels(H100, "missed")
    write(own_folder / "other.yaml", text_of({"gemm.fp8": GEMM["gemm.fp8"]}, name="other"))
    with pytest.raises(UsageError, match="none of a plain GEMM"):
        own_kernels(H100, "other")


def test_a_name_that_is_none_names_the_nearest_and_not_all(own_folder: Path) -> None:
    with pytest.raises(UsageError, match="unknown calibration") as refused:
        own_kernels(H100, "h100-sxm--vlm")
    assert refused.value.fix.startswith("did you mean 'h100-sxm--vllm'?")
    assert "l40s" not in refused.value.fix
    with pytest.raises(UsageError, match="unknown calibration"):
        own_kernels(H100, "../calibrations/h100-sxm--vllm")


def test_terms_that_an_own_calibration_covers_are_calibrated_on_any_gpu(own_folder: Path) -> None:
    spread_before = estimate(EstimateRequest(LLAMA, "rtx-5090"))
    laws = {
        "gemm.bf16": GEMM["gemm.bf16"],
        "decode.x": SHIPPED.laws["decode.bf16.bf16.d128.gqa"],
        "prefill.x": SHIPPED.laws["prefill.bf16.bf16.d128"],
    }
    write(own_folder / "mine.yaml", text_of(laws, device="rtx-5090"))
    after = estimate(EstimateRequest(LLAMA, "rtx-5090"))
    assert after.provenance["latency.tpot_s"] == "assumed", "the small kernels still are"

    def width(found: object) -> float:
        interval = found.tpot_s  # type: ignore[attr-defined]
        return float(interval.high / interval.mid)

    assert width(after) < width(spread_before), "the less of it is assumed"


def test_one_that_cannot_be_read_does_not_stop_the_list_of_all(own_folder: Path) -> None:
    write(own_folder / "broken.yaml", "{[")
    write(own_folder / "mine.yaml", text_of(GEMM))
    [table] = shelf_tables("calibrations")
    names = {row["name"] for row in table.rows}
    assert {"mine", "h100-sxm--vllm"} <= names
    assert "broken" not in names
    assert any("broken.yaml is not YAML" in note for note in table.notes)
