"""What a scheme costs in theory is what its operators do, and what its tensors hold."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from attnprof.positions import POSITIONS  # noqa: E402
from attnprof.theory.position import (  # noqa: E402
    bias_bytes,
    position_bytes,
    position_flops,
    table_bytes,
)
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.positions import position_for  # noqa: E402

CPU = torch.device("cpu")


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's are
    """FLOP of products and sums by element, and of matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mul", "add") and isinstance(args[1], torch.Tensor):
            self.flops += out.numel()
        elif name == "addcmul":
            self.flops += 2 * out.numel()
        elif name in ("mm", "bmm"):
            self.flops += 2 * out.numel() * args[0].shape[-1]
        return out


def called(workload: Workload, position: Any) -> None:
    """What a call does about positions, with scores that are there already."""
    w, first = workload, workload.kv_len - workload.q_len
    if POSITIONS[w.position].acts == "embeddings":
        position.embed(torch.zeros(w.batch_size, w.q_len, w.hidden_size), first)
        return
    for _ in range(w.num_layers):
        q = torch.zeros(w.batch_size, w.num_q_heads, w.q_len, w.head_dim)
        position.rotate(q, first)
        position.rotate(torch.zeros(w.batch_size, w.num_kv_heads, w.q_len, w.head_dim), first)
        bias = position.query_bias(q, first, 0, w.kv_len)
        if bias is None:
            bias = position.constant_bias(first, w.q_len, 0, w.kv_len)
        if bias is not None:
            torch.zeros(w.batch_size, w.num_q_heads, w.q_len, w.kv_len) + bias


@st.composite
def workloads(draw: st.DrawFn, position: str) -> Workload:
    kv_len, q_len = draw(st.integers(2, 20)), 1
    is_decode = draw(st.booleans())
    num_kv_heads = draw(st.sampled_from([1, 2]))
    return Workload(
        backend="eager", position=position, phase="decode" if is_decode else "prefill",
        q_len=q_len if is_decode else kv_len, kv_len=kv_len, batch_size=draw(st.integers(1, 3)),
        num_q_heads=4, num_kv_heads=num_kv_heads, head_dim=8, num_layers=draw(st.integers(1, 2)),
        kv_cache="static" if is_decode else "none",
        scope="layer" if POSITIONS[position].acts == "embeddings" else "op",
    )  # fmt: skip


@pytest.mark.parametrize("name", POSITIONS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_flop_are_those_that_the_operators_do(name: str, data: st.DataObject) -> None:
    workload = data.draw(workloads(name))
    position = position_for(workload, CPU, torch.float32, 0)
    called(workload, position)  # biases are made and looked up once, and not counted
    counted = Counted()
    if POSITIONS[name].acts == "scores" and name != "shaw":
        bias = position.constant_bias(0, workload.q_len, 0, workload.kv_len)
        scores = torch.zeros(workload.batch_size, 4, workload.q_len, workload.kv_len)
        with counted:
            for _ in range(workload.num_layers):
                scores + bias
    else:
        with counted:
            called(workload, position)
    assert position_flops(workload) == counted.flops


@pytest.mark.parametrize("name", POSITIONS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_bytes_held_are_those_of_the_tensors(name: str, data: st.DataObject) -> None:
    workload = data.draw(workloads(name))
    position = position_for(workload, CPU, torch.float32, 0)
    bias = position.constant_bias(
        workload.kv_len - workload.q_len, workload.q_len, 0, workload.kv_len
    )
    assert table_bytes(workload) == position.table_bytes
    assert bias_bytes(workload) == (0 if bias is None else bias.nbytes)


def test_a_window_cuts_the_bias_of_a_decode() -> None:
    sizes: dict[str, Any] = {"q_len": 1, "kv_len": 512, "phase": "decode", "kv_cache": "static"}
    whole = Workload(backend="eager", position="t5", **sizes)
    window = Workload(backend="eager", position="t5", variant="sliding", window_len=64, **sizes)
    assert bias_bytes(window) * 8 == bias_bytes(whole)
    assert position_flops(window) * 8 == position_flops(whole)


def test_a_latent_has_one_key_that_turns_for_all_heads() -> None:
    workload = Workload(
        backend="eager", position="rope", q_len=10, kv_len=10, head_dim=24, num_q_heads=16,
        num_kv_heads=16, mla="expanded", kv_lora_rank=32, rope_head_dim=8,
    )  # fmt: skip
    assert position_flops(workload) == 3 * 10 * (16 + 1) * 8


@pytest.mark.parametrize("name", POSITIONS)
def test_a_mixed_step_costs_a_decode_and_the_prefill_of_its_prompt(name: str) -> None:
    scope = "layer" if POSITIONS[name].acts == "embeddings" else "op"
    sizes: dict[str, Any] = {
        "backend": "eager", "position": name, "kv_len": 48, "scope": scope, "num_layers": 2,
    }  # fmt: skip
    decode = Workload(phase="decode", q_len=1, kv_cache="paged", batch_size=3, **sizes)
    mixed = Workload(
        phase="mixed", q_len=1, kv_cache="paged", batch_size=3, prefill_len=20, **sizes
    )
    prompt = Workload(q_len=20, **(sizes | {"kv_len": 20}))
    assert position_flops(mixed) == position_flops(decode) + position_flops(prompt)
    assert position_bytes(mixed) == position_bytes(decode) + position_bytes(prompt)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, 0, id="none"),
        # 10 tokens of 2 queries and a key of 8 elements, in and out; 10 rows of cosines and sines.
        pytest.param({"position": "rope"}, (2 * 10 * 3 * 8 + 2 * 10 * 8) * 2, id="rope"),
        pytest.param({"position": "rope-partial"}, (2 * 10 * 3 + 2 * 10) * 2 * 2, id="a quarter"),
        pytest.param({"position": "alibi"}, 2 * 10 * 10 * 2, id="alibi: a bias, read once"),
        pytest.param({"position": "t5", "num_layers": 3}, 3 * 2 * 10 * 10 * 2, id="t5, 3 layers"),
        pytest.param({"position": "shaw"}, 2 * 10 * (33 + 10) * 2 * 2, id="shaw"),
        pytest.param(
            {"position": "learned", "scope": "layer"}, (2 * 10 * 16 + 10 * 16) * 2, id="learned"
        ),
    ],
)
def test_bytes_moved_are_those_counted_by_hand(given: dict[str, Any], expected: int) -> None:
    sizes: dict[str, Any] = {"q_len": 10, "kv_len": 10, "num_q_heads": 2, "num_kv_heads": 1}
    workload = Workload(backend="eager", dtype="bfloat16", head_dim=8, **sizes, **given)
    assert position_bytes(workload) == expected
