"""FLOP, pairs and bytes of scope op: torch's own counter, masks that are counted, closed forms."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.theory.flops import attended_pairs, attention_flops, latent_flops, op_flops
from attnprof.theory.kv_cache import cached_token_bytes
from attnprof.theory.traffic import attention_bytes, latent_weight_bytes
from attnprof.workload import Workload

FULL = Workload(
    backend="eager", variant="full", q_len=24, kv_len=24, num_q_heads=4, num_kv_heads=2,
    head_dim=16, batch_size=2, num_layers=2,
)  # fmt: skip
STEP = replace(FULL, phase="verify", q_len=3, kv_cache="static")
LATENT: dict[str, Any] = {
    "num_kv_heads": 4, "v_head_dim": 12, "kv_lora_rank": 10, "rope_head_dim": 4,
}  # fmt: skip


def counted(workload: Workload) -> int:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.workloads import build_operation

    op = build_operation(workload, torch.device("cpu"), seed=1)
    with op.active(), FlopCounterMode(display=False) as counter:
        op()
    total: int = counter.get_total_flops()
    return total


@pytest.mark.torch
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(FULL, id="prefill"),
        pytest.param(replace(FULL, v_head_dim=40), id="values of another width"),
        pytest.param(replace(FULL, backend="math"), id="math"),
        pytest.param(STEP, id="verify"),
        pytest.param(replace(STEP, phase="decode", q_len=1, kv_cache="paged"), id="decode"),
        pytest.param(
            replace(FULL, q_len=7, kv_len=30, attention="cross", kv_cache="cross"), id="cross"
        ),
        pytest.param(
            replace(FULL, phase="mixed", q_len=1, kv_cache="static", prefill_len=9), id="mixed"
        ),
        pytest.param(
            replace(
                FULL,
                phase="mixed",
                q_len=1,
                mla="absorbed",
                kv_cache="latent",
                prefill_len=9,
                **LATENT,
            ),
            id="mixed, of a latent",
        ),
        pytest.param(replace(FULL, phase="train"), id="train"),
        pytest.param(replace(FULL, phase="train", checkpointing=True), id="checkpointing"),
        pytest.param(
            replace(FULL, phase="train", checkpointing=True, backend="math", v_head_dim=24),
            id="checkpointing, math",
        ),
        pytest.param(replace(FULL, mla="expanded", **LATENT), id="expanded prefill"),
        pytest.param(replace(FULL, mla="absorbed", **LATENT), id="absorbed prefill"),
        pytest.param(
            replace(STEP, mla="expanded", kv_cache="latent", **LATENT), id="expanded latent"
        ),
        pytest.param(replace(STEP, mla="expanded", **LATENT), id="expanded heads in the cache"),
        pytest.param(replace(STEP, mla="absorbed", kv_cache="latent", **LATENT), id="absorbed"),
    ],
)
def test_flop_are_those_that_torch_counts(workload: Workload) -> None:
    assert op_flops(workload) == counted(workload)


@pytest.mark.torch
def test_a_step_of_flash_makes_its_scores_again_and_they_are_not_counted() -> None:
    # Dao 2023, section 4.1: 2.5 times as much on the way back
    workload = replace(FULL, phase="train", backend="flash", num_kv_heads=4)
    forward = op_flops(replace(workload, phase="prefill"))
    assert op_flops(workload) == 3 * forward


@pytest.mark.parametrize(
    "sight",
    [
        {"variant": "causal"},
        {"variant": "sliding", "window_len": 5},
        {"variant": "chunked", "window_len": 5},
        {"variant": "prefix-lm", "prefix_len": 5},
        {"variant": "packed", "document_len": 5},
        {"variant": "sink", "window_len": 5, "sink_len": 2},
    ],
)
def test_flop_fall_with_the_pairs_that_are_seen(sight: dict[str, Any]) -> None:
    seen = replace(FULL, **sight)
    pairs = sum(bool(seen.mask.allows(i, j)) for i in range(24) for j in range(24))
    assert op_flops(seen) * 24**2 == op_flops(FULL) * pairs
    assert pairs < 24**2


@pytest.mark.torch
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_pairs_are_those_of_the_mask_that_a_kernel_is_given(data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    from attnprof.backends.masks import allowed, num_given

    kv_len = data.draw(st.integers(2, 40))
    size = data.draw(st.integers(2, kv_len))
    sight: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {"variant": "full"}, {"variant": "causal"},
                {"variant": "sliding", "window_len": size},
                {"variant": "chunked", "window_len": size},
                {"variant": "prefix-lm", "prefix_len": size},
                {"variant": "sink", "window_len": size, "sink_len": 2},
            ]
        )
    )  # fmt: skip
    q_len = data.draw(st.integers(1, kv_len))
    workload = replace(STEP, kv_len=kv_len, q_len=q_len, **sight)
    mask = allowed(workload, torch.device("cpu"))
    pairs = q_len * num_given(workload) if mask is None else int(mask.sum())
    assert attended_pairs(workload) == 2 * pairs


@pytest.mark.torch
@given(kv_len=st.integers(2, 30), batch_size=st.integers(2, 5), data=st.data())
@settings(max_examples=30, deadline=None)
def test_pairs_of_a_padded_batch_are_those_without_padding(
    kv_len: int, batch_size: int, data: st.DataObject
) -> None:
    torch = pytest.importorskip("torch")
    from attnprof.backends.masks import allowed

    min_len = data.draw(st.integers(1, kv_len - 1))
    workload = replace(FULL, q_len=kv_len, kv_len=kv_len, batch_size=batch_size, min_len=min_len)
    mask = allowed(workload, torch.device("cpu"))
    assert mask is not None
    is_token = mask[:, 0, 0, :, None]
    assert attended_pairs(workload) == int((is_token & mask[:, 0]).sum())
    cross = replace(workload, q_len=7, attention="cross", kv_cache="cross")
    assert attended_pairs(cross) == 7 * int(mask.sum())


def test_equal_widths_are_the_formula_of_the_paper() -> None:
    assert op_flops(FULL) == 2 * attention_flops(FULL.shape, FULL.mask)


def test_deepseek_v3_absorbs_its_decode_for_fewer_flop_and_bytes() -> None:
    """128 heads over a latent of 512 and a shared key of 64: expanding 8k tokens in each step costs
    many times the decode itself."""
    shape: dict[str, Any] = {
        "phase": "decode", "q_len": 1, "kv_len": 8192, "num_q_heads": 128, "num_kv_heads": 128,
        "head_dim": 192, "v_head_dim": 128, "kv_lora_rank": 512, "rope_head_dim": 64,
        "kv_cache": "latent", "dtype": "bfloat16", "backend": "flash",
    }  # fmt: skip
    absorbed = Workload(mla="absorbed", **shape)
    expanded = Workload(mla="expanded", **shape)
    products = 2 * 128 * 8192 * (576 + 512)
    projections = 2 * 128 * 512 * (128 + 128)
    assert op_flops(absorbed) == products + projections
    assert latent_flops(expanded) == 8192 * projections
    assert op_flops(expanded) > 50 * op_flops(absorbed)
    assert attention_bytes(absorbed) == attention_bytes(expanded)
    assert cached_token_bytes(absorbed) == 1152  # DeepSeek-AI 2024, arXiv:2412.19437: 576 in bf16
    assert latent_weight_bytes(absorbed) == 128 * 256 * 512 * 2


def test_a_mixed_step_moves_what_its_parts_move() -> None:
    mixed = replace(FULL, phase="mixed", q_len=1, kv_cache="paged", prefill_len=9)
    decode = replace(mixed, phase="decode", prefill_len=None)
    prefill = replace(FULL, q_len=9, kv_len=9, batch_size=1)
    for count in (op_flops, attention_bytes):
        assert count(mixed) == count(decode) + count(prefill)


def test_scales_of_a_cache_are_bytes_that_are_read() -> None:
    plain = replace(STEP, dtype="bfloat16")
    quantised = replace(plain, kv_dtype="int8")
    saved = attention_bytes(plain) - attention_bytes(quantised)
    assert saved == 2 * 2 * 24 * 2 * 2 * (16 - 4)  # layers, sequences, tokens, heads, K and V


@pytest.mark.parametrize("variant", ["sliding", "chunked"])
def test_a_decode_reads_no_more_than_its_window(variant: str) -> None:
    decode = replace(STEP, phase="decode", q_len=1, kv_len=96, variant=variant, window_len=16)
    alone = replace(decode, kv_len=16)
    assert attention_bytes(decode) == attention_bytes(alone)
