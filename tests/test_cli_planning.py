"""``estimate``, ``audit``, ``validate`` and ``show`` as a user meets them."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnprof.profiles import list_profiles
from tests.command import attnprof

SHARED = Path(__file__).parents[2] / "shared" / "data"
H100_8K = ("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-model-len", "8k")

CORE = "(EngineCore_DP0 pid=7) INFO 09-10 10:00:30"
VLLM_LOG = f"""\
INFO 09-10 10:00:00 [__init__.py:241] Automatically detected platform cuda.
{CORE} [core.py:72] Initializing a V1 LLM engine (v0.11.0) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, kv_cache_dtype=auto
{CORE} [gpu_model_runner.py:2392] Model loading took 14.9889 GiB and 2.9 seconds
{CORE} [gpu_worker.py:298] Available KV cache memory: 50.55 GiB
{CORE} [kv_cache_utils.py:1087] GPU KV cache size: 414,096 tokens
{CORE} [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 50.55x
""".encode()


def estimated(*args: str) -> dict[str, Any]:
    done = attnprof(*args, "--format", "json")
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_an_estimate_is_the_documented_document(folder: Path) -> None:
    document = estimated(*H100_8K)
    assert document["format"] == 1
    assert {"model", "kv", "memory_per_gpu", "capacity", "latency", "cost", "binding"} <= set(
        document
    )
    assert document["model"]["num_params"] == 8_030_261_248
    assert 54 * 2**30 <= document["memory_per_gpu"]["kv_bytes"] <= 55 * 2**30
    assert 53 <= document["capacity"]["max_concurrency"] <= 56
    assert document["provenance"]["latency.ttft_s"] == "calibrated"


def test_the_latent_cache_is_not_divided_among_ranks(folder: Path) -> None:
    document = estimated(
        "estimate", "deepseek-v3", "--gpu", "h200-sxm", "--gpus", "8", "--tp", "8",
        "--max-model-len", "32k",
    )  # fmt: skip
    assert document["kv"]["bytes_per_token_per_rank"] == 70_272
    assert 17 <= document["capacity"]["max_concurrency"] <= 21


def test_who_counts_the_cache_how_is_shown(folder: Path) -> None:
    document = estimated("estimate", "gemma-3-27b", "--gpu", "h100-sxm", "--max-model-len", "32k")
    kv = document["kv"]
    shown = ("ideal_bytes_per_sequence", "bytes_per_sequence", "windowless_bytes_per_sequence")
    assert [round(kv[key] / 2**30, 1) for key in shown] == [2.9, 6.7, 15.5]


def test_what_does_not_fit_says_no_and_what_would(folder: Path) -> None:
    done = attnprof("estimate", "llama-3.1-70b", "--gpu", "rtx-4090", "--max-model-len", "8k")
    assert done.returncode == 1
    assert "--gpus" in done.stdout


def test_what_is_missing_is_said_and_no_context_beyond_the_models_is_offered(folder: Path) -> None:
    short = attnprof("estimate", "llama-3.1-70b", "--gpu", "h100-sxm")
    assert "missing before any KV cache" in short.stdout
    long = attnprof("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-model-len", "1m")
    assert "--max-model-len 131072" in long.stdout
    assert "--max-model-len 443520" not in long.stdout


def test_more_users_than_fit_is_a_no(folder: Path) -> None:
    assert attnprof(*H100_8K, "--users", "50").returncode == 0
    assert attnprof(*H100_8K, "--users", "500").returncode == 1


def test_users_are_counted_at_the_lengths_that_were_typed(folder: Path) -> None:
    lengths = ("--prompt-len", "1k", "--output-len", "500", "--users", "100")
    done = attnprof(*H100_8K, *lengths)
    assert done.returncode == 0
    assert "100 users of 1,524" in done.stdout
    full = attnprof(*H100_8K, "--users", "100")
    assert full.returncode == 1
    assert "no, 54" in full.stdout
    assert estimated(*H100_8K, "--users", "100")["settings"]["users_served"] == 54


def test_a_version_newer_than_any_known_says_whose_rules_it_gets(folder: Path) -> None:
    done = attnprof(*H100_8K, "--engine", "vllm@99")
    assert "newer than any known here" in done.stdout
    assert "newer than" not in attnprof(*H100_8K, "--engine", "vllm@0.19.1").stdout


def test_lists_make_one_comparison(folder: Path) -> None:
    done = attnprof(
        "estimate", "llama-3.1-8b,qwen3-32b", "--gpu", "h100-sxm,h200-sxm", "--max-model-len",
        "8k,32k", "--kv-dtype", "auto,fp8", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 16
    one = next(
        row
        for row in rows
        if (row["model"], row["gpu"], row["max_model_len"], row["kv_dtype"])
        == ("llama-3.1-8b", "h100-sxm", 8192, "auto")
    )
    assert one["max_concurrency"] == estimated(*H100_8K)["capacity"]["max_concurrency"]


@pytest.mark.parametrize("output_format", ["rich", "csv", "markdown", "json"])
@pytest.mark.parametrize(
    "args",
    [H100_8K, ("show", "gpus"), ("show", "models"), ("show", "engines", "vllm"),
     ("show", "gpus", "h100-sxm"), ("show", "models", "gpt-oss-120b"), ("show", "backends"),
     ("show", "axes"), ("show", "sweeps", "quick")],
)  # fmt: skip
def test_every_table_is_written_in_every_format(
    args: tuple[str, ...], output_format: str, folder: Path
) -> None:
    done = attnprof(*args, "--format", output_format)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr
    if output_format == "json":
        assert json.loads(done.stdout)["format"] == 1


def test_an_audit_holds_each_term_against_the_estimate(folder: Path) -> None:
    (folder / "vllm.log").write_bytes(VLLM_LOG)
    done = attnprof("audit", "vllm.log", "--gpu", "h100-sxm", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["engine"], document["engine_version"]) == ("vllm", "0.11.0")
    terms = {term["term"]: term for term in document["terms"] if term["given"] == "settings"}
    assert abs(terms["weights"]["relative_error"]) < 0.01
    piped = attnprof("audit", "-", "--gpu", "h100-sxm", "--format", "json", stdin=VLLM_LOG)
    assert piped.stdout == done.stdout


def test_an_audited_engine_serves_later_estimates(folder: Path) -> None:
    (folder / "vllm.log").write_bytes(VLLM_LOG)
    done = attnprof("audit", "vllm.log", "--gpu", "h100-sxm", "--write", "mine")
    assert done.returncode == 0, done.stderr
    assert "use it with --engine mine" in done.stderr
    mine, plain = (
        estimated(*H100_8K, "--engine", engine)["memory_per_gpu"]["kv_bytes"]
        for engine in ("mine", "vllm@0.11")
    )
    assert mine != plain
    assert mine == pytest.approx(50.55 * 2**30, rel=0.01)


def test_several_gpus_are_compared_within_limits_of_latency(folder: Path) -> None:
    asked = ("estimate", "qwen3-32b", "--gpu", "h100-sxm,l40s,t4", "--gpus", "4")
    done = attnprof(*asked, "--ttft", "2s", "--tpot", "40ms", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = {row["gpu"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["t4"]["verdict"] == "does not fit"
    best = rows["h100-sxm"]
    assert best["cheapest"]
    assert best["num_gpus"] == 4
    assert 0 < best["safe_batch_size"] < best["batch_size"]
    assert best["per_million_output_tokens"] > 0
    assert attnprof(*asked, "--tpot", "1ms").returncode == 1, "none holds it"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the files of truth lie beside the checkout")
@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("parameters", "transformers_params.jsonl"),
        ("serving-cases", "serving_cases_open.jsonl"),
    ],
)
def test_predictions_are_scored_line_by_line(kind: str, file: str, folder: Path) -> None:
    done = attnprof("validate", kind, str(SHARED / file), "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert rows
    assert {"id", "term", "predicted", "reported", "relative_error"} <= set(rows[0])


def test_shown_lists_hold_every_profile(folder: Path) -> None:
    for kind in ("models", "gpus"):
        rows = json.loads(attnprof("show", kind, "--format", "json").stdout)["tables"][0]["rows"]
        assert {row["name"] for row in rows} == set(list_profiles(kind))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("estimate", "llama-3.1-8b"), "--gpu"),
        (("estimate", "lama-3.1-8b", "--gpu", "h100-sxm"), "did you mean 'llama-3.1-8b'?"),
        (("estimate", "llama-3.1-8b", "--gpu", "h1000"), "did you mean"),
        ((*H100_8K, "--engine", "vlm"), "did you mean 'vllm'?"),
        ((*H100_8K, "--tp", "0"), "tp is '0'"),
        ((*H100_8K, "--tp", "3"), "does not divide the 32 query heads"),
        ((*H100_8K, "--gpus", "3"), "or --tp 1 --dp 3"),
        ((*H100_8K, "--gpu-memory-utilization", "1.5"), "above 0 and up to 1"),
        ((*H100_8K, "--gpu-memory-utilization", "x"), "is not a share"),
        ((*H100_8K, "--kv-dtype", "fp9"), "fp9"),
        ((*H100_8K, "--quantization", "awk"), "awk"),
        ((*H100_8K, "--price", "cheap"), "cheap"),
        ((*H100_8K[:4], "--max-model-len", "-1"), "is not a count"),
        ((*H100_8K[:4], "--max-model-len", "8k,16k", "--pp", "2"), "--pp goes with a single"),
        (("estimate", "config.json", "--gpu", "h100-sxm"), "no such file: config.json"),
        (("audit", "absent.log"), "cannot read absent.log"),
        (("audit", "."), "cannot read ."),
        (("validate", "parameters", "absent.jsonl"), "cannot read absent.jsonl"),
        (("validate", "params", "x"), "did you mean 'parameters'?"),
        (("show", "gpus", "h100-smx"), "did you mean 'h100-sxm'?"),
        (("show", "models", "gpt-os-20b"), "did you mean 'gpt-oss-20b'?"),
    ],
)
def test_a_request_without_sense_is_one_error(
    args: tuple[str, ...], words: str, folder: Path
) -> None:
    done = attnprof(*args)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "config.json"),
        ("[1]", "config.json"),
        ("{", "config.json"),
        ('{"model_type": "llama"', "config.json"),
        ('{"model_type": "llama", "hidden_size": -4}', "hidden_size"),
        ('{"model_type": "llama", "num_hidden_layers": "many"}', "num_hidden_layers"),
        ('{"model_type": "llama", "num_hidden_layers": 1e15}', "num_hidden_layers"),
        ('{"model_type": "llama", "num_attention_heads": 0}', "num_attention_heads"),
        ("\x00\x01\x02", "config.json"),
    ],
)
def test_a_config_without_sense_names_file_and_key(content: str, words: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    done = attnprof("estimate", "config.json", "--gpu", "h100-sxm")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_of_another_program_is_no_log(folder: Path) -> None:
    (folder / "app.log").write_text("GET / 200\nGET /favicon.ico 404\n" * 100)
    done = attnprof("audit", "app.log")
    assert done.returncode == 2
    assert "error" in done.stderr
