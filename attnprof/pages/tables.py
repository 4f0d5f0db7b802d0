"""A table -> HTML whose rows can be sorted by any column and filtered by words."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.render import Column, Table, cell, plain

MOST_ROWS = 2000  # of a table, so that a browser stays quick
FEWEST_TO_FILTER = 6  # rows; fewer are seen at a glance
_HALF = 94  # characters that half of a wide window has room for
_GAP = 3  # characters between two columns
_SENTENCE = 30  # characters to which a column of sentences may be narrowed


def escaped(text: str) -> str:
    """``text`` as HTML shows it, between tags and within quotes.

    >>> escaped('<b>"a"</b>')
    '&lt;b&gt;&quot;a&quot;&lt;/b&gt;'
    """
    return html.escape(plain(text))


def table_id(table: Table) -> str:
    """The id of the box that a table is in."""
    return f"table-{table.name}"


def side_by_side(tables: Sequence[Table]) -> list[Table]:
    """In their order, but each small one has the next small one behind it, to share a line."""
    left, ordered = list(tables), []
    while left:
        ordered.append(left.pop(0))
        if _is_small(ordered[-1]):
            others = (number for number, table in enumerate(left) if _is_small(table))
            ordered += [left.pop(number) for number in [*others][:1]]
    return ordered


def _is_small(table: Table) -> bool:
    """Whether half of a wide window has room for it."""
    return sum(_width(table, column) for column in _used_columns(table)) <= _HALF


def _width(table: Table, column: Column) -> int:
    """Characters that a column takes, with the sign of how it is sorted and the gap."""
    widest = max(len(cell(column, row)) for row in table.rows)
    longest = min(widest, _SENTENCE) if _wrapping(table, column) else widest
    return _GAP + max(len(column.heading) + 2, longest)


def _used_columns(table: Table) -> tuple[Column, ...]:
    """Those that hold something in some row."""
    return tuple(
        column
        for column in table.columns
        if any(row.get(column.key) not in (None, "", [], ()) for row in table.rows)
    )


def table_html(table: Table) -> str:
    """The table in a box with its title, a field to filter it by, and its notes.

    A column that holds nothing in any row is left out.
    """
    table = replace(table, most_shown=MOST_ROWS).for_people()
    name, title = escaped(table_id(table)), escaped(table.title)
    columns = _used_columns(table)
    kinds = {column.key: _kind(table, column) for column in columns}
    looks = {column.key: _look(table, column) for column in columns}
    heads = "".join(_head(column, kinds[column.key]) for column in columns)
    rows = "\n".join(_row(table, columns, row, kinds, looks) for row in table.rows)
    notes = "".join(f"<p>{escaped(note)}</p>" for note in table.notes)
    look = "box small" if _is_small(table) else "box"
    filtering = (
        f'<label class="script-only">Filter <input type="search" autocomplete="off" '
        f'aria-label="Filter {title}"> <output aria-live="polite"></output></label>'
    )
    return (
        f'<section class="{look}" id="{name}" aria-labelledby="{name}-title">\n'
        f'<div class="top"><h3 id="{name}-title">{title}</h3>\n'
        + (filtering if len(table.rows) >= FEWEST_TO_FILTER else "")
        + f'</div>\n<div class="scroll" role="group" tabindex="0" aria-label="Rows of {title}">\n'
        f'<table aria-labelledby="{name}-title">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n"
        '<p class="none" hidden>No row has these words.</p></div>\n'
        + (f'<div class="notes">{notes}</div>\n' if notes else "")
        + "</section>\n"
    )


def _kind(table: Table, column: Column) -> str:
    """Whether a column is sorted by number, or as words."""
    values = [value for row in table.rows if (value := row.get(column.key)) is not None]
    return "number" if values and all(map(_is_number, values)) else "words"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _head(column: Column, kind: str) -> str:
    look = ' class="right"' if column.align == "right" else ""
    return (
        f'<th scope="col" data-kind="{kind}"{look}>'
        f'<button type="button">{escaped(column.heading)}</button></th>'
    )


def _wrapping(table: Table, column: Column) -> str:
    """How a column is broken into lines: as sentences, between the items of lists, or never."""
    if column.wraps:
        return "wraps"
    is_listing = any(isinstance(row.get(column.key), list | tuple) for row in table.rows)
    return "wraps list" if is_listing else ""


def _look(table: Table, column: Column) -> str:
    """The class of its cells."""
    return "right" if column.align == "right" else _wrapping(table, column)


def _row(
    table: Table,
    columns: tuple[Column, ...],
    row: Mapping[str, Any],
    kinds: Mapping[str, str],
    looks: Mapping[str, str],
) -> str:
    """By its first cell a row is told from others."""
    is_alarming = table.alarming is not None and table.alarming(row)
    cells = "".join(
        _cell(
            column,
            row,
            kinds[column.key],
            looks[column.key],
            'th scope="row"' if not number else "td",
        )
        for number, column in enumerate(columns)
    )
    return f"<tr{' class=alarming' if is_alarming else ''}>{cells}</tr>"


def _cell(column: Column, row: Mapping[str, Any], kind: str, look: str, tag: str) -> str:
    """What people see, and the value by which it is sorted; an unknown one has none."""
    value, shown = row.get(column.key), escaped(cell(column, row))
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        sorted_by = ""
    elif kind == "number":
        sorted_by = f' data-v="{value!r}"'
    else:
        sorted_by = f' data-v="{shown}"'
    said = f'"{look}"' if " " in look else look
    return f"<{tag}{f' class={said}' if look else ''}{sorted_by}>{shown}</{tag[:2]}>"
