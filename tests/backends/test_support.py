"""The support table answers without torch, by name, and in words."""

import subprocess
import sys
from typing import Any

import pytest

from attnprof.backends.support import BACKENDS, backend_named, unsupported_reason
from attnprof.dtypes import DTYPES
from attnprof.errors import UsageError
from attnprof.workload import Workload


def prefill(backend: str, **kwargs: Any) -> Workload:
    return Workload(backend=backend, q_len=64, kv_len=64, **kwargs)


def test_asking_does_not_load_torch() -> None:
    code = (
        "import sys; from attnprof.backends import unsupported_reason; "
        "from attnprof.workload import Workload; "
        "unsupported_reason(Workload(backend='flash', q_len=8, kv_len=8), 'cpu'); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_runs_somewhere_in_known_dtypes(name: str) -> None:
    backend = BACKENDS[name]
    assert backend.dtypes
    for dtypes in backend.dtypes.values():
        assert set(dtypes) <= set(DTYPES)
    assert set(backend.masked_on) <= set(backend.dtypes)


@pytest.mark.parametrize(
    ("workload", "kind", "words"),
    [
        pytest.param(prefill("mem-efficient"), "cpu", "does not run on cpu", id="device"),
        pytest.param(prefill("flash"), "cuda", "has no float32", id="dtype"),
        pytest.param(
            prefill("flash", dtype="float16", variant="sliding", window_len=8),
            "cuda", "no sliding window", id="window",
        ),
        pytest.param(
            prefill("mem-efficient", num_kv_heads=2), "cuda", "cannot share 2 KV heads", id="GQA"
        ),
        pytest.param(
            prefill("flash", dtype="float16", head_dim=512),
            "cuda",
            "head_dim up to 256",
            id="width",
        ),
        pytest.param(prefill("eager", dtype="float8_e4m3fn"), "cpu", "has no float8", id="fp8"),
        pytest.param(prefill("eager", kv_dtype="bfloat16"), "cpu", "no kv_dtype", id="kv_dtype"),
        pytest.param(
            prefill("math", softcap=30.0), "cpu", "does not cap scores: softcap 30", id="softcap"
        ),
        pytest.param(prefill("flash", sink_logits=True), "cpu", "logits of sinks", id="sinks"),
        pytest.param(
            prefill("flash", v_head_dim=32), "cpu", "v_head_dim 32 is not head_dim 64", id="values"
        ),
        pytest.param(
            prefill("flash", dtype="float16", position="alibi"), "cuda", "takes no bias", id="bias"
        ),
        pytest.param(
            prefill("flash", dtype="float16", variant="full", batch_size=2, min_len=8),
            "cuda", "from 8 to 64 are padded", id="padding",
        ),
        pytest.param(
            prefill("flash-attn", dtype="float16", variant="packed", document_len=8),
            "cuda", "variant packed needs one", id="variant",
        ),
        pytest.param(prefill("flex", phase="train"), "cpu", "does not go backward", id="train"),
        pytest.param(
            Workload(
                backend="xformers", phase="verify", q_len=4, kv_len=64, kv_cache="static",
                variant="prefix-lm", prefix_len=62, dtype="float16",
            ),
            "cuda", "variant prefix-lm needs one", id="a prefix that ends within the queries",
        ),
        pytest.param(
            Workload(
                backend="eager", phase="decode", q_len=1, kv_len=64, kv_cache="rolling",
                variant="sliding", window_len=8, position="alibi",
            ),
            "cpu", "out of order", id="a bias of a ring",
        ),
        pytest.param(
            Workload(
                backend="flex", phase="kv-growth", q_len=1, kv_len=64, start_len=8,
                kv_cache="static",
            ),
            "cpu", "compiled for one length", id="flex grows",
        ),
    ],
)  # fmt: skip
def test_what_cannot_run_is_said_in_words(workload: Workload, kind: str, words: str) -> None:
    assert words in (unsupported_reason(workload, kind) or "")


@pytest.mark.parametrize("backend", ["eager", "math", "flash", "flex"])
def test_the_cpu_runs_causal_full_and_windowed_prefill(backend: str) -> None:
    for variant, window_len in (("full", None), ("causal", None), ("sliding", 16)):
        workload = prefill(backend, variant=variant, window_len=window_len, num_kv_heads=2)
        assert unsupported_reason(workload, "cpu") is None


def test_a_window_of_a_decode_needs_no_mask() -> None:
    decode = Workload(
        backend="flash", phase="decode", dtype="float16", q_len=1, kv_len=64, kv_cache="static",
        variant="sliding", window_len=8,
    )  # fmt: skip
    assert unsupported_reason(decode, "cuda") is None


def test_the_synthetic_device_runs_all() -> None:
    assert unsupported_reason(prefill("cudnn", dtype="float64"), "synthetic") is None


def test_an_unknown_backend_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'flash'"):
        backend_named("falsh")
