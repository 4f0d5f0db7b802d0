"""Every variant, position, cache and kind of head together agrees with float64 where it is claimed.

The tables are gone through whole; the scope, the kernel and the cache's element type of each
combination are drawn. What Hypothesis chooses in ``test_op.py`` and ``test_layer.py`` has other
lengths and dtypes, but leaves rare combinations out.
"""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attnprof.backends import BACKENDS, unsupported_reason  # noqa: E402
from attnprof.combinations import problem  # noqa: E402
from attnprof.positions import POSITIONS  # noqa: E402
from attnprof.variants import VARIANTS, parameters_of  # noqa: E402
from attnprof.workload import KV_CACHES, Workload  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
CPU = torch.device("cpu")
LEN = 12
PHASES: dict[str, dict[str, Any]] = {
    "prefill": {"q_len": LEN}, "train": {"q_len": LEN}, "chunked-prefill": {"q_len": 5},
    "decode": {"q_len": 1}, "verify": {"q_len": 3}, "mixed": {"q_len": 1, "prefill_len": 7},
}  # fmt: skip
SIZES = {"window_len": 5, "sink_len": 2}
_LATENT: dict[str, Any] = {
    "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 6, "kv_lora_rank": 10,
    "rope_head_dim": 4,
}  # fmt: skip
HEADS: dict[str, dict[str, Any]] = {
    "mha": {"num_q_heads": 2, "num_kv_heads": 2},
    "gqa": {"num_q_heads": 4, "num_kv_heads": 2, "softcap": 2.0},
    "mqa": {"num_q_heads": 2, "num_kv_heads": 1, "v_head_dim": 4, "sink_logits": True},
    "mla, expanded": {**_LATENT, "mla": "expanded"},
    "mla, absorbed": {**_LATENT, "mla": "absorbed"},
}
KERNELS = [  # flex is compiled, seconds for each shape: test_op.py has it
    name for name, backend in BACKENDS.items() if "cpu" in backend.dtypes and name != "flex"
]
REST = list(
    product(
        ("op", "op", "op", "layer"),
        KERNELS,
        (None, "int8", "int4", "float8_e4m3fn"),
    )
)
MISSED = {
    "prefill": set[str](),
    "train": {"mla, absorbed"},  # a latent is expanded in training
    "decode": {"packed"},
    "chunked-prefill": {"packed", "rolling"},
    "verify": {"packed", "rolling"},
    "mixed": {"packed", "rolling"},
}
"""What no combination of a phase is served with."""


def claimed(workload: Workload, drawn: random.Random) -> Workload | None:
    """The workload in a scope, with a kernel and in an element type that serve it, if any do."""
    for scope, backend, kv_dtype in drawn.sample(REST, len(REST)):
        found = replace(workload, scope=scope, backend=backend, kv_dtype=kv_dtype)
        if problem(found) is None and unsupported_reason(found, "cpu") is None:
            return found
    return None


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_every_combination_that_is_claimed_agrees_with_float64(phase: str) -> None:
    drawn, met, wrong = random.Random(phase), set[str](), []
    kinds = ("none",) if phase in ("prefill", "train") else KV_CACHES[1:-1]
    for variant, position, cache, heads in product(VARIANTS, POSITIONS, kinds, HEADS):
        sizes = {name: SIZES.get(name, 4) for name in parameters_of(variant)}
        workload = Workload(
            backend="eager", phase=phase, variant=variant, position=position, kv_cache=cache,
            kv_len=LEN, batch_size=2, block_tokens=4 if cache == "paged" else None,
            **{"head_dim": 8, **HEADS[heads], **sizes, **PHASES[phase]},
        )  # fmt: skip
        served = claimed(workload, drawn)
        if served is None:
            continue
        met |= {variant, position, cache, heads}
        check = build_operation(served, CPU, seed=3).check()
        if not check.passed:
            wrong.append(f"{served.workload_id}: {check}")
    assert not wrong, "\n".join(wrong)
    missed = {*VARIANTS, *POSITIONS, *kinds, *HEADS} - met
    assert missed == MISSED[phase]
