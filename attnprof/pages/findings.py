"""A run and its fits -> the three findings that matter most, each a number and a sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.comparison_tables import parts_table, position_costs_table, training_table
from attnprof.crossings import Crossing, mixer_crossings, part_crossings
from attnprof.findings import FEWEST_TO_TELL, kv_words
from attnprof.fit import WORST_RESIDUAL
from attnprof.series import Contest, Record, contests, label, varying_keys
from attnprof.units import capacity, counted, percent, seconds, three_digits, tokens

MOST = 3
_LEAST_EXPONENT, _WIDEST_EXPONENT = 0.5, 0.5  # growth, and an interval, that are worth telling
_LEAST_STRETCH = 4  # times the shortest length, over which growth is worth telling
_LEAST_RATIO = 1.2  # of times or sizes, below which nobody would choose by it
_FURTHEST = 32  # times the longest measured length, past which the end of memory is far away


@dataclass(frozen=True)
class Finding:
    """One thing that a run says: a number to be seen first, what it is of, and the sentence."""

    number: str
    of: str
    said: str


def headlines(records: Sequence[Record], fits: Mapping[str, Any]) -> list[Finding]:
    """The strongest finding of each kind, three at most, the kinds by how much hangs on them.

    A cache of the wrong size comes first. Then what only some sweeps are made for: training,
    layers in attention's place, generation without a cache, sizes of caches, positions. Then what
    all hold: where attention takes over, how time grows, where memory ends, who is the fastest.
    """
    kinds: tuple[Callable[[], Finding | None], ...] = (
        lambda: _wrong_cache(fits),
        lambda: _training(records),
        lambda: _checkpointing(records),
        lambda: _replaced(records, "seq_len"),
        lambda: _replaced(records, "kv_len"),
        lambda: _most_bought(fits),
        lambda: _cache_sizes(fits),
        lambda: _dearest_position(records),
        lambda: _taken_over(records),
        lambda: _steepest(fits),
        lambda: _soonest_full(fits),
        lambda: _widest_contest(records),
        lambda: _cache_kinds(records),
        lambda: _most_attention(records),
        lambda: _copied(fits),
        lambda: _cache_as_told(fits),
    )
    found: list[Finding] = []
    for kind in kinds:
        finding = kind()
        if finding is not None:
            found.append(finding)
        if len(found) == MOST:
            break
    return found


def _times(ratio: float) -> str:
    """A ratio that a sentence goes on with "times as long".

    >>> _times(2.6667), _times(0.0106)
    ('2.67', '0.0106')
    """
    return three_digits(ratio)


def _about(count: float, digits: int = 2) -> str:
    """A length that was computed. [tokens]

    >>> _about(1234.5), _about(18183.0, 3)
    ('1,200', '18,200')
    """
    return f"{float(f'{count:.{digits}g}'):,.0f}"


def _on(clock: str | None) -> str:
    """What is said behind a time that is not the one on a wall clock."""
    return " of CPU time" if clock == "cpu" else ""


def _wrong_cache(fits: Mapping[str, Any]) -> Finding | None:
    wrong = [one for one in fits["kv"] if one["verdict"] == "wrong" and one["ratio"] is not None]
    if not wrong:
        return None
    first = wrong[0]
    more = f" So are {len(wrong) - 1} more." if len(wrong) > 1 else ""
    return Finding(
        f"{_times(first['bytes_per_token'] / first['theory_bytes_per_token'])}×",
        "bytes of KV cache, measured on theory: wrong",
        f"{first['name']} holds {capacity(first['bytes_per_token'])} a token, theory says "
        f"{capacity(first['theory_bytes_per_token'])}: wrong.{more}",
    )


def _training(records: Sequence[Record]) -> Finding | None:
    """Forward and backward against forward alone, over all workloads that have both."""
    rows = [row for row in training_table(records).rows if row["step"] == "train"]
    if not rows:
        return None
    rows.sort(key=lambda row: row["ratio"])
    least, most = rows[0], rows[-1]
    between = " to ".join(dict.fromkeys(_times(row["ratio"]) for row in (least, most)))
    return Finding(
        f"{between.replace(' to ', '–')}×",
        "time of a training step over its forward pass",
        f"Forward and backward together take {between} times as long as forward alone, in "
        f"{counted(len(rows), 'workload')}; the most in {most['workload']} "
        f"({seconds(most['median_s'])}{_on(most['clock'])}).",
    )


def _checkpointing(records: Sequence[Record]) -> Finding | None:
    """Where it saves the most memory."""
    steps: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in training_table(records).rows:
        if row["peak_activation_bytes"]:
            steps.setdefault(row["workload"], {})[row["step"]] = row
    pairs = [
        (name, of["train"], of["train, checkpointing"])
        for name, of in steps.items()
        if {"train", "train, checkpointing"} <= set(of)
    ]
    if not pairs:
        return None
    name, kept, made_again = min(
        pairs, key=lambda pair: pair[2]["peak_activation_bytes"] / pair[1]["peak_activation_bytes"]
    )
    share = 1 - made_again["peak_activation_bytes"] / kept["peak_activation_bytes"]
    return Finding(
        percent(share),
        "of peak memory saved by checkpointing",
        f"Activations made again in place of kept: {name} peaks at "
        f"{capacity(made_again['peak_activation_bytes'])} in place of "
        f"{capacity(kept['peak_activation_bytes'])}, and takes "
        f"{_times(made_again['median_s'] / kept['median_s'])} times as long. "
        "No other workload here saves a larger share.",
    )


def _replaced(records: Sequence[Record], axis: str) -> Finding | None:
    """All layers in attention's place against the attention that is the fastest at the end."""
    found = [crossing for crossing in mixer_crossings(records) if crossing.axis == axis]
    if not found:
        return None
    fastest = min(found, key=lambda one: (-one.first.n[-1], one.first.seconds[-1])).first
    rivals = sorted(
        (
            one
            for one in found
            if one.first.name == fastest.name and one.first.n[-1] == fastest.n[-1]
        ),
        key=_ratio_at_end,
    )
    best, n = rivals[0], tokens(fastest.n[-1])
    listed = "; ".join(
        one.second.name
        + (" takes" if one is best else "")
        + f" {_times(_ratio_at_end(one))}"
        + (f" times as long as {_timed(fastest.name, best)}" if one is best else "")
        + (f" (equal at about {_about(one.at)} tokens)" if one.at is not None else "")
        for one in rivals
    )
    return Finding(
        f"{_times(_ratio_at_end(best))}×",
        f"time of {best.second.name} in place of {fastest.name}, at {n} tokens",
        f"At {n} tokens {listed}.",
    )


