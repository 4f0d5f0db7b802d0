"""llama-bench's JSON, JSON Lines, CSV and Markdown -> the speeds of whole models.

Source:
    github.com/ggml-org/llama.cpp, tools/llama-bench/README.md: a ``pp`` test runs a prompt, ``tg``
    generates, ``d`` tokens are in the cache before. ``avg_ns`` is the mean time of one repetition,
    tokenising and sampling left out.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest
from attnprof.imports.foreign_records import Measured, dtype_words, model_record
from attnprof.imports.parts import Asked, Origin, Part, found_gpu
from attnprof.imports.text import csv_rows, number_of, read_text
from attnprof.render import plain
from attnprof.units import counted, plain_number

FORM = "llama-bench"
_REPOSITORY = "ggml-org/llama.cpp"
_ON_PROCESSOR = ("CPU", "BLAS", "ACCEL")
_LARGEST_DISAGREEMENT = 0.25  # of avg_ts and avg_ns, which are means of a number and its inverse
_NEEDED = ("model_type", "backends", "n_prompt", "n_gen", "avg_ns")
_KEPT = (
    "build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename",
    "model_type", "model_size", "model_n_params", "n_prompt", "n_gen", "n_depth", "test_time",
    "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "type_k", "type_v",
)  # fmt: skip
_SETTINGS = (
    "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll", "n_gpu_layers",
    "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload", "flash_attn", "devices",
    "tensor_split", "tensor_buft_overrides", "use_mmap", "use_direct_io", "load_mode", "lazy_mode",
    "embeddings", "no_op_offload", "no_host", "repack", "fit_target", "fit_min_ctx", "moe_cache",
    "n_gen_warmup", "rpc_servers", "defrag_thold", "cuda", "vulkan", "kompute", "metal", "sycl",
    "rpc", "gpu_blas", "blas", "mul_mat_q", "numa", "prio", "delay", "kv_unified",
)  # fmt: skip
_MARKDOWN_SETTINGS = {
    "ngl": "n_gpu_layers", "threads": "n_threads", "n_batch": "n_batch", "n_ubatch": "n_ubatch",
    "fa": "flash_attn", "sm": "split_mode", "mg": "main_gpu", "nkvo": "no_kv_offload",
    "ts": "tensor_split", "mmap": "use_mmap", "dio": "use_direct_io", "embd": "embeddings",
    "dev": "devices", "ot": "tensor_buft_overrides", "nopo": "no_op_offload", "noh": "no_host",
    "ncmoe": "n_cpu_moe", "poll": "poll", "cpu_mask": "cpu_mask", "cpu_strict": "cpu_strict",
    "type_k": "type_k", "type_v": "type_v", "n_cpu_moe": "n_cpu_moe", "fitt": "fit_target",
    "fitc": "fit_min_ctx", "rpc": "rpc_servers", "repack": "repack", "lm": "load_mode",
    "moe_cache": "moe_cache",
}  # fmt: skip
_MARKDOWN_KNOWN = ("model", "size", "params", "backend", "test", "t/s", *_MARKDOWN_SETTINGS)
_DIGITS = "([0-9]{1,15})"
_TEST = re.compile(rf"(?:pp ?{_DIGITS})?\+?(?:tg ?{_DIGITS})?(?: ?@ ?d ?{_DIGITS})?")
_SPEED = re.compile(r"([0-9.]+)(?: *± *([0-9.]+))?")
_WEIGHTS = re.compile(r"\b(?:BF16|F16|F32|I?Q\d\w*|TQ\d\w*|MXFP4|NVFP4)(?: - [\d.]*\w+(?: bpw)?)?")
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_PARAMS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BUILD = re.compile(r"^build: ([0-9a-f]{6,40}) \((\d+)\)", re.M)
_CUDA_DEVICE = re.compile(r"^ *Device \d+: ([^,\n]+), compute capability", re.M)


def is_table(columns: Sequence[str]) -> bool:
    return {"build_commit", "avg_ns", "n_prompt"} <= set(columns)


def is_json(value: object) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping) and {"n_prompt", "n_gen"} <= set(first)


def is_markdown(text: str) -> bool:
    return any(_is_header(_cells(line)) for line in text.splitlines() if "t/s" in line)


def read_llama_bench(path: Path, asked: Asked) -> Part:
    """The speeds in one file of any of its formats.

    Raises:
        UsageError: It is damaged, does not say what it ran on, or holds a field or a value that is
            not understood.
    """
    text = read_text(path)
    columns: list[str] = []
    if is_markdown(text):
        columns = [
            cell for line in text.splitlines() if _is_header(_cells(line)) for cell in _cells(line)
        ]
        found = list(_markdown(path, text, asked))
    elif text.lstrip()[:1] in ("[", "{"):
        found = [
            _checked(entry, f"{path}, {where}", asked) for where, entry in _entries(path, text)
        ]
    else:
        rows = csv_rows(path, text)
        names = list(rows.columns)
        found = [
            _checked(dict(zip(names, row, strict=True)), rows.where(place), asked)
            for place, row in enumerate(zip(*rows.columns.values(), strict=True))
        ]
    builds = {str(entry["build_commit"]) for _, entry in found if entry.get("build_commit")}
    version = builds.pop() if len(builds) == 1 else None
    part = Part(path, FORM, Origin(_REPOSITORY, None, version).asked(asked), len(found))
    part.columns = (*columns, *dict.fromkeys(name for _, entry in found for name in entry))
    part.records = [_record(entry, where, part, asked) for where, entry in found]
    return part


def _entries(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of an array, or of lines, each with where it is."""
    try:
        if text.lstrip().startswith("["):
            entries = [(f"entry {i}", one) for i, one in enumerate(json.loads(text), start=1)]
        else:
            lines = text.split("\n")
            entries = [
                (f"line {i}", json.loads(one)) for i, one in enumerate(lines, 1) if one.strip()
            ]
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no JSON: {str(error)[:80]}", "give what llama-bench -o json printed"
        ) from None
    if not entries:
        raise UsageError(f"{path} holds no test", "give what llama-bench -o json printed")
    for where, entry in entries:
        if not isinstance(entry, Mapping):
            raise UsageError(f"{path}, {where} is no test", "give llama-bench's own output")
        yield where, entry


