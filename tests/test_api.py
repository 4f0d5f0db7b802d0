"""The functions of ``import attnprof``: light to import, typed, shown in a notebook."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnprof
from attnprof.cli import planning
from attnprof.errors import AttnprofError, CannotMeasureError, UsageError
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


def test_the_types_of_results_are_those_of_the_package() -> None:
    found = attnprof.estimate("gpt2", "l4")
    assert isinstance(found, attnprof.EstimateResult)
    code = "import attnprof, sys; attnprof.ComparisonResult; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_unknown_attribute_is_none_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimates': did you mean 'estimate'"):
        _ = attnprof.estimates  # type: ignore[attr-defined]  # which is not there


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


def test_an_argument_of_a_sweep_that_is_none_is_answered_by_a_name_of_python() -> None:
    for wrong, near in (("outptu", "output"), ("sequnce", "seq_len"), ("bugdet", "budget")):
        with pytest.raises(UsageError, match=f"did you mean '{near}'") as raised:
            call(attnprof.sweep, {wrong: 1})
        assert len(str(raised.value)) < 120


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call it with arguments that a type checker would refuse."""
    return function(**arguments)


FUNCTIONS: dict[str, dict[str, Any]] = {
    "estimate": {"model": "gpt2", "gpu": "l4"},
    "estimate_grid": {"model": "gpt2", "gpu": ["l4", "t4"]},
    "sweep": {},
    "compare": {"base": "a", "new": "b"},
    "read_run": {"run": "a"},
}
ARGUMENTS = [
    (function, name)
    for function in FUNCTIONS
    for name in inspect.signature(getattr(attnprof, function)).parameters
    if name != "axes"
]
TEXTS = st.text(st.characters(exclude_characters="/"), max_size=9)  # "a/b" is asked of the hub
OF_NO_ARGUMENT: tuple[Any, ...] = (object(), b"x", {}, 1j, {1}, len, [object()], [[]])


@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
@given(value=st.sampled_from(OF_NO_ARGUMENT))
@settings(max_examples=len(OF_NO_ARGUMENT), deadline=None)
def test_what_no_argument_takes_is_refused_by_name(function: str, name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*give "):
        getattr(attnprof, function)(**FUNCTIONS[function] | {name: value})


@pytest.mark.parametrize(("function", "name"), [one for one in ARGUMENTS if one[0] != "sweep"])
@given(
    value=st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), TEXTS,
        st.lists(st.one_of(st.integers(), TEXTS), max_size=2),
    )
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_whatever_is_given_a_refusal_says_what_to_do(
    function: str, name: str, value: object
) -> None:
    try:
        getattr(attnprof, function)(**FUNCTIONS[function] | {name: value})
    except AttnprofError as error:
        assert error.problem


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"users": "10"}, "users is '10' (give a whole number)"),
        ({"users": 1.5}, "users is 1.5 (give a whole number)"),
        ({"ep": "no"}, "ep is 'no' (give True or False)"),
        ({"gpu": ["l4"]}, "gpu is ['l4'] (give a text; attnprof.estimate_grid compares several)"),
        ({"gpu": "l4,l40s"}, "gpu is 'l4,l40s': several deployments (attnprof.estimate_grid"),
    ],
)
def test_an_argument_of_another_type_says_what_to_give(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as raised:
        attnprof.estimate(**{"model": "gpt2", "gpu": "l4"} | arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize("model", ["0/", "/", "a b/c", "gpt2\0"])
def test_a_model_that_no_hub_can_have_is_refused(model: str) -> None:
    with pytest.raises(UsageError):
        attnprof.estimate(model, "l4")


def test_numbers_of_other_libraries_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    found = attnprof.estimate("gpt2", "l4", users=numpy.int64(8), ttft=numpy.float64(2.0))
    assert json.loads(json.dumps(found.to_json()))["settings"]["users"] == 8


def test_a_fit_of_what_is_no_run_says_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"runs is 5 .*give a text or a path"):
        attnprof.fit("a", 5)  # type: ignore[arg-type]  # which is no path


def test_a_grid_says_what_the_command_says() -> None:
    found = attnprof.estimate_grid(
        "llama-3.1-8b", ["l4", "h100-sxm"], max_model_len=["8k", 32768], tpot=0.05, price=2
    )
    done = command_line(
        "estimate", "llama-3.1-8b", "--gpu", "l4,h100-sxm", "--max-model-len", "8k,32k",
        "--tpot", "50ms", "--price", "2", "--format", "json",
    )  # fmt: skip
    assert json.loads(done.stdout) == json.loads(json.dumps(found.to_json()))
    assert found.is_yes == (done.returncode == 0)
    assert repr(found) == "<4 deployments compared>"
    assert "NVIDIA" in found._repr_html_() or "h100-sxm" in found._repr_html_()


def test_a_grid_of_one_is_a_grid_and_has_a_frame() -> None:
    pytest.importorskip("pandas")
    found = attnprof.estimate_grid("gpt2", "l4")
    assert list(found.frame()["gpu"]) == ["l4"]


def test_a_grid_takes_the_options_that_the_command_takes_with_lists() -> None:
    known = {*inspect.signature(planning.estimate).parameters}
    assert {*inspect.signature(attnprof.estimate_grid).parameters} < known


def test_a_result_shows_itself_as_markdown_too() -> None:
    text = attnprof.estimate("llama-3.1-8b", "h100-sxm")._repr_markdown_()
    assert "| KV cache |" in text and "54.1 GiB" in text


def test_results_have_figures_that_a_notebook_shows(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = attnprof.estimate("llama-3.1-8b", "h100-sxm").figure()
    assert curve._repr_svg_().count("</svg>") == 1 and curve.alt in curve.svg(dark=True)
    grid = attnprof.estimate_grid("llama-3.1-8b", ["l4", "l40s"], max_model_len=["4k", "8k"])
    assert "<svg" in grid.figure().svg()
    first, *_ = run.figures().values()
    assert run.figure() == first and repr(first) == f"<figure: {first.title}>"
    assert first.save(tmp_path / "figure.png").stat().st_size > 1000
    with pytest.raises(UsageError, match="no figure of this run is called 'zzz'"):
        run.figure("zzz")
    with pytest.raises(CannotMeasureError, match="nothing to draw"):
        attnprof.estimate("llama-3.1-70b", "l4").figure()


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
