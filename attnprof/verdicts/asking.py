"""What was typed of a comparison -> what is asked of it."""

from collections.abc import Sequence
from pathlib import Path

from attnprof.errors import UsageError
from attnprof.verdicts.comparison import FAIL_ON, METRICS, Comparison
from attnprof.verdicts.judging import DRIFT_MARGIN, Asked, compare_sides
from attnprof.verdicts.sides import read_side
from attnprof.verdicts.thresholds import Thresholds, parse_share, read_thresholds

MOST_MARGIN = 1.0


def asked_of(
    thresholds: Path | None = None,
    allow_different: Sequence[str] | None = None,
    metric: str | None = None,
    fail_on: str | None = None,
    margin: str | None = None,
) -> Asked:
    """What is asked, each text checked.

    >>> asked_of(metric="kv_bytes, latency", margin="3%").metrics
    ('kv_bytes', 'latency')

    Raises:
        UsageError: A name that is none, or thresholds that make no sense.
    """
    return Asked(
        allow_different=tuple(allow_different or ()),
        metrics=METRICS if metric is None else _listed(metric),
        fail_on=FAIL_ON if fail_on is None else _listed(fail_on),
        margin=DRIFT_MARGIN if margin is None else _margin(margin),
        thresholds=Thresholds() if thresholds is None else read_thresholds(thresholds),
    )


def compare_runs(base: Path, new: Path, asked: Asked) -> Comparison:
    """The comparison of two finished runs, by their folders.

    Raises:
        UsageError: A run that cannot be compared, or two that have nothing in common.
        CannotMeasureError: They were measured under other conditions.
    """
    return compare_sides(read_side(base), read_side(new), asked)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


def _margin(text: str) -> float:
    share = parse_share(text)
    if share is None or share > MOST_MARGIN:
        raise UsageError(f"--margin {text} is no share of a rise", "write 3%")
    return share
