"""Start-up logs in the engines' own formats, held against the estimate."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.audit import Audit, audit_file, audit_log, write_profile
from attnprof.audit_terms import AuditTerm
from attnprof.capacity_tables import audit_table
from attnprof.engines.profile import engine_named
from attnprof.errors import UsageError
from attnprof.logs.lines import START_BYTES, clean_lines, decode_log, read_log
from attnprof.logs.parse import parse_log
from attnprof.logs.patterns import ENGINES
from attnprof.models.spec import ModelSpec
from attnprof.render import csv_text
from attnprof.serving_cases.model import model_of_case

LOGS = Path(__file__).parent / "logs_data"
GIB, MIB = 2**30, 2**20
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_3B = LLAMA_8B | {
    "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 24,
    "intermediate_size": 8192, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_7B = LLAMA_8B | {
    "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 151936,
    "max_position_embeddings": 4096,
}  # fmt: skip


def _model(config: dict[str, Any], name: str = "llama") -> ModelSpec:
    return model_of_case(config, name, {})


def _terms(audit: Audit) -> dict[str, AuditTerm]:
    return {term.term: term for term in audit.terms}


def _audit(name: str, config: dict[str, Any] | None, **choices: Any) -> Audit:
    model = _model(config) if config else None
    return audit_file(LOGS / f"{name}.log", model=model, **choices)


def test_a_vllm_log_with_colours_ranks_and_progress_bars_is_explained() -> None:
    audit = _audit("vllm-0.19-llama-8b-tp4", LLAMA_8B)
    assert audit.log.engine == "vllm"
    assert audit.log.settings["version"] == "0.19.0"
    assert audit.log.settings["tp"] == "4"
    terms = _terms(audit)
    assert terms["kv"].logged == pytest.approx(67.44 * GIB), "the least of the ranks"
    wanted = ("weights", "activation", "runtime", "kv", "tokens", "tokens given kv",
              "concurrency given kv", "kv given parts")  # fmt: skip
    for name in wanted:
        error = terms[name].relative_error
        assert error is not None
        assert abs(error) < 0.01, name
    assert audit.off == "graphs", "they scatter; nothing else is off"
    assert audit.missing == ("gpu",)


def test_a_v0_log_that_failed_is_explained_and_its_outcome_kept() -> None:
    audit = _audit("vllm-0.6.4-llama-8b-3090-fail", LLAMA_8B)
    terms = _terms(audit)
    assert terms["cpu_blocks"].beyond_rounding == 0
    assert terms["blocks given kv"].beyond_rounding == 0
    assert terms["peak_torch"].predicted == pytest.approx(17.98 * GIB, rel=0.01)
    assert terms["blocks"].predicted == pytest.approx(1478, rel=0.03)
    assert "is larger than the maximum number of tokens" in audit.log.outcomes[0]


def test_an_sglang_log_is_explained() -> None:
    audit = _audit("sglang-llama-8b-24gb", LLAMA_8B, gpu="rtx-3090")
    terms = _terms(audit)
    assert terms["weights"].predicted == pytest.approx(15.02 * GIB, rel=0.005)
    assert terms["kv given tokens"].beyond_rounding == 0
    tokens_given_memory = terms["tokens given memory"].relative_error
    assert tokens_given_memory is not None
    assert abs(tokens_given_memory) < 0.02
    assert audit.log.settings["utilization"] == "0.879"
    assert audit.missing == ("version", "gpu")


def test_a_tensorrt_llm_log_is_explained() -> None:
    audit = _audit("tensorrt-llm-qwen1.5-7b", QWEN_7B)
    terms = _terms(audit)
    assert terms["kv given tokens"].beyond_rounding == 0
    assert terms["blocks given memory"].beyond_rounding == 0
    assert terms["weights"].predicted == pytest.approx(14739 * MIB, rel=0.01)
    assert audit.deployment is not None
    assert audit.deployment.total_bytes == pytest.approx(39.39 * GIB)


def test_a_llama_cpp_log_describes_its_own_model() -> None:
    audit = _audit("llama-cpp-gemma-3-270m", None)
    terms = _terms(audit)
    assert terms["kv"].predicted == terms["kv"].logged == 42 * MIB
    assert terms["compute"].beyond_rounding == 0
    assert audit.deployment is not None
    assert audit.deployment.model.name == "Gemma 3 270M It"
    assert audit.missing == ("gpu",)


def test_an_ollama_log_is_ollamas_though_it_holds_llama_cpps_lines() -> None:
    audit = _audit("ollama-llama-3.2-3b", LLAMA_3B)
    assert audit.log.engine == "ollama"
    assert audit.log.settings["gpu"] == "NVIDIA GeForce RTX 4090"
    terms = _terms(audit)
    assert terms["kv"].predicted == terms["kv"].logged == 448 * MIB
    assert terms["graph"].beyond_rounding == 0


@pytest.mark.parametrize("name", ["vllm-0.19-llama-8b-tp4", "sglang-llama-8b-24gb"])
def test_the_error_of_a_term_is_that_of_its_two_numbers(name: str) -> None:
    """What the log's rounding explains is said beside it, not taken off it."""
    audit = _audit(name, LLAMA_8B, gpu="rtx-3090" if "24gb" in name else None)
    rows = audit_table(audit).rows
    assert rows
    within = [row for row in rows if row["within_rounding"]]
    assert 0 < len(within) < len(rows)
    for row in rows:
        assert row["relative_error"] == pytest.approx(row["predicted"] / row["logged"] - 1)
        left = max(0.0, abs(row["predicted"] - row["logged"]) - row["rounding"])
        assert abs(row["beyond_rounding"]) == pytest.approx(left / row["logged"])
        assert row["within_rounding"] is (left == 0)
    assert any(row["relative_error"] for row in within)
    [note] = [note for note in audit_table(audit).notes if "no more than the log rounds" in note]
    assert all((row["term"] in note) for row in within if row["relative_error"])
    text = csv_text(audit_table(audit))
    assert text.splitlines()[0].startswith("term,predicted,logged,unit,relative_error,")
    beyond = [abs(row["beyond_rounding"]) for row in rows]
    assert beyond == sorted(beyond, reverse=True), "what is off first"


