"""Adapters hand over what the packages expect: held against stand-ins that compute it plainly."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.backends import (  # noqa: E402
    flash_attn,
    flashinfer,
    prepare,
    unsupported_reason,
    xformers,
)
from attnprof.errors import UnsupportedError  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.op import build_layers, held_len, visible  # noqa: E402
from attnprof.workloads.reference import held_against_reference  # noqa: E402

CPU = torch.device("cpu")
CASES = [
    pytest.param({"variant": "full"}, id="full"),
    pytest.param({"variant": "causal"}, id="causal"),
    pytest.param({"variant": "sliding", "window_len": 5}, id="sliding"),
]
CAPPED = [*CASES, pytest.param({"variant": "causal", "softcap": 1.5}, id="softcap")]


def plain(
    q: Any, k: Any, v: Any, *, causal: bool, left: int, scale: float, softcap: float | None = None,
    mask: Any = None,
) -> Any:  # fmt: skip
    """Of ``[batch, heads, len, width]``; queries are the last positions; -1 is no window."""
    q_len, kv_len = q.shape[2], k.shape[2]
    kv_pos = torch.arange(kv_len)
    q_pos = kv_pos[kv_len - q_len :, None]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool) if mask is None else mask
    if causal:
        seen = seen & (kv_pos <= q_pos)
    if left >= 0:
        seen = seen & (q_pos - kv_pos <= left)
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return probs @ v.repeat_interleave(group, 1)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def agrees(module: Any, workload: Workload) -> bool:
    layer = build_layers(workload, CPU, 1, held_len(workload))[0]
    k, v = visible(workload, layer.keys_and_values())
    scale = workload.head_dim**-0.5
    output = module.prepare(workload, CPU, scale=scale, bias=None).attend(layer.q, k, v)
    return held_against_reference(workload, layer.q, k, v, output, seed=1).passed


def calls(backend: str, case: dict[str, Any], batch_size: int) -> list[Workload]:
    """A prefill, a step of a few tokens after cached ones, and a decode."""
    shape: dict[str, Any] = {
        "backend": backend,
        "num_q_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "batch_size": batch_size,
        "kv_len": 20,
    }
    found = [Workload(q_len=20, **shape, **case)]
    for phase, q_len in (("verify", 3), ("decode", 1)):
        found.append(Workload(phase=phase, q_len=q_len, kv_cache="static", **shape, **case))
    return found


@pytest.mark.parametrize("case", CAPPED)
def test_flash_attn_takes_heads_after_lengths(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    def flash_attn_func(
        q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, window_size: Any,
        softcap: float,
    ) -> Any:  # fmt: skip
        heads_first = (t.transpose(1, 2) for t in (q, k, v))
        out = plain(
            *heads_first, causal=causal, left=window_size[0], scale=softmax_scale, softcap=softcap
        )
        return out.transpose(1, 2)

    install(monkeypatch, "flash_attn", flash_attn_func=flash_attn_func)
    for workload in calls("flash-attn", case, batch_size=3):
        assert unsupported_reason(replace(workload, dtype="float16"), "cuda") is None
        assert agrees(flash_attn, workload)


@pytest.mark.parametrize(
    "case",
    [
        *CAPPED,
        pytest.param({"variant": "prefix-lm", "prefix_len": 7}, id="prefix-lm"),
        pytest.param({"variant": "sink", "window_len": 5, "sink_len": 2}, id="sink"),
    ],
)
def test_flashinfer_takes_one_sequence(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    def prefill(
        q: Any, k: Any, v: Any, *, custom_mask: Any, causal: bool, kv_layout: str,
        sm_scale: float, window_left: int, logits_soft_cap: float | None,
    ) -> Any:  # fmt: skip
        assert kv_layout == "HND"
        out = plain(
            q.transpose(0, 1)[None], k[None], v[None], causal=causal, left=window_left,
            scale=sm_scale, softcap=logits_soft_cap, mask=custom_mask,
        )  # fmt: skip
        return out[0].transpose(0, 1)

    def decode(
        q: Any, k: Any, v: Any, *, kv_layout: str, sm_scale: float, logits_soft_cap: float | None
    ) -> Any:
        assert kv_layout == "HND"
        one = plain(
            q[None, :, None], k[None], v[None], causal=False, left=-1, scale=sm_scale,
            softcap=logits_soft_cap,
        )  # fmt: skip
        return one[0, :, 0]

    install(
        monkeypatch, "flashinfer",
        single_prefill_with_kv_cache=prefill, single_decode_with_kv_cache=decode,
    )  # fmt: skip
    for workload in calls("flashinfer", case, batch_size=1):
        assert unsupported_reason(replace(workload, dtype="float16"), "cuda") is None
        assert agrees(flashinfer, workload)


def test_flashinfer_refuses_a_batch() -> None:
    workload = Workload(backend="flashinfer", dtype="float16", q_len=8, kv_len=8, batch_size=2)
    with pytest.raises(UnsupportedError, match="one sequence, not 2"):
        flashinfer.prepare(workload, CPU, scale=1.0, bias=None)


@pytest.mark.parametrize("num_kv_heads", [2, 6])
@pytest.mark.parametrize("case", CASES)
def test_xformers_shares_heads_by_an_axis_of_their_own(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any], num_kv_heads: int
) -> None:
    def local(window: int) -> tuple[bool, int]:
        return True, window - 1

    def attention(
        q: Any, k: Any, v: Any, *, attn_bias: tuple[bool, int] | None, scale: float
    ) -> Any:
        causal, left = attn_bias or (False, -1)
        if q.dim() == 5:
            assert k.stride(3) == v.stride(3) == 0
            q, k, v = (t.flatten(2, 3) for t in (q, k, v))
        heads_first = (t.transpose(1, 2) for t in (q, k, v))
        out = plain(*heads_first, causal=causal, left=left, scale=scale).transpose(1, 2)
        return out if num_kv_heads == 6 else out.unflatten(2, (num_kv_heads, -1))

    install(monkeypatch, "xformers")
    install(monkeypatch, "xformers.ops", memory_efficient_attention=attention)
    install(monkeypatch, "xformers.ops.fmha")
    install(
        monkeypatch, "xformers.ops.fmha.attn_bias",
        LowerTriangularFromBottomRightMask=lambda: (True, -1),
        LowerTriangularFromBottomRightLocalAttentionMask=local,
    )  # fmt: skip
    for workload in calls("xformers", case, batch_size=3):
        workload = replace(workload, num_kv_heads=num_kv_heads)
        assert unsupported_reason(workload, "cuda") is None
        assert agrees(xformers, workload)


def test_a_package_that_is_missing_is_named_with_its_command() -> None:
    workload = Workload(backend="flashinfer", dtype="float16", q_len=8, kv_len=8)
    with pytest.raises(UnsupportedError, match="pip install flashinfer-python"):
        prepare(workload, CPU, kind="cuda")
