"""Small tables of kernels that obey planted laws, as files of the format that is read."""

import csv
import gzip
from pathlib import Path

import numpy as np

from attnprof.laws.base import latency
from attnprof.laws.groups import gpu_of, hardware_of
from attnprof.laws.kernels import DECODE, GEMM, PREFILL, attention_columns

ATTENTION = (
    "gpu", "engine", "engine_version", "kernel", "phase", "q_dtype", "kv_dtype", "batch",
    "q_len_tokens", "kv_len_tokens", "q_heads", "kv_heads", "head_dim", "window_tokens",
    "latency_us",
)  # fmt: skip
GEMMS = (
    "gpu", "engine", "engine_version", "kernel", "dtype", "m_tokens", "n_out", "k_in", "latency_us",
)  # fmt: skip


def attention_rows(phase: str, gpu: str = "h100_sxm", noise: float = 0.03) -> list[list[object]]:
    """One head width, grouped, over batch, length and heads."""
    law = PREFILL if phase == "prefill" else DECODE
    hardware = hardware_of(gpu_of(gpu), "bf16")
    rng = np.random.default_rng(3)
    rows: list[list[object]] = []
    for batch in (1, 4, 16, 64):
        for length in (16, 64, 256, 1024, 4096, 16384):
            for heads, kv_heads in ((8, 1), (32, 8), (64, 8), (16, 8)):
                shapes = {
                    "batch": batch, "kv_len": length, "q_heads": heads, "kv_heads": kv_heads,
                    "q_len": length if phase == "prefill" else 1, "head_dim": 128, "window": 0,
                    "kv_size": 2,
                }  # fmt: skip
                columns = attention_columns(
                    {name: np.array([float(value)]) for name, value in shapes.items()}, phase
                )
                time_s = latency(law, law.terms(columns, hardware), law.medians)[0]
                time_us = time_s * 1e6 * float(np.exp(rng.normal(0, noise)))
                rows.append(
                    [gpu, "vllm", "1.0", "flash", phase, "bf16", "bf16", batch, shapes["q_len"],
                     length, heads, kv_heads, 128, 0, f"{time_us:.6g}"]
                )  # fmt: skip
    return rows


def gemm_rows(gpu: str = "h100_sxm") -> list[list[object]]:
    hardware = hardware_of(gpu_of(gpu), "bf16")
    rows: list[list[object]] = []
    for m in (1, 16, 64, 256, 1024, 4096):
        for n in (512, 2048, 8192):
            for k in (512, 2048, 8192):
                columns = {
                    name: np.array([float(value)])
                    for name, value in (("m", m), ("n", n), ("k", k), ("size", 2))
                }
                time_s = latency(GEMM, GEMM.terms(columns, hardware), GEMM.medians)[0]
                rows.append([gpu, "vllm", "1.0", "linear", "bf16", m, n, k, f"{time_s * 1e6:.6g}"])
    return rows


def written(path: Path, header: tuple[str, ...], rows: list[list[object]]) -> Path:
    """A table as a file, gzipped where its name says so."""
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path
