"""Records -> the laws by which latency and memory grow, each coefficient with its uncertainty.

``a + b·n + c·n²`` is right to 2 % where a kernel is bound by arithmetic, and wrong by half where
its working set leaves a cache. So each law is held against all of its own points, may change where
a cache ends, and foretells nothing where it was not tested.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from attnprof.errors import CannotMeasureError
from attnprof.kv_growth import generations, kv_fits
from attnprof.regimes import Candidate, blocks_grow_at, candidates, next_threshold
from attnprof.regression import Interval, Law, polynomial_law, power_law, ruling_terms
from attnprof.run_header import Header, facts_of
from attnprof.series import UNIT_OF_AXIS, Record, Series, group_series, is_attention, positive
from attnprof.theory.memory import mask_bytes
from attnprof.theory.recurrent import token_bytes
from attnprof.theory.traffic import query_bytes
from attnprof.units import percent, tokens
from attnprof.workload import Workload

FORMAT_VERSION = 1
WORST_RESIDUAL = 0.10  # a law that misses one of its own points by more foretells nothing
FURTHEST = 16  # times the longest measured length
SEEN_SHARE = 0.10  # a term that never had this share of a measured value was not measured
TERMS = ("constant", "linear", "quadratic")
_KNOT_RELATIVE_SD = 0.03  # launches of the same memory-bound code differ by this much and more
_LEAST_GAIN = 6.0  # of BIC, for each knot; called strong evidence
_MAX_KNOTS = 2
_LEAST_FIT_POINTS = 3
_WEIGHTY_CONSTANT = 0.01  # of the smallest value; less does not bend an exponent


def fit_run(header: Header, records: Sequence[Record]) -> dict[str, Any]:
    """The content of ``fit.json``.

    Args:
        header: The content of ``run.json``; its facts give cache and memory sizes.
        records: The lines of ``records.jsonl``. Those that are not ``ok`` are left out.
    """
    device = facts_of(header)
    all_series = group_series(records)
    return {
        "format": FORMAT_VERSION,
        "series": [fit_series(series, device) for series in all_series],
        "kv": kv_fits(records),
        "generation": generations(records),
        "passes_device": [
            entry
            for series in all_series
            if series.quantity == "peak_memory" and series.axis in ("seq_len", "kv_len")
            if (entry := length_that_fills(series, device)) is not None
        ],
    }


def fit_series(series: Series, device: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of ``series`` in ``fit.json``."""
    settled = _settled(series)
    measured, series = series, settled if len(settled.n) < len(series.n) else series
    law, knots = _best_law(series, device)
    exponent, used, constant = _exponent(series, law)
    why_not = _why_no_extrapolation(series, law)
    ahead = next_threshold(series, device)
    return {
        "name": series.name,
        "axis": series.axis,
        "quantity": series.quantity,
        "clock": series.clock,
        "where": series.where,
        "n": list(measured.n),
        "values": list(measured.values),
        "fitted_from": series.n[0],
        "fitted_from_because": None if series is measured else "the kernel's blocks are smaller",
        "exponent": exponent.value,
        "exponent_low": exponent.low,
        "exponent_high": exponent.high,
        "exponent_over": [used[0], used[-1]],
        "constant_removed": constant,
        **_coefficients(series, law),
        "worst_residual": None if law is None else law.worst_residual,
        "rules": [] if law is None else _rules(series, law),
        "knots": [_knot(series, law, knot) for knot in knots] if law else [],
        "segments": _segments(series, law),
        "extrapolates": why_not is None,
        "why_not": why_not,
        "holds_up_to": ahead[0] if ahead else None,
        "holds_up_to_because": ahead[1] if ahead else None,
    }


