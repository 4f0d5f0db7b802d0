from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.theory.flops import attention_flops
from attnprof.theory.kv_cache import kv_bytes
from attnprof.theory.roofline import ridge_point, roofline_s
from attnprof.theory.traffic import attention_bytes
from attnprof.workload import Workload

PREFILL = Workload(backend="flash", q_len=512, kv_len=512, variant="full")
DECODE = replace(PREFILL, phase="decode", q_len=1, kv_cache="static", variant="causal")


@pytest.mark.parametrize(
    ("num_layers", "num_kv_heads", "head_dim", "expected_bytes"),
    [
        pytest.param(40, 40, 128, 819_200, id="OPT-13B, PagedAttention section 3: 800 KB"),
        pytest.param(32, 8, 128, 131_072, id="Llama-3.1-8B: 128 KiB"),
        pytest.param(32, 32, 128, 524_288, id="Llama-2-7B: 512 KiB"),
    ],
)
def test_kv_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, expected_bytes: int
) -> None:
    assert (
        kv_bytes(
            1,
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype="float16",
        )
        == expected_bytes
    )


def test_full_flop_are_those_of_the_paper() -> None:
    # arXiv:2307.08691, section 4.1: 4 · seqlen² · head dimension · number of heads
    assert attention_flops(PREFILL.shape, PREFILL.mask) == 4 * 512**2 * 64 * 8


def test_causal_flop_are_half_and_the_diagonal() -> None:
    causal = replace(PREFILL, variant="causal")
    full = attention_flops(PREFILL.shape, PREFILL.mask)
    diagonal = 4 * 512 * 64 * 8
    assert 2 * attention_flops(causal.shape, causal.mask) == full + diagonal


@given(st.integers(1, 64), st.integers(1, 4))
def test_decodes_of_every_length_add_up_to_a_causal_prefill(kv_len: int, batch_size: int) -> None:
    prefill = replace(PREFILL, q_len=kv_len, kv_len=kv_len, variant="causal", batch_size=batch_size)
    steps = (
        replace(DECODE, kv_len=length, batch_size=batch_size) for length in range(1, kv_len + 1)
    )
    assert attention_flops(prefill.shape, prefill.mask) == sum(
        attention_flops(step.shape, step.mask) for step in steps
    )


def test_sharing_kv_heads_saves_bytes_and_no_flop() -> None:
    shared = replace(DECODE, num_kv_heads=1)
    assert attention_flops(shared.shape, shared.mask) == attention_flops(DECODE.shape, DECODE.mask)
    assert attention_bytes(shared) < attention_bytes(DECODE) / 7


def test_a_window_bounds_the_bytes_of_a_decode() -> None:
    window = replace(DECODE, variant="sliding", window_len=64)
    assert attention_bytes(window) == attention_bytes(replace(DECODE, kv_len=64))


def test_the_roofline_turns_at_the_ridge_point() -> None:
    roofs = {"flops_per_s": 2e12, "bytes_per_s": 1e11}
    ridge = ridge_point(**roofs)
    assert roofline_s(ridge * 1e6, 1e6, **roofs) == pytest.approx(1e6 / 1e11)
    assert roofline_s(2 * ridge * 1e6, 1e6, **roofs) == pytest.approx(2e6 / 1e11)
    assert roofline_s(0.5 * ridge * 1e6, 1e6, **roofs) == pytest.approx(1e6 / 1e11)
    assert roofline_s(1.0, 1.0, None, 1e11) is None
