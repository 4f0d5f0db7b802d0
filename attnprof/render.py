"""A table -> text: for the terminal, as Markdown, as CSV and as JSON.

What a column shows is said once, in the table. All text is escaped on its way out: names of
devices, kernels and files come from elsewhere.
"""

import csv
import errno
import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TextIO

from attnprof.errors import CannotMeasureError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

FORMAT_VERSION = 1
UNKNOWN = "–"
_UNLIMITED_WIDTH = 10_000
_LEAST_SENTENCE_WIDTH = 20
_GAP = 2  # after a column: one place of padding, and one between it and the next

# Control characters, the invisible ones that reorder or hide text, and halves of surrogate pairs,
# as which Python holds the bytes of a file name that are no text; no encoding has them.
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_MARKDOWN_SIGNS = re.compile(r"([\\`*\[\]|~$])")
# What GitHub makes a link of by itself: the colon, the dot or the sign that it knows one by.
_MARKDOWN_LINKS = re.compile(r":(?=//)|(?<=www)\.|(?<=[\w.+-])@(?=[\w-]+\.)", re.I)
_MARKDOWN_EDGE_UNDERSCORE = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_FORMULA_STARTS = ("=", "+", "-", "@")


class OutputFormat(StrEnum):
    """How a table is written."""

    rich = "rich"
    json = "json"
    csv = "csv"
    markdown = "markdown"


@dataclass(frozen=True)
class Column:
    """What a column shows: a raw key for CSV and JSON, a heading and a format for people.

    ``priority`` 0 is always shown; a narrow terminal has room for the lowest first. A column
    of sentences ``wraps`` to fit.
    """

    key: str
    heading: str
    format: Callable[[Any], str] = str
    align: Literal["left", "right"] = "left"
    priority: int = 0
    wraps: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of raw values by column key. ``alarming`` says which rows are shown in red; people are
    shown no more than ``most_shown``, the first, and programs all."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    alarming: Callable[[Mapping[str, Any]], bool] | None = None
    most_shown: int | None = None

    def for_people(self) -> "Table":
        """The rows that people are shown, with words on how many more there are."""
        if self.most_shown is None or len(self.rows) <= self.most_shown:
            return self
        left = len(self.rows) - self.most_shown
        words = f"And {left:,} more in --format csv or json."
        return replace(self, rows=self.rows[: self.most_shown], notes=(words, *self.notes))


def show(
    tables: Table | Sequence[Table], output_format: OutputFormat, stream: TextIO | None = None
) -> None:
    """Write ``tables``, and nothing else, to ``stream`` or standard output.

    Raises:
        CannotMeasureError: It is closed, or the disk behind it is full.
        BrokenPipeError: Its reader has left.
    """
    given = [tables] if isinstance(tables, Table) else list(tables)
    show_text(lambda to: _written(given, output_format, to), stream)


def show_document(document: Mapping[str, Any]) -> None:
    """Write a document as JSON to standard output.

    Raises:
        CannotMeasureError: It is closed, or the disk behind it is full.
        BrokenPipeError: Its reader has left.
    """
    show_text(lambda to: document_text(document))


def show_text(made: Callable[[TextIO], str], stream: TextIO | None = None) -> None:
    """Write the text that is ``made`` for a stream, to ``stream`` or standard output.

    Raises:
        CannotMeasureError: It is closed, or the disk behind it is full.
        BrokenPipeError: Its reader has left.
    """
    to = stream or sys.stdout
    if to is None:  # as Python has it where a shell wrote >&-
        raise unwritten(OSError(errno.EBADF, ""))
    try:
        written = made(to)
        encoding = getattr(to, "encoding", None) or "utf-8"
        to.write(written.encode(encoding, "replace").decode(encoding))
        to.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def room_of(stream: TextIO, signs: str) -> tuple[int, bool]:
    """How many places wide text for a stream may be, and whether it can hold some signs."""
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isdigit() and int(given) else shutil.get_terminal_size().columns
    try:
        signs.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return width, False
    return width, True


def _written(tables: Sequence[Table], output_format: OutputFormat, stream: TextIO) -> str:
    match output_format:
        case OutputFormat.rich:
            return "\n".join(terminal_text(table, stream) for table in tables)
        case OutputFormat.json:
            return json_text(tables)
        case OutputFormat.csv:
            return "\n".join(csv_text(table) for table in tables)
        case OutputFormat.markdown:
            return "\n".join(markdown_text(table) for table in tables)


