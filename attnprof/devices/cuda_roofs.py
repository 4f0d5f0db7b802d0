"""What a CUDA or ROCm device is, and how fast it copies and multiplies: facts, roofs and rulers."""

import os
from collections.abc import Callable
from typing import Any

import torch

from attnprof.devices.gpu import Gpu
from attnprof.workloads.precision import multiplying, torch_dtype

COPY_BYTES = 512 * 2**20
MATMUL_SIZES = {"float64": 2048, "float32": 4096}  # 8192 for all that is shorter
RULER_SIZE = 2048
RULER_BYTES = 64 * 2**20
REPEATS = 10
UNKNOWN_L2_BYTES = 128 * 2**20  # more than any L2 today, where the driver does not tell
# A cache behind the L2 that has to be flushed with it, by AMD's data sheets.
INFINITY_CACHE_BYTES = {
    "gfx1030": 128 * 2**20,  # Radeon RX 6900 XT
    "gfx1100": 96 * 2**20,  # Radeon RX 7900 XTX
    "gfx942": 256 * 2**20,  # Instinct MI300
    "gfx950": 256 * 2**20,  # Instinct MI350
}
ENVIRONMENT = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_SCALE_LAUNCH_QUEUES", "CUDA_DEVICE_MAX_CONNECTIONS",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def architecture(properties: Any) -> str:
    """``sm_90``, or AMD's name without its feature flags: ``gfx942``."""
    amd: str | None = getattr(properties, "gcnArchName", None)
    if torch.version.hip is not None and amd is not None:
        return amd.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def known_l2_bytes(properties: Any) -> int | None:
    """The L2, and on AMD the Infinity Cache behind it; None where the driver does not tell."""
    l2_bytes: int | None = getattr(properties, "L2_cache_size", None)
    if not l2_bytes:
        return None
    return l2_bytes + INFINITY_CACHE_BYTES.get(architecture(properties), 0)


def flushed_bytes(properties: Any) -> int:
    """Cache to clear for a cold call; where its size is unknown, more than any has."""
    return known_l2_bytes(properties) or UNKNOWN_L2_BYTES


def cuda_facts(properties: Any, sensed: dict[str, Any]) -> dict[str, Any]:
    """The device, its memory and all of the software that moves its numbers.

    Args:
        sensed: What the management library knows: driver, clocks, power limit, MIG.
    """
    capability = f"{properties.major}.{properties.minor}"
    return {
        "name": properties.name,
        "architecture": architecture(properties),
        "capability": capability if torch.version.hip is None else None,
        "num_sms": properties.multi_processor_count,
        "l2_bytes": known_l2_bytes(properties),
        "memory_bytes": properties.total_memory,
        "driver": None,
        "max_sm_clock_hz": None,
        "max_memory_clock_hz": None,
        "power_limit_w": None,
        "mig": None,
        **sensed,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "torch": torch.__version__,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allocator": torch.cuda.get_allocator_backend(),
        "environment": _set_variables(ENVIRONMENT),
        "visible_devices": _set_variables(VISIBLE_DEVICES),
    }


def _set_variables(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def cuda_ceilings(
    gpu: Gpu, device: torch.device, dtypes: tuple[str, ...], free_bytes: int
) -> dict[str, Any]:
    """The two roofs by events, the best of several, warm.

    A copy between buffers that no cache holds, its reads and its writes both counted, and a square
    matrix product in each dtype.
    """
    matmul = {}
    for dtype in dtypes:
        rate = _matmul_rate(gpu, device, dtype)
        if rate is not None:
            matmul[dtype] = {"flops_per_s": rate, "flops_per_cpu_s": None}
    return {
        "copy_bytes_per_s": _copy_rate(gpu, device, free_bytes),
        "copy_bytes_per_cpu_s": None,
        "matmul": matmul,
    }


def cuda_rulers(gpu: Gpu, device: torch.device) -> dict[str, float]:
    """Seconds that a fixed matrix product and a fixed copy take now, by events."""
    left = torch.randn(RULER_SIZE, RULER_SIZE, device=device)
    out = torch.empty_like(left)
    source = torch.ones(RULER_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return {
        "matmul_s": best_s(gpu, lambda: torch.mm(left, left, out=out)),
        "copy_s": best_s(gpu, lambda: target.copy_(source)),
    }


def best_s(gpu: Gpu, call: Callable[[], object]) -> float:
    """The least device time of several calls queued together, the first left out. [s]"""
    with gpu.on_stream():
        call()
        pairs = [(gpu.event(), gpu.event()) for _ in range(REPEATS)]
        for start, end in pairs:
            gpu.record(start)
            call()
            gpu.record(end)
        gpu.synchronize()
        return min(gpu.elapsed_s(start, end) for start, end in pairs)


def _copy_rate(gpu: Gpu, device: torch.device, free_bytes: int) -> float:
    num_bytes = min(max(COPY_BYTES, 8 * gpu.l2_bytes), free_bytes // 4)
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_s(gpu, lambda: target.copy_(source))


def _matmul_rate(gpu: Gpu, device: torch.device, dtype: str) -> float | None:
    """FLOP/s of a square matrix product; None in a dtype that the device cannot multiply."""
    size = MATMUL_SIZES.get(dtype, 8192)
    try:
        left = torch.randn(size, size, device=device).to(torch_dtype(dtype))
        right = torch.randn(size, size, device=device).to(torch_dtype(dtype))
        if dtype.startswith("float8"):
            one = torch.ones((), device=device)
            columns = right.t()  # the kernel wants the second matrix by columns
            matmul_s = best_s(
                gpu,
                lambda: torch._scaled_mm(left, columns, one, one, out_dtype=torch.bfloat16),
            )
        else:
            out = torch.empty_like(left)
            with multiplying(dtype, device):
                matmul_s = best_s(gpu, lambda: torch.mm(left, right, out=out))
    except (RuntimeError, AttributeError):
        gpu.synchronize()  # raises when it was more than a refused dtype
        return None
    return 2 * size**3 / matmul_s
