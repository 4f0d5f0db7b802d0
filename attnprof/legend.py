"""A run -> what surrounded its measurements, and what the words of its report mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof import units
from attnprof.findings import FLAG_WORDS
from attnprof.run_header import Header, facts_of, kind_of
from attnprof.series import Record


def environment_rows(header: Header) -> list[tuple[str, str]]:
    """Facts of the device and of the sweep, those that are known, in words."""
    common = {key: header.get(key) for key in ("attnprof", "seed", "started", "finished", "plan")}
    shown = {"kind": kind_of(header), **facts_of(header), **common}
    return [(key, _fact(key, value)) for key, value in shown.items() if value is not None]


def _fact(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return units.capacity(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return str(value)


_LEGEND = {
    "Median, ±, low, high": "the median and its distribution-free 95 % interval, of samples that "
    "other work did not disturb where the clock is wall; "
    "± is half its width.",
    "kv-growth, generate": "its time is that of a step, the median over the growth.",
    "Wall": "the median of elapsed time, whichever clock the row is on.",
    "Samples": "a call too heavy for its budget gets fewer, six at the least.",
    "Clock": "wall is elapsed time; cpu is CPU time of all threads, which other work on the "
    "machine hardly moves.",
    "MFU, MBU": "FLOP and bytes that the algorithm needs, by the second, as shares of the "
    "measured matrix product and copy. A working set that stays in a cache passes 100 % MBU.",
    "Peak": "bytes that a call allocates beyond its inputs, at their highest, by the "
    "allocator's own count.",
    "Exponent": "p of n^p, fitted in log-log where the constant term hardly weighs.",
    "Misses by": "how far the law is from the worst of its own points. Over 10 % it foretells "
    "nothing.",
    "Changes": "where the law changes, with the cause; or why it does not reach beyond what was "
    "measured.",
}


def legend_rows(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What headings mean, and the flags that some record has."""
    flags = sorted({flag for record in records for flag in record.get("flags") or ()})
    words = _LEGEND | {flag: f"{FLAG_WORDS[flag]}." for flag in flags if flag in FLAG_WORDS}
    return list(words.items())