def unwritten(error: OSError) -> CannotMeasureError:
    """What to say where nothing can be written to standard output."""
    why = "it is closed" if error.errno == errno.EBADF else error.strerror
    return CannotMeasureError(
        f"cannot write to standard output: {why}", "send it to a terminal, a pipe or a file"
    )


def plain(text: str) -> str:
    """``text`` in one line that cannot steer a terminal.

    >>> plain("a\\tb\\x1b[31mc")
    'a b\ufffd[31mc'
    """
    return _INVISIBLE.sub(lambda found: " " if found[0] in "\t\n\r" else "\ufffd", text)


def cell(column: Column, row: Mapping[str, Any]) -> str:
    """What people see of one value; an unknown one is ``–``."""
    value = row.get(column.key)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    return plain(column.format(value))


def terminal_text(table: Table, stream: TextIO, width: int | None = None) -> str:
    """The table as wide as the terminal allows; what it has no room for is said below it.

    Into a pipe or a file no column is left out, unless ``COLUMNS`` says how wide it may be.
    """
    from rich.console import Console

    is_terminal = stream.isatty()
    if width is None and not is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        width = _UNLIMITED_WIDTH
    table = table.for_people()
    console = Console(
        file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False
    )
    cells = {column.key: [cell(column, row) for row in table.rows] for column in table.columns}
    widths = {column.key: _widest(column, cells[column.key]) for column in table.columns}
    kept = _columns_that_fit(table.columns, widths, console.width)
    keys = {column.key for column in kept}
    left_out = [column.heading for column in table.columns if column.key not in keys]
    wide = sum(widths[column.key] + _GAP for column in kept) - 1
    lines = _printed(console, plain(table.title), "bold")
    if not table.rows:
        lines += ["nothing to show"]
    elif wide <= console.width:
        lines += _lines(table, kept, cells, widths, console)
    else:
        lines += _printed(console, _rich_table(table, kept, cells))
    for note in table.notes:
        lines += _printed(console, plain(note), "dim")
    if left_out:
        words = f"no room for: {', '.join(left_out)} (a wider terminal or --format json shows them)"
        lines += _printed(console, words, "dim")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _printed(console: "Console", what: "str | RichTable", style: str | None = None) -> list[str]:
    """The lines that rich makes of something."""
    with console.capture() as captured:
        console.print(what, style=style)
    return captured.get().splitlines()


def _columns_that_fit(
    columns: Sequence[Column], widths: Mapping[str, int], width: int
) -> list[Column]:
    """Those always shown, then by priority each that there still is room for.

    Where even the first have no room, words may be wrapped, but for those of the first column, by
    which rows are told apart; and if numbers would still be cut, the last columns are left out.
    """

    def needed(column: Column) -> int:
        """Characters that a column takes, the gap after it included; of a sentence the least."""
        widest = widths[column.key]
        return _GAP + (min(widest, _LEAST_SENTENCE_WIDTH) if column.wraps else widest)

    kept = [column for column in columns if column.priority == 0]
    left = width + 1 - sum(map(needed, kept))
    if left < 0:
        kept = [
            replace(column, wraps=column.wraps or column.align == "left") if number else column
            for number, column in enumerate(kept)
        ]
        left = width + 1 - sum(map(needed, kept))
    while left < 0 and len(kept) > 1:
        left += needed(kept.pop())
    for wanted in sorted(columns, key=lambda column: column.priority):
        if wanted.priority > 0 and needed(wanted) <= left:
            left -= needed(wanted)
            kept.append(wanted)
    order = {column.key: number for number, column in enumerate(columns)}
    return sorted(kept, key=lambda column: order[column.key])


def _widest(column: Column, cells: Sequence[str]) -> int:
    return max(map(_places, (column.heading, *cells)))


