"""The functions of ``import attnprof``: light to import, typed, shown in a notebook."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnprof
from attnprof.cli import planning
from attnprof.errors import CannotMeasureError, UsageError
from tests.command import attnprof as command_line

OF_SHOWING = ("output_format", "figure", "dark", "plot")  # of how it is shown, not of what is asked
DEVICE = "synthetic?noise=0.02"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return attnprof.sweep(
        device=DEVICE, seq_len=[512, "1k"], backend="flash", output=folder, quiet=True
    )


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import attnprof, sys; dir(attnprof);"
        "print(sorted({'numpy', 'torch', 'pandas', 'pyarrow', 'rich', 'typer', 'yaml'}"
        " & set(sys.modules)), 'attnprof.api' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"


def test_a_module_does_not_hide_the_function_of_its_name() -> None:
    code = (
        "from attnprof.estimate import Estimate\nimport attnprof.sweep, attnprof.fit, attnprof\n"
        "print([type(f).__name__ for f in (attnprof.estimate, attnprof.sweep, attnprof.fit)])\n"
        "print(attnprof.estimate('llama-3.1-8b', 'l40s').plan.fits)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['function', 'function', 'function']\nTrue\n"


def test_an_unknown_attribute_is_none_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimates'"):
        _ = attnprof.estimates  # type: ignore[attr-defined]


def test_the_package_names_its_functions() -> None:
    assert {*attnprof.__all__} <= {*dir(attnprof)}
    for name in attnprof.__all__:
        assert getattr(attnprof, name) is not None


def test_an_estimate_takes_the_options_of_the_command() -> None:
    def names(function: Callable[..., Any]) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert sorted(names(attnprof.estimate)) == sorted(
        name for name in names(planning.estimate) if name not in OF_SHOWING
    )


def test_an_estimate_says_what_the_command_says() -> None:
    found = attnprof.estimate(
        "llama-3.1-8b", "h100-sxm", max_model_len="32k", users=8, tpot="30ms", price=2.5
    )
    done = command_line(
        "estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-model-len", "32k", "--users", "8",
        "--tpot", "30ms", "--price", "2.5", "--format", "json",
    )  # fmt: skip
    assert json.loads(done.stdout) == json.loads(json.dumps(found.to_json()))
    assert found.is_yes == (done.returncode == 0)
    assert found.cost["per_hour"] == 2.5
    assert 0 < (found.tpot_s.low or 0) < (found.tpot_s.high or 0)


def test_an_estimate_that_does_not_fit_says_so() -> None:
    found = attnprof.estimate("llama-3.1-70b", "l4")
    assert not found.is_yes
    assert repr(found) == "<llama-3.1-70b does not fit on 1 x NVIDIA L4>"


def test_an_unknown_gpu_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'h100-sxm'"):
        attnprof.estimate("llama-3.1-8b", "h100-sxn")


def test_a_notebook_shows_the_tables_of_the_command() -> None:
    found = attnprof.estimate("llama-3.1-8b", "h100-sxm")
    html = found._repr_html_()
    assert html.count("<details") == len(found.tables())
    assert "<script" not in html and "http" not in html
    assert "KV cache" in html and "54.1 GiB" in html
    assert "KV cache" in str(found)


def test_a_sweep_gives_its_run_and_a_frame_of_it(run: Any) -> None:
    assert [record["kv_len"] for record in run.records] == [512, 1024]
    assert repr(run) == f"<2 workloads measured in {run.path}>"
    frame = run.frame()
    assert list(frame["kv_len"]) == [512, 1024]
    assert list(frame["median_s"]) == [record["median_s"] for record in run.records]
    assert frame.attrs["command"] == (
        "attnprof sweep --axis seq_len=512,1k --axis backend=flash --device 'synthetic?noise=0.02'"
    )
    assert "Time of a call" in run._repr_html_()


def test_a_sweep_of_which_nothing_is_measured_says_why(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasureError, match="nothing was measured"):
        attnprof.sweep(
            device=DEVICE, seq_len="64k", batch_size=4096, backend="eager",
            output=tmp_path / "run", quiet=True,
        )  # fmt: skip


def test_an_axis_that_is_none_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'seq_len'"):
        attnprof.sweep(device=DEVICE, seqlen=512)


def test_laws_are_fitted_to_a_run_and_saved_for_an_estimate(tmp_path: Path) -> None:
    run = attnprof.sweep(
        device=DEVICE, for_fit=True, interval=0.1, output=tmp_path / "run", quiet=True
    )
    found = attnprof.fit(run)
    assert found.tables()[0].rows
    path = found.save(tmp_path / "here.yaml")
    done = command_line("show", "calibrations", str(path))
    assert done.returncode == 0, done.stderr
    assert found.calibration.device in repr(found)
    with pytest.raises(UsageError, match="cannot write"):
        found.save(tmp_path / "missing" / "here.yaml")


def test_a_fit_of_no_run_says_what_to_type() -> None:
    with pytest.raises(UsageError, match="no run to fit laws to"):
        attnprof.fit()
