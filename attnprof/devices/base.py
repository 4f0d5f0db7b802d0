"""What a device promises: to build a workload, check it, time it and weigh it.

A device may import torch, inside a worker process; everything else does not.
"""

from typing import Any, Protocol

from attnprof.measured import Check, Energy, GrowthPoint, Memory, Part, Samples, WarmUp
from attnprof.workload import Workload


class Cell(Protocol):
    """One workload, built on a device. ``close`` gives its memory back."""

    @property
    def prepare_s(self) -> float:
        """Seconds of compiling or planning, apart from warm-up."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels actually launched, where they can be known."""

    def check(self) -> Check:
        """Compare the output with a float64 reference on the rows that fit."""

    def warm_up(self, limit_s: float) -> WarmUp:
        """Call until the time is steady, ``limit_s`` at the most."""

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        """Take ``num_samples`` timed samples, fewer when ``limit_s`` is over, one at the least."""

    def grow(self, limit_s: float) -> tuple[GrowthPoint, ...]:
        """Run a growing workload from start to end; only kv-growth and generate have it.

        The first point of a generate is its prefill: its ``kv_len`` is the workload's
        ``start_len`` and its time the TTFT.
        """

    def weigh(self) -> Memory:
        """Measure the peak of one call, in a pass of its own: meters slow the call."""

    def parts(self, limit_s: float) -> tuple[Part, ...]:
        """What each part of one call takes, in passes of their own; none at scope op."""

    def energy(self) -> Energy | None:
        """Joules of one call where a meter exists and the window is long enough, else None."""

    def close(self) -> None: ...


class Device(Protocol):
    """Hardware with a clock, a memory meter and facts."""

    kind: str  # cpu, cuda, mps, xpu, synthetic

    def facts(self) -> dict[str, Any]:
        """What the device is: name, memory_bytes, cores or SMs, clocks, driver, versions."""

    def ceilings(self, dtypes: tuple[str, ...]) -> dict[str, Any]:
        """The measured roofs.

        ``{"copy_bytes_per_s": x, "copy_bytes_per_cpu_s": x | None,
        "matmul": {dtype: {"flops_per_s": x, "flops_per_cpu_s": x | None}}}``; reads and writes
        both count in the copy, and a dtype that the device cannot multiply is left out.
        """

    def free_bytes(self) -> int:
        """Memory that a workload may still take."""

    def build(self, workload: Workload, seed: int) -> Cell:
        """Allocate the tensors of ``workload``, seeded and normally distributed.

        Raises:
            UnsupportedError: The backend or the device lacks something, by name.
            OutOfMemoryError: There is no room.
        """

    def rulers(self) -> dict[str, float]:
        """Seconds of a fixed matrix product and a fixed copy now: they tell drift."""
