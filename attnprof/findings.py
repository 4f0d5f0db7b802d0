"""A run and its fits -> what they say, in sentences: the answer before the tables."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.fit import WORST_RESIDUAL
from attnprof.run_header import (
    Header,
    ceilings_of,
    device_name,
    facts_of,
    grid_name,
    is_synthetic,
    kind_of,
    missing_workloads,
)
from attnprof.series import (
    IDENTITY,
    Contest,
    Record,
    contests,
    is_ok,
    label,
    varying_keys,
)
from attnprof.units import capacity, counted, percent, rate, seconds, tokens

MOST_SENTENCES = 10
FEWEST_TO_TELL = 3  # points that a power of n is told from, in words
STATUS_WORDS = {
    "wrong_result": "gave a wrong result",
    "crashed": "crashed",
    "timeout": "ran past the time limit",
    "out_of_memory": "ran out of memory",
    "predicted_out_of_memory": "would not have fitted and was not run",
    "unsupported": "is not supported here",
    "skipped": "was skipped",
}
FLAG_WORDS = {
    "noisy": "the budget ended before the interval was narrow enough",
    "contended": "other work held the cores; CPU time stands for the figure, wall time does not",
    "throttled": "the device slowed its clock for heat or power",
    "warmup_unsettled": "calls were still getting faster or slower when timing began",
    "power_capped": "the device ran at its power limit",
    "host_bound": "launching took longer than the kernel",
    "unfinished": "the sweep was stopped before there were samples enough",
    "memory_meters_differ": "the allocator's peak and the process's differ",
}


def what_was_measured(header: Header, records: Sequence[Record]) -> str:
    """Which device, how many workloads, how many of them well."""
    threads = facts_of(header).get("threads")
    on = f"{device_name(header)} ({kind_of(header) or 'unknown kind'}"
    on += f", {counted(threads, 'thread')})" if isinstance(threads, int) else ")"
    good = sum(map(is_ok, records))
    failed = Counter(str(record.get("status")) for record in records if not is_ok(record))
    name = grid_name(header)
    said = f"Sweep '{name}': " if name else ""
    said += f"{counted(len(records), 'workload')} on {on}: {good} measured"
    said += "".join(
        f", {count} {STATUS_WORDS.get(status, status)}" for status, count in sorted(failed.items())
    )
    synthetic = (
        " The device is synthetic: its times follow a formula." if is_synthetic(header) else ""
    )
    return f"{said}.{synthetic}"


def interval_words(value: float, low: float | None, high: float | None) -> str:
    """An exponent with its interval.

    >>> interval_words(1.984, 1.95, 2.01), interval_words(2, None, None)
    ('1.98 [1.95, 2.01]', '2.00')
    >>> interval_words(math.nan, None, None)
    '?'
    """
    if math.isnan(value):
        return "?"
    if low is None or high is None or high - low < 0.005:
        return f"{value:.2f}"
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def fastest_words(records: Sequence[Record]) -> list[str]:
    """Which backend is the fastest at the longest length of each kind of workload, by how much."""
    longest: dict[tuple[Any, ...], Contest] = {}
    for contest in contests(records):
        key = tuple(contest.rows[0].get(name) for name in IDENTITY if name != "backend")
        if key not in longest or contest.kv_len > longest[key].kv_len:
            longest[key] = contest
    said = []
    for contest in longest.values():
        *more, last = contest.fastest
        verdict = (
            f"{', '.join(more)} and {last} are equally fast within their intervals"
            if more
            else f"{last} is the fastest"
        )
        slower = [f"{ratio:.3g}× as fast as {name}" for name, ratio in contest.slower]
        said.append(f"{contest.name}: {', '.join([verdict, *slower])}.")
    return said


def growth_words(fits: Mapping[str, Any], quantity: str) -> list[str]:
    """How each series along a length grows, and where its law changes."""
    said = []
    for fitted in fits["series"]:
        if fitted["quantity"] != quantity or fitted["axis"] not in ("seq_len", "kv_len"):
            continue
        if len(fitted["n"]) < FEWEST_TO_TELL:
            continue
        what = "Peak memory"
        if quantity == "latency":
            what = "CPU time" if fitted["clock"] == "cpu" else "Latency"
        sentence = f"{what} of {fitted['name']} {_how_it_grows(fitted)}"
        if fitted["constant_removed"]:
            sentence += f", above a constant {capacity(fitted['constant_removed'])}"
        if fitted["fitted_from_because"]:
            below = tokens(fitted["fitted_from"])
            sentence += f"; below n = {below} {fitted['fitted_from_because']}"
        for knot in fitted["knots"]:
            between = " and ".join(tokens(n) for n in knot["between"])
            sentence += f"; {knot['name']} between n = {between}"
            if knot["ratio"] is not None:
                sentence += f", and what a {_unit_of_top(fitted)} costs rises {knot['ratio']:.2g}×"
        said.append(f"{sentence}.")
    return said


def _how_it_grows(fitted: Mapping[str, Any]) -> str:
    """By power of n; or by the token, where a constant part hides the power."""
    exponent = interval_words(fitted["exponent"], fitted["exponent_low"], fitted["exponent_high"])
    over = " to ".join(tokens(n) for n in fitted["exponent_over"])
    show = seconds if fitted["quantity"] == "latency" else capacity
    terms = list((fitted["coefficients"] or {}).values())
    if len(terms) == 2 and not fitted["knots"] and fitted["worst_residual"] <= WORST_RESIDUAL:
        constant, per_token = terms
        if per_token == 0:
            return f"stays at {show(constant)} over n = {over}"
        if constant > 0.1 * fitted["values"][-1] and not fitted["constant_removed"]:
            return f"is {show(constant)} and {show(1024 * per_token)} more each 1,024 tokens"
    return f"grows as n^{exponent} over n = {over}"


def _unit_of_top(fitted: Mapping[str, Any]) -> str:
    return "score" if fitted["axis"] == "seq_len" else "token"


def filling_words(fits: Mapping[str, Any]) -> list[str]:
    """At which length memory fills the device."""
    return [
        f"{one['name']} would fill the device's {capacity(one['device_bytes'])} at about "
        f"n = {one['seq_len']:,}, {one['seq_len'] / one['longest_measured']:.0f} times the longest "
        "that was measured."
        for one in fits["passes_device"]
        if one["seq_len"] is not None
    ]


def kv_words(fits: Mapping[str, Any]) -> list[str]:
    """Bytes a token against theory, and what each kind of cache takes beyond them."""
    known = [one for one in fits["kv"] if one["verdict"] is not None]
    wrong = [one for one in known if one["verdict"] == "wrong"]
    said = [
        f"{one['name']} holds {capacity(one['bytes_per_token'])} a token, theory says "
        f"{capacity(one['theory_bytes_per_token'])}: wrong."
        for one in wrong
    ]
    if known and not wrong:
        sizes = " or ".join(dict.fromkeys(capacity(one["bytes_per_token"]) for one in known))
        said.append(
            f"A token takes {sizes} of KV cache, as theory says, in each of "
            f"{counted(len(known), 'cache')}."
        )
    for one in fits["kv"]:
        parts = []
        if one["overshoot_bytes"]:
            parts.append(
                f"takes {capacity(one['overshoot_bytes'])} ({percent(one['overshoot'])}) more "
                "while a step copies it"
            )
        if one["step_bytes"] and (one["step_tokens"] or 1) > 1:
            parts.append(f"grows in steps of {one['step_tokens']} tokens")
        if one["fragmentation"] and one["fragmentation"] > 0.001:
            parts.append(f"leaves {percent(one['fragmentation'])} of it unused at the end")
        if parts:
            said.append(f"The cache of {one['name']} {', '.join(parts)}.")
    return said


def doubts(header: Header, records: Sequence[Record]) -> list[str]:
    """What not to lean on: failed rows, rows with a flag, what the sweep noted, what is missing."""
    varying = varying_keys(records)
    wrong = [record for record in records if record.get("status") == "wrong_result"]
    said = [f"Wrong result: {label(record, varying)}. Its time is not used." for record in wrong]
    flags = Counter(flag for record in records for flag in record.get("flags") or ())
    good = sum(map(is_ok, records))
    said += [
        f"{count} of {good} rows {'is' if count == 1 else 'are'} {flag}: "
        f"{FLAG_WORDS.get(flag, 'see the record')}."
        for flag, count in sorted(flags.items())
    ]
    said += [f"The sweep noted: {note.rstrip('.')}." for note in header.get("notes") or ()]
    if missing := missing_workloads(header, records):
        said.append(
            f"{len(missing)} of {counted(len(header['workloads']), 'workload')} missing: the sweep "
            "was stopped, and --resume goes on with it."
        )
    return said


def roof_words(header: Header) -> str | None:
    """The measured ceilings, in one sentence."""
    ceilings = ceilings_of(header)
    parts = [
        f"{rate(roof.get('flops_per_s'), 'FLOP/s')} in {dtype}"
        for dtype, roof in (ceilings.get("matmul") or {}).items()
    ]
    if ceilings.get("copy_bytes_per_s"):
        parts.append(f"{rate(ceilings['copy_bytes_per_s'], 'B/s')} of copying")
    return f"Measured roofs: {', '.join(parts)}." if parts else None


def shortened(sentences: Sequence[str], where: str) -> list[str]:
    """The first sentences, and how many more ``where`` holds."""
    kept = list(sentences[:MOST_SENTENCES])
    if len(sentences) > MOST_SENTENCES:
        kept.append(f"And {len(sentences) - MOST_SENTENCES} more in {where}.")
    return kept
