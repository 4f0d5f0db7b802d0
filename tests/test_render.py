"""A table as text: escaped, fitted to the terminal, and the same numbers in all four formats."""

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from attnprof import units
from attnprof.errors import CannotMeasureError
from attnprof.render import (
    Column,
    OutputFormat,
    Table,
    _rich_table,
    cell,
    csv_text,
    markdown_escaped,
    markdown_text,
    show,
    terminal_text,
)

STYLE_CODE = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = (
    Column("workload", "Workload"),
    Column("median_s", "Median", units.seconds, "right"),
    Column("median_low_s", "low", units.seconds, "right", priority=2),
    Column("note", "A heading that is long enough to need room", priority=1),
)


def table(*rows: dict[str, Any], **more: Any) -> Table:
    return Table("latency", "Latency", COLUMNS, rows, **more)


ROW = {"workload": "prefill 1k", "median_s": 0.0036, "median_low_s": 0.00351, "note": "noisy"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wide_terminal_shows_every_column_in_three_digits() -> None:
    text = terminal_text(table(ROW), Terminal(), width=160)
    assert all(
        part in text for part in ("Latency", "Workload", "3.6 ms", "3.51 ms", "noisy", "long")
    )
    assert "no room" not in text


def test_a_narrow_terminal_has_room_for_the_first_in_priority_and_says_what_is_missing() -> None:
    narrow = terminal_text(table(ROW), Terminal(), width=66)
    assert "3.51 ms" not in narrow
    assert "noisy" in narrow
    assert "no room for: low" in narrow


def test_room_that_a_wide_column_cannot_use_goes_to_a_narrow_one() -> None:
    narrower = terminal_text(table(ROW), Terminal(), width=31)
    assert "noisy" not in narrower
    assert "3.6 ms" in narrower
    assert "3.51 ms" in narrower


@pytest.mark.parametrize("width", [20, 30, 50, 80, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = terminal_text(table(ROW, {**ROW, "workload": "x" * 100}), Terminal(), width=width)
    assert max(len(STYLE_CODE.sub("", line)) for line in text.splitlines()) <= width


def test_long_words_wrap_before_a_column_is_left_out() -> None:
    columns = (*COLUMNS[:3], Column("note", "Why", wraps=True))
    long = Table("failures", "Failures", columns, ({**ROW, "note": "no such kernel here " * 9},))
    text = STYLE_CODE.sub("", terminal_text(long, Terminal(), width=72))
    assert "3.51 ms" in text
    assert "no room" not in text
    assert max(len(line) for line in text.splitlines()) <= 72


def test_into_a_pipe_no_column_is_left_out_and_nothing_is_coloured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = terminal_text(table(ROW, alarming=lambda row: True), io.StringIO())
    assert "long enough" in text
    assert "3.51 ms" in text
    assert "\x1b" not in text


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert "no room for" in terminal_text(table(ROW), io.StringIO())


def test_an_alarming_row_is_red_on_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    alarmed = table(ROW, alarming=lambda row: True)
    assert "\x1b[31m" in terminal_text(alarmed, Terminal(), width=160)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in terminal_text(alarmed, Terminal(), width=160)


@pytest.mark.parametrize("unknown", [None, float("nan"), float("inf")])
def test_an_unknown_value_is_a_dash_an_empty_cell_and_null(unknown: float | None) -> None:
    row = {**ROW, "median_s": unknown}
    assert "–" in terminal_text(table(row), io.StringIO())
    assert "| – |" in markdown_text(table(row))
    assert next(csv.DictReader(io.StringIO(csv_text(table(row)))))["median_s"] == ""
    out = io.StringIO()
    show(table(row), OutputFormat.json, out)
    assert json.loads(out.getvalue())["tables"][0]["rows"][0]["median_s"] is None


def test_json_is_one_versioned_document_of_raw_values() -> None:
    out = io.StringIO()
    show([table(ROW), table()], OutputFormat.json, out)
    document = json.loads(out.getvalue())
    assert document["format"] == 1
    assert document["tables"][0]["rows"] == [ROW]
    assert document["tables"][1]["rows"] == []


def test_markdown_aligns_numbers_right_and_keeps_notes() -> None:
    assert markdown_text(table(ROW, notes=("One launch.",))) == (
        "### Latency\n\n"
        "| Workload | Median | low | A heading that is long enough to need room |\n"
        "| :--- | ---: | ---: | :--- |\n"
        "| prefill 1k | 3.6 ms | 3.51 ms | noisy |\n\n"
        "One launch.\n"
    )


@pytest.mark.parametrize("output_format", OutputFormat)
def test_a_table_without_rows_is_written_in_every_format(output_format: OutputFormat) -> None:
    out = io.StringIO()
    show(table(), output_format, out)
    assert out.getvalue()


def test_a_stream_that_lacks_a_sign_gets_a_question_mark_and_not_a_crash() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(table({**ROW, "median_s": None}), OutputFormat.rich, out)
    out.seek(0)
    assert "?" in out.read()


HOSTILE = st.text(max_size=30) | st.sampled_from(
    ["=cmd|' /C calc'!A0", "@SUM(A1)", "+1", "-1", "\x1b]0;owned\x07", "a|b", "<img src=x>", "a\nb"]
)


@given(text=HOSTILE)
def test_no_name_can_break_a_row_steer_a_terminal_or_become_a_formula(text: str) -> None:
    hostile = table({**ROW, "workload": text})
    written = terminal_text(hostile, io.StringIO(), width=300)
    assert len(written.splitlines()) == 4
    assert not any(ord(sign) < 32 and sign != "\n" for sign in written)
    lines = markdown_text(hostile).splitlines()
    assert len(lines) == 5
    assert lines[4].replace("\\\\", "").replace("\\|", "").count("|") == 5
    assert "<" not in markdown_escaped(text)
    row = next(csv.reader(io.StringIO(csv_text(hostile).split("\n", 1)[1])))
    assert len(row) == 4
    assert not row[0].lstrip().startswith(("=", "+", "-", "@"))


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_output_that_cannot_be_written_is_an_error_that_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for output_format in OutputFormat:  # rich writes to its stream before the text is there
        with pytest.raises(CannotMeasureError, match="standard output: No space left on device"):
            show(table(ROW), output_format, FullDisk())
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(CannotMeasureError, match="standard output: it is closed"):
        show(table(ROW), OutputFormat.csv)


@given(st.integers(20, 120), st.integers(1, 9), st.integers(0, 10**9))
def test_a_number_is_never_cut_but_left_out(width: int, num_columns: int, value: int) -> None:
    columns = (
        Column("name", "Name"),
        *(Column(f"n{i}", f"N{i}", align="right") for i in range(num_columns)),
    )
    row = {"name": "prefill.flash", **{f"n{i}": value for i in range(num_columns)}}
    table = Table("t", "T", columns, (row,))
    shown = terminal_text(table, io.StringIO(), width=width).splitlines()[3].split()
    assert shown == ["prefill.flash", *[str(value)] * (len(shown) - 1)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("costs $1 or $2", r"costs \$1 or \$2"),
        ("see http://a.b", "see http&#58;//a.b"),
        ("see www.a.b", "see www&#46;a.b"),
        ("ask me@a.b", "ask me&#64;a.b"),
        ("sglang@new", "sglang@new"),
    ],
)
def test_markdown_makes_neither_math_nor_a_link_of_a_name(text: str, shown: str) -> None:
    assert markdown_escaped(text) == shown


@given(
    cells=st.lists(st.tuples(HOSTILE, st.integers() | st.none(), HOSTILE), min_size=1, max_size=5),
    is_red=st.booleans(),
    width=st.integers(60, 200),
)
def test_a_table_that_fits_is_set_as_rich_sets_it(
    cells: list[tuple[str, int | None, str]], is_red: bool, width: int
) -> None:
    made = replace(
        table(ROW),
        columns=(Column("a", "Ä"), Column("b", "B", align="right"), Column("c", "C", wraps=True)),
        rows=tuple(dict(zip("abc", row, strict=True)) for row in cells),
        alarming=lambda row: is_red,
        notes=(),
    )
    shown = {column.key: [cell(column, row) for row in made.rows] for column in made.columns}
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(_rich_table(made, made.columns, shown))
    by_rich = [line.rstrip() for line in captured.get().split("\n")[:-1]]
    ours = terminal_text(made, io.StringIO(), width).split("\n")[1:-1]
    if len(by_rich) == len(cells) + 2:  # nothing had to be wrapped
        assert ours == by_rich
