"""The profile of steps: complete, sourced, and refused where a number makes no sense."""

import math
import statistics
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.gpus import gpu_named
from attnprof.profiles import profile_dir
from attnprof.serving.coefficients import NEEDED, read_step_profile, step_profile

SHIPPED = profile_dir("serving") / "step.yaml"


def test_the_shipped_profile_says_what_it_was_fitted_to() -> None:
    profile = step_profile()
    assert set(profile.coefficients) >= NEEDED
    assert "tools/fit_serving.py" in profile.source
    assert "Apache-2.0" in profile.source
    fitted = [gpu for gpus in profile.fitted.values() for gpu in gpus]
    for name in (*fitted, *profile.kernels):
        assert gpu_named(name).name == name
    assert all(one.meaning for one in profile.coefficients.values())


def test_kernels_of_a_calibrated_gpu_are_in_relation_to_its_calibration() -> None:
    profile = step_profile()
    plain, scaled = profile.values_on("mi300x"), profile.values_on("l40s")
    assert plain["gemm_memory"] == profile.coefficients["gemm_memory"].value
    assert scaled["gemm_compute"] > plain["gemm_compute"], "L40S multiplies less near its peak"


OWN = """
format: 1
device: NVIDIA H100 80GB HBM3
laws:
  gemm.bf16:
    law: gemm
    where: {dtype: bf16}
    coefficients: |
      launch 2e-06 1e-06 3e-06 1.00
      compute 2.6 2.4 2.8 0.9
      dram 1.5 1.4 1.6 0.9
  gemm.fp8:
    law: gemm
    where: {dtype: fp8}
    coefficients: |
      compute 9.9 9 10 0.9
      dram 9.9 9 10 0.9
"""


@pytest.fixture
def own_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calibrations" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(OWN, encoding="utf-8")
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    return path


def test_the_users_own_calibration_goes_before_the_shipped_one(own_calibration: Path) -> None:
    profile = step_profile()
    found = profile.values_on("h100-sxm")
    plain = profile.coefficients["gemm_compute"].value
    assert found["gemm_compute"] == pytest.approx(
        plain * 2.6 / profile.kernel_means["gemm_compute"]
    )
    shipped = (
        profile.coefficients["decode_memory"].value * profile.kernels["h100-sxm"]["decode_memory"]
    )
    assert found["decode_memory"] == shipped, "which the own one says nothing of"
    assert profile.values_on("h200-sxm")["gemm_compute"] < plain * 1.3, "of another GPU"


def test_an_own_calibration_that_makes_no_sense_is_one_error(own_calibration: Path) -> None:
    own_calibration.write_text(OWN.replace("compute 2.6", "compute much"), encoding="utf-8")
    with pytest.raises(UsageError, match="is no calibration"):
        step_profile().values_on("h100-sxm")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("format: 1", "format: 2", "has format 2, this version reads 1"),
        ("compute 2.6", "compute 1e300", r"gemm_compute is 1e\+300"),
        ("compute 2.6", "compute 1e-300", "gemm_compute is 1e-300"),
        ("compute 2.6", "compute nan", "gemm_compute is nan"),
    ],
)
def test_an_own_calibration_with_nonsense_is_refused_before_anything_is_foretold(
    own_calibration: Path, before: str, after: str, problem: str
) -> None:
    own_calibration.write_text(OWN.replace(before, after), encoding="utf-8")
    with pytest.raises(UsageError, match=problem):
        step_profile().values_on("h100-sxm")


def test_kernels_in_relation_to_a_mean_are_around_one() -> None:
    factors = [value for of in step_profile().kernels.values() for value in of.values()]
    assert math.exp(statistics.mean(map(math.log, factors))) == pytest.approx(1, rel=0.05)
    assert all(0.5 < value < 2 for value in factors)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("held_out_log_sd: ", "held_out_log_sd: -", "held_out_log_sd"),
        ("  launch: {value: ", "  launch: {value: -", "launch: value"),
        ("  launch: {", "  lunch: {", "lacks the coefficient 'launch'"),
        ("name: step", "name: step\nnmae: x", "unknown key 'nmae'"),
    ],
)
def test_a_profile_with_nonsense_is_one_error(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "step.yaml"
    text = SHIPPED.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_step_profile(path)