def _timed(name: str, crossing: Crossing) -> str:
    return f"{name} ({seconds(crossing.first.seconds[-1])}{_on(crossing.clock)})"


def _ratio_at_end(crossing: Crossing) -> float:
    return crossing.second.seconds[-1] / crossing.first.seconds[-1]


def _most_bought(fits: Mapping[str, Any]) -> Finding | None:
    """How much longer generation takes where each step computes every token anew."""
    known = [one for one in fits["generation"] if one["speedup"] is not None]
    if not known:
        return None
    most = max(known, key=lambda one: one["speedup"])
    return Finding(
        f"{_times(most['speedup'])}×",
        "time of generation without a KV cache",
        f"Without its cache, where each step computes every token anew, {most['name']} takes "
        f"{_times(most['speedup'])} times as long to {tokens(most['speedup_at'])} tokens.",
    )


def _cache_sizes(fits: Mapping[str, Any]) -> Finding | None:
    """The smallest and the largest cache of a token, where they differ."""
    known = [one for one in fits["kv"] if one["verdict"] == "equal"]
    if not known:
        return None
    least = min(known, key=lambda one: one["bytes_per_token"])
    most = max(known, key=lambda one: one["bytes_per_token"])
    ratio = most["bytes_per_token"] / least["bytes_per_token"]
    if ratio < _LEAST_RATIO:
        return None
    return Finding(
        f"{_times(ratio)}×",
        "bytes of a token in the largest KV cache over the smallest",
        f"A token takes {capacity(least['bytes_per_token'])} of KV cache in {least['name']} and "
        f"{capacity(most['bytes_per_token'])} in {most['name']}. Each of "
        f"{counted(len(known), 'cache')} holds what theory says.",
    )


