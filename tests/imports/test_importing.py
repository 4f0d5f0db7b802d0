"""Other people's measurements become records: each format, and what is refused of it."""

import csv
import gzip
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.errors import UsageError
from attnprof.importing import Imported, import_sources
from attnprof.imports import text as bounded
from attnprof.imports.foreign_records import KEYS
from attnprof.imports.parts import Asked
from attnprof.records import read_run
from attnprof.report import write_reports
from attnprof.showing import Wanted, show_run
from tests.command import attnprof

SAMPLES = Path(__file__).parent.parent / "data" / "imports"
CPU_RUN = Path(__file__).parent.parent / "golden" / "cpu-run"
PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "gpu_measurements"
CONTEXT = {
    "framework": "VLLM", "version": "0.24.0", "device": "NVIDIA H100 80GB HBM3",
    "op_name": "context_attention", "kernel_source": "vllm_flash_attn_fa3", "batch_size": 2,
    "isl": 4096, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0,
    "beam_width": 1, "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "step": 0, "latency": 0.9,
}  # fmt: skip
DECODE = CONTEXT | {"op_name": "generation_attention", "isl": 1, "step": 1023, "latency": 0.05}
GEMM = {
    "framework": "TRTLLM", "version": "1.3.0rc20", "device": "NVIDIA H100 80GB HBM3",
    "op_name": "gemm", "kernel_source": "torch_flow", "gemm_dtype": "fp8_block", "m": 512,
    "n": 4096, "k": 8192, "latency": 0.07,
}  # fmt: skip
REDUCE = {
    "framework": "vLLM", "version": "0.24.0", "device": "NVIDIA H100 80GB HBM3",
    "op_name": "all_reduce", "kernel_source": "vLLM_custom_graph", "allreduce_dtype": "bfloat16",
    "num_gpus": 8, "message_size": 4096, "latency": 0.006, "backend": "vllm_graph",
}  # fmt: skip
NO_WORDS = Asked()


