"""Bytes that attention has to move between memory and the processor."""

from attnprof.dtypes import dtype_named
from attnprof.theory.kv_cache import kv_bytes
from attnprof.workload import Workload


def query_bytes(workload: Workload) -> int:
    """Bytes of the queries of all layers; the output is as large. [bytes]"""
    elements = workload.batch_size * workload.num_q_heads * workload.q_len * workload.head_dim
    return int(workload.num_layers * elements * dtype_named(workload.dtype).bytes)


def visible_kv_len(workload: Workload) -> int:
    """Keys that at least one query sees. [tokens]

    All of them, unless a sliding window is shorter than the cache: q_len queries at its end see
    window_len − 1 + q_len keys between them.
    """
    if workload.window_len is None:
        return workload.kv_len
    return min(workload.kv_len, workload.window_len - 1 + workload.q_len)


def attention_bytes(workload: Workload) -> int:
    """Bytes that the algorithm needs to move in one call over all layers. [bytes]

        L · (2 · B · H_q · q_len · d · s + 2 · B · H_kv · kv_visible · d · s_kv)

    Queries in, output out, every visible key and value once: KV heads count once however many
    query heads share them. Scores, copies and a second pass over the keys are left out: they
    are what a kernel adds, and the measured share of this roof shows it.

    Source:
        Williams et al. 2009, "Roofline", section 3 (compulsory traffic).

    >>> attention_bytes(Workload(backend="flash", q_len=2, kv_len=2, num_q_heads=1, num_kv_heads=1,
    ...     head_dim=1))
    32
    """
    return 2 * query_bytes(workload) + kv_bytes(
        workload.batch_size * visible_kv_len(workload),
        num_layers=workload.num_layers,
        num_kv_heads=workload.num_kv_heads,
        head_dim=workload.head_dim,
        dtype=workload.cached_dtype,
    )
