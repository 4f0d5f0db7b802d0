"""Paths -> which format each file is in, told from its content, and its records."""

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnprof.errors import UsageError, nearest
from attnprof.gpus import gpu_named
from attnprof.imports import aiconfigurator, llama_bench, own_csv, tables, vidur
from attnprof.imports.parts import Asked, Origin, Part
from attnprof.imports.text import read_head, read_text
from attnprof.record_values import values_misfit
from attnprof.records import RECORDS_FILE, RUN_FILE

READERS: Mapping[str, Callable[[Path, Asked], Part]] = {
    aiconfigurator.FORM: aiconfigurator.read_aiconfigurator,
    vidur.FORM: vidur.read_vidur,
    llama_bench.FORM: llama_bench.read_llama_bench,
    tables.FORM: tables.read_tidied,
    own_csv.FORM: own_csv.read_own,
}
_BY_HEADER: Sequence[tuple[str, Callable[[Sequence[str]], bool]]] = (
    (own_csv.FORM, own_csv.is_table),
    (vidur.FORM, vidur.is_table),
    (llama_bench.FORM, llama_bench.is_table),
    (aiconfigurator.FORM, aiconfigurator.is_table),
    (tables.FORM, tables.is_table),
)
_ENDINGS = (".parquet", ".csv", ".csv.gz", ".txt", ".json", ".jsonl", ".md")
_PERF = "_perf"


def form_of(path: Path) -> str | None:
    """The format of a file by what is in it, whatever it is called; None where it is none."""
    head = read_head(path)
    if head.startswith(aiconfigurator.MAGIC) or path.suffix == ".parquet":
        return aiconfigurator.FORM
    text = head.decode("utf-8-sig", "ignore")
    if text.lstrip()[:1] in ("[", "{"):
        return llama_bench.FORM if _is_llama_bench(path) else None
    columns = [name.strip() for name in next(csv.reader(text.splitlines()[:1]), [])]
    for form, fits in _BY_HEADER:
        if fits(columns):
            return form
    try:
        return llama_bench.FORM if llama_bench.is_markdown(read_text(path)) else None
    except UsageError:
        return None


def _is_llama_bench(path: Path) -> bool:
    try:
        text = read_text(path)
        return llama_bench.is_json(
            json.loads(text if text.lstrip().startswith("[") else text.split("\n")[0])
        ) or llama_bench.is_json(json.loads(text))
    except (UsageError, ValueError, RecursionError):
        return False


def read_sources(paths: Sequence[Path], form: str | None, asked: Asked) -> list[Part]:
    """Every file of ``paths`` and of the folders among them, in order.

    In a folder, a file of another format or of an operation that is not imported is left out, and
    its part says why. A file that was named has to be read; one that says what an earlier one
    does, to the byte and of the same device, is left out, as its rows would count twice.

    Raises:
        UsageError: Nothing there, a named file that is not understood, or a damaged one.
        CannotMeasureError: A reader's library is missing.
    """
    if form is not None and form not in READERS:
        raise UsageError(f"--from {form} is no format", nearest(form, list(READERS)))
    if asked.device is not None:
        gpu_named(asked.device)
    parts: list[Part] = []
    alike: dict[bytes, list[Part]] = {}
    for path in paths:
        read = _of_folder if path.is_dir() else _file
        for file in _files_in(path) if path.is_dir() else [path]:
            part = read(file, form, asked)
            _check(part)
            same = alike.setdefault(_digest(file), []) if part.records else []
            twin = next((one for one in same if one.records == part.records), None)
            if twin is None:
                same.append(part)
            else:
                part.records, part.reason = [], f"says what {twin.path} does"
            parts.append(part)
    _check_ignored(asked.ignored, parts)
    if not any(part.records for part in parts):
        why = next((part.reason for part in parts if part.reason), "they hold no row")
        named = ", ".join(map(str, paths))
        raise UsageError(f"nothing to import in {named}: {why}", _known_words())
    return parts


def _known_words() -> str:
    return (
        "give AIConfigurator's Parquet, Vidur's CSV, llama-bench's JSON or Markdown, tidied "
        "tables of kernels, or a results.csv"
    )


def _file(path: Path, form: str | None, asked: Asked) -> Part:
    is_in = form_of(path)
    if form is not None and is_in not in (None, form):
        raise UsageError(f"{path} is in the format of {is_in}", f"write --from {is_in}, or nothing")
    found = form or is_in
    if found is None:
        read_text(path)  # says what is wrong with it where it cannot be read at all
        raise UsageError(f"{path} is in no format that is known", _known_words())
    return READERS[found](path, asked)


def _check(part: Part) -> None:
    """Refuse what no run may hold: sizes and times beyond all measure."""
    for record in part.records:
        wrong = values_misfit(record)
        if wrong is not None:
            raise UsageError(
                f"{part.path}: {record['workload_id']}: {wrong}", "correct it, or leave it out"
            )


def _check_ignored(ignored: Sequence[str], parts: Sequence[Part]) -> None:
    """Refuse a column to leave out that no source has: it would be another that is left out.

    Raises:
        UsageError: There is one.
    """
    columns = sorted({name for part in parts for name in part.columns})
    for name in ignored:
        if name not in columns:
            raise UsageError(
                f"--ignore {name}: no source has such a column", nearest(name, columns)
            )


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _files_in(path: Path) -> list[Path]:
    if (path / RUN_FILE).exists() and (path / RECORDS_FILE).exists():
        raise UsageError(f"{path} is a run already", f"attnprof report {path} reads it")
    files = sorted(one for one in path.rglob("*") if one.name.endswith(_ENDINGS) and one.is_file())
    if not files:
        raise UsageError(f"{path} holds no file with {', '.join(_ENDINGS)}", _known_words())
    return files


def _of_folder(path: Path, form: str | None, asked: Asked) -> Part:
    """A file that was found: one of another kind is no mistake of the user's."""
    found = form_of(path)
    operation = path.name.partition(".")[0].removesuffix(_PERF)
    reason = None
    if found is None or (form is not None and found != form):
        reason = "in no format that is known" if found is None else f"in the format of {found}"
    elif found == aiconfigurator.FORM and operation not in aiconfigurator.imported_operations():
        reason = f"{operation} is not imported"
    elif found == vidur.FORM and operation not in vidur.TABLES:
        reason = f"Vidur's {operation} is not imported"
    if reason is not None or found is None:
        return Part(path, found or "unknown", Origin(path.name, None, None), reason=reason)
    return READERS[found](path, asked)
