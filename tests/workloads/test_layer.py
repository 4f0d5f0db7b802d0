"""Layers and blocks without a model: whatever is claimed agrees with float64, what is wrong not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from attnprof.backends import unsupported_reason  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.positions import POSITIONS  # noqa: E402
from attnprof.theory.scopes import scope_kv_bytes, scope_weight_bytes  # noqa: E402
from attnprof.variants import VARIANTS, parameters_of  # noqa: E402
from attnprof.workload import Workload, checked  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402
from attnprof.workloads.layer import PlainKernels  # noqa: E402
from attnprof.workloads.positions import Position, Rotary  # noqa: E402
from attnprof.workloads.scopes import ScopeOperation  # noqa: E402
from attnprof.workloads.twin import TwinPlainKernels  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
CPU = torch.device("cpu")
CACHED = ("chunked-prefill", "decode", "verify", "mixed")
BLOCKS: tuple[dict[str, Any], ...] = (
    {"scope": "layer"},
    {"scope": "block", "ffn": "plain", "ffn_dim": 24},
    {"scope": "block", "ffn": "gated", "ffn_dim": 24},
    {"scope": "block", "ffn": "moe", "ffn_dim": 8, "num_experts": 4, "num_active_experts": 2},
)


def layer(**axes: Any) -> Workload:
    sizes: dict[str, Any] = {
        "backend": "eager", "scope": "layer", "q_len": 12, "kv_len": 12, "num_q_heads": 4,
        "num_kv_heads": 2, "head_dim": 8, "num_layers": 2,
    }  # fmt: skip
    return checked(Workload(**{**sizes, **axes}))


def operation(workload: Workload, seed: int = 1) -> ScopeOperation:
    op = build_operation(workload, CPU, seed)
    assert isinstance(op, ScopeOperation)
    return op


@st.composite
def workloads(draw: st.DrawFn, phase: str) -> Workload:
    """Any layer or block of that phase that makes sense."""
    kv_len = draw(st.integers(3, 24))
    cross = phase in ("prefill", "decode", "verify", "train") and draw(st.integers(0, 4)) == 0
    variant = "full" if cross else draw(st.sampled_from(sorted(VARIANTS)))
    sizes = {name: draw(st.integers(2, kv_len)) for name in parameters_of(variant)}
    q_len = {"prefill": kv_len, "train": kv_len, "decode": 1, "mixed": 1}.get(phase)
    if q_len is None or (cross and phase != "decode"):
        q_len = draw(st.integers(2, max(2, kv_len - 1)))
    group = draw(st.sampled_from([1, 2]))
    num_kv_heads = draw(st.sampled_from([1, 2]))
    caches = ("contiguous", "static", "paged", "rolling")
    cache = "cross" if cross else draw(st.sampled_from(caches)) if phase in CACHED else "none"
    axes: dict[str, Any] = {
        "phase": phase, "q_len": q_len, "kv_len": kv_len, "variant": variant, **sizes,
        "attention": "cross" if cross else "self",
        "position": "none" if cross else draw(st.sampled_from(sorted(POSITIONS))),
        "batch_size": draw(st.integers(1, 3)), "num_q_heads": group * num_kv_heads,
        "num_kv_heads": num_kv_heads, "head_dim": 8, "num_layers": draw(st.integers(1, 2)),
        "dtype": draw(st.sampled_from(["float32", "float32", "bfloat16"])),
        "backend": draw(st.sampled_from(["eager", "math", "flash"])),
        "softcap": draw(st.sampled_from([None, 5.0])), "sink_logits": draw(st.booleans()),
        "kv_cache": cache, "prefill_len": draw(st.integers(1, 9)) if phase == "mixed" else None,
        "kv_dtype": draw(st.sampled_from([None, "int8"])) if phase in CACHED else None,
        "block_tokens": 4 if cache == "paged" else None,
        "checkpointing": phase == "train" and draw(st.booleans()),
        **draw(st.sampled_from(BLOCKS)),
    }  # fmt: skip
    if not cross and draw(st.integers(0, 3)) == 0:
        axes |= {
            "num_kv_heads": axes["num_q_heads"], "mla": "expanded", "kv_lora_rank": 6,
            "rope_head_dim": 4, "v_head_dim": 6, "position": "rope", "sink_logits": False,
        }  # fmt: skip
        if phase in ("decode", "verify", "chunked-prefill") and draw(st.booleans()):
            axes |= {"mla": "absorbed", "kv_cache": "latent", "block_tokens": None}
    if axes["phase"] == "prefill" and axes["variant"] == "full" and not cross:
        axes["batch_size"], axes["min_len"] = 3, draw(st.sampled_from([None, kv_len - 1]))
    workload = checked(Workload(**axes))
    assume(problem(workload) is None and unsupported_reason(workload, "cpu") is None)
    return workload


@pytest.mark.parametrize("phase", ["prefill", "train", *CACHED])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_claimed_agrees_with_float64(phase: str, data: st.DataObject) -> None:
    workload = data.draw(workloads(phase))
    op = operation(workload, data.draw(st.integers(0, 99)))
    check = op.check()
    assert check.passed, f"{workload.workload_id}: {check}"
    assert check.rms_error is not None
    assert op.weight_bytes == scope_weight_bytes(workload)


@pytest.mark.parametrize("cache", ["contiguous", "static", "rolling", "latent", "cross"])
def test_kv_bytes_are_those_of_theory(cache: str) -> None:
    axes: dict[str, Any] = {"phase": "decode", "q_len": 1, "kv_len": 19, "batch_size": 2}
    own: dict[str, dict[str, Any]] = {
        "rolling": {"variant": "sliding", "window_len": 7},
        "latent": {"mla": "absorbed", "kv_lora_rank": 6, "rope_head_dim": 4, "num_kv_heads": 4},
        "cross": {"attention": "cross", "variant": "full"},
    }
    workload = layer(**axes, **own.get(cache, {}), kv_cache=cache)
    assert operation(workload).kv_bytes == scope_kv_bytes(workload)


def wrong_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the call, not those of its reference, see one token too few."""
    right = PlainKernels.op_workload

    def shorter(self: PlainKernels, *sizes: Any) -> Workload:
        found = right(self, *sizes)
        if isinstance(self, TwinPlainKernels):
            return found
        return replace(found, window_len=found.window_len - 1)  # type: ignore[operator]

    monkeypatch.setattr(PlainKernels, "op_workload", shorter)


def wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries are turned as the token before."""
    right = Rotary.rotate

    def earlier(self: Rotary, x: Any, first: int) -> Any:
        of_call = x.dtype != torch.float64 and x.shape[1] == 4
        return right(self, x, first - 1 if of_call and first else first)

    monkeypatch.setattr(Rotary, "rotate", earlier)


def wrong_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bias at all."""
    from attnprof.workloads.positions.biases import Alibi

    right = Alibi.constant_bias

    def nothing(self: Alibi, *sizes: int) -> Any:
        found = right(self, *sizes)
        return found if found.dtype == torch.float64 else found * 0

    monkeypatch.setattr(Alibi, "constant_bias", nothing)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("spoil", "axes"),
    [
        pytest.param(wrong_mask, {"variant": "sliding", "window_len": 4}, id="mask"),
        pytest.param(
            wrong_position,
            {"position": "rope", "phase": "verify", "q_len": 2, "kv_cache": "static"},
            id="position",
        ),
        pytest.param(wrong_bias, {"position": "alibi"}, id="bias"),
    ],
)
def test_a_wrong_mask_position_or_bias_is_caught(
    spoil: Any, axes: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = layer(**axes, dtype=dtype, num_layers=1)
    assert operation(workload).check().passed
    spoil(monkeypatch)
    assert not operation(workload).check().passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", [None, "int8"])
def test_a_cache_whose_blocks_are_in_the_wrong_order_is_caught(
    dtype: str, kv_dtype: str | None
) -> None:
    workload = layer(
        phase="decode", q_len=1, kv_len=15, kv_cache="paged", block_tokens=4, dtype=dtype,
        kv_dtype=kv_dtype, num_layers=1, position="alibi",
    )  # fmt: skip
    op = operation(workload)
    assert op.check().passed
    [segment] = op.inputs.segments
    layout = segment.caches[0].layout  # type: ignore[index]
    layout._rows = layout._rows.flip(-1)
    layout._gathered = (0, layout._rows)
    with op.active():
        output = op()
    with torch.inference_mode():
        assert not op.compared(output).passed


def test_a_token_that_the_cache_lost_is_caught() -> None:
    op = operation(layer(phase="decode", q_len=1, kv_len=15, kv_cache="static", num_layers=1))
    assert op.check().passed
    [segment] = op.inputs.segments
    for plane in segment.caches[0].layout.planes:  # type: ignore[index]
        plane[:, :, 3] = 0
    with op.active():
        output = op()
    with torch.inference_mode():
        assert not op.compared(output).passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scope", ["layer", "block"])
def test_wrong_weights_are_caught(scope: str, dtype: str) -> None:
    axes = {"ffn": "gated", "ffn_dim": 24} if scope == "block" else {}
    op = operation(layer(scope=scope, dtype=dtype, **axes))
    weight = next(op.inputs.network.parameters())
    with op.active():
        right = weight.clone()
        weight[:8] = right[8:16]  # heads of queries that are those of another
        output = op()
        weight.copy_(right)
    with torch.inference_mode():
        assert not op.compared(output).passed
        with op.active():
            assert op.compared(op()).passed


def test_a_gradient_that_is_missing_a_part_is_caught() -> None:
    op = operation(layer(phase="train", scope="block", ffn="plain", ffn_dim=16))
    assert op.check().passed
    with op.active():
        output = op()
    gradient = next(op.inputs.network.parameters()).grad
    assert gradient is not None
    gradient[:8] = 0
    with torch.inference_mode():
        assert not op.compared(output).passed


def test_experts_may_be_chosen_by_a_rounding_but_not_against_their_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attnprof.workloads.transformer.ffn import MixtureOfExperts

    workload = layer(
        scope="block", ffn="moe", ffn_dim=8, num_experts=8, num_active_experts=2, dtype="bfloat16",
        q_len=64, kv_len=64,
    )  # fmt: skip
    assert operation(workload).check().passed
    right = MixtureOfExperts._best

    def worst(self: MixtureOfExperts, scores: Any) -> Any:
        return right(self, scores if scores.dtype == torch.float64 else -scores)

    monkeypatch.setattr(MixtureOfExperts, "_best", worst)
    assert not operation(workload).check().passed


def test_a_call_can_be_made_again_and_gives_the_same() -> None:
    op = operation(layer(phase="decode", q_len=1, kv_cache="contiguous", position="rope"))
    with op.active():
        first, second = op(), op()
    assert torch.equal(first, second)
    [segment] = op.inputs.segments
    assert [cache.length for cache in segment.caches or ()] == [11, 11]


def test_a_mixed_step_gives_each_part_what_it_gives_alone() -> None:
    mixed = layer(
        phase="mixed", q_len=1, prefill_len=5, batch_size=2, kv_cache="static", position="t5"
    )
    op = operation(mixed)
    with op.active():
        together = op()
    decode = operation(replace(mixed, phase="decode", prefill_len=None))
    decode.inputs.network, decode.inputs.given = op.inputs.network, op.inputs.given[:1]
    with decode.active():
        alone = decode()
    assert torch.allclose(together[:2], alone, atol=1e-5)


def test_without_positions_nothing_is_turned() -> None:
    kernels = operation(layer()).inputs.network.kernels
    assert isinstance(kernels, PlainKernels) and type(kernels.position) is Position
