"""Bytes that attention has to move between memory and the processor."""

from attnprof.dtypes import dtype_named
from attnprof.theory.calls import parts_of_step
from attnprof.theory.kv_cache import cached_token_bytes
from attnprof.workload import Workload


def query_bytes(workload: Workload) -> int:
    """Bytes of the queries of all layers, padding included. [bytes]"""
    return sum(_rows(part) * part.head_dim * _size(part) for part in parts_of_step(workload))


def latent_weight_bytes(workload: Workload) -> int:
    """Bytes of the weights that make keys and values from MLA's latent; 0 without. [bytes]

    L · H · (d_nope + d_v) · r · s
    """
    if workload.mla is None:
        return 0
    assert workload.kv_lora_rank is not None and workload.rope_head_dim is not None
    made = workload.head_dim - workload.rope_head_dim + workload.value_dim
    elements = workload.num_q_heads * made * workload.kv_lora_rank
    return workload.num_layers * elements * _size(workload)


def visible_kv_len(workload: Workload) -> int:
    """Keys of a sequence that at least one query sees. [tokens]

    All of them, unless a window, a chunk or a document is shorter: q_len queries at the end of a
    sliding window see window_len − 1 + q_len keys between them.
    """
    return workload.mask.num_visible(workload.q_len, workload.kv_len)


def attention_bytes(workload: Workload) -> int:
    """Bytes that the algorithm needs to move in one call over all layers. [bytes]

        L · (B · H_q · q_len · (d_k + d_v) · s + B · H_kv · kv_visible · (d_k · s_kv + d_v · s_kv))

    Queries in, output out, every visible key and value once, with its scales where a cache has
    them: KV heads count once however many query heads share them. Of a latent it is the latent, and
    MLA's weights once. Of a padded batch padding is left out. A training step reads the same on
    its way back, with the gradient of the output beside it, and writes gradients as large as what
    it read: three times as much. Scores, copies and a second pass over the keys are left out: they
    are what a kernel adds, and the measured share of this roof shows it.

    Source:
        Williams et al. 2009, "Roofline", section 3 (compulsory traffic).

    >>> attention_bytes(Workload(backend="flash", q_len=2, kv_len=2, num_q_heads=1, num_kv_heads=1,
    ...     head_dim=1))
    32
    """
    total = latent_weight_bytes(workload)
    for part in parts_of_step(workload):
        rows = part.num_layers * part.num_q_heads * _queries(part)
        total += rows * (part.head_dim + part.value_dim) * _size(part)
        total += _visible_tokens(part) * cached_token_bytes(part)
    return 3 * total if workload.phase == "train" else total


def _visible_tokens(part: Workload) -> int:
    """Keys that are read, over all sequences."""
    if part.min_len is not None:
        return sum(part.lengths)
    return part.batch_size * visible_kv_len(part)


def _queries(part: Workload) -> int:
    """Queries that are no padding, over all sequences."""
    if part.min_len is not None and part.attention == "self":
        return sum(part.lengths)
    return part.batch_size * part.q_len


def _rows(part: Workload) -> int:
    return part.num_layers * part.batch_size * part.num_q_heads * part.q_len


def _size(part: Workload) -> int:
    return int(dtype_named(part.dtype).bytes)
