"""The FlashInfer package: its kernels for a single sequence."""

import torch

from attnprof.backends import Attention
from attnprof.backends.masks import allowed, sees_all
from attnprof.errors import UnsupportedError
from attnprof.workload import Workload


def prepare(
    workload: Workload, device: torch.device, *, scale: float, bias: torch.Tensor | None
) -> Attention:
    """``single_prefill_with_kv_cache`` or ``single_decode_with_kv_cache``, KV heads outermost.

    Its causal triangle ends at the last key. Other variants are a mask, held between calls.

    Raises:
        UnsupportedError: More than one sequence; its batched kernels plan each step ahead from
            lengths on the host, which is another thing to time.
    """
    if workload.batch_size > 1:
        raise UnsupportedError(f"flashinfer is measured on one sequence, not {workload.batch_size}")
    import flashinfer

    assert bias is None
    softcap = workload.softcap
    everything = sees_all(workload)

    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flashinfer.single_decode_with_kv_cache(
            q[0, :, 0], k[0], v[0], kv_layout="HND", sm_scale=scale, logits_soft_cap=softcap
        )
        return out[None, :, None]

    own = workload.variant in ("full", "causal", "sliding")
    mask = None if own else allowed(workload, device)
    window_left = workload.window_len - 1 if own and workload.window_len else -1

    def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flashinfer.single_prefill_with_kv_cache(
            q[0].transpose(0, 1), k[0], v[0], custom_mask=mask,
            causal=own and not everything, kv_layout="HND", sm_scale=scale,
            window_left=window_left, logits_soft_cap=softcap,
        )  # fmt: skip
        return out.transpose(0, 1)[None]

    return Attention(
        attend=decode if workload.q_len == 1 and everything else prefill,
        mask_bytes=0 if mask is None else mask.nbytes,
    )
