"""What a shell offers for what is typed so far, by the scripts that --show-completion prints."""

import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnprof
from attnprof.baselines import accept_baseline
from attnprof.cli.app import app
from attnprof.engines.quantize import METHODS
from attnprof.profiles import list_profiles
from attnprof.workload import KV_CACHES

ROOT = Path(__file__).parent.parent


def offered(*words: str) -> list[str]:
    """What bash is told after ``attnprof`` and ``words``, of which the last is not finished."""
    typed = ("attnprof", *words)
    done = CliRunner().invoke(
        app,
        env={
            "_ATTNPROF_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(typed),
            "COMP_CWORD": str(len(typed) - 1),
        },
        prog_name="attnprof",
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("estimate", "llama-3.3"), ["llama-3.3-70b"]),
        (("estimate", "gpt2,llama-3.3"), ["gpt2,llama-3.3-70b"]),
        (("estimate", "gpt2", "--gpu", "h100-"), ["h100-nvl", "h100-pcie", "h100-sxm"]),
        (("estimate", "gpt2", "--gpu", "t4,l4"), ["t4,l4", "t4,l40", "t4,l40s"]),
        (("estimate", "gpt2", "--engine", "v"), ["vllm"]),
        (("estimate", "gpt2", "--quantization", "nv"), ["nvfp4"]),
        (("estimate", "gpt2", "--kv-dtype", "fp8"), ["fp8"]),
        (("estimate", "gpt2", "--price", "on-"), ["on-demand-2025"]),
        (("sweep", "qui"), ["quick"]),
        (("sweep", "--backend", "flash,ea"), ["flash,eager"]),
        (("sweep", "--variant", "slid"), ["sliding"]),
        (("sweep", "--device", "syn"), ["synthetic"]),
        (("sweep", "--axis", "kv_c"), ["kv_cache="]),
        (("sweep", "--axis", "kv_cache=pag"), ["kv_cache=paged"]),
        (("sweep", "--axis", "seq_len=5"), []),
        (("sweep", "--axis", "nonsense=5"), []),
        (("sweep", "--model", "gemma-3-1"), ["gemma-3-12b", "gemma-3-1b"]),
        (("calibrate", "--axis", "backend=eag"), ["backend=eager"]),
        (("show", "gp"), ["gpus"]),
        (("show", "gpu", "h100-s"), ["h100-sxm"]),
        (("show", "position", "alib"), ["alibi"]),
        (("show", "nonsense", "a"), []),
        (("validate", "serving-p"), ["serving-perf"]),
        (("import", "--from", "vid"), ["vidur"]),
        (("audit", "log", "--gpu", "h100-s"), ["h100-sxm"]),
        (("gate", "qui"), ["quick"]),
        (("bisect", "a", "b", "--spec", "cont"), ["context"]),
        (("compare", "--metric", "latency,kv"), ["latency,kv_bytes"]),
        (("gate", "--metric", "peak"), ["peak_memory"]),
        (("history", "--metric", "lat"), ["latency"]),
        (("bisect", "--metric", "kv"), ["kv_bytes"]),
        (("compare", "--fail-on", "regr"), ["regressed"]),
        (("gate", "--fail-on", "failed,mis"), ["failed,missing"]),
        (("history", "--fail-on", "incon"), ["inconclusive"]),
        (("compare", "--allow-different", "to"), ["torch"]),
        (("gate", "--allow-different", "cl"), ["clocks"]),
        (("estimate", "gpt2", "--gpu", "cp"), ["cpu"]),
        (
            (
                "estimate",
                "gpt2",
                "--gpu=h100-s",
            ),
            ["h100-sxm"],
        ),
        (("estimate", "gpt2", "--engine", "vllm@0.2"), ["vllm@0.21"]),
        (("estimate", "gpt2", "--engine", "sglang,vllm@0.2"), ["sglang,vllm@0.21"]),
        (("estimate", "gpt2", "--engine", "nonsense@0"), []),
        (("audit", "log", "--engine", "sglang@0.4"), ["sglang@0.4.7"]),
        (("show", "engine", "vllm@0.2"), ["vllm@0.21"]),
        (("show", "variant", "llama-3.3"), ["llama-3.3-70b"]),
        (("show", "variant", "slid"), ["sliding"]),
        (("sweep", "--axis", "checkpointing=y"), ["checkpointing=yes"]),
        (("sweep", "--axis", "heads"), ["heads="]),
        (("sweep", "--axis", "kv_heads=mq"), ["kv_heads=mqa"]),
        (("sweep", "--axis", "softcap=n"), ["softcap=none"]),
        (
            (
                "sweep",
                "--axis=kv_cache=pag",
            ),
            ["kv_cache=paged"],
        ),
        (("sweep", "--kv-heads", "4,m"), ["4,mha", "4,mqa"]),
        (("sweep", "--format", "js"), ["json"]),
        (("re",), ["report"]),
        (("report", "--par"), ["--parquet"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_names_are_completed(words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(*words) == expected


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("estimate", ""), "models"),
        (("estimate", "gpt2", "--engine", ""), "engines"),
        (("estimate", "gpt2", "--calibration", ""), "calibrations"),
        (("validate", "calibration", "run", "--calibration", ""), "calibrations"),
        (("sweep", ""), "sweeps"),
        (("show", "sweep", ""), "sweeps"),
        (("show", "calibration", ""), "calibrations"),
        (("show", "price", ""), "prices"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_every_profile_is_offered(words: tuple[str, ...], kind: str) -> None:
    assert offered(*words) == list_profiles(kind)


def test_names_that_the_code_has_are_offered() -> None:
    assert offered("estimate", "gpt2", "--gpu", "") == ["cpu", *list_profiles("gpus")]
    assert offered("show", "cache", "") == list(KV_CACHES)
    assert {*METHODS} < {*offered("estimate", "gpt2", "--quantization", "")}


def test_a_profile_of_the_users_own_is_offered(folder: Path) -> None:
    own = folder / "profiles" / "gpus"
    own.mkdir(parents=True)
    (own / "h100-mine.yaml").write_text("", encoding="utf-8")
    assert "h100-mine" in offered("estimate", "gpt2", "--gpu", "h100-")


def test_what_lies_in_a_folder_is_offered(folder: Path) -> None:
    run = str(folder / "runs" / "mine")
    attnprof.sweep(device="synthetic", seq_len=[512, 1024], backend="flash", output=run, quiet=True)
    ids = offered("history", "runs", "--workload", "prefill-")
    assert len(ids) == 2 and all("-s512-" in one or "-s1024-" in one for one in ids)
    assert offered("history", "--workload", "decode", "runs") == []
    accept_baseline(Path(run), "the first")
    accept_baseline(Path(run), "the first", name="laptop", folder=folder / "elsewhere")
    assert offered("compare", "--baseline", "m") == ["main"]
    assert offered("baseline", "show", "") == ["main"]
    assert offered("baseline", "show", "--folder", "elsewhere", "") == ["laptop"]
    assert offered("compare", "--baselines", "elsewhere", "--baseline", "") == ["laptop"]


def test_workloads_of_the_sweep_to_bisect_are_offered() -> None:
    typed = ("bisect", "a", "b", "--axis", "seq_len=512", "--axis", "backend=flash")
    (one,) = offered(*typed, "--device", "synthetic", "--workload", "")
    assert one.startswith("prefill-causal-flash-float32-b1-s512-")
    assert offered(*typed, "--axis", "nonsense=1", "--workload", "") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attnprof estimate gpt2 --gpu h100-s", "h100-sxm"),
        ("attnprof estimate gpt2 --gpu=h100-s", "h100-sxm"),
        ("attnprof sweep --axis kv_c", "kv_cache="),
        ("attnprof sweep --axis kv_cache=pag", "kv_cache=paged"),
        ("attnprof gate qui", "quick"),
    ],
)
def test_other_shells_are_told_the_same(shell: str, line: str, expected: str) -> None:
    env = {
        "_ATTNPROF_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    told = CliRunner().invoke(app, env=env, prog_name="attnprof").stdout.strip()
    assert told == (expected if shell == "fish" else f"_arguments '*: :((\"{expected}\"))'")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with this program in it, and the scripts that shells complete it by."""
    path = tmp_path / "bin" / "attnprof"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from attnprof.cli import main\nmain()\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        env = {**os.environ, "_ATTNPROF_COMPLETE": f"source_{shell}"}
        script = subprocess.run([path], env=env, capture_output=True, text=True, check=True).stdout
        (path.parent / shell).write_text(script, encoding="utf-8")
    return path.parent


def completed(shell: list[str], program: Path, before: str, line: str) -> str:
    """What stands on the command line of a shell, in a terminal, once Tab has been pressed."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        try:
            path = f"{program}{os.pathsep}{os.environ['PATH']}"
            os.environ |= {"PATH": path, "TERM": "dumb", "PS1": "> ", "COLUMNS": "300"}
            os.execvp(shell[0], shell)
        finally:
            os._exit(127)
    try:
        _read_until(terminal, "> ")
        os.write(terminal, f"{before}; echo rea''dy\n".encode())
        _read_until(terminal, "ready\r\n> ")
        # What comes to stand before the cursor is what counts: X is typed behind it.
        os.write(terminal, f"{line}\tX".encode())
        shown = _read_until(terminal, "X")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return _as_seen(shown.rpartition("> ")[2].partition("X")[0])


def _as_seen(text: str) -> str:
    """What is left to see where a terminal was told to go back and write over it."""
    seen: list[str] = []
    place = 0
    for sign in text:
        if sign == "\b":
            place -= 1
        else:
            seen[place : place + 1] = [sign]
            place += 1
    return "".join(seen)


def _read_until(terminal: int, end: str) -> str:
    """What a terminal shows up to ``end``, which comes within a minute."""
    shown = ""
    until = time.monotonic() + 60
    while end not in shown and time.monotonic() < until:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    assert end in shown, shown
    return shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attnprof estimate llama-3.3", "attnprof estimate llama-3.3-70b "),
        ("attnprof estimate gpt2 --gpu=h100-s", "attnprof estimate gpt2 --gpu=h100-sxm "),
        ("attnprof estimate gpt2 --gpu h100-sxm,t", "attnprof estimate gpt2 --gpu h100-sxm,t"),
        ("attnprof estimate gpt2 --gpu t4,h20-", "attnprof estimate gpt2 --gpu t4,h20-"),
        ("attnprof estimate gpt2 --gpu t4,h200", "attnprof estimate gpt2 --gpu t4,h200-sxm "),
        ("attnprof estimate gpt2 --engine vllm@0.2", "attnprof estimate gpt2 --engine vllm@0.21 "),
        ("attnprof sweep --axis kv_c", "attnprof sweep --axis kv_cache="),
        ("attnprof sweep --axis kv_cache=pag", "attnprof sweep --axis kv_cache=paged "),
        ("attnprof sweep --axis=kv_cache=pag", "attnprof sweep --axis=kv_cache=paged "),
        ("attnprof sweep --axis backend=math,ea", "attnprof sweep --axis backend=math,eager "),
    ],
)
def test_bash_completes_what_it_takes_apart(program: Path, line: str, expected: str) -> None:
    before = f"source {program}/bash; bind 'set bell-style none'"
    shell = ["bash", "--norc", "--noprofile", "-i"]
    assert completed(shell, program, before, line) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_whatever_signs_it_divides_words_at(program: Path) -> None:
    before = f"COMP_WORDBREAKS=${{COMP_WORDBREAKS//[=:@]}}; source {program}/bash"
    line, expected = "attnprof sweep --axis=kv_cache=pag", "attnprof sweep --axis=kv_cache=paged "
    shell = ["bash", "--norc", "--noprofile", "-i"]
    assert completed(shell, program, before, line) == expected
