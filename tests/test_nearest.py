"""Every option that takes a name answers a wrong one with the nearest that is right."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnprof.cli.app import app
from attnprof.errors import AttnprofError, nearest_path

ESTIMATE = ("estimate", "llama-3.1-8b", "--gpu", "h100-sxm")
SWEEP = ("sweep", "--device", "synthetic", "--dry-run")


def fix_of(*words: str) -> str:
    """What the command line says last, about a request that makes no sense."""
    done = CliRunner().invoke(app, words)
    assert done.stdout == ""
    if isinstance(done.exception, AttnprofError):
        assert done.exception.exit_code == 2
        return done.exception.fix
    assert done.exit_code == 2
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("estimate", "llama-3.1-8c", "--gpu", "l4"), "llama-3.1-8b"),
        (("estimate", "gpt2", "--gpu", "h100-sxn"), "h100-sxm"),
        ((*ESTIMATE, "--engine", "vlm"), "vllm"),
        ((*ESTIMATE, "--quantization", "fp9"), "fp8"),
        ((*ESTIMATE, "--kv-dtype", "fp9"), "fp8"),
        ((*ESTIMATE, "--dtype", "bfloat17"), "bfloat16"),
        ((*ESTIMATE, "--calibration", "h100-sxm--vlm"), "h100-sxm--vllm"),
        ((*ESTIMATE, "--price", "on-demand-2052"), "on-demand-2025"),
        ((*SWEEP, "quik"), "quick"),
        ((*SWEEP, "--axis", "seqlen=1"), "seq-len"),
        ((*SWEEP, "--backend", "falsh"), "flash"),
        ((*SWEEP, "--variant", "slidin"), "sliding"),
        ((*SWEEP, "--phase", "prefil"), "prefill"),
        ((*SWEEP, "--scope", "modl"), "model"),
        ((*SWEEP, "--dtype", "float31"), "float32"),
        ((*SWEEP, "--model", "gpt3"), "gpt2"),
        ((*SWEEP, "--implementation", "plane"), "plain"),
        ((*SWEEP, "--axis", "position=rop"), "rope"),
        ((*SWEEP, "--axis", "mixer=grru"), "gru"),
        (("sweep", "--dry-run", "--device", "cudaa"), "cuda"),
        (("doctor", "--device", "cudaa"), "cuda"),
        (("calibrate", "--device", "sinthetic"), "synthetic"),
        (("show", "modles"), "models"),
        (("show", "model", "gpt3"), "gpt2"),
        (("show", "gpu", "h100-sxn"), "h100-sxm"),
        (("show", "engine", "vlm"), "vllm"),
        (("show", "sweep", "quik"), "quick"),
        (("show", "position", "rop"), "rope"),
        (("show", "cache", "page"), "paged"),
        (("show", "backend", "flsh"), "flash"),
        (("show", "variant", "slidng"), "sliding"),
        (("validate", "kernel", "x"), "kernels"),
        (("import", "x", "--from", "vidr"), "vidur"),
        (("estimat",), "estimate"),
        (("report", "--parqet", "x"), "--parquet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_wrong_name_is_answered_with_the_nearest(
    words: tuple[str, ...], near: str, folder: Path
) -> None:
    assert near in fix_of(*words)


@pytest.mark.parametrize(
    ("made", "words", "near"),
    [
        ("runs/mine/run.json", ("report", "runs/mien"), "runs/mine"),
        ("mine/run.json", ("fit", "mien"), "mine"),
        ("config.json", ("estimate", "./confg.json", "--gpu", "l4"), "config.json"),
        ("grid.yaml", (*SWEEP, "gird.yaml"), "grid.yaml"),
        ("vllm.log", ("audit", "vlm.log"), "vllm.log"),
        ("cases.jsonl", ("validate", "serving-cases", "case.jsonl"), "cases.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_path_is_answered_with_the_nearest(
    made: str, words: tuple[str, ...], near: str, folder: Path
) -> None:
    (folder / made).parent.mkdir(parents=True, exist_ok=True)
    (folder / made).touch()
    assert fix_of(*words) == f"did you mean '{near}'?"


def test_a_path_that_is_there_has_no_nearest(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert nearest_path(tmp_path / "mine") is None
    assert nearest_path(tmp_path / "missing" / "mine") is None
    assert nearest_path(tmp_path / "min", "*/run.json") is None
    assert nearest_path(tmp_path / "min") == f"did you mean '{tmp_path / 'mine'}'?"