def test_models_that_logs_name_are_found_among_the_profiles() -> None:
    assert _audit("sglang-llama-8b-24gb", None).deployment is not None
    audit = _audit("ollama-llama-3.2-3b", None)
    assert _terms(audit)["graph"].beyond_rounding == 0
    assert _audit("tensorrt-llm-qwen1.5-7b", None).deployment is None, "this log names none"


def test_the_term_that_is_off_is_named() -> None:
    text = (LOGS / "vllm-0.19-llama-8b-tp4.log").read_text(encoding="utf-8")
    heavier = text.replace("3.77 GiB", "5.77 GiB")
    assert audit_log(heavier, model=_model(LLAMA_8B)).off == "weights"


def test_the_newest_vllm_wording_is_read() -> None:
    text = """INFO [api_server.py:1] vLLM API server version 0.24.0
INFO [gpu_worker.py:692] Available KV cache memory: 56.21 GiB
INFO [kv_cache_utils.py:2464] GPU KV cache size: 460,496 tokens, Maximum concurrency for 131,072 \
tokens per request: 3.51x
INFO [gpu_worker.py:955] Free memory on device (78.84/79.25 GiB) on startup. Desired GPU memory \
utilization is (0.92, 72.91 GiB). Actual usage is 15.26 GiB for consumed memory (weights + \
non-torch), 1.44 GiB for peak activation, and 0.23 GiB for CUDAGraph memory."""
    audit = audit_log(text, model=_model(LLAMA_8B))
    terms = _terms(audit)
    assert terms["tokens given kv"].beyond_rounding == 0
    consumed = terms["consumed"].relative_error
    assert consumed is not None
    assert abs(consumed) < 0.01
    assert audit.log.settings["max_model_len"] == "131,072"
    assert "runtime" not in audit.missing


def test_missing_parts_are_said_and_a_model_unknown_is_asked_for() -> None:
    audit = audit_log("INFO vLLM API server version 0.19.0\n# GPU blocks: 100, # CPU blocks: 9")
    assert audit.terms == ()
    assert set(audit.missing) >= {"model", "gpu", "weights", "activation", "graphs"}
    assert "give --model" in audit.notes[0]
    document = audit.to_json()
    assert document["format"] == 1
    assert document["engine"] == "vllm"


def test_figures_of_a_log_cut_short_are_still_held_against_the_estimate() -> None:
    text = (LOGS / "vllm-0.19-llama-8b-tp4.log").read_text(encoding="utf-8")
    lines = text.splitlines()
    for end in range(1, len(lines)):
        audit = audit_log("\n".join(lines[:end]), model=_model(LLAMA_8B))
        assert {term.term for term in audit.terms} <= set(
            _terms(_audit("vllm-0.19-llama-8b-tp4", LLAMA_8B))
        )


def test_a_saved_profile_is_used_by_later_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = _audit("vllm-0.19-llama-8b-tp4", LLAMA_8B)
    path = write_profile(audit, "vllm-here", tmp_path)
    assert path == tmp_path / "engines" / "vllm-here.yaml"
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    engine_named.cache_clear()
    engine = engine_named("vllm-here")
    assert engine.kind == "vllm"
    assert engine.version == "0.19.0"
    assert engine.overheads.runtime_bytes == round(2.13 * GIB)
    assert engine.overheads.activation_scale == pytest.approx(1, abs=0.01)
    engine_named.cache_clear()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "vllm"])
def test_a_profile_gets_no_name_that_leaves_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        write_profile(_audit("vllm-0.19-llama-8b-tp4", LLAMA_8B), name, tmp_path)
    assert not list(tmp_path.rglob("*.yaml"))


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "nginx: [notice] start worker processes\n" * 5, "key,value\n1,2\n", "{}"],
)
def test_a_log_of_another_program_is_one_error(text: str) -> None:
    with pytest.raises(UsageError, match="from an engine that is known here"):
        audit_log(text)


