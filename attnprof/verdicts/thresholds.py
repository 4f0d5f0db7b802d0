"""A YAML file -> which rise counts of which workload, what is known, and what is too much.

format: 1
thresholds:              # of all workloads; these are the defaults
  latency: 5%
  peak_memory: 1%        # or '1% or 64KiB': a rise has to pass both
  kv_bytes: exact
rules:                   # the last that matches wins
  - match: decode-*-int8-*
    where: {backend: flash}
    latency: 12%
    reason: its kernel is chosen by the first call
    until: 2027-06-30
allow:                   # known ones: shown, and not failing
  - match: prefill-*-math-*
    metric: peak_memory
    reason: the scores are kept for the check
limits:                  # absolute, of the new side alone
  - match: "*"
    peak_memory: 2GiB
    ttft: 200ms
"""

import datetime
import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest
from attnprof.profiles import check_keys, read_yaml
from attnprof.series import IDENTITY, LENGTHS
from attnprof.units import parse_bytes, parse_seconds
from attnprof.verdicts.comparison import METRICS

FORMAT = 1
LIMITED = ("latency", "ttft", "peak_memory", "total_memory", "kv_bytes")
LEAST_LATENCY, MOST = 0.005, 10.0
_PERCENT = re.compile(r"([0-9]*\.?[0-9]+)\s*%")
_SELECTING = {"match", "where", "reason", "until"}


@dataclass(frozen=True)
class Threshold:
    """The smallest rise that counts: as a share, and of a size also in bytes: both are passed."""

    share: float
    slack_bytes: int = 0


# Of latency less than the 5 % that matter: an estimate of what is exactly 5 % slower is below 5 %
# every other time.
DEFAULTS: Mapping[str, Threshold] = {
    "latency": Threshold(0.04),
    "peak_memory": Threshold(0.01),
    "kv_bytes": Threshold(0.0),
}


@dataclass(frozen=True)
class Selector:
    """Workloads by a pattern of their id and by values of their axes.

    >>> Selector("decode-*", {"backend": "flash"}).takes("decode-full", {"backend": "math"})
    False
    """

    match: str = "*"
    where: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, workload_id: str, axes: Mapping[str, Any]) -> bool:
        return fnmatch.fnmatchcase(workload_id, self.match) and all(
            _same(axes.get(key), value) for key, value in self.where.items()
        )


