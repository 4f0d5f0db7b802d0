"""A model's layers -> the blocks that a paged engine cuts its cache memory into.

vLLM's rules for models whose layers cache differently: layers of one kind form groups of equal
size, every group takes its blocks from one pool, and a request needs blocks of every group.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from attnprof.engines.base import longest_within
from attnprof.models.spec import Attention, CacheKind, Layer, ModelSpec

TokensRule = Literal["per-group", "concurrency"]

INDEXER_BYTES_PER_TOKEN_AND_HEAD_DIM = 1 + 4 / 128
"""DeepSeek-V3.2's indexer keys: fp8 with one float32 scale for each 128 (132 B at 128)."""

DSA_LATENT_FP8_BYTES = 656
"""DeepSeek-V3.2's latent in fp8: 512 values, 16 B of scales, 64 bfloat16 rotary elements."""


@dataclass(frozen=True)
class CacheEntry:
    """What one layer keeps on one rank: bytes a token, or a state of constant size."""

    kind: CacheKind
    bytes_per_token: float = 0.0
    state_bytes: int = 0
    window_len: int | None = None


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one table of blocks, and how many blocks a sequence takes of it."""

    kind: CacheKind
    num_layers: int
    block_tokens: int
    window_len: int | None = None
    state_blocks: int = 1

    def blocks_for(self, context_len: int, max_num_batched_tokens: int, source_len: int) -> int:
        """Blocks that the scheduler may have to give one sequence of ``context_len``. [blocks]

        A window or chunk is held beside the tokens of the step in flight, so a sliding layer
        saves nothing where a step takes in the complete context.
        """
        if self.kind == "state":
            return self.state_blocks
        held, spare = context_len, 0
        if self.kind == "cross":
            held = source_len
        elif self.window_len is not None and self.kind == "sliding":
            held, spare = min(self.window_len - 1 + max_num_batched_tokens, context_len), 1
        elif self.window_len is not None and self.kind == "chunked":
            held = min(self.window_len + max_num_batched_tokens, context_len)
        return math.ceil(held / self.block_tokens) + spare


@dataclass(frozen=True)
class BlockPool:
    """The blocks of one rank's cache.

    ``source_len`` is what cross-attention holds, ``padding_layers`` what groups of equal size
    waste, ``block_tokens`` the smallest block. V0 logs a concurrency of tokens over context, as if
    sequences could share their last block (``shares_blocks``).
    """

    groups: tuple[CacheGroup, ...]
    bytes_per_block: int
    max_num_batched_tokens: int
    source_len: int = 0
    padding_layers: int = 0
    tokens_rule: TokensRule = "per-group"
    shares_blocks: bool = False

    @property
    def block_tokens(self) -> int:
        sizes = [group.block_tokens for group in self.groups if group.kind != "state"]
        return min(sizes, default=1)

    def blocks_per_sequence(self, context_len: int) -> int:
        """Blocks of all groups that a sequence of ``context_len`` tokens needs. [blocks]"""
        return sum(
            group.blocks_for(context_len, self.max_num_batched_tokens, self.source_len)
            for group in self.groups
        )

    def bytes_per_sequence(self, context_len: int) -> int:
        """Bytes a sequence needs on this rank, blocks rounded up. [bytes]"""
        return self.blocks_per_sequence(context_len) * self.bytes_per_block

    def num_blocks(self, kv_bytes: float) -> int:
        """Whole blocks in ``kv_bytes``. [blocks]"""
        return max(0, math.floor(kv_bytes / self.bytes_per_block))

    def concurrency(self, num_blocks: int, context_len: int) -> float:
        """Sequences of ``context_len`` that fit at once, as the engine logs it."""
        if self.shares_blocks:
            return num_blocks * self.block_tokens / context_len
        return num_blocks / self.blocks_per_sequence(context_len)

    def tokens(self, num_blocks: int, context_len: int) -> int:
        """The token count that the engine logs. [tokens]

        With several groups it is no capacity: each token is stored once a group, so older
        versions divide the blocks by the groups, and newer ones multiply the concurrency out.
        """
        if len(self.groups) > 1 and self.tokens_rule == "concurrency":
            return int(self.concurrency(num_blocks, context_len) * context_len)
        return num_blocks // len(self.groups) * self.block_tokens

    def longest_context(self, num_blocks: int, limit: int) -> int:
        """The longest single sequence that fits, at most ``limit``. [tokens]"""
        return longest_within(num_blocks, self.blocks_per_sequence, limit)


def attention_bytes_per_token(
    attention: Attention, tp: int, element_bytes: float, *, expand_latent: bool = False
) -> float:
    """Bytes that one layer keeps of one token on one rank. [bytes]

    Keys and values of the rank's KV heads; of MLA the latent, which every rank keeps whole, or
    keys and values of all heads where an engine lacks it (``expand_latent``; vLLM pads both to a
    multiple of 64 elements above the key's width).
    """
    if expand_latent and attention.kind == "mla":
        heads = max(1, attention.num_q_heads // tp)
        padded = 256 if attention.head_dim > 128 else attention.head_dim
        return 2 * heads * padded * element_bytes
    keys, values = attention.cached_elements(tp)
    if attention.kind == "mla" and attention.indexer is not None:
        latent = DSA_LATENT_FP8_BYTES if element_bytes == 1 else keys * element_bytes
        return latent + attention.indexer.head_dim * INDEXER_BYTES_PER_TOKEN_AND_HEAD_DIM
    return (keys + values) * element_bytes


def state_bytes(layer: Layer, tp: int, conv_bytes: float, state_element_bytes: float,
                num_draft_tokens: int = 0) -> int:  # fmt: skip
    """Bytes of one layer's recurrent state for one sequence on one rank. [bytes]

    The convolution also keeps one input for each draft token.
    """
    if layer.mixer is None:
        return 0
    conv, state = layer.mixer.state_elements(tp)
    per_step = layer.mixer.conv_channels // tp
    return round((conv + per_step * num_draft_tokens) * conv_bytes + state * state_element_bytes)


def cache_entries(
    spec: ModelSpec,
    *,
    tp: int,
    element_bytes: float,
    conv_bytes: float = 2.0,
    state_element_bytes: float = 2.0,
    num_draft_tokens: int = 0,
    expand_latent: bool = False,
    windows_as_full: bool = False,
) -> Counter[CacheEntry]:
    """What the layers of a model keep on one rank, and how many keep it."""
    kept: Counter[CacheEntry] = Counter()
    for layer, count in spec.layer_groups().items():
        if layer.attention is not None and not layer.attention.reads_other_layer:
            attention = layer.attention
            if attention.causal:
                for entry in _attention_entries(
                    attention, tp, element_bytes, expand_latent, windows_as_full
                ):
                    kept[entry] += count
        if layer.cross is not None:
            cross_bytes = attention_bytes_per_token(layer.cross, tp, element_bytes)
            kept[CacheEntry("cross", cross_bytes)] += count
        if layer.mixer is not None:
            held = state_bytes(layer, tp, conv_bytes, state_element_bytes, num_draft_tokens)
            kept[CacheEntry("state", state_bytes=held)] += count
    return kept


def _attention_entries(
    attention: Attention, tp: int, element_bytes: float, expand_latent: bool, windows_as_full: bool
) -> Iterator[CacheEntry]:
    """What one layer keeps: every token, a window, or a window beside compressed tokens."""
    each = attention_bytes_per_token(attention, tp, element_bytes, expand_latent=expand_latent)
    if attention.tokens_per_entry > 1:
        yield CacheEntry("mla", each / attention.tokens_per_entry)
    if attention.window_len is None or windows_as_full:
        yield CacheEntry("mla" if attention.kind == "mla" else "full", each)
    else:
        kind: CacheKind = "chunked" if attention.kind == "chunked" else "sliding"
        yield CacheEntry(kind, each, window_len=attention.window_len)


def _layers_per_group(counts: list[int]) -> int:
    """The size that all groups get: the smallest kind's, or the largest's when they are close."""
    smallest, largest = min(counts), max(counts)
    return largest if largest < 1.5 * smallest else smallest


def block_pool(
    entries: Counter[CacheEntry],
    *,
    block_tokens: int,
    max_num_batched_tokens: int,
    state_blocks: int = 1,
    source_len: int = 0,
    tokens_rule: TokensRule = "per-group",
    draft_layers: int = 0,
    shares_blocks: bool = False,
) -> BlockPool:
    """Group the layers of one rank and size the blocks.

    Pages are made equal first: attention whose token is smaller gets larger blocks, and where
    there are recurrent states the attention block grows, in steps of 16 tokens, until its page
    covers a state. ``draft_layers`` of speculative decoding join the first attention group.
    """
    kinds = entries.copy()
    attention = [entry for entry in kinds if entry.kind != "state"]
    states = [entry for entry in kinds if entry.kind == "state"]
    if draft_layers and attention:
        first = next((entry for entry in attention if entry.kind in ("full", "mla")), attention[0])
        kinds[first] += draft_layers
    if not attention:
        page = max((entry.state_bytes for entry in states), default=1)
        group = CacheGroup("state", sum(kinds.values()), 1, state_blocks=state_blocks)
        return BlockPool((group,), max(1, page * sum(kinds.values())), max_num_batched_tokens)
    if not states and {entry.kind for entry in attention} <= {"full", "mla"}:
        num_layers = sum(kinds.values())
        block_bytes = sum(entry.bytes_per_token * n for entry, n in kinds.items()) * block_tokens
        group = CacheGroup(attention[0].kind, num_layers, block_tokens)
        return BlockPool(
            (group,), max(1, round(block_bytes)), max_num_batched_tokens,
            shares_blocks=shares_blocks,
        )  # fmt: skip
    widest = max(entry.bytes_per_token for entry in attention)
    if states:
        state_page = max(entry.state_bytes for entry in states)
        needed = math.ceil(state_page / widest / 16) * 16
        block_tokens = max(block_tokens, needed)
    page_bytes = widest * block_tokens
    size = _layers_per_group([sum(n for e, n in kinds.items() if _type(e) == kind)
                              for kind in dict.fromkeys(map(_type, kinds))])  # fmt: skip
    groups: list[CacheGroup] = []
    padding = 0
    for kind in dict.fromkeys(map(_type, kinds)):
        members = [(entry, n) for entry, n in kinds.items() if _type(entry) == kind]
        num_layers, entry = sum(n for _, n in members), members[0][0]
        num_groups = math.ceil(num_layers / size)
        padding += num_groups * size - num_layers
        tokens = 1 if kind[0] == "state" else int(page_bytes // entry.bytes_per_token)
        groups += [
            CacheGroup(entry.kind, size, tokens, entry.window_len, state_blocks)
        ] * num_groups
    return BlockPool(
        groups=tuple(groups),
        bytes_per_block=max(1, round(size * page_bytes)),
        max_num_batched_tokens=max_num_batched_tokens,
        source_len=source_len,
        padding_layers=padding,
        tokens_rule=tokens_rule,
    )


def _type(entry: CacheEntry) -> tuple[CacheKind, int | None, float]:
    return entry.kind, entry.window_len, entry.bytes_per_token
