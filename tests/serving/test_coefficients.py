"""The profile of steps: complete, sourced, and refused where a number makes no sense."""

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
    for name in (*profile.gpus, *profile.kernels):
        assert gpu_named(name).name == name
    assert all(one.meaning for one in profile.coefficients.values())


def test_kernels_of_a_calibrated_gpu_are_in_relation_to_its_calibration() -> None:
    profile = step_profile()
    plain, scaled = profile.values_on("mi300x"), profile.values_on("l40s")
    assert plain["gemm_memory"] == profile.coefficients["gemm_memory"].value
    assert scaled["gemm_compute"] > plain["gemm_compute"], "L40S multiplies less near its peak"


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
