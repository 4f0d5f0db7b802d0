"""A table of measured kernels -> groups of one kernel each, which one law can describe.

What is left out is left out on grounds that were known before any fit, each of them said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnprof.errors import UsageError
from attnprof.gpus import Gpu, gpu_named
from attnprof.laws.base import Floats, Hardware, Law
from attnprof.laws.foreign import DTYPE_BYTES, ForeignTable
from attnprof.laws.kernels import ALL_REDUCE, DECODE, GEMM, PREFILL, attention_columns

WIDE_GROUP = 32  # query heads a KV head beyond which engines leave their fast path
PEAK_MARGIN = 1.1  # of the greatest peak: what computes faster did not compute it all
BROKEN_SHARE = 0.10  # impossible rows beyond this share condemn the others of their group
Mask = NDArray[np.bool_]
_TORCH_NAMES = {
    "fp32": "float32", "tf32": "tfloat32", "bf16": "bfloat16", "fp16": "float16",
    "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_block": "float8_e4m3fn",
    "int8": "int8", "nvfp4": "float4_e2m1fn_x2", "mxfp4": "float4_e2m1fn_x2",
    "fp4": "float4_e2m1fn_x2",
}  # fmt: skip
# Tables of the public collection that do not hold what they say, found by looking at them: gpu,
# engine, version, phase (or gemm), KV dtype where it is of one alone, and what is wrong.
_BROKEN = (
    ("b200_sxm", "sglang", "0.5.10", "prefill", "", "run with a window near zero"),
    ("l40s", "sglang", "0.5.12", "prefill", "", "impossibly fast"),
    ("l40s", "sglang", "0.5.12", "decode", "", "impossibly fast"),
    ("l40s", "vllm", "0.14.0", "prefill", "fp8", "impossibly fast"),
    ("rtx_pro_6000_server", "vllm", "0.19.0", "prefill", "fp8", "impossibly fast"),
    ("h200_sxm", "vllm", "0.19.0", "prefill", "", "a third impossible, grouped heads 5 x off"),
    ("b200_sxm", "trtllm", "1.3.0rc10", "decode", "", "keys read once for every query head"),
    ("b300_sxm", "trtllm", "1.3.0rc10", "decode", "", "keys read once for every query head"),
    ("gb200", "trtllm", "1.3.0rc10", "decode", "", "keys read once for every query head"),
    ("gb300", "trtllm", "1.3.0rc10", "decode", "", "keys read once for every query head"),
    ("l40s", "vllm", "0.22.0", "decode", "", "175 rows of a sweep that was cut off"),
    ("gb300", "vllm", "0.14.0", "prefill", "", "690 rows of a sweep that was cut off"),
    ("b200_sxm", "trtllm", "1.3.0rc15", "gemm", "", "a sweep that was cut off"),
)
_SUFFIXES = ("_sxm", "_server", "_pcie", "_nvl")


@dataclass(frozen=True)
class Group:
    """Rows of one kernel on one device.

    Args:
        key: What they have in common, by name: gpu, engine, version, kernel, dtypes, ...
        shapes: Columns as the law takes them.
    """

    key: Mapping[str, str]
    law: Law
    hardware: Hardware
    shapes: Mapping[str, Floats]
    latency_s: Floats

    @property
    def name(self) -> str:
        return " ".join(value for value in self.key.values() if value)

    def rows(self, which: Mask | NDArray[np.int64]) -> tuple[dict[str, Floats], Floats]:
        """Shapes and latencies of some of the rows."""
        return {name: column[which] for name, column in self.shapes.items()}, self.latency_s[which]


@dataclass
class Sorted:
    """The groups of some tables, and how many rows were left out for which reason."""

    groups: list[Group] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str, num: int) -> None:
        if num:
            self.left_out[reason] = self.left_out.get(reason, 0) + num


def sort_tables(tables: Sequence[ForeignTable]) -> Sorted:
    """Every table's groups.

    Raises:
        UsageError: A GPU without a profile.
    """
    found = Sorted()
    for table in tables:
        for key, rows in _by_key(table).items():
            _add(found, table, dict(key), rows)
    return found


@cache
def gpu_of(name: str) -> Gpu:
    """The GPU that a table calls ``name``, the form factor left out where it is not in ours.

    >>> gpu_of("h100_sxm").name, gpu_of("gb200_sxm").name, gpu_of("b60").name
    ('h100-sxm', 'gb200', 'arc-pro-b60')
    """
    try:
        return gpu_named(name)
    except UsageError:
        for suffix in _SUFFIXES:
            if name.endswith(suffix):
                return gpu_named(name.removesuffix(suffix))
        raise


def hardware_of(gpu: Gpu, dtype: str) -> Hardware:
    """The facts of a GPU for arithmetic in ``dtype``, by the name that tables give it.

    A type for which the GPU has no units is computed in bfloat16, or float16 before that.
    """
    peaks = (gpu.peak_flops_per_s(name) for name in (_TORCH_NAMES.get(dtype, ""), *_COMMON))
    peak = next((value for value in peaks if value is not None), None)
    if peak is None or gpu.num_compute_units is None:
        raise UsageError(
            f"GPU profile {gpu.name!r} lacks a peak or num_compute_units", f"add it to {gpu.path}"
        )
    return Hardware(
        flops_per_s=peak,
        bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        cache_bytes=float(gpu.l2_bytes or 0),
        num_units=float(gpu.num_compute_units),
        link_bytes_per_s=gpu.link_bytes_per_s,
    )


_COMMON = ("bfloat16", "float16", "float32")


def _by_key(table: ForeignTable) -> dict[tuple[tuple[str, str], ...], NDArray[np.int64]]:
    """Rows by what sets their kernel apart."""
    columns: dict[str, NDArray[np.str_]] = dict(table.texts)
    counts = table.counts
    if table.family.name == "attention":
        columns["head_dim"] = _labels("d", counts["head_dim"])
        columns["window"] = np.where(
            counts["window_tokens"] > 0, _labels("w", counts["window_tokens"]), ""
        )
        columns["sharing"] = _sharing(table)
    elif table.family.name == "gemm":
        columns["phase"] = np.full(len(table.latency_s), "gemm")
    else:
        columns["phase"] = np.full(len(table.latency_s), "all-reduce")
        columns["ranks"] = _labels("r", counts["ranks"])
        del columns["collective"]
    numbers, names = [], []
    for column in columns.values():
        values, places = np.unique(column, return_inverse=True)
        names.append(values)
        numbers.append(places)
    places, rows_at = np.unique(np.stack(numbers, axis=1), axis=0, return_inverse=True)
    order = np.argsort(rows_at, kind="stable")
    ends = np.searchsorted(rows_at[order], np.arange(len(places) + 1))
    return {
        tuple(
            (column, str(values[at]))
            for column, values, at in zip(columns, names, place, strict=True)
        ): order[ends[i] : ends[i + 1]]
        for i, place in enumerate(places)
    }


def _labels(letter: str, numbers: Floats) -> NDArray[np.str_]:
    return np.char.add(letter, numbers.astype(np.int64).astype(str))


def _sharing(table: ForeignTable) -> NDArray[np.str_]:
    """How many query heads read a KV head, where engines run other kernels for it: in decode."""
    group = table.counts["q_heads"] / table.counts["kv_heads"]
    named = np.where(group == 1, "mha", np.where(group > WIDE_GROUP, "wide", "gqa"))
    return np.where(table.texts["phase"] == "decode", named, "")


def _add(found: Sorted, table: ForeignTable, key: dict[str, str], rows: NDArray[np.int64]) -> None:
    gpu = gpu_of(key["gpu"])
    broken = _known_broken(key)
    if broken is not None:
        found.leave_out(f"known to be broken: {broken}", len(rows))
        return
    counts = {name: column[rows] for name, column in table.counts.items()}
    latency_s = table.latency_s[rows]
    keep = np.ones(len(rows), dtype=bool)
    match key["phase"]:
        case "gemm":
            law, shapes = GEMM, _gemm_shapes(counts, key["dtype"])
            hardware = hardware_of(gpu, key["dtype"])
            flops = 2 * shapes["m"] * shapes["n"] * shapes["k"]
        case "all-reduce":
            law, hardware = ALL_REDUCE, hardware_of(gpu, key["dtype"])
            shapes = {"ranks": counts["ranks"], "bytes": counts["message_bytes"]}
            flops = np.zeros(len(rows))
        case phase:
            law = PREFILL if phase == "prefill" else DECODE
            hardware = hardware_of(gpu, key["q_dtype"])
            shapes = attention_columns(_attention_shapes(counts, key["kv_dtype"]), phase)
            flops = shapes["flops"]
            if phase == "prefill":
                keep = shapes["q_len"] > 1
                found.leave_out(
                    "prefill of one token: a decode by another name", int((~keep).sum())
                )
    impossible = keep & (flops / latency_s > PEAK_MARGIN * _greatest_peak(gpu, key))
    if impossible.sum() > BROKEN_SHARE * keep.sum():
        found.leave_out(
            "group of which over 10 % is faster than the GPU can compute", int(keep.sum())
        )
        return
    found.leave_out("faster than the GPU can compute", int(impossible.sum()))
    keep &= ~impossible
    if keep.any():
        kept = {name: column[keep] for name, column in shapes.items()}
        found.groups.append(Group(_tidy(key), law, hardware, kept, latency_s[keep]))


def _known_broken(key: Mapping[str, str]) -> str | None:
    """What is wrong with a table, None where nothing is known of it."""
    who = (key["gpu"], key["engine"], key["engine_version"], key["phase"])
    for *table, kv_dtype, why in _BROKEN:
        if tuple(table) == who and kv_dtype in ("", key.get("kv_dtype")):
            return f"{' '.join(who)}, {why}"
    return None


def _greatest_peak(gpu: Gpu, key: Mapping[str, str]) -> float:
    """What the GPU can compute in the narrowest type that may be used whatever the label says."""
    names = ["bf16", "fp8", key.get("dtype", "bf16")]
    return max(hardware_of(gpu, name).flops_per_s for name in names)


def _tidy(key: Mapping[str, str]) -> dict[str, str]:
    order = (
        "gpu", "engine", "engine_version", "phase", "kernel", "q_dtype", "kv_dtype", "dtype",
        "head_dim", "window", "sharing", "ranks",
    )  # fmt: skip
    return {name: key[name] for name in order if name in key}


def _attention_shapes(counts: Mapping[str, Floats], kv_dtype: str) -> dict[str, Floats]:
    return {
        "batch": counts["batch"],
        "q_len": counts["q_len_tokens"],
        "kv_len": counts["kv_len_tokens"],
        "q_heads": counts["q_heads"],
        "kv_heads": counts["kv_heads"],
        "head_dim": counts["head_dim"],
        "window": counts["window_tokens"],
        "kv_size": np.full(len(counts["batch"]), float(DTYPE_BYTES[kv_dtype])),
    }


def _gemm_shapes(counts: Mapping[str, Floats], dtype: str) -> dict[str, Floats]:
    return {
        "m": counts["m_tokens"],
        "n": counts["n_out"],
        "k": counts["k_in"],
        "size": np.full(len(counts["m_tokens"]), float(DTYPE_BYTES[dtype])),
    }
