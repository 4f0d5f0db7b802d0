"""The FlashInfer package: its kernels for a single sequence."""

import torch

from attnprof.backends import Attention
from attnprof.errors import UnsupportedError
from attnprof.workload import Workload


def prepare(workload: Workload, device: torch.device) -> Attention:
    """``single_prefill_with_kv_cache`` or ``single_decode_with_kv_cache``, KV heads outermost.

    Raises:
        UnsupportedError: More than one sequence; its batched kernels plan each step ahead from
            lengths on the host, which is another thing to time.
    """
    if workload.batch_size > 1:
        raise UnsupportedError(f"flashinfer is measured on one sequence, not {workload.batch_size}")
    import flashinfer

    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flashinfer.single_decode_with_kv_cache(
            q[0, :, 0], k[0], v[0], kv_layout="HND"
        )
        return out[None, :, None]

    causal = workload.variant != "full"
    window_left = -1 if workload.window_len is None else workload.window_len - 1

    def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = flashinfer.single_prefill_with_kv_cache(
            q[0].transpose(0, 1), k[0], v[0],
            causal=causal, kv_layout="HND", window_left=window_left,
        )  # fmt: skip
        return out.transpose(0, 1)[None]

    return Attention(attend=decode if workload.q_len == 1 else prefill)
