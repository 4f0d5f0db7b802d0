"""Formulas of peak activation bytes meet measured numbers, limits and each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.theory.memory import cache_copy_bytes, mask_bytes, peak_activation_bytes
from attnprof.workload import Workload

MIB = 2**20


def peak(workload: Workload, threads: int = 1) -> int:
    found = peak_activation_bytes(workload, "cpu", threads)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("backend", "dtype", "seq_len", "expected_mib"),
    [
        pytest.param("math", "float32", 512, 19.00, id="math 512: profiler 19.00 MiB"),
        pytest.param("math", "float32", 2048, 292.02, id="math 2048: profiler 292.02 MiB"),
        pytest.param("math", "float32", 4096, 1160.03, id="math 4096: profiler 1160.03 MiB"),
        pytest.param("math", "bfloat16", 2048, 304.02, id="math bf16 2048: more than fp32"),
        pytest.param("flash", "float32", 2048, 4.63, id="flash 2048, one thread"),
        pytest.param("eager", "float32", 2048, 256.0, id="eager 2048: two score matrices"),
    ],
)
def test_the_formulas_give_what_the_profiler_gave(
    backend: str, dtype: str, seq_len: int, expected_mib: float
) -> None:
    workload = Workload(backend=backend, dtype=dtype, variant="full", q_len=seq_len, kv_len=seq_len)
    assert peak(workload) / MIB == pytest.approx(expected_mib, abs=0.01)


def test_flash_on_cpu_takes_a_workspace_for_each_thread() -> None:
    workload = Workload(backend="flash", variant="full", q_len=2048, kv_len=2048)
    one, two = (peak(workload, threads) for threads in (1, 2))
    assert two - one == 256 * (512 + 2 + 64) * 4


@given(seq_len=st.integers(1024, 100_000))
def test_eager_and_math_grow_with_the_square_and_flash_with_the_length(seq_len: int) -> None:
    def at(backend: str, length: int) -> int:
        workload = Workload(backend=backend, variant="full", q_len=length, kv_len=length)
        return peak(workload)

    for backend in ("eager", "math"):
        assert at(backend, 2 * seq_len) / at(backend, seq_len) == pytest.approx(4, rel=0.03)
    assert at("flash", 2 * seq_len) < 2 * at("flash", seq_len)


@pytest.mark.parametrize("backend", ["mem-efficient", "cudnn", "flex", "xformers", "flashinfer"])
def test_what_has_no_formula_is_unknown(backend: str) -> None:
    workload = Workload(backend=backend, dtype="float16", q_len=64, kv_len=64)
    assert peak_activation_bytes(workload, "cuda") is None


def test_a_cache_kept_in_another_dtype_is_unknown() -> None:
    workload = Workload(
        backend="flash", phase="decode", q_len=1, kv_len=64, kv_cache="static", kv_dtype="bfloat16"
    )
    assert peak_activation_bytes(workload, "cpu") is None


def test_flash_on_a_gpu_keeps_the_output_and_a_log_sum_a_row() -> None:
    workload = Workload(backend="flash", dtype="bfloat16", q_len=1024, kv_len=1024, num_q_heads=16,
                        num_kv_heads=16, head_dim=128)  # fmt: skip
    assert peak_activation_bytes(workload, "cuda") == 16 * 1024 * (128 * 2 + 4)


@pytest.mark.parametrize(("kv_cache", "tokens"), [("contiguous", 17), ("static", 0), ("paged", 32)])
def test_a_decode_copies_what_its_cache_makes_it_copy(kv_cache: str, tokens: int) -> None:
    workload = Workload(
        backend="flash", phase="decode", q_len=1, kv_len=17, kv_cache=kv_cache, batch_size=3,
        num_kv_heads=2, num_q_heads=8, num_layers=5,
    )  # fmt: skip
    assert cache_copy_bytes(workload) == tokens * 3 * 2 * 2 * 64 * 4


def test_only_what_is_given_a_mask_holds_one() -> None:
    def held(backend: str, variant: str, window_len: int | None = None) -> int:
        workload = Workload(
            backend=backend, q_len=32, kv_len=32, variant=variant, window_len=window_len
        )
        return mask_bytes(workload)

    assert held("eager", "causal") == held("math", "sliding", 8) == 32 * 32
    assert held("eager", "full") == held("flash", "causal") == held("flex", "sliding", 8) == 0
