"""Work and bytes of telling attention where its tokens are, beside its two matrix products.

None of this FLOP is in the ``flops`` of a record, which counts matrix products of queries, keys
and values alone, so that a share of a roof means the same for every scheme: what a scheme costs
shows as a lower share of it, and its time as the difference to position none.
"""

from attnprof.dtypes import dtype_named
from attnprof.positions import POSITIONS, SHAW_CLIP, T5_BUCKETS
from attnprof.rope import rope_named
from attnprof.workload import Workload


def position_flops(workload: Workload) -> int:
    """FLOP of the scheme of one call forward over all layers. [FLOP]

        rotation    F = 3 · L · T · (H_q + H_k) · d_r
        bias        F = L · B · H_q · q_len · kv_given
        Shaw        F = L · B · H_q · q_len · (2 · 33 · d + kv_given)
        embeddings  F = T · hidden_size

    A rotated element takes two multiplications and an addition, of the T = B · q_len new tokens
    (and a mixed step's prompt) alone: cached keys are turned already. A latent has one key that
    turns for all heads. A bias is added to every score, a hidden one too, as kernels do that are
    given one, from the first key on that any query sees; Shaw's is the product of each query with
    the keys of its 33 distances before. Absolute positions are added once, before the first layer.
    Left out: angles, slopes times distances and look-ups, which are made once and held.

    Source:
        Su et al. 2021, arXiv:2104.09864, equation 34; Shaw et al. 2018, arXiv:1803.02155,
        equation 5.

    >>> position_flops(Workload(backend="eager", position="rope", q_len=2, kv_len=2, num_q_heads=2,
    ...     num_kv_heads=1, head_dim=4))
    72
    """
    w = workload
    match POSITIONS[w.position].acts:
        case "nowhere":
            return 0
        case "embeddings":
            return _new_tokens(w) * w.hidden_size
        case "rotation":
            return 3 * _rotated_elements(w)
    pairs = _scores(w)
    if w.position != "shaw":
        return pairs
    rows = w.num_layers * w.num_q_heads * _new_tokens(w)
    return 2 * rows * (2 * SHAW_CLIP + 1) * w.head_dim + pairs


def position_bytes(workload: Workload) -> int:
    """Bytes that the scheme moves in one call forward over all layers. [bytes]

        rotation    L · (2 · T · (H_q + H_k) · d_r + 2 · q_len · d_r) · s
        bias        L · H_q · q_len · kv_given · s
        Shaw        L · B · H_q · q_len · 2 · (33 + kv_given) · s
        embeddings  (2 · T · hidden_size + q_len · hidden_size) · s

    New queries and keys are read and written once more, with the rows of cosines and sines; a
    bias is read once for all sequences, as it lies in memory; Shaw's is written and read, as are
    the products that it is gathered from. Compulsory traffic of attention itself is not in it,
    nor is this in the ``bytes_moved`` of a record: a kernel that turns in its registers, or makes
    its biases there, moves none of it.

    >>> position_bytes(Workload(backend="eager", position="alibi", q_len=4, kv_len=4))
    512
    """
    w = workload
    size = dtype_named(w.dtype).bytes
    rows = w.q_len + (w.prefill_len or 0)  # of tables, which all sequences share
    match POSITIONS[w.position].acts:
        case "nowhere":
            return 0
        case "embeddings":
            return int((2 * _new_tokens(w) + rows) * w.hidden_size * size)
        case "rotation":
            tables = 2 * w.num_layers * rows * _rotated_dim(w)
            return int((2 * _rotated_elements(w) + tables) * size)
    if w.position == "shaw":
        products = w.num_layers * w.num_q_heads * _new_tokens(w) * (2 * SHAW_CLIP + 1)
        return int(2 * (products + _scores(w)) * size)
    return w.num_layers * bias_bytes(w)


def bias_bytes(workload: Workload) -> int:
    """Bytes of the bias that all sequences and layers share; 0 where there is none. [bytes]

        H_q · q_len · kv_given · s,  of a mixed step also H_q · prefill_len² · s

    >>> bias_bytes(Workload(backend="eager", position="t5", q_len=1024, kv_len=1024)) / 2**20
    32.0
    """
    w = workload
    if w.position not in ("alibi", "t5"):
        return 0
    pairs = w.q_len * _given_len(w) + (w.prefill_len or 0) ** 2
    return int(w.num_q_heads * pairs * dtype_named(w.dtype).bytes)