def table(path: Path, *rows: dict[str, Any]) -> Path:
    """``rows`` as a CSV file, the header from the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def imported(
    *sources: Path, to: Path, asked: Asked = NO_WORDS, form: str | None = None
) -> Imported:
    return import_sources(list(sources), to, form, asked, ["attnprof", "import"])


def records_of(*sources: Path, to: Path, asked: Asked = NO_WORDS) -> list[dict[str, Any]]:
    imported(*sources, to=to, asked=asked)
    return list(read_run(to).records)


def test_a_prefill_of_aiconfigurators_is_milliseconds_and_sees_its_own_tokens(
    tmp_path: Path,
) -> None:
    (record,) = records_of(table(tmp_path / "a.csv", CONTEXT), to=tmp_path / "run")
    assert record["median_s"] == pytest.approx(0.9e-3)
    assert (record["phase"], record["variant"], record["window_len"]) == ("prefill", "causal", None)
    assert (record["q_len"], record["kv_len"]) == (4096, 4096)
    assert (record["dtype"], record["kv_dtype"]) == ("bfloat16", "float8_e4m3fn")
    assert (record["device"], record["engine"], record["engine_version"]) == (
        "h100-sxm", "vllm", "0.24.0",
    )  # fmt: skip
    assert record["kernel"] == record["backend"] == "vllm_flash_attn_fa3"
    assert record["provenance"] == "imported"
    assert (record["num_samples"], record["samples_s"], record["statistic"]) == (None, [], "mean")


def test_a_decode_of_aiconfigurators_attends_to_what_was_cached_and_to_itself(
    tmp_path: Path,
) -> None:
    (record,) = records_of(table(tmp_path / "a.csv", DECODE), to=tmp_path / "run")
    assert (record["phase"], record["q_len"], record["kv_len"]) == ("decode", 1, 1024)


def test_windows_prefixes_and_encoders_are_told_apart(tmp_path: Path) -> None:
    encoder = CONTEXT | {"op_name": "encoder_attention", "num_key_value_heads": 32}
    rows = (CONTEXT | {"window_size": 128}, CONTEXT | {"step": 4096, "latency": 3.0}, encoder)
    found = records_of(table(tmp_path / "a.csv", *rows), to=tmp_path / "run")
    assert [(one["variant"], one["window_len"]) for one in found] == [
        ("sliding", 128), ("causal", None), ("full", None),
    ]  # fmt: skip
    assert [one["phase"] for one in found] == ["prefill", "chunked-prefill", "prefill"]
    assert [one["kv_len"] for one in found] == [4096, 8192, 4096]


def test_a_message_is_counted_in_elements_and_kept_in_bytes(tmp_path: Path) -> None:
    (record,) = records_of(table(tmp_path / "a.csv", REDUCE), to=tmp_path / "run")
    assert (record["kind"], record["message_bytes"], record["num_ranks"]) == ("all-reduce", 8192, 8)


def test_a_gemm_keeps_the_scheme_of_its_weights(tmp_path: Path) -> None:
    (record,) = records_of(table(tmp_path / "a.csv", GEMM), to=tmp_path / "run")
    assert (record["kind"], record["dtype"]) == ("gemm", "fp8_block")
    assert (record["m_tokens"], record["n_out"], record["k_in"]) == (512, 4096, 8192)


def test_other_collectives_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = (
        {**REDUCE, "op_name": name, "nccl_dtype": "half", "kernel_source": "NCCL"}
        for name in ("all_reduce", "all_gather", "alltoall")
    )
    named = [
        {key: row[key] for key in row if key not in ("allreduce_dtype", "backend")} for row in rows
    ]
    found = imported(table(tmp_path / "nccl_perf.csv", *named), to=tmp_path / "run")
    assert found.num_records == 1
    (about,) = found.document["files"]
    assert about["skipped"] == {"all_gather is no all-reduce": 1, "alltoall is no all-reduce": 1}
    assert read_run(tmp_path / "run").records[0]["dtype"] == "float16"


def test_an_all_reduce_of_one_rank_is_left_out_and_counted(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", REDUCE, REDUCE | {"num_gpus": 1})
    found = imported(path, to=tmp_path / "run")
    assert found.num_records == 1
    assert found.document["files"][0]["skipped"] == {"one rank has nobody to reduce with": 1}


def test_a_tidied_all_reduce_of_one_rank_is_refused(tmp_path: Path) -> None:
    rows = list(csv.DictReader((SAMPLES / "all_reduce.csv").read_text().splitlines()))
    rows[1]["ranks"] = "1"
    with pytest.raises(UsageError, match="line 3: ranks is 1") as caught:
        imported(table(tmp_path / "a.csv", *rows), to=tmp_path / "run")
    assert caught.value.fix == "write a whole number from 2"


def test_a_file_given_twice_is_read_once_and_said(tmp_path: Path) -> None:
    path = table(tmp_path / "in" / "a" / "context_attention_perf.csv", CONTEXT)
    (tmp_path / "in" / "b").symlink_to(path.parent, target_is_directory=True)
    copy = table(tmp_path / "in" / "c" / path.name, CONTEXT)
    found = imported(tmp_path / "in", path, copy, to=tmp_path / "run")
    (record,) = read_run(tmp_path / "run").records
    assert record["num_merged"] == 1
    reasons = [one["reason"] for one in found.document["files"]]
    assert reasons == [None, *[f"says what {path} does"] * (len(reasons) - 1)]


def test_the_same_numbers_of_two_devices_are_both_read(tmp_path: Path) -> None:
    ways = [tmp_path / "compute" / gpu / "m" / "attention.csv" for gpu in ("h100", "a100")]
    found = records_of(*(vidur_attention(way) for way in ways), to=tmp_path / "run")
    assert {one["device"] for one in found} == {"h100-sxm", "a100-sxm-80gb"}


@pytest.mark.parametrize("text", ["1_0", "nan", "-1", "٢", ".", "0x1"])
def test_a_time_of_vidurs_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "compute" / "h100" / "m" / "attention.csv"
    vidur_attention(path, **{"time_stats.attn_decode.median": text})
    with pytest.raises(UsageError, match=r"line \d: time_stats.attn_decode.median is"):
        imported(path, to=tmp_path / "run")


def test_parquet_says_the_same_as_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [CONTEXT, CONTEXT | {"isl": 512, "latency": 0.03}]
    path = tmp_path / "data" / "h100_sxm" / "attention" / "vllm" / "0.24.0"
    path.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path / "context_attention_perf.parquet")
    table(path / "moe_perf.csv", {"op_name": "moe", "framework": "VLLM", "latency": 1})
    as_csv = records_of(table(tmp_path / "a.csv", *rows), to=tmp_path / "csv")
    found = imported(tmp_path / "data", to=tmp_path / "tree")
    assert list(read_run(tmp_path / "tree").records) == as_csv
    assert [one["reason"] for one in found.document["files"]] == [None, "moe is not imported"]


@pytest.mark.parametrize("kept", [0, 4, 200])
def test_a_parquet_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "gemm_perf.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([GEMM]), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UsageError, match=r"gemm_perf\.parquet"):
        imported(path, to=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "gemm_perf.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 1\n")
    with pytest.raises(UsageError, match="Git LFS"):
        imported(path, to=tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"latency": 0}, r"line 2: latency is '0'"),
        ({"latency": -1}, r"line 2: latency is '-1'"),
        ({"latency": "nan"}, r"line 2: latency is 'nan'"),
        ({"latency": "1e999"}, r"line 2: latency"),
        ({"latency": "0_9"}, r"line 2: latency is '0_9'"),
        ({"latency": "٠.٩"}, r"line 2: latency is '٠.٩'"),
        ({"batch_size": "1_0"}, r"line 2: batch_size is '1_0'"),
        ({"batch_size": "٢"}, r"line 2: batch_size is '٢'"),
        ({"batch_size": "２"}, r"line 2: batch_size is '２'"),
        ({"batch_size": "inf"}, r"line 2: batch_size is 'inf'"),
        ({"batch_size": "0x2"}, r"line 2: batch_size is '0x2'"),
        ({"batch_size": "True"}, r"line 2: batch_size is 'True'"),
        ({"latency": ""}, r"line 2: latency"),
        ({"attn_dtype": "fp7"}, r"line 2: attn_dtype is 'fp7'"),
        ({"attn_dtype": "int8"}, r"line 2: attn_dtype is 'int8'"),
        ({"kv_cache_dtype": "q9"}, r"line 2: kv_cache_dtype"),
        ({"op_name": "context_mla"}, r"line 2: op_name"),
        ({"batch_size": 0}, r"line 2: batch_size"),
        ({"batch_size": "1.5"}, r"line 2: batch_size"),
        ({"beam_width": 4}, r"line 2: beam_width"),
        ({"num_key_value_heads": 5}, r"line 2: num_heads"),
        ({"device": "NVIDIA Z9"}, r"unknown GPU 'NVIDIA Z9'"),
        ({"latency_p99": 3}, r"'latency_p99' that is not understood"),
        ({"latency": 0.0001}, r"times the peak of h100-sxm"),
        ({"latency": 900.0}, r"of the peak"),
    ],
)
def test_what_is_not_understood_is_refused_by_file_and_line(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = table(tmp_path / "a.csv", CONTEXT | change)
    with pytest.raises(UsageError, match=words) as caught:
        imported(path, to=tmp_path / "run")
    assert "a.csv" in caught.value.problem
    assert caught.value.fix
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 2**41}, "batch_size is 2199023255552, more"),
        ({"latency": 1e12}, "median_s is"),
    ],
)
def test_a_size_that_no_run_may_hold_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=rf"a\.csv: .*{words}"):
        imported(table(tmp_path / "a.csv", DECODE | change), to=tmp_path / "run")


def test_a_column_may_be_ignored_and_a_device_named_by_the_user(tmp_path: Path) -> None:
    odd = {**CONTEXT, "device": "Engineering sample", "note": "x"}
    asked = Asked(device="h100", ignored=("note",), version="095f58a", licence="mine")
    (record,) = records_of(table(tmp_path / "a.csv", odd), to=tmp_path / "run", asked=asked)
    assert record["device"] == "h100-sxm"
    assert record["source"] == "ai-dynamo/aiconfigurator@095f58a"
    assert read_run(tmp_path / "run").header["sources"][0]["licence"] == "mine"


def test_the_user_may_not_gainsay_the_device_of_a_file(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", CONTEXT)
    with pytest.raises(UsageError, match="is of 'h100-sxm', --device says 'a100-sxm-80gb'"):
        imported(path, to=tmp_path / "run", asked=Asked(device="a100"))


@given(times=st.lists(st.floats(0.5, 5.0), min_size=1, max_size=6, unique=True))
def test_a_call_that_is_there_several_times_has_the_median_of_its_times(
    tmp_path_factory: pytest.TempPathFactory, times: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("repeats")
    rows = [CONTEXT | {"latency": time} for time in times]
    half = max(1, len(rows) // 2)
    parts = [table(folder / "a.csv", *rows[:half])]
    if rows[half:]:
        parts.append(table(folder / "b.csv", *rows[half:]))
    (record,) = records_of(*parts, to=folder / "run")
    assert record["median_s"] == pytest.approx(statistics.median(times) * 1e-3)
    assert record["num_merged"] == len(times)


def test_single_calls_above_the_peak_are_kept_and_flagged(tmp_path: Path) -> None:
    rows = [CONTEXT | {"batch_size": n, "latency": 0.5 * n} for n in (1, 2, 4)]
    fast = CONTEXT | {"batch_size": 8, "latency": 0.01}
    found = records_of(table(tmp_path / "a.csv", *rows, fast), to=tmp_path / "run")
    assert [one["flags"] for one in found] == [[], [], [], ["above_peak"]]


def test_the_samples_of_every_format_are_read_with_source_and_licence(tmp_path: Path) -> None:
    found = imported(SAMPLES, to=tmp_path / "run")
    about = {Path(one["file"]).name: one for one in found.document["files"]}
    assert about["prefill.csv"]["source"] == "ai-dynamo/aiconfigurator"
    assert about["prefill.csv"]["licence"] == "Apache-2.0"
    assert about["prefill.csv"]["version"].startswith("095f58a5")
    assert about["mlp.csv"]["source"] == "microsoft/vidur"
    assert about["mlp.csv"]["licence"] == "MIT"
    assert about["llama_bench.json"]["licence"] is None
    assert about["README.md"]["reason"] == "in no format that is known"
    run = read_run(tmp_path / "run")
    assert run.header["imported"] is True
    assert run.header["finished"]
    assert {one["kind"] for one in run.records} == set(KEYS)
    assert sum(one["num_merged"] for one in run.records) == sum(
        one["num_records"] for one in found.document["files"]
    )
    for record in run.records:
        assert set(record) == {"format", *KEYS[record["kind"]]}


def test_a_tidied_table_is_microseconds(tmp_path: Path) -> None:
    found = records_of(SAMPLES / "decode.csv", to=tmp_path / "run")
    assert found[1]["median_s"] == pytest.approx(690.4e-6)
    assert (found[1]["batch_size"], found[1]["kv_len"]) == (1024, 4096)
    assert found[1]["kernel"] == "vllm_flash_attn_fa3"


def test_vidurs_projections_are_gemms_split_over_the_ranks(tmp_path: Path) -> None:
    path = SAMPLES / "vidur" / "compute" / "a100" / "meta-llama" / "Llama-2-7b-hf" / "mlp.csv"
    found = records_of(path, to=tmp_path / "run")
    shapes = {
        (one["op"], one["m_tokens"]): (one["n_out"], one["k_in"])
        for one in found
        if one["kind"] == "gemm"
    }
    assert shapes[("attn_pre_proj", 4096)] == (3 * 4096, 4096)
    assert shapes[("attn_pre_proj", 1)] == (3 * 4096 // 8, 4096)
    assert shapes[("attn_post_proj", 1)] == (4096, 4096 // 8)
    assert shapes[("mlp_up_proj", 4096)] == (2 * 11008, 4096)
    assert shapes[("mlp_down_proj", 1)] == (4096, 11008 // 8)
    (norm,) = (one for one in found if one.get("op") == "add" and one["num_tokens"] == 4096)
    assert (norm["kind"], norm["median_s"]) == ("layer-op", pytest.approx(55e-6))
    assert norm["statistic"] == "median"


def vidur_attention(path: Path, **changes: object) -> Path:
    times = ("attn_prefill", "attn_decode")
    common = {
        "n_embd": 8192, "n_q_head": 64, "n_kv_head": 8, "block_size": 16,
        "num_tensor_parallel_workers": 4, "max_model_len": 4096,
        "attention_backend": "AttentionBackend.FLASHINFER",
    }  # fmt: skip
    blank = {f"time_stats.{one}.{name}": "" for one in times for name in ("median", "std")}
    prefill = {
        "batch_size": 1, "prefill_chunk_size": 512, "kv_cache_size": 1024, "is_prefill": True,
        "time_stats.attn_prefill.median": 0.11,
    }  # fmt: skip
    decode = {
        "batch_size": 8, "prefill_chunk_size": 0, "kv_cache_size": 1024, "is_prefill": False,
        "time_stats.attn_decode.median": 0.04,
    }  # fmt: skip
    unmeasured = decode | {"batch_size": 16, "time_stats.attn_decode.median": 0.0}
    rows = [{**common, **blank, **one, **changes} for one in (prefill, decode, unmeasured)]
    return table(path, *rows)


def test_vidurs_attention_divides_heads_and_counts_the_new_tokens(tmp_path: Path) -> None:
    path = vidur_attention(tmp_path / "compute" / "h100" / "model" / "attention.csv")
    found = imported(path, to=tmp_path / "run")
    prefill, decode = read_run(tmp_path / "run").records
    assert (prefill["phase"], prefill["q_len"], prefill["kv_len"]) == ("chunked-prefill", 512, 1536)
    assert (decode["phase"], decode["q_len"], decode["kv_len"]) == ("decode", 1, 1025)
    assert (decode["num_q_heads"], decode["num_kv_heads"], decode["head_dim"]) == (16, 2, 128)
    assert (decode["kernel"], decode["device"]) == ("flashinfer", "h100-sxm")
    assert decode["median_s"] == pytest.approx(40e-6)
    assert found.document["files"][0]["skipped"] == {"took less than the clock's step": 1}


def test_a_vidur_table_needs_a_device_from_its_path_or_the_user(tmp_path: Path) -> None:
    path = vidur_attention(tmp_path / "attention.csv")
    with pytest.raises(UsageError, match="does not say what it ran on") as caught:
        imported(path, to=tmp_path / "run")
    assert caught.value.fix == "give --device NAME"
    assert records_of(path, to=tmp_path / "run", asked=Asked(device="a40"))[0]["device"] == "a40"


def test_llama_benchs_json_keeps_its_samples_and_settings(tmp_path: Path) -> None:
    prompt, answer = records_of(SAMPLES / "llama_bench.json", to=tmp_path / "run")
    assert (prompt["phase"], prompt["prompt_len"], prompt["output_len"]) == ("prefill", 512, 0)
    assert prompt["median_s"] == pytest.approx(71.7452e-3)
    assert prompt["num_samples"] == len(prompt["samples_s"]) == 5
    assert prompt["tokens_per_s"] == pytest.approx(512 / 71.7452e-3)
    assert (answer["phase"], answer["output_len"], answer["statistic"]) == (
        "generate",
        128,
        "median",
    )
    assert (answer["device"], answer["num_devices"]) == ("rtx-4080", 1)
    assert (answer["dtype"], answer["kv_dtype"]) == ("Q4_K - Medium", "float16")
    assert answer["engine_version"] == "8cf427ff"
    assert "n_ubatch=512" in answer["settings"]


def test_llama_benchs_json_lines_say_the_same(tmp_path: Path) -> None:
    tests = json.loads((SAMPLES / "llama_bench.json").read_text())
    path = tmp_path / "bench.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in tests))
    as_lines = records_of(path, to=tmp_path / "lines")
    assert as_lines == records_of(SAMPLES / "llama_bench.json", to=tmp_path / "array")


def test_llama_benchs_markdown_is_read_with_depth_and_spread(tmp_path: Path) -> None:
    found = records_of(SAMPLES / "llama_bench.md", to=tmp_path / "run")
    assert [(one["phase"], one["depth_len"]) for one in found] == [
        ("prefill", 0), ("generate", 0), ("prefill", 512), ("generate", 512),
    ]  # fmt: skip
    assert found[1]["tokens_per_s"] == pytest.approx(120.60)
    assert found[1]["stddev_s"] / found[1]["median_s"] == pytest.approx(0.59 / 120.60)
    assert found[0]["weight_bytes"] == round(4.36 * 2**30)
    assert (found[0]["device"], found[0]["engine_version"]) == ("rtx-4080", "8cf427ff")
    assert (found[0]["num_samples"], found[0]["statistic"]) == (None, "mean")


def changed_bench(change: Callable[[dict[str, Any]], object]) -> str:
    tests = json.loads((SAMPLES / "llama_bench.json").read_text())
    change(tests[1])
    return json.dumps(tests)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (changed_bench(lambda one: one.update(avg_ns=1076767)), "entry 2: 128 tokens in 0.00108 s"),
        (changed_bench(lambda one: one.update(avg_ns=0)), "entry 2: avg_ns is 0"),
        (changed_bench(lambda one: one.update(warp_drive=1)), "entry 2 has a field 'warp_drive'"),
        (changed_bench(lambda one: one.update(gpu_info="A, B")), "entry 2: ran on A, B"),
        (changed_bench(lambda one: one.update(gpu_info="")), "does not say what it ran on"),
        (changed_bench(lambda one: one.pop("backends")), "entry 2 has no 'backends'"),
        (changed_bench(lambda one: one.update(n_gen=0)), "entry 2: n_prompt and n_gen are 0"),
        (changed_bench(lambda one: one.update(samples_ns=[-1])), "samples_ns is -1"),
        (changed_bench(lambda one: one.update(n_gen="1_28")), "entry 2: n_gen is '1_28'"),
        (changed_bench(lambda one: one.update(n_gen=128.5)), "entry 2: n_gen is 128.5"),
        (changed_bench(lambda one: one.update(n_depth=True)), "entry 2: n_depth is True"),
        (changed_bench(lambda one: one.update(avg_ns=float("nan"))), "entry 2: avg_ns is nan"),
        ((SAMPLES / "llama_bench.md").read_text().replace("tg128 |", "tg١٢٨ |"), "test is 'tg١٢٨'"),
        ((SAMPLES / "llama_bench.md").read_text().replace("0.59", "0.5.9"), "t/s is '120.60 ± 0.5"),
        ((SAMPLES / "llama_bench.md").read_text().replace("4.36", "4_3"), "'4_3 GiB' is no size"),
        ((SAMPLES / "llama_bench.md").read_text().replace("tg128 |", "xx128 |"), "test is 'xx128'"),
        ((SAMPLES / "llama_bench.md").read_text().replace("120.60", "fast"), "t/s is 'fast"),
        ((SAMPLES / "llama_bench.md").read_text().replace("GiB", "MB"), "'4.36 MB' is no size"),
        ((SAMPLES / "llama_bench.md").read_text().replace("ngl", "xyz"), "column 'xyz'"),
        (
            (SAMPLES / "llama_bench.md").read_text().replace("Device 0", "Gerät"),
            "does not say what",
        ),
    ],
)
def test_what_llama_bench_does_not_write_is_refused(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "bench"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        imported(path, to=tmp_path / "run", form="llama-bench")
    assert not (tmp_path / "run").exists()


def test_a_processor_keeps_the_name_that_its_driver_gave(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(changed_bench(lambda one: one.update(backends="CPU", gpu_info="")))
    found = records_of(path, to=tmp_path / "run")
    assert found[1]["device"] == "AMD Ryzen 7 7800X3D 8-Core Processor"


def test_exporting_and_importing_again_gives_the_same_records(tmp_path: Path) -> None:
    first = records_of(SAMPLES, to=tmp_path / "first")
    write_reports(tmp_path / "first")
    again = records_of(tmp_path / "first" / "results.csv", to=tmp_path / "again")
    assert again == first
    write_reports(tmp_path / "again")
    csv_files = [tmp_path / name / "results.csv" for name in ("first", "again")]
    assert csv_files[0].read_bytes() == csv_files[1].read_bytes()


def test_a_run_of_our_own_comes_back_from_its_csv(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    for name in ("run.json", "records.jsonl"):
        (ours / name).write_bytes((CPU_RUN / name).read_bytes())
    write_reports(ours)
    found = records_of(ours / "results.csv", to=tmp_path / "run")
    before = {one["workload_id"]: one for one in read_run(ours).records}
    assert {one["workload_id"] for one in found} == set(before)
    for one in found:
        for key in ("median_s", "status", "kv_len", "flags", "num_samples", "clock"):
            assert one[key] == before[one["workload_id"]][key]
        assert one["provenance"] == "imported"
    write_reports(tmp_path / "run")
    assert (tmp_path / "run" / "results.csv").read_text() == (ours / "results.csv").read_text()
    assert (
        read_run(tmp_path / "run").header["facts"]["name"] == read_run(ours).header["facts"]["name"]
    )


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("median_s", "-1", "median_s is '-1'"),
        ("median_s", "nan", "median_s is 'nan'"),
        ("median_s", "1_0", "median_s is '1_0'"),
        ("median_s", "infinity", "median_s is 'infinity'"),
        ("median_s", "1e9", "median_s is 1000000000.0, more than"),
        ("batch_size", "٢", "batch_size is '٢'"),
        ("batch_size", "1_0", "batch_size is '1_0'"),
        ("batch_size", "9" * 30, "batch_size is '999"),
        ("kv_len", str(2**41), "kv_len is 2199023255552, more than"),
        ("phase", "prefil", "phase is 'prefil'"),
        ("dtype", "float7", "dtype is 'float7'"),
        ("batch_size", "two", "batch_size is 'two'"),
        ("kind", "dream", "kind is 'dream'"),
        ("m_tokens", "4", "leave it empty: attention has no such value"),
    ],
)
def test_a_changed_results_csv_is_refused_by_line(
    tmp_path: Path, column: str, value: str, words: str
) -> None:
    imported(SAMPLES / "decode.csv", to=tmp_path / "first")
    write_reports(tmp_path / "first")
    with (tmp_path / "first" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[2][column] = value
    path = table(tmp_path / "changed.csv", *rows)
    with pytest.raises(UsageError, match=r"changed\.csv, line 4") as caught:
        imported(path, to=tmp_path / "run")
    assert words in f"{caught.value.problem} {caught.value.fix}"


def test_one_workload_of_two_runs_is_refused(tmp_path: Path) -> None:
    ours = [tmp_path / name for name in ("a", "b")]
    for run in ours:
        run.mkdir()
        for name in ("run.json", "records.jsonl"):
            (run / name).write_bytes((CPU_RUN / name).read_bytes())
    path = ours[1] / "records.jsonl"
    path.write_text(path.read_text().replace('"median_wall_s":', '"median_wall_s":1'))
    for run in ours:
        write_reports(run)
    with pytest.raises(UsageError, match="already"):
        imported(*(run / "results.csv" for run in ours), to=tmp_path / "run")


def test_a_report_of_an_imported_run_says_what_it_cannot_show(tmp_path: Path) -> None:
    imported(SAMPLES, to=tmp_path / "run")
    groups, files = show_run(tmp_path / "run", Wanted()).tables
    assert (groups.name, files.name) == ("imported", "files")
    assert any("no intervals" in note for note in groups.notes)
    words = (tmp_path / "run" / "report.md").read_text()
    assert "What cannot be shown" in words
    assert "Apache-2.0" in words
    assert not (tmp_path / "run" / "fit.json").exists()
    (tidy,) = show_run(tmp_path / "run", Wanted(), tidy=True).tables
    assert len(tidy.rows) == len(read_run(tmp_path / "run").records)


def test_a_gzip_bomb_is_read_no_further_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"gpu,latency_us\n" + b"0" * 10**7))
    with pytest.raises(UsageError, match="holds more than 1 MiB"):
        bounded.read_text(path, 2**20)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress((SAMPLES / "gemm.csv").read_bytes())[:-20],
        (SAMPLES / "gemm.csv").read_bytes()[:-12].rstrip(b"0123456789.").rstrip(b","),
        b"\x00\xff\xfe",
        b"",
        b"{" * 100_000,
        b"gpu,engine\n",
    ],
    ids=["gzip cut", "line cut", "binary", "empty", "deep", "unknown"],
)
def test_damaged_files_are_refused_and_leave_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"damaged\.csv"):
        imported(path, to=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_format_that_the_user_names_has_to_be_that_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the format of tables"):
        imported(SAMPLES / "gemm.csv", to=tmp_path / "run", form="vidur")
    with pytest.raises(UsageError, match="no format") as caught:
        imported(SAMPLES / "gemm.csv", to=tmp_path / "run", form="table")
    assert caught.value.fix == "did you mean 'tables'?"


def test_many_files_left_out_for_one_reason_are_one_line(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree" / f"notes{number}.md").write_text("# words")
    (tmp_path / "tree" / "gemm.csv").write_bytes((SAMPLES / "gemm.csv").read_bytes())
    read, left_out = imported(tmp_path / "tree", to=tmp_path / "run").document["files"]
    assert read["num_records"] == 6
    assert left_out["file"].startswith("5 files, such as ")


def test_a_run_is_no_source_and_is_not_overwritten(tmp_path: Path) -> None:
    imported(SAMPLES / "decode.csv", to=tmp_path / "run")
    with pytest.raises(UsageError, match="is a run already"):
        imported(tmp_path / "run", to=tmp_path / "other")
    with pytest.raises(UsageError, match="holds a run already"):
        imported(SAMPLES / "decode.csv", to=tmp_path / "run")


def test_the_command_writes_tables_and_says_where_the_run_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = attnprof("import", str(SAMPLES / "gemm.csv"), "-o", str(run), "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["format"], document["num_records"]) == (1, 6)
    assert {one["dtype"] for one in document["imported"]} == {"bfloat16", "float8_e4m3fn", "nvfp4"}
    assert f"6 records in {run}" in done.stderr
    shown = attnprof("report", str(run), columns=80)
    assert shown.returncode == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    wrong = attnprof("import", str(tmp_path / "nothing.csv"))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nothing.csv" in wrong.stderr


def test_without_pyarrow_parquet_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnprof.errors import CannotMeasureError

    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = tmp_path / "gemm_perf.parquet"
    path.write_bytes(b"PAR1....PAR1")
    with pytest.raises(CannotMeasureError) as caught:
        imported(path, to=tmp_path / "run")
    assert caught.value.fix == "pip install '.[parquet]' in the checkout of attnprof"


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public tables are not here")
def test_every_public_table_is_imported_and_none_of_its_rows_is_lost(tmp_path: Path) -> None:
    for folder in ("gemm", "allreduce", "layer_ops"):
        found = imported(PUBLIC / folder, to=tmp_path / folder)
        records = read_run(tmp_path / folder).records
        num_rows = sum(one["num_rows"] for one in found.document["files"])
        assert sum(one["num_merged"] for one in records) == num_rows > 1000
        assert {one["licence"] for one in found.document["files"]} <= {"Apache-2.0", "MIT"}


@given(data=st.data())
def test_whatever_is_broken_is_refused_or_comes_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    name = data.draw(st.sampled_from(["decode.csv", "gemm.csv", "llama_bench.json"]))
    content = (SAMPLES / name).read_text()
    cut = data.draw(st.integers(0, len(content) - 1))
    put = data.draw(
        st.sampled_from(["", "nan", "-1", "\u200b", "\0", "1e400", '"', "9" * 400, ","])
    )
    kept = content[cut + data.draw(st.integers(0, 8)) :] if data.draw(st.booleans()) else ""
    (folder / name).write_text(content[:cut] + put + kept)
    try:
        first = records_of(folder / name, to=folder / "first")
    except UsageError as error:
        assert name in error.problem
        assert error.fix
        return
    write_reports(folder / "first")
    assert records_of(folder / "first" / "results.csv", to=folder / "again") == first
