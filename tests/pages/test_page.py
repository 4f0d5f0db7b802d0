"""The page of a run: it needs nothing else, says what the run says, escapes what it is given."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from attnprof.figures.of_run import run_figures
from attnprof.fit import fit_run
from attnprof.pages.findings import headlines
from attnprof.pages.page import report_page
from attnprof.pages.tables import table_html
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
    assert addresses
    assert all(str(address).startswith("#") for address in addresses)
    assert not re.search(r"url\((?!#)|@import", page)
    assert {"link", "img", "iframe", "object"}.isdisjoint(tag for tag, _ in outline.tags)
    (policy,) = [one for one in outline.named("meta") if "http-equiv" in one]
    assert str(policy["content"]).startswith("default-src 'none'")


def test_every_id_is_its_own_and_every_reference_finds_one(outline: Outline) -> None:
    ids = [str(attributes["id"]) for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = [
        str(value).removeprefix("#")
        for _, attributes in outline.tags
        for key, value in attributes.items()
        if key in ("href", "xlink:href", "aria-labelledby")
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
    for said in headlines(records, fits):
        assert " ".join(said.split()) in outline.text
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
    sorted_by = {attributes.get("data-v") for attributes in outline.named("td")}
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
    assert "no answer in 60 s" in found.text
    assert not found.named("svg")


@pytest.mark.parametrize("name", ["quick", "models", "recurrent", "caches", "positions"])
def test_there_are_three_findings_or_as_many_as_a_run_holds_each_of_its_own_kind(
    name: str,
) -> None:
    _, records, fits = run_of(ROOT / "reports" / name)
    found = headlines(records, fits)
    assert 1 <= len(found) <= 3
    assert len(found) == len(set(found))


def test_a_cache_of_the_wrong_size_is_the_first_finding() -> None:
    header, records, _ = run_of(ROOT / "reports" / "quick")
    wrong = [
        {**record, "kv_bytes": 4 * record["kv_bytes"]} if record["kv_bytes"] else record
        for record in records
    ]
    assert headlines(wrong, fit_run(header, wrong))[0].endswith(": wrong.")


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
    assert '<td class=right data-v="1.5">1.5</td>' in text
    assert text.count("<td class=right>–</td>") == 2
    assert 'data-kind="number"' in text
    assert text.count("<tr class=alarming>") == 1
