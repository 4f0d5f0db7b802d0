"""Torch's streams, events and graphs as what :class:`~attnprof.devices.gpu.Gpu` asks for.

CUDA and ROCm alike: torch's HIP build answers to the same names. An error of the device that is
sticky (an illegal address, a hung kernel) comes out of the next :meth:`TorchGpu.synchronize`; it
cannot be cleared, so it is let through and ends the worker.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnprof.devices.cupti_spans import has_cupti, kernel_spans
from attnprof.devices.gpu import Graph
from attnprof.workloads.out_of_memory import raising_out_of_memory

SPIN_PROBE_CYCLES = 2_000_000
SPIN_PROBES = 30  # about as many milliseconds: an idle clock has risen by then


class TorchGpu:
    """One CUDA or ROCm device, its side stream and its flush buffer.

    Args:
        l2_bytes: What has to be flushed to make a call cold, a last-level cache included.
        max_clock_hz: Highest clock, where known: a spin counts cycles, and must not be short.
    """

    def __init__(
        self, device: torch.device, l2_bytes: int, max_clock_hz: float | None = None
    ) -> None:
        self.device = device
        self.l2_bytes = l2_bytes
        self.can_span = torch.version.cuda is not None and has_cupti()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # int32: zeroing int8 is three times slower (triton-lang/triton#840)
        self._flush = torch.empty(2 * l2_bytes // 4, dtype=torch.int32, device=device)
        self._cycles_per_s = self._spin_rate(max_clock_hz)
        self.can_spin = self._cycles_per_s is not None

    def now_s(self) -> float:
        return time.perf_counter()

    def pause(self, duration_s: float) -> None:
        time.sleep(duration_s)

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        with torch.inference_mode(), torch.cuda.device(self.device):
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                yield

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self, event: torch.cuda.Event) -> None:
        event.record(self._stream)

    def elapsed_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def spin(self, duration_s: float) -> None:
        assert self._cycles_per_s is not None
        torch.cuda._sleep(int(duration_s * self._cycles_per_s))  # type: ignore[no-untyped-call]

    def clear_cache(self) -> None:
        self._flush.zero_()

    def clone(self, inputs: Any) -> Any:
        with raising_out_of_memory():
            return copy.deepcopy(inputs)

    def capture(self, calls: Callable[[], None]) -> Graph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: what another thread asks of the driver must not end the capture
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                calls()
        except RuntimeError:
            self.synchronize()  # raises when it was more than a refused capture
            return None
        return graph

    def spans_s(
        self, before: Callable[[], None], call: Callable[[], object], num_calls: int
    ) -> list[float] | None:
        return kernel_spans(before, call, self.synchronize, num_calls)

    def _spin_rate(self, max_clock_hz: float | None) -> float | None:
        """Cycles of a spin in a second, at the highest clock seen; None where torch has no spin.

        The spin is private to torch, so it is tried, and its rate measured: what it counts
        differs between devices.
        """
        if not hasattr(torch.cuda, "_sleep"):
            return None
        start, end = self.event(), self.event()
        rates = []
        try:
            with self.on_stream():
                for _ in range(SPIN_PROBES):
                    self.record(start)
                    torch.cuda._sleep(SPIN_PROBE_CYCLES)  # type: ignore[no-untyped-call]
                    self.record(end)
                    self.synchronize()
                    elapsed_s = self.elapsed_s(start, end)
                    if elapsed_s > 0:
                        rates.append(SPIN_PROBE_CYCLES / elapsed_s)
        except (RuntimeError, NotImplementedError):
            return None
        # The first rate is never the highest when the launch itself shows, so take the maximum.
        return max(*rates, max_clock_hz or 0.0) if len(rates) > 1 else None
