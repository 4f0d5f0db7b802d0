"""A layer's attention at some lengths -> the kernel prepared for it, made once and kept."""

from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from attnprof.backends import Attention, backend_named, prepare
from attnprof.models.architecture import AttentionBlock
from attnprof.workload import Workload

LENGTHS_KEPT = 4


def op_workload(
    workload: Workload, block: AttentionBlock, *, batch_size: int, q_len: int, kv_len: int
) -> Workload:
    """Attention alone as a layer of ``workload`` computes it, with so many queries and keys."""
    phase = "prefill" if q_len == kv_len else "decode" if q_len == 1 else "chunked-prefill"
    is_windowed = block.window_len is not None and block.window_len < kv_len
    return Workload(
        backend=workload.backend,
        phase=phase,
        dtype=workload.dtype,
        batch_size=batch_size,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=block.num_q_heads,
        num_kv_heads=block.num_kv_heads,
        head_dim=block.head_dim,
        v_head_dim=None if block.v_head_dim == block.head_dim else block.v_head_dim,
        position="alibi" if block.alibi else "none" if block.relative is None else "t5",
        variant="causal" if block.window_len and not is_windowed else block.variant,
        window_len=block.window_len if is_windowed else None,
        kv_cache="none" if phase == "prefill" else "static",
        softcap=block.softcap,
        sink_logits=block.sinks,
    )


class Kernels:
    """The prepared kernels of a model, by layer kind and lengths.

    A kernel for one query serves every length of the cache, where its backend does: the query
    sees all that it is given.
    """

    def __init__(self, workload: Workload, device: torch.device, kind: str | None = None) -> None:
        self.workload, self.device, self.kind = workload, device, kind
        self._grows = backend_named(workload.backend).grows
        self._prepared: dict[tuple[AttentionBlock, int, int, int, *tuple[int, ...]], Attention] = {}

    def prepared(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int
    ) -> Attention:
        """The kernel for the last ``q_len`` of ``kv_len`` tokens.

        Raises:
            UnsupportedError: The backend lacks what the layer needs.
        """
        one = q_len == 1 and self._grows and block.variant != "chunked"
        key = (block, batch_size, q_len, 0 if one else kv_len)
        attention = self._prepared.get(key)
        if attention is None:
            of_op = op_workload(
                self.workload, block, batch_size=batch_size, q_len=q_len, kv_len=kv_len
            )
            attention = prepare(of_op, self.device, self.kind, scale=block.scale)
            self._forget_but(key[1:])
            self._prepared[key] = attention
        return attention

    def padded(
        self, block: AttentionBlock, batch_size: int, q_len: int, kv_len: int, min_len: int
    ) -> Attention:
        """The kernel for queries that see all keys but a batch's padding: of sequences from
        ``min_len`` to ``kv_len``, evenly.

        Raises:
            UnsupportedError: The backend lacks what the layer needs.
        """
        key = (block, batch_size, q_len, kv_len, min_len)
        attention = self._prepared.get(key)
        if attention is None:
            of_op = op_workload(
                self.workload, block, batch_size=batch_size, q_len=q_len, kv_len=kv_len
            )
            of_op = replace(of_op, min_len=min_len)
            attention = prepare(of_op, self.device, self.kind, scale=block.scale)
            self._forget_but(key[1:])
            self._prepared[key] = attention
        return attention

    def _forget_but(self, lengths: tuple[int, ...]) -> None:
        """Keep the kernels of the last lengths alone: those of a growing prompt hold masks."""
        known = list(dict.fromkeys(key[1:] for key in self._prepared))
        if lengths not in known and len(known) >= LENGTHS_KEPT:
            for key in [key for key in self._prepared if key[1:] == known[0]]:
                del self._prepared[key]

    @property
    def mask_bytes(self) -> int:
        """Of the masks that are held between calls."""
        return sum(attention.mask_bytes for attention in self._prepared.values())

    @property
    def operators(self) -> tuple[str, ...]:
        """One of torch's operators that begin so must be seen to run."""
        return next((attention.operators for attention in self._prepared.values()), ())

    @property
    def compiles(self) -> bool:
        """Whether the first call compiles."""
        return any(attention.compiles for attention in self._prepared.values())

    def pinned(self) -> AbstractContextManager[object]:
        """Entered once around many calls; all kernels of a model are of one backend."""
        for attention in self._prepared.values():
            return attention.pinned()
        one = Workload(
            backend=self.workload.backend, phase="decode", dtype=self.workload.dtype, q_len=1,
            kv_len=1, kv_cache="static",
        )  # fmt: skip
        return prepare(one, self.device, self.kind).pinned()
