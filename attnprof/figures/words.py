"""The header of a run -> the line under its figures that says where their numbers come from."""

from attnprof.run_header import Header, device_name, facts_of, is_synthetic, kind_of
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
    name = (header.get("grid") or {}).get("name")
    parts = [f"sweep '{name}'" if name else "sweep"]
    parts[0] += f" on {device_name(header)} ({', '.join(about)})"
    if started := header.get("started"):
        parts.append(str(started)[:10])
    if version := header.get("attnprof"):
        parts.append(f"attnprof {version}")
    made = "Computed by the synthetic device, not measured" if is_synthetic(header) else "Measured"
    return f"{made}: {', '.join(parts)}"


def and_more(shown: int, there: int, noun: str) -> str:
    """What is said of panels that there is no room for; nothing where all are shown.

    >>> and_more(9, 14, "series"), and_more(9, 9, "series")
    (' 9 of 14 series; the tables hold all.', '')
    """
    return f" {shown} of {there} {noun}; the tables hold all." if shown < there else ""