def test_a_log_of_absurd_sizes_is_one_error() -> None:
    text = (LOGS / "llama-cpp-gemma-3-270m.log").read_text(encoding="utf-8")
    absurd = text.replace("n_layer          = 18", "n_layer          = 99999999999")
    with pytest.raises(UsageError, match="n_layer is 99999999999"):
        audit_log(absurd)
    vllm = (LOGS / "vllm-0.19-llama-8b-tp4.log").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="max_model_len is 8192000000000"):
        audit_log(
            vllm.replace("max_seq_len=8192", "max_seq_len=8192000000000").replace(
                "'max_model_len': 8192", "'max_model_len': 8192000000000"
            ),
            model=_model(LLAMA_8B),
        )


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ("tensor_parallel_size=99999999999999", "tp is 99999999999999"),
        ("tensor_parallel_size=3", "tp 3 does not divide"),
        ("kv_cache_dtype=zork", "unknown cache dtype 'zork'"),
        ("dtype=torch.zork", "unknown dtype 'zork'"),
    ],
)
def test_a_setting_of_no_sense_is_one_error_about_the_log(figure: str, problem: str) -> None:
    text = f"Initializing a V1 LLM engine (v0.19) with config: {figure}\nModel loading took 3 GiB"
    with pytest.raises(UsageError, match=f"the log's settings make no sense: {problem}"):
        audit_log(text, model=_model(LLAMA_8B))


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(model_path='x', mem_fraction_static=1.9.9)\nLoad weight begin. avail mem=1 GB\n"
        "Load weight end. avail mem=1 GB, mem usage=2 GB\nKV Cache is allocated. #tokens: 0",
        'msg="starting llama server" cmd="x --ctx-size 0 --batch-size 0 --parallel 0"\n'
        'memory.required.kv="5 GiB"',
        "TensorRT-LLM version: 1.0\nNumber of tokens per block: 0\nMPI size: 0\n"
        "Allocated 5 GiB for max tokens in paged KV cache (0)",
        "llama_context: n_ctx = 0\nllama_context: n_seq_max = 0\nllama_kv_cache: size = 5.0 MiB",
    ],
)
def test_settings_of_zero_are_taken_as_not_said(text: str) -> None:
    assert audit_log(text, model=_model(LLAMA_8B)).terms is not None


def test_an_engine_that_is_not_the_logs_is_refused() -> None:
    with pytest.raises(UsageError, match="the log is of vllm, not of llama-cpp"):
        _audit("vllm-0.19-llama-8b-tp4", LLAMA_8B, engine="llama-cpp")


def test_only_the_start_of_a_long_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    start = (LOGS / "vllm-0.19-llama-8b-tp4.log").read_text(encoding="utf-8")
    path.write_text(start + "INFO Engine 000: GPU KV cache usage: 0.1%\n" * 100_000)
    assert len(read_log(path)) == START_BYTES
    long = audit_file(path, model=_model(LLAMA_8B))
    assert long.terms == _audit("vllm-0.19-llama-8b-tp4", LLAMA_8B).terms
    assert any("only the first 2 MiB" in note for note in long.notes)


HOSTILE = {
    "digits": "vllm " + "9" * 19_000,
    "commas": "vllm " + "1," * 9_000,
    "gaps": "Graph capturing finished in " * 600 + "vllm",
    "arguments": "ServerArgs( " * 1600,
    "card and blanks": "Tesla A" + " " * 19_000,
    "unfinished escapes": "vllm" + "\x1b]" * 9_000,
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_no_line_takes_time_by_its_square(line: str) -> None:
    start = time.process_time()
    for figures, settings in ENGINES.values():
        for regex in (*(figure.regex for figure in figures), *settings):
            regex.search(5 * line)
    list(clean_lines("\n".join([line] * 50)))
    # About 0.05 s of a slow CPU; by its square, each of these lines took 6 s and more.
    assert time.process_time() - start < 1.5


def test_utf_16_without_a_mark_is_read(tmp_path: Path) -> None:
    text = (LOGS / "vllm-0.19-llama-8b-tp4.log").read_text(encoding="utf-8")
    assert parse_log(decode_log(text.encode("utf-16-le"), "x")) == parse_log(text)


def test_a_binary_missing_or_strange_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_log(tmp_path / "none.log")
    binary = tmp_path / "x.log"
    binary.write_bytes(b"\x7fELF\x00\x01" * 50)
    with pytest.raises(UsageError, match="is binary"):
        read_log(binary)
    assert decode_log("vLLM é".encode("utf-16"), "x") == "vLLM é"


@given(noise=st.lists(st.text(max_size=120), max_size=20), seed=st.randoms())
def test_noise_between_lines_changes_no_figure(noise: list[str], seed: Any) -> None:
    text = (LOGS / "vllm-0.19-llama-8b-tp4.log").read_text(encoding="utf-8")
    lines = text.splitlines()
    for line in noise:
        plain = "".join(char for char in line if char.isprintable() and not char.isdigit())
        lines.insert(seed.randrange(len(lines) + 1), plain)
    assert parse_log("\n".join(lines)).figures == parse_log(text).figures
