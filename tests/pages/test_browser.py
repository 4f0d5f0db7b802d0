"""The page in a real browser: it fits a phone, sorts, filters, prints, works by keyboard."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnprof.figures.of_run import run_figures
from attnprof.pages.page import report_page
from attnprof.records import Run
from tests.figures.run import ROOT, run_of

pytest.importorskip("matplotlib")
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    header, records, fits = run_of(ROOT / "reports" / "models")
    run = Run(Path("run"), header, tuple(records))
    path = tmp_path_factory.mktemp("page") / "report.html"
    text = report_page(run, fits, run_figures(header, records, fits), "attnprof report run --html")
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as player:
        started = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Any, address: str, width: int = 1280, **more: Any) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 800}, **more)
    page.requests, page.complaints = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(address)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280, 1920])
def test_no_window_is_too_narrow_and_nothing_is_fetched_or_complained_of(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    page = opened(browser, address, width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.requests == [address]
    assert page.complaints == []
    shown = page.locator("figure svg:visible")
    assert shown.count() == page.locator("figure").count() > 0
    smallest = page.evaluate(
        """() => Math.min(...[...document.querySelectorAll('figure svg')]
            .filter((svg) => svg.checkVisibility())
            .flatMap((svg) => [...svg.querySelectorAll('text')]
                .map((text) => parseFloat(getComputedStyle(text).fontSize)
                    * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)))"""
    )
    assert smallest >= 8  # pixels
    page.close()


def test_the_text_of_every_figure_stays_within_it(browser: Any, address: str) -> None:
    for width in (380, 1280):
        page = opened(browser, address, width)
        outside = page.evaluate(
            """() => [...document.querySelectorAll('figure svg')]
                .filter((svg) => svg.checkVisibility())
                .flatMap((svg) => { const box = svg.getBoundingClientRect();
                    return [...svg.querySelectorAll('text')]
                        .filter((text) => { const its = text.getBoundingClientRect();
                            return its.right > box.right + 1 || its.left < box.left - 1; })
                        .map((text) => text.textContent); })"""
        )
        assert outside == []
        page.close()


def cells(page: Any, column: int) -> list[str]:
    rows = page.locator("#table-latency tbody tr:visible")
    return [str(text) for text in rows.locator(f"td:nth-child({column})").all_text_contents()]


def raw(page: Any, column: int) -> list[float]:
    return [
        float(value)
        for value in page.locator(f"#table-latency tbody tr td:nth-child({column})").evaluate_all(
            "all => all.map((one) => one.dataset.v)"
        )
    ]


def test_a_click_on_a_heading_sorts_by_value_and_another_turns_it_round(
    browser: Any, address: str
) -> None:
    page = opened(browser, address)
    head = page.locator("#table-latency thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    up = raw(page, 2)
    assert up == sorted(up)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert raw(page, 2) == up[::-1]
    page.close()


def test_a_table_can_be_sorted_and_filtered_by_keyboard_alone(browser: Any, address: str) -> None:
    page = opened(browser, address)
    page.locator("#table-latency input").focus()
    page.keyboard.type("decode qwen3")
    names = cells(page, 1)
    assert names
    assert all("decode" in name and "qwen3" in name for name in names)
    total = page.locator("#table-latency tbody tr").count()
    assert page.locator("#table-latency output").text_content() == f"{len(names)} of {total}"
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Median":
            break
    page.keyboard.press("Enter")
    head = page.locator("#table-latency thead th").nth(1)
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#table-latency input").fill("no such words")
    assert cells(page, 1) == []
    assert page.locator("#table-latency .none").is_visible()
    page.close()


def test_text_and_controls_have_contrast_enough_in_both_schemes(browser: Any, address: str) -> None:
    for scheme in ("light", "dark"):
        page = opened(browser, address, color_scheme=scheme)
        poor = page.evaluate(
            r"""() => {
            const parse = (text) => text.match(/[\d.]+/g).map(Number);
            const light = (rgb) => { const [r, g, b] = rgb.slice(0, 3).map((v) => { v /= 255;
                return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
                return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
            const ground = (one) => { for (let at = one; at; at = at.parentElement) {
                const rgb = parse(getComputedStyle(at).backgroundColor);
                if (rgb.length < 4 || rgb[3] > 0) return rgb; } return [255, 255, 255]; };
            return [...document.querySelectorAll('h1,h2,h3,p,li,a,td,th button,dt,dd,label,pre')]
                .filter((one) => one.checkVisibility() && one.textContent.trim())
                .filter((one) => { const pair = [light(parse(getComputedStyle(one).color)),
                    light(ground(one))].sort((a, b) => b - a);
                    return (pair[0] + 0.05) / (pair[1] + 0.05) < 4.5; })
                .map((one) => one.tagName + one.textContent.slice(0, 40)); }"""
        )
        assert poor == []
        page.close()


def test_it_prints_without_controls_in_light_colours_and_no_table_is_cut(
    browser: Any, address: str
) -> None:
    page = opened(browser, address, color_scheme="dark")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 1000})
    assert not page.locator("#table-latency input").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.box .scroll')]
            .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
            .map((one) => one.textContent.slice(0, 40))"""
    )
    assert cut == []
    assert re.match(rb"%PDF", page.pdf(format="A4"))
    page.close()


def test_without_script_all_is_there_and_no_control_that_does_nothing(
    browser: Any, address: str
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#table-latency tbody tr").count() > 10
    assert not page.locator("#table-latency input").is_visible()
    context.close()
