"""``results.csv`` of a run, measured here or imported -> its records again."""

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.gpus import gpu_named
from attnprof.imports.foreign_records import FOREIGN_KEYS, KEYS, PROVENANCE
from attnprof.imports.parts import Asked, Origin, Part
from attnprof.imports.text import Rows, csv_rows, read_text
from attnprof.record_values import FORMAT, record_kinds, record_misfit
from attnprof.records import RUN_FILE, read_header
from attnprof.result_keys import RESULT_KEYS
from attnprof.run_header import facts_of
from attnprof.units import plain_number

FORM = "attnprof-csv"
COLUMNS = (*RESULT_KEYS, *FOREIGN_KEYS)
_INTEGER = re.compile(r"[0-9]{1,18}")
_FORMULA = re.compile(r"'\s*[=+\-@]")


def is_table(columns: Sequence[str]) -> bool:
    return {"workload_id", "status", "median_s"} <= set(columns)


def read_own(path: Path, asked: Asked) -> Part:
    """The records that a ``results.csv`` was written from, as far as it holds them.

    Raises:
        UsageError: A column that no ``results.csv`` has, or a value of another kind.
    """
    rows = csv_rows(path, read_text(path), asked.ignored)
    header = _header_beside(path)
    sources = header.get("sources") or [{}]
    said = {key: {one.get(key) for one in sources} for key in ("source", "licence", "version")}
    only = {key: values.pop() if len(values) == 1 else None for key, values in said.items()}
    origin = Origin(only["source"] or path.name, only["licence"], only["version"])
    part = Part(path, FORM, origin.asked(asked), rows.num_rows, facts=facts_of(header))
    part.columns = (*rows.columns,)
    columns = {name: _column(rows, name) for name in rows.columns if name not in asked.ignored}
    rows.done()
    kinds: Sequence[Any] = columns.get("kind") or [None] * rows.num_rows
    for place, kind in enumerate(kinds):
        values = {name: column[place] for name, column in columns.items()}
        if kind is None:
            known = {name: value for name, value in values.items() if value is not None}
            part.records.append({"format": FORMAT, **known, "provenance": PROVENANCE})
            continue
        if kind not in KEYS:
            raise rows.wrong("kind", place, f"use one of: {', '.join(KEYS)}")
        part.records.append(_foreign(values, KEYS[kind], rows, place))
    _check_device(part, asked)
    for place, record in enumerate(part.records):
        wrong = record_misfit(record)
        if wrong is not None:
            raise UsageError(f"{rows.where(place)}: {wrong}", "write what a run has there")
    return part


def _check_device(part: Part, asked: Asked) -> None:
    """The user's word is for what a table does not say: it may not gainsay what it does."""
    if asked.device is None:
        return
    wanted = gpu_named(asked.device).name
    for found in {record.get("device") for record in part.records} - {None, wanted}:
        raise UsageError(
            f"{part.path} is of {found!r}, --device says {wanted!r}", "leave --device out"
        )


def _foreign(
    values: Mapping[str, Any], keys: Sequence[str], rows: Rows, place: int
) -> dict[str, Any]:
    for name, value in values.items():
        if value not in (None, []) and name not in keys:
            raise rows.wrong(name, place, f"leave it empty: {values['kind']} has no such value")
    found = {"format": FORMAT, **{name: values.get(name) for name in keys}}
    return found | {name: found[name] or [] for name in ("samples_s", "flags")}


def _header_beside(path: Path) -> Mapping[str, Any]:
    """``run.json`` of the run that the table lies in, if it does."""
    return read_header(path.parent) if (path.parent / RUN_FILE).is_file() else {}


def _column(rows: Rows, name: str) -> list[Any]:
    """All values of a column, by the kind that a record has there; an empty cell is unknown."""
    hints = record_kinds()
    if name not in COLUMNS:
        return []  # refused by name at the end
    convert, words = _converter(hints[name])
    values = rows.take(name)
    known: dict[str, Any] = {"": [] if words.endswith("spaces") else None}
    found = []
    for place, text in enumerate(values):
        if text not in known:
            try:
                known[text] = convert(text)
            except ValueError:
                raise rows.wrong(name, place, f"write {words}") from None
        found.append(known[text])
    return found


def _converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if hint is int:
        return _whole, "a whole number"
    if hint is float:
        return _finite, "a number from 0 up"
    if hint is bool:
        return _truth, "true or false"
    if typing.get_origin(hint) is tuple:
        inner = _finite if typing.get_args(hint)[0] is float else str
        return lambda text: [inner(word) for word in text.split()], "values between spaces"
    return _text, "a text"


def _whole(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _finite(text: str) -> float | int:
    if _INTEGER.fullmatch(text):
        return int(text)
    number = plain_number(text)
    if number is None or not 0 <= number < float("inf"):
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _text(text: str) -> str:
    """Without the sign by which a spreadsheet is kept from computing it."""
    return text[1:] if _FORMULA.match(text) else text
