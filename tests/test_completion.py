"""What a shell offers for what is typed so far, by the scripts that --show-completion prints."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
        (("estimate", "gpt2", "--gpu", ""), "gpus"),
        (("estimate", "gpt2", "--engine", ""), "engines"),
        (("estimate", "gpt2", "--calibration", ""), "calibrations"),
        (("validate", "calibration", "run", "--calibration", ""), "calibrations"),
        (("sweep", ""), "sweeps"),
        (("show", "sweep", ""), "sweeps"),
        (("show", "calibration", ""), "calibrations"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_every_profile_is_offered(words: tuple[str, ...], kind: str) -> None:
    assert offered(*words) == list_profiles(kind)


def test_names_that_the_code_has_are_offered() -> None:
    assert offered("show", "cache", "") == list(KV_CACHES)
    assert {*METHODS} < {*offered("estimate", "gpt2", "--quantization", "")}


def test_a_profile_of_the_users_own_is_offered(folder: Path) -> None:
    own = folder / "profiles" / "gpus"
    own.mkdir(parents=True)
    (own / "h100-mine.yaml").write_text("", encoding="utf-8")
    assert "h100-mine" in offered("estimate", "gpt2", "--gpu", "h100-")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_by_the_script_that_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "attnprof"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from attnprof.cli import main\nmain()\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    script = (
        f"PATH={tmp_path}:$PATH\n"
        "source <(attnprof --show-completion bash)\n"
        "complete -p attnprof >/dev/null || exit 9\n"
        "COMP_WORDS=(attnprof estimate llama-3.3) COMP_CWORD=2\n"
        "_attnprof_completion attnprof\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("llama-3.3-70b\n", 0), done.stderr
