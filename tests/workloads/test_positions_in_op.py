"""Attention with positions agrees with float64, and with positions that are wrong it does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.positions import POSITIONS  # noqa: E402
from attnprof.theory.memory import peak_activation_bytes  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.op import AttentionOp  # noqa: E402
from attnprof.workloads.positions import Position  # noqa: E402

CPU = torch.device("cpu")
SCHEMES = [name for name, scheme in POSITIONS.items() if scheme.acts in ("rotation", "scores")]
PREFILL = Workload(backend="eager", q_len=24, kv_len=24, num_q_heads=4, num_kv_heads=2, head_dim=16)
DECODE = replace(PREFILL, phase="decode", q_len=1, kv_cache="contiguous")


class Shifted(Position):
    """A scheme that thinks its queries, but not its keys, one token further on."""

    def __init__(self, right: Position) -> None:
        self.right = right

    def rotate(self, x: Any, first: int) -> Any:
        return self.right.rotate(x, first + (x.shape[1] == PREFILL.num_q_heads))

    def query_bias(self, q: Any, q_first: int, *keys: int) -> Any:
        return self.right.query_bias(q, q_first + 1, *keys)


class Forgotten(Position):
    """A scheme that does nothing."""

    def __init__(self, right: Position) -> None:
        self.right = right


def op_of(workload: Workload, name: str, dtype: str = "float32") -> AttentionOp:
    return AttentionOp(replace(workload, position=name, dtype=dtype), CPU, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("workload", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", SCHEMES)
def test_attention_where_tokens_are_agrees_with_float64(
    name: str, workload: Workload, dtype: str
) -> None:
    assert op_of(workload, name, dtype).check().passed


@pytest.mark.parametrize("wrong", [Shifted, Forgotten])
@pytest.mark.parametrize(
    ("workload", "dtype"),
    [
        pytest.param(PREFILL, "float32", id="prefill"),
        pytest.param(PREFILL, "bfloat16", id="prefill in bfloat16"),
        pytest.param(DECODE, "float32", id="decode"),  # one row of bfloat16 tells too little
    ],
)
@pytest.mark.parametrize("name", [n for n in SCHEMES if n not in ("alibi", "t5")])
def test_positions_that_are_wrong_are_caught(
    name: str, workload: Workload, dtype: str, wrong: Callable[[Position], Any]
) -> None:
    op = op_of(workload, name, dtype)
    right = op.call.position
    op.call.position = wrong(right)
    output = op()
    op.call.position = right
    with torch.inference_mode():
        assert not op.compared(output).passed


@pytest.mark.parametrize("workload", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_biases_of_a_scheme_that_is_not_asked_for_are_caught(name: str, workload: Workload) -> None:
    right, other = op_of(workload, name), op_of(workload, "alibi" if name == "t5" else "t5")
    with torch.inference_mode():
        assert not right.compared(other()).passed
        assert not right.compared(op_of(workload, "none")()).passed


@pytest.mark.parametrize("name", ["rope", "rope-yarn"])
def test_a_table_that_is_wrong_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.workloads.positions.rotary import Rotary

    op, right = op_of(PREFILL, name), Rotary.tables

    def other_sign(self: Rotary, first: int, tokens: int) -> tuple[Any, Any]:
        cos, sin = right(self, first, tokens)
        return cos, sin.abs()

    monkeypatch.setattr(Rotary, "tables", other_sign)
    output = op()
    with torch.inference_mode():
        assert not op.compared(output).passed


@pytest.mark.parametrize("kv_cache", ["none", "contiguous", "static"])
@pytest.mark.parametrize("backend", ["eager", "flash"])
@pytest.mark.parametrize("num_kv_heads", [1, 4])
@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "shaw"])
def test_the_most_that_a_call_holds_is_that_of_theory(
    name: str, num_kv_heads: int, backend: str, kv_cache: str
) -> None:
    phase = "prefill" if kv_cache == "none" else "decode"
    workload = Workload(
        backend=backend, phase=phase, q_len=200 if phase == "prefill" else 1, kv_len=200,
        num_q_heads=4, num_kv_heads=num_kv_heads, head_dim=64, position=name, kv_cache=kv_cache,
    )  # fmt: skip
    threads = torch.get_num_threads()
    expected = peak_activation_bytes(workload, "cpu", threads)
    assert expected is not None
    assert AttentionOp(workload, CPU, seed=0).profile.peak_bytes == pytest.approx(expected, abs=64)


def test_what_shaw_holds_is_not_known() -> None:
    assert peak_activation_bytes(replace(PREFILL, position="shaw"), "cpu", 1) is None
