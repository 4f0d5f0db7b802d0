"""Adapters hand over what the packages expect: held against stand-ins that compute it plainly."""

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.backends import flash_attn, flashinfer, prepare, xformers  # noqa: E402
from attnprof.backends.masks import allowed  # noqa: E402
from attnprof.errors import UnsupportedError  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.op import build_layers  # noqa: E402
from attnprof.workloads.reference import held_against_reference  # noqa: E402

CPU = torch.device("cpu")
CASES = [
    pytest.param({"variant": "full"}, id="full"),
    pytest.param({"variant": "causal"}, id="causal"),
    pytest.param({"variant": "sliding", "window_len": 5}, id="sliding"),
]


def plain(q: Any, k: Any, v: Any, *, causal: bool, left: int) -> Any:
    """Of ``[batch, heads, len, width]``; queries are the last positions; -1 is no window."""
    q_len, kv_len = q.shape[2], k.shape[2]
    shape: dict[str, Any] = {"q_len": q_len, "kv_len": kv_len, "backend": "eager"}
    if not causal:
        workload = Workload(variant="full", **shape)
    elif left < 0:
        workload = Workload(variant="causal", **shape)
    else:
        workload = Workload(variant="sliding", window_len=left + 1, **shape)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed(workload, CPU), enable_gqa=q.shape[1] != k.shape[1]
    )


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def agrees(module: Any, workload: Workload) -> bool:
    layer = build_layers(workload, CPU, 1, held_len=workload.kv_len - 1)[0]
    k, v = layer.keys_and_values()
    output = module.prepare(workload, CPU).attend(layer.q, k, v)
    return held_against_reference(workload, layer.q, k, v, output, seed=1).passed


def prefill_and_decode(backend: str, case: dict[str, Any], batch_size: int) -> list[Workload]:
    shape: dict[str, Any] = {
        "num_q_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "batch_size": batch_size,
    }
    decode: dict[str, Any] = {"phase": "decode", "q_len": 1, "kv_len": 20, "kv_cache": "static"}
    found = [Workload(backend=backend, q_len=20, kv_len=20, **shape, **case)]
    if case["variant"] != "sliding":  # a decode in a window is given the window alone
        found.append(Workload(backend=backend, **decode, **shape, **case))
    return found


@pytest.mark.parametrize("case", CASES)
def test_flash_attn_takes_heads_after_lengths(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    def flash_attn_func(q: Any, k: Any, v: Any, *, causal: bool, window_size: Any) -> Any:
        heads_first = (t.transpose(1, 2) for t in (q, k, v))
        return plain(*heads_first, causal=causal, left=window_size[0]).transpose(1, 2)

    install(monkeypatch, "flash_attn", flash_attn_func=flash_attn_func)
    for workload in prefill_and_decode("flash-attn", case, batch_size=3):
        assert agrees(flash_attn, workload)


@pytest.mark.parametrize("case", CASES)
def test_flashinfer_takes_one_sequence(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    def prefill(q: Any, k: Any, v: Any, *, causal: bool, kv_layout: str, window_left: int) -> Any:
        assert kv_layout == "HND"
        out = plain(q.transpose(0, 1)[None], k[None], v[None], causal=causal, left=window_left)
        return out[0].transpose(0, 1)

    def decode(q: Any, k: Any, v: Any, *, kv_layout: str) -> Any:
        assert kv_layout == "HND"
        return plain(q[None, :, None], k[None], v[None], causal=False, left=-1)[0, :, 0]

    install(
        monkeypatch, "flashinfer",
        single_prefill_with_kv_cache=prefill, single_decode_with_kv_cache=decode,
    )  # fmt: skip
    for workload in prefill_and_decode("flashinfer", case, batch_size=1):
        assert agrees(flashinfer, workload)


def test_flashinfer_refuses_a_batch() -> None:
    workload = Workload(backend="flashinfer", dtype="float16", q_len=8, kv_len=8, batch_size=2)
    with pytest.raises(UnsupportedError, match="one sequence, not 2"):
        flashinfer.prepare(workload, CPU)


@pytest.mark.parametrize("num_kv_heads", [2, 6])
@pytest.mark.parametrize("case", CASES)
def test_xformers_shares_heads_by_an_axis_of_their_own(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any], num_kv_heads: int
) -> None:
    def local(window: int) -> tuple[bool, int]:
        return True, window - 1

    def attention(q: Any, k: Any, v: Any, *, attn_bias: tuple[bool, int] | None) -> Any:
        causal, left = attn_bias or (False, -1)
        if q.dim() == 5:
            assert k.stride(3) == v.stride(3) == 0
            q, k, v = (t.flatten(2, 3) for t in (q, k, v))
        heads_first = (t.transpose(1, 2) for t in (q, k, v))
        out = plain(*heads_first, causal=causal, left=left).transpose(1, 2)
        return out if num_kv_heads == 6 else out.unflatten(2, (num_kv_heads, -1))

    install(monkeypatch, "xformers")
    install(monkeypatch, "xformers.ops", memory_efficient_attention=attention)
    install(monkeypatch, "xformers.ops.fmha")
    install(
        monkeypatch, "xformers.ops.fmha.attn_bias",
        LowerTriangularFromBottomRightMask=lambda: (True, -1),
        LowerTriangularFromBottomRightLocalAttentionMask=local,
    )  # fmt: skip
    shape: dict[str, Any] = {
        "num_q_heads": 6,
        "num_kv_heads": num_kv_heads,
        "head_dim": 16,
        "batch_size": 3,
    }
    assert agrees(xformers, Workload(backend="xformers", q_len=20, kv_len=20, **shape, **case))


def test_a_package_that_is_missing_is_named_with_its_command() -> None:
    workload = Workload(backend="flashinfer", dtype="float16", q_len=8, kv_len=8)
    with pytest.raises(UnsupportedError, match="pip install flashinfer-python"):
        prepare(workload, CPU, kind="cuda")