def peak_with_position_bytes(workload: Workload, attention_peak_bytes: int) -> int | None:
    """The most that one call holds with its scheme, of attention alone. [bytes]

        max(t·Q, Q + t·K, Q + K + peak),  t = max(3·r, 1 + r) of a share r of the head, 3 of all

    Turned queries and keys stay beside the kernel; keys that a cache takes over do not. While they
    are turned there are products with the cosines, neighbours, and their sum. A bias that is held
    between calls adds nothing to a kernel that takes it as it is. None where no formula is known:
    Shaw's bias, a bias in the plain kernel of SDPA, and dynamic NTK beyond its first length, which
    makes angles in the call.

    Args:
        attention_peak_bytes: Of attention alone, copies that the cache makes included.
    """
    w = workload
    acts = POSITIONS[w.position].acts
    if acts == "scores":
        known = w.position != "shaw" and w.backend != "math"
        return attention_peak_bytes if known else None
    if acts != "rotation":
        return attention_peak_bytes
    rope = rope_named(w.position, w.head_dim)
    if w.mla is not None or (rope.varies_beyond or w.kv_len) < w.kv_len:
        return None
    share = rope.rotated_dim / w.head_dim
    times = 3.0 if share == 1 else max(3 * share, 1 + share)
    token = w.batch_size * w.q_len * w.head_dim * dtype_named(w.dtype).bytes
    queries, keys = w.num_q_heads * token, w.num_kv_heads * token
    kept = keys if w.kv_cache == "none" else 0
    turning = max(times * queries, queries + times * keys)
    return int(max(turning, queries + kept + attention_peak_bytes))


def table_bytes(workload: Workload) -> int:
    """Bytes of the tables that a scheme holds between calls. [bytes]

        rotation    2 · n · d_r · s          cosines and sines of n positions
        embeddings  n · hidden_size · s
        Shaw        33 · d · s
        T5          32 · H_q · s
        ALiBi       4 · H_q                  slopes, float32

    n is the longest sequence; dynamic NTK holds what it needs up to its first length.

    >>> table_bytes(Workload(backend="eager", position="rope", q_len=1024, kv_len=1024))
    524288
    """
    w = workload
    size = dtype_named(w.dtype).bytes
    longest = max(w.kv_len, w.prefill_len or 0)
    match w.position:
        case "none":
            return 0
        case "sinusoidal" | "learned":
            return int(longest * w.hidden_size * size)
        case "shaw":
            return int((2 * SHAW_CLIP + 1) * w.head_dim * size)
        case "t5":
            return int(T5_BUCKETS * w.num_q_heads * size)
        case "alibi":
            return 4 * w.num_q_heads
    varies_beyond = rope_named(w.position, w.head_dim).varies_beyond
    held = longest if varies_beyond is None else min(longest, varies_beyond)
    return int(2 * held * _rotated_dim(w) * size)


def _new_tokens(w: Workload) -> int:
    return w.batch_size * w.q_len + (w.prefill_len or 0)


def _given_len(w: Workload) -> int:
    """Keys that a kernel is given: those from the first on that any query sees."""
    return w.kv_len - w.mask.first_visible(w.q_len, w.kv_len)


def _scores(w: Workload) -> int:
    """Of all heads, sequences and layers, hidden ones too."""
    pairs = w.batch_size * w.q_len * _given_len(w) + (w.prefill_len or 0) ** 2
    return w.num_layers * w.num_q_heads * pairs


def _rotated_dim(w: Workload) -> int:
    return w.rope_head_dim or rope_named(w.position, w.head_dim).rotated_dim


def _rotated_elements(w: Workload) -> int:
    """Of the queries and keys of new tokens, over all layers."""
    key_heads = 1 if w.mla is not None else w.num_kv_heads
    return w.num_layers * _new_tokens(w) * (w.num_q_heads + key_heads) * _rotated_dim(w)
