"""The records of all sources -> one run directory, each call once."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from attnprof import __version__
from attnprof.errors import UsageError
from attnprof.files import replacing
from attnprof.gpus import gpu_named
from attnprof.imports.foreign_records import is_foreign
from attnprof.imports.parts import Part
from attnprof.records import (
    RECORDS_FILE,
    open_run_directory,
)

DEVICE_KIND = "imported"


def merged(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """All records in order; of a call that is there several times, the median of its times.

    Raises:
        UsageError: A workload of a ``results.csv`` twice: two runs are two devices or two times.
    """
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {}
    of: dict[str, Path] = {}
    for part in parts:
        for record in part.records:
            key = record["workload_id"]
            if key not in found:
                found[key], of[key] = record, part.path
                continue
            if not (is_foreign(record) and is_foreign(found[key])):
                raise UsageError(
                    f"{part.path}: {key} is in {of[key]} already", "import each run by itself"
                )
            if key not in times:
                times[key] = _times(found[key])
            times[key] += _times(record)
            found[key]["samples_s"] += record["samples_s"]
    for key, all_s in times.items():
        record = found[key]
        record["median_s"] = statistics.median(all_s)
        record["num_merged"] = len(all_s)
        record["num_samples"] = len(record["samples_s"]) or None
        if record["kind"] == "model":
            num_tokens = record["prompt_len"] + record["output_len"]
            record["tokens_per_s"] = num_tokens / record["median_s"]
    return list(found.values())


def _times(record: Mapping[str, Any]) -> list[float]:
    """Its time as often as it counts: one that was merged before is that many."""
    return [record["median_s"]] * (record["num_merged"] or 1)


def write_run(
    path: Path, parts: Sequence[Part], records: Sequence[Mapping[str, Any]], command: Sequence[str]
) -> None:
    """A run directory with ``records``: all of them, or none if it cannot be written.

    Raises:
        UsageError: A run is there already, or the folder cannot be written.
    """
    devices = list(dict.fromkeys(str(record.get("device")) for record in records))
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    header = {
        "attnprof": __version__,
        "command": list(command),
        "started": now,
        "imported": True,
        "device": ", ".join(devices),
        "conditions": {"device_kind": _kind(records), "threads": None, "ceilings": {}},
        "facts": _facts(devices, parts),
        "sources": [part.to_json() for part in parts],
        "notes": [],
    }
    with open_run_directory(path) as directory:
        try:
            with replacing(path / RECORDS_FILE) as to, to.open("w", encoding="utf-8") as file:
                write = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
                file.writelines(f"{write(record)}\n" for record in records)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}", "make room, or write to another folder"
            ) from None
        directory.start(header)
        directory.finish(finished=now)


def _kind(records: Sequence[Mapping[str, Any]]) -> str:
    """Of a run of ours that came as CSV, the kind of its device; nothing was measured here."""
    if any(is_foreign(record) for record in records):
        return DEVICE_KIND
    return str(records[0].get("device") or DEVICE_KIND)


def _facts(devices: Sequence[str], parts: Sequence[Part]) -> dict[str, Any]:
    """The device's name as people know it."""
    kept = next((part.facts for part in parts if part.facts), {})
    if "name" in kept:
        return {"name": kept["name"]}
    titles = []
    for device in devices:
        try:
            titles.append(gpu_named(device).title)
        except UsageError:
            titles.append(device)
    return {"name": ", ".join(titles)}
