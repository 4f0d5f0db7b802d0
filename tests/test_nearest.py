"""Every option that takes a name answers a wrong one with the nearest that is right."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnprof
from attnprof.bisecting.repository import git
from attnprof.cli.app import app
from attnprof.engines.profile import engine_named
from attnprof.errors import AttnprofError, nearest_path
from attnprof.records import read_run
from attnprof.session import Asked, grid_of

ESTIMATE = ("estimate", "llama-3.1-8b", "--gpu", "h100-sxm")
ROOT = Path(__file__).parent.parent
GATE = ("gate", "--device", "synthetic", "--axis", "seq_len=512", "--base")
BISECT = ("bisect", "a", "b", "--workload", "x")
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
        ((*SWEEP, "--axis", "seqlen=1"), "seq_len"),
        ((*SWEEP, "--axis", "sequnce=1"), "seq_len"),
        ((*SWEEP, "--axis", "zzz=1"), "attnprof show axes"),
        ((*SWEEP, "--kv-heads", "mq"), "mqa"),
        (("validate", "kernels", "zzz"), "name a table of kernels, or a folder"),
        ((*SWEEP, "--allocator", "pined"), "pinned"),
        (("sweep", "--dry-run", "--device", "synthetic?nose=0.1"), "noise"),
        (("sweep", "--dry-run", "--device", "cuda:x"), "cuda:0"),
        (("sweep", "--device", "synthetic?nose=0.1"), "noise"),
        (("sweep", "--device", "synthetic", "--allocator", "pined"), "pinned"),
        (("calibrate", "--device", "synthetic?nose=0.1"), "noise"),
        (("gate", "--base", "x", "--allocator", "pined"), "pinned"),
        (("gate", "--base", "x", "--device", "synthetic?nose=0.1"), "noise"),
        (("bisect", "zzz", "HEAD", "--workload", "x", "--repository", str(ROOT)), "commit's id"),
        (("estimate", "gpt2", "--gpu", "cpuu"), "'cpu'"),
        ((*ESTIMATE[:2], "--gpu", "cpuu"), "'cpu'"),
        (("show", "gpu", "cpu"), "doctor"),
        ((*ESTIMATE, "--engine", "vllm@0.1x"), "vllm@0."),
        (("show", "engine", "vllm@0.1x"), "vllm@0."),
        (("show", "engine", "vllm@latest"), "vllm@0."),
        ((*ESTIMATE, "--format", "jsn"), "json"),
        (("compare", "a", "b", "--format", "makdown"), "markdown"),
        ((*ESTIMATE, "--format", "zzz"), "rich, json, csv, markdown"),
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
        ("kernels/a.csv", ("validate", "kernels", "kernls"), "kernels"),
        ("kernels/a.csv", ("validate", "kernels", "kernls/a.csv"), "kernels/a.csv"),
        ("results.csv", ("import", "result.csv"), "results.csv"),
        ("history/a/run.json", ("history", "histry"), "history"),
        ("reports/compare/a/run.json", ("history", "reports/compar"), "reports/compare"),
        ("reports/compare/run.json", ("report", "reprts/compare"), "reports/compare"),
        ("history/bin/python", (*GATE, "histor"), "history"),
        ("venv/bin/python", (*GATE, "venv/bin/pythn"), "venv/bin/python"),
        ("repository/x", (*BISECT, "--repository", "reposit"), "repository"),
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


def test_commits_are_looked_at_before_anything_else(tmp_path: Path) -> None:
    def typed(good: str, bad: str) -> str:
        return fix_of("bisect", good, bad, "--workload", "x", "--repository", str(tmp_path))

    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for words in ("Begin", "Go on"):
        git(
            tmp_path, "-c", "user.name=A", "-c", "user.email=a@example.com", "-c",
            "commit.gpgsign=false", "commit", "--quiet", "--allow-empty", "-m", words,
        )  # fmt: skip
    git(tmp_path, "tag", "v0.1.0")
    assert typed("mian~1", "main") == "did you mean 'main~1'?"
    assert typed("v0.1", "main") == "did you mean 'v0.1.0'?"
    assert typed("main~1", "v0.10") == "did you mean 'v0.1.0'?"
    assert typed("zzzz", "main") == "name a branch, a tag or a commit's id"
    assert typed("main", "v0.1.0") == "name two ends"
    assert "attnprof sweep --dry-run --format csv lists" in typed("main~1", "main")


def test_a_workload_to_bisect_is_answered_with_the_nearest_of_all(folder: Path) -> None:
    git(folder, "init", "--quiet", "--initial-branch=main")
    for words in ("Begin", "Go on"):
        git(
            folder, "-c", "user.name=A", "-c", "user.email=a@example.com", "-c",
            "commit.gpgsign=false", "commit", "--quiet", "--allow-empty", "-m", words,
        )  # fmt: skip
    ids = [one.workload_id for one in grid_of(Asked(spec="quick", device="cpu")).workloads]
    assert len(ids) > 20
    typed = ("bisect", "main~1", "main", "--device", "cpu", "--spec", "quick", "--workload")
    for workload_id in ids[20:]:
        assert f"did you mean '{workload_id}'?" in fix_of(*typed, f"{workload_id[:-1]}x")
    assert len(fix_of(*typed, "zzz")) < 200


def test_a_workload_of_a_history_is_answered_with_the_nearest(folder: Path) -> None:
    run = folder / "runs" / "mine"
    attnprof.sweep(device="synthetic", seq_len=[512, 1024], backend="flash", output=run, quiet=True)
    known = read_run(run).records[0]["workload_id"]
    wrong = known.replace("causal", "casual")
    assert f"did you mean '{known}'?" in fix_of("history", "runs", "--workload", wrong)
    assert "attnprof history runs --all" in fix_of("history", "runs", "--workload", "zzz*")


def test_an_import_takes_no_name_that_is_none(folder: Path) -> None:
    run = folder / "run"
    attnprof.sweep(device="synthetic", seq_len=512, backend="flash", output=run, quiet=True)
    assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0
    typed = ("import", "run/results.csv", "--output", "taken")
    assert "h100-sxm" in fix_of(*typed, "--device", "h100-sxn")
    assert "leave --device out" in fix_of(*typed, "--device", "h100-sxm")
    assert "median_s" in fix_of(*typed, "--ignore", "mediann_s")
    assert not (folder / "taken").exists()


@pytest.mark.parametrize(
    "version", ["0.11", "v0.11.2", "0.4.6.post1", "0.11.1rc2.dev5+g12ab", "0.5.7-0-ga420a45-dirty"]
)
def test_versions_as_engines_write_them_are_taken(version: str) -> None:
    assert engine_named(f"vllm@{version}").version == version


def test_an_attribute_that_the_package_lacks_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean 'estimate'"):
        _ = attnprof.estimat  # type: ignore[attr-defined]  # which is not there
