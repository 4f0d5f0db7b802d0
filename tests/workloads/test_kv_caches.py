"""Caches give back the tokens that were put in, and count their bytes as theory does."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.theory.kv_cache import kv_bytes  # noqa: E402
from attnprof.workload import KV_CACHES, Workload  # noqa: E402
from attnprof.workloads.kv_caches import PagedCache, new_cache  # noqa: E402

KINDS = [kind for kind in KV_CACHES if kind != "none"]


def workload_of(kind: str, kv_len: int, batch_size: int = 2, num_kv_heads: int = 3) -> Workload:
    return Workload(
        backend="eager", phase="decode", q_len=1, kv_len=kv_len, kv_cache=kind,
        batch_size=batch_size, num_q_heads=num_kv_heads, num_kv_heads=num_kv_heads, head_dim=4,
    )  # fmt: skip


def token(batch_size: int = 2, num_kv_heads: int = 3) -> Any:
    return torch.randn(batch_size, num_kv_heads, 1, 4)


@pytest.mark.parametrize("kind", KINDS)
@given(num_tokens=st.integers(1, 40), batch_size=st.integers(1, 3), num_kv_heads=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_tokens_come_back_in_order(
    kind: str, num_tokens: int, batch_size: int, num_kv_heads: int
) -> None:
    workload = workload_of(kind, num_tokens, batch_size, num_kv_heads)
    cache = new_cache(workload, 0, torch.randn, seed=1)
    keys = [token(batch_size, num_kv_heads) for _ in range(num_tokens)]
    values = [token(batch_size, num_kv_heads) for _ in range(num_tokens)]
    for k, v in zip(keys, values, strict=True):
        held_k, held_v = cache.append(k, v)
    assert cache.length == num_tokens
    assert torch.equal(held_k, torch.cat(keys, dim=2))
    assert torch.equal(held_v, torch.cat(values, dim=2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_is_not_kept_leaves_the_cache_as_it_was(kind: str) -> None:
    cache = new_cache(workload_of(kind, 33), 32, torch.randn, seed=1)
    k, v = token(), token()
    first, again = cache.extended(k, v), cache.extended(k, v)
    assert cache.length == 32
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, cache.append(k, v), strict=True))
    assert cache.length == 33


@pytest.mark.parametrize("kind", KINDS)
@given(start=st.integers(1, 40), more=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_useful_bytes_are_those_of_theory(kind: str, start: int, more: int) -> None:
    cache = new_cache(workload_of(kind, start + more), start, torch.randn, seed=1)
    for _ in range(more):
        cache.append(token(), token())
        expected = kv_bytes(
            2 * cache.length, num_layers=1, num_kv_heads=3, head_dim=4, dtype="float32"
        )
        assert cache.useful_bytes == expected
        assert cache.useful_bytes <= cache.allocated_bytes <= cache.peak_bytes
        assert cache.allocated_bytes_with(0) == cache.allocated_bytes


def steps(kind: str, start: int, end: int) -> list[tuple[int, int]]:
    cache = new_cache(workload_of(kind, end, 1, 1), start, torch.randn, seed=1)
    found = []
    for _ in range(start, end):
        cache.append(token(1, 1), token(1, 1))
        found.append((cache.allocated_bytes, cache.peak_bytes))
    return found


def test_a_contiguous_cache_holds_the_old_keys_beside_the_new() -> None:
    token_bytes = 2 * 4 * 4
    for length, (allocated, peak) in enumerate(steps("contiguous", 10, 40), start=11):
        assert allocated == length * token_bytes
        assert peak == allocated + (length - 1) * token_bytes // 2


def test_a_static_cache_does_not_grow() -> None:
    assert len(set(steps("static", 10, 40))) == 1


def test_a_paged_cache_grows_by_blocks() -> None:
    allocated = [size for size, _ in steps("paged", 10, 40)]
    block_bytes = 16 * 2 * 4 * 4
    assert allocated == [-(-length // 16) * block_bytes for length in range(11, 41)]


def test_blocks_of_a_paged_cache_lie_in_no_order() -> None:
    cache = new_cache(workload_of("paged", 160), 1, torch.randn, seed=1)
    assert isinstance(cache, PagedCache)
    table = cache.table.flatten().tolist()
    assert sorted(table) == list(range(20))
    assert table != sorted(table)
