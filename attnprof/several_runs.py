"""Paths of run directories -> their runs, each measurement in one of them only."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnprof.records import Run, read_run
from attnprof.run_header import device_name
from attnprof.units import counted

_OF_WHOM = ("workload_id", "median_s", "median_wall_s", "median_cpu_s")


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in some folders, and words on what was there twice and is used once.

    A folder may be named again by another path, be a copy of another, or hold some of its records,
    as a run does that was copied and then resumed.

    Raises:
        UsageError: One of them holds no run, or a broken one.
    """
    runs: list[Run] = []
    words: list[str] = []
    folders: dict[tuple[int, int], Path] = {}
    owners: dict[tuple[Any, ...] | None, Path] = {}
    for path in paths:
        run = read_run(path)
        about = path.stat()
        place = (about.st_dev, about.st_ino)
        if place in folders:
            words.append(f"{path} is {folders[place]} again: it is used once")
            continue
        folders[place] = path
        keys = [_key(run, record) for record in run.records]
        found_in = list(dict.fromkeys(str(owners[key]) for key in keys if key in owners))
        kept = tuple(
            record for record, key in zip(run.records, keys, strict=True) if key not in owners
        )
        owners.update((key, path) for key in keys if key is not None and key not in owners)
        if not found_in:
            runs.append(run)
        elif any(record.get("median_s") is not None for record in kept):
            runs.append(replace(run, records=kept))
            twins = counted(len(run.records) - len(kept), "record")
            words.append(f"{path}: {twins} also in {', '.join(found_in)}, used once")
        else:
            words.append(f"{path} measured nothing that is not in {', '.join(found_in)}: left out")
    return runs, words


def _key(run: Run, record: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What two measurements do not share: a time to the last digit. None of what has no time."""
    if record.get("median_s") is None:
        return None
    device = record.get("device") if record.get("kind") else device_name(run.header)
    return (device, *(record.get(name) for name in _OF_WHOM))
