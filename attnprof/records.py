"""A run on disk: ``run.json``, and a line for every visit, ruler and record, kept as it ends."""

import contextlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, Required, TypedDict

from attnprof.errors import CannotMeasureError, UsageError, nearest_path
from attnprof.files import replacing
from attnprof.kinds import misfit
from attnprof.record_values import FORMAT, numbers_misfit, record_misfit
from attnprof.workload import Workload, checked

RUN_FILE = "run.json"
RECORDS_FILE = "records.jsonl"
VISITS_FILE = "visits.jsonl"
RULERS_FILE = "rulers.jsonl"
LOCK_FILE = ".lock"

# What has to be the same for a run to be resumed; the rest of run.json may differ.
RESUMED_KEYS = ("format", "device", "fingerprint", "plan", "seed", "workloads")


class MatmulRoof(TypedDict):
    flops_per_s: float
    flops_per_cpu_s: NotRequired[float | None]


class Ceilings(TypedDict, total=False):
    """The measured roofs of a device."""

    copy_bytes_per_s: float | None
    copy_bytes_per_cpu_s: float | None
    matmul: dict[str, MatmulRoof]


class _KeptConditions(TypedDict):
    device_kind: str
    threads: int | None
    ceilings: Ceilings


class _KeptFacts(TypedDict, total=False):
    name: str
    memory_bytes: int | None
    l2_bytes: int | None
    l3_bytes: int | None
    num_sms: int | None
    physical_cores: int | None
    threads: int | None


class _KeptGrid(TypedDict, total=False):
    name: str
    workloads: tuple[Workload, ...]
    skipped: tuple[dict[str, str], ...]


class _KeptHeader(TypedDict, total=False):
    """What may be in ``run.json``; what later code adds is not looked at."""

    command: tuple[str, ...]
    started: str
    finished: str | None
    device: str
    launch_kind: str
    conditions: Required[_KeptConditions]
    facts: _KeptFacts
    fingerprint: dict[str, Any]
    plan: dict[str, float]
    grid: _KeptGrid
    workloads: tuple[str, ...]
    notes: tuple[str, ...]
    timed_share: float | None


class _KeptVisit(TypedDict):
    """What is told of a visit; the rest is looked at where lines are made visits again."""

    workload_id: str
    round: int


class _KeptRulers(TypedDict):
    rulers: dict[str, float]


_MISFITS: dict[str, Callable[[dict[str, Any]], str | None]] = {
    RECORDS_FILE: record_misfit,
    VISITS_FILE: lambda line: misfit(line, _KeptVisit),
    RULERS_FILE: lambda line: misfit(line, _KeptRulers),
}


@dataclass(frozen=True)
class Run:
    """A run directory as it was read."""

    path: Path
    header: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    visits: tuple[dict[str, Any], ...] = ()
    rulers: tuple[dict[str, Any], ...] = ()
    torn: tuple[str, ...] = field(default=())  # files whose last line was cut in half


def strict_json(data: Any) -> str:
    """One line of JSON that any reader takes: what is not finite is unknown.

    >>> strict_json({"bound": float("nan"), "rows": 2})
    '{"bound":null,"rows":2}'
    """
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int | None]:
    """The objects of a JSON-lines file, and where its torn last line starts, if it has one.

    Only the last line can have been cut in half by a crash, and then its end is missing: any other
    broken line means that somebody else wrote into the file.

    Raises:
        UsageError: A whole line is not a JSON object, or the file is unreadable.
    """
    data = _read_bytes(path)
    if data is None:
        return [], None
    found: list[dict[str, Any]] = []
    start = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.endswith(b"\n"):
            return found, start
        value = _object(line)
        if value is None:
            raise UsageError(
                f"{path} line {number} {_why_no_object(line)}",
                "remove that line, or measure into another folder",
            )
        found.append(value)
        start += len(line)
    return found, None


def _read_bytes(path: Path) -> bytes | None:
    """The content of a file; None where there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "name a folder that a sweep has written"
        ) from None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _why_no_object(line: bytes) -> str:
    """What is wrong with a line, said after its place."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return "is not a JSON object"
    return "holds NaN or Infinity" if isinstance(value, dict) else "is not a JSON object"


