"""Models, whole or their blocks: in every phase as float64 has it, and told part by part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attnprof.backends import unsupported_reason  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.errors import UnsupportedError  # noqa: E402
from attnprof.grid import sizes_of_model  # noqa: E402
from attnprof.theory.scopes import scope_kv_bytes  # noqa: E402
from attnprof.workload import Workload, checked  # noqa: E402
from attnprof.workloads import build_grower, build_operation, compared  # noqa: E402
from attnprof.workloads.growth import grow  # noqa: E402
from attnprof.workloads.operation import Operation  # noqa: E402
from attnprof.workloads.positions import Rotary  # noqa: E402
from attnprof.workloads.scopes import ScopeGrower, ScopeOperation  # noqa: E402
from attnprof.workloads.transformer import kernels  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
CPU = torch.device("cpu")
MODELS = Path(__file__).parents[1] / "data" / "models"
DECODERS = ("tiny-llama", "tiny-gemma2", "tiny-gpt2", "tiny-moe", "tiny-gpt-oss", "tiny-deepseek")
SEQ2SEQ = ("tiny-bart", "tiny-t5", "tiny-whisper")
PHASES: dict[str, dict[str, Any]] = {
    "prefill": {"q_len": 20, "kv_len": 20, "batch_size": 3},
    "train": {"q_len": 20, "kv_len": 20, "batch_size": 2},
    "chunked-prefill": {"q_len": 6, "kv_len": 20, "kv_cache": "paged"},
    "decode": {"q_len": 1, "kv_len": 20, "kv_cache": "static", "batch_size": 3},
    "verify": {"q_len": 4, "kv_len": 20, "kv_cache": "contiguous"},
    "mixed": {"q_len": 1, "kv_len": 20, "kv_cache": "paged", "prefill_len": 7, "batch_size": 2},
}


def of_model(name: str, **axes: Any) -> Workload:
    path = str(MODELS / f"{name}.json")
    usual: dict[str, Any] = {"backend": "eager", "scope": "model", "model": path}
    return checked(Workload(**{**usual, **sizes_of_model(path), **axes}))


def operation(workload: Workload, seed: int = 1) -> ScopeOperation:
    op = build_operation(workload, CPU, seed)
    assert isinstance(op, ScopeOperation)
    return op


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ, "tiny-bert"])
def test_a_model_agrees_with_float64(name: str, phase: str, dtype: str) -> None:
    workload = of_model(name, phase=phase, dtype=dtype, **PHASES[phase])
    if name == "tiny-bert" and phase not in ("prefill", "train"):
        assert "is an encoder" in str(unsupported_reason(workload, "cpu"))
        return
    if name in SEQ2SEQ and phase == "mixed":
        assert "reads a source" in str(unsupported_reason(workload, "cpu"))
        return
    op = operation(workload)
    check = op.check()
    assert check.passed, check
    assert check.reference == "float64"
    if workload.kv_cache != "paged":
        assert op.kv_bytes == scope_kv_bytes(workload)


@pytest.mark.parametrize("phase", ["prefill", "train", "decode"])
@pytest.mark.parametrize("name", ["tiny-gemma2", "tiny-moe", "tiny-t5"])
def test_the_blocks_of_a_model_agree_with_float64(name: str, phase: str) -> None:
    workload = of_model(name, phase=phase, scope="block", **PHASES[phase])
    assert operation(workload).check().passed


@pytest.mark.parametrize("backend", ["flash", "math"])
@pytest.mark.parametrize("phase", ["prefill", "decode", "train", "mixed"])
def test_every_kernel_gives_the_same_model(backend: str, phase: str) -> None:
    op = operation(of_model("tiny-llama", phase=phase, backend=backend, **PHASES[phase]))
    assert op.check().passed
    assert any(backend in name for name in op.kernels)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        pytest.param("tiny-deepseek", {"kv_cache": "latent"}, id="latent"),
        pytest.param("tiny-gemma2", {"kv_cache": "rolling", "kv_len": 40}, id="rolling"),
        pytest.param("tiny-llama", {"kv_dtype": "int8"}, id="int8 keys"),
        pytest.param("tiny-t5", {"kv_dtype": "int4"}, id="int4 keys, of the source too"),
        pytest.param("tiny-t5", {"source_len": 33}, id="a source of another length"),
        pytest.param("tiny-moe", {"num_layers": 1}, id="the first layer"),
    ],
)
def test_caches_of_every_kind_serve_a_model(name: str, axes: dict[str, Any]) -> None:
    workload = of_model(name, phase="decode", **{**PHASES["decode"], **axes})
    op = operation(workload)
    check = op.check()
    assert check.passed, check
    assert op.kv_bytes == scope_kv_bytes(workload)


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-t5"])
def test_a_prompt_can_be_put_into_a_cache(name: str, kv_dtype: str | None) -> None:
    workload = of_model(name, **PHASES["prefill"], kv_cache="static", kv_dtype=kv_dtype)
    op = operation(workload)
    check = op.check()
    assert check.passed, check
    assert op.kv_bytes == scope_kv_bytes(workload)


@pytest.mark.parametrize(
    ("name", "axes", "said"),
    [
        pytest.param("tiny-llama", {"softcap": 9.0}, "a model has its own", id="softcap"),
        pytest.param("tiny-llama", {"variant": "full"}, "who sees whom", id="variant"),
        pytest.param("tiny-llama", {"num_layers": 3}, "has 2 layers", id="layers"),
        pytest.param("tiny-gpt2", {"q_len": 200, "kv_len": 200}, "128 positions", id="positions"),
        pytest.param("tiny-llama", {"source_len": 4}, "reads no source", id="source"),
        pytest.param("tiny-bart", {"source_len": 200}, "its source has 200", id="long source"),
        pytest.param(
            "tiny-t5", {"phase": "train", "backend": "flash"}, "learns one", id="learned bias"
        ),
    ],
)
def test_what_a_model_has_not_is_refused_before_it_is_built(
    name: str, axes: dict[str, Any], said: str
) -> None:
    workload = of_model(name, **{**PHASES["prefill"], **axes})
    assert problem(workload) is None
    assert said in str(unsupported_reason(workload, "cpu"))
    with pytest.raises(UnsupportedError, match=said):
        build_operation(workload, CPU, 1)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-moe", "tiny-deepseek", *SEQ2SEQ])
@pytest.mark.parametrize("weight_dtype", ["int8", "float8_e4m3fn"])
def test_every_linear_layer_that_is_stored_is_checked_as_what_it_stands_for(
    name: str, weight_dtype: str
) -> None:
    pytest.importorskip("torchao")
    workload = of_model(name, weight_dtype=weight_dtype, **PHASES["prefill"])
    assert operation(workload).check().passed


@pytest.mark.parametrize("kv_cache", ["none", "static"])
def test_an_encoder_does_not_generate(kv_cache: str) -> None:
    growing = {"phase": "generate", "q_len": 1, "kv_len": 9, "start_len": 4}
    workload = of_model("tiny-bert", kv_cache=kv_cache, **growing)
    for build in (build_operation, build_grower):
        with pytest.raises(UnsupportedError, match="is an encoder: prefill and train"):
            build(workload, CPU, 1)


def test_a_model_that_cannot_be_built_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "mamba", "vocab_size": 8}')
    workload = Workload(backend="eager", scope="model", model=str(config), q_len=4, kv_len=4)
    assert "'mamba' cannot be built" in str(unsupported_reason(workload, "cpu"))


def test_a_twin_that_costs_too_much_is_of_the_first_layers_and_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = of_model("tiny-llama", q_len=32, kv_len=32)
    op = operation(workload)
    monkeypatch.setattr(compared, "MAX_FLOPS", 5e5)
    check = op.check()
    assert check.passed
    assert check.reference == "float64, states after 1 of 2 layers, first 16 tokens"
    monkeypatch.setattr(compared, "MAX_FLOPS", 2e11)
    monkeypatch.setattr(compared, "MAX_OUTER_BYTES", 1)
    check = operation(workload).check()
    assert check.passed and check.reference == "float64, states after 2 of 2 layers"


def wrong_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's kernels, not those of its twin, see a window less one token."""
    right = kernels.op_workload

    def shorter(workload: Workload, block: Any, **sizes: int) -> Workload:
        found = right(workload, block, **sizes)
        if workload.dtype == "float64" or found.window_len is None:
            return found
        return replace(found, window_len=found.window_len - 1)

    monkeypatch.setattr(kernels, "op_workload", shorter)


def wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's tokens are turned as those before them."""
    right = Rotary.tables

    def earlier(self: Rotary, first: int, tokens: int) -> Any:
        return right(self, max(0, first - (self._dtype != torch.float64)), tokens)

    monkeypatch.setattr(Rotary, "tables", earlier)


def wrong_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's scores are not capped."""
    right = kernels.op_workload

    def uncapped(workload: Workload, block: Any, **sizes: int) -> Workload:
        found = right(workload, block, **sizes)
        return found if workload.dtype == "float64" else replace(found, softcap=None)

    monkeypatch.setattr(kernels, "op_workload", uncapped)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "phase", "spoil"),
    [
        pytest.param("tiny-gemma2", "prefill", wrong_mask, id="mask"),
        pytest.param("tiny-llama", "verify", wrong_position, id="position"),
    ],
)
def test_a_wrong_mask_or_position_in_a_model_is_caught(
    name: str, phase: str, spoil: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = of_model(name, phase=phase, dtype=dtype, **PHASES[phase])
    assert operation(workload).check().passed
    spoil(monkeypatch)
    assert not operation(workload).check().passed


def test_scores_that_are_not_capped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = of_model("tiny-gemma2", **PHASES["prefill"])
    wrong_cap(monkeypatch)
    assert not operation(workload).check().passed


def test_a_wrong_logit_is_caught() -> None:
    op = operation(of_model("tiny-llama", **PHASES["prefill"]))
    assert op.check().passed
    with op.active():
        output = op()
    with torch.inference_mode():
        spoilt = output.clone()
        spoilt[0, :4] += 0.01 * spoilt.std()
        assert not op.compared(spoilt).passed
        spoilt = output.clone()
        spoilt[0, 0] = float("nan")
        check = op.compared(spoilt)
        assert not check.passed and check.max_abs_error is None


def test_first_sequences_alone_are_compared_of_a_large_batch() -> None:
    op = operation(of_model("tiny-llama", phase="decode", **{**PHASES["decode"], "batch_size": 9}))
    check = op.check()
    assert check.passed and check.rows == compared.CHECKED_SEQUENCES


def seconds(call: Any) -> tuple[float, float]:
    call()
    return 1.0, 1.0


def grown(workload: Workload) -> list[Any]:
    """The logits of each token that a generate makes, fed its own tokens."""
    made = ScopeGrower(workload, CPU, 1)
    with torch.inference_mode(), made.active():
        found = [made.prompt(keep=True)]
        for kv_len in range((workload.start_len or 0) + 1, workload.kv_len + 1):
            made.ready(kv_len)
            made.step(keep=False)
            found.append(made.step(keep=True))
    return found


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-deepseek", "tiny-t5", "tiny-gpt-oss"])
@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged", "latent", "rolling"])
def test_generating_with_a_cache_gives_what_computing_everything_anew_gives(
    name: str, kv_cache: str
) -> None:
    workload = of_model(
        name, phase="generate", q_len=1, start_len=9, kv_len=22, kv_cache=kv_cache, batch_size=2
    )
    if unsupported_reason(workload, "cpu") is not None:
        assert (name, kv_cache) not in [("tiny-deepseek", "latent"), ("tiny-gpt-oss", "rolling")]
        return
    pairs = zip(grown(workload), grown(replace(workload, kv_cache="none")), strict=True)
    for cached, anew in pairs:
        assert torch.allclose(cached, anew, atol=2e-5)


@pytest.mark.parametrize("scope", ["layer", "block"])
@pytest.mark.parametrize("position", ["rope", "alibi", "learned", "shaw"])
def test_a_layer_generates_what_it_computes_anew(scope: str, position: str) -> None:
    more: dict[str, Any] = {"ffn": "gated", "ffn_dim": 16} if scope == "block" else {}
    workload = checked(
        Workload(
            backend="eager", scope=scope, phase="generate", q_len=1, start_len=5, kv_len=9,
            num_q_heads=4, num_kv_heads=2, head_dim=8, num_layers=2, position=position,
            kv_cache="paged", block_tokens=4, **more,
        )
    )  # fmt: skip
    anew = grown(replace(workload, kv_cache="none", block_tokens=None))
    for cached, whole in zip(grown(workload), anew, strict=True):
        assert torch.allclose(cached, whole[-len(cached) :], atol=2e-5)


def test_a_generates_points_are_its_prompt_and_every_token() -> None:
    workload = of_model(
        "tiny-llama", phase="generate", q_len=1, start_len=9, kv_len=12, kv_cache="static"
    )
    points = grow(workload, CPU, 1, seconds, limit_s=60.0)
    assert [point.kv_len for point in points] == [9, 10, 11, 12]
    assert points[-1].useful_bytes == scope_kv_bytes(workload)
    assert {point.allocated_bytes for point in points} == {scope_kv_bytes(workload)}


def parts(op: Operation) -> dict[str, Any]:
    with op.active():
        return {part.name: part for part in op.parts(seconds_and_cpu, 0.01)}


def seconds_and_cpu(call: Any) -> tuple[float, float]:
    call()
    return 100.0, 100.0


def test_every_part_of_a_model_is_told_and_the_rest_is_other() -> None:
    found = parts(operation(of_model("tiny-llama", phase="decode", **PHASES["decode"])))
    assert set(found) == {
        "embedding", "norm", "projection", "position", "cache", "attention", "ffn", "head", "other",
    }  # fmt: skip
    assert all(part.wall_s > 0 for part in found.values())
    assert sum(part.wall_s for part in found.values()) == pytest.approx(100.0, rel=1e-6)


def test_a_layer_has_no_ffn_and_a_prefill_no_cache() -> None:
    layer = checked(
        Workload(backend="eager", scope="layer", q_len=8, kv_len=8, num_q_heads=2, num_kv_heads=2,
            head_dim=8)
    )  # fmt: skip
    assert set(parts(operation(layer))) == {"position", "projection", "attention", "other"}


def test_the_scores_are_the_peak_of_attention_and_the_ffns_width_that_of_the_ffn() -> None:
    n, width = 64, 512
    block = checked(
        Workload(backend="eager", scope="block", ffn="plain", ffn_dim=width, q_len=n, kv_len=n,
            num_q_heads=2, num_kv_heads=2, head_dim=8)
    )  # fmt: skip
    found = parts(operation(block))
    assert found["attention"].peak_bytes == pytest.approx(2 * 2 * n * n * 4, rel=0.1)
    assert found["ffn"].peak_bytes == pytest.approx(2 * n * width * 4, rel=0.1)


def test_a_train_step_has_no_parts() -> None:
    assert parts(operation(of_model("tiny-llama", phase="train", **PHASES["train"]))) == {}
