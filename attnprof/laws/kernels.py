"""Shapes of prefill, decode, GEMM and all-reduce calls -> the terms of their laws.

Times are seconds, sizes bytes. The priors are medians over data-centre GPUs whose kernels are
replayed from a graph; a device of another kind widens them.
"""

import numpy as np

from attnprof.laws.base import Coefficient, Columns, Floats, Hardware, Law

TILE_ROWS = 128  # queries, or rows of a product, that one unit holds at once
GEMM_TILE = (64, 128)  # least rows and columns that are computed whatever is asked for
SPLIT_KEYS = 64  # keys from which on a decode is split and reduced
STREAM_ELEMENTS = 128_000.0  # of a key: 1,000 tokens of 128
CACHE_EDGE = 8  # how sharply a working set leaves the cache


def cold_and_hot_s(moved_bytes: Floats, hardware: Hardware) -> tuple[Floats, Floats]:
    """Time of the traffic from DRAM and of that from the last cache, at DRAM's peak. [s]

        φ = 1 / (1 + (C/B)⁸);  cold = φ·B/W;  hot = (1 - φ)·B/W

    A call repeated without a flush finds a working set B smaller than the cache C still there.
    """
    if hardware.cache_bytes <= 0:
        return moved_bytes / hardware.bytes_per_s, np.zeros_like(moved_bytes)
    ratio = np.minimum(hardware.cache_bytes / np.maximum(moved_bytes, 1.0), 1e6)
    from_dram = 1.0 / (1.0 + ratio**CACHE_EDGE)
    all_s = moved_bytes / hardware.bytes_per_s
    return from_dram * all_s, (1.0 - from_dram) * all_s


def attention_columns(shapes: Columns, phase: str) -> dict[str, Floats]:
    """``shapes`` with ``flops`` and ``bytes`` of a causal call where they are not given.

        prefill: F = 4·b·h·d·pairs, B = b·n·d·(4h + 4k + 2·k·s)
        decode:  F = 4·b·h·d·m,     B = 2·b·k·m·d·s + b·d·(4h + 4k)

    s bytes an element of the cache; queries, outputs and new keys and values are of ``q_size``
    bytes, 2 where it is not given; m is the keys that the window leaves. The write of the cache is
    inside the call.
    """
    given = {name: np.asarray(column, dtype=float) for name, column in shapes.items()}
    if "flops" in given and "bytes" in given:
        return given
    batch, heads, kv_heads = given["batch"], given["q_heads"], given["kv_heads"]
    dim, size = given["head_dim"], given["kv_size"]
    ends = 2 * given.get("q_size", np.full_like(dim, 2.0))  # in and out
    window = given["window"]
    if phase == "prefill":
        queries = given["q_len"]
        past = np.maximum(given.get("kv_len", queries) - queries, 0.0)
        reach = np.where(window > 0, window, queries + past)
        ramp = np.minimum(queries, np.maximum(reach - past, 0.0))
        pairs = ramp * (ramp + 1) / 2 + ramp * past + (queries - ramp) * reach
        read = np.minimum(past, reach)
        flops = 4 * batch * heads * dim * pairs
        moved = batch * queries * dim * (ends * (heads + kv_heads) + 2 * kv_heads * size)
        moved = moved + 2 * batch * kv_heads * read * dim * size
    else:
        keys = seen_keys(given)
        flops = 4 * batch * heads * dim * keys
        moved = 2 * batch * kv_heads * keys * dim * size + batch * dim * ends * (heads + kv_heads)
    return {**given, "flops": flops, "bytes": moved}


def seen_keys(shapes: Columns) -> Floats:
    """Keys that the last query attends."""
    window = shapes["window"]
    return np.where(window > 0, np.minimum(shapes["kv_len"], window), shapes["kv_len"])


def _prefill_terms(shapes: Columns, hardware: Hardware) -> Floats:
    """Launch, arithmetic, DRAM, cache, tiles, the tile that no number of units shortens, and the
    tokens whose keys and values are written, one by one whatever their width."""
    shapes = attention_columns(shapes, "prefill")
    queries, window, dim = shapes["q_len"], shapes["window"], shapes["head_dim"]
    keys = shapes.get("kv_len", queries)
    units, peak = hardware.num_units, hardware.flops_per_s
    cold, hot = cold_and_hot_s(shapes["bytes"], hardware)
    on_path = np.where(window > 0, np.minimum(keys, window + TILE_ROWS), keys)
    tiles = shapes["batch"] * shapes["q_heads"] * np.ceil(queries / TILE_ROWS)
    return np.stack(
        [
            np.ones_like(queries),
            shapes["flops"] / peak,
            cold,
            hot,
            tiles / units,
            4 * TILE_ROWS * on_path * dim * units / peak,
            shapes["batch"] * queries / units,
        ]
    )


def _decode_terms(shapes: Columns, hardware: Hardware) -> Floats:
    """Launch, depth of reduction, arithmetic, sequences, DRAM, cache, one stream of keys."""
    shapes = attention_columns(shapes, "decode")
    keys = seen_keys(shapes)
    cold, hot = cold_and_hot_s(shapes["bytes"], hardware)
    return np.stack(
        [
            np.ones_like(keys),
            np.log2(1 + keys / SPLIT_KEYS),
            shapes["flops"] / hardware.flops_per_s,
            shapes["batch"] * shapes["kv_heads"] / hardware.num_units,
            cold,
            hot,
            keys * shapes["head_dim"] / STREAM_ELEMENTS,
        ]
    )