def _checked(entry: Mapping[str, Any], where: str, asked: Asked) -> tuple[str, Mapping[str, Any]]:
    for name in _NEEDED:
        if name not in entry:
            raise UsageError(f"{where} has no {name!r}", "give llama-bench's own output")
    known = (*_KEPT, *_SETTINGS)
    for name in entry:
        if name not in known and name not in asked.ignored:
            raise UsageError(
                f"{where} has a field {name!r} that is not understood ({nearest(name, known)})",
                f"add --ignore {name} if it changes no time",
            )
    return where, entry


def _number(entry: Mapping[str, Any], name: str, where: str, least: float = 0.0) -> float:
    value = entry.get(name)
    number = number_of(value)
    if number is None or not least <= number < 1e18:
        raise UsageError(f"{where}: {name} is {value!r}", f"write a number from {least:g}")
    return number


def _count(entry: Mapping[str, Any], name: str, where: str, least: int = 0) -> int:
    number = _number(entry, name, where, least)
    if number % 1:
        raise UsageError(
            f"{where}: {name} is {entry[name]!r}", f"write a whole number from {least}"
        )
    return int(number)


def _record(entry: Mapping[str, Any], where: str, part: Part, asked: Asked) -> dict[str, Any]:
    counts = {name: _count(entry, name, where) for name in ("n_prompt", "n_gen")}
    depth_len = _count(entry, "n_depth", where) if "n_depth" in entry else 0
    num_tokens = sum(counts.values())
    mean_s = _number(entry, "avg_ns", where, 1) * 1e-9
    if num_tokens < 1:
        raise UsageError(f"{where}: n_prompt and n_gen are 0", "a test runs a token or more")
    if "avg_ts" in entry:
        speed = _number(entry, "avg_ts", where, 1e-9)
        if abs(speed * mean_s / num_tokens - 1) > _LARGEST_DISAGREEMENT:
            raise UsageError(
                f"{where}: {counted(num_tokens, 'token')} in {mean_s:.3g} s are not {speed:.4g} "
                "a second",
                "avg_ns is in nanoseconds, avg_ts in tokens a second",
            )
    samples = entry.get("samples_ns") or []
    if not isinstance(samples, list):
        raise UsageError(f"{where}: samples_ns is {samples!r}", "write a list of nanoseconds")
    samples_s = [_number({"samples_ns": one}, "samples_ns", where, 1) * 1e-9 for one in samples]
    device, num_devices = _device(entry, where, asked)
    stddev = _number(entry, "stddev_ns", where) * 1e-9 if "stddev_ns" in entry else None
    model = plain(str(entry["model_type"])).strip() or "unnamed"
    kept = ("backends", "type_k", "type_v", *_SETTINGS)
    of = Measured(
        part.origin.words,
        device,
        "llama.cpp",
        plain(str(entry["build_commit"])) if entry.get("build_commit") else None,
        None,
        _weight_dtype(model),
        "median" if samples_s else "mean",
    )
    return model_record(
        of,
        statistics.median(samples_s) if samples_s else mean_s,
        model=model,
        prompt_len=counts["n_prompt"],
        output_len=counts["n_gen"],
        depth_len=depth_len,
        kv_dtype=_cache_dtype(entry),
        num_devices=num_devices,
        num_params=_known(entry, "model_n_params", where),
        weight_bytes=_known(entry, "model_size", where),
        settings=plain(", ".join(f"{name}={entry[name]}" for name in kept if name in entry)),
        stddev_s=stddev,
        samples_s=samples_s,
    )


