"""AIConfigurator's performance tables (Parquet, or CSV of older versions) -> records.

Latencies are milliseconds, messages are counted in elements, and the keys of a decode are
``step + isl``.

Source:
    github.com/ai-dynamo/aiconfigurator: sdk/operations/attention.py, gemm.py and
    communication.py read these tables; collector/helper.py writes them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.dtypes import GEMM_SCHEMES
from attnprof.errors import CannotMeasureError, UsageError, to_install
from attnprof.imports.foreign_records import (
    LEAST_RANKS,
    ONE_RANK,
    Measured,
    all_reduce_record,
    attention_record,
    dtype_words,
    gemm_record,
)
from attnprof.imports.parts import Asked, Origin, Part, check_units, found_gpu
from attnprof.imports.text import (
    LFS_MAGIC,
    MAX_TEXT_BYTES,
    Rows,
    csv_rows,
    read_head,
    read_text,
)

FORM = "aiconfigurator"
MAGIC = b"PAR1"
MAX_ROWS = 5_000_000
_REPOSITORY = "ai-dynamo/aiconfigurator"
_LICENCE = "Apache-2.0"
_MILLISECONDS = 1e-3
# Columns on what was not timed: they are understood and not kept.
_BESIDE = ("power", "power_limit", "compute_bound", "energy", "backend")
_ATTENTION = {
    "context_attention": "prefill",
    "generation_attention": "decode",
    "encoder_attention": "prefill",
}
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
_GEMM_NAMES = {"sq": "w8a8_int8", "fp8_ootb": "float8_e4m3fn"}
_DTYPE_FIX = "use one of: bfloat16, float16, fp8, int8, and of a GEMM fp8_block, nvfp4, int4_wo, …"
_MESSAGE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "float8_e4m3fn": 1}


def is_table(columns: Sequence[str]) -> bool:
    """Whether a header is of one of their tables, also of an operation that is not imported."""
    return {"op_name", "latency"} <= set(columns)


def read_aiconfigurator(path: Path, asked: Asked) -> Part:
    """The records of one table.

    Raises:
        UsageError: It is damaged, of an operation that is not imported, or holds a value or a
            column that is not understood.
        CannotMeasureError: It is Parquet, and pyarrow is not installed.
    """
    rows = _parquet(path, asked) if _is_parquet(path) else _csv(path, asked)
    part = Part(path, FORM, Origin(_REPOSITORY, _LICENCE, None).asked(asked), rows.num_rows)
    part.columns = (*rows.columns,)
    if {"num_heads", "attn_dtype", "isl"} <= set(rows.columns):
        part.records = _attention(rows, part, asked)
    elif {"gemm_dtype", "m", "n", "k"} <= set(rows.columns):
        part.records = _gemm(rows, part, asked)
    elif {"num_gpus", "message_size"} <= set(rows.columns):
        part.records = _collective(rows, part, asked)
    else:
        names = ", ".join(rows.columns)
        raise UsageError(
            f"{path} is of an operation that is not imported; its columns are {names}",
            "give tables of context, generation or encoder attention, GEMM or all-reduce",
        )
    rows.done()
    check_units(part, "milliseconds")
    return part


def _is_parquet(path: Path) -> bool:
    """By its first bytes; one that lost them is told by its name, and found damaged."""
    head = read_head(path)
    return head.startswith(MAGIC) or (
        path.suffix == ".parquet" and not head.startswith(LFS_MAGIC.encode())
    )


def _csv(path: Path, asked: Asked) -> Rows:
    return csv_rows(path, read_text(path), asked.ignored)


def _parquet(path: Path, asked: Asked) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise CannotMeasureError(
            f"{path} is Parquet, and pyarrow is not installed", to_install("parquet")
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            about = file.metadata
            size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            if about.num_rows > MAX_ROWS or size > MAX_TEXT_BYTES:
                raise UsageError(
                    f"{path} holds {about.num_rows:,} rows of {size / 2**20:.0f} MiB",
                    f"split it: {MAX_ROWS:,} rows and {MAX_TEXT_BYTES // 2**20} MiB are read",
                )
            columns = file.read().to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        text = " ".join(str(error).split())[:120]
        raise UsageError(f"{path} is cut off or no Parquet: {text}", "fetch it again") from None
    if not columns or not next(iter(columns.values())):
        raise UsageError(f"{path} holds no row", "give a table with rows")
    return Rows(path, columns, unit="row", first=1, ignored=asked.ignored)


def _measured(rows: Rows, part: Part, asked: Asked, dtypes: list[str]) -> list[Measured]:
    """Whose each row's time is, one object for equal rows."""
    place_names = _system_folder(part.path)
    where = f"{part.path}: device"
    devices = (
        rows.each("device", lambda name: found_gpu((str(name), place_names), asked, where), "")
        if "device" in rows
        else [found_gpu((place_names,), asked, where)] * rows.num_rows
    )
    kernels = _kernels(rows)
    is_library = "nccl_dtype" in rows  # its own engine, whose version is the folder's
    folder = part.path.absolute().parent.name if place_names else None
    has_version = "version" in rows and not (is_library and folder)
    rows.pass_over("framework", "version")
    versions = rows.texts("version") if has_version else [folder] * rows.num_rows
    engines = [name.lower() for name in rows.texts("kernel_source" if is_library else "framework")]
    made: dict[Any, Measured] = {}
    found = []
    for key in zip(devices, engines, versions, kernels, dtypes, strict=True):
        if key not in made:
            made[key] = Measured(part.origin.words, *key, statistic="mean")
        found.append(made[key])
    return found


