"""What the Transformers library's ``generate`` adds, launch by launch <-> ``overheads.json`` of a
run."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.files import write_whole
from attnprof.laws.calibration import LONGEST_OVERHEAD_S, OVERHEADS

FILE = "overheads.json"
_MAX_BYTES = 2**20


def write_overheads(run_dir: Path, readings: Sequence[Mapping[str, float]]) -> None:
    """Keep the readings whole: a run that is stopped here has none."""
    write_whole(run_dir / FILE, json.dumps(list(readings)) + "\n")


def read_overheads(run_dirs: Iterable[Path]) -> dict[str, float]:
    """The medians over the launches of some runs; nothing where none of them measured it. [s]

    Raises:
        UsageError: A file of a run that holds something else.
    """
    readings = [one for run_dir in run_dirs for one in _readings(run_dir / FILE)]
    if not readings:
        return {}
    return {name: statistics.median(one[name] for one in readings) for name in OVERHEADS}


def _readings(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or "it is no JSON"
        raise UsageError(f"cannot read {path}: {why}", "remove it") from None
    if not isinstance(content, list) or not content:
        raise UsageError(f"{path} holds no list of readings", "remove it")
    return [_reading(path, one) for one in content]


def _reading(path: Path, content: Any) -> dict[str, float]:
    if not isinstance(content, dict) or set(content) != set(OVERHEADS):
        raise UsageError(f"{path}: a reading has not {' and '.join(OVERHEADS)}", "remove it")
    for name, value in content.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= LONGEST_OVERHEAD_S:
            raise UsageError(
                f"{path}: {name} is {value!r}, no time up to {LONGEST_OVERHEAD_S:g} s", "remove it"
            )
    return {name: float(value) for name, value in content.items()}
