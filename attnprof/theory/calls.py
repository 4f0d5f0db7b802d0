"""A workload of scope op -> the attentions that it is made of, as kernels are called for them."""

from dataclasses import replace

from attnprof.workload import Workload


def kernel_calls(workload: Workload) -> tuple[Workload, ...]:
    """What a kernel computes for one call of a workload, as workloads with the widths it sees.

    Two of a mixed step, one of anything else. Of MLA in its absorbed form all heads share the one
    KV head that is the latent with its rotated key, and values are the latent.

    >>> mixed = Workload(backend="eager", phase="mixed", q_len=1, kv_len=64, prefill_len=16,
    ...     batch_size=4, kv_cache="paged")
    >>> [(call.batch_size, call.q_len, call.kv_len) for call in kernel_calls(mixed)]
    [(4, 1, 64), (1, 16, 16)]
    >>> absorbed = Workload(backend="eager", phase="decode", q_len=1, kv_len=64, head_dim=192,
    ...     v_head_dim=128, kv_cache="latent", mla="absorbed", kv_lora_rank=512, rope_head_dim=64)
    >>> [(call.num_kv_heads, call.head_dim, call.value_dim) for call in kernel_calls(absorbed)]
    [(1, 576, 512)]
    """
    return tuple(_widths_seen(part) for part in parts_of_step(workload))


def parts_of_step(workload: Workload) -> tuple[Workload, ...]:
    """The decode and the prefill that a mixed step is; of another phase the workload itself.

    Of MLA the prompt is expanded, in whichever form the decode attends, as engines do.
    """
    if workload.phase != "mixed":
        return (workload,)
    length = workload.prefill_len
    assert length is not None
    decode = replace(workload, phase="decode", prefill_len=None)
    prefill = replace(
        decode, phase="prefill", batch_size=1, q_len=length, kv_len=length, kv_cache="none",
        kv_dtype=None, block_tokens=None, mla=None if workload.mla is None else "expanded",
    )  # fmt: skip
    return decode, prefill


def _widths_seen(call: Workload) -> Workload:
    if call.mla != "absorbed":
        return call
    assert call.kv_lora_rank is not None and call.rope_head_dim is not None
    width = call.kv_lora_rank + call.rope_head_dim
    return replace(call, num_kv_heads=1, head_dim=width, v_head_dim=call.kv_lora_rank)
