"""A comparison -> Markdown for a comment on a change, or the summary of a step.

What failed is in sight; the rest is folded away. All names are escaped, and none of them calls
anybody: an ``@name`` in a reason mentions no one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnprof.render import UNKNOWN, Column, Table, markdown_escaped, markdown_text, plain
from attnprof.verdicts.comparison import Comparison, WorkloadVerdict, seen_in_percent
from attnprof.verdicts.outputs.sentences import (
    difference_text,
    figure,
    headline,
    metric_name,
    ratio_text,
    workload_sentence,
)

MARKER = "<!-- attnprof -->"
"""The first line, by which a bot finds the comment that it wrote before."""

MOST_BYTES = 60_000
"""GitHub takes comments of 65,536 characters, and signs here may take three bytes each."""

_CUT = "\n\nCut here.\n"
_CALLS = re.compile(r"(?<!&)([@#])(?=\w)")  # not the # of a character's number, as in &#58;
_IN_SIGHT = ("regressed", "failed", "missing", "incomparable", "inconclusive")

_COLUMNS = (
    Column("workload_id", "Workload"),
    Column("metric", "Metric"),
    Column("base", "Base", align="right"),
    Column("new", "New", align="right"),
    Column("ratio", "Ratio", align="right"),
    Column("smallest_seen", "Would have seen", align="right"),
    Column("verdict", "Verdict"),
    Column("why", "Why"),
)


def markdown_comment(comparison: Comparison) -> str:
    """The comment, at most :data:`MOST_BYTES` long; workloads that have no room are counted."""
    most = len(comparison.workloads)
    text = _comment(comparison, most)
    while len(text.encode("utf-8")) > MOST_BYTES and most:
        most //= 2
        text = _comment(comparison, most)
    if len(text.encode("utf-8")) > MOST_BYTES:
        text = text.encode("utf-8")[: MOST_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT
    return text


def refused_comment(problem: str) -> str:
    """The comment on a comparison that there is none of.

    >>> print(refused_comment("base holds no run"))
    <!-- attnprof -->
    <BLANKLINE>
    ## attnprof: not compared
    <BLANKLINE>
    base holds no run
    <BLANKLINE>
    """
    return f"{MARKER}\n\n## attnprof: not compared\n\n{_safe(problem)}\n"


def _comment(comparison: Comparison, most: int) -> str:
    """The comment with ``most`` workloads in each of its tables."""
    failing = {workload.workload_id for workload in comparison.failing}
    sight = [workload for workload in comparison.workloads if workload.verdict in _IN_SIGHT]
    sight.sort(key=lambda workload: workload.workload_id not in failing)
    rest = [workload for workload in comparison.workloads if workload.verdict not in _IN_SIGHT]
    differences = [f"{found.key}: {difference_text(found)}" for found in comparison.differences]
    parts = [
        f"{MARKER}\n",
        f"## attnprof: {_safe(headline(comparison))}\n",
        _sides(comparison),
        *_table("What needs attention", sight, most, folded=False),
        *_table("All others", rest, most, folded=True),
        *_list("What differs between the two sides", differences),
        *_list("Notes", comparison.notes),
    ]
    return "\n".join(parts)


def _sides(comparison: Comparison) -> str:
    measured = (
        "measured in turns on one machine"
        if comparison.paired
        else "two finished runs, so that the machine's drift is part of the difference"
    )
    mean = comparison.geometric_mean
    lines = [
        f"{_code(comparison.base.name)} to {_code(comparison.new.name)}, {measured}; "
        f"on {_safe(comparison.new.device or 'an unknown device')}."
    ]
    if mean.mid is not None:
        lines.append(f"Latency over all, geometric mean: {ratio_text(mean)}.")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items())
    lines.append(f"Workloads: {counts or 'none'}.")
    return "\n".join(lines) + "\n"


def _table(
    title: str, workloads: Sequence[WorkloadVerdict], most: int, *, folded: bool
) -> Iterable[str]:
    if not workloads:
        return
    shown = workloads[:most]
    left = len(workloads) - len(shown)
    notes = (f"No room for {left} more workloads.",) if left else ()
    rows = tuple(row for workload in shown for row in _rows(workload, whole=folded))
    table = _uncalled(markdown_text(Table("workloads", title, _COLUMNS, rows, notes)))
    if folded:
        heading, _, body = table.partition("\n")
        summary = f"{heading.removeprefix('### ')} ({len(workloads)})"
        table = f"<details><summary>{summary}</summary>\n{body}\n</details>\n"
    yield table


def _rows(workload: WorkloadVerdict, *, whole: bool) -> Iterable[Mapping[str, Any]]:
    """A row a metric; of a workload that needs attention only the metrics that do."""
    told = [m for m in workload.metrics if whole or m.verdict in _IN_SIGHT]
    if not told:
        yield {
            "workload_id": workload.workload_id,
            "verdict": workload.verdict,
            "why": workload_sentence(workload),
        }
    for metric in told:
        why = [
            metric.reason or "",
            f"allowed: {workload.allowed}" if workload.allowed else "",
        ]
        yield {
            "workload_id": workload.workload_id,
            "metric": metric_name(metric.metric),
            "base": figure(metric.metric, metric.base),
            "new": figure(metric.metric, metric.new),
            "ratio": ratio_text(metric.ratio),
            "smallest_seen": seen_in_percent(metric.smallest_seen),
            "verdict": metric.verdict,
            "why": "; ".join(filter(None, why)) or UNKNOWN,
        }


def _list(title: str, lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield f"### {title}\n"
        yield "".join(f"- {_safe(line)}\n" for line in lines)


def _safe(text: str) -> str:
    return _uncalled(markdown_escaped(text))


def _code(text: str) -> str:
    """``text`` between back-quotes, which escape everything but themselves."""
    return f"`{plain(text).replace('`', chr(39))}`"


def _uncalled(text: str) -> str:
    """``text`` in which GitHub sees no mention and no number of an issue.

    >>> _uncalled("ask @somebody about #12")
    'ask @<!-- -->somebody about #<!-- -->12'
    """
    return _CALLS.sub(r"\1<!-- -->", text)
