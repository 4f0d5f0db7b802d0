"""Whether fits see the growth that is there: exponents of n, of CPU time and of peak memory."""

from collections.abc import Mapping
from typing import Any

from attnprof.fit import fit_run
from attnprof.session import Asked
from tests.benchmarks.number import Number
from tests.benchmarks.sweeps import ONCE, Ran, ran

TIMED_LENGTHS = "1k..8k*2"
WEIGHED_LENGTHS = "256..2048x2"
TIME = (2.0, 0.1)  # the exponent of n, and how far off it may be
MEMORY = {"eager": (2.0, 0.05), "math": (2.0, 0.05), "flash": (1.0, 0.1)}

Fitted = Mapping[str, Any]


def numbers(busy: bool) -> list[Number]:
    timed = ran(asked("flash", "full,causal", TIMED_LENGTHS))
    weighed = ran(asked("eager,math", "full", WEIGHED_LENGTHS), ONCE)
    return of_sweeps(timed, weighed)


def of_sweeps(timed: Ran, weighed: Ran) -> list[Number]:
    found = [
        _number("CPU time of flash, full", on_cpu_time(timed, "full"), TIME),
        _number("CPU time of flash, causal", on_cpu_time(timed, "causal"), None),
    ]
    for backend, wanted in MEMORY.items():
        fitted = of_memory(timed if backend == "flash" else weighed, backend)
        found.append(_number(f"peak memory of {backend}, full", fitted, wanted))
    return found


def asked(backends: str, variants: str, seq_len: str, device: str = "cpu") -> Asked:
    """Prefills."""
    axes = {"backend": backends, "variant": variants, "seq_len": seq_len}
    return Asked(axes=axes, device=device)


def on_cpu_time(swept: Ran, variant: str) -> Fitted:
    """The fit of flash's latency on CPU time, which is what a contended run is fitted on."""
    records = [
        record | {"flags": [*record["flags"], "contended"]} for record in swept.outcome.records
    ]
    return _the(fit_run(swept.header, records), "latency", "flash", variant)


def of_memory(swept: Ran, backend: str) -> Fitted:
    """The fit of a backend's peak memory in the run's own ``fit.json``."""
    return _the(swept.fits, "peak_memory", backend, "full")


def _the(fits: Fitted, quantity: str, backend: str, variant: str) -> Fitted:
    [fitted] = [
        series
        for series in fits["series"]
        if series["quantity"] == quantity
        and (series["where"]["backend"], series["where"]["variant"]) == (backend, variant)
    ]
    found: Fitted = fitted
    return found


def _number(what: str, fitted: Fitted, wanted: tuple[float, float] | None) -> Number:
    """Causal times are shown and not judged: on a CPU flash computes its blocks of 512 keys whole
    where they meet the diagonal, a share of the work that shrinks as n grows."""
    exponent = fitted["exponent"]
    first, last = fitted["exponent_over"]
    how = f"prefill n {first} to {last} of {len(fitted['n'])} lengths"
    how += f", 95 % {fitted['exponent_low']:.3f} to {fitted['exponent_high']:.3f}"
    if fitted["constant_removed"]:
        how += f", less a constant of {fitted['constant_removed'] / 2**20:.2f} MiB"
    how += "".join(f"; knot at {knot['at']}: {knot['name']}" for knot in fitted["knots"])
    return Number(
        name=f"exponent of n, {what}",
        found=f"{exponent:.3f}",
        wanted=None if wanted is None else f"{wanted[0]:g} ± {wanted[1]:g}",
        met=None if wanted is None else abs(exponent - wanted[0]) <= wanted[1],
        how=how,
    )
