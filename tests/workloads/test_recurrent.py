"""Layers in attention's place give what their equations say, and a wrong one is told."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from attnprof.combinations import problem  # noqa: E402
from attnprof.theory.recurrent import (  # noqa: E402
    recurrent_flops,
    recurrent_weight_bytes,
    state_bytes,
)
from attnprof.workload import Workload, checked  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402
from attnprof.workloads.recurrent import RecurrentOp  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

MIXERS = ("rnn", "lstm", "gru", "linear")
CPU = torch.device("cpu")


def layer(mixer: str, phase: str = "prefill", length: int = 70, **more: Any) -> Workload:
    sizes = {"batch_size": 2, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 8} | more
    return Workload(
        backend="eager",
        scope="layer",
        mixer=mixer,
        phase=phase,
        q_len=1 if phase == "decode" else length,
        kv_len=length,
        **sizes,
    )


def built(workload: Workload, seed: int = 0) -> RecurrentOp:
    assert problem(workload) is None
    op = build_operation(checked(workload), CPU, seed)
    assert isinstance(op, RecurrentOp)
    return op


@st.composite
def layers(draw: st.DrawFn) -> Workload:
    num_q_heads = draw(st.sampled_from([1, 2, 4]))
    phase = draw(st.sampled_from(["prefill", "decode", "train"]))
    return layer(
        draw(st.sampled_from(MIXERS)),
        phase,
        draw(st.sampled_from([1, 2, 63, 64, 65, 130])),
        dtype=draw(st.sampled_from(["float64", "float32", "bfloat16", "float16"])),
        batch_size=draw(st.sampled_from([1, 2, 5])),
        num_q_heads=num_q_heads,
        num_kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if num_q_heads % n == 0])),
        head_dim=draw(st.sampled_from([1, 3, 8])),
        v_head_dim=draw(st.sampled_from([None, 5, 16])),
        num_layers=draw(st.sampled_from([1, 2])),
        checkpointing=phase == "train" and draw(st.booleans()),
    )


@settings(max_examples=20, deadline=None)
@given(workload=layers(), seed=st.integers(0, 2**32))
def test_every_layer_agrees_with_float64_and_weighs_what_theory_says(
    workload: Workload, seed: int
) -> None:
    op = built(workload, seed)
    check = op.check()
    assert check.passed, (workload.workload_id, check)
    assert op.kv_bytes == state_bytes(workload)
    assert op.weight_bytes == recurrent_weight_bytes(workload)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(
    ("phase", "checkpointing"),
    [("prefill", False), ("decode", False), ("train", False), ("train", True)],
)
def test_flops_are_those_that_torch_counts(mixer: str, phase: str, checkpointing: bool) -> None:
    """In float64: torch's counter does not look into oneDNN's LSTM of float32."""
    workload = layer(
        mixer, phase, dtype="float64", num_kv_heads=1, num_layers=2, checkpointing=checkpointing
    )
    op = built(workload)
    with FlopCounterMode(display=False) as counter, op.active():
        op()
    by_element = 0
    if mixer == "linear" and phase == "decode":  # φ(k)vᵀ of one token is no matrix product
        by_element = 2 * 2 * 2 * 8 * 8
    assert counter.get_total_flops() + by_element == recurrent_flops(workload)


@pytest.mark.parametrize("mixer", MIXERS)
def test_tokens_one_by_one_give_what_all_at_once_give(mixer: str) -> None:
    op = built(layer(mixer, length=70, dtype="float64", num_layers=2, batch_size=1))
    x, layers = op.inputs.x, op.inputs.layers
    with torch.inference_mode():
        together, _ = layers(x, None)
        _, state = layers(x[:, :5], None)
        for i in range(5, 70):
            one, state = layers(x[:, i : i + 1], state)
            torch.testing.assert_close(one, together[:, i : i + 1])


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_call_leaves_its_state_as_it_was(mixer: str, phase: str) -> None:
    op = built(layer(mixer, phase))
    with op.active():
        assert torch.equal(op(), op())


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_state_is_as_large_after_any_number_of_tokens(mixer: str) -> None:
    sizes = {built(layer(mixer, "decode", length)).kv_bytes for length in (1, 10, 10_000)}
    assert len(sizes) == 1


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_first_token_of_a_decode_starts_from_nothing(mixer: str) -> None:
    decoded = built(layer(mixer, "decode", 1, dtype="float64"))
    assert not any(part.any() for part in decoded.inputs.state)
    with decoded.active():
        from_nothing, _ = decoded.inputs.layers(decoded.inputs.x, None)
        torch.testing.assert_close(decoded(), from_nothing)


def test_the_state_of_a_decode_is_such_as_its_tokens_leave() -> None:
    """Drawn sums have the size of real ones, so that what they cost in precision is real."""
    workload = layer("linear", "decode", 2001, num_q_heads=4, num_kv_heads=4, head_dim=16)
    drawn = built(workload).inputs.state
    noise = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, 4, 2000, 16, generator=noise) for _ in range(2))
    features = torch.nn.functional.elu(k) + 1
    real = (features.mT @ v, features.sum(2))
    for found, expected in zip(drawn, real, strict=True):
        assert found.square().mean().sqrt() == pytest.approx(
            float(expected.square().mean().sqrt()), rel=0.1
        )


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_output_that_is_one_token_late_is_told(mixer: str, dtype: str) -> None:
    op = built(layer(mixer, dtype=dtype))
    with op.active():
        late = op().roll(1, dims=1)
    assert not op.compared(late).passed


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_forgotten_state_is_told(mixer: str, dtype: str) -> None:
    op = built(layer(mixer, "decode", dtype=dtype))
    with op.active():
        forgotten, _ = op.inputs.layers(op.inputs.x, None)
    assert not op.compared(forgotten).passed


@pytest.mark.parametrize("mixer", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_two_gates_in_each_others_place_are_told(mixer: str, dtype: str, phase: str) -> None:
    op = built(layer(mixer, phase, dtype=dtype))
    width = op.workload.hidden_size

    def swapped(weight: Any) -> Any:
        parts = list(weight.split(width))
        return torch.cat([parts[1], parts[0], *parts[2:]])

    right = [weight.detach().clone() for weight in op.inputs.layers.parameters()]
    with torch.no_grad():
        for weight in op.inputs.layers.parameters():
            weight.copy_(swapped(weight))
    with op.active():
        output = op().detach().clone()
    with torch.no_grad():
        for weight, value in zip(op.inputs.layers.parameters(), right, strict=True):
            weight.copy_(value)
    assert not op.compared(output).passed


def test_a_gradient_that_lacks_the_way_through_time_is_told() -> None:
    op = built(layer("rnn", "train"))
    inputs = op.inputs
    with torch.enable_grad():
        out = torch.cat([inputs.layers(inputs.x[:, i : i + 1])[0] for i in range(70)], dim=1)
        (wrong,) = torch.autograd.grad(out, inputs.x, inputs.gradient)
    assert not op.compared(wrong).passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "fault", ["no chunk before", "a chunk sees ahead", "a token of the chunk is not seen"]
)
def test_a_wrong_chunk_is_told(dtype: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = built(layer("linear", length=130, dtype=dtype))
    if fault == "no chunk before":
        pad = torch.nn.functional.pad

        def forgetful(x: Any, widths: tuple[int, ...]) -> Any:
            padded = pad(x, widths)
            return padded * 0 if widths[-2:] == (1, 0) else padded

        monkeypatch.setattr(torch.nn.functional, "pad", forgetful)
    else:
        tril, diagonal = torch.Tensor.tril, 1 if fault == "a chunk sees ahead" else -1
        monkeypatch.setattr(torch.Tensor, "tril", lambda self: tril(self, diagonal))
    with op.active():
        output = op()
    monkeypatch.undo()
    assert not op.compared(output).passed


def test_what_is_not_finite_beyond_the_compared_tokens_is_told() -> None:
    op = built(layer("gru", length=600, head_dim=2, batch_size=1))
    with op.active():
        output = op()
    output = output.clone()
    assert op.compared(output).passed
    output[:, -1] = torch.nan
    check = op.compared(output)
    assert not check.passed
    assert check.max_abs_error is None


def test_sums_over_many_tokens_stay_in_the_range_of_float16() -> None:
    workload = layer(
        "linear", length=20_000, dtype="float16", batch_size=1, num_q_heads=1, num_kv_heads=1,
        head_dim=64,
    )  # fmt: skip
    assert built(workload).check().passed


@pytest.mark.parametrize("mixer", MIXERS)
def test_halves_cost_more_error_than_float32_and_less_than_a_tenth(mixer: str) -> None:
    errors = [built(layer(mixer, dtype=d)).check().rms_error for d in ("float32", "float16")]
    assert errors[0] is not None and errors[1] is not None
    assert errors[0] < 1e-5 < errors[1] < 0.1


def test_a_grid_of_mixers_expands_with_attention_among_them() -> None:
    from attnprof.grid import expand

    axes = {
        "mixer": "attention,rnn,lstm,gru,linear", "scope": "layer", "backend": "eager,flash",
        "seq_len": "256,512", "phase": "prefill,decode,train",
    }  # fmt: skip
    grid = expand("recurrent", {"all": axes})
    kinds = {(one.mixer, one.backend) for one in grid.workloads}
    assert kinds == {
        ("attention", "eager"), ("attention", "flash"),
        *((mixer, "eager") for mixer in MIXERS),
    }  # fmt: skip
    assert len(grid.workloads) == 6 * 2 * 3
    assert not grid.skipped


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="oneDNN has the fused LSTM")
@pytest.mark.parametrize(
    ("mixer", "kernel"), [("lstm", "aten::mkldnn_rnn_layer"), ("linear", "aten::bmm")]
)
def test_the_kernel_that_really_ran_is_named(mixer: str, kernel: str) -> None:
    assert kernel in built(layer(mixer)).kernels