def _same(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted


@dataclass(frozen=True)
class Rule:
    """Thresholds of some workloads."""

    selector: Selector
    thresholds: Mapping[str, Threshold]
    reason: str


@dataclass(frozen=True)
class Allowance:
    """Workloads that are known to misbehave; ``metric`` None is all of theirs."""

    selector: Selector
    metric: str | None
    reason: str


@dataclass(frozen=True)
class Limit:
    """What the new side may not exceed: seconds, or bytes."""

    selector: Selector
    most: Mapping[str, float]
    reason: str | None


@dataclass(frozen=True)
class Thresholds:
    """All that holds of a comparison."""

    defaults: Mapping[str, Threshold] = field(default_factory=lambda: dict(DEFAULTS))
    rules: tuple[Rule, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    limits: tuple[Limit, ...] = ()
    origin: str = "thresholds"

    def of(self, metric: str, workload_id: str, axes: Mapping[str, Any]) -> Threshold:
        """The threshold of a metric: of the last rule that says one, else the default."""
        for rule in reversed(self.rules):
            if metric in rule.thresholds and rule.selector.takes(workload_id, axes):
                return rule.thresholds[metric]
        return self.defaults[metric]

    def allowed(
        self, metrics: Iterable[str], workload_id: str, axes: Mapping[str, Any]
    ) -> str | None:
        """Why none of ``metrics`` (of none: the workload as such) counts, or None where it does."""
        mine = [one for one in self.allowances if one.selector.takes(workload_id, axes)]
        everything = [one.reason for one in mine if one.metric is None]
        if everything:
            return everything[-1]
        reasons = {one.metric: one.reason for one in mine}
        wanted = list(metrics)
        if not wanted or not all(metric in reasons for metric in wanted):
            return None
        return "; ".join(dict.fromkeys(reasons[metric] for metric in wanted))

    def most(self, workload_id: str, axes: Mapping[str, Any]) -> dict[str, float]:
        """The absolute limits of a workload: of each metric the last that is said."""
        found: dict[str, float] = {}
        for limit in self.limits:
            if limit.selector.takes(workload_id, axes):
                found.update(limit.most)
        return found

    def unused(self, workloads: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Notes on rules and allowances that match none of ``workloads``, by id and axes.

        Raises:
            UsageError: A limit does: it would be kept unseen.
        """
        notes = []
        kinds: list[tuple[str, Sequence[Rule | Allowance | Limit]]] = [
            ("rule", self.rules), ("allowance", self.allowances), ("limit", self.limits),
        ]  # fmt: skip
        for kind, given in kinds:
            for number, one in enumerate(given, start=1):
                if any(one.selector.takes(key, axes) for key, axes in workloads.items()):
                    continue
                words = f"{self.origin}: {kind} {number} ({one.selector.match}) matches no workload"
                if kind == "limit":
                    raise UsageError(words, "correct its match or where, or remove it")
                notes.append(words)
        return notes


def parse_share(text: str) -> float | None:
    """A percentage as a share; None of any other text.

    >>> parse_share("5 %"), parse_share("0.05")
    (0.05, None)
    """
    found = _PERCENT.fullmatch(text.strip())
    return None if found is None else float(found[1]) / 100


def read_thresholds(path: Path, today: datetime.date | None = None) -> Thresholds:
    """A file of thresholds, every key and value of it checked.

    Args:
        today: The day on which rules with ``until`` are looked at; None for now.

    Raises:
        UsageError: It cannot be read, makes no sense, or holds a rule that has expired.
    """
    content = read_yaml(path)
    check_keys(content, path, {"format"}, {"thresholds", "rules", "allow", "limits"})
    if content["format"] != FORMAT or isinstance(content["format"], bool):
        raise UsageError(
            f"{path} has format {content['format']!r}, this version reads {FORMAT}",
            f"write 'format: {FORMAT}'",
        )
    if len(content) == 1:
        raise UsageError(f"{path} says nothing", "add thresholds, rules, allow or limits")
    reader = _Reader(str(path), today or datetime.date.today())
    given = content.get("thresholds", {})
    if not isinstance(given, dict):
        raise UsageError(f"{path}: thresholds is {given!r}", "write 'latency: 5%' lines below it")
    check_keys(given, f"{path}: thresholds", set(), set(METRICS))
    own = {key: reader.threshold(key, value, "thresholds") for key, value in given.items()}
    return Thresholds(
        {**DEFAULTS, **own},
        tuple(reader.rule(entry, where) for entry, where in reader.entries(content, "rules")),
        tuple(reader.allowance(entry, where) for entry, where in reader.entries(content, "allow")),
        tuple(reader.limit(entry, where) for entry, where in reader.entries(content, "limits")),
        str(path),
    )


@dataclass(frozen=True)
class _Reader:
    origin: str
    today: datetime.date

    def entries(self, content: Mapping[str, Any], key: str) -> list[tuple[dict[str, Any], str]]:
        given = content.get(key, [])
        if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
            raise UsageError(f"{self.origin}: {key} is no list of mappings", "write '- match: …'")
        return [
            (entry, f"{self.origin}: {key} {number}") for number, entry in enumerate(given, start=1)
        ]

    def rule(self, entry: dict[str, Any], where: str) -> Rule:
        check_keys(entry, where, {"reason"}, _SELECTING | set(METRICS))
        values = {key: self.threshold(key, entry[key], where) for key in METRICS if key in entry}
        if not values:
            raise UsageError(f"{where} has no threshold", "add 'latency: 12%' to it")
        return Rule(self._selector(entry, where), values, self._reason(entry, where))

    def allowance(self, entry: dict[str, Any], where: str) -> Allowance:
        check_keys(entry, where, {"reason"}, _SELECTING | {"metric"})
        metric = entry.get("metric")
        if metric is not None and metric not in (*METRICS, *LIMITED):
            raise UsageError(f"{where}: metric is {metric!r}", nearest(str(metric), METRICS))
        return Allowance(self._selector(entry, where), metric, self._reason(entry, where))

    def limit(self, entry: dict[str, Any], where: str) -> Limit:
        check_keys(entry, where, set(), _SELECTING | set(LIMITED))
        most = {key: self._amount(key, entry[key], where) for key in LIMITED if key in entry}
        if not most:
            raise UsageError(f"{where} has no limit", "add 'peak_memory: 2GiB' to it")
        reason = self._reason(entry, where) if "reason" in entry else None
        return Limit(self._selector(entry, where), most, reason)

    def threshold(self, metric: str, value: Any, where: str) -> Threshold:
        """``5%``, ``exact``, and of sizes ``1% or 64KiB``: both have to be passed."""
        fix = "write 5%" if metric == "latency" else "write exact, 1% or '1% or 64KiB'"
        wrong = UsageError(f"{where}: {metric} is {value!r}", fix)
        if not isinstance(value, str):
            raise wrong
        if value.strip() == "exact" and metric != "latency":
            return Threshold(0.0)
        share_text, said, slack_text = value.partition(" or ")
        share = parse_share(share_text)
        if share is None or (said and metric == "latency"):
            raise wrong
        least = LEAST_LATENCY if metric == "latency" else 0.0
        if not least <= share <= MOST:
            bounds = f"{100 * least:g} % to {100 * MOST:,.0f} %"
            raise UsageError(f"{where}: {metric} is {value!r}", f"write a share from {bounds}")
        return Threshold(share, self._bytes(metric, slack_text, where) if said else 0)

    def _amount(self, metric: str, value: Any, where: str) -> float:
        in_time = metric in ("latency", "ttft")
        fix = "write 200ms or 2s" if in_time else "write 2GiB or 512MiB"
        if not isinstance(value, str):
            raise UsageError(f"{where}: {metric} is {value!r}, without a unit", fix)
        if re.fullmatch(r"[0-9.eE+-]+", value.strip()):
            raise UsageError(f"{where}: {metric} is {value!r}, without a unit", fix)
        if not in_time:
            return self._bytes(metric, value, where)
        try:
            amount = parse_seconds(value)
        except UsageError as error:
            raise UsageError(f"{where}: {metric}: {error.problem}", error.fix) from None
        if not 0 < amount < math.inf:
            raise UsageError(f"{where}: {metric} is {value!r}", fix)
        return amount

    def _bytes(self, metric: str, value: str, where: str) -> int:
        try:
            amount = parse_bytes(value)
        except UsageError as error:
            raise UsageError(f"{where}: {metric}: {error.problem}", error.fix) from None
        if amount <= 0:
            raise UsageError(f"{where}: {metric} is {value!r}", "write 2GiB or 512MiB")
        return amount

    def _selector(self, entry: Mapping[str, Any], where: str) -> Selector:
        match, axes = entry.get("match", "*"), entry.get("where", {})
        if "match" not in entry and not axes:
            raise UsageError(f"{where} says of no workload", "add \"match: 'decode-*'\" or where")
        if not isinstance(match, str) or not match.strip():
            raise UsageError(f"{where}: match is {match!r}", "write a pattern such as 'decode-*'")
        if not isinstance(axes, dict):
            raise UsageError(f"{where}: where is {axes!r}", "write {backend: flash}")
        for key in axes:
            if key not in (*IDENTITY, *LENGTHS):
                raise UsageError(
                    f"{where}: workloads have no {key!r}", nearest(str(key), IDENTITY + LENGTHS)
                )
        return Selector(match.strip(), axes)

    def _reason(self, entry: Mapping[str, Any], where: str) -> str:
        reason, until = entry["reason"], entry.get("until")
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(f"{where}: reason is {reason!r}", "say why, in a sentence")
        self._check_until(until, where)
        return reason.strip()

    def _check_until(self, until: Any, where: str) -> None:
        if until is None:
            return
        if not isinstance(until, datetime.date) or isinstance(until, datetime.datetime):
            raise UsageError(f"{where}: until is {until!r}", "write a day such as 2027-06-30")
        if until < self.today:
            raise UsageError(
                f"{where} has expired: it held until {until}",
                "remove it, or look again and give it another day",
            )
