"""Fits -> the tables of growth: exponents, lengths that fill the device, KV bytes, generations."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof import units
from attnprof.render import Column, Table
from attnprof.series import LENGTHS


def growth_table(fits: Mapping[str, Any], quantity: str, suffix: str = "") -> Table:
    """Exponent of n and the terms of ``a + b·n + c·n²`` for each series, lengths before counts.

    What was measured along a count at several lengths is shown at the longest of them.
    """
    is_latency = quantity == "latency"
    show = units.seconds if is_latency else units.capacity
    unit = "s" if is_latency else "bytes"
    shown = _at_longest_length([one for one in fits["series"] if one["quantity"] == quantity])
    rows = [_growth_row(fitted, unit) for fitted in shown]
    return Table(
        name=f"growth_{quantity}",
        title=f"Growth of {'latency' if is_latency else 'peak memory'}{suffix}",
        columns=(
            Column("series", "Series"),
            Column("range", "n", priority=2),
            Column("exponent", "Exponent", _exponent, "right"),
            Column("exponent_low", "low", _exponent, "right"),
            Column("exponent_high", "high", _exponent, "right"),
            *([Column("clock", "Clock", priority=3)] if is_latency else []),
            Column(f"a_{unit}", "a", show, "right", 6),  # the least telling goes first
            Column("b_per_step", "b", show, "right", 5),
            Column("c_per_step2", "c", show, "right", 2),
            Column("rules", "Rules"),
            Column("worst_residual", "Misses by", _whole_percent, "right", 1),
            Column("change", "Changes", priority=4, wraps=True),
        ),
        rows=tuple(rows),
        notes=(
            "a + b·n + c·n²: along a length, b is for 1,024 tokens more and c for 1,024² pairs; "
            "along a count, b is for one more. low and high bound the exponent 95 times in 100.",
        ),
    )


def _exponent(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no minus before zero


def _whole_percent(share: float) -> str:
    return units.percent(round(share, 4))


def _at_longest_length(series: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    longest: dict[Any, Mapping[str, Any]] = {}
    for one in series:
        where = tuple((key, one["where"][key]) for key in one["where"] if key not in LENGTHS)
        # Along a length, kv_len is no part of `where`, and each series stands for itself.
        before = longest.setdefault((one["axis"], where), one)
        if one["where"].get("kv_len", 0) > before["where"].get("kv_len", 0):
            longest[one["axis"], where] = one
    return list(longest.values())


_TERM_SIGNS = {"constant": "a", "linear": "b·n", "quadratic": "c·n²"}


def _growth_row(fitted: Mapping[str, Any], unit: str) -> dict[str, Any]:
    coefficients = list((fitted["coefficients"] or {}).values())
    constant, linear, quadratic = [*coefficients, None, None, None][:3]
    step = 1024 if fitted["axis"] in ("seq_len", "kv_len") else 1
    changes = []
    if fitted["fitted_from_because"]:
        below = units.tokens(fitted["fitted_from"])
        changes.append(f"{fitted['fitted_from_because']} below {below}")
    changes += [
        f"{knot['name']} between {units.tokens(knot['between'][0])} and "
        f"{units.tokens(knot['between'][1])}"
        for knot in fitted["knots"]
    ]
    return {
        "series": fitted["name"],
        "range": _span(fitted["axis"], fitted["exponent_over"]),
        "exponent": fitted["exponent"],
        "exponent_low": fitted["exponent_low"],
        "exponent_high": fitted["exponent_high"],
        "clock": fitted["clock"],
        f"a_{unit}": constant,
        "b_per_step": None if linear is None else linear * step,
        "c_per_step2": None if quadratic is None else quadratic * step**2,
        "rules": _rules_words(fitted["rules"], fitted["n"]),
        "worst_residual": fitted["worst_residual"],
        "change": "; ".join(changes) or (fitted["why_not"] or ""),
    }


def _span(axis: str, ends: Sequence[int]) -> str:
    name = "" if axis in ("seq_len", "kv_len") else f"{axis} "
    return f"{name}{units.tokens(ends[0])}–{units.tokens(ends[1])}"


def _rules_words(rules: Sequence[Mapping[str, Any]], n: Sequence[int]) -> str | None:
    """Which terms are the largest over the measured lengths, each from where on."""
    seen = [
        rule
        for rule in rules
        if rule["from"] <= n[-1] and (rule["to"] is None or rule["to"] > n[0])
    ]
    if not seen:
        return None
    words = [_TERM_SIGNS[seen[0]["term"]]]
    words += [
        f"{_TERM_SIGNS[rule['term']]} from {units.tokens(round(rule['from']))}" for rule in seen[1:]
    ]
    return ", ".join(words)


def filling_table(fits: Mapping[str, Any], suffix: str = "") -> Table:
    """At which prompt length weights, Q, K, V and the peak fill the device."""
    rows = [
        {
            "series": one["name"],
            "seq_len": one["seq_len"],
            "device_bytes": one["device_bytes"],
            "longest_measured": one["longest_measured"],
            "times_beyond": one["seq_len"] and one["seq_len"] / one["longest_measured"],
            "why_not": one["why_not"] or "",
        }
        for one in fits["passes_device"]
    ]
    return Table(
        name="fills_device",
        title=f"Length that fills the device, extrapolated{suffix}",
        columns=(
            Column("series", "Series"),
            Column("seq_len", "n", "{:,}".format, "right"),
            Column("device_bytes", "Memory", units.capacity, "right"),
            Column("longest_measured", "Measured to", units.tokens, "right"),
            Column("times_beyond", "Beyond", "{:.0f}×".format, "right"),
            Column("why_not", "Why not", priority=1, wraps=True),
        ),
        rows=tuple(rows),
    )


def kv_table(fits: Mapping[str, Any], suffix: str = "") -> Table:
    """Bytes a token against theory, and what a cache takes beyond its tokens."""
    rows = [
        {**one, "series": one["name"], "range": _span("kv_len", (one["from"], one["to"]))}
        for one in fits["kv"]
    ]
    return Table(
        name="kv",
        title=f"KV cache{suffix}",
        columns=(
            Column("series", "Series"),
            Column("range", "Tokens"),
            Column("bytes_per_token", "A token", units.capacity, "right"),
            Column("theory_bytes_per_token", "theory", units.capacity, "right"),
            Column("verdict", "Verdict"),
            Column("useful_bytes", "Useful", units.capacity, "right", 2),
            Column("allocated_bytes", "Allocated", units.capacity, "right", 2),
            Column("fragmentation", "Fragmented", units.percent, "right", 1),
            Column("overshoot_bytes", "Overshoot", units.capacity, "right", 1),
            Column("step_tokens", "Step", align="right", priority=2),
        ),
        rows=tuple(rows),
        alarming=lambda row: row["verdict"] == "wrong",
        notes=(
            "Useful, allocated: of the tokens held at the end, and of all slots. Fragmented: the "
            "share of slots that hold no token. Overshoot: bytes beyond the cache while a step "
            "copies it. Step: tokens by which the cache grows.",
        ),
    )


def generation_table(fits: Mapping[str, Any], suffix: str = "") -> Table:
    """What a user waits for, and how many times longer it takes without the cache."""
    return Table(
        name="generation",
        title=f"Generation{suffix}",
        columns=(
            Column("name", "Series"),
            Column("prompt_len", "Prompt", units.tokens, "right", 2),
            Column("num_tokens", "Tokens", "{:,}".format, "right", 2),
            Column("ttft_s", "TTFT", units.seconds, "right"),
            Column("itl_s", "ITL", units.seconds, "right"),
            Column("itl_p95_s", "p95", units.seconds, "right"),
            Column("total_s", "All", units.seconds, "right", 1),
            Column("clock", "Clock", priority=3),
            Column("useful_bytes", "Useful", units.capacity, "right", 3),
            Column("allocated_bytes", "Allocated", units.capacity, "right", 1),
            Column("speedup", "Cache buys", "{:.1f}×".format, "right"),
        ),
        rows=tuple(fits["generation"]),
        notes=(
            "TTFT: the prompt's time. ITL, p95: between tokens, the median and what 95 in 100 do "
            "not pass, of the steps that points were kept of. All: the prompt and all steps. Cache "
            "buys: how many times longer all of it takes when each step computes every token anew.",
        ),
    )