def _gemm_terms(shapes: Columns, hardware: Hardware) -> Floats:
    """Kernels, one tile's path, tiles, arithmetic, DRAM, cache; then what quantises the rows that
    come in where they are narrower than two bytes: its traffic, and its own work for each row."""
    rows, columns, depth = (np.asarray(shapes[name], dtype=float) for name in ("m", "n", "k"))
    size = shapes["size"]
    least_rows, least_columns = GEMM_TILE
    units, peak = hardware.num_units, hardware.flops_per_s
    moved = (rows * depth + columns * depth) * size + 2 * rows * columns
    cold, hot = cold_and_hot_s(moved, hardware)
    whole_rows = np.ceil(rows / least_rows) * least_rows
    whole_columns = np.ceil(columns / least_columns) * least_columns
    return np.stack(
        [
            np.where(size < 2, 2.0, 1.0),
            2 * least_rows * least_columns * depth * units / peak,
            np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_ROWS) / units,
            2 * whole_rows * whole_columns * depth / peak,
            cold,
            hot,
            np.where(size < 2, rows * depth * (2 + size), 0.0) / hardware.bytes_per_s,
            np.where(size < 2, rows, 0.0) / units,
        ]
    )


def _all_reduce_terms(shapes: Columns, hardware: Hardware) -> Floats:
    """Launch, the square root between two algorithms, and the link.

    w = 2·(r - 1)/r·bytes goes over the link of each of r ranks.
    """
    ranks = np.asarray(shapes["ranks"], dtype=float)
    sent = 2 * (ranks - 1) / ranks * shapes["bytes"]
    link = hardware.link_bytes_per_s or 1e9
    return np.stack([np.ones_like(sent), np.sqrt(sent), sent / link])


PREFILL = Law(
    name="prefill",
    coefficients=(
        Coefficient("launch", "fixed time of a call", True, 10.6e-6, 0.3),
        Coefficient("compute", "arithmetic, over its time at peak", False, 1.75, 0.35),
        Coefficient("dram", "traffic from memory, over its time at peak", False, 1.7, 0.5),
        Coefficient("cache", "traffic from the cache, over DRAM's peak", False, 1.1, 0.9),
        Coefficient("tile", "each 128 queries of a head, a unit", True, 0.8e-6, 1.2),
        Coefficient("path", "one tile that no number of units shortens", False, 0.85, 0.7),
        Coefficient("token", "each token that is written to the cache, a unit", True, 5e-8, 1.5),
    ),
    terms=_prefill_terms,
    overlapping=((1,), (2, 3)),
    overlap=1.0,
    axes=("batch", "q_len", "q_heads", "kv_heads"),
)
DECODE = Law(
    name="decode",
    coefficients=(
        Coefficient("launch", "fixed time of a call", True, 10.4e-6, 0.27),
        Coefficient("depth", "each doubling of the keys that are split", True, 0.75e-6, 0.5),
        Coefficient("compute", "arithmetic, over its time at peak", False, 4.0, 0.9),
        Coefficient("sequence", "each KV head of a sequence, a unit", True, 3.7e-6, 0.35),
        Coefficient("dram", "traffic from memory, over its time at peak", False, 1.17, 0.1),
        Coefficient("cache", "traffic from the cache, over DRAM's peak", False, 0.6, 0.7),
        Coefficient("stream", "each 1,000 keys of 128 that one unit reads", True, 0.30e-6, 1.0),
    ),
    terms=_decode_terms,
    overlapping=((2, 3), (4, 5), (6,)),
    overlap=2.0,
    axes=("batch", "kv_len", "q_heads", "kv_heads"),
)
GEMM = Law(
    name="gemm",
    coefficients=(
        Coefficient("launch", "fixed time of each kernel", True, 3e-6, 0.35),
        Coefficient("path", "one tile that no number of units shortens", False, 0.3, 0.8),
        Coefficient("tile", "each tile of the result, a unit", True, 0.8e-6, 1.0),
        Coefficient("compute", "arithmetic, over its time at peak", False, 1.2, 0.15),
        Coefficient("dram", "traffic from memory, over its time at peak", False, 1.08, 0.1),
        Coefficient("cache", "traffic from the cache, over DRAM's peak", False, 1.0, 0.25),
        Coefficient("quantise", "quantising what comes in, over DRAM's peak", False, 2.0, 0.8),
        Coefficient("row", "each row that is quantised, a unit", True, 1e-6, 0.8),
    ),
    terms=_gemm_terms,
    overlapping=((3,), (4, 5)),
    overlap=2.0,
    axes=("m", "n", "k"),
)
ALL_REDUCE = Law(
    name="all-reduce",
    coefficients=(
        Coefficient("launch", "fixed time of a call", True, 16e-6, 0.8),
        Coefficient("root", "each root of a byte: between two algorithms", True, 0.6e-8, 0.8),
        Coefficient("link", "traffic over the link, over its time at peak", False, 1.5, 0.3),
    ),
    terms=_all_reduce_terms,
    overlapping=((0,), (1,), (2,)),
    overlap=2.0,
    axes=("bytes",),
)
