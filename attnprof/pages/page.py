"""A run, its fits, tables and figures -> one page of HTML, with nothing to fetch."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from attnprof.figures.base import Figure
from attnprof.figures.drawing import svg_text, with_variables
from attnprof.findings import doubts, roof_words, what_was_measured
from attnprof.fit import WORST_RESIDUAL
from attnprof.legend import environment_rows, legend_rows
from attnprof.pages.findings import headlines
from attnprof.pages.tables import escaped, table_html
from attnprof.records import Run
from attnprof.render import Table
from attnprof.report import results_table, tables
from attnprof.run_header import command_of, device_name, is_synthetic

_SVG_STYLE = re.compile(r"<style type=\"text/css\">.*?</style>", re.DOTALL)
_SVG_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_SVG_ID = re.compile(r'((?<=\bid=")|(?<=href="#)|(?<=url\(#))')


def report_page(run: Run, fits: Mapping[str, Any], figures: Sequence[Figure], made_by: str) -> str:
    """The report as a page that reads on its own: a summary, figures, tables, environment.

    Args:
        made_by: The command that makes it again.

    Raises:
        CannotMeasureError: matplotlib is not installed.
    """
    header, records = run.header, run.records
    made = tables(header, records, fits)
    title = f"Attention on {device_name(header)}"
    title += " (synthetic device)" if is_synthetic(header) else ""
    doubtful = [*doubts(header, records), *_doubtful_laws(fits)]
    doubtful += [f"The last line of {torn} was cut in half by a crash." for torn in run.torn]
    sections = {
        "summary": ("What was found", _summary(headlines(records, fits))),
        "doubts": ("What to doubt", _list(doubtful) or "<p>Nothing that the run itself shows.</p>"),
        "figures": ("Figures", _figures(figures)),
        "tables": ("Tables", "".join(map(table_html, made))),
        "method": ("How it was measured", _method(run, made_by)),
        "rows": ("Every workload", table_html(_as_people_read(results_table(records)))),
        "legend": ("Legend", _legend(run)),
    }
    lead = " ".join(
        [what_was_measured(header, records), *([said] if (said := roof_words(header)) else [])]
    )
    return _document(title, lead, {key: one for key, one in sections.items() if one[1]}, made_by)


def _document(title: str, lead: str, sections: Mapping[str, tuple[str, str]], made_by: str) -> str:
    style, script = (
        files("attnprof.pages").joinpath(name).read_text(encoding="utf-8")
        for name in ("style.css", "script.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    contents = "".join(
        f'<li><a href="#{key}">{escaped(name)}</a></li>' for key, (name, _) in sections.items()
    )
    body = "".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{escaped(name)}</h2>\n'
        f"{content}</section>\n"
        for key, (name, content) in sections.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#summary">Skip to what was found</a>\n'
        f'<header><h1>{escaped(title)}</h1>\n<p class="lead">{escaped(lead)}</p>\n'
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav></header>\n'
        f"<main>\n{body}</main>\n"
        f"<footer>Made by <code>{escaped(made_by)}</code>.</footer>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _summary(found: Sequence[str]) -> str:
    if not found:
        return "<p>Too little was measured to say anything.</p>\n"
    return f'<ol class="findings">{"".join(f"<li>{escaped(said)}</li>" for said in found)}</ol>\n'


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escaped(said)}</li>" for said in sentences)
    return f"<ul>{items}</ul>\n" if items else ""


def _doubtful_laws(fits: Mapping[str, Any]) -> list[str]:
    """How many series follow no law that could foretell anything."""
    known = [one for one in fits["series"] if one["worst_residual"] is not None]
    missed = sum(one["worst_residual"] > WORST_RESIDUAL for one in known)
    said = f"{missed} of {len(known)} series follow no law to 10 %, and foretell nothing."
    return [said] if missed else []


def _figures(figures: Sequence[Figure]) -> str:
    return f'<div class="figures">{"".join(map(_figure, figures))}</div>\n' if figures else ""


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
    """An SVG within a page: in the page's colours, with ids that no other has."""
    svg = svg[svg.index("<svg ") :]
    svg = _SVG_STYLE.sub("", _SVG_METADATA.sub("", svg))
    return with_variables(_SVG_ID.sub(prefix, svg))


def _method(run: Run, made_by: str) -> str:
    command = command_of(run.header)
    rows = "".join(
        f'<tr><th scope="row">{escaped(key)}</th><td class="wraps">{escaped(value)}</td></tr>'
        for key, value in environment_rows(run.header)
    )
    measured = (
        f"<pre tabindex=0>{escaped(command)}</pre>"
        if command
        else "<p>The command was not kept.</p>"
    )
    return (
        f"{measured}\n<p>This page is made again from the records by:</p>\n"
        f"<pre tabindex=0>{escaped(made_by)}</pre>\n"
        '<div class="scroll" role="region" tabindex="0" aria-label="Environment">'
        f"<table>{rows}</table></div>\n"
    )


def _as_people_read(table: Table) -> Table:
    """Every key of ``results.csv`` but those that no row has."""
    used = tuple(
        column
        for column in table.columns
        if any(row.get(column.key) not in (None, [], ()) for row in table.rows)
    )
    return Table(table.name, "Every key of results.csv, unscaled", used, table.rows, table.notes)


def _legend(run: Run) -> str:
    items = "".join(
        f"<dt>{escaped(name)}</dt><dd>{escaped(said)}</dd>"
        for name, said in legend_rows(run.records)
    )
    return f'<dl class="legend">{items}</dl>\n'
