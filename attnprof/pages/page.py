"""A run, its fits, tables and figures -> one page of HTML, with nothing to fetch."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from attnprof.figures.base import DARK, LIGHT, Figure, Theme
from attnprof.figures.drawing import svg_text, with_variables
from attnprof.findings import doubts, what_was_measured
from attnprof.fit import WORST_RESIDUAL
from attnprof.legend import environment_rows, legend_rows
from attnprof.pages.findings import Finding, headlines
from attnprof.pages.measured import measured_rows, measured_words
from attnprof.pages.tables import escaped, side_by_side, table_html, table_id
from attnprof.records import Run
from attnprof.render import Table
from attnprof.report import results_table, tables
from attnprof.run_header import command_of, device_name, grid_name, is_synthetic

# Of the page alone, each text in a contrast of 4.5 or more to the background; figures have the
# others. A veil over the background is the shade; an edge is where a table goes on.
_LIGHT = "--link: #0a5cad; --bad: #b3261e; --shade: #f4f6f8; --veil: #234b730d; --edge: #1f23284d"
_DARK = "--link: #6cb6ff; --bad: #ff8f86; --shade: #161c24; --veil: #a3c8f00f; --edge: #9da7b17a"

# What an SVG has that nobody sees within a page.
_SVG_WASTE = re.compile(
    r'<style type="text/css">.*?</style>|<metadata>.*?</metadata>|<defs>\s*</defs>'
    r'|(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"| font-family: [^;"]*;'
    r"|(?<=>)\s+(?=<)",
    re.DOTALL,
)
_SVG_ID = re.compile(r'((?<=\bid=")|(?<=href="#)|(?<=url\(#))')


@dataclass(frozen=True)
class _Section:
    """A part of the page: its id, its heading, and what the contents list below it."""

    key: str
    name: str
    html: str
    parts: tuple[tuple[str, str], ...] = ()  # ids and names


def report_page(run: Run, fits: Mapping[str, Any], figures: Sequence[Figure], made_by: str) -> str:
    """The report as a page that reads on its own: a summary, figures, tables, environment.

    Args:
        made_by: The command that makes it again.

    Raises:
        CannotMeasureError: matplotlib is not installed.
    """
    header, records = run.header, run.records
    made = side_by_side(tables(header, records, fits))
    doubtful = [*doubts(header, records), *_doubtful_laws(fits)]
    doubtful += [f"The last line of {torn} was cut in half by a crash." for torn in run.torn]
    sections = (
        _Section("summary", "What was found", _summary(headlines(records, fits))),
        _Section(
            "doubts", "What to doubt", _list(doubtful) or "<p>Nothing that the run shows.</p>\n"
        ),
        _Section("measured", "What was measured", _pairs(measured_rows(header, records))),
        _Section(
            "figures",
            "Figures",
            _boxed("figures", map(_figure, figures)),
            tuple((f"figure-{figure.name}", figure.title) for figure in figures),
        ),
        _Section(
            "tables",
            "Tables",
            _boxed("tables", map(table_html, made)),
            tuple((table_id(table), table.title) for table in made),
        ),
        _Section("method", "How it was measured", _method(run, made_by)),
        _Section("rows", "Every workload", table_html(_as_people_read(results_table(records)))),
        _Section("legend", "Legend", _pairs(legend_rows(records))),
    )
    title = _title(run)
    lead = what_was_measured(header, records)
    return _document(title, lead, [section for section in sections if section.html], made_by)


def _title(run: Run) -> str:
    """By its name, and where it has none by what was measured."""
    name = grid_name(run.header)
    title = f"{name}: attention" if name else measured_words(run.records)
    title += f" on {device_name(run.header)}"
    return f"{title} (synthetic device)" if is_synthetic(run.header) else title


def _document(title: str, lead: str, sections: Sequence[_Section], made_by: str) -> str:
    style, script = (
        files("attnprof.pages").joinpath(name).read_text(encoding="utf-8")
        for name in ("style.css", "script.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    contents = "".join(_contents_item(section) for section in sections)
    body = "".join(
        f'<section aria-labelledby="{section.key}"><h2 id="{section.key}">'
        f"{escaped(section.name)}</h2>\n{section.html}</section>\n"
        for section in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escaped(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{_colours()}{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#summary">Skip to what was found</a>\n<div class="page">\n'
        f'<header><h1>{escaped(title)}</h1>\n<p class="lead">{escaped(lead)}</p></header>\n'
        f'<nav aria-label="Contents"><details open><summary>Contents</summary>'
        f"<ul>{contents}</ul></details></nav>\n<main>\n{body}</main>\n"
        f"<footer>Made by <code>{escaped(made_by)}</code>.</footer>\n</div>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _colours() -> str:
    """Those of the figures and of the page as CSS variables; paper is always light."""
    light, dark = _variables(LIGHT), _variables(DARK)
    return (
        f":root {{ color-scheme: light dark; {light}; {_LIGHT} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}; {_DARK} }} }}\n"
        "@media print { :root { color-scheme: light; } }\n"
    )


def _variables(theme: Theme) -> str:
    return "; ".join(f"--{name}: {value}" for name, value in vars(theme).items() if name != "name")


def _contents_item(section: _Section) -> str:
    inner = "".join(_link(key, name) for key, name in section.parts)
    link = _link(section.key, section.name)
    return f"{link.removesuffix('</li>')}<ul>{inner}</ul></li>" if inner else link


def _link(key: str, name: str) -> str:
    return f'<li><a href="#{escaped(key)}">{escaped(name)}</a></li>'


def _summary(found: Sequence[Finding]) -> str:
    if not found:
        return "<p>Too little was measured to say anything.</p>\n"
    items = "".join(
        f"<li><strong>{escaped(one.number)}</strong> <b>{escaped(one.of)}</b>"
        f"<p>{escaped(one.said)}</p></li>"
        for one in found
    )
    return f'<ol class="findings" role="list">{items}</ol>\n'


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escaped(said)}</li>" for said in sentences)
    return f'<ul class="doubts">{items}</ul>\n' if items else ""


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(said)}</dd></div>" for name, said in rows
    )
    return f'<dl class="pairs">{items}</dl>\n' if items else ""


def _boxed(look: str, parts: Iterable[str]) -> str:
    inner = "".join(parts)
    return f'<div class="{look}">{inner}</div>\n' if inner else ""


def _doubtful_laws(fits: Mapping[str, Any]) -> list[str]:
    """How many series follow no law that could foretell anything."""
    known = [one for one in fits["series"] if one["worst_residual"] is not None]
    missed = sum(one["worst_residual"] > WORST_RESIDUAL for one in known)
    said = (
        f"Of {len(known)} fitted curves, those that miss a measured point by more than 10 % and "
        f"foretell nothing: {missed}."
    )
    return [said] if missed else []


def _figure(figure: Figure) -> str:
    """The figure twice, for wide and for narrow windows, of which one is shown."""
    wide, narrow = (
        _inline(svg_text(figure, narrow=is_narrow), f"{figure.name}-{shape}-")
        for shape, is_narrow in (("wide", False), ("narrow", True))
    )
    return (
        f'<figure id="figure-{escaped(figure.name)}"><div class="wide">{wide}</div>'
        f'<div class="narrow">{narrow}</div>\n'
        f'<figcaption class="unseen">{escaped(figure.source)}</figcaption></figure>\n'
    )


def _inline(svg: str, prefix: str) -> str:
    """An SVG within a page: in the page's colours and fonts, with ids that no other has."""
    svg = _SVG_WASTE.sub("", svg[svg.index("<svg ") :])
    return with_variables(_SVG_ID.sub(prefix, svg))


def _method(run: Run, made_by: str) -> str:
    command = command_of(run.header)
    measured = f"<pre>{escaped(command)}</pre>" if command else "<p>The command was not kept.</p>"
    return (
        f"{measured}\n<p>This page is made again from the records by:</p>\n"
        f"<pre>{escaped(made_by)}</pre>\n{_pairs(environment_rows(run.header))}"
    )


def _as_people_read(table: Table) -> Table:
    return replace(table, title="Every key of results.csv, unscaled")