def _weight_dtype(model: str) -> str | None:
    """Of most weights, by torch's name or llama.cpp's, as the name of the model's type has it.

    >>> _weight_dtype("qwen2 7B Q4_K - Medium"), _weight_dtype("llama 8B F16")
    ('Q4_K - Medium', 'float16')
    """
    found = _WEIGHTS.search(model)
    return None if found is None else dtype_words(found[0]) or found[0]


def _known(entry: Mapping[str, Any], name: str, where: str) -> int | None:
    return _count(entry, name, where, 1) if entry.get(name) not in (None, "") else None


def _cache_dtype(entry: Mapping[str, Any]) -> str | None:
    """Of keys and values, by torch's name or llama.cpp's; both where they differ."""
    names = [str(entry[name]) for name in ("type_k", "type_v") if entry.get(name)]
    return plain("/".join(dict.fromkeys(dtype_words(name) or name for name in names))) or None


def _device(entry: Mapping[str, Any], where: str, asked: Asked) -> tuple[str, int | None]:
    """What it ran on, and how many of them; a processor keeps the name that its driver gave."""
    if str(entry["backends"]).split(",")[0].strip() in _ON_PROCESSOR:
        name = asked.device or str(entry.get("cpu_info") or "")
        if not name:
            raise UsageError(f"{where} does not say what it ran on", "give --device NAME")
        return plain(name), 1
    names = [name.strip() for name in str(entry.get("gpu_info") or "").split(", ") if name.strip()]
    if len(set(names)) > 1:
        raise UsageError(f"{where}: ran on {', '.join(names)}", "give tests of one kind of GPU")
    gpu = found_gpu(names[:1] or (None,), asked, where)
    return gpu, len(names) or None


def _cells(line: str) -> list[str]:
    text = line.strip()
    return [cell.strip() for cell in text.strip("|").split("|")] if text.startswith("|") else []


def _is_header(cells: Sequence[str]) -> bool:
    return {"model", "backend", "test", "t/s"} <= set(cells)


def _markdown(path: Path, text: str, asked: Asked) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of all tables of speeds, as the fields that the JSON has."""
    build = _BUILD.search(text)
    names = list(dict.fromkeys(_CUDA_DEVICE.findall(text)))
    common = {
        "build_commit": build[1] if build else None,
        "gpu_info": ", ".join(_CUDA_DEVICE.findall(text)) if len(names) == 1 else None,
    }
    header: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = _cells(line)
        if _is_header(cells):
            header = cells
            for name in header:
                if name not in _MARKDOWN_KNOWN and name not in asked.ignored:
                    raise UsageError(
                        f"{path}, line {number}: column {name!r} is not understood "
                        f"({nearest(name, _MARKDOWN_KNOWN)})",
                        f"add --ignore {name} if it changes no time",
                    )
            continue
        if not cells or not header:
            header = []
            continue
        if all(not cell.strip("-: ") for cell in cells):
            continue
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise UsageError(
                f"{where}: {counted(len(cells), 'value')} under {counted(len(header), 'column')}",
                "give the table as llama-bench printed it",
            )
        yield where, {**common, **_markdown_row(dict(zip(header, cells, strict=True)), where)}


def _markdown_row(row: Mapping[str, str], where: str) -> dict[str, Any]:
    test, speed = _TEST.fullmatch(row["test"]), _SPEED.fullmatch(row["t/s"])
    if test is None or not (test[1] or test[2]):
        raise UsageError(f"{where}: test is {row['test']!r}", "write pp512, tg128 or pp512+tg128")
    per_s, spread_per_s = (
        plain_number(text or "") for text in (speed.groups() if speed else ("", ""))
    )
    if speed is None or not per_s or per_s > 1e12 or (speed[2] and spread_per_s is None):
        raise UsageError(f"{where}: t/s is {row['t/s']!r}", "write 131.42 ± 0.59")
    prompt, output, depth = (int(test[i] or 0) for i in (1, 2, 3))
    time_s = (prompt + output) / per_s
    spread = None if spread_per_s is None else spread_per_s / per_s * time_s
    return {
        "model_type": row["model"],
        "backends": row["backend"],
        "n_prompt": prompt,
        "n_gen": output,
        "n_depth": depth,
        "avg_ns": time_s * 1e9,
        **({} if spread is None else {"stddev_ns": spread * 1e9}),
        "model_size": _scaled(row.get("size"), _SIZES, where),
        "model_n_params": _scaled(row.get("params"), _PARAMS, where),
        **{ours: row[theirs] for theirs, ours in _MARKDOWN_SETTINGS.items() if theirs in row},
    }


def _scaled(text: str | None, scales: Mapping[str, int], where: str) -> int | None:
    """A size or a count as the table writes it, rounded as it is there."""
    if not text:
        return None
    size, _, unit = text.partition(" ")
    number = plain_number(size)
    if unit not in scales or not number or not 0 < number < 1e12:
        raise UsageError(f"{where}: {text!r} is no size", f"use one of: {', '.join(scales)}")
    return round(number * scales[unit])
