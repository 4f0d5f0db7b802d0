"""The page in a real browser: it fits a phone, sorts, filters, prints, works by keyboard."""

import io
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

image = pytest.importorskip("matplotlib.image")
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
    return [str(text) for text in rows.locator(f":nth-child({column})").all_text_contents()]


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
            const words = 'h1,h2,h3,p,li,a,b,strong,td,th,th button,dt,dd,label,pre,summary,'
                + 'footer,code,svg text';
            const ink = (one) =>
                getComputedStyle(one)[one instanceof SVGElement ? "fill" : "color"];
            return [...document.querySelectorAll(words)]
                .filter((one) => one.checkVisibility() && one.textContent.trim())
                .filter((one) => { const pair = [light(parse(ink(one))),
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
    for control in ("input", "label", "nav", ".skip", "[aria-labelledby=rows]"):
        assert page.locator(control).count() > 0
        assert not any(one.is_visible() for one in page.locator(control).all())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
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
    assert page.locator("nav li a").first.is_visible()
    context.close()


def test_the_first_column_and_the_headings_stay_while_a_table_is_moved(
    browser: Any, address: str
) -> None:
    page = opened(browser, address, 380)
    moved = page.locator("#table-latency .scroll").evaluate(
        """(box) => {
            const places = () =>
                ['tbody th', 'thead th', 'thead th:nth-child(3)', 'td:nth-child(3)']
                .map((one) => box.querySelector(one).getBoundingClientRect())
                .flatMap((one) => [one.left, one.top]);
            const before = places();
            box.scrollTo(90, 60);
            return places().map((place, number) => place - before[number]); }"""
    )
    assert moved == [0, -60, 0, 0, -90, 0, -90, -60]
    page.close()


def edge_of(page: Any, box: Any, inset: int) -> tuple[float, ...]:
    """The colour of a table's first row, some pixels from the right edge, above its words."""
    place, row = box.bounding_box(), box.locator("tbody tr").first.bounding_box()
    spot = {"x": place["x"] + place["width"] - inset, "y": row["y"] + 2, "width": 1, "height": 1}
    return tuple(image.imread(io.BytesIO(page.screenshot(clip=spot)))[0, 0, :3].tolist())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_a_table_is_shaded_at_the_edge_where_it_goes_on_and_only_there(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    page = opened(browser, address, width, color_scheme=scheme)
    box = page.locator("#table-growth_latency .scroll")
    box.scroll_into_view_if_needed()
    assert box.evaluate("(one) => one.scrollWidth > one.clientWidth")
    ground = edge_of(page, box, 50)
    assert edge_of(page, box, 3) != ground
    box.evaluate("(one) => one.scrollTo(one.scrollWidth, 0)")
    assert edge_of(page, box, 3) == ground
    page.emulate_media(media="print")
    assert box.evaluate("(one) => getComputedStyle(one).backgroundImage") == "none"
    page.close()


def test_the_flags_of_a_call_are_in_sight_in_a_window_of_a_small_laptop(
    browser: Any, address: str
) -> None:
    page = opened(browser, address)
    box = page.locator("#table-latency .scroll")
    assert "contended, warmup_unsettled" in box.locator("td").all_text_contents()
    assert box.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    page.close()


@pytest.mark.parametrize("width", [380, 1280, 1920])
def test_no_line_of_text_is_longer_than_ninety_characters(
    browser: Any, address: str, width: int
) -> None:
    page = opened(browser, address, width)
    longest = page.evaluate(
        """() => Math.max(...[...document.querySelectorAll('p, li, dd')]
            .filter((one) => one.checkVisibility() && one.children.length === 0)
            .map((one) => { const range = document.createRange();
                range.selectNodeContents(one);
                const tops = {};
                for (let i = 0; i < one.textContent.length; i += 1) {
                    range.setStart(one.firstChild, i); range.setEnd(one.firstChild, i + 1);
                    const top = Math.round(range.getBoundingClientRect().top);
                    tops[top] = (tops[top] ?? 0) + 1; }
                return Math.max(0, ...Object.values(tops)); }))"""
    )
    assert 20 < longest <= 90
    page.close()


def test_a_wide_window_is_filled_and_its_contents_stay_in_sight(browser: Any, address: str) -> None:
    page = opened(browser, address, 1920)
    lefts = page.evaluate(
        """() => ['.findings li', 'figure', '.tables .box'].map((one) =>
            [...document.querySelectorAll(one)].map((box) => box.getBoundingClientRect())
                .reduce(([left, right], box) => [Math.min(left, box.left),
                    Math.max(right, box.right)], [1920, 0]))"""
    )
    for left, right in lefts:
        assert right - left > 0.8 * 1920
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.box.small .scroll')]
            .map((one) => one.scrollWidth > one.clientWidth + 1)"""
    )
    assert cut
    assert not any(cut)
    page.evaluate("scrollTo(0, 5000)")
    link = page.locator("nav a").first
    assert link.bounding_box()["y"] >= 0
    assert link.is_visible()
    page.close()


def test_on_a_phone_the_contents_are_folded_and_open_by_keyboard(
    browser: Any, address: str
) -> None:
    page = opened(browser, address, 380)
    link = page.get_by_role("link", name="What to doubt")
    assert not link.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert link.is_visible()
    link.press("Enter")
    assert page.evaluate("document.querySelector('#doubts').getBoundingClientRect().top") < 100
    page.close()


def test_by_keyboard_all_is_reached_in_the_order_of_the_page_and_seen_to_be(
    browser: Any, address: str
) -> None:
    page = opened(browser, address)
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => { const one = document.activeElement, look = getComputedStyle(one),
                    box = one.getBoundingClientRect();
                    const all = [...document.querySelectorAll('*')];
                    return [all.indexOf(one), look.outlineStyle, parseFloat(look.outlineWidth),
                        box.width > 0 && box.left >= 0 && box.top < innerHeight
                            && box.bottom > 0]; }"""
            )
        )
        if len(reached) == 1:
            assert page.evaluate("document.activeElement.className") == "skip"
    places = [place for place, *_ in reached]
    assert places == sorted(set(places))
    assert {(style, width >= 2, is_seen) for _, style, width, is_seen in reached} == {
        ("solid", True, True)
    }
    page.close()


@pytest.mark.parametrize("width", [380, 1280])
def test_what_is_to_be_touched_is_large_enough(browser: Any, address: str, width: int) -> None:
    page = opened(browser, address, width)
    page.evaluate("document.querySelector('nav details').open = true")
    small = page.evaluate(
        """() => [...document.querySelectorAll('nav a, summary, button, input')]
            .filter((one) => { const box = one.getBoundingClientRect();
                return box.width < 24 || box.height < 24; })
            .map((one) => one.outerHTML)"""
    )
    assert small == []
    page.close()


def test_nothing_moves_by_itself(browser: Any, address: str) -> None:
    page = opened(browser, address)
    moving = page.evaluate(
        """() => [...document.querySelectorAll('*')].map((one) => getComputedStyle(one))
            .filter((look) => look.animationName !== 'none' || look.transitionDuration !== '0s'
                || look.scrollBehavior !== 'auto').length"""
    )
    assert moving == 0
    page.close()
