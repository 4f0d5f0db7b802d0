import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnprof import forecast as planning
from attnprof.forecast import (
    assumed_ceilings,
    forecast,
    needed_bytes,
    remember_ceilings,
    remembered_ceilings,
)
from attnprof.theory.summary import theory_weight_bytes
from attnprof.workload import Workload

PREFILL = Workload(backend="flash", q_len=1024, kv_len=1024)
DECODE = replace(PREFILL, phase="decode", q_len=1, kv_cache="static")
CEILINGS = assumed_ceilings("cpu", 2)


def call_s(workload: Workload) -> float:
    return forecast([workload], "cpu", 2, CEILINGS, None)[0].call_s


def test_longer_wider_and_deeper_workloads_are_expected_to_take_longer() -> None:
    for change in ({"q_len": 2048, "kv_len": 2048}, {"num_q_heads": 16}, {"num_layers": 2}):
        assert call_s(Workload.from_json(PREFILL.to_json() | change)) > 1.5 * call_s(PREFILL)


def test_a_growth_is_as_long_as_its_steps() -> None:
    growth = replace(DECODE, phase="kv-growth", start_len=24)
    step = replace(DECODE, kv_len=(25 + 1024) // 2)
    assert call_s(growth) == pytest.approx(1000 * call_s(step))


def test_what_cannot_fit_or_run_is_named_before_it_is_run() -> None:
    small, large, foreign = forecast(
        [PREFILL, replace(PREFILL, batch_size=4096), replace(PREFILL, backend="cudnn")],
        "cpu",
        2,
        CEILINGS,
        2**30,
    )
    assert small.problem is None
    assert large.problem is not None
    assert large.problem.endswith("more than 90% of the 1 GiB that are free")
    assert foreign.problem == "cudnn does not run on cpu"


def test_a_dtype_that_was_never_multiplied_is_planned_at_float32s_rate() -> None:
    assert call_s(replace(PREFILL, dtype="bfloat16")) > 0


def test_measured_ceilings_serve_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_ceilings_file", lambda: tmp_path / "deep" / "ceilings.json")
    assert remembered_ceilings("cpu", 2) is None
    remember_ceilings("cpu", 2, CEILINGS)
    remember_ceilings("cuda", 1, {})
    assert remembered_ceilings("cpu", 2) == CEILINGS
    (tmp_path / "deep" / "ceilings.json").write_text("[1,")
    assert remembered_ceilings("cpu", 2) is None


@pytest.mark.parametrize(
    "kept",
    [
        {"cpu/2": 3.5},
        {"cpu/2": {"copy_bytes_per_s": "fast"}},
        {"cpu/2": {"matmul": {"float32": 1e12}}},
        {"cpu/2": {"matmul": []}},
    ],
)
def test_remembered_ceilings_of_another_kind_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: dict[str, object]
) -> None:
    monkeypatch.setattr(planning, "_ceilings_file", lambda: tmp_path / "ceilings.json")
    (tmp_path / "ceilings.json").write_text(json.dumps(kept))
    assert remembered_ceilings("cpu", 2) is None


def test_the_roofs_of_one_synthetic_law_do_not_foretell_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_ceilings_file", lambda: tmp_path / "ceilings.json")
    remember_ceilings("synthetic", 2, CEILINGS)
    assert remembered_ceilings("synthetic", 2) is None


def test_training_needs_a_gradient_of_each_weight() -> None:
    sizes: dict[str, Any] = {
        "backend": "eager", "scope": "layer", "q_len": 8, "kv_len": 8, "num_q_heads": 2,
        "num_kv_heads": 2,
    }  # fmt: skip
    forward, trained = Workload(**sizes), Workload(**sizes, phase="train")
    more = needed_bytes(trained, "cpu", 1) - needed_bytes(forward, "cpu", 1)
    assert more == theory_weight_bytes(forward)
