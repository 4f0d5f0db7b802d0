"""Work of attention, in FLOP."""

from attnprof.variants import Variant
from attnprof.workload import AttentionShape


def attention_flops(shape: AttentionShape, variant: Variant) -> int:
    """FLOP of the two matrix products of one attention call. [FLOP]

        F = 4 · B · H_q · P · d

    The scores QKᵀ and the output PV cost 2·d each per attended pair (one multiply, one add);
    P counts the pairs that the variant lets through, so a causal prefill costs about half of
    a full one. The softmax is left out: it is O(P) next to O(P·d).

    Args:
        shape: Queries ``[B, H_q, q_len, d]``, keys and values ``[B, H_kv, kv_len, d]``.
            Sharing KV heads saves bytes, not FLOP: only ``num_q_heads`` counts.
        variant: Says which of the ``q_len × kv_len`` pairs are computed.

    Source:
        Dao 2023, "FlashAttention-2", arXiv:2307.08691, section 4.1 (4·n²·d·heads, halved when
        causal; this count keeps the diagonal).

    >>> from attnprof.variants import Full
    >>> shape = AttentionShape(
    ...     batch_size=1, num_q_heads=1, num_kv_heads=1, q_len=2, kv_len=2, head_dim=1
    ... )
    >>> attention_flops(shape, Full())
    16
    """
    pairs = variant.attended_pairs(shape.q_len, shape.kv_len)
    return 4 * shape.batch_size * shape.num_q_heads * pairs * shape.head_dim
