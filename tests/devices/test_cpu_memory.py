"""The profiler's peak of one call is what the formulas say, on one thread and on two."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.theory.memory import mask_bytes, peak_activation_bytes  # noqa: E402
from attnprof.theory.summary import theory_kv_bytes  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.op import AttentionOp  # noqa: E402
from attnprof.workloads.profiled import profiled  # noqa: E402

CPU = torch.device("cpu")
SCALARS_BYTES = 16  # of factors that torch makes tensors of, which the formulas leave out
DTYPES = ("float32", "bfloat16", "float16")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def measured_and_expected(workload: Workload, threads: int) -> tuple[int, int]:
    op = AttentionOp(workload, CPU, seed=1)
    expected = peak_activation_bytes(workload, "cpu", threads)
    assert expected is not None
    assert op.mask_bytes == mask_bytes(workload)
    return op.profile.peak_bytes, expected


@pytest.mark.parametrize("num_kv_heads", [8, 2])
@pytest.mark.parametrize("variant", ["full", "causal", "sliding"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["math", "flash"])
@pytest.mark.parametrize("seq_len", [30, 256, 700])
def test_prefill(
    backend: str, dtype: str, variant: str, num_kv_heads: int, seq_len: int, threads: int
) -> None:
    workload = Workload(
        backend=backend, dtype=dtype, variant=variant, q_len=seq_len, kv_len=seq_len,
        window_len=100 if variant == "sliding" else None, num_kv_heads=num_kv_heads,
    )  # fmt: skip
    measured, expected = measured_and_expected(workload, threads)
    assert abs(measured - expected) <= SCALARS_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["math", "flash"])
@pytest.mark.parametrize("seq_len", [1024, 2048])
def test_long_prefill(backend: str, dtype: str, variant: str, seq_len: int, threads: int) -> None:
    workload = Workload(
        backend=backend, dtype=dtype, variant=variant, q_len=seq_len, kv_len=seq_len
    )
    measured, expected = measured_and_expected(workload, threads)
    assert abs(measured - expected) <= SCALARS_BYTES


@pytest.mark.parametrize("variant", ["full", "causal", "sliding"])
@pytest.mark.parametrize("seq_len", [30, 512])
def test_eager_prefill_holds_two_score_matrices(variant: str, seq_len: int, threads: int) -> None:
    workload = Workload(
        backend="eager", variant=variant, q_len=seq_len, kv_len=seq_len, num_kv_heads=2,
        window_len=100 if variant == "sliding" else None,
    )  # fmt: skip
    measured, expected = measured_and_expected(workload, threads)
    assert abs(measured - expected) <= SCALARS_BYTES


@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("backend", ["eager", "math", "flash"])
@pytest.mark.parametrize("variant", ["causal", "sliding"])
def test_decode_of_a_stack_holds_what_one_layer_takes(
    backend: str, variant: str, num_layers: int, kv_cache: str, threads: int
) -> None:
    workload = Workload(
        backend=backend, phase="decode", q_len=1, kv_len=500, kv_cache=kv_cache, batch_size=2,
        num_layers=num_layers, num_kv_heads=2, variant=variant,
        window_len=100 if variant == "sliding" else None,
    )  # fmt: skip
    measured, expected = measured_and_expected(workload, threads)
    assert abs(measured - expected) <= SCALARS_BYTES


@pytest.mark.parametrize("kv_cache", ["none", "contiguous", "static", "paged"])
def test_the_last_step_of_a_generate_peaks_as_theory_says(kv_cache: str, threads: int) -> None:
    workload = Workload(
        backend="flash", phase="generate", q_len=1, kv_len=200, start_len=100, kv_cache=kv_cache
    )
    measured, expected = measured_and_expected(workload, threads)
    assert abs(measured - expected) <= SCALARS_BYTES


@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
@pytest.mark.parametrize("phase", ["decode", "kv-growth"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kv_bytes_are_exactly_those_of_theory(phase: str, kv_cache: str, dtype: str) -> None:
    workload = Workload(
        backend="flash", phase=phase, q_len=1, kv_len=96, kv_cache=kv_cache, num_layers=2,
        num_kv_heads=2, dtype=dtype, batch_size=3, start_len=8 if phase == "kv-growth" else None,
    )  # fmt: skip
    assert AttentionOp(workload, CPU, seed=1).kv_bytes == theory_kv_bytes(workload)
    one_more = replace(workload, kv_len=97)
    blocks = 112 if kv_cache == "paged" else 97
    expected = theory_kv_bytes(replace(workload, kv_len=blocks))
    assert AttentionOp(one_more, CPU, seed=1).kv_bytes == expected


def test_the_first_call_weighs_what_later_calls_weigh() -> None:
    op = AttentionOp(Workload(backend="math", q_len=200, kv_len=200), CPU, seed=1)
    first = op.profile.peak_bytes
    op.check()
    with op.active():
        assert profiled(op).peak_bytes == first


def test_a_peak_between_two_levels_is_seen() -> None:
    def call() -> None:
        kept = torch.empty(1000, dtype=torch.uint8)
        torch.empty(5000, dtype=torch.uint8)
        del kept

    assert profiled(call).peak_bytes == 6000
