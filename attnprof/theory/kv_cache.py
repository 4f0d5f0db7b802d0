"""Bytes that keys and values take."""

from attnprof.dtypes import dtype_named


def kv_bytes(
    num_tokens: int, *, num_layers: int, num_kv_heads: int, head_dim: int, dtype: str
) -> int:
    """Bytes of the keys and values of ``num_tokens`` tokens. [bytes]

        2 · L · H_kv · d · element bytes · tokens

    Args:
        num_tokens: Tokens held, over all sequences.

    Source:
        Kwon et al. 2023, "PagedAttention", arXiv:2309.06180, section 3 (OPT-13B: 800 KB a token).

    >>> kv_bytes(1, num_layers=32, num_kv_heads=8, head_dim=128, dtype="bfloat16")  # Llama-3.1-8B
    131072
    """
    element_bytes = dtype_named(dtype).bytes
    return int(2 * num_layers * num_kv_heads * head_dim * element_bytes * num_tokens)