def _dearest_position(records: Sequence[Record]) -> Finding | None:
    """All schemes of the workload in which one costs the most time."""
    workloads: dict[str, list[Mapping[str, Any]]] = {}
    for row in position_costs_table(records).rows:
        workloads.setdefault(row["workload"], []).append(row)
    if not workloads:
        return None
    name, rows = max(workloads.items(), key=lambda item: max(row["ratio"] for row in item[1]))
    rows.sort(key=lambda row: -row["ratio"])
    others = [f", with {row['position']} {_times(row['ratio'])}" for row in rows[1:]]
    return Finding(
        f"{_times(rows[0]['ratio'])}×",
        f"time of {name} with {rows[0]['position']} over that without positions",
        f"With {rows[0]['position']}, {name} takes {_times(rows[0]['ratio'])} times as long as "
        f"without positions{''.join(others)}.",
    )


def _taken_over(records: Sequence[Record]) -> Finding | None:
    """The shortest length from which attention takes more time than all else of its call."""
    found = [
        (crossing.at, crossing)
        for crossing in part_crossings(records)
        if crossing.at is not None and crossing.longer_at_end == crossing.first.name
    ]
    if not found:
        return None
    at, crossing = min(found, key=lambda pair: pair[0])
    first, last = (
        f"{percent(own_s / (own_s + rest_s))} at {tokens(n)}"
        for n, own_s, rest_s in (
            (crossing.first.n[end], crossing.first.seconds[end], crossing.second.seconds[end])
            for end in (0, -1)
        )
    )
    return Finding(
        f"{_about(at)} tokens",
        "from where on attention takes more time than all else",
        f"In {crossing.first.name.removeprefix('attention of ')}, attention takes {first} and "
        f"{last} tokens of the {'CPU ' if crossing.clock == 'cpu' else ''}time; "
        f"from about {_about(at)} on it takes more than all else.",
    )


def _steepest(fits: Mapping[str, Any]) -> Finding | None:
    """How the series grows whose exponent is surely the highest."""
    known = [
        one
        for one in fits["series"]
        if one["quantity"] == "latency"
        and one["axis"] in ("seq_len", "kv_len")
        and len(one["n"]) >= FEWEST_TO_TELL
        and one["exponent_low"] is not None
        and one["exponent_low"] >= _LEAST_EXPONENT
        and one["exponent_high"] - one["exponent_low"] <= _WIDEST_EXPONENT
        and one["worst_residual"] is not None
        and one["worst_residual"] <= WORST_RESIDUAL
        and not one["constant_removed"]
        and one["exponent_over"][1] >= _LEAST_STRETCH * one["exponent_over"][0]
    ]
    if not known:
        return None
    one = max(known, key=lambda one: one["exponent_low"])
    by_n = dict(zip(one["n"], one["values"], strict=True))
    ends = [
        f"{seconds(by_n[n])} at {tokens(n)}"
        for n in dict.fromkeys(one["exponent_over"])
        if n in by_n
    ]
    factor = _times(2 ** one["exponent"])
    return Finding(
        f"{factor}×",
        "time for twice the length",
        f"{one['name']} takes {factor} times as long for twice the length: "
        f"{' and '.join(ends)} tokens{', in CPU time' if one['clock'] == 'cpu' else ''}. "
        f"It grows as n^{one['exponent']:.2f}, {one['exponent_low']:.2f} to "
        f"{one['exponent_high']:.2f} with 95 % confidence.",
    )


