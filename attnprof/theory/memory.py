"""Bytes that one attention call takes on top of its inputs, at their highest. [bytes]

What is counted is what torch's allocator hands out during a call: output, scores, copies and
workspace of one layer, since a stack of layers holds one layer's at a time. Inputs, the KV cache
and a mask that is built once are held between calls and not counted here.
"""

from attnprof.dtypes import dtype_named
from attnprof.theory.kv_cache import kv_bytes
from attnprof.theory.position import peak_with_position_bytes
from attnprof.theory.traffic import visible_kv_len
from attnprof.workload import PAGED_BLOCK_TOKENS, Workload

_FLOAT_BYTES = 4
_SCALAR_BYTES = 4


def peak_activation_bytes(workload: Workload, device_kind: str, threads: int = 1) -> int | None:
    """The most that one call holds above the level before it; None where no formula is known.

    The kernel's own peak, what the cache makes for the call, a concatenated copy of K and V or the
    gathered blocks of a paged cache, and queries and keys that a position has turned. Of a
    kv-growth workload it is the call at its end.

    Args:
        threads: That a CPU kernel has a workspace for each.

    >>> w = Workload(backend="math", variant="full", q_len=2048, kv_len=2048)
    >>> round(peak_activation_bytes(w, "cpu") / 2**20, 2)
    292.02
    """
    if workload.scope != "op" or workload.cached_dtype != workload.dtype:
        return None
    kernel_bytes: int | None
    if workload.backend == "eager":
        kernel_bytes = eager_bytes(workload, device_kind)
    elif workload.backend == "math" and device_kind == "cpu":
        kernel_bytes = math_cpu_bytes(workload)
    elif workload.backend == "flash" and device_kind == "cpu":
        kernel_bytes = flash_cpu_bytes(workload, threads)
    elif workload.backend in ("flash", "flash-attn") and device_kind in ("cuda", "rocm"):
        kernel_bytes = _flash_gpu_bytes(workload)
    else:
        return None
    if kernel_bytes is None:
        return None
    return peak_with_position_bytes(workload, kernel_bytes + cache_copy_bytes(workload))


def mask_bytes(workload: Workload) -> int:
    """Of the boolean mask ``[q_len, kv_len]`` that a prefill holds between calls, one for all
    layers: eager masks whatever is not full, SDPA's kernels a window. [bytes]"""
    masked = ("causal", "sliding") if workload.backend == "eager" else ("sliding",)
    takes_mask = workload.backend in ("eager", "math", "flash", "mem-efficient", "cudnn")
    if workload.q_len == 1 or not takes_mask or workload.variant not in masked:
        return 0
    return workload.q_len * workload.kv_len


