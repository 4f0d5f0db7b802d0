"""A run directory -> one side of a comparison: what each workload's launches took and held."""

import math
import reprlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Required, TypedDict

from attnprof.errors import UsageError
from attnprof.kinds import LARGEST, misfit
from attnprof.record_values import FORMAT, LARGEST_SIZE, STATUSES
from attnprof.records import (
    RECORDS_FILE,
    RULERS_FILE,
    RUN_FILE,
    read_header,
    read_lines,
)
from attnprof.run_header import command_of, device_name, kind_of
from attnprof.series import IDENTITY, LENGTHS
from attnprof.verdicts.comparison import Side
from attnprof.verdicts.fingerprint import flat

AXES = (*IDENTITY, *LENGTHS)
_LENGTH_AXES = tuple(key for key in AXES if key.endswith("_len"))
_NUMBERS = ("kv_bytes", "weight_bytes", "peak_activation_bytes")
_TEXTS = ("reason", "memory_meter", "model_digest")
_SAMPLES = ("samples_s", "samples_cpu_s")


class _KeptPoint(TypedDict, total=False):
    """A token of one that grows, as far as a comparison looks at it."""

    kv_len: Required[int]
    wall_s: Required[float]
    cpu_s: float | None


class _Kept(TypedDict, total=False):
    """What may be in a record, as far as a comparison looks at it; samples apart."""

    format: Required[int]
    workload_id: Required[str]
    status: Required[str]
    reason: str | None
    flags: tuple[str, ...]
    mode: str | None
    memory_meter: str | None
    model_digest: str | None
    weight_bytes: int | None
    kv_bytes: int | None
    peak_activation_bytes: int | None
    growth: tuple[_KeptPoint, ...] | None
    provenance: str


class _KeptRulers(TypedDict):
    rulers: dict[str, float]


@dataclass(frozen=True)
class Observed:
    """What one run holds of one workload."""

    record: Mapping[str, Any]

    @property
    def status(self) -> str:
        return str(self.record["status"])

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def why(self) -> str:
        """The status, and its reason where there is one."""
        reason = self.record.get("reason")
        return f"{self.status}: {reason}" if reason else self.status

    @cached_property
    def axes(self) -> dict[str, Any]:
        known = ((key, self.record.get(key)) for key in AXES)
        return {key: value for key, value in known if value is not None}

    @property
    def is_contended(self) -> bool:
        return "contended" in (self.record.get("flags") or ())

    def logs(self, clock: str) -> tuple[float, ...]:
        """The log of each launch's median, in the order of the launches; none where unknown.

        Args:
            clock: ``cpu``, or any other for what the record's samples are.
        """
        values = self.record.get("samples_cpu_s" if clock == "cpu" else "samples_s") or ()
        launches = self.record.get("sample_launch") or ()
        by_launch: dict[int, list[float]] = {}
        for launch, value in zip(launches, values, strict=False):
            by_launch.setdefault(launch, []).append(value)
        medians = [statistics.median(samples) for samples in by_launch.values()]
        return tuple(map(math.log, medians)) if all(median > 0 for median in medians) else ()

    def size(self, metric: str) -> int | None:
        """Bytes: ``kv_bytes``, ``peak_memory`` of a call beyond its weights and cache, or
        ``total_memory`` with them; None where one of them is unknown."""
        peak, kv = self.record.get("peak_activation_bytes"), self.record.get("kv_bytes")
        weights = self.record.get("weight_bytes")
        match metric:
            case "kv_bytes":
                return kv
            case "peak_memory":
                return peak
            case _:
                if peak is None or kv is None or weights is None:
                    return None
                total: int = peak + kv + weights
                return total


@dataclass(frozen=True)
class SideRun:
    """One side: what is told of it, and what it observed, by workload."""

    side: Side
    facts: Mapping[str, str | None]
    listed: tuple[str, ...]
    observed: Mapping[str, Observed]
    rulers: Mapping[str, Sequence[float]]
    is_finished: bool

    @property
    def trusts_cpu_time(self) -> bool:
        """Whether CPU time is what a call costs: it has one thread, or its threads wait asleep."""
        wait = self.facts.get("environment.OMP_WAIT_POLICY") or ""
        return self.facts.get("threads") == "1" or wait.lower() == "passive"

    def latency(self, observed: Observed) -> tuple[str, tuple[float, ...]]:
        """The clock that is trusted of one of its workloads, and the launches on it."""
        if self.trusts_cpu_time and (logs := observed.logs("cpu")):
            return "cpu", logs
        return "wall", observed.logs("wall")

    def ttft_s(self, observed: Observed) -> float | None:
        """The time of a prompt's first token, of what has one: its prefill, on that clock."""
        prompt_len = observed.record.get("start_len")
        key = "cpu_s" if self.trusts_cpu_time else "wall_s"
        points = observed.record.get("growth") or ()
        first = (point.get(key) for point in points if point["kv_len"] == prompt_len)
        return next(first, None)


