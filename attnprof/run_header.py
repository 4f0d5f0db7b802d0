"""``run.json`` -> what it says of the device, its roofs, the command and the order of workloads."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attnprof.units import counted

Header = Mapping[str, Any]
TYPED = "typed"  # what the grid of typed axes is called where no sweep was named
_Record = TypeVar("_Record", bound=Mapping[str, Any])


def facts_of(header: Header) -> Mapping[str, Any]:
    """What the device says of itself: name, memory, caches, software."""
    facts = header.get("facts")
    return facts if isinstance(facts, Mapping) else {}


def kind_of(header: Header) -> str | None:
    """cpu, cuda, ... or synthetic."""
    kind = (header.get("conditions") or {}).get("device_kind")
    return None if kind is None else str(kind)


def is_synthetic(header: Header) -> bool:
    return kind_of(header) == "synthetic"


def device_name(header: Header) -> str:
    """The device as a report calls it."""
    return str(facts_of(header).get("name") or header.get("device") or "an unnamed device")


def device_words(name: str, kind: str | None, threads: int | None) -> str:
    """What a calibration calls a device: of a CPU with the threads that share its work.

    >>> device_words("AMD EPYC", "cpu", 2)
    'AMD EPYC, 2 threads'
    """
    return f"{name}, {counted(threads, 'thread')}" if kind == "cpu" and threads else name


def calibrated_device(header: Header) -> str:
    """The device of a run as its calibration calls it."""
    threads = (header.get("conditions") or {}).get("threads")
    return device_words(device_name(header), kind_of(header), threads)


def slug(device: str) -> str:
    """The name of the calibration of a device.

    >>> slug("AMD EPYC, 2 threads")
    'amd-epyc-2-threads'
    """
    words = "".join(letter if letter.isalnum() else "-" for letter in device.lower())
    return "-".join(word for word in words.split("-") if word) or "device"


def grid_name(header: Header) -> str | None:
    """The name that its author gave to a sweep; one of typed axes alone has none.

    >>> grid_name({"grid": {"name": "quick"}}), grid_name({"grid": {"name": "typed"}})
    ('quick', None)
    """
    name = (header.get("grid") or {}).get("name")
    return str(name) if name and name != TYPED else None


def ceilings_of(header: Header) -> Mapping[str, Any]:
    """The measured roofs; empty where there are none."""
    return (header.get("conditions") or {}).get("ceilings") or {}


def command_of(header: Header) -> str | None:
    """The command as a shell takes it.

    >>> command_of({"command": ["attnprof", "sweep", "my sweep.yaml"]})
    "attnprof sweep 'my sweep.yaml'"
    """
    command = header.get("command")
    if isinstance(command, list | tuple):
        return shlex.join(str(word) for word in command) or None
    return command or None


def in_grid_order(header: Header, records: Sequence[_Record]) -> list[_Record]:
    """Records as the grid lists their workloads: they were measured in random order."""
    place = {workload_id: i for i, workload_id in enumerate(header.get("workloads") or ())}
    return sorted(records, key=lambda record: place.get(record.get("workload_id"), len(place)))


def missing_workloads(header: Header, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Workloads of the grid that are not done: the sweep was stopped before."""
    done = {
        record.get("workload_id")
        for record in records
        if "unfinished" not in (record.get("flags") or ())
    }
    return [str(name) for name in header.get("workloads") or () if name not in done]
