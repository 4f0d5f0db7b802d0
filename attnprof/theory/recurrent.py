"""Work and bytes of layers that keep a state of constant size in place of keys and values."""

from attnprof.dtypes import dtype_named
from attnprof.theory.weights import linear_bytes
from attnprof.workload import Workload

CHUNK_TOKENS = 64
"""Tokens of linear attention that are computed together, by the product of all their pairs."""

_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_WIDE_BYTES = 4  # an element of a sum over all tokens, in halves too


def recurrent_flops(workload: Workload) -> int:
    """FLOP of the matrix products of one call over all layers. [FLOP]

        gated      F = 4 · L · B · g · n · w²             g = 1 (RNN), 3 (GRU), 4 (LSTM)
        linear     F = 2 · L · B · (n · w · (H·d_k + H_kv·d_k + H_kv·d_v + H·d_v)
                       + n_c · ((H + H_kv) · d_k·d_v + H · c · (d_k + d_v)))
        train      3 · F, less the gradient of an empty state, which nobody asks for;
                   with checkpointing 4 · F, less linear's last projection, not made again

    A gated layer multiplies the token and the state by a matrix of each gate. Linear attention
    has its four projections, adds φ(k)vᵀ to its state and multiplies φ(q) by it, and of a prefill
    the products of all c² pairs of a chunk, masked or not; n_c is n in whole chunks. A decode has
    no chunks. What is done by element is left out: it is O(w) next to O(w²).

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, section 3.4; Kaplan et al. 2020,
        arXiv:2001.08361, section 2.1 (backward is twice forward).

    >>> recurrent_flops(Workload(backend="eager", mixer="lstm", scope="layer", q_len=1, kv_len=9,
    ...     phase="decode", num_q_heads=2, head_dim=4))
    1024
    """
    w = workload
    width, tokens = w.hidden_size, w.num_layers * w.batch_size * w.q_len
    if w.mixer != "linear":
        gates = _GATES[w.mixer]
        forward = 4 * gates * tokens * width**2
        spared = 2 * w.num_layers * w.batch_size * gates * width**2
        return _with_backward(w, forward, spared)
    key_dim, value_dim = w.head_dim, w.value_dim
    heads, kv_heads = w.num_q_heads, w.num_kv_heads
    last = 2 * tokens * width * heads * value_dim
    forward = 2 * tokens * width * (heads * key_dim + kv_heads * (key_dim + value_dim)) + last
    chunk = 0 if w.phase == "decode" else min(CHUNK_TOKENS, w.q_len)
    whole = w.num_layers * w.batch_size * (-(-w.q_len // chunk) * chunk if chunk else w.q_len)
    forward += 2 * whole * (heads + kv_heads) * key_dim * value_dim
    forward += 2 * whole * heads * chunk * (key_dim + value_dim)
    return _with_backward(w, forward, last if w.checkpointing else 0)


def _with_backward(workload: Workload, forward: int, spared: int) -> int:
    if workload.phase != "train":
        return forward
    return (4 if workload.checkpointing else 3) * forward - spared


def state_bytes(workload: Workload) -> int:
    """Bytes of the state of all layers and sequences, after any number of tokens. [bytes]

        RNN, GRU  L · B · w · s;   LSTM  twice;   linear  L · B · H_kv · d_k · (d_v + 1) · s₊

    Linear attention keeps Σ φ(k)vᵀ and Σ φ(k), in float32 for halves.

    >>> one = Workload(backend="eager", mixer="linear", scope="layer", q_len=1, kv_len=9,
    ...     phase="decode", num_q_heads=8, num_kv_heads=8, head_dim=64)
    >>> state_bytes(one) // 1024
    130
    """
    w = workload
    element_bytes = int(dtype_named(w.dtype).bytes)
    if w.mixer == "linear":
        elements = w.num_kv_heads * w.head_dim * (w.value_dim + 1)
        element_bytes = max(element_bytes, _WIDE_BYTES)
    else:
        elements = w.hidden_size * (2 if w.mixer == "lstm" else 1)
    return w.num_layers * w.batch_size * elements * element_bytes


def recurrent_weight_bytes(workload: Workload) -> int:
    """Bytes of the weights of all layers. [bytes]

    Of a gate two matrices w × w, each with a bias; of linear attention its four projections,
    which have none.
    """
    w, width = workload, workload.hidden_size
    if w.mixer != "linear":
        elements = _GATES[w.mixer] * (2 * width**2 + 2 * width)
        return int(w.num_layers * elements * dtype_named(w.dtype).bytes)
    rows = (
        w.num_q_heads * w.head_dim, w.num_kv_heads * w.head_dim, w.num_kv_heads * w.value_dim, width
    )  # fmt: skip
    return w.num_layers * sum(linear_bytes(n, width, w.dtype, w.weight_dtype) for n in rows)


def recurrent_bytes(workload: Workload) -> int:
    """Bytes that one call needs to move, over all layers. [bytes]

    Weights once, tokens in and out of each layer, the state out, and of a decode in. A train step
    writes a gradient of each weight too, and moves gradients of tokens as it moves tokens. What a
    step reads again (weights that no cache holds from token to token) is what a kernel adds.

    Source:
        Williams et al. 2009, "Roofline", section 3 (compulsory traffic).
    """
    w, trains = workload, workload.phase == "train"
    passes = 2 if trains else 1
    moved = passes * (recurrent_weight_bytes(w) + 2 * w.num_layers * token_bytes(w))
    return moved + state_bytes(w) * (2 if w.phase == "decode" else 1)


def token_bytes(workload: Workload) -> int:
    """Bytes of the tokens that go into a layer in one call. [bytes]"""
    elements = workload.batch_size * workload.q_len * workload.hidden_size
    return int(elements * dtype_named(workload.dtype).bytes)
