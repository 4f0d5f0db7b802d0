"""Tables of measured kernels (CSV, plain or gzipped) -> columns of numbers, every row checked."""

import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnprof.errors import UsageError, nearest, nearest_path
from attnprof.laws.base import Floats
from attnprof.units import LARGEST_COUNT, counted, plain_number

MAX_TABLE_BYTES = 512 * 1024**2
DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_block": 1,
    "int8": 1, "nvfp4": 0.5625, "mxfp4": 0.53125, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip
"""Bytes of an element, the scales that lie beside four-bit ones counted."""


@dataclass(frozen=True)
class Family:
    """A kind of table: its columns of text and of whole numbers; ``latency_us`` is in each."""

    name: str
    texts: tuple[str, ...]
    counts: tuple[str, ...]
    least: Mapping[str, int] = field(default_factory=dict)  # of counts, where it is not 1

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.counts, LATENCY)


LATENCY = "latency_us"
SHORTEST_US, LONGEST_US = 1e-3, 1e12  # a clock cycle or two; eleven days
_WHO = ("gpu", "engine", "engine_version", "kernel")
FAMILIES = (
    Family(
        "attention",
        (*_WHO, "phase", "q_dtype", "kv_dtype"),
        ("batch", "q_len_tokens", "kv_len_tokens", "q_heads", "kv_heads", "head_dim",
         "window_tokens"),
        {"window_tokens": 0},
    ),
    Family("gemm", (*_WHO, "dtype"), ("m_tokens", "n_out", "k_in")),
    Family("all-reduce", (*_WHO, "collective", "dtype"), ("ranks", "message_bytes"), {"ranks": 2}),
)  # fmt: skip
_PHASES = ("prefill", "decode")
_PLAIN = re.compile(r"[0-9.eE+-]*")
_COLLECTIVES = ("all_reduce",)


@dataclass(frozen=True)
class ForeignTable:
    """One file: its texts and counts by column, and latencies. [s]"""

    path: Path
    family: Family
    texts: Mapping[str, NDArray[np.str_]]
    counts: Mapping[str, Floats]
    latency_s: Floats


def read_tables(paths: Iterable[Path]) -> tuple[list[ForeignTable], list[str]]:
    """The tables of some files and folders, and words on what a folder holds besides.

    Raises:
        UsageError: Nothing there, a named file of another format, or a row that is wrong.
    """
    tables, words = [], []
    for path in paths:
        if not path.is_dir():
            tables.append(read_table(path))
            continue
        found = sorted(one for one in path.rglob("*") if one.name.endswith((".csv", ".csv.gz")))
        known = [one for one in found if _family_of(_header(one)) is not None]
        if not known:
            raise UsageError(f"{path} holds no table of kernels", _format_words())
        tables += [read_table(one) for one in known]
        if len(known) < len(found):
            others = [one.name for one in found if one not in known]
            words.append(f"{path}: not tables of kernels: {', '.join(others)}")
    return tables, words


def read_table(path: Path) -> ForeignTable:
    """The table in a file.

    Raises:
        UsageError: Unreadable, a column missing or unknown, or a value that cannot be: the file
            and the line are named.
    """
    rows = csv.reader(io.StringIO(_text(path)))
    header = next(rows, [])
    family = _family_of(header)
    if family is None:
        raise _unknown_header(path, header)
    lines = list(rows)
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError(f"{path} holds no row", _format_words())
    for number, row in enumerate(lines, start=2):
        if len(row) != len(header):
            raise UsageError(
                f"{path}, line {number}: {counted(len(row), 'value')} under "
                f"{counted(len(header), 'column')}",
                "give every column a value",
            )
    by_name = dict(zip(header, zip(*lines, strict=True), strict=True))
    texts = {name: np.array(by_name[name]) for name in family.texts}
    counts = {
        name: _counts(path, name, by_name[name], family.least.get(name, 1))
        for name in family.counts
    }
    latency_s = _latencies(path, by_name[LATENCY])
    _check_texts(path, texts)
    if family.name == "attention":
        _check_attention(path, texts, counts)
    return ForeignTable(path, family, texts, counts, latency_s)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TABLE_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_TABLE_BYTES + 1)
        if len(data) > MAX_TABLE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_TABLE_BYTES // 2**20} MiB", "split it")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text", _format_words()) from None
    except (EOFError, zlib.error):
        raise UsageError(f"{path} is cut off or damaged", "fetch it again") from None
    except OSError as error:
        why = error.strerror or str(error)
        hint = nearest_path(path) or "name a table of kernels, or a folder of them"
        raise UsageError(f"cannot read {path}: {why}", hint) from None


