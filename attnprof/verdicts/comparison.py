"""What a comparison of two runs says: of each metric, of each workload, of the whole."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1

VERDICTS = (
    "regressed",
    "failed",
    "missing",
    "incomparable",
    "inconclusive",
    "improved",
    "new",
    "same",
)
"""From what needs attention first to what needs none; of several, the first is the whole's."""

METRICS = ("latency", "peak_memory", "kv_bytes")

BAD = ("regressed", "failed")  # the answer is no
UNDECIDED = ("missing", "incomparable", "inconclusive")  # there is no answer
FAIL_ON = ("regressed", "failed", "missing", "incomparable")
MOST_SEEN = 10.0  # a share; of what sees no less than that, no figure says more
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Ratio:
    """New over base, and the interval that holds it; unknown is None, and so it is of counts."""

    mid: float | None
    low: float | None = None
    high: float | None = None


UNKNOWN = Ratio(None)


@dataclass(frozen=True)
class MetricVerdict:
    """What became of one figure of one workload.

    Args:
        metric: One of :data:`METRICS`, or ``ttft``, which has an absolute limit alone.
        verdict: One of :data:`VERDICTS`.
        base: Latency in seconds, memory and KV cache in bytes.
        threshold: The smallest rise that counts, as a share: 0.05 is 5 %, 0 is any at all.
        smallest_seen: The smallest rise that this measurement finds four times in five, as a
            share; None where nothing is drawn by chance, or the spread is unknown.
        p_value: Of "it did not rise"; None where nothing was tested.
        num_launches: Of the base and of the new side: each a fresh process.
        clock: ``cpu``, ``wall`` or ``device``; of a latency alone.
        limit: The absolute limit that holds for it, in its own unit.
        reason: Why the verdict is what it is, where the figures do not say so.
    """

    metric: str
    verdict: str
    base: float | None = None
    new: float | None = None
    ratio: Ratio = UNKNOWN
    threshold: float = 0.0
    smallest_seen: float | None = None
    p_value: float | None = None
    num_launches: tuple[int, int] = (0, 0)
    clock: str | None = None
    limit: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class WorkloadVerdict:
    """What became of one workload: the first of its metrics' verdicts in :data:`VERDICTS`.

    Args:
        axes: The workload's own keys, as the record names them.
        reason: Why it has no figures: the status of its record, or that a run lacks it.
        allowed: Why it is known and does not fail the whole; None where it counts.
    """

    workload_id: str
    axes: Mapping[str, Any]
    verdict: str
    metrics: tuple[MetricVerdict, ...] = ()
    reason: str | None = None
    allowed: str | None = None

    def metric(self, name: str) -> MetricVerdict | None:
        """The verdict of one metric, or None where it was not compared."""
        return next((metric for metric in self.metrics if metric.metric == name), None)


@dataclass(frozen=True)
class Difference:
    """One fact of the environment that the two sides do not share.

    Args:
        weight: ``hard`` (a comparison is refused), ``soft`` (it is shown) or ``subject`` (it is
            what the comparison is about, named by who asked).
    """

    key: str
    base: str | None
    new: str | None
    weight: str


@dataclass(frozen=True)
class Side:
    """One of the two, as it was named and found."""

    name: str
    path: str | None
    attnprof: str | None
    device: str | None
    num_records: int
    command: str | None = None
    started: str | None = None
    facts: Mapping[str, str | None] | None = None


@dataclass(frozen=True)
class Comparison:
    """Two sides, what became of each workload, and the whole.

    Args:
        geometric_mean: Of the latencies' ratios, over the workloads that have one.
        paired: Whether both sides were measured in turns, on one machine in one go.
        num_expected: Workloads that either side lists, finished or not.
        fail_on: Verdicts that make the whole fail, of workloads that are not allowed.
        interrupted: Whether the user stopped the measuring: it is never a success then.
    """

    base: Side
    new: Side
    workloads: tuple[WorkloadVerdict, ...]
    geometric_mean: Ratio = UNKNOWN
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    paired: bool = False
    num_expected: int = 0
    fail_on: tuple[str, ...] = FAIL_ON
    interrupted: bool = False

    @property
    def verdict(self) -> str:
        """The whole's: the first of :data:`VERDICTS` among the workloads that count."""
        return first_verdict(
            workload.verdict for workload in self.workloads if workload.allowed is None
        )

    @property
    def failing(self) -> tuple[WorkloadVerdict, ...]:
        """The workloads for which the whole fails."""
        return tuple(
            workload
            for workload in self.workloads
            if workload.allowed is None and workload.verdict in self.fail_on
        )

    @property
    def num_compared(self) -> int:
        """Workloads whose figures were held against each other, decided or not."""
        return sum(
            workload.verdict in ("regressed", "improved", "same", "inconclusive")
            for workload in self.workloads
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """How many workloads have each verdict, in the order of :data:`VERDICTS`."""
        found = Counter(workload.verdict for workload in self.workloads)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    @property
    def exit_code(self) -> int:
        """0 nothing got worse, 1 something did, 3 it could not be decided, 130 interrupted.

        A whole of which not one workload was decided is never 0.
        """
        if self.interrupted:
            return EXIT_INTERRUPTED
        failing = {workload.verdict for workload in self.failing}
        if failing & set(BAD):
            return 1
        decided = any(workload.verdict not in (*UNDECIDED, "new") for workload in self.workloads)
        return 3 if failing or not decided else 0

    def to_json(self) -> dict[str, Any]:
        """The document of ``--format json``."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "paired": self.paired,
            "interrupted": self.interrupted,
            "num_expected": self.num_expected,
            "num_compared": self.num_compared,
            "counts": dict(self.counts),
            "geometric_mean": asdict(self.geometric_mean),
            "fail_on": list(self.fail_on),
            "base": asdict(self.base),
            "new": asdict(self.new),
            "differences": [asdict(difference) for difference in self.differences],
            "notes": list(self.notes),
            "workloads": [
                {
                    "workload_id": workload.workload_id,
                    "verdict": workload.verdict,
                    "reason": workload.reason,
                    "allowed": workload.allowed,
                    "axes": dict(workload.axes),
                    "metrics": [asdict(metric) for metric in workload.metrics],
                }
                for workload in self.workloads
            ],
        }


def first_verdict(verdicts: Iterable[str]) -> str:
    """Which of several verdicts needs attention first; of none, there is nothing to decide.

    >>> first_verdict(["same", "improved", "regressed"])
    'regressed'
    >>> first_verdict([])
    'inconclusive'
    """
    return min(verdicts, key=VERDICTS.index, default="inconclusive")


def in_percent(share: float | None) -> str:
    """A ratio's distance from one, signed; unknown is a dash.

    >>> in_percent(0.0512), in_percent(-0.2), in_percent(None), in_percent(0.0)
    ('+5.1 %', '-20.0 %', '–', '0.0 %')
    """
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:+.1f} %" if round(1000 * share) else "0.0 %"


def seen_in_percent(share: float | None) -> str:
    """The smallest rise that is seen, for people.

    >>> seen_in_percent(0.0512), seen_in_percent(214.96), seen_in_percent(None)
    ('+5.1 %', '> +1000 %', '–')
    """
    if share is not None and share > MOST_SEEN:
        return f"> {100 * MOST_SEEN:+.0f} %"
    return in_percent(share)
