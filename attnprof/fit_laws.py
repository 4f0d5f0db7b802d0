"""Run directories -> the law of each backend, dtype and phase, held out, and a calibration."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnprof.errors import UsageError
from attnprof.law_shapes import (
    STEP,
    Identity,
    columns_of,
    identity_of,
    is_call,
    is_step,
    step_columns,
    workload_of,
)
from attnprof.laws import steps
from attnprof.laws.base import Floats, Hardware, Law, log_jacobian
from attnprof.laws.calibrating import calibrate, law_key
from attnprof.laws.calibration import (
    HOLDS_MEDIAN,
    HOLDS_P90,
    CalibratedLaw,
    Calibration,
)
from attnprof.laws.cpu import CPU_DECODE, CPU_PREFILL, CPU_SCORES_PREFILL
from attnprof.laws.fitting import LEAST_SCATTER, Fitted, covering, fit_overlaps, unlikeliness
from attnprof.laws.groups import Group
from attnprof.laws.holdouts import FORM, Outcome, judge, judge_few, least_rows
from attnprof.laws.kernels import DECODE, PREFILL
from attnprof.overheads import read_overheads
from attnprof.predicted import attention_times
from attnprof.records import Run
from attnprof.run_header import calibrated_device, ceilings_of, facts_of, kind_of, slug
from attnprof.several_runs import read_runs

OWN_ENGINE = "attnprof"
LEAST_POINTS = 8  # of six or seven coefficients, most of which few points show
MOST_POINTS = 192  # to fit; the rest is for the residual
PAST_CACHE = 3.0  # working sets beyond the last cache that show the memory's bandwidth
PLAUSIBLE = 6.0  # more of minus twice the log likelihood than the best: 1 in 20 as likely
CACHE_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125)  # of the last cache, that calls may find
SHORTEST_S = 1e-9  # a clock cycle or two
SIZES = ("batch_size", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim")
CPU_DRIFT_SD = 0.06  # of a log latency, from a run to a later one: its memory is others' too
CONTENDED = "contended"
LEAST_CLEAN = 3  # samples of a record that hardly waited, for which the others are left out
_LENGTHS = {"prefill": "q_len", "decode": "kv_len", STEP: "num_tokens"}
# Before anything is measured little is known of a device that is no data-centre GPU, or of calls
# that a host launches one by one.
_WIDE: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "prefill": {
        "launch": (20e-6, 1.5), "compute": (2.5, 1.0), "dram": (1.5, 1.0), "cache": (0.7, 1.2),
        "tile": (5e-6, 2.0), "path": (0.3, 1.5), "token": (5e-8, 2.0),
    },
    "decode": {
        "launch": (20e-6, 1.5), "depth": (0.7e-6, 1.5), "compute": (3.0, 1.0),
        "sequence": (3e-6, 1.5), "dram": (1.3, 0.5), "cache": (0.6, 1.2), "stream": (0.5e-6, 2.0),
    },
}  # fmt: skip
_SCORES = {"prefill": CPU_SCORES_PREFILL, "decode": CPU_DECODE}
_CPU_LAWS = {
    "flash": {"prefill": CPU_PREFILL, "decode": CPU_DECODE},
    "eager": _SCORES,
    "math": _SCORES,
}
_BINDS = {
    "launch": "launch", "depth": "launch", "compute": "arithmetic", "path": "arithmetic",
    "tile": "work for each tile", "token": "work for each token",
    "sequence": "work for each sequence", "dram": "bandwidth", "cache": "bandwidth",
    "stream": "bandwidth", "score": "arithmetic",
    "task": "work for each task", "wake": "launch", "kernel": "launch", "few": "weights",
    "few_cache": "weights", "many": "weights", "many_cache": "weights", "large": "weights",
    "rows": "activations", "rows_cache": "activations", "attention": "attention",
    "kv": "keys and values", "ragged": "arithmetic",
}  # fmt: skip


@dataclass(frozen=True)
class FittedGroup:
    """A group of records with its law, its hold-outs, and words on both."""

    group: Group
    key: str
    law: CalibratedLaw
    outcomes: Sequence[Outcome]
    holds: bool
    words: Sequence[str]
    identity: Identity = ()

    @property
    def residuals(self) -> Floats:
        """Measured over fitted, minus one."""
        return self.group.latency_s / self.law.fitted.latency_s(self.group.shapes) - 1.0


@dataclass(frozen=True)
class RunFit:
    """What ``attnprof fit`` found."""

    calibration: Calibration
    groups: Sequence[FittedGroup]
    notes: Sequence[str]
    used_once: Sequence[str] = ()  # words on runs and records that were given twice


def fit_runs(paths: Sequence[Path], name: str | None = None) -> RunFit:
    """The laws of all records of scope op in some runs of one device.

    Raises:
        UsageError: No run, two devices, no record of a prefill or decode, too few for any law, or
            a time or size that is none.
    """
    runs, used_once = read_runs(paths)
    if any(record.get("kind") for run in runs for record in run.records):
        from attnprof.imports.fitting import fit_foreign

        return replace(fit_foreign(runs, name), used_once=used_once)
    device = _one_device(runs)
    records = _fittable(runs)
    if not records:
        raise UsageError(
            f"{_named(paths)}: no measured prefill or decode",
            "sweep them: attnprof sweep --axis phase=prefill,decode",
        )
    unsteady_sd = _unsteadiness(runs)
    if kind_of(runs[0].header) == "cpu":
        unsteady_sd = max(unsteady_sd, CPU_DRIFT_SD)
    found: list[FittedGroup] = []
    notes: list[str] = []
    kernels = {identity: alike for identity, alike in records.items() if not is_step(alike[0])}
    for identity, alike in sorted(kernels.items()):
        group = _group(runs[0], identity, alike, columns_of(alike))
        _fit_into(found, notes, identity, group, unsteady_sd)
    attention_s = attention_times(_calibration(runs, paths, device, name, found))
    for identity, alike in sorted(records.items()):
        if identity in kernels:
            continue
        workloads = [workload_of(record) for record in alike]
        try:
            columns = step_columns(workloads, attention_s)
        except UsageError as error:
            notes.append(f"{_words(identity)}: {error.problem}; {error.fix}")
            continue
        group = _group(runs[0], identity, alike, columns)
        _fit_into(found, notes, identity, group, unsteady_sd)
    if not found:
        raise UsageError(
            "\n  ".join((f"{_named(paths)}: no law can be fitted", *notes)),
            "measure what a law needs: attnprof sweep --for-fit; or go on with --resume and a "
            "larger --budget",
        )
    return RunFit(_calibration(runs, paths, device, name, found), found, notes, used_once)


def _calibration(
    runs: Sequence[Run], paths: Sequence[Path], device: str, name: str | None,
    found: Sequence[FittedGroup],
) -> Calibration:  # fmt: skip
    header = runs[0].header
    return Calibration(
        name=name or slug(device),
        device=device,
        engine=OWN_ENGINE,
        source={
            "runs": " ".join(str(run.path) for run in runs),
            "measured": " ".join(sorted({str(run.header.get("started")) for run in runs})),
            "attnprof": str(header.get("attnprof")),
            "device_kind": str(kind_of(header)),
            "fingerprint": ", ".join(
                f"{key} {value}" for key, value in (header.get("fingerprint") or {}).items()
            ),
            "made_by": "attnprof fit",
        },
        laws={one.key: one.law for one in found},
        overheads=read_overheads(run.path for run in runs),
    )


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _one_device(runs: Sequence[Run]) -> str:
    """The name of the device of all runs, its threads with it where it is a CPU."""
    names: dict[str, Path] = {}
    for run in runs:
        names.setdefault(calibrated_device(run.header), run.path)
    if len(names) > 1:
        listed = " and ".join(f"{name} ({path})" for name, path in names.items())
        raise UsageError(f"these are runs of different devices: {listed}", "fit them one by one")
    return next(iter(names))


def _fittable(runs: Sequence[Run]) -> dict[Identity, list[Mapping[str, Any]]]:
    """Records that are alike in all but lengths, batch and heads, of all runs."""
    found: dict[Identity, list[Mapping[str, Any]]] = {}
    for run in runs:
        for record in run.records:
            if record["status"] == "ok" and record.get("median_s") and is_call(record):
                _check(run, record)
                found.setdefault(identity_of(record), []).append(record)
    return found


def _group(
    run: Run, identity: Identity, alike: Sequence[Mapping[str, Any]], columns: dict[str, Floats]
) -> Group:
    """Records of one identity with their law and hardware."""
    key = {name: value for name, value in identity if value}
    law = _law_of(key["phase"], key["backend"], kind_of(run.header))
    hardware = _hardware(run.header, str(alike[0]["dtype"]), key.get("cache") == "cold")
    if _is_contended(alike):
        key["clock"] = CONTENDED
    return Group(key, law, hardware, columns, latencies_of(alike, run.header))


def _fit_into(
    found: list[FittedGroup], notes: list[str], identity: Identity, group: Group, unsteady_sd: float
) -> None:
    """Fit a group where its points are enough, else note what is missing."""
    key, why_not = law_key(group), _why_no_law(group)
    if why_not is None:
        found.append(_fitted(key, identity, group, unsteady_sd))
    else:
        notes.append(f"{key}: {why_not}")


def _words(identity: Identity) -> str:
    return ".".join(value for _, value in identity if value)


def _check(run: Run, record: Mapping[str, Any]) -> None:
    """Refuse a record that the device of this run cannot have measured."""
    where = f"{run.path}: {record['workload_id']}"
    time_s = record["median_s"]
    if time_s < SHORTEST_S:
        raise UsageError(
            f"{where} took {time_s:g} s", "remove that record: nothing takes so little time"
        )
    first = run.records[0]
    if record.get("device") != first.get("device"):
        raise UsageError(
            f"{where} is of {record.get('device')}, the first record of {first.get('device')}",
            "keep the records of each device in a run of its own",
        )
    for size in SIZES:
        if (record.get(size) or 0) < 1:
            raise UsageError(f"{where} has {size} {record.get(size)}", "remove that record")


def _is_contended(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether other work held the cores while most of the records were measured."""
    clocks = [record.get("clock") for record in records]
    has_cpu = all((record.get("median_cpu_s") or 0) > 0 for record in records)
    return has_cpu and 2 * clocks.count("cpu") > len(clocks)


