"""What a dtype is to torch, what is multiplied in it, and what storing weights costs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from attnprof.backends.support import unsupported_reason  # noqa: E402
from attnprof.dtypes import DTYPES, dtype_named  # noqa: E402
from attnprof.errors import UnsupportedError  # noqa: E402
from attnprof.theory.recurrent import recurrent_weight_bytes  # noqa: E402
from attnprof.theory.weights import STORED_DTYPES, linear_bytes  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402
from attnprof.workloads.precision import (  # noqa: E402
    effective_weight,
    held_weight_bytes,
    multiplying,
    quantize_weights,
    rms_error,
    torch_dtype,
    unit_roundoff,
)

pytestmark = pytest.mark.torch

CUDA = torch.device("cuda")
MOST_LOST = {"int8": 0.006, "float8_e4m3fn": 0.03, "int4": 0.08}  # of normal weights, as a share


def linear_layer(workload_dtype: str = "float32", **more: Any) -> Workload:
    sizes = {"num_q_heads": 2, "num_kv_heads": 1, "head_dim": 32} | more
    return Workload(
        backend="eager", scope="layer", mixer="linear", q_len=70, kv_len=70, dtype=workload_dtype,
        **sizes,
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in ("tf32", "int4")])
def test_torch_has_every_dtype_in_its_size(name: str) -> None:
    assert torch_dtype(name).itemsize == dtype_named(name).bytes


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_a_unit_roundoff_is_that_of_torch(name: str) -> None:
    assert unit_roundoff(name) == torch.finfo(torch_dtype(name)).eps / 2


def test_tf32_lies_in_memory_as_float32_and_rounds_as_float16() -> None:
    assert torch_dtype("tf32") == torch.float32
    assert unit_roundoff("tf32") == unit_roundoff("float16")


@pytest.mark.parametrize(("dtype", "wanted"), [("tf32", "tf32"), ("float32", "ieee")])
def test_float32_is_multiplied_as_asked_and_then_as_before(dtype: str, wanted: str) -> None:
    """The setting can be read without a GPU; cuDNN's RNNs would take tf32 by themselves."""
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.rnn]
    before = [setting.fp32_precision for setting in settings]
    with pytest.raises(KeyError), multiplying(dtype, CUDA):
        assert [setting.fp32_precision for setting in settings] == [wanted, wanted]
        raise KeyError
    assert [setting.fp32_precision for setting in settings] == before


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "cuda"), ("float32", "cpu")])
def test_other_dtypes_and_devices_leave_the_setting_alone(dtype: str, kind: str) -> None:
    setting: Any = torch.backends.cuda.matmul
    before = setting.fp32_precision
    with multiplying(dtype, torch.device(kind)):
        assert setting.fp32_precision == before


def test_tf32_is_of_cuda_alone() -> None:
    workload = Workload(backend="eager", q_len=8, kv_len=8, dtype="tf32")
    assert unsupported_reason(workload, "cuda") is None
    for kind in ("cpu", "mps", "xpu", "rocm"):
        assert "tf32" in (unsupported_reason(workload, kind) or "")


def test_fp8_arithmetic_is_refused_with_what_to_give_instead() -> None:
    workload = Workload(backend="eager", q_len=8, kv_len=8, dtype="float8_e4m3fn")
    for kind in ("cpu", "cuda"):
        assert "kv_dtype" in (unsupported_reason(workload, kind) or "")


@given(share=st.floats(1e-6, 10), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32))
def test_an_error_is_a_share_of_what_it_is_an_error_of(
    share: float, scale: float, seed: int
) -> None:
    noise = torch.Generator().manual_seed(seed)
    reference = scale * torch.randn(50, dtype=torch.float64, generator=noise)
    assert rms_error(reference * (1 + share), reference) == pytest.approx(share, rel=1e-6)
    assert rms_error(reference, reference) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stored", STORED_DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_stored_weights_are_multiplied_as_what_they_stand_for(
    dtype: str, stored: str, has_bias: bool
) -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 48, bias=has_bias, dtype=torch_dtype(dtype)).requires_grad_(False)
    plain = linear.weight.clone()
    quantize_weights(linear, stored)
    x = torch.randn(5, 96).to(torch_dtype(dtype))
    with torch.inference_mode():
        weight = effective_weight(linear).double()
        expected = x.double() @ weight.T + (linear.bias.double() if has_bias else 0)
        assert rms_error(linear(x), expected) < 4 * unit_roundoff(dtype)
    lost = rms_error(weight, plain)
    assert MOST_LOST[stored] / 4 < lost < MOST_LOST[stored]
    bias_bytes = linear.bias.nbytes if has_bias else 0
    assert held_weight_bytes(linear) == linear_bytes(48, 96, dtype, stored) + bias_bytes


def test_what_is_no_linear_layer_stays_as_it_is() -> None:
    pytest.importorskip("torchao")
    module = torch.nn.Sequential(torch.nn.Embedding(4, 32), torch.nn.Linear(32, 32, bias=False))
    embedding = module[0].weight
    quantize_weights(module, "int8")
    assert module[0].weight is embedding
    assert held_weight_bytes(module) == embedding.nbytes + linear_bytes(32, 32, "float32", "int8")


@pytest.mark.parametrize("stored", STORED_DTYPES)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_layer_with_stored_weights_is_right_and_says_what_they_cost(
    stored: str, phase: str
) -> None:
    pytest.importorskip("torchao")
    more: dict[str, Any] = {"phase": phase, "weight_dtype": stored}
    workload = linear_layer("bfloat16", **more)
    if phase == "decode":
        workload = Workload(**{**workload.to_json(), "q_len": 1})
    op = build_operation(workload, torch.device("cpu"), 0)
    check = op.check()
    assert check.passed, check
    assert op.weight_bytes == recurrent_weight_bytes(workload)
    plain = build_operation(
        Workload(**{**workload.to_json(), "weight_dtype": None}), torch.device("cpu"), 0
    ).check()
    assert check.rms_error is not None and plain.rms_error is not None
    assert check.rms_error > plain.rms_error


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"mixer": "lstm", "weight_dtype": "int8"}, "no linear layers", id="LSTM"),
        pytest.param({"weight_dtype": "float8_e5m2"}, "float8_e4m3fn", id="e5m2"),
        pytest.param({"weight_dtype": "int8", "dtype": "float64"}, "float64", id="float64"),
    ],
)
def test_weights_that_are_not_served_are_refused_before_anything_is_made(
    more: dict[str, Any], said: str
) -> None:
    workload = Workload(**{**linear_layer().to_json(), **more})
    assert said in (unsupported_reason(workload, "cpu") or "")


def test_int4_needs_rows_that_groups_divide() -> None:
    pytest.importorskip("torchao")
    with pytest.raises(UnsupportedError, match="32 inputs, and a layer has 40"):
        quantize_weights(torch.nn.Linear(40, 8), "int4")


@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype", "said"),
    [
        (32, 8, "int4", "16 outputs at a time on a CPU, and a layer has 8"),
        (1, 4, "int8", "a row of one input"),
    ],
)
def test_a_shape_that_torchao_does_not_store_is_refused_and_no_crash(
    inputs: int, outputs: int, dtype: str, said: str
) -> None:
    pytest.importorskip("torchao")
    with pytest.raises(UnsupportedError, match=said):
        quantize_weights(torch.nn.Linear(inputs, outputs), dtype)


def test_without_torchao_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="pip install torchao"):
        quantize_weights(torch.nn.Linear(32, 8), "int8")
