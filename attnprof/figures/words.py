"""The header of a run -> the line under its figures that says where their numbers come from."""

from collections.abc import Iterable

from attnprof.run_header import Header, device_name, facts_of, grid_name, is_synthetic, kind_of
from attnprof.units import counted


def source_of(header: Header) -> str:
    """Which sweep on which device and when, and whether the device is a formula.

    >>> source_of({"grid": {"name": "quick"}, "facts": {"name": "AMD EPYC", "threads": 2},
    ...     "conditions": {"device_kind": "cpu"}, "started": "2026-11-29T18:34", "attnprof": "0.1"})
    "Measured: sweep 'quick' on AMD EPYC (cpu, 2 threads), 2026-11-29, attnprof 0.1"
    """
    threads = facts_of(header).get("threads")
    about = [str(kind_of(header) or "unknown kind")]
    about += [counted(threads, "thread")] if isinstance(threads, int) else []
    parts = [f"{_sweep_words(header)} on {device_name(header)} ({', '.join(about)})"]
    if started := header.get("started"):
        parts.append(str(started)[:10])
    if version := header.get("attnprof"):
        parts.append(f"attnprof {version}")
    made = "Computed by the synthetic device, not measured" if is_synthetic(header) else "Measured"
    return f"{made}: {', '.join(parts)}"


def _sweep_words(header: Header) -> str:
    """A sweep by its name; one that was typed has none.

    >>> _sweep_words({"grid": {"name": "typed"}}), _sweep_words({})
    ('a sweep of typed axes', 'a sweep')
    """
    if name := grid_name(header):
        return f"sweep '{name}'"
    return "a sweep of typed axes" if (header.get("grid") or {}).get("name") else "a sweep"


def listed(names: Iterable[object]) -> str:
    """Each once, in the order they came.

    >>> listed(["eager", "flash", "eager", "rnn"]), listed([])
    ('eager, flash and rnn', '')
    """
    *more, last = dict.fromkeys(map(str, names)) or [""]
    return f"{', '.join(more)} and {last}" if more else last


def and_more(shown: int, there: int, noun: str) -> str:
    """What is said of panels that there is no room for; nothing where all are shown.

    >>> and_more(9, 14, "series"), and_more(9, 9, "series")
    (' 9 of 14 series; the tables hold all.', '')
    """
    return f" {shown} of {there} {noun}; the tables hold all." if shown < there else ""
