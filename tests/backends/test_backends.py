"""Each backend agrees with float64 and with eager, per variant and dtype; a wrong one is caught."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.backends.support import BACKENDS  # noqa: E402
from attnprof.errors import UnsupportedError  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.op import AttentionOp, build_layers  # noqa: E402
from attnprof.workloads.reference import held_against_reference  # noqa: E402

CPU = torch.device("cpu")
DTYPES = ("float64", "float32", "bfloat16", "float16")
VARIANTS = ("full", "causal", "sliding")
KERNELS = {
    "eager": ("aten::bmm", "aten::_softmax"),
    "math": ("aten::_scaled_dot_product_attention_math", "aten::bmm"),
    "flash": ("aten::_scaled_dot_product_flash_attention_for_cpu",),
}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    num_kv_heads = draw(st.integers(1, 3))
    return {
        "batch_size": draw(st.integers(1, 3)),
        "num_kv_heads": num_kv_heads,
        "num_q_heads": num_kv_heads * draw(st.integers(1, 4)),
        "head_dim": draw(st.sampled_from([8, 16, 40, 64])),
        "kv_len": draw(st.integers(1, 80)),
        "num_layers": draw(st.integers(1, 2)),
    }


def prefill(backend: str, variant: str, shape: dict[str, Any], **kwargs: Any) -> Workload:
    window_len = kwargs.pop("window_len", 7 if variant == "sliding" else None)
    return Workload(
        backend=backend, variant=variant, window_len=window_len, q_len=shape["kv_len"],
        **shape, **kwargs,
    )  # fmt: skip


def output_of(workload: Workload) -> Any:
    op = AttentionOp(workload, CPU, seed=3)
    with op.active():
        return op()


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(shape=shapes())
@settings(max_examples=12, deadline=None)
def test_a_prefill_agrees_with_the_reference_and_with_eager(
    backend: str, variant: str, dtype: str, shape: dict[str, Any]
) -> None:
    workload = prefill(backend, variant, shape, dtype=dtype)
    check = AttentionOp(workload, CPU, seed=3).check()
    assert check.passed, check
    assert check.rows == shape["batch_size"] * shape["num_q_heads"] * shape["kv_len"]
    eager = output_of(prefill("eager", variant, shape, dtype=dtype))
    tolerance = 40 * torch.finfo(eager.dtype).eps
    torch.testing.assert_close(output_of(workload), eager, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
@given(shape=shapes(), dtype=st.sampled_from(DTYPES))
@settings(max_examples=8, deadline=None)
def test_a_decode_agrees_with_the_reference_and_repeats_itself(
    backend: str, variant: str, kv_cache: str, dtype: str, shape: dict[str, Any]
) -> None:
    workload = Workload(
        backend=backend, phase="decode", q_len=1, kv_cache=kv_cache, dtype=dtype, variant=variant,
        window_len=7 if variant == "sliding" else None, **shape,
    )  # fmt: skip
    op = AttentionOp(workload, CPU, seed=3)
    check = op.check()
    assert check.passed, check
    with op.active():
        assert torch.equal(op(), op())


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
def test_a_cache_of_another_dtype_is_raised_for_the_arithmetic(
    kv_cache: str, kv_dtype: str
) -> None:
    workload = Workload(
        backend="flash", phase="decode", q_len=1, kv_len=50, kv_cache=kv_cache, kv_dtype=kv_dtype
    )
    op = AttentionOp(workload, CPU, seed=3)
    assert op.check().passed
    tokens = 64 if kv_cache == "paged" else 50
    a_head = 64 * 2 if kv_dtype == "bfloat16" else 64 + 4  # and a scale
    assert op.kv_bytes == 2 * 8 * tokens * a_head


@pytest.mark.parametrize("backend", KERNELS)
def test_the_kernel_that_runs_is_the_one_that_was_named(backend: str) -> None:
    op = AttentionOp(Workload(backend=backend, q_len=64, kv_len=64), CPU, seed=3)
    assert op.kernels[: len(KERNELS[backend])] == KERNELS[backend]


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - set(KERNELS) - {"flex"}))
def test_what_has_no_kernel_here_is_refused(backend: str) -> None:
    workload = Workload(backend=backend, q_len=64, kv_len=64)
    with pytest.raises(UnsupportedError, match=f"{backend} does not run on cpu"):
        AttentionOp(workload, CPU, seed=3)


def test_a_fall_back_to_another_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.backends import sdpa

    monkeypatch.setitem(sdpa.PINS, "flash", torch.nn.attention.SDPBackend.MATH)
    op = AttentionOp(Workload(backend="flash", q_len=64, kv_len=64), CPU, seed=3)
    with pytest.raises(UnsupportedError, match="flash was asked for"):
        op.check()


def test_torch_saying_no_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.backends import sdpa

    monkeypatch.setitem(sdpa.PINS, "flash", torch.nn.attention.SDPBackend.CUDNN_ATTENTION)
    op = AttentionOp(Workload(backend="flash", q_len=64, kv_len=64), CPU, seed=3)
    with pytest.raises(UnsupportedError, match="No viable backend"):
        op.check()


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_flex_agrees_with_the_reference(variant: str) -> None:
    shape = {"kv_len": 200, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    op = AttentionOp(prefill("flex", variant, shape), CPU, seed=3)
    assert op.check().passed
    assert op.prepare_s > 0


def test_flex_is_not_run_uncompiled() -> None:
    dynamo = pytest.importorskip("torch._dynamo")
    workload = Workload(backend="flex", q_len=64, kv_len=64)
    with dynamo.config.patch(disable=True), pytest.raises(UnsupportedError, match="switched off"):
        AttentionOp(workload, CPU, seed=3)


def wrong(workload: Workload, mistake: str) -> tuple[Any, Any, Any, Any]:
    """q, k, v and an output that is exact but for one mistake, rounded once to the dtype."""
    layer = build_layers(workload, CPU, 3, held_len=0)[0]
    q, k, v = (tensor.double() for tensor in (layer.q, layer.k, layer.v))
    group = workload.num_q_heads // workload.num_kv_heads
    if mistake == "heads":
        k, v = (tensor.repeat(1, group, 1, 1) for tensor in (k, v))
    else:
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
    scale = workload.head_dim ** (-1.0 if mistake == "scale" else -0.5)
    kv_pos = torch.arange(workload.kv_len)
    q_pos = kv_pos[:, None] + {"sees the next": 1, "misses its own": -1}.get(mistake, 0)
    allowed = workload.mask.allows(q_pos, kv_pos[None, :])
    scores = (q @ k.mT * scale).masked_fill(~allowed, -math.inf)
    probs = torch.softmax(scores, dim=-1).nan_to_num()
    if mistake == "not normalised":
        probs = probs * 1.05
    return layer.q, layer.k, layer.v, (probs @ v).to(layer.q.dtype)


@pytest.mark.parametrize("kv_len", [64, 1500])
@pytest.mark.parametrize("variant", ["causal", "sliding"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "mistake", [None, "sees the next", "misses its own", "scale", "heads", "not normalised"]
)
def test_a_wrong_kernel_fails_the_check(
    mistake: str | None, dtype: str, variant: str, kv_len: int
) -> None:
    shape = {"kv_len": kv_len, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    workload = prefill("eager", variant, shape, dtype=dtype)
    tensors = wrong(workload, mistake or "none")
    check = held_against_reference(workload, *tensors, seed=3)
    assert check.passed is (mistake is None), check


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_window_that_is_off_by_one_fails_the_check(dtype: str) -> None:
    shape = {"kv_len": 1500, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 32}
    workload = prefill("eager", "sliding", shape, dtype=dtype, window_len=1000)
    q, k, v, _ = wrong(workload, "none")
    longer = prefill("eager", "sliding", shape, dtype=dtype, window_len=1001)
    *_, output = wrong(longer, "none")
    assert not held_against_reference(workload, q, k, v, output, seed=3).passed


def test_an_output_of_nothing_fails_the_check() -> None:
    workload = Workload(backend="eager", q_len=64, kv_len=64)
    q, k, v, output = wrong(workload, "none")
    output[0, -1, -1, 3] = math.nan
    check = held_against_reference(workload, q, k, v, output, seed=3)
    assert not check.passed
    assert check.max_abs_error is None  # nothing finite to say


def test_inputs_are_noise_of_the_seed_and_never_repeat_a_row() -> None:
    workload = Workload(backend="eager", q_len=6000, kv_len=6000)
    layer = build_layers(workload, CPU, 1, held_len=0)[0]
    same = build_layers(workload, CPU, 1, held_len=0)[0]
    other = build_layers(workload, CPU, 2, held_len=0)[0]
    assert torch.equal(layer.k, same.k)
    assert not torch.equal(layer.k, other.k)
    rows = layer.k.reshape(-1, 64)
    assert len(torch.unique(rows[:, :2], dim=0)) == len(rows)
    assert abs(float(layer.k.mean())) < 0.01
    assert float(layer.k.std()) == pytest.approx(1, abs=0.01)


def test_layers_own_their_tensors() -> None:
    workload = Workload(backend="eager", q_len=8, kv_len=8, num_layers=3)
    layers = build_layers(workload, CPU, 1, held_len=0)
    tensors = [t for layer in layers for t in (layer.q, layer.k, layer.v)]
    assert len({t.data_ptr() for t in tensors}) == 9
    assert not torch.equal(layers[0].k, layers[1].k)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_sinks_of_flex_enter_the_sum_of_each_row() -> None:
    """The kernel that is compiled on a GPU alone, run as it is."""
    from attnprof.backends import flex

    workload = Workload(
        backend="flex", q_len=20, kv_len=20, num_q_heads=4, num_kv_heads=2, head_dim=16,
        sink_logits=True, softcap=2.0,
    )  # fmt: skip
    layer = build_layers(workload, CPU, 3, held_len=0)[0]
    kernel = flex._kernel(workload, flex._block_mask(workload, CPU), workload.head_dim**-0.5)
    output = kernel(layer.q, layer.k, layer.v, None, layer.sinks)
    given = (layer.q, layer.k, layer.v, output)
    assert held_against_reference(workload, *given, seed=3, sinks=layer.sinks).passed
    assert not held_against_reference(workload, *given, seed=3).passed


def test_a_kernel_without_masks_is_told_of_a_triangle_that_ends_at_the_last_key() -> None:
    from torch.nn.attention.bias import CausalBias

    from attnprof.backends import sdpa

    workload = Workload(
        backend="flash", phase="verify", dtype="float16", q_len=3, kv_len=20, kv_cache="static",
        num_q_heads=4, num_kv_heads=2, head_dim=16,
    )  # fmt: skip
    attention = sdpa.prepare(workload, torch.device("cuda"), scale=0.25, bias=None)
    layer = build_layers(workload, CPU, 3, held_len=17)[0]
    pair = layer.keys_and_values()
    assert isinstance(attention.attend.keywords["mask"], CausalBias)  # type: ignore[attr-defined]
    output = attention.attend(layer.q, *pair)
    assert held_against_reference(workload, layer.q, *pair, output, seed=3).passed
