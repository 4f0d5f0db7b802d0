"""One call -> the operators that ran in it, and the most memory that it held.

Uses torch's first profiler: it counts the same bytes as Kineto's, which takes over a second of CPU
the first time that it starts and writes to standard error each time.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig


@dataclass(frozen=True)
class Profile:
    """What the profiler saw of one call."""

    operators: tuple[str, ...]  # that do attention's work, in the order of their first call
    peak_bytes: int  # CPU memory above the level before the call


def profiled(call: Callable[[], object], *, memory: bool = True) -> Profile:
    """Run ``call`` once, counting every allocation; slower than without, so never timed.

    The peak is the largest running sum of bytes taken and given back, which is exact as long as
    the call frees nothing that was made before it; a call that compiles does, and is not weighed.
    """
    operators: dict[str, None] = {}
    held_bytes = peak_bytes = 0
    for event in _events(call, memory=memory):
        kind = str(event.kind())  # the stub says int, and it is a word
        if kind == "memory_alloc":
            held_bytes += event.cpu_memory_usage()
            peak_bytes = max(peak_bytes, held_bytes)
        elif kind == "push" and is_kernel(event.name()):
            operators[event.name()] = None
    return Profile(tuple(operators), peak_bytes)


def part_peaks(call: Callable[[], object], names: Collection[str]) -> dict[str, int]:
    """Run ``call``, whose parts are ranges of the profiler called ``names``; the most CPU bytes
    that each held above the level before it."""
    found: dict[str, int] = {}
    inside: list[tuple[str, int]] = []  # operators under way, each with the bytes held before it
    held_bytes = 0
    for event in _events(call, memory=True):
        match str(event.kind()):
            case "push":
                inside.append((event.name(), held_bytes))
                if event.name() in names:
                    found.setdefault(event.name(), 0)
            case "pop" if inside:
                inside.pop()
            case "memory_alloc":
                held_bytes += event.cpu_memory_usage()
                for name, before in inside:
                    if name in names:
                        found[name] = max(found.get(name, 0), held_bytes - before)
    return found


def _events(call: Callable[[], object], *, memory: bool) -> list[Any]:
    """What torch's profiler wrote down while ``call`` ran, in order."""
    config = ProfilerConfig(
        ProfilerState.CPU, False, memory, False, False, False, _ExperimentalConfig()
    )
    _enable_profiler_legacy(config)
    try:
        call()
    finally:
        threads = _disable_profiler_legacy()
    return [event for thread in threads for event in thread]


_KERNELS = (
    "aten::bmm", "aten::_softmax", "aten::mkldnn_rnn_layer", "aten::_cudnn_rnn",
    "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_lstm_cell",
)  # fmt: skip


def is_kernel(operator: str) -> bool:
    """Whether an operator does attention's work, or that of a recurrence in its place: one of
    torch's attention kernels (not the door in front of them), a batched matrix product or a
    softmax; a fused layer or cell of an RNN."""
    attention = operator.startswith("aten::_") and "attention" in operator
    return attention or operator in _KERNELS