def _header(path: Path) -> list[str]:
    try:
        with gzip.open(path, "rt") if path.name.endswith(".gz") else path.open() as file:
            return next(csv.reader([file.readline()]), [])
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error):
        return []


def _family_of(header: list[str]) -> Family | None:
    return next((one for one in FAMILIES if sorted(one.columns) == sorted(header)), None)


def _unknown_header(path: Path, header: list[str]) -> UsageError:
    """Names the column that is missing or unknown in the kind of table that is nearest."""
    near = max(FAMILIES, key=lambda one: len({*one.columns} & {*header}))
    if len({*near.columns} & {*header}) < len(near.columns) // 2:
        return UsageError(f"{path}, line 1: no table of kernels", _format_words())
    for name in header:
        if name not in near.columns or header.count(name) > 1:
            twice = "a second" if name in near.columns else "an unknown"
            hint = nearest(name, near.columns)
            return UsageError(f"{path}, line 1: {twice} column {name!r}", hint)
    missing = [name for name in near.columns if name not in header]
    return UsageError(f"{path}, line 1: no column {missing[0]!r}", f"give it for {near.name}")


def _format_words() -> str:
    columns = "; ".join(f"{one.name}: {', '.join(one.columns)}" for one in FAMILIES)
    return f"give CSV with the columns of one of: {columns}"


def _numbers(path: Path, name: str, values: tuple[str, ...]) -> Floats:
    """Columns that hold nothing odd are read at once: there are tables of millions of rows."""
    if _PLAIN.fullmatch("".join(values)):
        with contextlib.suppress(ValueError):
            return np.array(list(map(float, values)))
    numbers = [plain_number(value) for value in values]
    for place, number in enumerate(numbers):
        if number is None:
            raise UsageError(
                f"{path}, line {place + 2}: {name} is {values[place]!r}", "write a plain number"
            )
    return np.array(numbers, dtype=float)


def _refuse_first(path: Path, bad: NDArray[np.bool_], what: str, fix: str) -> None:
    if bad.any():
        raise UsageError(f"{path}, line {int(bad.argmax()) + 2}: {what}", fix)


def _counts(path: Path, name: str, values: tuple[str, ...], least: int) -> Floats:
    numbers = _numbers(path, name, values)
    with np.errstate(invalid="ignore"):
        good = (numbers >= least) & (numbers <= LARGEST_COUNT) & (numbers % 1 == 0)
    if not good.all():
        bad = values[int((~good).argmax())]
        _refuse_first(path, ~good, f"{name} is {bad}", f"write a whole number from {least}")
    return numbers


def _latencies(path: Path, values: tuple[str, ...]) -> Floats:
    numbers = _numbers(path, LATENCY, values)
    good = np.isfinite(numbers) & (numbers > 0)
    if not good.all():
        bad = values[int((~good).argmax())]
        _refuse_first(path, ~good, f"{LATENCY} is {bad}", "write microseconds above zero")
    good = (numbers >= SHORTEST_US) & (numbers <= LONGEST_US)
    if not good.all():
        bad = values[int((~good).argmax())]
        _refuse_first(
            path, ~good, f"{LATENCY} is {bad}",
            f"no kernel takes that: write microseconds, {SHORTEST_US:g} to {LONGEST_US:g}",
        )  # fmt: skip
    return numbers * 1e-6


def _check_texts(path: Path, texts: Mapping[str, NDArray[np.str_]]) -> None:
    known = {
        "phase": _PHASES,
        "collective": _COLLECTIVES,
        **dict.fromkeys(("dtype", "q_dtype", "kv_dtype"), tuple(DTYPE_BYTES)),
    }
    for name, column in texts.items():
        allowed = known.get(name)
        for value in np.unique(column):
            if not value.strip():
                _refuse_first(path, column == value, f"{name} is empty", "name it")
            if allowed is not None and value not in allowed:
                what = f"{name} is {str(value)!r}"
                _refuse_first(path, column == value, what, nearest(str(value), allowed))


def _check_attention(
    path: Path, texts: Mapping[str, NDArray[np.str_]], counts: Mapping[str, Floats]
) -> None:
    queries, keys = counts["q_len_tokens"], counts["kv_len_tokens"]
    heads, kv_heads = counts["q_heads"], counts["kv_heads"]
    _refuse_first(
        path, heads % kv_heads != 0, "q_heads is no multiple of kv_heads",
        "count whole groups of query heads",
    )  # fmt: skip
    _refuse_first(
        path, queries > keys, "q_len_tokens is more than kv_len_tokens",
        "kv_len_tokens counts the query's own tokens too",
    )  # fmt: skip
    _refuse_first(
        path, (texts["phase"] == "decode") & (queries != 1), "a decode of several queries",
        "q_len_tokens of a decode is 1",
    )  # fmt: skip
