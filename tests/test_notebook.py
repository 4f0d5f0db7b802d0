"""Tables as a notebook shows them: escaped, folded, numbers right, alarming rows marked."""

from html.parser import HTMLParser

from attnprof.notebook import html_of
from attnprof.render import Column, Table

TABLE = Table(
    name="one",
    title="Times of <b>flash</b>",
    columns=(
        Column("name", "Workload"),
        Column("median_s", "Median", "{:.1f} s".format, "right"),
        Column("reason", "Reason", wraps=True),
    ),
    rows=(
        {"name": "<script>alert(1)</script>", "median_s": 0.5, "reason": None},
        {"name": "b\x1b[31m", "median_s": float("nan"), "reason": "too & large"},
    ),
    notes=("a < b",),
    alarming=lambda row: row["reason"] is not None,
)


class Reader(HTMLParser):
    """Every tag is closed in order; what was read is kept by tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.classes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.classes.append((tag, dict(attrs).get("class")))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_cells_are_formatted_and_escaped() -> None:
    read = Reader(html_of([TABLE]))
    assert read.texts["summary"] == ["Times of <b>flash</b>"]
    assert read.texts["td"] == [
        "<script>alert(1)</script>", "0.5 s", "–", "b\ufffd[31m", "–", "too & large",
    ]  # fmt: skip
    assert read.texts["p"] == ["a < b"]
    assert "script" not in read.texts


def test_numbers_are_right_sentences_wrap_and_alarming_rows_are_marked() -> None:
    classes = Reader(html_of([TABLE])).classes
    assert [kind for tag, kind in classes if tag == "th"] == ["", "right", "wraps"]
    assert [kind for tag, kind in classes if tag == "tr"] == [None, None, "alarming"]


def test_the_first_tables_are_unfolded() -> None:
    html = html_of([TABLE] * 4)
    assert html.count("<details open>") == 2
    assert html.count("<details>") == 2


def test_a_long_table_shows_its_first_rows_and_says_how_many_more() -> None:
    rows = tuple({"name": str(number)} for number in range(9))
    html = html_of([Table("n", "Nine", (Column("name", "Name"),), rows, most_shown=4)])
    assert html.count("<td") == 4
    assert "And 5 more" in html


def test_a_table_without_rows_says_so() -> None:
    assert "nothing to show" in html_of([Table("none", "None", (Column("a", "A"),), ())])
