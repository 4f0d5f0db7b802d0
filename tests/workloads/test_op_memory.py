"""Bytes that attentions of every kind hold, measured, are those of theory."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

from attnprof.backends import unsupported_reason  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.theory.calls import parts_of_step  # noqa: E402
from attnprof.theory.kv_cache import allocated_bytes  # noqa: E402
from attnprof.theory.memory import mask_bytes, peak_activation_bytes  # noqa: E402
from attnprof.theory.summary import theory_weight_bytes  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402

CPU = torch.device("cpu")
SCALARS_BYTES = 16  # of factors that torch makes tensors of, which the formulas leave out
WINDOW = {"variant": "sliding", "window_len": 30}
SINK = {"variant": "sink", "window_len": 30, "sink_len": 3}
CALLS: dict[str, dict[str, Any]] = {
    "full": {"variant": "full"},
    "causal": {},
    "chunked": {"variant": "chunked", "window_len": 16},
    "prefix-lm": {"variant": "prefix-lm", "prefix_len": 16},
    "packed": {"variant": "packed", "document_len": 8},
    "padded": {"variant": "full", "min_len": 16},
    "chunk": {"q_len": 20, "phase": "chunked-prefill", "kv_cache": "paged"},
    "chunk in a window": {"q_len": 20, "phase": "chunked-prefill", "kv_cache": "static", **WINDOW},
    "verify": {"q_len": 4, "phase": "verify", "kv_cache": "contiguous", **SINK},
    "decode": {"q_len": 1, "phase": "decode", "kv_cache": "paged", "block_tokens": 7},
    "decode of a sink": {"q_len": 1, "phase": "decode", "kv_cache": "static", **SINK},
    "ring": {"q_len": 1, "phase": "decode", "kv_cache": "rolling", **WINDOW},
    "cross": {"q_len": 7, "attention": "cross", "kv_cache": "cross", "variant": "full"},
    "mixed": {"q_len": 1, "phase": "mixed", "kv_cache": "paged", "prefill_len": 40},
    "mixed, many": {
        "q_len": 1, "phase": "mixed", "kv_cache": "static", "prefill_len": 40, "batch_size": 30,
    },
}  # fmt: skip
SCORES: tuple[dict[str, Any], ...] = (
    {},
    {"position": "alibi"},
    {"position": "t5"},
    {"position": "rope"},
    {"v_head_dim": 24},
    {"softcap": 3.0},
    {"sink_logits": True},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "position": "alibi", "num_kv_heads": 4},
    {"dtype": "bfloat16", "v_head_dim": 24},
)


def served(backend: str, call: str) -> Iterator[Workload]:
    for scores in SCORES:
        shape: dict[str, Any] = {
            "q_len": 60, "kv_len": 60, "batch_size": 2, "num_q_heads": 4, "num_kv_heads": 2,
            "head_dim": 16, "num_layers": 2, **CALLS[call], **scores,
        }  # fmt: skip
        workload = Workload(backend=backend, **shape)
        if problem(workload) is None and unsupported_reason(workload, "cpu") is None:
            yield workload


@pytest.mark.parametrize("backend", ["eager", "math", "flash"])
@pytest.mark.parametrize("call", CALLS)
def test_peaks_masks_and_caches_are_those_of_theory(call: str, backend: str) -> None:
    known = 0
    for workload in served(backend, call):
        op = build_operation(workload, CPU, seed=1)
        assert op.mask_bytes == mask_bytes(workload)
        assert op.kv_bytes == sum(allocated_bytes(part) for part in parts_of_step(workload))
        expected = peak_activation_bytes(workload, "cpu", threads=1)
        if expected is not None:
            known += 1
            assert abs(op.profile.peak_bytes - expected) <= SCALARS_BYTES, workload
    assert known >= 2


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_weights_and_latents_are_those_of_theory(form: str) -> None:
    shape: dict[str, Any] = {
        "num_q_heads": 4, "num_kv_heads": 4, "head_dim": 16, "v_head_dim": 12, "kv_lora_rank": 10,
        "rope_head_dim": 4, "batch_size": 3, "num_layers": 2, "kv_len": 20, "kv_cache": "latent",
    }  # fmt: skip
    for kv_dtype in (None, "int8"):
        workload = Workload(
            backend="flash", phase="decode", q_len=1, mla=form, kv_dtype=kv_dtype, **shape
        )
        op = build_operation(workload, CPU, seed=1)
        assert op.weight_bytes == theory_weight_bytes(workload)
        assert op.kv_bytes == allocated_bytes(workload)