def read_side(path: Path, name: str | None = None) -> SideRun:
    """A run that can be compared: whole, of this format, measured here by attnprof.

    Args:
        path: A run directory, or one of the files that make it.
        name: What the user typed; the path by default.

    Raises:
        UsageError: No run there, or one that is truncated, of another format or imported, or that
            holds what no measurement gives.
    """
    folder = path.parent if path.name in (RUN_FILE, RECORDS_FILE) else path
    header = read_header(folder)
    return side_of(folder, header, _records(folder / RECORDS_FILE), _rulers(folder), name)


def side_of(
    folder: Path | None,
    header: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    rulers: Mapping[str, Sequence[float]],
    name: str | None = None,
) -> SideRun:
    """A side of what was read, or of what was just measured and not read back."""
    fingerprint = header.get("fingerprint")
    facts = flat(fingerprint) if isinstance(fingerprint, Mapping) else {}
    facts = {"kind": kind_of(header), **facts}
    observed = {str(record["workload_id"]): Observed(record) for record in records}
    version = header.get("attnprof") or facts.get("attnprof")
    return SideRun(
        side=Side(
            name=name or str(folder),
            path=None if folder is None else str(folder),
            attnprof=None if version is None else str(version),
            device=device_name(header),
            num_records=len(observed),
            command=command_of(header),
            started=header.get("started"),
            facts=facts,
        ),
        facts=facts,
        listed=tuple(map(str, header.get("workloads") or observed)),
        observed=observed,
        rulers=rulers,
        is_finished=header.get("finished") is not None,
    )


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    lines, torn_at = read_lines(path)
    if torn_at is None:
        return lines
    ends = path.read_bytes().endswith(b"\n")
    what = "is no JSON object, or holds NaN" if ends else "is cut in half"
    raise UsageError(
        f"{path} line {len(lines) + 1} {what}",
        "go on with that sweep by --resume, or measure again",
    )


def _records(path: Path) -> list[dict[str, Any]]:
    records = _whole_lines(path)
    if not records:
        raise UsageError(f"{path} holds no records", "name the folder that a sweep has written")
    seen: set[str] = set()
    for number, record in enumerate(records, start=1):
        wrong = _misfit(record)
        if wrong is None and record["workload_id"] in seen:
            wrong = f"{record['workload_id']} is there twice"
        if wrong is not None:
            raise UsageError(f"{path} line {number}: {wrong}", "measure again")
        seen.add(record["workload_id"])
    return records


def _misfit(record: dict[str, Any]) -> str | None:
    """What no comparison can use of a record, or None."""
    if record.get("format") != FORMAT:
        return f"format is {record.get('format')!r}, this version reads {FORMAT}"
    if not _is_plain(record):
        found = misfit(record, _Kept)
        if found is not None:
            return found
    if record["status"] not in STATUSES:
        return f"there is no status {record['status']!r}"
    if record.get("provenance", "measured") != "measured":
        return f"it is {record['provenance']}: without launches of its own nothing can be tested"
    for key in _LENGTH_AXES:
        length = record.get(key)
        if length is not None and not (type(length) is int and 0 <= length <= LARGEST_SIZE):
            return f"{key} is {reprlib.repr(length)}, not a number of tokens"
    launches = record.get("sample_launch") or []
    if not isinstance(launches, list) or not all(type(launch) is int for launch in launches):
        return "sample_launch is no list of whole numbers"
    for key in _SAMPLES:
        samples = record.get(key) or []
        if not _are_samples(samples):
            return misfit({key: samples}, dict[str, tuple[float, ...]]) or f"{key} is no list"
        if samples and len(samples) != len(launches):
            return f"{key} has {len(samples)} samples, of {len(launches)} launches' numbers"
    if record["status"] == "ok" and not record.get("samples_s"):
        return "it is ok and has no samples"
    return None


def _is_plain(record: Mapping[str, Any]) -> bool:
    """Whether a record is of the usual kinds at a glance; if not, it is looked at key by key."""
    return (
        all(type(record.get(key)) is str for key in ("workload_id", "status", "mode"))
        and all(type(record.get(key)) is int and 0 <= record[key] <= LARGEST for key in _NUMBERS)
        and all(record.get(key) is None or type(record[key]) is str for key in _TEXTS)
        and record.get("flags") == []
        and not record.get("growth")
        and "provenance" not in record
    )


def _are_samples(samples: Any) -> bool:
    """Whether these are times, looked at in bulk: a run may have a million."""
    if not isinstance(samples, list):
        return False
    return set(map(type, samples)) <= {float, int} and (
        not samples or (min(samples) >= 0 and max(samples) <= LARGEST)
    )


def _rulers(folder: Path) -> dict[str, list[float]]:
    path = folder / RULERS_FILE
    found: dict[str, list[float]] = {}
    for number, line in enumerate(_whole_lines(path), start=1):
        wrong = misfit(line, _KeptRulers)
        if wrong is not None:
            raise UsageError(f"{path} line {number}: {wrong}", "measure again")
        for name, value in line["rulers"].items():
            found.setdefault(name, []).append(value)
    return found
