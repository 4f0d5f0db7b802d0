"""The Transformers library's own classes as workloads, held against our plain models."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attnprof.backends import unsupported_reason  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.grid import sizes_of_model  # noqa: E402
from attnprof.theory.scopes import scope_kv_bytes, weight_params  # noqa: E402
from attnprof.workload import Workload, checked  # noqa: E402
from attnprof.workloads import build_operation, library_check  # noqa: E402
from attnprof.workloads.library import LibraryGrower, LibraryOperation  # noqa: E402
from attnprof.workloads.scopes import ScopeOperation  # noqa: E402
from attnprof.workloads.transformer.loading import load_transformers_weights  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
CPU = torch.device("cpu")
MODELS = Path(__file__).parents[1] / "data" / "models"
DECODERS = ("tiny-llama", "tiny-gemma2", "tiny-gpt2", "tiny-moe", "tiny-gpt-oss", "tiny-deepseek")
PHASES: dict[str, dict[str, Any]] = {
    "prefill": {"q_len": 20, "kv_len": 20, "batch_size": 2},
    "train": {"q_len": 20, "kv_len": 20, "batch_size": 2},
    "chunked-prefill": {"q_len": 6, "kv_len": 20, "kv_cache": "contiguous"},
    "decode": {"q_len": 1, "kv_len": 20, "kv_cache": "contiguous", "batch_size": 3},
    "verify": {"q_len": 4, "kv_len": 20, "kv_cache": "contiguous"},
}


def of_model(name: str, **axes: Any) -> Workload:
    path = str(MODELS / f"{name}.json")
    usual: dict[str, Any] = {
        "backend": "eager", "scope": "model", "model": path, "implementation": "transformers",
    }  # fmt: skip
    workload = checked(Workload(**{**usual, **sizes_of_model(path), **axes}))
    assert problem(workload) is None
    return workload


def operation(workload: Workload) -> LibraryOperation:
    op = build_operation(workload, CPU, 1)
    assert isinstance(op, LibraryOperation)
    return op


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", DECODERS)
def test_the_librarys_class_agrees_with_our_plain_model(name: str, phase: str) -> None:
    workload = of_model(name, phase=phase, **PHASES[phase])
    op = operation(workload)
    check = op.check()
    assert check.passed, check
    assert op.weight_bytes == 4 * weight_params(workload)
    if name not in ("tiny-gemma2", "tiny-gpt-oss"):  # their windows hold a token less
        assert op.kv_bytes == scope_kv_bytes(workload)


def test_an_encoder_agrees_too() -> None:
    for phase in ("prefill", "train"):
        assert operation(of_model("tiny-bert", phase=phase, **PHASES[phase])).check().passed


@pytest.mark.parametrize("backend", ["math", "flash"])
@pytest.mark.parametrize("phase", PHASES)
def test_sdpa_runs_the_kernel_that_was_asked_for(backend: str, phase: str) -> None:
    op = operation(of_model("tiny-llama", phase=phase, backend=backend, **PHASES[phase]))
    assert op.check().passed
    assert any(backend in kernel for kernel in op.kernels)


def test_a_static_cache_is_put_back_between_calls() -> None:
    decode = {**PHASES["decode"], "kv_cache": "static"}
    op = operation(of_model("tiny-llama", phase="decode", **decode))
    assert op.check().passed
    with op.active():
        assert torch.equal(op(), op())
    assert op.kv_bytes == scope_kv_bytes(op.workload)


@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_halves_of_experts_are_compared_in_float32(phase: str) -> None:
    workload = of_model("tiny-moe", phase=phase, dtype="bfloat16", **PHASES[phase])
    check = operation(workload).check()
    assert check.passed
    assert check.reference == "our plain model in float64, of the class in float32"


def test_a_class_that_costs_too_much_is_compared_with_fewer_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = operation(of_model("tiny-llama", q_len=64, kv_len=64))
    monkeypatch.setattr(library_check, "MAX_FLOPS", 8e5)
    check = op.check()
    assert check.passed
    assert check.reference.endswith("of 1 of 2 layers, 32 tokens")


def test_a_class_that_computes_something_else_is_caught() -> None:
    op = operation(of_model("tiny-llama", **PHASES["prefill"]))
    assert op.check().passed
    for layer in op.inputs.model.model.layers:
        layer.self_attn.scaling *= 1.01
    with op.active():
        output = op()
    with torch.inference_mode():
        assert not op.compared(output).passed


def test_gradients_that_differ_are_caught() -> None:
    op = operation(of_model("tiny-llama", phase="train", **PHASES["train"]))
    assert op.check().passed
    with op.active():
        output = op()
    op.inputs.model.get_input_embeddings().weight.grad *= 1.001
    with torch.inference_mode():
        assert not op.compared(output).passed


def test_checkpoints_change_nothing_but_what_is_held() -> None:
    plain = of_model("tiny-llama", phase="train", **PHASES["train"])
    checkpointed = replace(plain, checkpointing=True)
    ops = [operation(one) for one in (plain, checkpointed)]
    assert all(op.check().passed for op in ops)
    held, again = (op.profile.peak_bytes for op in ops)
    assert again < held


@pytest.mark.parametrize("kv_cache", ["contiguous", "static"])
def test_generating_gives_what_our_model_gives_with_the_same_weights(kv_cache: str) -> None:
    workload = of_model(
        "tiny-llama", phase="generate", q_len=1, start_len=8, kv_len=11, kv_cache=kv_cache
    )
    grower = LibraryGrower(workload, CPU, 1)
    plain = replace(workload, implementation="plain", phase="prefill", kv_cache="none",
        start_len=None, q_len=11)  # fmt: skip
    ours = build_operation(plain, CPU, 1)
    assert isinstance(ours, ScopeOperation)
    network: Any = ours.inputs.network
    load_transformers_weights(network, grower._model.state_dict())
    with torch.inference_mode(), grower.active():
        grower.prompt(keep=False)
        found = [grower.prompt(keep=True)]
        for kv_len in (9, 10, 11):
            grower.ready(kv_len)
            grower.step(keep=False)
            found.append(grower.step(keep=True))
        whole = network(grower._tokens)[0, 7:]
    assert torch.allclose(torch.cat(found)[:, 0], whole, atol=1e-5)
    assert grower.cache_bytes().useful == scope_kv_bytes(workload)


@pytest.mark.parametrize(
    ("name", "axes", "said"),
    [
        pytest.param("tiny-bart", {}, "reads a source", id="encoder–decoder"),
        pytest.param("tiny-llama", {"kv_cache": "paged"}, "not paged", id="paged"),
        pytest.param("tiny-llama", {"kv_dtype": "int8"}, "its own dtype", id="int8"),
        pytest.param("tiny-llama", {"weight_dtype": "int8"}, "its own dtype", id="int8 weights"),
        pytest.param("tiny-gemma2", {"kv_cache": "static"}, "rolls on", id="static windows"),
        pytest.param("tiny-gemma2", {"backend": "flash"}, "caps scores", id="caps"),
        pytest.param("tiny-gpt-oss", {"backend": "flash"}, "logits of sinks", id="sinks"),
        pytest.param("tiny-llama", {"phase": "mixed", "prefill_len": 4}, "mixed", id="mixed"),
        pytest.param("tiny-llama", {"scope": "block"}, "whole model", id="block"),
        pytest.param("tiny-llama", {"dtype": "float64"}, "in float32", id="float64"),
    ],
)
def test_what_the_library_has_not_is_refused_by_name(
    name: str, axes: dict[str, Any], said: str
) -> None:
    workload = of_model(name, **{"phase": "decode", **PHASES["decode"], **axes})
    assert said in str(unsupported_reason(workload, "cpu"))


def test_what_the_library_computes_in_float64_agrees() -> None:
    for name, axes in (("tiny-gpt2", PHASES["decode"] | {"phase": "decode"}), ("tiny-bert", {})):
        workload = of_model(name, **{**PHASES["prefill"], **axes, "dtype": "float64"})
        assert operation(workload).check().passed


def test_our_own_implementation_does_not_load_the_library() -> None:
    code = (
        "import sys, torch\n"
        "from attnprof.grid import sizes_of_model\n"
        "from attnprof.workload import Workload\n"
        "from attnprof.workloads import build_operation\n"
        f"model = {str(MODELS / 'tiny-llama.json')!r}\n"
        "sizes = sizes_of_model(model)\n"
        "w = Workload(backend='eager', scope='model', model=model, q_len=4, kv_len=4, **sizes)\n"
        "assert build_operation(w, torch.device('cpu'), 1).check().passed\n"
        "print('transformers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
