"""A bisection -> its tables: the commit that did it, and every step on the way."""

from attnprof.bisecting.bisection import Bisected
from attnprof.bisecting.step import Step
from attnprof.render import UNKNOWN, Column, Table
from attnprof.verdicts.comparison import in_percent

MOST_NAMED = 5


def bisection_tables(found: Bisected) -> list[Table]:
    """The commits that may have done it, and the steps."""
    return [candidates_table(found), steps_table(found)]


def whole_words(found: Bisected) -> str:
    """The answer in a line."""
    first = found.first_bad
    if first is not None:
        return f"first bad commit {first.short}: {first.subject}"
    named = ", ".join(commit.short for commit in found.candidates[:MOST_NAMED])
    more = len(found.candidates) - MOST_NAMED
    return (
        f"the first bad commit is one of {len(found.candidates)}, as some between could not be "
        f"measured: {named}" + (f" and {more} more" if more > 0 else "")
    )


def candidates_table(found: Bisected) -> Table:
    """The first bad commit, or those that it is among."""
    return Table(
        name="first_bad",
        title=f"{found.metric} of {found.workload_id}: {whole_words(found)}",
        columns=(
            Column("commit", "Commit", lambda commit: commit[:10]),
            Column("subject", "Subject", wraps=True),
            Column("author", "Author", priority=2),
            Column("date", "Date", priority=1),
        ),
        rows=tuple(
            {
                "commit": commit.id,
                "subject": commit.subject,
                "author": commit.author,
                "date": commit.date,
            }
            for commit in found.candidates
        ),
        alarming=lambda row: found.first_bad is not None,
    )


def steps_table(found: Bisected) -> Table:
    """The bad end, and then what git asked about."""
    return Table(
        name="steps",
        title=f"Steps, each beside the good end {found.good.short} in turns",
        columns=(
            Column("commit", "Commit", lambda commit: commit[:10]),
            Column("outcome", "Is"),
            Column("ratio", "Ratio", _times, "right"),
            Column("ratio_low", "low", _times, "right"),
            Column("ratio_high", "high", _times, "right"),
            Column("threshold", "Bad from", in_percent, "right", 1),
            Column("subject", "Subject", wraps=True, priority=1),
            Column("reason", "Why", wraps=True),
        ),
        rows=tuple(_row(step) for step in (found.ends, *found.steps)),
        alarming=lambda row: row["outcome"] == "bad",
    )


def _row(step: Step) -> dict[str, object]:
    return {
        "commit": step.commit,
        "outcome": step.outcome,
        "ratio": step.ratio,
        "ratio_low": step.ratio_low,
        "ratio_high": step.ratio_high,
        "threshold": step.threshold,
        "subject": step.subject,
        "reason": step.reason or "",
    }


def _times(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.3f}×"
