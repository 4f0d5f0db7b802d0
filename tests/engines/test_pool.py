"""Blocks of a paged cache: layouts that engines logged, and what must hold of any."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.engines.pool import BlockPool, CacheEntry, block_pool

GIB = 2**30


def _pool(*kept: tuple[CacheEntry, int], batched: int = 8192, **options: object) -> BlockPool:
    entries = Counter(dict(kept))
    return block_pool(entries, block_tokens=16, max_num_batched_tokens=batched, **options)  # type: ignore[arg-type]


def _state(state_bytes: int) -> CacheEntry:
    return CacheEntry("state", state_bytes=state_bytes)


FULL_8K = CacheEntry("full", 8192.0)


@pytest.mark.parametrize(
    ("pool", "context_len", "bytes_per_block", "groups", "blocks"),
    [
        pytest.param(
            _pool((CacheEntry("sliding", 8192.0, window_len=1024), 52), (FULL_8K, 10)),
            8192, 1_310_720, 7, 3590, id="gemma-3-27b, vLLM 0.19: 7 groups of 10 layers",
        ),
        pytest.param(
            _pool((CacheEntry("sliding", 8192.0, window_len=4096), 23), (FULL_8K, 23)),
            8192, 3_014_656, 2, 1025, id="gemma-2-27b, vLLM 0.19: 2 groups of 23",
        ),
        pytest.param(
            _pool((CacheEntry("sliding", 4096.0, window_len=1024), 25),
                  (CacheEntry("full", 2048.0), 5)),
            98304, 327_680, 6, 5957, id="gemma-4-26b in fp8: full blocks of 32 tokens",
        ),
        pytest.param(
            _pool((CacheEntry("full", 5120.0), 32), (CacheEntry("cross", 5120.0), 32),
                  batched=2048, source_len=2048),
            448, 2_621_440, 2, 156, id="whisper-large-v3: 28 + 128 blocks a request",
        ),
        pytest.param(
            _pool((CacheEntry("full", 4096.0), 16), (_state(3_207_168), 48),
                  state_blocks=2),
            8192, 51_380_224, 4, 17, id="qwen3.8-27b, vLLM 0.29: blocks of 784 tokens",
        ),
        pytest.param(
            _pool((CacheEntry("full", 1024.0), 16), (_state(1_634_304), 48),
                  state_blocks=5, draft_layers=1),
            262144, 27_852_800, 4, 179, id="qwen3.6-27b with three draft tokens: 17 layers a group",
        ),
        pytest.param(
            _pool((CacheEntry("full", 4096.0), 32), draft_layers=1),
            131072, 2_162_688, 1, 8192, id="Llama-3.1-8B with EAGLE: 33 layers",
        ),
    ],
)  # fmt: skip
def test_layouts_are_those_that_vllm_logged(
    pool: BlockPool, context_len: int, bytes_per_block: int, groups: int, blocks: int
) -> None:
    assert pool.bytes_per_block == bytes_per_block
    assert len(pool.groups) == groups
    assert pool.blocks_per_sequence(context_len) == blocks


def test_padding_layers_fill_the_last_group() -> None:
    pool = _pool(
        (CacheEntry("sliding", 1024.0, window_len=512), 22), (CacheEntry("full", 1024.0), 4)
    )
    assert pool.padding_layers == 2, "gemma-3-1b: vLLM warns of 2 layers, 9.09 %"
    assert len(pool.groups) == 7


def test_a_window_saves_nothing_where_a_step_takes_the_whole_context() -> None:
    sliding = CacheEntry("sliding", 8192.0, window_len=1024)
    wide, narrow = (
        _pool((sliding, 52), (FULL_8K, 10), batched=batched) for batched in (8192, 2048)
    )
    assert wide.blocks_per_sequence(8192) > 0.99 * 7 * 512
    assert narrow.blocks_per_sequence(8192) < 0.5 * wide.blocks_per_sequence(8192)


def test_the_logged_tokens_of_several_groups_depend_on_the_version() -> None:
    old, new = (
        _pool(
            (CacheEntry("sliding", 2048.0, window_len=128), 18),
            (CacheEntry("full", 2048.0), 18),
            tokens_rule=rule,
        )
        for rule in ("per-group", "concurrency")
    )
    blocks = old.num_blocks(8.99 * GIB)
    assert blocks == pytest.approx(2 * 130_960 / 16, abs=10), "gpt-oss-120b, vLLM 0.11.2"
    assert old.tokens(blocks, 98304) == blocks // 2 * 16
    assert new.tokens(blocks, 98304) == int(new.concurrency(blocks, 98304) * 98304)


def test_a_model_of_states_alone_has_one_block_a_sequence() -> None:
    pool = _pool((CacheEntry("state", state_bytes=389_120), 64))
    assert pool.blocks_per_sequence(10) == pool.blocks_per_sequence(10**6) == 1
    assert pool.bytes_per_block == 64 * 389_120


ENTRIES = st.builds(
    CacheEntry,
    kind=st.sampled_from(["full", "sliding", "chunked"]),
    bytes_per_token=st.sampled_from([512.0, 1024.0, 2048.0]),
    window_len=st.integers(16, 4096),
)


@given(
    kept=st.dictionaries(ENTRIES, st.integers(1, 40), min_size=1, max_size=3),
    kv_bytes=st.integers(0, 2**36),
    context_len=st.integers(1, 2**17),
)
def test_what_holds_of_any_pool(
    kept: dict[CacheEntry, int], kv_bytes: int, context_len: int
) -> None:
    cleaned: Counter[CacheEntry] = Counter()
    for entry, count in kept.items():
        window_len = None if entry.kind == "full" else entry.window_len
        cleaned[CacheEntry(entry.kind, entry.bytes_per_token, window_len=window_len)] += count
    pool = block_pool(cleaned, block_tokens=16, max_num_batched_tokens=2048)
    blocks = pool.num_blocks(kv_bytes)
    assert blocks * pool.bytes_per_block <= kv_bytes < (blocks + 1) * pool.bytes_per_block
    longest = pool.longest_context(blocks, 2**20)
    assert longest == 0 or pool.blocks_per_sequence(longest) <= blocks
    assert longest == 2**20 or pool.blocks_per_sequence(longest + 1) > blocks
    assert pool.blocks_per_sequence(context_len) <= pool.blocks_per_sequence(context_len + 1)
    needed = sum(
        entry.bytes_per_token * count * min(context_len, entry.window_len or context_len)
        for entry, count in cleaned.items()
    )
    assert pool.bytes_per_sequence(context_len) >= needed
