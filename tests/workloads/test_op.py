"""Every attention that the support table claims agrees with float64, and a wrong one does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

from attnprof.backends import eager, unsupported_reason  # noqa: E402
from attnprof.backends.masks import allowed  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.positions import POSITIONS  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402
from attnprof.workloads.mla import MlaOp  # noqa: E402
from attnprof.workloads.op import AttentionOp  # noqa: E402
from attnprof.workloads.op_train import TrainOp  # noqa: E402

CPU = torch.device("cpu")
BACKENDS = ("eager", "math", "flash")
PHASES = ("prefill", "chunked-prefill", "decode", "verify", "mixed", "train")
SCHEMES = [name for name, scheme in POSITIONS.items() if scheme.acts != "embeddings"]
DTYPES = ("float32", "float64", "bfloat16", "float16")


def lengths(draw: st.DrawFn, phase: str, attention: str) -> dict[str, Any]:
    kv_len = draw(st.integers(3, 40))
    match phase:
        case "prefill" | "train":
            q_len = draw(st.integers(1, 24)) if attention == "cross" else kv_len
        case "chunked-prefill":
            q_len = draw(st.integers(2, kv_len - 1))
        case "verify":
            q_len = draw(st.integers(2, min(16, kv_len)))
        case _:
            q_len = 1
    return {"q_len": q_len, "kv_len": kv_len}


def sights(draw: st.DrawFn, kv_len: int) -> dict[str, Any]:
    variant = draw(
        st.sampled_from(["full", "causal", "sliding", "chunked", "prefix-lm", "packed", "sink"])
    )
    size = draw(st.integers(2, kv_len))
    sizes: dict[str, Any] = {
        "sliding": {"window_len": size},
        "chunked": {"window_len": size},
        "prefix-lm": {"prefix_len": size},
        "packed": {"document_len": size},
        "sink": {"window_len": size, "sink_len": draw(st.integers(1, 3))},
    }
    return {"variant": variant, **sizes.get(variant, {})}


def caches(draw: st.DrawFn, phase: str) -> dict[str, Any]:
    if phase in ("prefill", "train"):
        return {}
    kind = draw(st.sampled_from(["contiguous", "static", "paged", "rolling", "latent"]))
    return {
        "kv_cache": kind,
        "kv_dtype": draw(st.sampled_from([None, None, "int8", "int4", "float8_e4m3fn"])),
        "block_tokens": draw(st.sampled_from([None, 3, 8])) if kind == "paged" else None,
    }


def heads(draw: st.DrawFn) -> dict[str, Any]:
    num_kv_heads = draw(st.integers(1, 2))
    return {
        "num_kv_heads": num_kv_heads,
        "num_q_heads": num_kv_heads * draw(st.integers(1, 3)),
        "head_dim": draw(st.sampled_from([8, 16])),
        "v_head_dim": draw(st.sampled_from([None, None, 4, 24])),
        "softcap": draw(st.sampled_from([None, None, 1.5])),
        "sink_logits": draw(st.sampled_from([False, False, True])),
    }


def latents(draw: st.DrawFn, phase: str) -> dict[str, Any]:
    """Heads that share a latent, which is cached as it is or expanded."""
    num_heads = draw(st.integers(1, 3))
    form = draw(st.sampled_from(["expanded", "absorbed"]))
    return {
        "mla": form,
        "num_q_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": draw(st.sampled_from([12, 20])),
        "v_head_dim": draw(st.sampled_from([None, 8])),
        "kv_lora_rank": draw(st.sampled_from([6, 24])),
        "rope_head_dim": draw(st.sampled_from([4, 8])),
        "position": draw(st.sampled_from(["none", "rope", "rope-yarn"])),
        "sink_logits": draw(st.booleans()),
    }


@st.composite
def workloads(draw: st.DrawFn, backend: str, phase: str) -> Workload:
    """Any workload of scope op that makes sense and that the backend claims on CPU."""
    source = draw(st.sampled_from(["self", "self", "self", "cross"]))
    shape = lengths(draw, phase, source)
    given_as: dict[str, Any] = {
        **heads(draw),
        **sights(draw, shape["kv_len"]),
        **caches(draw, phase),
        "position": draw(st.sampled_from(SCHEMES)),
    }
    if source == "cross":
        given_as.update(
            attention="cross", kv_cache="cross", variant="full", position="none",
            block_tokens=None, window_len=None, prefix_len=None, document_len=None, sink_len=None,
        )  # fmt: skip
    elif draw(st.sampled_from([False, False, True])):
        given_as.update(latents(draw, phase))
        if phase not in ("prefill", "train"):
            given_as.update(kv_cache="latent", block_tokens=None)
            if given_as["mla"] == "expanded":
                given_as["kv_cache"] = draw(st.sampled_from(["latent", "static", "contiguous"]))
    elif given_as.get("kv_cache") == "latent":
        given_as["kv_cache"] = "static"
    batch_size = draw(st.integers(1, 3))
    if given_as["variant"] == "full" and phase in ("prefill", "train") and batch_size > 1:
        given_as["min_len"] = draw(st.sampled_from([None, max(1, shape["kv_len"] // 3)]))
    workload = Workload(
        backend=backend, phase=phase, dtype=draw(st.sampled_from(DTYPES)), batch_size=batch_size,
        num_layers=draw(st.integers(1, 2)),
        prefill_len=draw(st.integers(1, 20)) if phase == "mixed" else None,
        checkpointing=draw(st.booleans()) if phase == "train" else False,
        **shape, **given_as,
    )  # fmt: skip
    assume(problem(workload) is None)
    assume(unsupported_reason(workload, "cpu") is None)
    return workload


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("phase", PHASES)
@given(data=st.data())
@settings(
    max_examples=40, deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip
def test_whatever_is_claimed_agrees_with_float64(
    phase: str, backend: str, data: st.DataObject
) -> None:
    workload = data.draw(workloads(backend, phase))
    check = build_operation(workload, CPU, seed=3).check()
    assert check.passed, check
    assert check.rms_error is not None
    if workload.cached_dtype == workload.dtype:
        assert check.rms_error < 0.03


CAUSAL = Workload(
    backend="eager", q_len=24, kv_len=24, num_q_heads=4, num_kv_heads=2, head_dim=16, batch_size=2
)
STEP = replace(CAUSAL, phase="verify", q_len=3, kv_cache="static")
LATENT = replace(
    STEP, num_kv_heads=4, mla="absorbed", kv_cache="latent", kv_lora_rank=12, rope_head_dim=8,
    position="rope",
)  # fmt: skip
SIGHTS = [
    pytest.param({}, id="causal"),
    pytest.param({"variant": "sliding", "window_len": 7}, id="sliding"),
    pytest.param({"variant": "chunked", "window_len": 7}, id="chunked"),
    pytest.param({"variant": "prefix-lm", "prefix_len": 7}, id="prefix-lm"),
    pytest.param({"variant": "packed", "document_len": 6}, id="packed"),
    pytest.param({"variant": "sink", "window_len": 7, "sink_len": 2}, id="sink"),
    pytest.param({"variant": "full", "min_len": 9}, id="padded"),
]


def of_kind(workload: Workload, phase: str) -> Workload:
    """The same attention in a training step too."""
    return replace(workload, phase=phase)


@pytest.mark.parametrize("phase", ["prefill", "train"])
@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mask_that_is_off_by_one_is_caught(
    monkeypatch: pytest.MonkeyPatch, sight: dict[str, Any], dtype: str, phase: str
) -> None:
    workload = replace(CAUSAL, dtype=dtype, phase=phase, **sight)

    def shifted(workload: Workload, device: Any) -> Any:
        """The next key as well."""
        mask = allowed(workload, device)
        assert mask is not None
        before = torch.zeros_like(mask[..., :1])
        return mask | torch.cat((before, mask[..., :-1]), dim=-1)

    assert build_operation(workload, CPU, 3).check().passed
    monkeypatch.setattr(eager, "allowed", shifted)
    assert not build_operation(workload, CPU, 3).check().passed


@pytest.mark.parametrize("name", [name for name in SCHEMES if name.startswith("rope")])
@pytest.mark.parametrize("workload", [CAUSAL, STEP, LATENT, of_kind(CAUSAL, "train")])
def test_keys_that_are_turned_as_if_they_were_one_further_are_caught(
    workload: Workload, name: str
) -> None:
    if workload.mla is not None and name not in ("rope", "rope-yarn"):
        return
    op: Any = build_operation(replace(workload, position=name), CPU, 3)
    position = op.call.position
    rotate = position.rotate
    key_heads = 1 if workload.mla is not None else workload.num_kv_heads
    position.rotate = lambda x, first: rotate(x, first + (x.shape[1] == key_heads))
    assert not op.check().passed


@pytest.mark.parametrize("name", ["alibi", "t5", "shaw"])
@pytest.mark.parametrize("workload", [CAUSAL, STEP])
def test_a_bias_that_is_another_heads_or_another_keys_is_caught(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, name: str
) -> None:
    from attnprof.workloads.positions import biases

    for scheme in (biases.Alibi, biases.T5Bias):
        right = scheme.constant_bias
        monkeypatch.setattr(
            scheme, "constant_bias", lambda self, *where, right=right: right(self, *where).flip(1)
        )
    by_query = biases.Shaw.query_bias
    monkeypatch.setattr(
        biases.Shaw, "query_bias", lambda self, *given: by_query(self, *given).roll(1, -1)
    )
    assert not build_operation(replace(workload, position=name), CPU, 3).check().passed


@pytest.mark.parametrize("change", [lambda sinks: sinks + 0.05, lambda sinks: sinks.flip(0)])
@pytest.mark.parametrize("workload", [CAUSAL, STEP, LATENT, of_kind(CAUSAL, "train")])
def test_sinks_with_other_logits_are_caught(
    workload: Workload, change: Callable[[Any], Any]
) -> None:
    op: Any = build_operation(replace(workload, sink_logits=True), CPU, 3)
    attention = op.call.attention
    op.call.attention = replace(
        attention,
        attend=lambda q, k, v, sinks: attention.attend(q, k, v, sinks=change(sinks)),
    )
    assert not op.check().passed


@pytest.mark.parametrize("workload", [CAUSAL, of_kind(CAUSAL, "train")])
def test_another_soft_cap_is_caught(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    right = eager.prepare

    def looser(workload: Workload, device: Any, **more: Any) -> Any:
        return right(replace(workload, softcap=2.02), device, **more)

    monkeypatch.setattr(eager, "prepare", looser)
    assert not build_operation(replace(workload, softcap=2.0), CPU, 3).check().passed


@pytest.mark.parametrize("kv_dtype", [None, "bfloat16", "int8", "int4"])
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(replace(STEP, kv_cache="contiguous"), id="contiguous"),
        pytest.param(STEP, id="static"),
        pytest.param(replace(STEP, kv_cache="paged"), id="paged"),
        pytest.param(
            replace(
                STEP, phase="decode", q_len=1, kv_cache="rolling", variant="sliding", window_len=9
            ),
            id="rolling",
        ),
        pytest.param(LATENT, id="latent"),
        pytest.param(replace(LATENT, mla="expanded"), id="latent, expanded"),
    ],
)
def test_a_slot_that_still_holds_another_token_is_caught(
    workload: Workload, kv_dtype: str | None
) -> None:
    op = build_operation(replace(workload, kv_dtype=kv_dtype), CPU, 3)
    layout = op.inputs[-1].cache.layout
    write = layout.extended
    layout.extended = lambda new: write(tuple(plane.roll(1, 0) for plane in new))
    assert not op.check().passed


def test_a_gradient_that_misses_a_factor_is_caught() -> None:
    op = TrainOp(of_kind(CAUSAL, "train"), CPU, 3)
    with op.active():
        out, *grads = op()
    for wrong in range(3):
        scaled = [grad * (1.001 if at == wrong else 1.0) for at, grad in enumerate(grads)]
        assert not op.compared((out, *scaled)).passed
    assert op.compared((out, *grads)).passed


def test_a_prompt_of_a_mixed_step_that_sees_too_much_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = replace(
        CAUSAL, phase="mixed", q_len=1, kv_cache="paged", prefill_len=9, variant="causal"
    )
    assert build_operation(workload, CPU, 3).check().passed
    monkeypatch.setattr(eager, "allowed", lambda workload, device: None)
    assert not build_operation(workload, CPU, 3).check().passed


def test_a_mixed_step_of_a_latent_has_its_weights_once() -> None:
    mixed = replace(LATENT, phase="mixed", q_len=1, prefill_len=9)
    op = build_operation(mixed, CPU, 3)
    assert op.check().passed
    assert op.weight_bytes == build_operation(LATENT, CPU, 3).weight_bytes
    decoding, coming = op.inputs
    assert coming[0].weight is decoding[0].weight


def test_both_forms_of_a_latent_attend_alike() -> None:
    outputs = []
    for form in ("expanded", "absorbed"):
        op = MlaOp(
            replace(LATENT, mla=form, dtype="float64", variant="sliding", window_len=9), CPU, 3
        )
        with op.active():
            outputs.append(op())
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
@pytest.mark.parametrize("window_len", [5, 24])
def test_heads_of_a_latent_may_lie_in_a_ring(window_len: int, kv_dtype: str | None) -> None:
    ring = replace(
        LATENT, mla="expanded", phase="decode", q_len=1, variant="sliding", window_len=window_len,
        kv_cache="rolling", kv_dtype=kv_dtype,
    )  # fmt: skip
    assert MlaOp(ring, CPU, 3).check().passed


def test_an_absorbed_latent_weighs_its_weights_and_its_cache() -> None:
    op = build_operation(replace(LATENT, num_layers=2), CPU, 3)
    assert op.weight_bytes == 2 * 4 * (16 - 8 + 16) * 12 * 4
    assert op.kv_bytes == 2 * 2 * 24 * (12 + 8) * 4


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8", "int4"])
def test_fewer_bits_cost_more_error(kv_dtype: str) -> None:
    errors = {
        name: AttentionOp(replace(STEP, kv_dtype=name), CPU, 3).check().rms_error or 0.0
        for name in (None, "bfloat16", kv_dtype)
    }
    assert errors[None] < errors["bfloat16"] < errors[kv_dtype]
    assert errors[kv_dtype] < {"int8": 0.02, "float8_e4m3fn": 0.06, "int4": 0.3}[kv_dtype]


def test_a_checkpointed_step_gives_the_same_gradients() -> None:
    plain, made_again = (
        TrainOp(replace(of_kind(CAUSAL, "train"), checkpointing=again), CPU, 3)
        for again in (False, True)
    )
    with plain.active():
        for one, other in zip(plain(), made_again(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"variant": "packed", "document_len": 50}, id="packed"),
        pytest.param({"variant": "full", "min_len": 60}, id="padded"),
        pytest.param({"softcap": 2.0, "position": "alibi"}, id="softcap and bias"),
        pytest.param({"position": "shaw"}, id="a bias of the queries"),
        pytest.param({"v_head_dim": 24}, id="values of another width"),
        pytest.param(
            {"phase": "decode", "q_len": 1, "variant": "sink", "window_len": 40, "sink_len": 3,
             "kv_cache": "paged"},
            id="sink window",
        ),
        pytest.param(
            {"phase": "verify", "q_len": 4, "num_kv_heads": 4, "mla": "absorbed",
             "kv_cache": "latent", "kv_lora_rank": 16, "rope_head_dim": 8, "position": "rope"},
            id="a latent",
        ),
    ],
)  # fmt: skip
def test_flex_agrees_with_float64(more: dict[str, Any]) -> None:
    workload = replace(CAUSAL, backend="flex", q_len=150, kv_len=150)
    assert build_operation(replace(workload, **more), CPU, 3).check().passed
