"""Vidur's profiling tables (``mlp.csv``, ``attention.csv``, ``all_reduce.csv``) -> records.

Times are milliseconds, kept as medians; everything was measured in float16. Heads are those of the
whole model and divided by the ranks here; ``size`` of a collective is in bytes.

Source:
    github.com/microsoft/vidur, vidur/profiling: attention_wrapper.py, mlp_impl.py and
    collectives_wrapper.py write these tables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.imports.foreign_records import (
    LEAST_RANKS,
    ONE_RANK,
    Measured,
    all_reduce_record,
    attention_record,
    gemm_record,
    layer_op_record,
)
from attnprof.imports.parts import Asked, Origin, Part, check_units, found_gpu
from attnprof.imports.text import Rows, csv_rows, number_of, read_text

FORM = "vidur"
TABLES = ("mlp", "attention", "all_reduce")
_REPOSITORY = "microsoft/vidur"
_LICENCE = "MIT"
_MILLISECONDS = 1e-3
_DTYPE = "float16"
_STATISTICS = ("min", "max", "mean", "median", "std")
_TRUTH = {"True": "yes", "true": "yes", "1": "yes", "False": "", "false": "", "0": ""}
_BELOW_CLOCK = "took less than the clock's step"


def is_table(columns: Sequence[str]) -> bool:
    return any(name.startswith("time_stats.") for name in columns)


def read_vidur(path: Path, asked: Asked) -> Part:
    """The records of one table.

    Raises:
        UsageError: It is damaged, of a device that neither its path nor ``asked`` names, or holds
            a value or a column that is not understood.
    """
    rows = csv_rows(path, read_text(path), asked.ignored)
    part = Part(path, FORM, Origin(_REPOSITORY, _LICENCE, None).asked(asked), rows.num_rows)
    part.columns = (*rows.columns,)
    system = _system(path)
    gpu = found_gpu((system.split("_")[0] if system else None,), asked, str(path))
    rows.pass_over("", "Unnamed: 0")
    if "collective" in rows:
        part.records = _collectives(rows, part, gpu, system)
    elif "kv_cache_size" in rows:
        part.records = _attention(rows, part, gpu)
    elif "n_expanded_embd" in rows:
        part.records = _layer_ops(rows, part, gpu)
    else:
        raise UsageError(
            f"{path} is a table of Vidur's that is not imported",
            "give its mlp.csv, attention.csv or all_reduce.csv",
        )
    rows.done()
    check_units(part, "milliseconds")
    return part


def _system(path: Path) -> str | None:
    """Their name of the machine: the folder below ``compute`` or ``network``."""
    parts = path.absolute().parts
    places = [i for i, name in enumerate(parts[:-2]) if name in ("compute", "network")]
    return parts[places[-1] + 1] if places else None


def _medians(rows: Rows, op: str) -> list[float | None]:
    """An operator's median of each row; None where it was not run, or took no step of the clock."""
    rows.pass_over(*(f"time_stats.{op}.{name}" for name in _STATISTICS))
    name = f"time_stats.{op}.median"
    found: list[float | None] = []
    for place, text in enumerate(rows.take(name)):
        value = 0.0 if text == "" else number_of(text)
        if value is None or not 0 <= value < 1e9:
            raise rows.wrong(name, place, "write milliseconds from 0, or nothing")
        found.append(value * _MILLISECONDS or None)
    return found


def _operators(rows: Rows) -> list[str]:
    found = [name.split(".")[1] for name in rows.columns if name.startswith("time_stats.")]
    return list(dict.fromkeys(found))


def _collectives(rows: Rows, part: Part, gpu: str, system: str | None) -> list[dict[str, Any]]:
    known = ("all_reduce", "all_gather", "broadcast", "send_recv", "reduce_scatter")
    kinds = rows.named("collective", {name: name for name in known})
    rows.pass_over("rank", "max_devices_per_node")
    ranks, sizes = rows.counts("num_workers"), rows.counts("size")
    per_node = rows.counts("devices_per_node")
    of = Measured(part.origin.words, gpu, "nccl", None, None, _DTYPE, "median")
    times = {op: _medians(rows, op) for op in _operators(rows)}
    found = []
    for place, kind in enumerate(kinds):
        time_s = times[kind][place] if kind in times else None
        if kind != "all_reduce":
            part.skipped[f"{kind} is no all-reduce"] += 1
        elif ranks[place] < LEAST_RANKS:
            part.skipped[ONE_RANK] += 1
        elif per_node[place] < ranks[place]:
            part.skipped["spans several nodes"] += 1
        elif time_s is None:
            part.skipped[_BELOW_CLOCK] += 1
        else:
            found.append(
                all_reduce_record(
                    of, time_s, num_ranks=ranks[place], message_bytes=sizes[place], system=system
                )
            )
    return found


