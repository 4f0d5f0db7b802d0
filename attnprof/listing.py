"""Plans, findings and profiles -> the tables that show them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnprof import units
from attnprof.backends.support import BACKENDS, Backend, unsupported_reason
from attnprof.doctor import CANNED, Spread
from attnprof.forecast import Forecast
from attnprof.grid import Skipped
from attnprof.machine import Finding, meters
from attnprof.render import Column, Table
from attnprof.series import label, varying_keys, what_is_common
from attnprof.workload import Workload

if TYPE_CHECKING:
    from attnprof.predicted import Predicted


def plan_table(
    name: str,
    forecasts: Sequence[Forecast],
    skipped: Sequence[Skipped],
    foretold: Mapping[Workload, "Predicted"],
    source: str,
) -> Table:
    """The workloads that a sweep would run, with what theory says of each.

    Args:
        foretold: The calls that a calibration foretells.
        source: Where the time of a call comes from.
    """
    records = [_as_record(forecast.workload) for forecast in forecasts]
    varying = varying_keys(records)
    rows: list[dict[str, Any]] = [
        {
            "workload": label(record, varying),
            "workload_id": forecast.workload.workload_id,
            "flops": forecast.flops,
            "bytes_moved": forecast.bytes_moved,
            "held_bytes": forecast.held_bytes,
            "theory_peak_activation_bytes": forecast.peak_activation_bytes,
            **_call_times(forecast, foretold.get(forecast.workload)),
            "problem": forecast.problem or "",
        }
        for forecast, record in zip(forecasts, records, strict=True)
    ]
    rows.sort(key=lambda row: not row["problem"])
    will_all_run = not any(row["problem"] for row in rows)
    notes = [*what_is_common(records), f"Time of a call: {source}."]
    notes += [f"Left out: {skip.what}: {skip.reason}." for skip in skipped]
    return Table(
        name="plan",
        title=f"Plan of sweep '{name}'",
        columns=(
            Column("workload", "Workload"),
            Column("flops", "FLOP", lambda flops: units.rate(flops, "FLOP"), "right", 1),
            Column("bytes_moved", "Moves", units.capacity, "right", 2),
            Column("held_bytes", "Holds", units.capacity, "right", 1),
            Column("theory_peak_activation_bytes", "Peak", units.capacity, "right", 1),
            Column("call_s", "A call", units.seconds, "right", 1),
            *(
                [
                    Column("call_low_s", "at least", units.seconds, "right", 1),
                    Column("call_high_s", "at most", units.seconds, "right", 1),
                ]
                if foretold
                else []
            ),
            Column("workload_id", "Id", priority=5),
            *([] if will_all_run else [Column("problem", "Will not run because", wraps=True)]),
        ),
        rows=tuple(rows),
        notes=tuple(notes),
        alarming=lambda row: bool(row["problem"]),
    )


def _call_times(forecast: Forecast, made: "Predicted | None") -> dict[str, float | None]:
    if forecast.problem is not None:
        return {"call_s": None, "call_low_s": None, "call_high_s": None}
    if made is None:
        return {"call_s": forecast.call_s, "call_low_s": None, "call_high_s": None}
    return {"call_s": made.mid_s, "call_low_s": made.low_s, "call_high_s": made.high_s}


def _as_record(workload: Workload) -> dict[str, Any]:
    """A workload under the names that a record has."""
    return {**workload.to_json(), "kv_dtype": workload.cached_dtype}


def findings_table(findings: Sequence[Finding]) -> Table:
    """What the doctor saw of this computer, what disturbs first."""
    order = {"disturbs": 0, "missing": 1, "unknown": 2, "ok": 3}
    return Table(
        name="machine",
        title="This machine",
        columns=(
            Column("what", "What"),
            Column("found", "Found"),
            Column("verdict", "Verdict"),
            Column("advice", "What would help", wraps=True),
        ),
        rows=tuple(
            vars(finding)
            for finding in sorted(findings, key=lambda finding: order[finding.verdict])
        ),
        alarming=lambda row: row["verdict"] == "disturbs",
    )


def abilities_table(kind: str) -> Table:
    """What a device of this kind can be measured with here, and what not, each with its reason."""
    probe = Workload(backend="eager", q_len=1024, kv_len=1024)
    rows = []
    for backend in BACKENDS.values():
        dtypes = backend.dtypes.get(kind, ())
        reason = unsupported_reason(
            replace(probe, backend=backend.name, dtype=dtypes[0] if dtypes else "float32"), kind
        )
        if reason is None and not backend.installed:
            reason = f"pip install {backend.package}"
        rows.append({"what": f"backend {backend.name}", "can": reason is None, "how": reason})
        if reason is None:
            rows[-1]["how"] = ", ".join(dtypes)
    rows += [{"what": what, "can": can, "how": how} for what, can, how in meters(kind)]
    return Table(
        name="abilities",
        title=f"What can be measured on {kind}",
        columns=(
            Column("what", "What"),
            Column("can", "Can", lambda can: "yes" if can else "no"),
            Column("how", "With, or why not", wraps=True),
        ),
        rows=tuple(sorted(rows, key=lambda row: not row["can"])),
    )


def spreads_table(spreads: Sequence[Spread], num_launches: int) -> Table:
    """The self-test: how far launches of identical code lie apart, by workload and clock."""
    names = {
        workload.workload_id: f"{workload.phase} {workload.backend} {units.tokens(workload.kv_len)}"
        for workload in CANNED
    }
    return Table(
        name="self_test",
        title=f"Self-test: {num_launches} launches of identical code",
        columns=(
            Column("workload_id", "Workload", lambda key: names.get(key, key)),
            Column("clock", "Clock"),
            Column("median_s", "Median", units.seconds, "right", 1),
            Column("sd", "Spread", units.percent, "right"),
            Column("false_alarm_share", "Looks 5 % slower", units.percent, "right"),
            Column("detectable_ratio", "A gate would see", lambda ratio: f"{ratio:.3f}×", "right"),
        ),
        rows=tuple(
            {
                "workload_id": spread.workload_id,
                "clock": spread.clock,
                "median_s": sorted(spread.medians_s)[len(spread.medians_s) // 2],
                "sd": spread.sd,
                "false_alarm_share": spread.false_alarm_share,
                "detectable_ratio": spread.detectable_ratio,
            }
            for spread in spreads
        ),
        notes=(
            "Spread: standard deviation of the log of the launches' medians. Looks 5 % slower: how "
            "often one launch against one would say so. A gate would see: the smallest slowdown "
            "found four times in five with 15 launches a side.",
        ),
    )


def _where(backend: Backend) -> str:
    """Kinds of device by the element types that they have, those alike together."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for kind, dtypes in backend.dtypes.items():
        kinds.setdefault(dtypes, []).append(kind)
    return "; ".join(f"{', '.join(alike)}: {', '.join(dtypes)}" for dtypes, alike in kinds.items())


