"""Caches give back the tokens that were put in, and count their bytes as theory does."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.combinations import problem  # noqa: E402
from attnprof.errors import UsageError  # noqa: E402
from attnprof.theory.kv_cache import (  # noqa: E402
    SCALED,
    allocated_bytes,
    cached_bytes,
    cached_slots,
)
from attnprof.workload import KV_CACHES, Workload, checked  # noqa: E402
from attnprof.workloads.kv_caches import new_cache  # noqa: E402
from attnprof.workloads.kv_caches.codecs import Scaled, codec_of  # noqa: E402
from attnprof.workloads.kv_caches.layouts import Paged  # noqa: E402

APPENDED = [kind for kind in KV_CACHES if kind not in ("none", "cross")]
STORED = (None, "bfloat16", *SCALED)
# Most that reading back is off, as a share of the largest element: half of the last code's step.
STEPS = {"int8": 0.5 / 127, "int4": 0.5 / 7, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}


def workload_of(kind: str, kv_len: int, **changed: Any) -> Workload:
    base = Workload(
        backend="eager", phase="decode", q_len=1, kv_len=kv_len, kv_cache=kind, batch_size=2,
        num_q_heads=3, num_kv_heads=3, head_dim=4,
    )  # fmt: skip
    if kind == "rolling":
        base = replace(base, variant="sliding", window_len=min(7, kv_len))
    elif kind == "latent":
        base = replace(base, mla="absorbed", kv_lora_rank=6, rope_head_dim=2)
    elif kind == "cross":
        base = replace(base, variant="full", attention="cross")
    return replace(base, **changed)


def tokens_for(workload: Workload, num_tokens: int) -> tuple[Any, Any]:
    """New keys and values; of a latent cache latents and None."""
    batch, heads = workload.batch_size, workload.num_kv_heads
    if workload.kv_cache == "latent":
        return torch.randn(batch, 1, num_tokens, 8), None
    keys = torch.randn(batch, heads, num_tokens, workload.head_dim)
    return keys, torch.randn(batch, heads, num_tokens, workload.value_dim)


def close(held: Any, given: Any, stored: str | None, groups: tuple[int, ...]) -> bool:
    """Whether ``held`` is ``given`` as it was stored: each group within a step of its scale."""
    if stored in (None, "bfloat16"):
        return bool((held == (given if stored is None else given.bfloat16())).all())
    assert stored is not None
    pairs = zip(torch.split(held, groups, -1), torch.split(given, groups, -1), strict=True)
    return all(
        bool(((a - b).abs() <= STEPS[stored] * 1.001 * b.abs().amax(-1, keepdim=True)).all())
        for a, b in pairs
    )


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("kind", APPENDED)
@given(
    pieces=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    batch_size=st.integers(1, 3),
    block_tokens=st.integers(1, 20),
    value_dim=st.sampled_from([2, 4, 6]),
)
@settings(max_examples=15, deadline=None)
def test_tokens_come_back_however_they_are_put_in(
    kind: str,
    stored: str | None,
    pieces: list[int],
    batch_size: int,
    block_tokens: int,
    value_dim: int,
) -> None:
    total = sum(pieces)
    workload = workload_of(
        kind, total, batch_size=batch_size, kv_dtype=stored,
        block_tokens=block_tokens if kind == "paged" else None,
        v_head_dim=value_dim if kind != "latent" else None,
    )  # fmt: skip
    cache = new_cache(workload, 0, torch.randn, seed=1)
    given_k, given_v = tokens_for(workload, total)
    first = 0
    for size in pieces:
        end = first + size
        k = given_k[:, :, first:end]
        v = None if given_v is None else given_v[:, :, first:end]
        not_kept = cache.extended(k, v)
        positions = cache.positions(size)
        assert cache.length == first
        held = cache.append(k, v)
        first = end
        assert cache.length == end
        assert all(torch.equal(a, b) for a, b in zip(held, not_kept, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(held, cache.held(), strict=True))
        assert torch.equal(positions, cache.positions(0))
        keys = (6, 2) if kind == "latent" else (4,)
        assert close(held[0], given_k[:, :, positions], stored, keys)
        if given_v is None:
            assert torch.equal(held[1], held[0][..., :6])
        else:
            assert close(held[1], given_v[:, :, positions], stored, (value_dim,))
        last = workload.window_len if kind == "rolling" else end
        assert last is not None
        assert positions.sort().values.tolist() == list(range(max(0, end - last), end))
        assert cache.useful_bytes == cached_bytes(workload, end)
        assert cache.allocated_bytes == allocated_bytes(workload, end)
        assert cache.useful_bytes <= cache.allocated_bytes <= cache.peak_bytes


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("kind", APPENDED)
def test_bytes_are_those_of_the_tensors(kind: str, stored: str | None) -> None:
    workload = workload_of(kind, 33, kv_dtype=stored)
    cache = new_cache(workload, 33, torch.randn, seed=1)
    layout = cache.layout
    planes = layout.pools if isinstance(layout, Paged) else vars(layout)["planes"]
    assert sum(plane.nbytes for plane in planes) == cache.allocated_bytes


@pytest.mark.parametrize("kind", APPENDED)
def test_a_filled_cache_is_made_of_the_noise_that_was_asked_for(kind: str) -> None:
    for stored in STORED:
        workload = workload_of(kind, 33, kv_dtype=stored)
        cache = new_cache(workload, 32, torch.ones, seed=1)
        assert all(bool((part == 1).all()) for part in cache.held())


@pytest.mark.parametrize("kind", APPENDED)
def test_a_prompt_is_put_in_as_it_would_be_appended(kind: str) -> None:
    workload = workload_of(kind, 34, kv_dtype="int8")
    caches = [new_cache(workload, 0, torch.zeros, seed=1) for _ in range(2)]
    prompt = tokens_for(workload, 20)
    caches[0].put(*prompt)
    appended = caches[1].append(*prompt)
    assert [cache.length for cache in caches] == [20, 20]
    assert all(torch.equal(a, b) for a, b in zip(caches[0].held(), appended, strict=True))


@pytest.mark.parametrize("kind", APPENDED)
def test_a_token_that_is_not_kept_leaves_the_cache_as_it_was(kind: str) -> None:
    workload = workload_of(kind, 34)
    cache = new_cache(workload, 32, torch.randn, seed=1)
    one, other = tokens_for(workload, 1), tokens_for(workload, 1)
    first = [part.clone() for part in cache.extended(*one)]
    cache.extended(*other)
    again = cache.extended(*one)
    assert cache.length == 32
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, cache.append(*one), strict=True))
    assert cache.length == 33


def test_a_cross_cache_is_filled_once() -> None:
    workload = workload_of("cross", 20)
    cache = new_cache(workload, 0, torch.randn, seed=1)
    assert cache.length == 20
    assert cache.held()[0].shape == (2, 3, 20, 4)
    assert cache.allocated_bytes == cache.useful_bytes == cached_bytes(workload)
    for method in (cache.append, cache.extended):
        with pytest.raises(TypeError, match="once"):
            method(*tokens_for(workload, 1))


def steps(kind: str, start: int, end: int, **changed: Any) -> list[tuple[int, int]]:
    workload = workload_of(kind, end, batch_size=1, num_q_heads=1, num_kv_heads=1, **changed)
    cache = new_cache(workload, start, torch.randn, seed=1)
    found = []
    for _ in range(start, end):
        cache.append(*tokens_for(workload, 1))
        found.append((cache.allocated_bytes, cache.peak_bytes))
    return found


def test_a_contiguous_cache_holds_the_old_keys_beside_the_new() -> None:
    token_bytes = 2 * 4 * 4
    for length, (allocated, peak) in enumerate(steps("contiguous", 10, 40), start=11):
        assert allocated == length * token_bytes
        assert peak == allocated + (length - 1) * token_bytes // 2


def test_a_static_cache_does_not_grow() -> None:
    assert len(set(steps("static", 10, 40))) == 1


def test_a_rolling_cache_stays_at_its_window() -> None:
    assert set(steps("rolling", 1, 40)) == {(7 * 2 * 4 * 4, 7 * 2 * 4 * 4)}


@pytest.mark.parametrize("block_len", [1, 5, 16, 64])
def test_a_paged_cache_grows_by_blocks(block_len: int) -> None:
    allocated = [size for size, _ in steps("paged", 10, 40, block_tokens=block_len)]
    block_bytes = block_len * 2 * 4 * 4
    assert allocated == [-(-length // block_len) * block_bytes for length in range(11, 41)]


def test_blocks_of_a_paged_cache_lie_in_no_order() -> None:
    cache = new_cache(workload_of("paged", 160), 1, torch.randn, seed=1)
    assert isinstance(cache.layout, Paged)
    table = cache.layout.table.flatten().tolist()
    assert sorted(table) == list(range(20))
    assert table != sorted(table)


def test_scales_are_four_bytes_a_token_and_head() -> None:
    plain, int8, int4 = (
        new_cache(workload_of("static", 10, kv_dtype=stored), 10, torch.randn, seed=1)
        for stored in (None, "int8", "int4")
    )
    heads = 10 * 2 * 3 * 2  # tokens, sequences, heads, of keys and values
    assert plain.allocated_bytes == heads * 4 * 4
    assert int8.allocated_bytes == heads * (4 + 4)
    assert int4.allocated_bytes == heads * (2 + 4)


@given(codes=st.lists(st.integers(-7, 7), min_size=2, max_size=24))
def test_packed_nibbles_come_apart_again(codes: list[int]) -> None:
    codes = [*codes[: len(codes) // 2 * 2], 7, -7]  # so that the scale is one
    given = torch.tensor([codes], dtype=torch.float32)
    codec = Scaled((len(codes),), "int4", torch.float32)
    packed, scales = codec.encode(given)
    assert packed.dtype == torch.uint8 and packed.shape == (1, len(codes) // 2)
    assert torch.equal(codec.decode((packed, scales)), given)


@pytest.mark.parametrize("stored", SCALED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e-4, 1.0, 3e4])
def test_scales_follow_the_size_of_what_is_stored(stored: str, dtype: str, size: float) -> None:
    given = (size * torch.randn(3, 5, 16).clamp(-2, 2)).to(getattr(torch, dtype))
    codec = codec_of((16,), stored, dtype)
    found = codec.decode(codec.encode(given))
    assert found.dtype == given.dtype
    largest = given.abs().amax(-1, keepdim=True).float()
    rounding = torch.finfo(given.dtype).eps
    off = (found.float() - given.float()).abs()
    assert bool((off <= (STEPS[stored] * 1.001 + rounding) * largest).all())


@pytest.mark.parametrize("stored", SCALED)
def test_zeros_are_stored_as_zeros(stored: str) -> None:
    codec = codec_of((4,), stored, "float32")
    assert not codec.decode(codec.encode(torch.zeros(2, 4))).any()


def test_a_latent_and_its_rotated_key_are_scaled_apart() -> None:
    codec = codec_of((4, 4), "int8", "float32")
    given = torch.tensor([[0.01, 0.02, -0.01, 0.005, 100.0, -50.0, 3.0, 7.0]])
    found = codec.decode(codec.encode(given))
    assert torch.allclose(found[:, :4], given[:, :4], atol=0.02 / 127)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kv_cache": "rolling", "variant": "causal", "window_len": None}, "sliding window"),
        ({"kv_cache": "rolling", "window_len": 41}, "longer than the sequence"),
        ({"kv_cache": "static", "block_tokens": 16}, "paged cache"),
        ({"kv_cache": "latent"}, "belongs to mla"),
        ({"kv_cache": "cross"}, "cross goes with cross"),
        ({"kv_dtype": "int4", "head_dim": 5}, "head_dim 5 is odd"),
        ({"kv_dtype": "int4", "v_head_dim": 5}, "v_head_dim 5 is odd"),
    ],
)
def test_a_cache_of_no_sense_is_refused_by_name(changed: dict[str, Any], words: str) -> None:
    workload = replace(workload_of("rolling", 40), **changed)
    found = problem(workload)
    assert found is not None and words in found


def test_an_odd_latent_is_not_packed_in_bytes() -> None:
    latent = workload_of("latent", 40, kv_dtype="int4")
    assert problem(latent) is None
    found = problem(replace(latent, kv_lora_rank=5))
    assert found is not None and "kv_lora_rank + rope_head_dim 7 is odd" in found


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_without_tokens_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="block_tokens"):
        checked(workload_of("paged", 40, block_tokens=size))


def test_slots_of_theory_are_those_of_each_kind() -> None:
    of_kind = {kind: cached_slots(workload_of(kind, 40), 17) for kind in (*APPENDED, "cross")}
    assert of_kind == {
        "contiguous": 17, "static": 40, "paged": 32, "rolling": 7, "latent": 40, "cross": 40,
    }  # fmt: skip
