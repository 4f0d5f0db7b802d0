"""A table -> HTML whose rows can be sorted by any column and filtered by words."""

import html
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnprof.render import Column, Table, cell, plain

MOST_ROWS = 2000  # of a table, so that a browser stays quick


def escaped(text: str) -> str:
    """``text`` as HTML shows it, between tags and within quotes.

    >>> escaped('<b>"a"</b>')
    '&lt;b&gt;&quot;a&quot;&lt;/b&gt;'
    """
    return html.escape(plain(text))


def table_html(table: Table) -> str:
    """The table in a box with its title, a field to filter it by, and its notes."""
    table = replace(table, most_shown=MOST_ROWS).for_people()
    name = f"table-{escaped(table.name)}"
    columns = table.columns
    kinds = {column.key: _kind(table, column) for column in columns}
    heads = "".join(_head(column, kinds[column.key]) for column in columns)
    rows = "\n".join(_row(table, row, kinds) for row in table.rows)
    notes = "".join(f"<p>{escaped(note)}</p>" for note in table.notes)
    return (
        f'<div class="box" id="{name}">\n'
        f'<div class="top"><h3 id="{name}-title">{escaped(table.title)}</h3>\n'
        '<label class="script-only">Filter '
        f'<input type="search" autocomplete="off" aria-label="Filter {escaped(table.title)}"> '
        '<output aria-live="polite"></output></label></div>\n'
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}-title">\n'
        f'<table aria-labelledby="{name}-title">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n"
        '<p class="none" hidden>No row has these words.</p></div>\n'
        + (f'<div class="notes">{notes}</div>\n' if notes else "")
        + "</div>\n"
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


def _row(table: Table, row: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    is_alarming = table.alarming is not None and table.alarming(row)
    cells = "".join(_cell(column, row, kinds[column.key]) for column in table.columns)
    return f"<tr{' class=alarming' if is_alarming else ''}>{cells}</tr>"


def _cell(column: Column, row: Mapping[str, Any], kind: str) -> str:
    """What people see, and the value by which it is sorted; an unknown one has none."""
    value, shown = row.get(column.key), escaped(cell(column, row))
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        sorted_by = ""
    elif kind == "number":
        sorted_by = f' data-v="{value!r}"'
    else:
        sorted_by = f' data-v="{shown}"'
    look = "right" if column.align == "right" else "wraps" if column.wraps else ""
    return f"<td{f' class={look}' if look else ''}{sorted_by}>{shown}</td>"