def _kernels(rows: Rows) -> list[str | None]:
    """The kernel as they name it, with the implementation where that is told apart."""
    rows.pass_over(*_BESIDE)
    none: list[Any] = [None] * rows.num_rows
    kernels = rows.texts("kernel_source") if "kernel_source" in rows else none
    ways = rows.take("implementation") if "implementation" in rows else none
    return [
        f"{kernel}:{way}" if way and str(way).lower() != str(kernel).lower() else kernel
        for kernel, way in zip(kernels, ways, strict=True)
    ]


def _system_folder(path: Path) -> str | None:
    """Their name of the machine: the folder below ``data``; above each table is its version's."""
    parts = path.absolute().parts
    places = [place for place, name in enumerate(parts[:-2]) if name == "data"]
    return parts[places[-1] + 1] if places else None


def _attention(rows: Rows, part: Part, asked: Asked) -> list[dict[str, Any]]:
    operations = rows.named("op_name", {name: name for name in _ATTENTION})
    dtypes = rows.each("attn_dtype", _attention_dtype, _DTYPE_FIX)
    has_cache = "kv_cache_dtype" in rows
    kv_dtypes = rows.each("kv_cache_dtype", _plain_dtype, _DTYPE_FIX) if has_cache else dtypes
    of = _measured(rows, part, asked, dtypes)
    batches, queries = rows.counts("batch_size"), rows.counts("isl")
    steps = rows.counts("step", 0) if "step" in rows else [0] * rows.num_rows
    heads, head_dims = rows.counts("num_heads"), rows.counts("head_dim")
    kv_heads = rows.counts("num_key_value_heads") if "num_key_value_heads" in rows else heads
    windows = rows.counts("window_size", 0) if "window_size" in rows else [0] * rows.num_rows
    beams = rows.counts("beam_width") if "beam_width" in rows else [1] * rows.num_rows
    latencies = rows.times_s("latency", _MILLISECONDS, "milliseconds")
    found = []
    for place, operation in enumerate(operations):
        phase = _ATTENTION[operation]
        if beams[place] != 1:
            raise rows.wrong("beam_width", place, "one beam is understood")
        if heads[place] % kv_heads[place]:
            raise rows.wrong("num_heads", place, "write a multiple of num_key_value_heads")
        if phase == "decode" and queries[place] != 1:
            raise rows.wrong("isl", place, "a decode has one query a sequence")
        if phase == "prefill" and steps[place]:
            phase = "chunked-prefill"
        found.append(
            attention_record(
                of[place],
                latencies[place],
                phase=phase,
                variant="full" if operation == "encoder_attention" else "causal",
                batch_size=batches[place],
                q_len=queries[place],
                kv_len=steps[place] + queries[place],
                num_q_heads=heads[place],
                num_kv_heads=kv_heads[place],
                head_dim=head_dims[place],
                kv_dtype=kv_dtypes[place],
                window_len=windows[place] or None,
            )
        )
    return found


def _attention_dtype(name: object) -> str | None:
    from attnprof.dtypes import DTYPES

    found = dtype_words(str(name))
    return None if found is None or DTYPES[found].storage_only else found


def _plain_dtype(name: object) -> str | None:
    return dtype_words(str(name))


def _gemm_dtype(name: object) -> str | None:
    text = str(name)
    return _GEMM_NAMES.get(text) or dtype_words(text, GEMM_SCHEMES)


def _gemm(rows: Rows, part: Part, asked: Asked) -> list[dict[str, Any]]:
    dtypes = rows.each("gemm_dtype", _gemm_dtype, _DTYPE_FIX)
    rows.named("op_name", {"gemm": "gemm"})
    of = _measured(rows, part, asked, dtypes)
    shapes = (rows.counts("m"), rows.counts("n"), rows.counts("k"))
    latencies = rows.times_s("latency", _MILLISECONDS, "milliseconds")
    return [
        gemm_record(whose, latency_s, m_tokens=m, n_out=n, k_in=k)
        for whose, latency_s, m, n, k in zip(of, latencies, *shapes, strict=True)
    ]


def _collective(rows: Rows, part: Part, asked: Asked) -> list[dict[str, Any]]:
    column = "allreduce_dtype" if "allreduce_dtype" in rows else "nccl_dtype"
    dtypes = rows.each(column, _message_dtype, f"use one of: half, {', '.join(_MESSAGE_BYTES)}")
    operations = rows.named("op_name", {name: name for name in _COLLECTIVES})
    of = _measured(rows, part, asked, dtypes)
    ranks, elements = rows.counts("num_gpus"), rows.counts("message_size")
    latencies = rows.times_s("latency", _MILLISECONDS, "milliseconds")
    found = []
    for place, operation in enumerate(operations):
        if operation != "all_reduce":
            part.skipped[f"{operation} is no all-reduce"] += 1
            continue
        if ranks[place] < LEAST_RANKS:
            part.skipped[ONE_RANK] += 1
            continue
        num_bytes = elements[place] * _MESSAGE_BYTES[dtypes[place]]
        found.append(
            all_reduce_record(
                of[place], latencies[place], num_ranks=ranks[place], message_bytes=num_bytes
            )
        )
    return found


def _message_dtype(name: object) -> str | None:
    found = dtype_words(str(name))
    return found if found in _MESSAGE_BYTES else None


def imported_operations() -> Mapping[str, str]:
    """Their operations that become records, and what kind each is."""
    return {
        **dict.fromkeys(_ATTENTION, "attention"),
        "gemm": "gemm",
        **dict.fromkeys(("custom_allreduce", "nccl", "oneccl"), "all-reduce"),
    }