ABILITIES = {
    "masked_on": "mask",
    "windowed_on": "window",
    "ends_causal_on": "causal after a cache",
    "biased_on": "bias",
    "softcapped_on": "soft cap",
    "sinks_on": "sink logits",
    "value_widths_on": "value widths",
    "trains_on": "backward",
}


def _takes(backend: Backend) -> str:
    """What a kernel takes beyond queries, keys and values; where that is not everywhere, where."""
    said = []
    for name, word in ABILITIES.items():
        kinds = [kind for kind in backend.dtypes if kind in getattr(backend, name)]
        if kinds:
            everywhere = len(kinds) == len(backend.dtypes)
            said.append(word if everywhere else f"{word} ({', '.join(kinds)})")
    return ", ".join(said) or "–"


def backends_table() -> Table:
    """What each backend computes, where, and whether it can be loaded here."""
    return Table(
        name="backends",
        title="Backends",
        columns=(
            Column("name", "Backend"),
            Column("summary", "What it is", wraps=True),
            Column("where", "Runs on, with", wraps=True),
            Column("takes", "Takes", wraps=True),
            Column("gqa", "Shares KV heads", priority=2),
            Column("installed", "Installed", priority=1),
        ),
        rows=tuple(
            {
                "name": backend.name,
                "summary": backend.summary,
                "where": _where(backend),
                "takes": _takes(backend),
                "gqa": "yes" if backend.shares_kv_heads else "no",
                "installed": "yes" if backend.installed else f"pip install {backend.package}",
            }
            for backend in BACKENDS.values()
        ),
    )


def profiles_table(kind: str, profiles: Mapping[str, Mapping[str, Any]]) -> Table:
    """Names and descriptions of a kind's profiles."""
    return Table(
        name=kind,
        title=kind.capitalize(),
        columns=(Column("name", "Name"), Column("description", "What it is", wraps=True)),
        rows=tuple(
            {"name": name, "description": str(content.get("description", ""))}
            for name, content in profiles.items()
        ),
    )
