"""Work of a layer, block or model -> the terms of its law, attention's own time among them."""

from functools import partial

import numpy as np

from attnprof.laws.base import Coefficient, Columns, Floats, Hardware, Law
from attnprof.laws.kernels import cold_and_hot_s

PACKED_FROM = 4
"""Rows of a product from which on a CPU packs the weights once; with fewer it reads them anew for
each row (MKL, seen on products of 1 to 512 rows)."""


def _terms(shapes: Columns, hardware: Hardware, *, row_by_row: bool) -> Floats:
    """Call, kernels, units woken, arithmetic, weights for few rows and for many, each from memory
    and from the cache, more for the largest matrix (a head's), rows in and out from either,
    attention, and keys and values copied or lost to the weights.

    What a call reads again is in the cache when all that it reads fits there. A product of one row
    is one unit's work.
    """
    all_bytes = np.maximum(shapes["weight_bytes"] + shapes["kv_bytes"], 1.0)
    cold_s, hot_s = cold_and_hot_s(all_bytes, hardware)
    from_dram = cold_s / (cold_s + hot_s)
    few_bytes = shapes["few_rows_bytes"]
    if row_by_row:  # rows that are products of their own are shared out among the units
        few_bytes = (
            shapes["few_rows_reads_bytes"] + shapes["row_products_bytes"] / hardware.num_units
        )
    few_s, many_s = (
        few_bytes / hardware.bytes_per_s,
        shapes["many_rows_bytes"] / hardware.bytes_per_s,
    )
    layers = np.maximum(shapes["num_layers"], 1.0)
    rows_cold_s, rows_hot_s = cold_and_hot_s(shapes["rows_bytes"] / layers, hardware)
    large_s, _ = cold_and_hot_s(shapes["largest_bytes"], hardware)
    kv_bytes = shapes["copied_bytes"] + from_dram * shapes["kv_bytes"]
    return np.stack(
        [
            np.ones_like(all_bytes),
            shapes["num_kernels"],
            shapes["num_shared"] * (hardware.num_units > 1 and row_by_row),
            shapes["flops"] / hardware.flops_per_s,
            from_dram * few_s,
            (1.0 - from_dram) * few_s,
            from_dram * many_s,
            (1.0 - from_dram) * many_s,
            large_s,
            rows_cold_s * layers,
            rows_hot_s * layers,
            shapes["attention_s"],
            kv_bytes / hardware.bytes_per_s,
        ]
    )


CPU_STEP = Law(
    name="cpu-step",
    kind="cpu",
    coefficients=(
        Coefficient("launch", "fixed time of a call", True, 100e-6, 1.0),
        Coefficient("kernel", "each product with weights, and what is around it", True, 10e-6, 1.0),
        Coefficient("wake", "waking the other units of a product, and waiting", True, 15e-6, 1.0),
        Coefficient("compute", "arithmetic of products, over its time at peak", False, 1.15, 0.3),
        Coefficient("few", "weights from memory for a few rows, over DRAM's peak", False, 2.0, 0.6),
        Coefficient("few_cache", "the same from the cache", False, 0.7, 0.8),
        Coefficient("many", "weights from memory for many rows, over DRAM's peak", False, 3.0, 0.6),
        Coefficient("many_cache", "the same from the cache", False, 0.7, 0.8),
        Coefficient("large", "more for one matrix that no cache holds", False, 1.0, 0.8),
        Coefficient("rows", "rows in and out of products, from memory", False, 3.0, 0.8),
        Coefficient("rows_cache", "the same from the cache", False, 1.5, 0.8),
        Coefficient("attention", "attention, over its own law", False, 1.0, 0.15),
        Coefficient("kv", "keys and values copied, or lost to the weights", False, 2.0, 0.8),
    ),
    terms=partial(_terms, row_by_row=True),
    overlapping=(),
    overlap=1.0,
    axes=("num_tokens", "num_layers", "weight_bytes", "attention_s"),
)
STEP = Law(
    name="step",
    coefficients=CPU_STEP.coefficients,
    terms=partial(_terms, row_by_row=False),
    overlapping=(),
    overlap=1.0,
    axes=CPU_STEP.axes,
).expecting(
    {
        "launch": (50e-6, 1.5), "kernel": (15e-6, 1.0), "compute": (1.4, 0.5), "few": (1.3, 0.5),
        "few_cache": (0.6, 1.0), "many": (1.3, 0.5), "many_cache": (0.6, 1.0), "rows": (2.0, 1.0),
        "rows_cache": (1.0, 1.0), "kv": (1.5, 1.0),
    }
)  # fmt: skip