def read_run(path: Path) -> Run:
    """A run directory, finished or not, changing nothing.

    Raises:
        UsageError: No run there, one of another format, or a broken file.
    """
    header = read_header(path)
    kept, torn = {}, []
    for name in (RECORDS_FILE, VISITS_FILE, RULERS_FILE):
        lines, torn_at = read_lines(path / name)
        for number, line in enumerate(lines, start=1):
            found = _MISFITS[name](line)
            if found is not None:
                raise UsageError(f"{path / name} line {number}: {found}", "remove that line")
        if name == RECORDS_FILE:
            _refuse_twins(path / name, lines)
        kept[name] = tuple(lines)
        if torn_at is not None:
            torn.append(name)
    return Run(path, header, kept[RECORDS_FILE], kept[VISITS_FILE], kept[RULERS_FILE], tuple(torn))


def _refuse_twins(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A workload has one record: a second would count it twice."""
    first: dict[str, int] = {}
    for number, record in enumerate(records, start=1):
        before = first.setdefault(record["workload_id"], number)
        if before != number:
            raise UsageError(
                f"{path} line {number}: {record['workload_id']} is in line {before} already",
                "remove one of the two",
            )


def read_header(path: Path) -> dict[str, Any]:
    """What ``run.json`` holds, its lines left unread.

    Raises:
        UsageError: No run there, one of another format, or a broken file.
    """
    header = _read_header(path)
    if header is None:
        hint = nearest_path(path, f"*/{RUN_FILE}") or "name the folder that a sweep has written"
        raise UsageError(f"{path} holds no run", hint)
    if header.get("format") != FORMAT:
        raise UsageError(
            f"{path / RUN_FILE} has format {header.get('format')!r}, this version reads {FORMAT}",
            "read it with the version that wrote it",
        )
    found = misfit(header, _KeptHeader) or numbers_misfit(
        {key: header[key] for key in ("conditions", "facts") if key in header}
    )
    if found is not None:
        raise UsageError(f"{path / RUN_FILE}: {found}", "measure into another folder")
    return header


def workloads_of(path: Path, header: Mapping[str, Any]) -> tuple[Workload, ...]:
    """The workloads of the grid that the ``run.json`` of a run keeps.

    Raises:
        UsageError: One that can be none.
    """
    found = []
    for place, kept in enumerate((header.get("grid") or {}).get("workloads") or ()):
        try:
            found.append(checked(Workload.from_json(kept)))
        except UsageError as error:
            raise UsageError(
                f"{path / RUN_FILE}: grid.workloads[{place}]: {error.problem}", error.fix
            ) from None
    return tuple(found)


def _read_header(path: Path) -> dict[str, Any] | None:
    text = _read_bytes(path / RUN_FILE)
    if text is None:
        return None
    header = _object(text)
    if header is None:
        raise UsageError(f"{path / RUN_FILE} is not a JSON object", "measure into another folder")
    return header


class _Journal:
    """A file to which whole lines are added, each on disk before :meth:`append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def append(self, data: dict[str, Any]) -> None:
        line = memoryview(strict_json(data).encode() + b"\n")
        size_before = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size_before)
            raise _cannot_write(self.path, error) from None

    def close(self) -> None:
        os.close(self._file)


class RunDirectory:
    """A run directory that this process alone writes. Made by :func:`open_run_directory`."""

    def __init__(self, path: Path, run: Run | None) -> None:
        self.path = path
        self.earlier = run
        self._header: dict[str, Any] = {}
        self._journals: dict[str, _Journal] = {}

    def start(self, header: dict[str, Any]) -> None:
        """Write ``run.json``, or hold ``header`` against the one that is there.

        Raises:
            CannotMeasureError: The run there was made under other conditions.
        """
        header = json.loads(strict_json({"format": FORMAT, **header}))
        if self.earlier is not None:
            _refuse_other_conditions(self.path, self.earlier.header, header)
            grown = {key: header[key] for key in ("workloads", "grid")} if _grows(header) else {}
            header = {**self.earlier.header, **grown, "resumed": header.get("started")}
        self._write_header(header)
        try:
            for name in (RECORDS_FILE, VISITS_FILE, RULERS_FILE):
                self._journals[name] = _Journal(self.path / name)
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def finish(self, **facts: Any) -> None:
        """Add to ``run.json`` what is known only at the end."""
        self._write_header({**self._header, **json.loads(strict_json(facts))})

    def add_visit(self, visit: dict[str, Any]) -> None:
        self._journals[VISITS_FILE].append(visit)

    def add_record(self, record: dict[str, Any]) -> None:
        self._journals[RECORDS_FILE].append(record)

    def add_rulers(self, rulers: dict[str, Any]) -> None:
        self._journals[RULERS_FILE].append(rulers)

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()

    @property
    def is_started(self) -> bool:
        return bool(self._header)

    def _write_header(self, header: dict[str, Any]) -> None:
        """All of it or nothing: a reader never sees half a header."""
        target = self.path / RUN_FILE
        try:
            with replacing(target) as to, to.open("w", encoding="utf-8") as file:
                json.dump(header, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(target, error) from None
        self._header = header


@contextlib.contextmanager
def open_run_directory(
    path: Path, *, resume: bool = False, warn: Callable[[str], None] = lambda text: None
) -> Iterator[RunDirectory]:
    """The run directory at ``path`` for one writer; what is made is removed if nothing started.

    Args:
        resume: Go on with the run that is there; without it, there must be none.
        warn: Told of every line that was cut in half and has been cut off.

    Raises:
        UsageError: Another sweep writes there, a run is there already (or, with ``resume``, is
            not), the folder cannot be written, or one of its files is broken.
    """
    from filelock import FileLock, Timeout

    made = _make_folder(path, resume)
    lock_path = path / LOCK_FILE
    had_lock = lock_path.exists()
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"another sweep is writing {path}", "wait for it, or write to another folder"
        ) from None
    except OSError as error:
        _remove_empty(made)
        raise _not_writable(path, error) from None
    directory = None
    try:
        directory = RunDirectory(path, _earlier_run(path, resume, warn))
        yield directory
    finally:
        if directory is not None:
            directory.close()
        lock.release()
        if (directory is None or not directory.is_started) and not had_lock:
            lock_path.unlink(missing_ok=True)
            _remove_empty(made)


def _make_folder(path: Path, resume: bool) -> list[Path]:
    """Make ``path`` and say which folders were made, the innermost first."""
    made: list[Path] = []
    try:
        if resume and not (path / RUN_FILE).exists():
            raise UsageError(f"{path} holds no run to resume", "leave --resume out to start one")
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(made)
        raise _not_writable(path, error) from None
    return made


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _earlier_run(path: Path, resume: bool, warn: Callable[[str], None]) -> Run | None:
    if not resume:
        if (path / RUN_FILE).exists():
            raise UsageError(
                f"{path} holds a run already", "add --resume to go on, or write to another folder"
            )
        return None
    run = read_run(path)
    for name in run.torn:
        _, torn_at = read_lines(path / name)
        if torn_at is not None:
            try:
                os.truncate(path / name, torn_at)
            except OSError as error:
                raise _cannot_write(path / name, error) from None
            warn(f"{path / name}: its last line was cut in half; it is measured again")
    return run


def _refuse_other_conditions(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    for key in RESUMED_KEYS:
        if key == "workloads" and _grows(new):
            known = old.get(key) or []
            if new[key][: len(known)] == known:
                continue
        if old.get(key) != new.get(key):
            raise CannotMeasureError(
                f"{path} was measured under another {_difference(key, old.get(key), new.get(key))}",
                "resume with the same command on the same machine, or write to another folder",
            )


def _grows(header: dict[str, Any]) -> bool:
    """Whether the run is one to whose workloads others are added, as its law asks for them."""
    return bool((header.get("grid") or {}).get("grows"))


def _difference(name: str, old: Any, new: Any) -> str:
    """Where two values differ, as deep inside as it can be told.

    >>> _difference("plan", {"budget_s": 2.0, "n": 1}, {"budget_s": 3.0, "n": 1})
    'plan.budget_s: 2.0 then, 3.0 now'
    >>> _difference("workloads", ["a", "b"], ["a", "c"])
    'workloads: without c, with b besides'
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _difference(f"{name}.{key}", old.get(key), new.get(key))
    if isinstance(old, list) and isinstance(new, list):
        missing = [str(item) for item in new if item not in old][:3]
        extra = [str(item) for item in old if item not in new][:3]
        parts = [f"without {', '.join(missing)}"] if missing else []
        parts += [f"with {', '.join(extra)} besides"] if extra else []
        return f"{name}: {', '.join(parts) or 'in another order'}"
    return f"{name}: {old} then, {new} now"


def _cannot_write(path: Path, error: OSError) -> CannotMeasureError:
    return CannotMeasureError(
        f"cannot write {path}: {error.strerror}",
        "make room and go on with --resume; every line written before is intact",
    )


def _not_writable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write to {path}: {error.strerror}", "name a folder of your own")
