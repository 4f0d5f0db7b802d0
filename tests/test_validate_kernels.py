"""Laws judged on tables of kernels that obey them, or do not."""

from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.laws.baselines import BASELINES, LONGEST_ROOF
from attnprof.planning import answer_validation
from attnprof.validate_kernels import GOALS, validate_kernels
from tests.laws.tables import ATTENTION, GEMMS, attention_rows, gemm_rows, written

SHARED = Path(__file__).parents[2] / "shared" / "data" / "gpu_measurements"


def test_a_planted_law_is_found_inside_and_four_times_beyond(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv.gz", ATTENTION, attention_rows("prefill", noise=0.02))
    found = validate_kernels([path])
    pooled = {(row["holdout"], row["method"]): row for row in found.pooled()}
    for holdout in ("random", "far", "heads"):
        assert pooled[holdout, "law"]["median"] < 0.04
        assert {method for name, method in pooled if name == holdout} >= set(BASELINES)
        assert pooled[holdout, "law"]["p90"] < pooled[holdout, LONGEST_ROOF]["p90"]
        assert pooled[holdout, "law"]["p90"] < pooled[holdout, "log interpolation"]["p90"]
    assert pooled["12 points", "law"]["median"] < 0.06
    assert pooled["24 points", "law"]["in_90"] > 0.9


def test_goals_stand_beside_what_was_reached(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a.csv", ATTENTION, attention_rows("decode", noise=0.01)),
        written(tmp_path / "g.csv", GEMMS, gemm_rows()),
    ]
    found = validate_kernels(files)
    goals = found.goals()
    assert {row["law"] for row in goals} == {"decode", "gemm"}
    assert all(row["met"] for row in goals if row["holdout"] == "random" and row["what"] == "error")
    document = found.to_json()
    assert document["format"] == 1
    assert document["num_rows"] == 96 + 54
    assert {"kernels", "pooled", "goals", "left_out"} <= set(document)
    assert [table.name for table in found.tables()] == ["kernels", "kernel_errors", "kernel_goals"]


def test_a_law_of_another_gpu_is_tried_on_each(tmp_path: Path) -> None:
    gpus = ("h100_sxm", "h200_sxm", "l40s")
    files = [
        written(tmp_path / f"{gpu}.csv", ATTENTION, attention_rows("decode", gpu)) for gpu in gpus
    ]
    found = validate_kernels(files)
    tried = [(group.key["gpu"], outcome) for group, outcome in found.judged]
    family = {gpu for gpu, one in tried if one.holdout == "same family, not measured"}
    other = {gpu for gpu, one in tried if one.holdout == "other family, not measured"}
    assert family == {"h100_sxm", "h200_sxm"}
    assert other == set(gpus)
    assert all(one.median < 0.1 for _, one in tried if one.holdout == "same family, not measured")


def test_several_files_go_with_kernels_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes one file, not 2"):
        answer_validation("parameters", [tmp_path / "a", tmp_path / "b"])
    with pytest.raises(UsageError, match="cannot read"):
        answer_validation("kernels", [tmp_path / "none.csv"])


def test_rows_that_are_too_few_to_judge_are_one_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", GEMMS, gemm_rows()[:20])
    with pytest.raises(UsageError, match="20 rows: kernels with too few rows"):
        validate_kernels([path])


def test_a_shape_measured_over_and_over_is_judged_without_a_spread(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ATTENTION, [attention_rows("decode")[0]] * 60)
    assert validate_kernels([path]).judged


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the tables lie beside the checkout")
def test_the_goals_are_reached_on_real_kernels() -> None:
    found = validate_kernels([SHARED])
    rows = found.goals()
    assert len(rows) > len(GOALS)
    missed = [row for row in rows if not row["met"]]
    assert len(missed) <= 8, missed
    for row in missed:
        if row["what"] == "error":
            assert row["median"] <= 1.15 * row["goal_median"], row
