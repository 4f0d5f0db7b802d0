"""Calibrations: kept whole, believed within their domain, refused where edited into nonsense."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnprof.errors import UsageError
from attnprof.laws.calibrating import calibrate, law_key
from attnprof.laws.calibration import (
    Calibration,
    band_90,
    calibration_named,
    calibration_text,
    find_law,
    predict,
    read_calibration,
)
from attnprof.laws.foreign import read_table
from attnprof.laws.groups import Group, sort_tables
from attnprof.profiles import list_profiles
from tests.laws.tables import ATTENTION, attention_rows, written

KEY = "decode.bf16.bf16.d128.gqa"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    path = tmp_path_factory.mktemp("t") / "a.csv"
    (found,) = sort_tables([read_table(written(path, ATTENTION, attention_rows("decode")))]).groups
    return found


@pytest.fixture(scope="module")
def calibration(group: Group) -> Calibration:
    laws = {law_key(group): calibrate(group)}
    return Calibration("mine", "h100-sxm", "vllm", {"licence": "it's 'free'"}, laws)


def shapes(kv_len: float, batch: float = 4) -> dict[str, list[float]]:
    return {
        "batch": [batch], "q_len": [1], "kv_len": [kv_len], "q_heads": [32], "kv_heads": [8],
        "head_dim": [128], "window": [0], "kv_size": [2],
    }  # fmt: skip


def predicted(calibration: Calibration, kv_len: float) -> tuple[float, float, float, bool]:
    low, mid, high, beyond = predict(
        calibration, KEY, {name: np.array(column) for name, column in shapes(kv_len).items()}
    )
    return float(low[0]), float(mid[0]), float(high[0]), bool(beyond[0])


def test_what_is_written_reads_back_the_same(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(calibration_text(calibration))
    again = read_calibration(path)
    assert again.source == {"licence": "it's 'free'"}
    for kv_len in (64, 4096, 200_000):
        assert np.allclose(
            predicted(again, kv_len)[:3], predicted(calibration, kv_len)[:3], rtol=0.02
        )
    assert again.laws[KEY].errors.keys() == calibration.laws[KEY].errors.keys()
    assert (
        calibration_text(again).splitlines()[:12] == calibration_text(calibration).splitlines()[:12]
    )


def test_a_law_that_misses_everything_is_kept_so_that_it_can_be_read(
    calibration: Calibration, tmp_path: Path
) -> None:
    law = calibration.laws[KEY]
    lost = replace(law, fitted=replace(law.fitted, residual_sd=1e5), near_sd=1e5)
    path = tmp_path / "c.yaml"
    path.write_text(calibration_text(replace(calibration, laws={KEY: lost})))
    again = read_calibration(path).laws[KEY]
    assert (again.fitted.residual_sd, again.near_sd) == (3.0, 3.0)


def test_predictions_agree_with_what_was_measured(calibration: Calibration, group: Group) -> None:
    low, mid, high, beyond = predict(calibration, KEY, group.shapes)
    errors = np.abs(mid / group.latency_s - 1)
    assert np.median(errors) < 0.04
    assert not beyond.any()
    assert 0.7 <= ((low <= group.latency_s) & (group.latency_s <= high)).mean() <= 1.0


def test_beyond_the_domain_an_interval_is_marked_and_widens(calibration: Calibration) -> None:
    inside, near, far = (predicted(calibration, n) for n in (16384, 65536, 1_048_576))
    assert [one[3] for one in (inside, near, far)] == [False, True, True]
    widths = [high / low for low, _, high, _ in (inside, near, far)]
    assert widths[0] < widths[1] < widths[2]
    assert inside[1] < near[1] < far[1]
    one = predict(calibration, KEY, {n: np.array(c) for n, c in shapes(1024).items()})
    low, high = band_90(one)
    assert low < one.low < one.mid < one.high < high


def test_the_nearest_law_is_found_and_what_differs_costs(calibration: Calibration) -> None:
    exact = find_law(calibration, "decode", {"q_dtype": "bf16", "head_dim": "d128"})
    other = find_law(calibration, "decode", {"q_dtype": "bf16", "head_dim": "d64"})
    assert exact == (KEY, 0.0)
    assert other is not None
    assert other[1] == pytest.approx(0.10)
    assert find_law(calibration, "gemm", {}) is None
    with pytest.raises(UsageError, match="has no law 'decod'"):
        predict(calibration, "decod", {})


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("format: 1", "format: 2", "has format 2"),
        ("      launch ", "      lunch ", "unknown key 'lunch'"),
        ("      launch ", "      launch -", "launch is -"),
        ("      launch ", "      launch 9 ", "launch has 5 numbers"),
        ("      launch ", "      launch nan ", "launch is 'nan"),
        ("    law: decode", "    law: decoder", "law is 'decoder'"),
        ("      batch 1 64", "      batch 64 1", "domain of batch is 64 to 1"),
        ("residual_sd: 0.08", "residual_sd: -1", "residual_sd is -1"),
        ("covariance: '", "covariance: '1 ", "covariance has 29 numbers"),
        ("covariance: '", "covariance: '-", "covariance is none"),
        ("bytes_per_s: 3.35e+12", "bytes_per_s: 0", "bytes_per_s is 0"),
        ("near_sd:", "nearly_sd:", "near_sd is missing"),
        ("residuals: '", "residuals: '7 ", "residuals do not come in 5"),
    ],
)
def test_a_calibration_edited_into_nonsense_is_refused_with_the_reason(
    calibration: Calibration, tmp_path: Path, before: str, after: str, problem: str
) -> None:
    text = calibration_text(calibration)
    assert before in text
    path = tmp_path / "c.yaml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(UsageError) as error:
        read_calibration(path)
    assert problem in error.value.problem


def test_a_calibration_of_a_law_that_has_gained_a_coefficient_is_to_be_fitted_again(
    calibration: Calibration, tmp_path: Path
) -> None:
    lines = calibration_text(calibration).splitlines()
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(line for line in lines if not line.startswith("      launch ")))
    with pytest.raises(UsageError, match="launch is missing") as error:
        read_calibration(path)
    assert "fit it again" in (error.value.fix or "")


@pytest.mark.parametrize(
    ("line", "instead", "problem"),
    [
        ("launch", "launch 1e300 1e300 1e300 1", "launch is 1e+300"),
        ("compute", "compute 1e-300 1e-300 1e-300 1", "compute is 1e-300"),
        ("batch", "batch 1 1e300", "domain of batch is 1 to 1e+300"),
        ("random", "random -0.5 0.2", "error random is -0.5"),
        ("far", "far 0.5 0.2", "error far is 0.5, 90 % below 0.2"),
        ("covariance:", "covariance: '{}'", "covariance is over"),
        ("residuals:", "residuals: '1e300 0 0 0 0'", "a residual lies beyond every shape"),
    ],
)
def test_numbers_that_no_fit_gives_are_refused(
    calibration: Calibration, tmp_path: Path, line: str, instead: str, problem: str
) -> None:
    size = len(calibration.laws[KEY].fitted.coefficients)
    instead = instead.format(" ".join(["1e300"] * (size * (size + 1) // 2)))
    lines = [
        f"{old[: len(old) - len(old.lstrip())]}{instead}"
        if old.split(maxsplit=1)[0] == line
        else old
        for old in calibration_text(calibration).splitlines()
    ]
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError) as error:
        read_calibration(path)
    assert problem in error.value.problem


@pytest.mark.parametrize("name", list_profiles("calibrations"))
def test_a_shipped_calibration_loads_and_names_where_it_comes_from(name: str) -> None:
    calibration = calibration_named(name)
    assert calibration.name == name
    assert {"repository", "commit", "licence", "made_by"} <= set(calibration.source)
    for key, law in calibration.laws.items():
        assert key.startswith(law.fitted.law.name)
        assert len(law.residual.residuals) <= 100
        assert law.errors


def test_there_are_calibrations_of_seven_gpus() -> None:
    devices = {calibration_named(name).device for name in list_profiles("calibrations")}
    assert len(devices) >= 7
