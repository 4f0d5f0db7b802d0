"""Bytes that keys and values take."""

from attnprof.dtypes import dtype_named
from attnprof.workload import Workload

SCALED = ("int8", "int4", "float8_e4m3fn", "float8_e5m2")
"""Element types of a cache that have scales beside them, where the arithmetic is in another."""
SCALE_BYTES = 4  # float32


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


def head_bytes(width: int, stored: str, dtype: str, num_scales: int = 1) -> int:
    """Bytes of the key, or the value, of one token in one head. [bytes]

        d · element bytes + 4 · scales

    Args:
        stored: Element type in the cache.
        dtype: That of the arithmetic; only what is stored as another has scales.
        num_scales: Of a head, where it has any.

    >>> head_bytes(128, "bfloat16", "bfloat16"), head_bytes(128, "int4", "bfloat16")
    (256, 68)
    """
    scaled = stored != dtype and stored in SCALED
    return int(width * dtype_named(stored).bytes) + (SCALE_BYTES * num_scales if scaled else 0)


def cached_token_bytes(workload: Workload) -> int:
    """Bytes that one token of one sequence takes in all layers of a cache, scales included. [bytes]

        L · H_kv · (key + value); of a latent L · (r + d_rope) elements and two scales

    Without a cache it is what a call is given: of MLA the latent.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, table 1 (a latent of 512 and a rotated
        key of 64 for all heads).

    >>> shape = {"q_len": 1, "kv_len": 8, "phase": "decode", "dtype": "bfloat16"}
    >>> mla = {"mla": "absorbed", "kv_lora_rank": 512, "rope_head_dim": 64, "head_dim": 192}
    >>> cached_token_bytes(Workload(backend="eager", kv_cache="latent", **mla, **shape))
    1152
    """
    stored, dtype = workload.cached_dtype, workload.dtype
    if workload.kv_cache == "latent" or (workload.mla and workload.kv_cache == "none"):
        assert workload.kv_lora_rank is not None and workload.rope_head_dim is not None
        width = workload.kv_lora_rank + workload.rope_head_dim
        return workload.num_layers * head_bytes(width, stored, dtype, num_scales=2)
    key = head_bytes(workload.head_dim, stored, dtype)
    value = head_bytes(workload.value_dim, stored, dtype)
    return workload.num_layers * workload.num_kv_heads * (key + value)


def cached_len(workload: Workload, length: int | None = None) -> int:
    """Tokens of a sequence that its cache still holds after ``length``, or all, have come."""
    length = workload.kv_len if length is None else length
    if workload.kv_cache == "rolling" and workload.window_len is not None:
        return min(length, workload.window_len)
    return length


def cached_slots(workload: Workload, length: int | None = None) -> int:
    """Tokens that a sequence has room for after ``length``, or all, have come.

    All of ``kv_len`` of a static cache, whole blocks of a paged one, a window of a rolling one.

    >>> cached_slots(Workload(backend="eager", q_len=1, kv_len=40, kv_cache="paged"), 17)
    32
    """
    length = workload.kv_len if length is None else length
    match workload.kv_cache:
        case "static" | "latent" | "cross":
            return workload.kv_len
        case "paged":
            return -(-length // workload.block_len) * workload.block_len
        case "rolling":
            return cached_len(workload)
    return length


def cached_bytes(workload: Workload, length: int | None = None) -> int:
    """Bytes of the tokens that the caches of all sequences and layers hold. [bytes]"""
    held = cached_len(workload, length)
    return workload.batch_size * held * cached_token_bytes(workload)


def allocated_bytes(workload: Workload, length: int | None = None) -> int:
    """The same of all slots that are there for them, used or not. [bytes]"""
    slots = cached_slots(workload, length)
    return workload.batch_size * slots * cached_token_bytes(workload)


def copy_overshoot_bytes(workload: Workload, length: int) -> int:
    """Bytes that a contiguous cache holds beyond what it leaves, when token ``length`` comes: the
    old values of the last layer beside the new ones, before their scales are copied. [bytes]

        B · H_kv · ((length − 1) · value's elements − length's scales), or the keys' where larger
    """
    if workload.kv_cache != "contiguous" or length < 2:
        return 0
    stored, dtype = workload.cached_dtype, workload.dtype
    planes = []
    for width in (workload.head_dim, workload.value_dim):
        whole = head_bytes(width, stored, dtype)
        codes = head_bytes(width, stored, stored)
        planes += [size for size in (codes, whole - codes) if size]
    beyond = [(length - 1) * size - sum(planes[at + 1 :]) for at, size in enumerate(planes)]
    return workload.batch_size * workload.num_kv_heads * max(0, *beyond)
