"""A run -> what was measured, on what and when, as names with a few words each."""

from collections.abc import Sequence

from attnprof.run_header import Header, ceilings_of, device_name, facts_of, kind_of
from attnprof.series import Record, is_attention
from attnprof.units import capacity, counted, rate, tokens

_PHASES = {
    "prefill": "a prompt at once",
    "chunked-prefill": "a prompt, a chunk at a time",
    "decode": "one more token, against the keys and values that are held",
    "verify": "several drafted tokens at once",
    "mixed": "a chunk of a prompt beside sequences that decode",
    "train": "forward and backward",
    "kv-growth": "a cache that grows a token at a time",
    "generate": "tokens one after another",
}


def measured_rows(header: Header, records: Sequence[Record]) -> list[tuple[str, str]]:
    """The device and its roofs, then each phase: what it is, how often, how long, on what."""
    return [
        ("Device", _device(header)),
        *([("Roofs, measured", roofs)] if (roofs := _roofs(header)) else []),
        *([("When", when)] if (when := _when(header)) else []),
        *(
            (phase, _phase(phase, [row for row in records if row["phase"] == phase]))
            for phase in dict.fromkeys(record["phase"] for record in records)
        ),
    ]


def _device(header: Header) -> str:
    facts = facts_of(header)
    threads, memory_bytes = facts.get("threads"), facts.get("memory_bytes")
    words = [device_name(header), kind_of(header) or "unknown kind"]
    words += [counted(threads, "thread")] if isinstance(threads, int) else []
    words += [f"{capacity(memory_bytes)} of memory"] if memory_bytes else []
    return ", ".join(words)


def _roofs(header: Header) -> str:
    ceilings = ceilings_of(header)
    words = [
        f"{rate(roof['flops_per_s'], 'FLOP/s')} in {dtype}"
        for dtype, roof in (ceilings.get("matmul") or {}).items()
        if roof.get("flops_per_s")
    ]
    if ceilings.get("copy_bytes_per_s"):
        words.append(f"{rate(ceilings['copy_bytes_per_s'], 'B/s')} of copying")
    return ", ".join(words)


def _when(header: Header) -> str:
    """The day, and the versions."""
    day, torch = str(header.get("started") or "").partition("T")[0], facts_of(header).get("torch")
    version = header.get("attnprof")
    words = [day, f"attnprof {version}" if version else "", f"torch {torch}" if torch else ""]
    return ", ".join(filter(None, words))


def _phase(phase: str, records: Sequence[Record]) -> str:
    lengths = sorted({row["kv_len"] for row in records if row.get("kv_len")})
    named = [row.get("backend") if is_attention(row) else row.get("mixer") for row in records]
    ends = " to ".join(tokens(n) for n in dict.fromkeys(lengths[:1] + lengths[-1:]))
    means = f"{_PHASES[phase]}: " if phase in _PHASES else ""
    of = f" of {ends} tokens" if ends else ""
    return f"{means}{counted(len(records), 'workload')}{of}, by {_listed(named)}"


def _listed(names: Sequence[object]) -> str:
    """Each once, in the order they came.

    >>> _listed(["eager", "flash", "eager", "rnn"])
    'eager, flash and rnn'
    """
    *more, last = dict.fromkeys(map(str, names))
    return f"{', '.join(more)} and {last}" if more else last