def _places(text: str) -> int:
    """How many places wide a terminal shows a text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _lines(
    table: Table, columns: Sequence[Column], cells: Mapping[str, Sequence[str]],
    widths: Mapping[str, int], console: "Console",
) -> list[str]:  # fmt: skip
    """A table that fits, a line a row, as rich sets it: which takes a second for 3,000 cells."""

    def line(texts: Iterable[str]) -> str:
        padded = []
        for column, text in zip(columns, texts, strict=True):
            room = " " * (widths[column.key] - _places(text))
            padded.append(room + text if column.align == "right" else text + room)
        return (" " * _GAP).join(padded).rstrip()

    rule = sum(widths[column.key] + _GAP for column in columns) - 1
    lines = [
        *_printed(console, line(column.heading for column in columns), "bold"),
        "─" * rule,
    ]
    shown = zip(*(cells[column.key] for column in columns), strict=True)
    for row, texts in zip(table.rows, shown, strict=True):
        is_alarming = table.alarming is not None and table.alarming(row)
        lines += _printed(console, line(texts), "red") if is_alarming else [line(texts)]
    return lines


def _rich_table(
    table: Table, columns: Sequence[Column], cells: Mapping[str, Sequence[str]]
) -> "RichTable":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    some_wrap = any(column.wraps for column in columns)
    for column in columns:
        made.add_column(
            Text(column.heading),
            justify=column.align,
            overflow="fold",
            no_wrap=some_wrap and not column.wraps,
        )
    shown = zip(*(cells[column.key] for column in columns), strict=True)
    for row, texts in zip(table.rows, shown, strict=True):
        is_alarming = table.alarming is not None and table.alarming(row)
        made.add_row(*map(Text, texts), style="red" if is_alarming else None)
    return made


def markdown_escaped(text: str) -> str:
    """``text`` in one line that Markdown shows as it is, in a table's cell too.

    >>> markdown_escaped("a|b <i> kv_len _x_")
    'a\\\\|b &lt;i&gt; kv_len \\\\_x\\\\_'
    >>> markdown_escaped("www.a.b costs $1, $2")
    'www&#46;a.b costs \\\\$1, \\\\$2'
    """
    escaped = _MARKDOWN_SIGNS.sub(r"\\\1", plain(text))
    escaped = _MARKDOWN_EDGE_UNDERSCORE.sub(r"\\_", escaped)
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN_LINKS.sub(lambda found: f"&#{ord(found[0])};", escaped)


def markdown_text(table: Table, level: int = 3) -> str:
    """The table as GitHub renders it, under a heading of ``level``."""
    table = table.for_people()
    lines = [f"{'#' * level} {markdown_escaped(table.title)}", ""]
    if table.rows:
        rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
        lines.append(_markdown_row([markdown_escaped(column.heading) for column in table.columns]))
        lines.append(_markdown_row(rules))
        for row in table.rows:
            lines.append(
                _markdown_row([markdown_escaped(cell(column, row)) for column in table.columns])
            )
    else:
        lines.append("Nothing to show.")
    for note in table.notes:
        lines += ["", markdown_escaped(note)]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def csv_text(table: Table) -> str:
    """Raw values under raw keys; an unknown one is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    for row in table.rows:
        writer.writerow([csv_value(row.get(column.key)) for column in table.columns])
    return out.getvalue()


def csv_value(value: Any) -> str:
    """One value for CSV: numbers in full, lists joined, text that no spreadsheet computes.

    >>> [csv_value(value) for value in (None, 0.1, -2, True, ["noisy", "contended"], "=1+1")]
    ['', '0.1', '-2', 'true', 'noisy contended', "'=1+1"]
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, int | float):
        return repr(value)
    words = value if isinstance(value, list | tuple) else [value]
    text = plain(" ".join(str(word) for word in words))
    return f"'{text}" if text.lstrip().startswith(_FORMULA_STARTS) else text


def json_text(tables: Sequence[Table]) -> str:
    """A versioned document of raw values; an unknown one is null."""
    document = {
        "format": FORMAT_VERSION,
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "rows": [
                    {column.key: row.get(column.key) for column in table.columns}
                    for row in table.rows
                ],
                "notes": list(table.notes),
            }
            for table in tables
        ],
    }
    return document_text(document)


def document_text(document: Mapping[str, Any]) -> str:
    """A document as JSON, unknown numbers null."""
    return json.dumps(without_nan(document), indent=2) + "\n"


def without_nan(value: Any) -> Any:
    """``value`` as JSON may hold it: NaN and infinity, which JSON lacks, become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value
