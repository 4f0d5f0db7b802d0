"""Shapes of prefill and decode calls on a CPU -> the terms of their laws.

Its kernels differ from a GPU's in what they compute beside what is asked for, in what they read
again, and in how few units share the work. Block sizes are those of PyTorch's fused CPU kernel.
"""

import numpy as np

from attnprof.laws.base import Coefficient, Columns, Floats, Hardware, Law
from attnprof.laws.kernels import attention_columns, cold_and_hot_s, seen_keys

KEY_BLOCK = 512  # keys whose scores are computed at once, on the diagonal too
# Queries at once, from so many in a call on (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
VECTOR = 16  # elements of a register, by which rows of scores begin where keys are so many
SCORE_PASSES = 4  # of a kernel that keeps its scores: written, read, and so again as weights
SCORE_BYTES = 4.0
CAUSAL_MARGIN = 1.01  # of n·(n+1)/2, in pairs


def query_block(queries: Floats) -> Floats:
    """Queries that a unit holds at once."""
    return np.select([queries >= least for least, _ in QUERY_BLOCKS],
                     [float(size) for _, size in QUERY_BLOCKS])  # fmt: skip


def computed_pairs(queries: Floats, keys: Floats, pairs: Floats) -> Floats:
    """Scores of a head that a blocked kernel computes where ``pairs`` of them count.

    A causal call computes every key block that any of its queries sees; one with another mask all.

    >>> computed_pairs(np.array([512.0, 1024.0]), np.array([512.0, 1024.0]),
    ...     np.array([131328.0, 524800.0]))
    array([262144., 786432.])
    """
    whole = queries * keys
    triangle = queries * (queries + 1) / 2
    is_causal = (queries == keys) & (np.abs(pairs / triangle - 1) < CAUSAL_MARGIN - 1)
    found = whole.copy()
    blocks = query_block(queries)
    for i in np.flatnonzero(is_causal & (keys > KEY_BLOCK)):
        starts = np.arange(0.0, queries[i], blocks[i])
        ends = np.minimum(starts + blocks[i], queries[i])
        reached = np.minimum(np.ceil(ends / KEY_BLOCK) * KEY_BLOCK, keys[i])
        found[i] = ((ends - starts) * reached).sum()
    return found


def _busiest(tasks: Floats, hardware: Hardware) -> Floats:
    """Work of the unit that has most, over the mean: whole tasks are shared out."""
    each = tasks / hardware.num_units
    return np.asarray(np.ceil(each) / each)


def _wakes(tasks: Floats, hardware: Hardware) -> Floats:
    """Whether other units are woken, and waited for."""
    return np.where((tasks > 1) & (hardware.num_units > 1), 1.0, 0.0)


def _prefill_terms(shapes: Columns, hardware: Hardware, *, keeps_scores: bool) -> Floats:
    """Launch, waking, arithmetic, exponentials, tasks, DRAM, cache, and arithmetic of small blocks
    whose rows are no whole vectors."""
    shapes = attention_columns(shapes, "prefill")
    queries, dim = shapes["q_len"], shapes["head_dim"]
    keys = shapes.get("kv_len", queries)
    heads = shapes["batch"] * shapes["q_heads"]
    pairs = shapes["flops"] / (4 * heads * dim)
    moved = shapes["bytes"]
    if keeps_scores:
        computed, tasks = queries * keys, heads
        moved = moved + SCORE_PASSES * SCORE_BYTES * heads * computed
    else:
        computed = computed_pairs(queries, keys, pairs)
        tasks = heads * np.ceil(queries / query_block(queries))
    cold, hot = cold_and_hot_s(moved, hardware)
    busiest = _busiest(tasks, hardware)
    scores = heads * computed
    compute_s = 4 * scores * dim * busiest / hardware.flops_per_s
    is_ragged = (keys % VECTOR != 0) & (query_block(queries) == QUERY_BLOCKS[-1][1])
    return np.stack(
        [
            np.ones_like(queries),
            _wakes(tasks, hardware),
            compute_s,
            scores * busiest / hardware.num_units,
            tasks * busiest / hardware.num_units,
            cold,
            hot,
            np.where(is_ragged, compute_s, 0.0),
        ]
    )


