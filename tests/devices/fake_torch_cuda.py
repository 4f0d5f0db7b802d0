"""torch.cuda on a machine without a GPU: every call is held against the real signature.

Tensors stay on the CPU and kernels run where they are called; streams, events and graphs are
stand-ins. So what runs is the code that runs on a GPU, and a name or an argument that torch does
not have is an error here.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")
SPIN_CYCLES_PER_S = 1.5e9


class FakeTorchCuda:
    """The log of what was asked, and the knobs of what goes wrong."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.can_capture = True
        self.replayed: Callable[[], None] | None = None
        self.held_bytes = 1000
        self.peak_bytes = 1000
        self.fails_next: Exception | None = None

    def note(self, what: str) -> None:
        self.log.append(what)
        if self.fails_next is not None and what == "synchronize":
            error, self.fails_next = self.fails_next, None
            raise error


def properties(**changes: Any) -> SimpleNamespace:
    """What torch tells of an H100."""
    told = {
        "name": "NVIDIA H100 80GB HBM3",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "L2_cache_size": 50 * 2**20,
        "total_memory": 85_520_809_984,
        "uuid": "11112222-3333-4444-5555-666677778888",
    }
    return SimpleNamespace(**{**told, **changes})


def install(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> FakeTorchCuda:
    """Put the stand-ins in place of torch.cuda's functions and classes."""
    fake = FakeTorchCuda()
    real = {name: getattr(torch.cuda, name) for name in _NAMES}

    class Event:
        def __init__(self, **options: Any) -> None:
            inspect.signature(real["Event"]).bind(**options)
            assert options.get("enable_timing"), "an event without timing cannot be read"
            self.at_s = 0.0

        def record(self, *args: Any) -> None:
            inspect.signature(real["Event"].record).bind(self, *args)
            fake.note("record")
            self.at_s = time.perf_counter()

        def elapsed_time(self, *args: Any) -> float:
            inspect.signature(real["Event"].elapsed_time).bind(self, *args)
            return max(1e-3, 1e3 * (float(args[0].at_s) - self.at_s))

    class Stream:
        def __init__(self, *args: Any) -> None:
            inspect.signature(real["Stream"]).bind(*args)

        def wait_stream(self, stream: Any) -> None:
            inspect.signature(real["Stream"].wait_stream).bind(self, stream)
            fake.note("wait_stream")

    class CUDAGraph:
        def __init__(self) -> None:
            self.num_calls = 0

        def replay(self) -> None:
            inspect.signature(real["CUDAGraph"].replay).bind(self)
            fake.note("replay")

    @contextmanager
    def graph(*args: Any, **options: Any) -> Iterator[None]:
        inspect.signature(real["graph"]).bind(*args, **options)
        assert options["stream"] is not None, "capture is illegal on the default stream"
        fake.note("capture")
        yield
        if not fake.can_capture:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    @contextmanager
    def entered(*args: Any) -> Iterator[None]:
        yield

    def reset_peak(*args: Any) -> None:
        fake.note("reset_peak_memory_stats")
        fake.peak_bytes = fake.held_bytes

    stand_ins: dict[str, Any] = {
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "stream": entered,
        "device": entered,
        "current_stream": lambda *_: "default stream",
        "synchronize": lambda *_: fake.note("synchronize"),
        "empty_cache": lambda: fake.note("empty_cache"),
        "_sleep": lambda cycles: time.sleep(cycles / SPIN_CYCLES_PER_S / 1000),
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_properties": lambda *_: properties(**changes),
        "mem_get_info": lambda *_: (8 * 2**30, 80 * 2**30),
        "memory_reserved": lambda *_: 5000,
        "memory_allocated": lambda *_: fake.held_bytes,
        "max_memory_allocated": lambda *_: fake.peak_bytes + 300,
        "max_memory_reserved": lambda *_: 7000,
        "reset_peak_memory_stats": reset_peak,
        "get_allocator_backend": lambda: "native",
    }
    assert set(stand_ins) == set(_NAMES)
    for name, stand_in in stand_ins.items():
        checked = stand_in if isinstance(stand_in, type) else _held_against(real[name], stand_in)
        monkeypatch.setattr(torch.cuda, name, checked)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fake


_NAMES = (
    "Event", "Stream", "CUDAGraph", "graph", "stream", "device", "current_stream", "synchronize",
    "empty_cache", "_sleep", "is_available", "device_count", "get_device_properties",
    "mem_get_info", "memory_reserved", "memory_allocated", "max_memory_allocated",
    "max_memory_reserved", "reset_peak_memory_stats", "get_allocator_backend",
)  # fmt: skip


def _held_against(real: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(real)

    def checked(*args: Any, **options: Any) -> Any:
        signature.bind(*args, **options)
        return stand_in(*args, **options)

    return checked
