"""The page of a run: it needs nothing else, says what the run says, escapes what it is given."""

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from attnprof.figures.of_run import run_figures
from attnprof.fit import fit_run
from attnprof.pages.findings import headlines
from attnprof.pages.measured import measured_rows
from attnprof.pages.page import report_page
from attnprof.pages.tables import side_by_side, table_html
from attnprof.records import Run
from attnprof.render import Column, Table
from tests.figures.run import GOLDEN, ROOT, run_of

pytest.importorskip("matplotlib")

COMMAND = "attnprof report run --html"
NASTY = """<img src=x onerror="alert('1')"> & </script> \x1b[31m"""
VOID = {"meta", "br", "img", "input", "link"}


class Outline(HTMLParser):
    """Tags, ids, attributes and text of a page; a tag that is closed out of order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(header: dict[str, Any], records: list[dict[str, Any]]) -> str:
    fits = fit_run(header, records)
    run = Run(Path("run"), header, tuple(records))
    return report_page(run, fits, run_figures(header, records, fits), COMMAND)


@pytest.fixture(scope="module")
def page() -> str:
    header, records, _ = run_of(GOLDEN)
    return page_of(header, records)


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def test_nothing_is_fetched_and_a_policy_forbids_it(page: str, outline: Outline) -> None:
    addresses = [
        value
        for tag, attributes in outline.tags
        for key, value in attributes.items()
        if key in ("src", "href", "xlink:href", "srcset", "action", "poster", "data")
    ]
    assert [address for address in addresses if not str(address).startswith("#")] == ["data:,"]
    assert not re.search(r"url\((?!#)|@import", page)
    assert {"img", "iframe", "object"}.isdisjoint(tag for tag, _ in outline.tags)
    assert [one["rel"] for one in outline.named("link")] == ["icon"]  # or a browser asks for one
    (policy,) = [one for one in outline.named("meta") if "http-equiv" in one]
    assert str(policy["content"]).startswith("default-src 'none'")


def test_every_id_is_its_own_and_every_reference_finds_one(outline: Outline) -> None:
    ids = [str(attributes["id"]) for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = [
        str(value).removeprefix("#")
        for _, attributes in outline.tags
        for key, value in attributes.items()
        if key in ("href", "xlink:href", "aria-labelledby") and value != "data:,"
    ]
    wanted += [
        found
        for _, attributes in outline.tags
        for value in attributes.values()
        for found in re.findall(r"url\(#([^)]*)\)", value or "")
    ]
    assert wanted
    assert set(wanted) <= set(ids)


def test_the_page_says_what_was_found_what_to_doubt_and_which_commands_made_it(
    outline: Outline,
) -> None:
    header, records, fits = run_of(GOLDEN)
    found = headlines(records, fits)
    assert found
    for one in found:
        assert f"{one.number} {one.of} {one.said}" in outline.text
    for name, said in measured_rows(header, records):
        assert f"{name} {said}" in outline.text
    assert "What to doubt" in outline.text
    assert COMMAND in outline.text
    assert " ".join(header["command"]) in outline.text
    assert header["facts"]["torch"] in outline.text


def test_every_figure_has_words_for_who_does_not_see_it(outline: Outline) -> None:
    pictures = outline.named("svg")
    assert len(pictures) == 2 * 6  # wide and narrow
    for one in pictures:
        assert one["role"] == "img"
        assert len(str(one["aria-label"])) > 80


def test_every_workload_has_its_row_and_raw_values_to_sort_by(outline: Outline) -> None:
    _, records, _ = run_of(GOLDEN)
    sorted_by = {one.get("data-v") for tag in ("th", "td") for one in outline.named(tag)}
    for record in records:
        assert record["workload_id"] in sorted_by
        assert repr(record["median_s"]) in sorted_by


def test_what_files_hold_is_shown_and_never_run() -> None:
    header, records, _ = run_of(GOLDEN)
    header = json.loads(json.dumps(header))
    header["facts"]["name"] = NASTY
    header["command"] = ["attnprof", "sweep", NASTY]
    header["notes"] = [NASTY]
    header["grid"]["name"] = NASTY
    records = [
        {**record, "backend": f"{NASTY} {number}", "flags": [NASTY]}
        for number, record in enumerate(records)
    ]
    text = page_of(header, records)
    found = Outline(text)
    assert not found.named("img")
    assert len(found.named("script")) == 1
    assert not any(key.startswith("on") for _, attributes in found.tags for key in attributes)
    assert "<img src=x" in found.text
    assert "\x1b" not in text


def test_a_run_without_a_single_figure_still_has_a_page() -> None:
    header, records, _ = run_of(GOLDEN)
    failed = [
        {
            **record, "status": "timeout", "reason": "no answer in 60 s", "median_s": None,
            "median_low_s": None, "median_high_s": None, "growth": None,
            "achieved_flops_per_s": None, "peak_activation_bytes": None, "kv_bytes": None,
        }
        for record in records
    ]  # fmt: skip
    found = Outline(page_of(header, failed))
    assert "Too little was measured" in found.text
    assert not found.named("svg")
    assert "#figures" not in [one["href"] for one in found.named("a")]


def test_the_contents_lead_to_every_section_figure_and_table(outline: Outline) -> None:
    targets = [str(one["href"]).removeprefix("#") for one in outline.named("a")]
    assert len(targets) == len(set(targets)) + 1  # the skip link leads to a section too
    named = {str(one["id"]) for one in outline.named("h2") + outline.named("figure")}
    boxes = {
        str(one["id"]) for one in outline.named("section") if "box" in (one.get("class") or "")
    }
    assert set(targets) == named | boxes - {"table-results"}


def test_headings_skip_no_level_and_there_is_one_of_each_landmark(outline: Outline) -> None:
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for tag in ("header", "nav", "main", "footer", "title"):
        assert len(outline.named(tag)) == 1
    assert outline.named("html") == [{"lang": "en"}]


def test_of_each_table_columns_and_rows_have_headings_and_it_has_a_name(outline: Outline) -> None:
    assert {one.get("scope") for one in outline.named("th")} == {"col", "row"}
    rows = [number for number, (tag, _) in enumerate(outline.tags) if tag == "tr"]
    assert {outline.tags[number + 1][0] for number in rows} == {"th"}
    assert all("aria-labelledby" in one for one in outline.named("table"))
    fields = [one["aria-label"] for one in outline.named("input")]
    assert fields
    assert len(fields) == len(set(fields))


def test_the_title_tells_one_sweep_from_another(page: str) -> None:
    header, records, _ = run_of(GOLDEN)
    other = page_of({**header, "grid": {**header["grid"], "name": "other"}}, records)
    titles = [re.findall("<title>(.*?)</title>", text) for text in (page, other)]
    assert titles[0] != titles[1]
    assert header["facts"]["name"] in titles[0][0]


def test_a_sweep_of_typed_axes_is_titled_by_what_was_measured() -> None:
    header, records, _ = run_of(GOLDEN)
    header = {**header, "grid": {**header["grid"], "name": "typed"}}
    some = [record for record in records if record["phase"] in ("prefill", "decode")]
    few = [{**record, "backend": "flash", "kv_len": 512} for record in some]
    few[0] = {**few[0], "backend": "eager", "kv_len": 4096}
    few[1] = {**few[1], "status": "timeout", "backend": "math", "kv_len": 8192}
    for measured, title in (
        (few, "Prefill and decode by eager and flash, 512 to 4k tokens, on "),
        (few[2:], "Prefill and decode by flash, 512 tokens, on "),
        ([{**record, "backend": f"b{number}"} for number, record in enumerate(few[2:6])],
         "Prefill by 4 backends, 512 tokens, on "),
        ([{**record, "status": "timeout"} for record in few], "Attention on "),
    ):  # fmt: skip
        found = Outline(page_of(header, measured))
        assert found.text.startswith(f"{title}{header['facts']['name']} Skip to")
        assert "typed" not in found.text.partition("What was found")[0]


@pytest.mark.parametrize("name", ["models", "caches"])
def test_a_page_of_thirty_workloads_is_smaller_than_a_photograph(name: str) -> None:
    header, records, _ = run_of(ROOT / "reports" / name)
    text = page_of(header, records)
    assert len(text.encode()) < 1_000_000
    drawings = "".join(re.findall("<svg .*?</svg>", text, re.DOTALL))
    assert not re.search("font-family|<metadata|<g id=", drawings)


def test_small_tables_stand_side_by_side_and_none_is_lost() -> None:
    def table(name: str, width: int) -> Table:
        keys = [f"{name} {number} words" for number in range(width)]
        return Table(name, name, tuple(Column(key, key) for key in keys), (dict.fromkeys(keys, 1),))

    given = [table("a", 9), table("b", 2), table("c", 9), table("d", 3), table("e", 2)]
    assert [one.name for one in side_by_side(given)] == ["a", "b", "d", "c", "e"]


def test_a_column_that_holds_nothing_is_left_out_and_an_unknown_beside_a_known_one_is_not() -> None:
    columns = (Column("a", "A"), Column("b", "B"), Column("c", "C"))
    rows = ({"a": 1, "b": "", "c": None}, {"a": None, "b": None, "c": 0})
    text = table_html(Table("t", "T", columns, rows))
    assert re.findall("<button[^>]*>(.*?)</button>", text) == ["A", "C"]
    assert text.count("–") == 2


def test_lists_wrap_between_their_items_and_numbers_never() -> None:
    columns = (Column("a", "A"), Column("b", "B", ", ".join), Column("c", "C", align="right"))
    rows = ({"a": "x", "b": ["noisy", "contended"], "c": 1}, {"a": "y", "b": [], "c": 2})
    text = table_html(Table("t", "T", columns, rows))
    assert re.findall("<td class=(.*?) data", text) == ['"wraps list"', "right"] * 2


def test_a_short_table_has_no_field_to_filter_it_by() -> None:
    rows = tuple({"a": number} for number in range(6))
    texts = [table_html(Table("t", "T", (Column("a", "A"),), some)) for some in (rows, rows[1:])]
    assert ["<input" in text for text in texts] == [True, False]


def test_of_a_long_table_the_page_holds_two_thousand_rows_and_says_how_many_more() -> None:
    rows = tuple({"a": number} for number in range(2500))
    text = table_html(Table("t", "T", (Column("a", "A"),), rows))
    assert text.count("<tr>") == 2001
    assert "And 500 more" in text


def test_unknown_values_have_nothing_to_sort_by_and_show_as_a_dash() -> None:
    table = Table(
        "t", "T", (Column("a", "A", align="right"), Column("b", "B")),
        ({"a": 1.5, "b": "x"}, {"a": None, "b": None}, {"a": float("nan"), "b": "y"}),
        alarming=lambda row: row["b"] == "y",
    )  # fmt: skip
    text = table_html(table)
    assert '<th scope="row" class=right data-v="1.5">1.5</th>' in text
    assert text.count('<th scope="row" class=right>–</th>') == 2
    assert 'data-kind="number"' in text
    assert text.count("<tr class=alarming>") == 1