def predict(fitted: Mapping[str, Any], n: float) -> float:
    """The value at ``n`` by one series of ``fit.json``. [s or bytes]

    Raises:
        CannotMeasureError: The law was not tested there: it misses its own points, a knot or an
            unmeasured regime lies between, ``n`` is too far off, or the term that would rule
            there was too small to be measured.
    """
    name, n_first, n_last = fitted["name"], fitted["fitted_from"], fitted["n"][-1]
    measure = "measure it, or a length nearer to it"
    coefficients = list((fitted["coefficients"] or {}).values())
    worst = fitted["worst_residual"]
    if not coefficients or worst is None or worst > WORST_RESIDUAL:
        raise CannotMeasureError(f"{name}: {fitted['why_not']}", measure)
    for knot in fitted["knots"]:
        low, high = knot["between"]
        if low < n < high:
            raise CannotMeasureError(f"{name} changes its law near {n:g}: {knot['name']}", measure)
    if not n_first <= n <= n_last:
        if not fitted["extrapolates"]:
            raise CannotMeasureError(f"{name}: {fitted['why_not']}", measure)
        if n > FURTHEST * n_last or n < n_first / FURTHEST:
            raise CannotMeasureError(
                f"{name} was measured from {n_first} to {n_last}, and {n:g} is over "
                f"{FURTHEST} times off",
                measure,
            )
        limit = fitted["holds_up_to"]
        if limit is not None and n > limit:
            raise CannotMeasureError(
                f"{name}: {fitted['holds_up_to_because']} at {limit:.0f}, beyond the measured "
                f"{n_last}",
                measure,
            )
    if n > n_last and (unseen := _unseen_ruler(coefficients, n_last, n)) is not None:
        raise CannotMeasureError(
            f"{name}: the {TERMS[unseen]} term would rule at {n:g} and was hardly there at "
            f"{n_last}",
            measure,
        )
    segment = sum(n > knot["between"][0] for knot in fitted["knots"])
    coefficients[-1] = fitted["segments"][segment]["coefficient"]
    return float(sum(c * n**power for power, c in enumerate(coefficients)))


def _unseen_ruler(coefficients: Sequence[float], n_seen: float, n: float) -> int | None:
    """The power whose term is largest at ``n`` and had less than its share at ``n_seen``."""
    there = [c * n**power for power, c in enumerate(coefficients)]
    seen = [c * n_seen**power for power, c in enumerate(coefficients)]
    ruler = max(range(len(there)), key=there.__getitem__)
    return ruler if seen[ruler] < SEEN_SHARE * sum(seen) else None


def _settled(series: Series) -> Series:
    """The series from the length on that the kernel works in its largest blocks.

    Of a series of times only where that counts: where one law for all lengths misses a point by
    over 10 %, and less than half as much without the short ones.
    """
    start = blocks_grow_at(series)
    rest = replace(
        series,
        n=series.n[start:],
        values=series.values[start:],
        sd=series.sd[start:],
        records=series.records[start:],
    )
    if start and series.quantity == "latency":
        before, after = (_law(one, ()).worst_residual for one in (series, rest))
        return rest if before > WORST_RESIDUAL and after < before / 2 else series
    return rest


def _best_law(
    series: Series, device: Mapping[str, Any]
) -> tuple[Law | None, tuple[Candidate, ...]]:
    """The plain law, or one with knots where that is better beyond doubt.

    A knot has to have a cause, the plain law has to miss a point by over 10 %, and the knotted
    one has to take a third off that and to earn its coefficient (BIC).
    """
    if len(series.n) < _LEAST_FIT_POINTS:
        return None, ()
    best = _law(series, ())
    chosen: tuple[Candidate, ...] = ()
    if best.worst_residual <= WORST_RESIDUAL:
        return best, ()
    possible = candidates(series, device)
    for num_knots in range(1, _MAX_KNOTS + 1):
        trials = [
            (_law(series, knots), knots) for knots in itertools.combinations(possible, num_knots)
        ]
        trials = [(law, knots) for law, knots in trials if _is_plausible(law)]
        if not trials:
            break
        law, knots = min(trials, key=lambda trial: _bic(series, trial[0]))
        gains = _bic(series, best) - _bic(series, law) >= _LEAST_GAIN
        if gains and law.worst_residual <= best.worst_residual * 2 / 3:
            best, chosen = law, knots
    return best, chosen


def _is_plausible(law: Law) -> bool:
    """Whether each segment costs more than the one before, for leaving a cache never helps, and
    a point is to spare when knots count as coefficients do."""
    rises = all(before.value < after.value for before, after in itertools.pairwise(law.top))
    return rises and law.num_terms + len(law.knots) < len(law.residuals)


def _law(series: Series, knots: tuple[Candidate, ...]) -> Law:
    at = [math.sqrt(series.n[knot.gap - 1] * series.n[knot.gap]) for knot in knots]
    return polynomial_law(series.n, series.values, series.sd, series.degree, at)


