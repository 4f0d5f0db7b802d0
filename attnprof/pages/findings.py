"""A run and its fits -> the three findings that matter most, a sentence each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnprof.comparison_tables import parts_words, position_words, replaced_words
from attnprof.findings import FEWEST_TO_TELL, filling_words, growth_words, kv_words
from attnprof.fit import WORST_RESIDUAL
from attnprof.series import Record, contests
from attnprof.units import seconds, tokens

MOST = 3
_LEAST_EXPONENT, _WIDEST_EXPONENT = 0.5, 0.5  # growth, and an interval, that are worth telling
_LEAST_RATIO = 1.2  # of times, below which nobody would choose by it


def headlines(records: Sequence[Record], fits: Mapping[str, Any]) -> list[str]:
    """The strongest sentence of each kind, the kinds by how much hangs on them, three at most.

    A cache of the wrong size comes first. Then how time grows, where memory ends, who is the
    fastest, from where on attention rules, what the cache buys, what could stand in attention's
    place, what positions cost.
    """
    kinds: tuple[Callable[[], str | None], ...] = (
        lambda: next((said for said in kv_words(fits) if said.endswith(": wrong.")), None),
        lambda: _steepest(fits),
        lambda: _soonest_full(fits),
        lambda: _widest_contest(records),
        lambda: next((said for said in parts_words(records) if "from about" in said), None),
        lambda: _most_bought(fits),
        lambda: next((said for said in replaced_words(records) if "are equal" in said), None),
        lambda: next(iter(position_words(records)), None),
        lambda: next(iter(parts_words(records)), None),
        lambda: next((said for said in kv_words(fits) if "while a step copies" in said), None),
        lambda: next(iter(kv_words(fits)), None),
    )
    found: list[str] = []
    for kind in kinds:
        said = kind()
        if said is not None and said not in found:
            found.append(said)
        if len(found) == MOST:
            break
    return found


def _steepest(fits: Mapping[str, Any]) -> str | None:
    """How the series grows whose exponent is surely the highest."""
    known = [
        one
        for one in fits["series"]
        if one["quantity"] == "latency"
        and len(one["n"]) >= FEWEST_TO_TELL
        and one["exponent_low"] is not None
        and one["exponent_low"] >= _LEAST_EXPONENT
        and one["exponent_high"] - one["exponent_low"] <= _WIDEST_EXPONENT
        and one["worst_residual"] is not None
        and one["worst_residual"] <= WORST_RESIDUAL
    ]
    by_exponent = sorted(known, key=lambda one: -one["exponent_low"])
    return next(
        (said for one in by_exponent for said in growth_words({"series": [one]}, "latency")), None
    )


def _soonest_full(fits: Mapping[str, Any]) -> str | None:
    known = [one for one in fits["passes_device"] if one["seq_len"] is not None]
    soonest = sorted(known, key=lambda one: one["seq_len"])[:1]
    return next(iter(filling_words({"passes_device": soonest})), None)


def _widest_contest(records: Sequence[Record]) -> str | None:
    """The workload whose backends differ the most."""
    decided = [contest for contest in contests(records) if contest.slower]
    if not decided:
        return None
    widest = max(decided, key=lambda contest: contest.medians_s[-1] / contest.medians_s[0])
    name, ratio = widest.slower[-1]
    if ratio < _LEAST_RATIO:
        return None
    return (
        f"Of {widest.name}, {widest.fastest[0]} takes "
        f"{seconds(widest.medians_s[0])} and {name} {ratio:.3g}× as long."
    )


def _most_bought(fits: Mapping[str, Any]) -> str | None:
    """How much longer generation takes where each step computes every token anew."""
    known = [one for one in fits["generation"] if one["speedup"] is not None]
    if not known:
        return None
    most = max(known, key=lambda one: one["speedup"])
    return (
        f"Without its cache, {most['name']} takes {most['speedup']:.3g}× as long to "
        f"{tokens(most['speedup_at'])} tokens."
    )
