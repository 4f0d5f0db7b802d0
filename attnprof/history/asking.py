"""What was typed of a history -> the history, and when it fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnprof.errors import UsageError, nearest
from attnprof.history.courses import SMALLEST, History, read_history
from attnprof.verdicts.comparison import METRICS
from attnprof.verdicts.thresholds import parse_share

MAY_FAIL = ("regressed", "inconclusive")


@dataclass(frozen=True)
class Asked:
    """What is asked of a history.

    Args:
        workloads: Shell patterns of workload ids; none takes all.
        smallest: The smallest change of level that counts, as a share.
        fail_on: Verdicts for which it fails.
    """

    workloads: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("latency",)
    smallest: float = SMALLEST
    fail_on: tuple[str, ...] = ()


def asked_of(
    workloads: Sequence[str] | None = None,
    metric: str | None = None,
    smallest: str | None = None,
    fail_on: str | None = None,
) -> Asked:
    """What is asked, each text checked.

    >>> asked_of(metric="latency,kv_bytes", smallest="5%").metrics
    ('latency', 'kv_bytes')

    Raises:
        UsageError: A name that is none, or a change of no sense.
    """
    share = SMALLEST if smallest is None else parse_share(smallest)
    if share is None or not 0 <= share < 1:
        raise UsageError(f"--smallest {smallest} is no share of a change", "write 2%")
    return Asked(
        workloads=tuple(workloads or ()),
        metrics=("latency",) if metric is None else _listed("metric", metric, METRICS),
        smallest=share,
        fail_on=() if fail_on is None else _listed("verdict that fails", fail_on, MAY_FAIL),
    )


def _listed(what: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
    for word in words or (text,):
        if word not in known:
            raise UsageError(f"no {what} is called {word!r}", nearest(word, known))
    return words


def history_of(folder: Path, asked: Asked) -> History:
    """The history of the runs in a folder; see :func:`read_history`."""
    return read_history(
        folder, metrics=asked.metrics, workloads=asked.workloads, smallest=asked.smallest
    )


def exit_code(history: History, asked: Asked) -> int:
    """0; or 1 where a workload regressed and that fails, 3 where one is undecided and that does."""
    failing = {course.verdict for course in history.courses} & set(asked.fail_on)
    if "regressed" in failing:
        return 1
    return 3 if failing else 0
