"""Growth brings every token that it says, attends to all of them, and keeps what they take."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.backends.support import unsupported_reason  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.theory.kv_cache import (  # noqa: E402
    allocated_bytes,
    cached_bytes,
    copy_overshoot_bytes,
)
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads import build_grower, build_operation  # noqa: E402
from attnprof.workloads.growth import grow  # noqa: E402
from attnprof.workloads.op_growth import OpGrower  # noqa: E402

CPU = torch.device("cpu")
GENERATE = Workload(
    backend="eager", phase="generate", q_len=1, kv_len=24, start_len=9, num_q_heads=4,
    num_kv_heads=2, head_dim=8, num_layers=2, batch_size=2, kv_cache="static",
)  # fmt: skip
LATENT = {
    "num_kv_heads": 4, "mla": "absorbed", "kv_lora_rank": 6, "rope_head_dim": 4, "position": "rope"
}  # fmt: skip
CACHES: dict[str, dict[str, Any]] = {
    "contiguous": {"kv_cache": "contiguous"},
    "contiguous int8": {"kv_cache": "contiguous", "kv_dtype": "int8"},
    "contiguous, wide keys": {"kv_cache": "contiguous", "v_head_dim": 2},
    "static": {"kv_cache": "static"},
    "paged": {"kv_cache": "paged", "block_tokens": 5},
    "rolling": {"kv_cache": "rolling", "variant": "sliding", "window_len": 6},
    "window": {"variant": "sliding", "window_len": 6},
    "chunked": {"variant": "chunked", "window_len": 6},
    "sink": {"variant": "sink", "window_len": 6, "sink_len": 2},
    "int8": {"kv_dtype": "int8"},
    "paged int4": {"kv_cache": "paged", "kv_dtype": "int4"},
    "rope": {"position": "rope"},
    "alibi": {"position": "alibi"},
    "latent": {"kv_cache": "latent", **LATENT},
    "expanded latent": {"kv_cache": "latent", **LATENT, "mla": "expanded"},
    "narrow values": {"v_head_dim": 4},
    "none": {"kv_cache": "none"},
    "none, rope": {"kv_cache": "none", "position": "rope"},
}


def generating(**changes: Any) -> Workload:
    workload = replace(GENERATE, **changes)
    assert problem(workload) is None
    return workload


def timed(call: Callable[[], object]) -> tuple[float, float | None]:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started, None


@pytest.mark.parametrize("changes", CACHES.values(), ids=CACHES)
def test_a_generate_has_a_point_for_its_prompt_and_each_token(changes: dict[str, Any]) -> None:
    workload = generating(**changes)
    points = grow(workload, CPU, 1, timed, limit_s=60)
    assert [point.kv_len for point in points] == list(range(9, 25))
    total_s = 0.0
    for point in points:
        total_s += point.wall_s
        assert point.total_s == pytest.approx(total_s)
        assert point.total_cpu_s is None
        cached = workload.kv_cache != "none"
        assert point.useful_bytes == (cached_bytes(workload, point.kv_len) if cached else 0)
        assert point.allocated_bytes == (allocated_bytes(workload, point.kv_len) if cached else 0)
        beyond = 0 if point.kv_len == 9 else copy_overshoot_bytes(workload, point.kv_len)
        assert point.peak_bytes == point.allocated_bytes + beyond


@pytest.mark.parametrize("changes", CACHES.values(), ids=CACHES)
def test_what_grows_is_served(changes: dict[str, Any]) -> None:
    assert unsupported_reason(generating(**changes), "cpu") is None


@pytest.mark.parametrize("changes", CACHES.values(), ids=CACHES)
def test_the_step_at_the_end_of_a_growth_is_checked(changes: dict[str, Any]) -> None:
    assert build_operation(generating(**changes), CPU, 1).check().passed


@pytest.mark.parametrize("kind", ["contiguous", "static", "paged"])
def test_a_step_attends_to_the_prompt_and_to_all_tokens_since(kind: str) -> None:
    workload = generating(kv_cache=kind, position="rope", num_layers=1)
    grower = build_grower(workload, CPU, 1)
    assert isinstance(grower, OpGrower)
    with torch.inference_mode(), grower.active():
        grower.prompt(keep=False)
        (cache,) = grower.caches
        assert cache.length == 0
        grower.prompt(keep=True)
        prompt = [part.clone() for part in cache.held()]
        for kv_len in (10, 11):
            grower.ready(kv_len)
            grower.step(keep=False)
            assert cache.length == kv_len - 1
            output = grower.step(keep=True)
        held = cache.held()
    assert cache.length == 11 and isinstance(output, torch.Tensor)
    assert all(torch.equal(a[:, :, :9], b) for a, b in zip(held, prompt, strict=True))
    turned, again = held[0][:, :, 9], held[0][:, :, 10]
    assert not torch.allclose(turned, again)  # the same key at two positions
    assert torch.allclose(turned.norm(dim=-1), again.norm(dim=-1), rtol=1e-5)
    assert torch.equal(held[1][:, :, 9], held[1][:, :, 10])
    (layer,) = grower._layers
    q = grower._call.position.rotate(layer.q, 10)
    k, v = (part.repeat_interleave(2, dim=1).double() for part in held)
    scores = q.double() @ k.transpose(-1, -2) / 8**0.5
    assert torch.allclose(output.double(), scores.softmax(-1) @ v, atol=1e-5)


def test_without_a_cache_a_step_is_a_prefill_of_all_tokens_so_far() -> None:
    workload = generating(kv_cache="none", num_layers=1)
    grower = build_grower(workload, CPU, 1)
    with torch.inference_mode(), grower.active():
        first = grower.prompt(keep=True)
        grower.ready(15)
        longer = grower.step(keep=True)
    assert isinstance(first, torch.Tensor) and isinstance(longer, torch.Tensor)
    assert first.shape == (2, 4, 9, 8) and longer.shape == (2, 4, 15, 8)
    assert torch.allclose(longer[:, :, :9], first, atol=1e-6)
    assert grower.cache_bytes().allocated == 0


def test_a_window_that_rolls_holds_what_one_that_is_cut_is_given() -> None:
    found = []
    for kv_cache in ("static", "rolling"):
        workload = generating(kv_cache=kv_cache, variant="sliding", window_len=6, num_layers=1)
        grower = OpGrower(workload, CPU, 1)
        with torch.inference_mode(), grower.active():
            grower.prompt(keep=True)
            for kv_len in range(10, 20):
                grower.ready(kv_len)
                output = grower.step(keep=True)
        found.append((output, grower.caches[0]))
    (_, whole), (output, ring) = found
    assert isinstance(output, torch.Tensor)
    order = ring.positions(0).argsort()
    assert order.tolist() != sorted(order.tolist())
    k, v = (part[:, :, order] for part in ring.held())
    for rolled, cut in zip((k, v), whole.held(), strict=True):
        assert torch.equal(rolled, cut[:, :, -6:])
    k, v = (part.repeat_interleave(2, dim=1).double() for part in (k, v))
    scores = grower._layers[0].q.double() @ k.transpose(-1, -2) / 8**0.5
    assert torch.allclose(output.double(), scores.softmax(-1) @ v, atol=1e-5)


def test_a_growth_that_runs_out_of_time_keeps_its_prompt_and_a_step() -> None:
    points = grow(generating(), CPU, 1, timed, limit_s=0)
    assert [point.kv_len for point in points] == [9, 10]
