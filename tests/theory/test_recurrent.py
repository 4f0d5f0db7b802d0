"""Work and bytes of what stands in attention's place: published numbers, limits, properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.theory.recurrent import (
    CHUNK_TOKENS,
    recurrent_bytes,
    recurrent_flops,
    recurrent_weight_bytes,
    state_bytes,
)
from attnprof.theory.summary import held_bytes, theory_of
from attnprof.theory.weights import linear_bytes
from attnprof.workload import Workload

MIXERS = ("rnn", "lstm", "gru", "linear")


def layer(mixer: str, phase: str = "prefill", length: int = 512, **more: Any) -> Workload:
    q_len = 1 if phase == "decode" else length
    return Workload(
        backend="eager", scope="layer", mixer=mixer, phase=phase, q_len=q_len, kv_len=length, **more
    )


@pytest.mark.parametrize(
    ("mixer", "num_params"),
    [
        pytest.param("lstm", 8 * (512**2 + 512), id="torch.nn.LSTM(512, 512): 2,101,248"),
        pytest.param("gru", 6 * (512**2 + 512), id="torch.nn.GRU(512, 512): 1,575,936"),
        pytest.param("rnn", 2 * (512**2 + 512), id="torch.nn.RNN(512, 512): 525,312"),
        pytest.param("linear", 4 * 512**2, id="Q, K, V and output of width 512"),
    ],
)
def test_weights_are_those_of_the_modules(mixer: str, num_params: int) -> None:
    assert recurrent_weight_bytes(layer(mixer)) == 4 * num_params


def test_gates_multiply_the_work_of_an_rnn() -> None:
    rnn = recurrent_flops(layer("rnn"))
    assert rnn == 4 * 512 * 512**2  # two products of w² multiply-adds a token
    assert recurrent_flops(layer("gru")) == 3 * rnn
    assert recurrent_flops(layer("lstm")) == 4 * rnn


@given(mixer=st.sampled_from(MIXERS), chunks=st.integers(1, 50), times=st.integers(2, 5))
def test_work_grows_with_tokens_and_a_state_does_not(mixer: str, chunks: int, times: int) -> None:
    one = layer(mixer, length=chunks * CHUNK_TOKENS)
    more = layer(mixer, length=times * chunks * CHUNK_TOKENS)
    assert recurrent_flops(more) == times * recurrent_flops(one)
    assert state_bytes(more) == state_bytes(one)


@given(mixer=st.sampled_from(MIXERS), length=st.integers(1, 100_000))
def test_a_token_costs_the_same_at_any_length(mixer: str, length: int) -> None:
    first, later = layer(mixer, "decode", 1), layer(mixer, "decode", length)
    assert recurrent_flops(first) == recurrent_flops(later)
    assert recurrent_bytes(first) == recurrent_bytes(later)


@given(mixer=st.sampled_from(MIXERS), length=st.integers(2, 300), batch=st.integers(1, 4))
def test_a_train_step_does_nearly_three_times_the_work(mixer: str, length: int, batch: int) -> None:
    forward = recurrent_flops(layer(mixer, length=length, batch_size=batch))
    trained = recurrent_flops(layer(mixer, "train", length, batch_size=batch))
    again = recurrent_flops(layer(mixer, "train", length, batch_size=batch, checkpointing=True))
    assert 2.5 * forward <= trained <= 3 * forward
    assert trained < again <= trained + forward


def test_linear_attention_by_hand() -> None:
    """One head of width 4, 3 tokens in one chunk."""
    one = layer("linear", length=3, num_q_heads=1, num_kv_heads=1, head_dim=4)
    projections = 4 * 2 * 3 * 4 * 4
    state = 2 * 2 * 3 * 4 * 4  # φ(k)vᵀ, and φ(q) times the sum
    pairs = 2 * 2 * 9 * 4
    assert recurrent_flops(one) == projections + state + pairs


def test_a_state_of_halves_is_a_half_but_sums_over_all_tokens_are_not() -> None:
    for mixer in ("rnn", "lstm", "gru"):
        wide, narrow = (state_bytes(layer(mixer, dtype=d)) for d in ("float32", "bfloat16"))
        assert wide == 2 * narrow
    assert state_bytes(layer("linear")) == state_bytes(layer("linear", dtype="bfloat16"))
    assert state_bytes(layer("linear")) == 4 * 8 * 64 * 65


def test_shared_kv_heads_share_their_state() -> None:
    assert 8 * state_bytes(layer("linear", num_kv_heads=1)) == state_bytes(layer("linear"))


@pytest.mark.parametrize(
    ("weight_dtype", "expected"),
    [
        pytest.param(None, 2 * 128 * 256, id="bfloat16"),
        pytest.param("int8", 33_408, id="torchao 0.18 Int8Tensor 128 × 256"),
        pytest.param("float8_e4m3fn", 33_280, id="torchao 0.18 Float8Tensor 128 × 256"),
        pytest.param("int4", 17_408, id="torchao 0.18 Int4OpaqueTensor 128 × 256"),
    ],
)
def test_stored_weights_bring_their_scales(weight_dtype: str | None, expected: int) -> None:
    assert linear_bytes(128, 256, "bfloat16", weight_dtype) == expected


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_record_has_the_theory_of_its_layer_and_no_guess_of_its_peak(mixer: str) -> None:
    workload = layer(mixer, "decode")
    theory = theory_of(workload, "cpu", 1, {"copy_bytes_per_s": 1e10, "matmul": {}})
    assert theory["flops"] == recurrent_flops(workload)
    assert theory["bytes_moved"] == recurrent_bytes(workload)
    assert theory["theory_kv_bytes"] == state_bytes(workload)
    assert theory["theory_peak_activation_bytes"] is None
    assert held_bytes(workload) > recurrent_weight_bytes(workload)