def _fused_prefill_terms(shapes: Columns, hardware: Hardware) -> Floats:
    return _prefill_terms(shapes, hardware, keeps_scores=False)


def _scores_prefill_terms(shapes: Columns, hardware: Hardware) -> Floats:
    return _prefill_terms(shapes, hardware, keeps_scores=True)


def _decode_terms(shapes: Columns, hardware: Hardware) -> Floats:
    """Launch, waking, streaming by the units, tasks, DRAM, cache.

    A unit reads keys and values for every query head anew; where the cache does not hold those of
    the KV heads at which the units are at once, they come from memory every time.
    """
    shapes = attention_columns(shapes, "decode")
    heads = shapes["batch"] * shapes["q_heads"]
    kv_heads = shapes["batch"] * shapes["kv_heads"]
    blocks = np.ceil(seen_keys(shapes) / KEY_BLOCK)
    tasks = np.where(heads < hardware.num_units, heads * blocks, heads)
    busiest = _busiest(tasks, hardware)
    cached = shapes["bytes"] * kv_heads / (kv_heads + heads / np.maximum(seen_keys(shapes), 1.0))
    cold, hot = cold_and_hot_s(shapes["bytes"], hardware)
    at_once = np.minimum(kv_heads, hardware.num_units)
    from_dram, from_cache = cold_and_hot_s(cached / kv_heads * at_once, hardware)
    share = from_dram / np.maximum(from_dram + from_cache, 1e-300)
    again = cached * (heads / kv_heads - 1.0) / hardware.bytes_per_s
    return np.stack(
        [
            np.ones_like(heads),
            _wakes(tasks, hardware),
            shapes["flops"] * busiest / hardware.flops_per_s,
            tasks * busiest / hardware.num_units,
            cold + share * again,
            hot + (1.0 - share) * again,
        ]
    )


_LAUNCH = Coefficient("launch", "fixed time of a call", True, 15e-6, 1.0)
_WAKE = Coefficient("wake", "waking the other units of a call, and waiting", True, 5e-6, 1.0)
_DRAM = Coefficient("dram", "traffic from memory, over its time at peak", False, 1.3, 0.6)
_CACHE = Coefficient("cache", "traffic from the cache, over DRAM's peak", False, 0.5, 1.0)
CPU_PREFILL = Law(
    name="cpu-prefill",
    kind="cpu",
    coefficients=(
        _LAUNCH,
        _WAKE,
        Coefficient(
            "compute", "arithmetic in whole blocks, over its time at peak", False, 1.2, 0.5
        ),
        Coefficient("score", "each score, a unit", True, 1e-10, 1.5),
        Coefficient("task", "each block of queries of a head, a unit", True, 1e-6, 1.5),
        _DRAM,
        _CACHE,
        Coefficient("ragged", "more arithmetic where rows are no whole vectors", False, 0.2, 0.7),
    ),
    terms=_fused_prefill_terms,
    overlapping=((2, 3, 7), (5, 6)),
    overlap=1.0,
    axes=("batch", "q_len", "q_heads", "kv_heads"),
)
CPU_SCORES_PREFILL = Law(
    name="cpu-scores-prefill",
    kind="cpu-scores",
    coefficients=CPU_PREFILL.coefficients,
    terms=_scores_prefill_terms,
    overlapping=CPU_PREFILL.overlapping,
    overlap=1.0,
    axes=CPU_PREFILL.axes,
)
CPU_DECODE = Law(
    name="cpu-decode",
    kind="cpu",
    coefficients=(
        _LAUNCH,
        _WAKE,
        Coefficient("compute", "arithmetic from the inner caches, over its time at peak", False,
                    4.0, 1.0),
        Coefficient("task", "each query head of a sequence, a unit", True, 0.3e-6, 1.5),
        _DRAM,
        _CACHE,
    ),
    terms=_decode_terms,
    overlapping=((2,), (4, 5)),
    overlap=1.0,
    axes=("batch", "kv_len", "q_heads", "kv_heads"),
)  # fmt: skip
