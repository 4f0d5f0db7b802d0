"""What timing asks of a GPU, of its sensors and of the call that is timed.

:mod:`attnprof.devices.cuda_timing` is written against these, so the same steps run on CUDA, on
ROCm and, in tests, on a virtual clock.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from attnprof.devices.telemetry import Reading


class Graph(Protocol):
    def replay(self) -> None: ...


class Gpu(Protocol):
    """The few things that timing asks of a GPU. All but the clock act on one side stream."""

    l2_bytes: int
    can_spin: bool  # a kernel that waits for a given time
    can_span: bool  # CUPTI: kernel times taken on the device

    def now_s(self) -> float: ...
    def pause(self, duration_s: float) -> None: ...

    def on_stream(self) -> AbstractContextManager[None]:
        """Enter the side stream (capture is illegal on the default one), without autograd."""

    def synchronize(self) -> None: ...
    def event(self) -> Any: ...
    def record(self, event: Any) -> None: ...
    def elapsed_s(self, start: Any, end: Any) -> float: ...

    def spin(self, duration_s: float) -> None:
        """Queue a kernel that keeps the stream for at least ``duration_s``."""

    def clear_cache(self) -> None:
        """Queue the zeroing of an int32 buffer of twice the L2."""

    def clone(self, inputs: Any) -> Any:
        """Copy every tensor of ``inputs`` to memory of its own.

        Raises:
            OutOfMemoryError: There is no room.
        """

    def capture(self, calls: Callable[[], None]) -> Graph | None:
        """Record what ``calls`` queues into a graph; None where something refuses capture."""

    def spans_s(
        self, before: Callable[[], None], call: Callable[[], object], num_calls: int
    ) -> list[float] | None:
        """First to last kernel of each call, as CUPTI saw them; None when it saw none."""


class Watch(Protocol):
    """Clocks and throttling seen while a batch runs."""

    def begin(self) -> None: ...
    def look(self) -> None: ...
    def end(self) -> tuple[Reading, ...]: ...


@dataclass(frozen=True)
class Call:
    """What is timed: ``run(inputs)``, with all that it reads in ``inputs``.

    A closure that brings its own tensors could not be rotated and would be warm under the name of
    cold, so the inputs come apart. ``bytes_touched`` counts their storage, once.
    """

    run: Callable[[Any], object]
    inputs: Any
    bytes_touched: int

    def __post_init__(self) -> None:
        if self.bytes_touched < 1:
            raise ValueError("a call that touches no bytes cannot be rotated")