def cache_copy_bytes(workload: Workload) -> int:
    """K and V that a decode makes for the call: all tokens anew where the cache is contiguous,
    whole blocks where it is paged, none where it is static. [bytes]"""
    tokens = {
        "contiguous": workload.kv_len,
        "paged": -(-workload.kv_len // PAGED_BLOCK_TOKENS) * PAGED_BLOCK_TOKENS,
    }.get(workload.kv_cache, 0)
    return kv_bytes(
        workload.batch_size * tokens,
        num_layers=1,
        num_kv_heads=workload.num_kv_heads,
        head_dim=workload.head_dim,
        dtype=workload.cached_dtype,
    )


def eager_bytes(workload: Workload, device_kind: str) -> int | None:
    """Two score matrices at once: before and after the scaling, the mask or the softmax. [bytes]

        max(2 · B · H_q · n_q · n_k · s, B · H_q · n_q · (n_k + d) · s)

    The second term, probabilities and output, is the larger one when keys are fewer than d.
    Scalars are left out. None for a decode of halves on CPU, where the matrix library makes
    copies by rules of its own.
    """
    if device_kind == "cpu" and workload.q_len == 1 and dtype_named(workload.dtype).bytes < 4:
        return None
    scores, output = _score_bytes(workload), _output_bytes(workload)
    return max(2 * scores, scores + output)


def math_cpu_bytes(workload: Workload) -> int:
    """The plain kernel of torch's SDPA on CPU. [bytes]

        operands + max(scores + keys, scores · (2 + 1/s₊) + rows, scores + outputs)

    Scores are B · H_q · n_q · n_k of s₊ bytes. Halves are raised to float32 first, so s₊ is 4 for
    them too and halving the dtype does not halve this. The three stages are: scores beside the
    scaled keys; scores beside probabilities, with a boolean for each and one a row, which tell
    rows that see nothing; probabilities beside the output, and of halves both once more, lowered.
    Operands are the scaled queries; of halves Q, K and V in float32; with shared KV heads K and V
    repeated for every query head; of a mask its float form, n_q · n_k, which is of s₊ bytes where
    torch makes it from ``is_causal`` and of s where it is given.

    Source:
        torch 2.13, aten/src/ATen/native/transformers/attention.cpp,
        ``_scaled_dot_product_attention_math`` and ``_safe_softmax``; each term measured.
    """
    element_bytes = int(dtype_named(workload.dtype).bytes)
    raised = element_bytes < _FLOAT_BYTES
    wide = max(element_bytes, _FLOAT_BYTES)
    batch, num_q_heads, width = workload.batch_size, workload.num_q_heads, workload.head_dim
    q_len, kv_len = workload.q_len, visible_kv_len(workload)
    rows = batch * num_q_heads * q_len
    queries = rows * width * wide
    keys = batch * num_q_heads * kv_len * width * wide
    operands = queries
    if raised:
        operands += queries + 2 * batch * workload.num_kv_heads * kv_len * width * wide
    if workload.num_kv_heads != num_q_heads:
        operands += 2 * keys
    if q_len > 1 and workload.variant != "full":
        operands += q_len * kv_len * (wide if workload.variant == "causal" else element_bytes)
    scores = rows * kv_len
    lowered = element_bytes if raised else 0
    at_scores = scores * wide + keys
    at_softmax = scores * (2 * wide + 1) + rows + _SCALAR_BYTES
    at_output = scores * (wide + lowered) + rows * width * (wide + lowered)
    return operands + max(at_scores, at_softmax, at_output)


def flash_cpu_bytes(workload: Workload, threads: int) -> int:
    """The fused kernel of torch's SDPA on CPU. [bytes]

        out + B · H_q · n_q · 4 + threads · b_q · ((b_k + 2 + d) · 4 + b_k · s if s < 4)

    The output, a log-sum a row, and for each thread a block of scores, two running figures a row,
    a block of output, and of halves the probabilities once more. b_q is 256 queries from n_q = 768
    up, 64 from 192 up, else 32; b_k is 512 keys; neither more than there are. A mask is turned
    into floats, n_q · n_k · s. On processors with AMX halves are also repacked, which this leaves
    out.

    Source:
        torch 2.13, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp; each term measured.
    """
    element_bytes = int(dtype_named(workload.dtype).bytes)
    wide = max(element_bytes, _FLOAT_BYTES)
    q_len, kv_len = workload.q_len, visible_kv_len(workload)
    q_block = min(q_len, 256 if q_len >= 768 else 64 if q_len >= 192 else 32)
    kv_block = min(kv_len, 512)
    a_thread = q_block * (kv_block + 2 + workload.head_dim) * wide
    if element_bytes < _FLOAT_BYTES:
        a_thread += q_block * kv_block * element_bytes
    log_sums = workload.batch_size * workload.num_q_heads * q_len * wide
    as_floats = mask_bytes(workload) * element_bytes
    return _output_bytes(workload) + log_sums + threads * a_thread + as_floats


def _flash_gpu_bytes(workload: Workload) -> int | None:
    """Output and one float32 log-sum a row. [bytes]

    None for a decode, whose keys are split among blocks by a rule that depends on the GPU, each
    with an output of its own; and for a head_dim that is no multiple of 8, which is padded.

    Source:
        Dao 2023, "FlashAttention-2", arXiv:2307.08691, section 3.1 (O and logsumexp are stored).
    """
    if workload.q_len == 1 or workload.head_dim % 8:
        return None
    rows = workload.batch_size * workload.num_q_heads * workload.q_len
    return _output_bytes(workload) + rows * _FLOAT_BYTES


def _score_bytes(workload: Workload) -> int:
    rows = workload.batch_size * workload.num_q_heads * workload.q_len
    return int(rows * visible_kv_len(workload) * dtype_named(workload.dtype).bytes)


def _output_bytes(workload: Workload) -> int:
    rows = workload.batch_size * workload.num_q_heads * workload.q_len
    return int(rows * workload.head_dim * dtype_named(workload.dtype).bytes)
