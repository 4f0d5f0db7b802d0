"""Tables -> HTML as a notebook shows it, light or dark: no script, nothing from elsewhere."""

import io
from collections.abc import Sequence
from html import escape

from attnprof.render import Column, Table, cell, terminal_text

NUM_OPEN = 2  # tables that are shown unfolded: they answer, the others explain
WIDTH = 120  # of a printed result
_STYLE = (
    "<style>.attnprof table{border-collapse:collapse}"
    ".attnprof th,.attnprof td{padding:.15em .7em;text-align:left;white-space:pre}"
    ".attnprof th{border-bottom:1px solid currentColor}"
    ".attnprof .right{text-align:right;font-variant-numeric:tabular-nums}"
    ".attnprof .wraps{white-space:pre-wrap;min-width:14em}"
    ".attnprof .alarming{font-weight:bold;color:#d1242f}"
    ".attnprof summary{font-weight:bold;cursor:pointer;padding:.3em 0}"
    ".attnprof p{margin:.3em 0;opacity:.75;max-width:60em}</style>"
)
_ALARMING = ' class="alarming"'


class Shown:
    """A result that a notebook shows as the tables of its command, and ``print`` as text."""

    def tables(self) -> list[Table]:
        """What the command line prints of it."""
        raise NotImplementedError  # each result has its own

    def _repr_html_(self) -> str:
        return html_of(self.tables())

    def __str__(self) -> str:
        return "\n".join(terminal_text(table, io.StringIO(), WIDTH) for table in self.tables())


def html_of(tables: Sequence[Table]) -> str:
    """The tables, the first few unfolded."""
    shown = "".join(_folded(table, number < NUM_OPEN) for number, table in enumerate(tables))
    return f'{_STYLE}<div class="attnprof">{shown}</div>'


def _folded(table: Table, is_open: bool) -> str:
    table = table.for_people()
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    body = _table(table) if table.rows else "<p>nothing to show</p>"
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(table.title)}</summary>{body}{notes}</details>"


def _table(table: Table) -> str:
    kinds = [_kind(column) for column in table.columns]
    heads = zip(kinds, (column.heading for column in table.columns), strict=True)
    head = "".join(f'<th scope="col" class="{kind}">{escape(text)}</th>' for kind, text in heads)
    rows = []
    for row in table.rows:
        texts = zip(kinds, (cell(column, row) for column in table.columns), strict=True)
        cells = "".join(f'<td class="{kind}">{escape(text)}</td>' for kind, text in texts)
        is_alarming = table.alarming is not None and table.alarming(row)
        rows.append(f"<tr{_ALARMING if is_alarming else ''}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _kind(column: Column) -> str:
    if column.align == "right":
        return "right"
    return "wraps" if column.wraps else ""
