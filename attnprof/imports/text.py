"""A file that somebody else wrote -> its text or rows, bounded, and every value findable."""

import csv
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attnprof.errors import UsageError, nearest, nearest_path
from attnprof.render import plain
from attnprof.units import LARGEST_COUNT, counted, plain_number

MAX_TEXT_BYTES = 512 * 1024**2
LARGEST_FLOAT = sys.float_info.max
GZIP_MAGIC = b"\x1f\x8b"
LFS_MAGIC = "version https://git-lfs"
_FETCH = "fetch it again"

T = TypeVar("T")


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a file, unpacked where it is gzipped; no more than ``limit`` bytes of it.

    Raises:
        UsageError: Unreadable, cut off, larger than ``limit``, or no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if data.startswith(GZIP_MAGIC):
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(limit + 1)
        if len(data) > limit:
            raise UsageError(f"{path} holds more than {limit // 2**20} MiB", "split it")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text", "give CSV, JSON, Markdown or Parquet") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"{path} is cut off or damaged", _FETCH) from None
    except OSError as error:
        why = error.strerror or str(error)
        hint = nearest_path(path) or "name a file or folder"
        raise UsageError(f"cannot read {path}: {why}", hint) from None
    if text.startswith(LFS_MAGIC):
        raise UsageError(
            f"{path} is a pointer of Git LFS and holds no data", "run git lfs pull where it is from"
        )
    return text


def read_head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file, unpacked where it is gzipped; empty where that fails."""
    try:
        with path.open("rb") as file:
            data = file.read(size)
            if not data.startswith(GZIP_MAGIC):
                return data
        with gzip.open(path) as packed:
            return packed.read(size)
    except (OSError, EOFError, zlib.error):
        return b""


class Rows:
    """The columns of one table, taken and checked one by one.

    ``ignored`` are columns that the user said to leave out; of what is left at the end,
    :meth:`done` refuses the first.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, Sequence[Any]],
        *,
        unit: str = "line",
        first: int = 2,
        ignored: Iterable[str] = (),
    ) -> None:
        self.path = path
        self.columns = columns
        self._unit = unit
        self._first = first
        self._taken = set(ignored)
        self.num_rows = len(next(iter(columns.values()), ()))

    def where(self, place: int) -> str:
        """The file and the line of a row, for an error."""
        return f"{self.path}, {self._unit} {self._first + place}"

    def wrong(self, name: str, place: int, fix: str) -> UsageError:
        value = self.columns[name][place]
        return UsageError(f"{self.where(place)}: {name} is {value!r}", fix)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def pass_over(self, *names: str) -> None:
        """Columns that are understood, and not kept."""
        self._taken.update(names)

    def take(self, name: str) -> Sequence[Any]:
        if name not in self.columns:
            hint = nearest(name, list(self.columns))
            raise UsageError(f"{self.path} has no column {name!r}", hint)
        self._taken.add(name)
        return self.columns[name]

    def each(self, name: str, convert: Callable[[Any], T | None], fix: str) -> list[T]:
        """Every value converted, each different one once; None from ``convert`` refuses it."""
        values = self.take(name)
        known: dict[Any, T] = {}
        found = []
        for place, value in enumerate(values):
            if value not in known:
                converted = convert(value)
                if converted is None:
                    raise self.wrong(name, place, fix)
                known[value] = converted
            found.append(known[value])
        return found

    def texts(self, name: str) -> list[str]:
        return self.each(name, _text, "name it")

    def counts(self, name: str, least: int = 1) -> list[int]:
        def convert(value: Any) -> int | None:
            number = number_of(value)
            if number is None or number % 1 or not least <= number <= LARGEST_COUNT:
                return None
            return int(number)

        return self.each(name, convert, f"write a whole number from {least}")

    def named(self, name: str, known: Mapping[str, str]) -> list[str]:
        """Every value by the name that we have for it."""
        values = self.take(name)
        for place, value in enumerate(values):
            if value not in known:
                raise self.wrong(name, place, nearest(str(value), list(known)))
        return [known[value] for value in values]

    def times_s(self, name: str, per_unit: float, unit: str) -> list[float]:
        """Every time, in seconds; each has to be finite and above zero."""
        fix = f"write {unit} above zero, or leave the row out"

        def convert(value: Any) -> float | None:
            number = number_of(value)
            return number * per_unit if number is not None and number > 0 else None

        return self.each(name, convert, fix)

    def done(self) -> None:
        """Refuse a column that nothing asked for: what is not understood is not left out."""
        for name in self.columns:
            if name not in self._taken:
                known = sorted(self._taken & set(self.columns))
                raise UsageError(
                    f"{self.path} has a column {name!r} that is not understood; "
                    f"known here are {', '.join(known)}",
                    f"add --ignore '{name}' if it changes no time",
                )


def _text(value: Any) -> str | None:
    """Without what cannot be seen: it would be another name that looks the same."""
    return plain(value).strip() or None if isinstance(value, str) else None


def number_of(value: Any) -> float | None:
    """A finite number, of CSV as text; None where it is none."""
    number = plain_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return float(number) if abs(number) <= LARGEST_FLOAT else None


def csv_rows(path: Path, text: str, ignored: Iterable[str] = ()) -> Rows:
    """The rows of a CSV file under its header.

    Raises:
        UsageError: No row, a name twice, or a line of another length.
    """
    try:
        lines = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise UsageError(f"{path} is no CSV: {error}", _FETCH) from None
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 2:
        raise UsageError(f"{path} holds no row", "give a table with a header and rows")
    header = [name.strip() for name in lines[0]]
    for name in header:
        if header.count(name) > 1:
            raise UsageError(f"{path}, line 1: two columns {name!r}", "leave one of them out")
    for number, row in enumerate(lines[1:], start=2):
        if len(row) != len(header):
            raise UsageError(
                f"{path}, line {number}: {counted(len(row), 'value')} under "
                f"{counted(len(header), 'column')}",
                "fetch it again, or give every column a value",
            )
    columns = dict(zip(header, zip(*lines[1:], strict=True), strict=True))
    return Rows(path, columns, ignored=ignored)