def latencies_of(records: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> Floats:
    """What somebody waits where nothing else runs. [s]

    Of each sample the wall's time less that in which its threads waited for a core, and no less
    than the time for which they computed, shared by all of them: the first is too little where
    several waited at once, the second where not all had work. Samples that hardly waited go before
    the others.
    """
    threads = float(header["conditions"].get("threads") or 1)
    return np.array([_latency_s(record, threads) for record in records], dtype=float)


def _latency_s(record: Mapping[str, Any], threads: float) -> float:
    walls, cpus, waits = (
        record.get(name) or () for name in ("samples_s", "samples_cpu_s", "run_delay_s")
    )
    wall_s = float(record.get("median_wall_s") or record["median_s"])
    if not len(walls) == len(cpus) == len(waits) > 0 or None in waits:
        return wall_s
    times = [
        max(cpu / threads, wall - wait) for wall, cpu, wait in zip(walls, cpus, waits, strict=True)
    ]
    clean = list(itertools.compress(times, record.get("sample_clean") or ()))
    found = float(statistics.median(clean if len(clean) >= LEAST_CLEAN else times))
    return found if found >= SHORTEST_S else wall_s  # the clocks say that it took no time


def _law_of(phase: str, backend: str, kind: str | None) -> Law:
    """The law of a phase; calls are launched one by one here, and never replayed from a graph."""
    if phase == STEP:
        return steps.CPU_STEP if kind == "cpu" else steps.STEP
    if kind == "cpu" and backend in _CPU_LAWS:
        return _CPU_LAWS[backend][phase]
    law = PREFILL if phase == "prefill" else DECODE
    if kind in ("cuda", "rocm"):
        return law.expecting({"launch": (20e-6, 1.0)})
    return law.expecting(_WIDE[law.name])


def _hardware(header: Mapping[str, Any], dtype: str, is_cold: bool) -> Hardware:
    """The measured roofs of a run, and what the device says of its caches and units."""
    ceilings, facts = ceilings_of(header), facts_of(header)
    roofs = {name: roof.get("flops_per_s") for name, roof in (ceilings.get("matmul") or {}).items()}
    peak = roofs.get(dtype) or max((value for value in roofs.values() if value), default=None)
    bandwidth = ceilings.get("copy_bytes_per_s")
    if not peak or not bandwidth:
        raise UsageError(
            "the run has no measured roofs, of which a law is made",
            "sweep again: they are measured",
        )
    cache = facts.get("l3_bytes") or facts.get("l2_bytes") or 0
    held = 0.0 if is_cold else float(cache)
    return Hardware(float(peak), float(bandwidth), held, units_of(facts))


def units_of(facts: Mapping[str, Any]) -> float:
    """What shares the work: SMs of a GPU, threads of a CPU."""
    return float(facts.get("num_sms") or facts.get("threads") or facts.get("physical_cores") or 1)


def _why_no_law(group: Group) -> str | None:
    """Why the points are too few, and which are missing."""
    length = _LENGTHS[group.law.phase]
    values = np.unique(group.shapes[length])
    shapes = np.unique(np.stack([group.shapes[axis] for axis in group.law.axes]), axis=1)
    if len(values) == 1:
        return f"{length} is {values[0]:g} in all {len(group.latency_s)} records"
    if shapes.shape[1] >= LEAST_POINTS:
        return None
    missing = missing_points(group)
    words = f"{shapes.shape[1]} points, a law needs {LEAST_POINTS}"
    return f"{words}; missing: {', '.join(missing)}" if missing else words


def missing_points(group: Group) -> list[str]:
    """Which regimes no point shows, as a sweep would ask for them."""
    shapes, hardware = group.shapes, group.hardware
    length = shapes[_LENGTHS[group.law.phase]]
    ideal_s = np.maximum(
        shapes["flops"] / hardware.flops_per_s, shapes["bytes"] / hardware.bytes_per_s
    )
    wanted = {
        "a tiny call, bound by its launch": (ideal_s < 0.2 * group.latency_s.min()).any()
        or length.min() <= 64,
        "a single long sequence": ((shapes["batch"] == shapes["batch"].min())
                                   & (length >= 16 * length.min())).any(),
        "a working set of three times the last cache": hardware.cache_bytes == 0
        or (shapes["bytes"] > PAST_CACHE * hardware.cache_bytes).any(),
        "many sequences": (shapes["batch"] >= 8 * shapes["batch"].min()).any(),
    }  # fmt: skip
    if group.law.phase == "decode":
        pairs = shapes["batch"] * shapes["kv_heads"]
        wanted["many short sequences"] = ((pairs >= 4 * hardware.num_units) & (length <= 256)).any()
    return [words for words, is_there in wanted.items() if not is_there]


def _unsteadiness(runs: Sequence[Run]) -> float:
    """How much fixed work varied in its time from reading to reading, in logarithms: a later call
    meets a machine that varies as much. That of the steadiest fixed work, robust."""
    found = []
    for name in sorted({name for run in runs for line in run.rulers for name in line["rulers"]}):
        logs = [np.log(line["rulers"][name]) for run in runs for line in run.rulers
                if line["rulers"].get(name)]  # fmt: skip
        found.append(1.4826 * float(np.median(np.abs(np.array(logs) - np.median(logs)))))
    return min(found, default=0.0)


def _fitted(key: str, identity: Identity, group: Group, unsteady_sd: float) -> FittedGroup:
    best, *others = _forms(group)
    law = best.law
    group = replace(group, law=law, hardware=best.hardware)
    is_large = len(group.latency_s) >= 2 * least_rows(group)
    outcomes = judge(group) if is_large else judge_few(group)
    held = next(one for one in outcomes if one.holdout == "random" and one.method == FORM)
    holds = held.median <= HOLDS_MEDIAN and held.p90 <= HOLDS_P90
    calibrated = calibrate(group, outcomes, num_points=MOST_POINTS)
    # What it missed of others it will miss of the next: half its misses, and nine in ten of them.
    missed_sd = (held.median / 0.6745 + held.p90 / 1.645) / 2
    fitted = covering(calibrated.fitted, others)
    missed_sd = max(float(np.hypot(missed_sd, unsteady_sd)), LEAST_SCATTER)
    fitted = replace(fitted, residual_sd=missed_sd)
    near_sd = float(np.hypot(calibrated.near_sd, unsteady_sd))
    calibrated = replace(calibrated, fitted=fitted, near_sd=near_sd)
    words = [verdict(held, holds), *_binding(group, calibrated)]
    unseen = [
        name for name, seen in zip(law.names, calibrated.fitted.is_seen, strict=True) if not seen
    ]
    if unseen:
        words.append(f"the points do not pin down {', '.join(unseen)}")
    if group.key.get("clock") == CONTENDED:
        words.append("other work held the cores: its waits for one are taken off its times")
    missing = missing_points(group)
    if missing:
        words.append(f"not measured: {', '.join(missing)}")
    return FittedGroup(group, key, calibrated, outcomes, holds, words, identity)


def _forms(group: Group) -> list[Fitted]:
    """The forms of a law that its points leave plausible, the most probable first.

    On a CPU also how much of its last cache calls find: others may hold the rest, and its cores may
    not reach all of it.
    """
    shapes, latency_s = _some(group)
    shares = CACHE_SHARES if group.law.kind else (1.0,)
    found = []
    for share in shares:
        hardware = replace(group.hardware, cache_bytes=share * group.hardware.cache_bytes)
        found += fit_overlaps(group.law, shapes, latency_s, hardware)
    found.sort(key=unlikeliness)
    return [one for one in found if unlikeliness(one) <= unlikeliness(found[0]) + PLAUSIBLE]


def _some(group: Group) -> tuple[dict[str, Floats], Floats]:
    rows = np.random.default_rng(0).permutation(len(group.latency_s))[:MOST_POINTS]
    return group.rows(rows)


def verdict(held: Outcome, holds: bool) -> str:
    """Whether a law holds, by what it missed of the rows that were held out."""
    verb = "holds" if holds else "DOES NOT HOLD"
    return (
        f"the law {verb}: of what was held out it misses half by under {held.median:.1%}, "
        f"nine in ten by under {held.p90:.0%}"
    )


def _binding(group: Group, law: CalibratedLaw) -> list[str]:
    """What takes most of the time along the lengths, at the smallest and the largest batch."""
    axis = _LENGTHS[group.law.phase]
    words = []
    batches = np.unique(group.shapes["batch"])
    for batch in dict.fromkeys((batches[0], batches[-1])):
        rows = np.flatnonzero(group.shapes["batch"] == batch)
        rows = rows[np.argsort(group.shapes[axis][rows], kind="stable")]
        shapes, _ = group.rows(rows)
        terms = group.law.terms(shapes, law.fitted.hardware)
        shares = log_jacobian(group.law, terms, law.fitted.coefficients)
        kinds = list(dict.fromkeys(_BINDS[name] for name in group.law.names))
        summed = np.stack(
            [
                sum(shares[i] for i, name in enumerate(group.law.names) if _BINDS[name] == kind)
                for kind in kinds
            ]
        )
        first_of: dict[str, float] = {}
        for place, length in zip(summed.argmax(axis=0), shapes[axis], strict=True):
            first_of.setdefault(kinds[int(place)], float(length))
        spans = ", ".join(f"{kind} from {length:g}" for kind, length in first_of.items())
        words.append(f"at batch {batch:g} most of the time is {spans} tokens")
    return words
