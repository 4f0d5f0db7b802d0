"""A run -> what was measured, on what and when, as names with a few words each."""

from collections.abc import Sequence

from attnprof.figures.words import listed
from attnprof.run_header import Header, ceilings_of, device_name, facts_of, kind_of
from attnprof.series import Record, is_attention, is_ok
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


_MOST_NAMES = 3  # in a title; more are counted


def measured_words(records: Sequence[Record]) -> str:
    """The phases, backends and lengths that have a time, as a title begins.

    >>> records = [{"phase": "prefill", "backend": backend, "kv_len": kv_len, "status": "ok"}
    ...     for backend in ("flash", "eager") for kv_len in (512, 4096)]
    >>> measured_words(records), measured_words([])
    ('Prefill by flash and eager, 512 to 4k tokens,', 'Attention')
    """
    measured = [record for record in records if is_ok(record)]
    phases = _few([record["phase"] for record in measured], "phases")
    if not phases:
        return "Attention"
    by = _few([_by(record) for record in measured], "backends")
    ends = _ends(measured)
    return f"{phases[0].upper()}{phases[1:]} by {by}" + (f", {ends} tokens," if ends else "")


def _few(names: Sequence[object], noun: str) -> str:
    """Their names, or how many they are."""
    num_names = len(set(names))
    return listed(names) if num_names <= _MOST_NAMES else f"{num_names} {noun}"


def _by(record: Record) -> object:
    """The backend, or the layer in attention's place."""
    return record.get("backend") if is_attention(record) else record.get("mixer")


def _ends(records: Sequence[Record]) -> str:
    """The shortest and the longest length; nothing where none has one."""
    lengths = sorted({record["kv_len"] for record in records if record.get("kv_len")})
    return " to ".join(tokens(n) for n in dict.fromkeys(lengths[:1] + lengths[-1:]))


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
    ends = _ends(records)
    means = f"{_PHASES[phase]}: " if phase in _PHASES else ""
    of = f" of {ends} tokens" if ends else ""
    return f"{means}{counted(len(records), 'workload')}{of}, by {listed(map(_by, records))}"
