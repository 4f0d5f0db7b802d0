"""Bytes that one attention call takes on top of its inputs, at their highest. [bytes]

What is counted is what torch's allocator hands out during a call: output, scores, copies and
workspace of one layer, since a stack of layers holds one layer's at a time. Inputs, the KV cache
and a mask that is built once are held between calls and not counted here.
"""

from attnprof.dtypes import dtype_named
from attnprof.positions import POSITIONS
from attnprof.theory.calls import kernel_calls
from attnprof.theory.kv_cache import cached_slots, head_bytes
from attnprof.theory.position import bias_bytes, peak_with_position_bytes, table_bytes
from attnprof.workload import GROWING, Workload

_FLOAT_BYTES = 4
_SCALAR_BYTES = 4


def peak_activation_bytes(workload: Workload, device_kind: str, threads: int = 1) -> int | None:
    """The most that one call holds above the level before it; None where no formula is known.

    The kernel's own peak, what the cache makes for the call, a concatenated copy of K and V or the
    gathered blocks of a paged cache, and queries and keys that a position has turned. Of a
    growing workload it is the call at its end; of a mixed step the output of the decode is still
    held while the prompt is computed. There is none for a training step, for MLA, and for a cache
    that is kept in another dtype.

    Args:
        threads: That a CPU kernel has a workspace for each.

    >>> w = Workload(backend="math", variant="full", q_len=2048, kv_len=2048)
    >>> round(peak_activation_bytes(w, "cpu") / 2**20, 2)
    292.02
    """
    if workload.phase in GROWING:
        workload = workload.step(workload.kv_len)
    unknown = workload.phase == "train" or workload.mla is not None
    if workload.scope != "op" or unknown or workload.cached_dtype != workload.dtype:
        return None
    peaks: list[int] = []
    for call in kernel_calls(workload):
        peak = _peak_of_call(call, device_kind, threads)
        if peak is None:
            return None
        peaks.append(peak + (_output_bytes(kernel_calls(workload)[0]) if peaks else 0))
    return max(peaks)


def _peak_of_call(workload: Workload, device_kind: str, threads: int) -> int | None:
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
    """Of masks, biases and tables of positions that are held between calls, for all layers. [bytes]

    A boolean for each pair of a query and a key that a kernel is given, or for each key of a padded
    batch: eager has one wherever something is hidden, SDPA's kernels where it is not said by
    ``is_causal``. A bias that is the same in every call is beside it, and for SDPA in its place.
    """
    return sum(table_bytes(call) + _held_for(call) for call in kernel_calls(workload))


def _held_for(call: Workload) -> int:
    bias, mask = bias_bytes(call), mask_elements(call)
    if call.backend == "eager":
        return mask + bias
    sequences = call.batch_size if _is_padded(call) else 1  # each hides other keys of the bias
    return sequences * bias or mask


def mask_elements(call: Workload) -> int:
    """Of the mask that a kernel is given: pairs of a query and a key, or keys of a padded batch; 0
    where it is given none."""
    if call.backend not in ("eager", "math", "flash", "mem-efficient", "cudnn"):
        return 0
    if _is_padded(call):
        return call.batch_size * call.kv_len
    pairs = call.q_len * given_kv_len(call)
    if call.mask.attended_pairs(call.q_len, call.kv_len) == pairs:
        return 0
    is_said = call.backend != "eager" and _says_causal(call)
    return 0 if is_said else pairs


def _is_padded(call: Workload) -> bool:
    return min(call.lengths) < call.kv_len


def _says_causal(call: Workload) -> bool:
    """Whether SDPA is told that it is causal, in place of a mask."""
    biased = POSITIONS[call.position].acts == "scores"
    return call.variant == "causal" and 1 < call.q_len == call.kv_len and not biased


def given_kv_len(call: Workload) -> int:
    """Keys that a kernel is given: those before the first that any query sees are left out."""
    return call.kv_len - call.mask.first_visible(call.q_len, call.kv_len)


def cache_copy_bytes(workload: Workload) -> int:
    """K and V that a call makes of its cache: all tokens anew where it is contiguous, whole blocks
    where it is paged, none elsewhere. [bytes]"""
    if workload.kv_cache not in ("contiguous", "paged"):
        return 0
    stored, dtype = workload.cached_dtype, workload.dtype
    token = sum(
        head_bytes(width, stored, dtype) for width in (workload.head_dim, workload.value_dim)
    )
    return workload.batch_size * workload.num_kv_heads * cached_slots(workload) * token


