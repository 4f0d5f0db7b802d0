"""``attnprof.compare``: what the command says, typed, and shown in a notebook."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import attnprof
from attnprof.cli import comparing
from attnprof.errors import UsageError
from tests.command import attnprof as command_line

SLOWER = "synthetic?noise=0.01&slow=*s4096*:1.2"
NOT_OF_TWO_RUNS = (
    "runs", "baseline", "baselines", "junit", "markdown", "annotations", "show_all",
    "output_format", "figure", "dark", "plot",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("runs")
    common: dict[str, Any] = {"seq_len": "1k..4k*2", "backend": "flash", "quiet": True}
    return (
        attnprof.sweep(device="synthetic?noise=0.01", output=folder / "before", **common),
        attnprof.sweep(device=SLOWER, output=folder / "after", **common),
    )


def test_what_got_slower_is_found_and_named(runs: tuple[Any, Any]) -> None:
    found = attnprof.compare(*runs)
    assert not found.is_yes
    assert found.verdict == "regressed"
    (worse,) = found.failing
    latency = worse.metric("latency")
    assert worse.axes["kv_len"] == 4096
    assert latency is not None and latency.ratio.low is not None
    assert latency.ratio.low < 1.2 < (latency.ratio.high or 0)
    assert "REGRESSED" in repr(found)
    assert "regressed" in found._repr_html_()


def test_a_run_against_itself_is_the_same(runs: tuple[Any, Any]) -> None:
    found = attnprof.compare(runs[0].path, str(runs[0].path))
    assert found.is_yes
    assert found.verdict == "same"


def test_a_comparison_says_what_the_command_says(runs: tuple[Any, Any]) -> None:
    found = attnprof.compare(*runs, metric=["latency", "kv_bytes"], margin=0.03)
    done = command_line(
        "compare", *(str(run.path) for run in runs), "--metric", "latency,kv_bytes",
        "--margin", "3%", "--format", "json",
    )  # fmt: skip
    assert json.loads(done.stdout) == json.loads(json.dumps(found.to_json()))
    assert found.exit_code == done.returncode == 1


def test_a_comparison_takes_the_options_of_the_command() -> None:
    options = set(inspect.signature(comparing.compare).parameters) - set(NOT_OF_TWO_RUNS)
    assert {*inspect.signature(attnprof.compare).parameters} == options | {"base", "new"}


def test_a_metric_that_is_none_is_an_error_that_names_the_nearest(
    runs: tuple[Any, Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="did you mean 'latency'"):
        attnprof.compare(*runs, metric="latencies")
    with pytest.raises(UsageError, match="holds no run"):
        attnprof.compare(runs[0], tmp_path)


def test_one_fact_that_may_differ_is_a_text(runs: tuple[Any, Any]) -> None:
    for allowed in ("torch", ["torch"], ("torch", "threads")):
        assert attnprof.compare(*runs, allow_different=allowed).verdict == "regressed"
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        attnprof.compare(*runs, allow_different="troch")


def test_a_comparison_has_a_figure(runs: tuple[Any, Any]) -> None:
    pytest.importorskip("matplotlib")
    assert "<svg" in attnprof.compare(*runs).figure()._repr_svg_()
