"""Work of attention, in FLOP."""

from attnprof.theory.calls import kernel_calls, parts_of_step
from attnprof.variants import Variant
from attnprof.workload import AttentionShape, Workload


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


def attended_pairs(workload: Workload) -> int:
    """Pairs of a query and a key that one head computes, over all sequences.

    Of a padded batch those of tokens that are no padding: n_i² of a sequence of n_i tokens, and
    q_len · n_i where queries attend to a source. What a kernel does for padding is not counted.

    >>> attended_pairs(Workload(backend="eager", variant="full", q_len=8, kv_len=8, batch_size=2,
    ...     min_len=4))
    80
    """
    if workload.min_len is None:
        one = workload.mask.attended_pairs(workload.q_len, workload.kv_len)
        return workload.batch_size * one
    if workload.attention == "cross":
        return sum(workload.q_len * length for length in workload.lengths)
    return sum(length**2 for length in workload.lengths)


def products_flops(workload: Workload) -> int:
    """FLOP of QKᵀ and PV in one call over all layers, of a workload of scope op. [FLOP]

        F = 2 · L · H_q · P · (d_k + d_v),  three times that in a training step

    With values as wide as keys it is :func:`attention_flops`. Of absorbed MLA the widths are those
    of the latent with its rotated key, r + d_rope, and of the latent, r. A training step has four
    products on its way back, dV, dP, dQ and dK, for the two on its way forward. A checkpoint makes
    the scores again, 3.5 times in all: the output itself is not needed for the gradients. What a
    fused kernel makes again by itself, though nobody asked, is not counted.

    Source:
        Dao 2023, "FlashAttention-2", arXiv:2307.08691, section 2.2 (the gradients) and 4.1 (2.5
        for the way back, scores made again).
    """
    scores = output = 0
    for call in kernel_calls(workload):
        pairs = call.num_layers * call.num_q_heads * attended_pairs(call)
        scores += 2 * pairs * call.head_dim
        output += 2 * pairs * call.value_dim
    if workload.phase != "train":
        return scores + output
    return 3 * (scores + output) + (scores if workload.checkpointing else 0)


def latent_flops(workload: Workload) -> int:
    """FLOP of the products with MLA's weights in one call over all layers; 0 without. [FLOP]

        F = 2 · L · T · r · H · (d_nope + d_v)

    T is how many tokens meet the weights. Expanded: those whose keys and values are made in the
    call, which of a cached latent are all that any query sees. Absorbed: the queries, whose first
    part is taken to the latent and whose output is taken from it.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1.2.

    >>> shape = {"backend": "eager", "q_len": 1, "kv_len": 100, "phase": "decode", "head_dim": 3,
    ...     "rope_head_dim": 1, "kv_lora_rank": 4, "num_q_heads": 1, "num_kv_heads": 1}
    >>> [latent_flops(Workload(mla=form, kv_cache="latent", **shape))
    ...     for form in ("expanded", "absorbed")]
    [4000, 40]
    """
    total = 0
    for part in parts_of_step(workload):
        if part.mla is None:
            continue
        assert part.kv_lora_rank is not None and part.rope_head_dim is not None
        tokens = part.q_len
        if part.mla == "expanded" and part.kv_cache == "latent":
            tokens = part.kv_len - part.mask.first_visible(part.q_len, part.kv_len)
        made = part.num_q_heads * (part.head_dim - part.rope_head_dim + part.value_dim)
        total += 2 * part.num_layers * part.batch_size * tokens * part.kv_lora_rank * made
    return total


def op_flops(workload: Workload) -> int:
    """FLOP of one call of a workload of scope op, over all layers. [FLOP]"""
    return products_flops(workload) + latent_flops(workload)
