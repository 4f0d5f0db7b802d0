"""Calls on a CUDA device into the time from their first kernel to their last, as CUPTI saw them.

The last resort for a call that no graph can hold and no backlog can hide. Kernels belong to the
call in whose bracket of CUPTI's own clock they ran, never to a named range: library calls that
launch through the driver are missing from ranges (flashinfer-ai/flashinfer#2145).
"""

from collections.abc import Callable
from importlib import metadata
from typing import Any

BUFFER_BYTES = 8 * 2**20
MIN_MAJOR = 13


def has_cupti() -> bool:
    """Whether cupti-python 13 or later can be imported."""
    try:
        major = int(metadata.version("cupti-python").split(".")[0])
        if major < MIN_MAJOR:
            return False
        from cupti import cupti  # noqa: F401
    except (metadata.PackageNotFoundError, ImportError, OSError, ValueError):
        return False
    return True


def kernel_spans(
    before: Callable[[], None],
    call: Callable[[], object],
    synchronize: Callable[[], None],
    num_calls: int,
) -> list[float] | None:
    """Seconds of each call on the device; None when CUPTI saw no kernel of one of them."""
    from cupti import cupti

    kernels: list[tuple[int, int]] = []

    def completed(activities: list[Any]) -> None:
        kernels.extend((activity.start, activity.end) for activity in activities)

    brackets: list[tuple[int, int]] = []
    cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), completed)
    cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
    try:
        for _ in range(num_calls):
            before()
            synchronize()
            begun = cupti.get_timestamp()
            call()
            synchronize()
            brackets.append((begun, cupti.get_timestamp()))
        cupti.activity_flush_all(1)
    finally:
        cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
    spans_s = []
    for begun, ended in brackets:
        inside = [kernel for kernel in kernels if begun <= kernel[0] and kernel[1] <= ended]
        if not inside:
            return None
        first, last = min(start for start, _ in inside), max(end for _, end in inside)
        spans_s.append((last - first) / 1e9)
    return spans_s