def _bic(series: Series, law: Law) -> float:
    """Bayesian information criterion; its noise is each point's own and that between launches."""
    n = len(law.residuals)
    misfit = sum(
        (residual / math.hypot(_KNOT_RELATIVE_SD, sd)) ** 2
        for residual, sd in zip(law.residuals, series.sd, strict=True)
    )
    return misfit + (law.num_terms + len(law.knots)) * math.log(n)


def _exponent(series: Series, law: Law | None) -> tuple[Interval, tuple[int, ...], float | None]:
    """Exponent of n, the lengths it was fitted over, and the constant that was taken off first.

    A knot bends a log-log line, so of several segments the one with most points is taken. So does
    a constant term: bytes are exact, and it is taken off; times are not, and the short lengths
    where it weighs over 10 % are left out, as long as three are left.
    """
    if law is None:
        return power_law(series.n, series.values, series.sd), series.n, None
    if law.knots:
        rows = max(reversed(_rows_by_segment(series, law)), key=len)
        return _exponent_over(series, rows), tuple(series.n[i] for i in rows), None
    constant = law.lower[0].value
    share = [constant / value for value in series.values]
    everything = list(range(len(series.n)))
    removed = 0.0
    rows = everything
    if law.worst_residual <= WORST_RESIDUAL and share[0] >= _WEIGHTY_CONSTANT:
        is_exact = series.quantity == "peak_memory"
        for limit in (0.9,) if is_exact else (0.1, 0.5):
            rows = [i for i in everything if share[i] <= limit]
            if len(rows) >= _LEAST_FIT_POINTS:
                removed = constant if is_exact else 0.0
                break
        else:
            rows = everything
    return _exponent_over(series, rows, removed), tuple(series.n[i] for i in rows), removed or None


def _exponent_over(series: Series, rows: Sequence[int], removed: float = 0.0) -> Interval:
    return power_law(
        [series.n[i] for i in rows],
        [series.values[i] - removed for i in rows],
        [series.sd[i] for i in rows],
    )


def _rows_by_segment(series: Series, law: Law) -> list[list[int]]:
    """Indices of the points of each segment."""
    edges = (-math.inf, *law.knots, math.inf)
    return [
        [i for i, n in enumerate(series.n) if start < n <= stop]
        for start, stop in itertools.pairwise(edges)
    ]


def _coefficients(series: Series, law: Law | None) -> dict[str, Any]:
    """Value, low and high end of a, b and c by names that carry their units."""
    if law is None:
        return dict.fromkeys(("coefficients", "coefficients_low", "coefficients_high"))
    unit = "s" if series.quantity == "latency" else "bytes"
    per = UNIT_OF_AXIS[series.axis]
    names = (f"a_{unit}", f"b_{unit}_per_{per}", f"c_{unit}_per_{per}2")
    terms = (*law.lower, law.top[-1])
    return {
        "coefficients": {name: t.value for name, t in zip(names, terms, strict=False)},
        "coefficients_low": {name: t.low for name, t in zip(names, terms, strict=False)},
        "coefficients_high": {name: t.high for name, t in zip(names, terms, strict=False)},
    }


def _rules(series: Series, law: Law) -> list[dict[str, Any]]:
    """Which term is the largest from which n on, beyond the last knot if there is one.

    A term that takes over beyond the measured lengths is left out unless it was seen in them.
    """
    coefficients, longest = law.coefficients(), series.n[-1]
    rulers = [
        (power, start)
        for power, start in ruling_terms(coefficients)
        if start <= longest or coefficients[power] * longest**power >= SEEN_SHARE * law.at(longest)
    ]
    ends = [start for _, start in rulers[1:]] + [None]
    return [
        {"term": TERMS[power], "from": start, "to": end}
        for (power, start), end in zip(rulers, ends, strict=True)
    ]


def _knot(series: Series, law: Law, knot: Candidate) -> dict[str, Any]:
    segment = sum(at < series.n[knot.gap] for at in law.knots)
    before, after = law.top[segment - 1].value, law.top[segment].value
    return {
        "between": [series.n[knot.gap - 1], series.n[knot.gap]],
        "at": knot.at,
        "cause": knot.cause,
        "name": knot.name,
        "ratio": after / before if before > 0 else None,
    }


