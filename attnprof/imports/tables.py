"""Tidied tables of kernels (attention, GEMM, all-reduce, operators of a layer) -> records."""

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnprof.dtypes import GEMM_SCHEMES
from attnprof.errors import UsageError
from attnprof.imports.foreign_records import (
    Measured,
    all_reduce_record,
    attention_record,
    dtype_words,
    gemm_record,
    layer_op_record,
)
from attnprof.imports.parts import Asked, Origin, Part, check_units, found_gpu
from attnprof.imports.text import csv_rows, read_text
from attnprof.render import plain

FORM = "tables"
MANIFEST = "manifest.csv"
_MICROSECONDS = 1e-6
_LAYER_COLUMNS = {"gpu", "model", "op", "tensor_parallel", "tokens", "hidden", "latency_us"}


def is_table(columns: Sequence[str]) -> bool:
    return {"gpu", "latency_us"} <= set(columns)


def read_tidied(path: Path, asked: Asked) -> Part:
    """The records of one table; source and licence are what ``manifest.csv`` says of it.

    Raises:
        UsageError: It is damaged, or holds a value or a column that is not understood.
    """
    part = Part(path, FORM, _origin(path).asked(asked))
    header = next(csv.reader(read_text(path).splitlines()[:1]), [])
    part.columns = tuple(name.strip() for name in header)
    part.records = (
        _layer_ops(path, part, asked)
        if set(header) >= _LAYER_COLUMNS
        else _kernels(path, part, asked)
    )
    check_units(part, "microseconds")
    return part


def _origin(path: Path) -> Origin:
    """What the manifest beside the table, or in a folder above it, says of it."""
    for folder in list(path.absolute().parents)[:4]:
        for row in _manifest(folder / MANIFEST):
            if folder / row.get("file", "") == path.absolute():
                source, licence = row.get("source_repo"), row.get("licence")
                return Origin(source or path.name, licence or None, row.get("commit") or None)
    return Origin(path.name, None, None)


@cache
def _manifest(path: Path) -> tuple[dict[str, str], ...]:
    if not path.is_file():
        return ()
    rows = csv_rows(path, read_text(path))
    lines = zip(*rows.columns.values(), strict=True)
    return tuple(dict(zip(rows.columns, line, strict=True)) for line in lines)


def _dtype(name: str) -> str:
    found = dtype_words(name, GEMM_SCHEMES)
    if found is None:
        raise UsageError(f"dtype {name!r} has no name here", "use bf16, fp16, fp8, nvfp4, …")
    return found


def _kernels(path: Path, part: Part, asked: Asked) -> list[dict[str, Any]]:
    from attnprof.laws.foreign import read_table

    table = read_table(path)
    texts = {name: column.tolist() for name, column in table.texts.items()}
    counts = {name: [int(one) for one in column] for name, column in table.counts.items()}
    latencies = [float(one) for one in table.latency_s]
    part.num_rows = len(latencies)
    dtype_column = "q_dtype" if "q_dtype" in texts else "dtype"
    names = {name: _dtype(name) for name in set(texts[dtype_column])}
    devices = {
        name: found_gpu((name,), asked, f"{path}: gpu {name!r}") for name in set(texts["gpu"])
    }
    made: dict[Any, Measured] = {}
    of = []
    who = (texts[name] for name in ("gpu", "engine", "engine_version", "kernel", dtype_column))
    for key in zip(*who, strict=True):
        if key not in made:
            engine, version, kernel = (plain(one) for one in key[1:4])
            made[key] = Measured(
                part.origin.words, devices[key[0]], engine, version, kernel, names[key[4]], "mean"
            )
        of.append(made[key])
    if table.family.name == "gemm":
        shapes = (counts["m_tokens"], counts["n_out"], counts["k_in"])
        return [
            gemm_record(whose, time_s, m_tokens=m, n_out=n, k_in=k)
            for whose, time_s, m, n, k in zip(of, latencies, *shapes, strict=True)
        ]
    if table.family.name == "all-reduce":
        sizes = (counts["ranks"], counts["message_bytes"])
        return [
            all_reduce_record(whose, time_s, num_ranks=ranks, message_bytes=size)
            for whose, time_s, ranks, size in zip(of, latencies, *sizes, strict=True)
        ]
    kv_names = {name: _dtype(name) for name in set(texts["kv_dtype"])}
    return [
        attention_record(
            whose,
            latencies[i],
            phase=_phase(texts["phase"][i], counts["q_len_tokens"][i], counts["kv_len_tokens"][i]),
            batch_size=counts["batch"][i],
            q_len=counts["q_len_tokens"][i],
            kv_len=counts["kv_len_tokens"][i],
            num_q_heads=counts["q_heads"][i],
            num_kv_heads=counts["kv_heads"][i],
            head_dim=counts["head_dim"][i],
            kv_dtype=kv_names[texts["kv_dtype"][i]],
            window_len=counts["window_tokens"][i] or None,
        )
        for i, whose in enumerate(of)
    ]


def _phase(phase: str, q_len: int, kv_len: int) -> str:
    return "chunked-prefill" if phase == "prefill" and q_len < kv_len else phase


def _layer_ops(path: Path, part: Part, asked: Asked) -> list[dict[str, Any]]:
    """Operators of a layer. A projection of which the table tells all widths is a GEMM; the up
    projection is none, as it does not say whether it is gated."""
    rows = csv_rows(path, read_text(path), asked.ignored)
    part.num_rows = rows.num_rows
    devices = rows.each(
        "gpu", lambda name: found_gpu((str(name),), asked, f"{path}: gpu {name!r}"), ""
    )
    rows.pass_over("model")
    ops, ranks, tokens = rows.texts("op"), rows.counts("tensor_parallel"), rows.counts("tokens")
    widths, ffn_dims = rows.counts("hidden"), rows.counts("ffn")
    heads, kv_heads = rows.counts("q_heads"), rows.counts("kv_heads")
    latencies = rows.times_s("latency_us", _MICROSECONDS, "microseconds")
    rows.done()
    made = {
        gpu: Measured(part.origin.words, gpu, "vidur", None, None, "float16", "median")
        for gpu in set(devices)
    }
    found = []
    for i, op in enumerate(ops):
        of, width, ffn, parallel = made[devices[i]], widths[i], ffn_dims[i], ranks[i]
        q_width = heads[i] * (width // heads[i])
        kv_width = kv_heads[i] * (width // heads[i])
        shape = {
            "attn_pre_proj": ((q_width + 2 * kv_width) // parallel, width),
            "attn_post_proj": (width, q_width // parallel),
            "mlp_down_proj": (width, ffn // parallel),
        }.get(op)
        if shape is not None:
            found.append(
                gemm_record(
                    of, latencies[i], op=op, m_tokens=tokens[i], n_out=shape[0], k_in=shape[1]
                )
            )
            continue
        found.append(
            layer_op_record(
                of, latencies[i], op=op, num_tokens=tokens[i], hidden_size=width, ffn_dim=ffn,
                num_q_heads=heads[i], num_kv_heads=kv_heads[i], tensor_parallel=parallel,
            )
        )  # fmt: skip
    return found
