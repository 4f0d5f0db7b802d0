"""Pythons as they are typed: what starts, which attnprof runs there, what is refused and why."""

import json
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from attnprof import __version__, interpreters
from attnprof.elsewhere import provide_attnprof
from attnprof.errors import CannotMeasureError, UsageError
from attnprof.interpreters import ELSEWHERE, find_interpreter
from attnprof.workers import Launcher
from tests.checkouts import changed

PACKAGE = Path(interpreters.__file__).parent
posix = pytest.mark.skipif(sys.platform == "win32", reason="env and sh are those of POSIX")


def bare(folder: Path) -> str:
    """A Python that has its standard library and nothing else."""
    return f"env PYTHONPATH={shlex.quote(str(folder))} {shlex.quote(sys.executable)} -S"


def test_a_python_runs_the_attnprof_that_it_has() -> None:
    found = find_interpreter(sys.executable)
    assert (found.attnprof, found.path) == (__version__, str(PACKAGE))
    assert found.python == ".".join(map(str, sys.version_info[:3]))


@posix
def test_a_python_without_attnprof_runs_this_one(tmp_path: Path) -> None:
    found = find_interpreter(bare(tmp_path))
    assert found.path == str(PACKAGE)
    launcher = Launcher("synthetic", threads=1, interpreter=found)
    with closing(launcher):
        worker = launcher.start()
        assert worker.ask({"command": "rulers"}, lambda phase: 30.0)["rulers"]
        worker.close()


@posix
def test_nothing_else_of_what_is_installed_here_is_lent(tmp_path: Path) -> None:
    launcher = Launcher("cpu", threads=1, interpreter=find_interpreter(bare(tmp_path)))
    with closing(launcher), pytest.raises(CannotMeasureError, match="torch is not installed"):
        launcher.start()


def test_a_package_that_a_side_lacks_is_named(tmp_path: Path) -> None:
    checkout = changed(tmp_path, {"attnprof/worker.py": "\nimport no_such_package\n"})
    with pytest.raises(CannotMeasureError, match="No module named 'no_such_package'"):
        find_interpreter(str(checkout))


def test_a_checkout_is_named_by_its_folder(tmp_path: Path) -> None:
    checkout = changed(tmp_path, {"attnprof/__init__.py": '\n__version__ = "9.9"\n'})
    found = find_interpreter(str(checkout))
    assert (found.attnprof, found.path) == ("9.9", str(checkout / "attnprof"))


@posix
def test_a_virtual_environment_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert find_interpreter(str(tmp_path)).command == (str(tmp_path / "bin" / "python"),)


@posix
@pytest.mark.parametrize("launch_kind", ["fork", "spawn"])
def test_workers_run_the_code_of_their_side(tmp_path: Path, launch_kind: str) -> None:
    if launch_kind == "fork" and sys.platform != "linux":
        pytest.skip("forks on Linux alone")
    text = "\nSyntheticDevice.free_bytes = lambda self: 4242\n"
    checkout = changed(tmp_path, {"attnprof/devices/synthetic.py": text})
    command = f"env PYTHONPATH={checkout} {sys.executable}"
    launcher = Launcher(
        "synthetic", threads=1, launch_kind=launch_kind, interpreter=find_interpreter(command)
    )
    with closing(launcher):
        worker = launcher.start()
        assert worker.free_bytes == 4242
        worker.close()


def test_an_attnprof_of_another_protocol_is_refused(tmp_path: Path) -> None:
    checkout = changed(tmp_path, {"attnprof/worker.py": "\nPROTOCOL = 77\n"})
    with pytest.raises(CannotMeasureError, match=r"speaks protocol 77 .* this one speaks 1"):
        find_interpreter(str(checkout))


def test_an_attnprof_from_before_there_was_a_protocol_is_refused(tmp_path: Path) -> None:
    checkout = changed(tmp_path, {"attnprof/worker.py": "\ndel PROTOCOL\n"})
    with pytest.raises(CannotMeasureError, match="speaks protocol 0"):
        find_interpreter(str(checkout))


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("'", "is no command"),
        ("no-such-python", "does not start"),
        (f"{sys.executable} --no-such-flag", "starts no Python 3.11 or later: "),
        pytest.param("true", "starts no Python 3.11 or later", marks=posix),
        pytest.param("echo 7", "starts no Python", marks=posix),
    ],
)
def test_what_is_no_python_is_refused_with_what_to_type(typed: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        find_interpreter(typed)
    assert "env PYTHONPATH" in refused.value.fix


def test_a_folder_without_attnprof_or_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither attnprof nor a Python"):
        find_interpreter(str(tmp_path))


@posix
def test_a_python_in_a_process_of_its_own_is_refused_and_named() -> None:
    command = f"sh -c '{sys.executable} \"$@\"; exit' -"
    with pytest.raises(UsageError, match="in a process of its own") as refused:
        find_interpreter(command)
    assert sys.executable in refused.value.fix


def test_what_a_side_prints_beside_its_answer_is_no_answer(tmp_path: Path) -> None:
    checkout = changed(tmp_path, {"attnprof/__init__.py": '\nprint("hello")\nprint("{}")\n'})
    assert find_interpreter(str(checkout)).path == str(checkout / "attnprof")


def test_the_script_that_is_run_elsewhere_tells_in_one_line() -> None:
    told = subprocess.run(
        [sys.executable, "-P", str(ELSEWHERE), "tell"], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(told)["protocol"] == 1
    provide_attnprof()
    assert sys.modules["attnprof"].__version__ == __version__