def _soonest_full(fits: Mapping[str, Any]) -> Finding | None:
    """The shortest length that fills the memory, if it is near enough to care."""
    known = [
        one
        for one in fits["passes_device"]
        if one["seq_len"] is not None and one["seq_len"] <= _FURTHEST * one["longest_measured"]
    ]
    if not known:
        return None
    soonest = min(known, key=lambda one: one["seq_len"])
    at = _about(soonest["seq_len"], 3)
    return Finding(
        f"{at} tokens",
        "would fill the memory",
        f"{soonest['name']} would fill the device's {capacity(soonest['device_bytes'])} at about "
        f"{at} tokens. No run went there: it is foretold, at "
        f"{_times(soonest['seq_len'] / soonest['longest_measured'])} times the longest measured.",
    )


def _widest_contest(records: Sequence[Record]) -> Finding | None:
    """The workload whose backends differ the most."""
    decided = [contest for contest in contests(records) if contest.slower]
    if not decided:
        return None
    widest = max(decided, key=lambda contest: contest.medians_s[-1] / contest.medians_s[0])
    return _contest_finding(widest, [str(row.get("backend")) for row in widest.rows])


def _cache_kinds(records: Sequence[Record]) -> Finding | None:
    """The kinds of cache that differ the most, at the longest length."""
    held = [record for record in records if record.get("kv_cache") not in (None, "none")]
    decided = [contest for contest in contests(held, ("kv_cache", "mla")) if contest.slower]
    if not decided:
        return None
    longest = max(contest.kv_len for contest in decided)
    widest = max(
        (contest for contest in decided if contest.kv_len == longest),
        key=lambda contest: contest.medians_s[-1] / contest.medians_s[0],
    )
    varying = varying_keys(records)
    said = widest.name.split()
    names = [
        " ".join(word for word in label(row, varying).split() if word not in said)
        for row in widest.rows
    ]
    return _contest_finding(widest, names)


def _contest_finding(contest: Contest, names: Sequence[str]) -> Finding | None:
    ratios = [median_s / contest.medians_s[0] for median_s in contest.medians_s]
    if ratios[-1] < _LEAST_RATIO:
        return None
    first = contest.num_first
    fastest = f"{' and '.join(names[:first])} {'is' if first == 1 else 'are'} the fastest"
    dearest, *others = [
        f"{name} {'takes ' if number == 0 else ''}{_times(ratio)}"
        for number, (name, ratio) in enumerate(zip(names[first:], ratios[first:], strict=True))
    ]
    return Finding(
        f"{_times(ratios[-1])}×",
        f"time of {names[-1]} over {names[0]}, of {contest.name}",
        f"Of {contest.name}, {fastest} ({seconds(contest.medians_s[0])}{_on(contest.clock)}); "
        f"{', '.join([f'{dearest} times as long', *others])}.",
    )


def _most_attention(records: Sequence[Record]) -> Finding | None:
    rows = [row for row in parts_table(records).rows if row.get("attention") is not None]
    if not rows:
        return None
    most = max(rows, key=lambda row: row["attention"])
    return Finding(
        percent(most["attention"]),
        "of a call's time is attention, at most",
        f"Of all calls that were cut into parts, {most['workload']} spends the largest share of "
        f"its time on attention: {percent(most['attention'])}.",
    )


def _copied(fits: Mapping[str, Any]) -> Finding | None:
    """The cache that takes the most beyond itself while a step copies it."""
    known = [one for one in fits["kv"] if one["overshoot_bytes"]]
    if not known:
        return None
    most = max(known, key=lambda one: one["overshoot"])
    return Finding(
        percent(most["overshoot"]),
        "more memory while a step copies the cache",
        f"The cache of {most['name']} takes {capacity(most['overshoot_bytes'])} more than it "
        "holds while a step copies it.",
    )


def _cache_as_told(fits: Mapping[str, Any]) -> Finding | None:
    """That theory holds, where nothing else was found."""
    known = [one for one in fits["kv"] if one["verdict"] is not None]
    if not known:
        return None
    return Finding(capacity(known[0]["bytes_per_token"]), "of KV cache a token", kv_words(fits)[0])