def _attention(rows: Rows, part: Part, gpu: str) -> list[dict[str, Any]]:
    for op in _operators(rows):
        if op not in ("attn_prefill", "attn_decode", "attn_kv_cache_save"):
            continue  # refused by name at the end
        rows.pass_over(*(f"time_stats.{op}.{name}" for name in _STATISTICS))
    rows.pass_over("max_model_len")
    widths, heads, kv_heads = (rows.counts(name) for name in ("n_embd", "n_q_head", "n_kv_head"))
    ranks, batches = rows.counts("num_tensor_parallel_workers"), rows.counts("batch_size")
    chunks, cached = rows.counts("prefill_chunk_size", 0), rows.counts("kv_cache_size", 0)
    blocks, kernels = rows.counts("block_size"), rows.texts("attention_backend")
    prefills = rows.named("is_prefill", _TRUTH)
    times = {True: _medians(rows, "attn_prefill"), False: _medians(rows, "attn_decode")}
    of = {
        kernel: Measured(
            part.origin.words, gpu, "vidur", None, kernel.rpartition(".")[2].lower(), _DTYPE,
            "median",
        )
        for kernel in set(kernels)
    }  # fmt: skip
    found = []
    for place, word in enumerate(prefills):
        is_prefill = bool(word)
        q_len = chunks[place] if is_prefill else 1
        if q_len < 1:
            raise rows.wrong("prefill_chunk_size", place, "a prefill has a token or more")
        if heads[place] % ranks[place] or widths[place] % heads[place]:
            raise rows.wrong("n_q_head", place, "write a multiple of the ranks that divides n_embd")
        time_s = times[is_prefill][place]
        if time_s is None:
            part.skipped[_BELOW_CLOCK] += 1
            continue
        phase = "decode" if not is_prefill else "chunked-prefill" if cached[place] else "prefill"
        found.append(
            attention_record(
                of[kernels[place]],
                time_s,
                phase=phase,
                batch_size=batches[place],
                q_len=q_len,
                kv_len=cached[place] + q_len,
                num_q_heads=heads[place] // ranks[place],
                num_kv_heads=max(1, kv_heads[place] // ranks[place]),
                head_dim=widths[place] // heads[place],
                kv_dtype=_DTYPE,
                block_tokens=blocks[place],
            )
        )
    return found


def _layer_ops(rows: Rows, part: Part, gpu: str) -> list[dict[str, Any]]:
    heads, kv_heads = rows.counts("n_head"), rows.counts("n_kv_head")
    widths, ffn_dims = rows.counts("n_embd"), rows.counts("n_expanded_embd")
    tokens, ranks = rows.counts("num_tokens"), rows.counts("num_tensor_parallel_workers")
    rows.pass_over("vocab_size")
    gated = rows.named("use_gated_mlp", _TRUTH)
    of = Measured(part.origin.words, gpu, "vidur", None, None, _DTYPE, "median")
    found = []
    for op in _operators(rows):
        for place, time_s in enumerate(_medians(rows, op)):
            if time_s is None:
                part.skipped[_BELOW_CLOCK] += 1
                continue
            width, ffn, parallel = widths[place], ffn_dims[place], ranks[place]
            head_dim = width // heads[place]
            shape = {
                "attn_pre_proj": ((heads[place] + 2 * kv_heads[place]) * head_dim, width, 0),
                "attn_post_proj": (width, heads[place] * head_dim, 1),
                "mlp_up_proj": ((2 if gated[place] else 1) * ffn, width, 0),
                "mlp_down_proj": (width, ffn, 1),
            }.get(op)
            if shape is None:
                found.append(
                    layer_op_record(
                        of, time_s, op=op, num_tokens=tokens[place], hidden_size=width,
                        ffn_dim=ffn, num_q_heads=heads[place], num_kv_heads=kv_heads[place],
                        tensor_parallel=parallel,
                    )
                )  # fmt: skip
                continue
            n_out, k_in, splits_k = shape
            found.append(
                gemm_record(
                    of, time_s, op=op, m_tokens=tokens[place],
                    n_out=n_out if splits_k else n_out // parallel,
                    k_in=k_in // parallel if splits_k else k_in,
                )
            )  # fmt: skip
    return found
