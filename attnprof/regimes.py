"""A series and its device -> where its law may change: the working set leaves a cache, or pages
have to be fetched from the kernel at every call."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnprof.dtypes import dtype_named
from attnprof.regression import polynomial_law
from attnprof.series import BYTES_SD, Record, Series, is_attention, positive
from attnprof.units import capacity

# glibc serves larger blocks by mmap, whatever has been freed before, and gives them back at once.
GLIBC_MMAP_BYTES = 32 * 2**20
PAGE_BYTES = 4096
_NEVER_BYTES = 2**40  # a threshold that no block reaches
_LEAST_POINTS = 3
_WORST_BYTES_RESIDUAL = 0.01
_FAULTING_SHARE = 0.05  # of the peak that is paged in anew at each call


@dataclass(frozen=True)
class Candidate:
    """A change that would have a cause: between the points ``gap - 1`` and ``gap`` of a series.

    What happens in the same gap cannot be told apart, and is named together.
    """

    gap: int
    at: float
    cause: str  # l2_bytes, l3_bytes, page_faults
    name: str


def score_bytes(record: Record) -> float | None:
    """Bytes of one layer's scores ``[B, H_q, q_len, kv_len]``, where they are held in memory.

    Judged by the peak, measured or else by theory: a fused kernel stays below one such matrix.
    """
    sizes = [positive(record.get(key)) for key in ("batch_size", "num_q_heads", "q_len", "kv_len")]
    peak = positive(record.get("peak_activation_bytes")) or positive(
        record.get("theory_peak_activation_bytes")
    )
    if None in sizes or peak is None:
        return None
    element_bytes = 4 if record.get("backend") == "math" else _element_bytes(record)
    held = math.prod(size or 0 for size in sizes) * element_bytes
    return held if held <= peak else None


def _element_bytes(record: Record) -> float:
    return dtype_named(str(record.get("dtype"))).bytes


def _working_set(series: Series) -> tuple[str, Callable[[Record], float | None]] | None:
    """What is streamed through at every call and grows with n; None where nothing is.

    A fused prefill works on blocks that stay in the nearest cache, whatever the length.
    """
    if series.where.get("phase") in ("decode", "verify", "mixed"):
        return "KV", lambda record: positive(record.get("kv_bytes"))
    if not all(map(is_attention, series.records)):
        return None
    last = series.records[-1]
    return ("scores", score_bytes) if score_bytes(last) is not None else None


def caches(device: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Key, name and size of each cache that the device's facts give."""
    return [
        (f"{level.lower()}_bytes", level, size)
        for level in ("L2", "L3")
        if (size := positive(device.get(f"{level.lower()}_bytes"))) is not None
    ]


def _mmap_bytes(series: Series, device: Mapping[str, Any]) -> float | None:
    """Block size from which the C library fetches pages anew; None where it never does."""
    if series.where.get("device") != "cpu":
        return None
    set_to = str((device.get("environment") or {}).get("MALLOC_MMAP_THRESHOLD_"))
    if set_to.isdigit():
        return float(set_to) if int(set_to) < _NEVER_BYTES else None
    return GLIBC_MMAP_BYTES if str(device.get("libc") or "").startswith("glibc") else None


def candidates(series: Series, device: Mapping[str, Any]) -> list[Candidate]:
    """The changes that this series might show, by length.

    A cache begins to miss before the one tensor that grows fastest is larger than it: when all
    that is live beside it is, or when that tensor has half of it.
    """
    working_set = _working_set(series)
    if series.quantity != "latency" or working_set is None or len(series.records) < len(series.n):
        return []
    what, size_of = working_set
    found: dict[tuple[int, str], Candidate] = {}

    def add(sizes: list[float | None], limit: float, cause: str, name: str) -> None:
        crossing = _crossing(series.n, sizes, limit)
        if crossing is not None:
            gap, at = crossing
            found.setdefault((gap, cause), Candidate(gap, at, cause, name))

    held = [size_of(record) for record in series.records]
    live = [positive(record.get("peak_activation_bytes")) for record in series.records]
    verb = "leave" if what == "scores" else "leaves"
    for key, level, limit in caches(device):
        for share in (1, 0.5):
            add(held, share * limit, key, f"{what} {verb} {level} ({capacity(limit)})")
        if what == "scores":
            add(live, limit, key, f"{what} {verb} {level} ({capacity(limit)})")
    paging = [_paged_share(record) for record in series.records]
    if all(share is not None for share in paging):
        add(paging, _FAULTING_SHARE, "page_faults", "page faults begin")
    elif what == "scores" and (mapped := _mmap_bytes(series, device)) is not None:
        add(held, mapped, "page_faults", f"page faults begin ({capacity(mapped)})")
    by_gap: dict[int, list[Candidate]] = {}
    for one in sorted(found.values(), key=lambda one: one.at):
        by_gap.setdefault(one.gap, []).append(one)
    return [
        Candidate(
            gap=gap,
            at=ones[0].at,
            cause=" and ".join(one.cause for one in ones),
            name=" and ".join(one.name for one in ones),
        )
        for gap, ones in by_gap.items()
    ]


def blocks_grow_at(series: Series) -> int:
    """Index of the point from which the kernel works in its largest blocks; 0 when it always does.

    Kernels take smaller blocks on short inputs, and the bytes that they take tell: bytes are
    exact, so where no one law meets all peaks to 1 %, the short ones follow another.
    """
    peaks = [positive(record.get("peak_activation_bytes")) for record in series.records]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(series.n):
        return 0
    for start in range(len(known) - _LEAST_POINTS + 1):
        rest = known[start:]
        law = polynomial_law(series.n[start:], rest, [BYTES_SD] * len(rest), series.degree)
        if law.worst_residual <= _WORST_BYTES_RESIDUAL:
            return start
    return 0


def next_threshold(series: Series, device: Mapping[str, Any]) -> tuple[float, str] | None:
    """The length beyond the last point at which the working set leaves its next cache.

    No series shows what lies beyond it, so no law reaches further.
    """
    working_set = _working_set(series)
    if series.quantity != "latency" or working_set is None or len(series.records) < len(series.n):
        return None
    what, size_of = working_set
    last = size_of(series.records[-1])
    if last is None:
        return None
    power = 2 if what == "scores" else 1
    verb = "leave" if what == "scores" else "leaves"
    limits = [(size, f"{what} {verb} {level}") for _, level, size in caches(device)]
    if what == "scores" and (mapped := _mmap_bytes(series, device)) is not None:
        limits.append((mapped, "page faults begin"))
    ahead = [
        (series.n[-1] * (limit / last) ** (1 / power), name)
        for limit, name in limits
        if limit > last
    ]
    return min(ahead, default=None)


def _paged_share(record: Record) -> float | None:
    """Share of the peak that the kernel hands out anew at each call, a page at a time."""
    faults, peak = record.get("minor_faults"), positive(record.get("peak_activation_bytes"))
    if faults is None or peak is None:
        return None
    if isinstance(faults, list | tuple):
        if not faults:
            return None
        faults = sorted(faults)[len(faults) // 2]
    return max(float(faults) * PAGE_BYTES / peak, 1e-9)


def _crossing(
    n: tuple[int, ...], sizes: list[float | None], limit: float
) -> tuple[int, float] | None:
    """The first gap in which ``sizes`` rises through ``limit``, and the length, by power law."""
    for gap in range(1, len(n)):
        before, after = sizes[gap - 1], sizes[gap]
        if before is not None and after is not None and before <= limit < after:
            share = math.log(limit / before) / math.log(after / before)
            return gap, n[gap - 1] * (n[gap] / n[gap - 1]) ** share
    return None
