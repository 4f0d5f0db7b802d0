"""Names of element types -> what torch calls them, multiplies them by, and loses by them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def torch_dtype(name: str) -> torch.dtype:
    """Torch's type for tensors of the dtype called ``name``; tf32 lies in memory as float32.

    >>> torch_dtype("tf32")
    torch.float32
    """
    found = getattr(torch, "float32" if name == "tf32" else name)
    assert isinstance(found, torch.dtype)
    return found


@contextmanager
def multiplying(dtype: str, device: torch.device) -> Iterator[None]:
    """float32 tensors on ``device`` are multiplied in tf32, or in float32 where that is asked for.

    Torch's own default differs by library: cuDNN's RNNs take tf32 where cuBLAS does not.
    """
    if dtype not in ("float32", "tf32") or device.type != "cuda":
        yield
        return
    wanted = "tf32" if dtype == "tf32" else "ieee"
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.rnn)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = wanted
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def rms_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square of ``output − reference``, as a share of the reference's. [1]

        √(Σ (o − r)² / Σ r²)

    Args:
        reference: In float64, from weights, inputs and caches that nothing has rounded.

    >>> rms_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]))
    0.2
    """
    expected = reference.double()
    found = output.to(expected.device).double()
    return float((found - expected).norm() / expected.norm())
