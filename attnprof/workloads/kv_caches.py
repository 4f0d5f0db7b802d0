"""Keys and values of the tokens so far, as real tensors: contiguous, static and paged.

Every cache belongs to one layer and holds K and V ``[batch, num_kv_heads, length, head_dim]``.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from attnprof.workload import PAGED_BLOCK_TOKENS, Workload

Pair = tuple[torch.Tensor, torch.Tensor]
NewTensor = Callable[..., torch.Tensor]  # shape -> noise of the cache's dtype on its device


class KvCache(Protocol):
    """The cache of one layer, and what it costs."""

    @property
    def length(self) -> int:
        """Tokens held."""

    def extended(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """K and V of the tokens held and one more, which is not kept: call again, get the same."""

    def append(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """Keep one more token; K and V of all that are held now."""

    @property
    def useful_bytes(self) -> int:
        """Of the tokens held."""

    @property
    def allocated_bytes(self) -> int:
        """Held for this cache, slots not yet used included."""

    def allocated_bytes_with(self, num_tokens: int) -> int:
        """The same, once it holds ``num_tokens`` more."""

    @property
    def peak_bytes(self) -> int:
        """The most that was alive during the last :meth:`append`."""


class ContiguousCache:
    """One tensor each for K and V, made anew by concatenation for every token: the naive cache.

    While the new K is written the old one is still alive, so a step peaks above what it leaves.
    """

    def __init__(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k, self.v = k, v
        self.peak_bytes = self.allocated_bytes

    @property
    def length(self) -> int:
        return self.k.shape[2]

    def extended(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        return torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        held_bytes = self.allocated_bytes
        self.k = torch.cat((self.k, k), dim=2)
        with_both_k = held_bytes + self.k.nbytes
        held_bytes = self.allocated_bytes
        self.v = torch.cat((self.v, v), dim=2)
        self.peak_bytes = max(with_both_k, held_bytes + self.v.nbytes)
        return self.k, self.v

    @property
    def useful_bytes(self) -> int:
        return self.allocated_bytes

    @property
    def allocated_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def allocated_bytes_with(self, num_tokens: int) -> int:
        batch, heads, _, width = self.k.shape
        return self.allocated_bytes + 2 * batch * heads * width * self.k.itemsize * num_tokens


class StaticCache:
    """Room for the longest sequence from the start; a token is written into its slot."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor, length: int) -> None:
        self.k, self.v, self.length = k, v, length

    def extended(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        slot = self.length
        self.k[:, :, slot : slot + 1] = k
        self.v[:, :, slot : slot + 1] = v
        return self.k[:, :, : slot + 1], self.v[:, :, : slot + 1]

    def append(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        pair = self.extended(k, v)
        self.length += 1
        return pair

    @property
    def useful_bytes(self) -> int:
        return self.allocated_bytes // self.k.shape[2] * self.length

    @property
    def allocated_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def allocated_bytes_with(self, num_tokens: int) -> int:
        return self.allocated_bytes

    @property
    def peak_bytes(self) -> int:
        return self.allocated_bytes


class PagedCache:
    """Blocks of 16 tokens from a pool, in any order, found through a block table.

    The pool is ``[num_blocks, num_kv_heads, 16, head_dim]``, as in vLLM's HND layout; what counts
    as allocated are the blocks that sequences have taken from it. The kernels here know no block
    table, so each call gathers its blocks into contiguous K and V: that copy is part of the call,
    its time and its activation bytes.

    Source:
        Kwon et al. 2023, "PagedAttention", arXiv:2309.06180, section 4.1.
    """

    def __init__(
        self, k_pool: torch.Tensor, v_pool: torch.Tensor, table: torch.Tensor, length: int
    ) -> None:
        self.k_pool, self.v_pool, self.length = k_pool, v_pool, length
        self.table = table  # [batch, blocks a sequence], the numbers of its blocks in the pool
        num_kv_heads = k_pool.shape[1]
        heads = torch.arange(num_kv_heads, device=table.device)
        self._rows = table[:, None, :] * num_kv_heads + heads[None, :, None]
        self._gathered: tuple[int, torch.Tensor] = (0, self._rows)

    def extended(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        block, slot = divmod(self.length, PAGED_BLOCK_TOKENS)
        number = self.table[:, block]
        self.k_pool[number, :, slot] = k[:, :, 0].to(self.k_pool.dtype)
        self.v_pool[number, :, slot] = v[:, :, 0].to(self.v_pool.dtype)
        num_blocks = block + 1
        return (
            self._gather(self.k_pool, num_blocks)[:, :, : self.length + 1],
            self._gather(self.v_pool, num_blocks)[:, :, : self.length + 1],
        )

    def append(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        pair = self.extended(k, v)
        self.length += 1
        return pair

    def _gather(self, pool: torch.Tensor, num_blocks: int) -> torch.Tensor:
        if self._gathered[0] != num_blocks:
            self._gathered = (num_blocks, self._rows[:, :, :num_blocks].flatten())
        batch, num_kv_heads = self._rows.shape[:2]
        rows = pool.view(-1, PAGED_BLOCK_TOKENS * pool.shape[-1])
        blocks = rows.index_select(0, self._gathered[1])
        return blocks.view(batch, num_kv_heads, -1, pool.shape[-1])

    @property
    def _token_bytes(self) -> int:
        """K and V of one token of every sequence."""
        per_slot = self.k_pool[0, :, 0].nbytes
        return 2 * self.table.shape[0] * per_slot

    @property
    def useful_bytes(self) -> int:
        return self._token_bytes * self.length

    @property
    def allocated_bytes(self) -> int:
        return self.allocated_bytes_with(0)

    def allocated_bytes_with(self, num_tokens: int) -> int:
        num_blocks = blocks_for(self.length + num_tokens)
        return self._token_bytes * num_blocks * PAGED_BLOCK_TOKENS

    @property
    def peak_bytes(self) -> int:
        return self.allocated_bytes


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` of one sequence.

    >>> blocks_for(0), blocks_for(16), blocks_for(17)
    (0, 1, 2)
    """
    return -(-num_tokens // PAGED_BLOCK_TOKENS)


def new_cache(workload: Workload, length: int, noise: NewTensor, seed: int) -> KvCache:
    """A cache of the workload's kind that holds ``length`` tokens and has room for ``kv_len``.

    Args:
        noise: Makes a tensor of a shape, filled with the keys or values of the tokens.
        seed: Of the order in which blocks lie in the pool.
    """
    batch, heads = workload.batch_size, workload.num_kv_heads
    if workload.kv_cache == "contiguous":
        shape = (batch, heads, length, workload.head_dim)
        return ContiguousCache(noise(*shape), noise(*shape))
    if workload.kv_cache == "static":
        shape = (batch, heads, workload.kv_len, workload.head_dim)
        return StaticCache(noise(*shape), noise(*shape), length)
    per_sequence = blocks_for(workload.kv_len)
    shape = (batch * per_sequence, heads, PAGED_BLOCK_TOKENS, workload.head_dim)
    k_pool, v_pool = noise(*shape), noise(*shape)
    order = torch.randperm(batch * per_sequence, generator=torch.Generator().manual_seed(seed))
    table = order.view(batch, per_sequence).to(k_pool.device)
    return PagedCache(k_pool, v_pool, table, length)