def eager_bytes(workload: Workload, device_kind: str) -> int | None:
    """Two score matrices at once: before and after the scaling, the mask or the softmax. [bytes]

        max(2 · S, S + out),  S = B · H_q · n_q · n_k · s;  3 · S of a soft cap,
        3 · S + 2 · B · H_q · n_q · s of sinks

    The second term, probabilities and output, is the larger one when keys are fewer than d. A soft
    cap has its quotient and its tanh beside the scores, sinks the scores with one column more
    before and after the softmax. Scalars are left out. None on CPU for halves whose queries are
    fewer than their keys, where the matrix library makes copies by rules of its own.
    """
    element_bytes = int(dtype_named(workload.dtype).bytes)
    fewer = workload.q_len == 1 or workload.q_len < workload.kv_len
    if device_kind == "cpu" and fewer and element_bytes < _FLOAT_BYTES:
        return None
    scores, output = _score_bytes(workload), _output_bytes(workload)
    at_once = 2 * scores if workload.softcap is None else 3 * scores
    if workload.sink_logits:
        at_once = 3 * scores + 2 * _num_rows(workload) * element_bytes
    return max(at_once, scores + output)


def math_cpu_bytes(workload: Workload) -> int:
    """The plain kernel of torch's SDPA on CPU. [bytes]

        operands + max(scores + keys, scores · (2 + 1/s₊) + rows, scores + outputs)

    Scores are B · H_q · n_q · n_k of s₊ bytes. Halves are raised to float32 first, so s₊ is 4 for
    them too and halving the dtype does not halve this. The three stages are: scores beside the
    scaled keys; scores beside probabilities, with a boolean for each and one a row, which tell
    rows that see nothing; probabilities beside the output, and of halves both once more, lowered.
    Operands are the scaled queries; of halves Q, K and V in float32; with shared KV heads K and V
    repeated for every query head; of a mask its float form, which is of s₊ bytes where torch makes
    it from ``is_causal`` and of s where it is given.

    Source:
        torch 2.13, aten/src/ATen/native/transformers/attention.cpp,
        ``_scaled_dot_product_attention_math`` and ``_safe_softmax``; each term measured.
    """
    element_bytes = int(dtype_named(workload.dtype).bytes)
    raised = element_bytes < _FLOAT_BYTES
    wide = max(element_bytes, _FLOAT_BYTES)
    batch, num_q_heads, width = workload.batch_size, workload.num_q_heads, workload.head_dim
    kv_len, value_width = given_kv_len(workload), workload.value_dim
    rows = _num_rows(workload)
    queries = rows * width * wide
    keys = batch * num_q_heads * kv_len * width * wide
    operands = queries
    pair_bytes = kv_len * (width + value_width) * wide
    if raised:
        operands += queries + batch * workload.num_kv_heads * pair_bytes
    if workload.num_kv_heads != num_q_heads:
        operands += batch * num_q_heads * pair_bytes
    if _says_causal(workload):
        operands += workload.q_len * kv_len * wide
    operands += mask_elements(workload) * element_bytes
    scores = rows * kv_len
    lowered = element_bytes if raised else 0
    at_scores = scores * wide + keys
    at_softmax = scores * (2 * wide + 1) + rows + _SCALAR_BYTES
    at_output = scores * (wide + lowered) + rows * value_width * (wide + lowered)
    return operands + max(at_scores, at_softmax, at_output)


def flash_cpu_bytes(workload: Workload, threads: int) -> int:
    """The fused kernel of torch's SDPA on CPU. [bytes]

        out + B · H_q · n_q · 4 + threads · b_q · ((b_k + 2 + d) · 4 + b_k · s if s < 4)

    The output, a log-sum a row, and for each thread a block of scores, two running figures a row,
    a block of output, and of halves the probabilities once more. b_q is 256 queries from n_q = 768
    up, 64 from 192 up, else 32; b_k is 512 keys; neither more than there are. A mask is turned
    into floats of s bytes; a bias is one already. On processors with AMX halves are also repacked,
    which this leaves out.

    Source:
        torch 2.13, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp; each term measured.
    """
    element_bytes = int(dtype_named(workload.dtype).bytes)
    wide = max(element_bytes, _FLOAT_BYTES)
    q_len, kv_len = workload.q_len, given_kv_len(workload)
    q_block = min(q_len, 256 if q_len >= 768 else 64 if q_len >= 192 else 32)
    kv_block = min(kv_len, 512)
    a_thread = q_block * (kv_block + 2 + workload.head_dim) * wide
    if element_bytes < _FLOAT_BYTES:
        a_thread += q_block * kv_block * element_bytes
    log_sums = _num_rows(workload) * wide
    as_floats = 0 if bias_bytes(workload) else mask_elements(workload) * element_bytes
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
    return _output_bytes(workload) + _num_rows(workload) * _FLOAT_BYTES


def _num_rows(workload: Workload) -> int:
    """Queries of all heads of one layer."""
    return workload.batch_size * workload.num_q_heads * workload.q_len


def _score_bytes(workload: Workload) -> int:
    element_bytes = int(dtype_named(workload.dtype).bytes)
    return _num_rows(workload) * given_kv_len(workload) * element_bytes


def _output_bytes(workload: Workload) -> int:
    return _num_rows(workload) * workload.value_dim * int(dtype_named(workload.dtype).bytes)
