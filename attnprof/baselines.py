"""A run -> a baseline in a folder of the repository, with the reason why it was accepted.

``FOLDER/NAME/`` is a run directory as any, so that ``attnprof compare`` reads it by its path too,
and ``acceptances.jsonl`` beside the records has a line for each time that it was replaced: when,
why, and what had changed by then. Lines are added, never removed.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Required, TypedDict

from attnprof.errors import AttnprofError, CannotMeasureError, UsageError, nearest
from attnprof.files import replace_file
from attnprof.kinds import misfit
from attnprof.records import RECORDS_FILE, RULERS_FILE, RUN_FILE, read_lines, strict_json
from attnprof.verdicts.comparison import Comparison, WorkloadVerdict
from attnprof.verdicts.fingerprint import HARD
from attnprof.verdicts.judging import Asked, compare_sides
from attnprof.verdicts.outputs.sentences import workload_sentence
from attnprof.verdicts.sides import SideRun, read_side

FORMAT = 1
FOLDER = Path("attnprof-baselines")
NAME = "main"
ACCEPTANCES_FILE = "acceptances.jsonl"
_FILES = (RECORDS_FILE, RULERS_FILE, RUN_FILE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AGREEING = ("same", "inconclusive")
_QUIETER = "measure both again while nothing else runs (attnprof doctor says what does)"


class Changes(TypedDict, total=False):
    """What an acceptance says of the baseline before it; ``refused`` where none can be told."""

    counts: dict[str, int]
    regressed: tuple[str, ...]
    geometric_mean: dict[str, float | None]
    refused: str


class _Kept(TypedDict, total=False):
    format: Required[int]
    accepted: Required[str]
    reason: Required[str]
    run: Required[str]
    digest: Required[str]
    num_records: Required[int]
    device: str | None
    torch: str | None
    attnprof: str | None
    measured: str | None
    verified: str | None
    changes: Changes | None


@dataclass(frozen=True)
class Acceptance:
    """One line of the history of a baseline.

    Args:
        accepted: When, by UTC.
        reason: As it was typed.
        run: As it was named.
        digest: SHA-256 of the run's files.
        measured: When the run was started.
        verified: The second run of the same code that agreed with it, as it was named.
        changes: Against the baseline before; None of the first.
    """

    accepted: str
    reason: str
    run: str
    digest: str
    num_records: int
    device: str | None = None
    torch: str | None = None
    attnprof: str | None = None
    measured: str | None = None
    verified: str | None = None
    changes: Changes | None = None


def accept_baseline(
    run: Path,
    reason: str,
    *,
    name: str = NAME,
    folder: Path = FOLDER,
    verify: Path | None = None,
    now: datetime | None = None,
) -> Acceptance:
    """Copy a run into the folder of baselines, in the place of the one that has its name.

    Args:
        reason: Why, for whoever asks later.
        verify: A second run of the same code: refused where the two disagree.
        now: The time to keep; the clock's by default.

    Raises:
        UsageError: There is no reason, no such run, or it is unfinished, has nothing that is ok,
            or holds what no measurement gives.
        CannotMeasureError: The second run disagrees, or the folder cannot be written.
    """
    place = folder / _checked_name(name)
    if not reason.strip():
        raise UsageError("a baseline is accepted for a reason", "add --reason 'what changed'")
    side = _whole_side(run)
    if verify is not None:
        _refuse_disagreement(side, _whole_side(verify))
    earlier = read_acceptances(place)
    content = _content(Path(side.side.path or run))
    acceptance = Acceptance(
        accepted=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        reason=" ".join(reason.split()),
        run=str(run),
        digest=_digest(content),
        num_records=side.side.num_records,
        device=side.side.device,
        torch=side.facts.get("torch"),
        attnprof=side.side.attnprof,
        measured=side.side.started,
        verified=None if verify is None else str(verify),
        changes=_changes(place, side) if earlier else None,
    )
    _write(place, content, [*earlier, acceptance])
    return acceptance


def find_baseline(name: str, folder: Path = FOLDER) -> Path:
    """The run directory of a baseline, which holds what was accepted.

    Raises:
        UsageError: There is none of that name, or its files are others than those accepted.
    """
    place = folder / _checked_name(name)
    acceptances = read_acceptances(place)
    if not acceptances:
        known = baseline_names(folder)
        raise UsageError(
            f"no baseline {name!r} in {folder}",
            nearest(name, known) if known else "attnprof baseline accept RUN --reason TEXT",
        )
    if _digest(_content(place)) != acceptances[-1].digest:
        raise UsageError(
            f"the files in {place} are not those that were accepted",
            "take them back from the repository, or accept a run anew",
        )
    return place


def baseline_names(folder: Path = FOLDER) -> list[str]:
    """All that were accepted, by name."""
    return sorted(found.parent.name for found in folder.glob(f"*/{ACCEPTANCES_FILE}"))


def read_acceptances(place: Path) -> list[Acceptance]:
    """The history of a baseline, the first acceptance first; empty where there is none.

    Raises:
        UsageError: A line of it is none.
    """
    path = place / ACCEPTANCES_FILE
    lines, torn_at = read_lines(path)
    if torn_at is not None:
        raise UsageError(
            f"{path} line {len(lines) + 1} is cut in half", "take it back from the repository"
        )
    if not lines and path.exists():
        raise UsageError(f"{path} is empty", "take it back from the repository")
    found = []
    for number, line in enumerate(lines, start=1):
        wrong = misfit(line, _Kept)
        if wrong is None and line["format"] != FORMAT:
            wrong = f"format is {line['format']!r}, this version reads {FORMAT}"
        if wrong is not None:
            raise UsageError(f"{path} line {number}: {wrong}", "take it back from the repository")
        known = {key: line[key] for key in Acceptance.__dataclass_fields__ if key in line}
        found.append(Acceptance(**known))
    return found


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no name of a baseline", "use letters, digits, dots, - and _, such as main"
        )
    return name


def _whole_side(path: Path) -> SideRun:
    side = read_side(path)
    if not side.is_finished:
        raise UsageError(f"{path} is not finished", "go on with that sweep by --resume")
    if not any(one.is_ok for one in side.observed.values()):
        raise UsageError(f"{path} has no workload that is ok", "measure one that runs")
    return side


def _refuse_disagreement(one: SideRun, other: SideRun) -> None:
    if one.side.path == other.side.path:
        raise UsageError(
            f"{other.side.name} cannot verify itself", "measure the same code a second time"
        )
    comparison = compare_sides(one, other, Asked())
    disagreeing = [w for w in comparison.workloads if w.verdict not in _AGREEING]
    if disagreeing:
        raise CannotMeasureError(
            f"two runs of the same code disagree on {_some(disagreeing)}",
            _QUIETER,
        )
    if comparison.exit_code:
        raise CannotMeasureError(
            f"{one.side.name} and {other.side.name} are too noisy to tell whether they agree",
            _QUIETER,
        )


def _some(workloads: list[WorkloadVerdict]) -> str:
    first = f"{workloads[0].workload_id} ({workload_sentence(workloads[0])})"
    return first if len(workloads) == 1 else f"{first}, and on {len(workloads) - 1} more"


def _changes(place: Path, side: SideRun) -> Changes:
    """What changed against the baseline that is replaced, whatever else did too."""
    try:
        comparison = compare_sides(read_side(place), side, Asked(allow_different=tuple(HARD)))
    except AttnprofError as error:
        return {"refused": error.problem}
    return _told_changes(comparison)


def _told_changes(comparison: Comparison) -> Changes:
    regressed = [w.workload_id for w in comparison.workloads if w.verdict == "regressed"]
    return {
        "counts": dict(comparison.counts),
        "regressed": tuple(regressed),
        "geometric_mean": asdict(comparison.geometric_mean),
    }


def _content(folder: Path) -> dict[str, bytes]:
    """The files that make a run. Rulers may be absent: a synthetic device has none."""
    found = {}
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            found[name] = (folder / name).read_bytes()
    return found


def _digest(content: Mapping[str, bytes]) -> str:
    """Of all files and their names.

    >>> _digest({"a": b"1"}) == _digest({"a": b"1"}) != _digest({"b": b"1"})
    True
    """
    whole = hashlib.sha256()
    for name, data in sorted(content.items()):
        whole.update(f"{name} {len(data)}\n".encode() + data)
    return whole.hexdigest()


def _write(place: Path, content: Mapping[str, bytes], acceptances: list[Acceptance]) -> None:
    """Each file is replaced whole, the history last: what is stopped between is found by digest."""
    lines = [strict_json({"format": FORMAT, **asdict(one)}) for one in acceptances]
    history = "".join(f"{line}\n" for line in lines).encode()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            if name not in content:
                (place / name).unlink(missing_ok=True)
        for name, data in (*content.items(), (ACCEPTANCES_FILE, history)):
            replace_file(place / name, data)
    except OSError as error:
        raise CannotMeasureError(
            f"cannot write {place}: {error.strerror}", "name another folder with --folder"
        ) from None


def history_document(folder: Path, names: list[str]) -> dict[str, Any]:
    """The document of ``baseline show --format json``."""
    return {
        "format": FORMAT,
        "folder": str(folder),
        "baselines": [
            {
                "name": name,
                "acceptances": [
                    json.loads(strict_json(asdict(one))) for one in read_acceptances(folder / name)
                ],
            }
            for name in names
        ],
    }