def _segments(series: Series, law: Law | None) -> list[dict[str, Any]]:
    """The stretches between knots, each with its own exponent and highest coefficient."""
    if law is None:
        return []
    found = []
    for s, rows in enumerate(_rows_by_segment(series, law)):
        exponent = _exponent_over(series, rows) if len(rows) > 1 else None
        found.append(
            {
                "from": series.n[rows[0]],
                "to": series.n[rows[-1]],
                "num_points": len(rows),
                "exponent": exponent.value if exponent else None,
                "exponent_low": exponent.low if exponent else None,
                "exponent_high": exponent.high if exponent else None,
                "coefficient": law.top[s].value,
            }
        )
    return found


def _why_no_extrapolation(series: Series, law: Law | None) -> str | None:
    if law is None:
        return f"{len(series.n)} points do not tell a constant from growth"
    if law.worst_residual > WORST_RESIDUAL:
        why = f"the law misses a measured point by {percent(law.worst_residual)}"
        return why if law.knots else f"{why}, and no named change of regime explains it"
    if law.knots:
        above = [n for n in series.n if n > law.knots[-1]]
        if len(above) < _LEAST_FIT_POINTS:
            return (
                f"the law changes before {above[0]}, and only {len(above)} of the points "
                f"{'lies' if len(above) == 1 else 'lie'} beyond"
            )
    return None


def length_that_fills(series: Series, device: Mapping[str, Any]) -> dict[str, Any] | None:
    """The length at which weights, Q, K, V, mask and the peak fill the device.

    The root of ``a + b·n + c·n² = memory``: the law of the measured peak, and on top of it what is
    held between calls. Of a prefill keys, values and queries by the token and a mask by the pair;
    of a layer in attention's place tokens, its state and no mask; of a decode the cache, by the
    tokens that it held. None where the device's memory is not known.
    """
    memory_bytes = positive(device.get("memory_bytes"))
    if memory_bytes is None:
        return None
    series = _settled(series)
    law, _ = _best_law(series, device)
    last = series.records[-1]
    entry = {
        "name": series.name,
        "axis": series.axis,
        "where": series.where,
        "device_bytes": memory_bytes,
        "longest_measured": series.n[-1],
        "seq_len": None,
        "total_bytes": None,
        "why_not": _why_no_extrapolation(series, law),
    }
    if law is None or entry["why_not"] is not None:
        return entry
    kv_bytes = 0.0 if last.get("kv_bytes") == 0 else positive(last.get("kv_bytes"))
    if kv_bytes is None:
        return entry | {"why_not": "the bytes of keys and values were not measured"}
    workload = _workload(last)
    constant, linear, quadratic = (*law.coefficients(), 0.0)[:3]
    constant += last.get("weight_bytes") or 0
    if series.axis == "kv_len":
        a_token = _cache_growth(series)
        linear += a_token
        constant += kv_bytes - a_token * series.n[-1] + query_bytes(workload)
    elif is_attention(last):
        linear += (kv_bytes + query_bytes(workload)) / series.n[-1]
        quadratic += mask_bytes(workload) / series.n[-1] ** 2
    else:
        linear += token_bytes(workload) / series.n[-1]
        constant += kv_bytes
    entry |= {"total_bytes": [constant, linear, quadratic]}  # by powers of n
    beyond = constant - memory_bytes
    if beyond >= 0:
        return entry | {"why_not": "what does not grow with the length fills it already"}
    if linear <= 0 and quadratic <= 0:
        return entry | {"why_not": "it does not grow with the length"}
    root = math.sqrt(linear**2 - 4 * quadratic * beyond)
    n = -2 * beyond / (linear + root)
    if (unseen := _unseen_ruler(law.coefficients(), series.n[-1], n)) is not None:
        return entry | {
            "why_not": f"the {TERMS[unseen]} term would rule at {tokens(round(n))} and was hardly "
            f"there at {tokens(series.n[-1])}"
        }
    return entry | {"seq_len": math.floor(n)}


def _cache_growth(series: Series) -> float:
    """By how much the cache of a decode grows with each token that it held. [bytes]"""
    first, last = (positive(series.records[place].get("kv_bytes")) or 0.0 for place in (0, -1))
    return max(0.0, (last - first) / (series.n[-1] - series.n[0]))


def _workload(record: Record) -> Workload:
    names = [field.name for field in fields(Workload) if record.get(field.name) is not None]
    return Workload.from_json({name: record[name] for name in names})
