"""Where the tokens of a cache lie: concatenated, in slots, in blocks of a pool, or in a ring.

A layout holds planes ``[batch, heads, tokens, width]`` that grow together and knows nothing of
what is in them.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from attnprof.workloads.kv_caches.codecs import Planes


class Layout(Protocol):
    """Slots for the tokens of every sequence."""

    @property
    def length(self) -> int:
        """Tokens that have come."""

    @property
    def held_len(self) -> int:
        """Tokens that are still held."""

    def held(self) -> Planes:
        """What is held."""

    def extended(self, new: Planes) -> Planes:
        """What is held and the new tokens, which are not kept: call again, get the same."""

    def put(self, new: Planes) -> None:
        """Keep the new tokens."""

    def positions(self, num_tokens: int) -> torch.Tensor:
        """Where each token of what is given stands in its sequence, ``num_tokens`` new."""

    def num_slots(self, num_tokens: int) -> int:
        """Slots that a sequence takes, once it holds ``num_tokens`` more."""

    @property
    def slot_bytes(self) -> int:
        """Of one slot of every sequence and head."""

    @property
    def peak_bytes(self) -> int:
        """The most that was alive during the last :meth:`put`."""


class Contiguous:
    """Each plane one tensor, made anew by concatenation for every step: the naive cache.

    While a new plane is written the old one is still alive, so a step peaks above what it leaves.
    """

    def __init__(self, planes: Planes) -> None:
        self.planes = planes
        self.slot_bytes = bytes_of_slot(planes)
        self.peak_bytes = self.slot_bytes * self.length

    @property
    def length(self) -> int:
        return self.planes[0].shape[2]

    @property
    def held_len(self) -> int:
        return self.length

    def held(self) -> Planes:
        return self.planes

    def extended(self, new: Planes) -> Planes:
        both = zip(self.planes, new, strict=True)
        return tuple([torch.cat((old, more), dim=2) for old, more in both])

    def put(self, new: Planes) -> None:
        held_bytes = peak_bytes = self.slot_bytes * self.length
        planes = list(self.planes)
        self.planes = ()
        for number, more in enumerate(new):
            old_bytes = planes[number].nbytes
            planes[number] = torch.cat((planes[number], more), dim=2)
            peak_bytes = max(peak_bytes, held_bytes + planes[number].nbytes)
            held_bytes += planes[number].nbytes - old_bytes
        self.planes, self.peak_bytes = tuple(planes), peak_bytes

    def positions(self, num_tokens: int) -> torch.Tensor:
        return torch.arange(self.length + num_tokens, device=self.planes[0].device)

    def num_slots(self, num_tokens: int) -> int:
        return self.length + num_tokens


class _Allocated(ABC):
    """What is so of layouts whose slots are there from the start: tokens are written into them."""

    slot_bytes: int
    length: int

    @abstractmethod
    def _write(self, new: Planes) -> None: ...

    @abstractmethod
    def _read(self, length: int) -> Planes:
        """What is held after as many tokens."""

    @abstractmethod
    def num_slots(self, num_tokens: int) -> int: ...

    def held(self) -> Planes:
        return self._read(self.length)

    def extended(self, new: Planes) -> Planes:
        self._write(new)
        return self._read(self.length + new[0].shape[2])

    def put(self, new: Planes) -> None:
        self._write(new)
        self.length += new[0].shape[2]

    @property
    def held_len(self) -> int:
        return self.length

    @property
    def peak_bytes(self) -> int:
        return self.slot_bytes * self.num_slots(0)


class Static(_Allocated):
    """Room for the longest sequence from the start; a token is written into its slot."""

    def __init__(self, planes: Planes, length: int) -> None:
        self.planes, self.length = planes, length
        self.slot_bytes = bytes_of_slot(planes)

    def _write(self, new: Planes) -> None:
        for plane, more in zip(self.planes, new, strict=True):
            plane.narrow(2, self.length, more.shape[2]).copy_(more)

    def _read(self, length: int) -> Planes:
        return tuple([plane.narrow(2, 0, length) for plane in self.planes])

    def positions(self, num_tokens: int) -> torch.Tensor:
        return torch.arange(self.length + num_tokens, device=self.planes[0].device)

    def num_slots(self, num_tokens: int) -> int:
        return self.planes[0].shape[2]


class Paged(_Allocated):
    """Blocks of tokens from a pool, in any order, found through a block table.

    A pool is ``[num_blocks, heads, block_len, width]``, as in vLLM's HND layout; what counts as
    allocated are the blocks that sequences have taken from it. The kernels here know no block
    table, so each call gathers its blocks into contiguous planes: that copy is part of the call,
    its time and its activation bytes.

    Source:
        Kwon et al. 2023, "PagedAttention", arXiv:2309.06180, section 4.1.
    """

    def __init__(self, pools: Planes, table: torch.Tensor, length: int, new_len: int = 1) -> None:
        self.pools, self.length = pools, length
        self.table = table  # [batch, blocks a sequence], the numbers of its blocks in the pools
        num_heads, self.block_len = pools[0].shape[1:3]
        self.slot_bytes = table.shape[0] * sum(pool[0, :, 0].nbytes for pool in pools)
        heads = torch.arange(num_heads, device=table.device)
        self._rows = table[:, None, :] * num_heads + heads[None, :, None]
        self._gathered: tuple[int, torch.Tensor] = (0, self._rows)
        self._written: tuple[int, int, torch.Tensor] = (0, 0, self._rows)
        position = torch.arange(table.shape[1] * self.block_len, device=table.device)
        self._blocks, self._slots = position // self.block_len, position % self.block_len
        self._slot_rows(length, min(length + new_len, len(position)))  # where the next will lie

    def _write(self, new: Planes) -> None:
        rows = self._slot_rows(self.length, self.length + new[0].shape[2])
        for pool, more in zip(self.pools, new, strict=True):
            width = pool.shape[-1]
            pool.view(-1, width).index_copy_(0, rows, more.reshape(-1, width))

    def _slot_rows(self, first: int, end: int) -> torch.Tensor:
        """Where tokens of these positions lie, of every sequence and head, a slot being a row."""
        if self._written[:2] != (first, end):
            blocks = self._rows[:, :, self._blocks[first:end]]
            rows = (blocks * self.block_len + self._slots[first:end]).flatten()
            self._written = (first, end, rows)
        return self._written[2]

    def positions(self, num_tokens: int) -> torch.Tensor:
        return torch.arange(self.length + num_tokens, device=self.table.device)

    def num_slots(self, num_tokens: int) -> int:
        return blocks_for(self.length + num_tokens, self.block_len) * self.block_len

    def _read(self, length: int) -> Planes:
        num_blocks = blocks_for(length, self.block_len)
        if self._gathered[0] != num_blocks:
            self._gathered = (num_blocks, self._rows[:, :, :num_blocks].flatten())
        return tuple([self._gather(pool).narrow(2, 0, length) for pool in self.pools])

    def _gather(self, pool: torch.Tensor) -> torch.Tensor:
        batch, num_heads = self._rows.shape[:2]
        rows = pool.view(-1, self.block_len * pool.shape[-1])
        blocks = rows.index_select(0, self._gathered[1])
        return blocks.view(batch, num_heads, -1, pool.shape[-1])


class Rolling(_Allocated):
    """A ring of as many slots as a sliding window has: a new token takes the oldest one's.

    What is given is the ring as it lies, so not in order once it has turned; one query that sees
    all of it does not mind, as long as positions are in the keys already or are asked for. Of
    several new tokens the window of the last is what is given.

    Source:
        Jiang et al. 2023, "Mistral 7B", arXiv:2310.06825, section 2 (rolling buffer cache).
    """

    def __init__(self, planes: Planes, length: int) -> None:
        self.planes, self.length = planes, length
        self.slot_bytes = bytes_of_slot(planes)
        self.window_len = planes[0].shape[2]

    @property
    def held_len(self) -> int:
        return min(self.length, self.window_len)

    def _write(self, new: Planes) -> None:
        num_new = new[0].shape[2]
        kept = min(num_new, self.window_len)
        first = (self.length + num_new - kept) % self.window_len
        head = min(kept, self.window_len - first)  # the rest goes to the ring's beginning
        for plane, more in zip(self.planes, new, strict=True):
            more = more[:, :, num_new - kept :]
            plane[:, :, first : first + head] = more[:, :, :head]
            if head < kept:
                plane[:, :, : kept - head] = more[:, :, head:]

    def _read(self, length: int) -> Planes:
        return tuple([plane[:, :, :length] for plane in self.planes])

    def positions(self, num_tokens: int) -> torch.Tensor:
        end = self.length + num_tokens
        slots = torch.arange(min(end, self.window_len), device=self.planes[0].device)
        last = end - 1
        return last - (last - slots) % self.window_len

    def num_slots(self, num_tokens: int) -> int:
        return self.window_len


def bytes_of_slot(planes: Planes) -> int:
    """Of one slot of every sequence and head in ``planes``."""
    return sum(
        plane.shape[0] * plane.shape[1] * plane.shape[3] * plane.itemsize for plane in planes
    )


def blocks_for(num_tokens: int, block_len: int) -> int:
    """Blocks that hold ``num_tokens`` of one sequence.

    >>> blocks_for(0, 16), blocks_for(16, 16), blocks_for(17, 16)
    (0, 1, 2)
    """
    return -(-num_tokens // block_len)
