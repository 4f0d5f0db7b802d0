"""Two Pythons and a few workloads -> a comparison: screened cheaply, confirmed strictly, in turns.

Every workload has five pairs of launches. What they flag has up to thirty fresh ones, on which
alone the strict test is made. What they leave open is screened further, the most useful first,
until it is decided or the budget is spent.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from attnprof.errors import AttnprofError, CannotMeasureError
from attnprof.files import replace_file
from attnprof.pairs import PairRequest, Pairs, Side, open_pairs
from attnprof.progress import QUIET_S, time_words
from attnprof.recording import identity
from attnprof.records import strict_json
from attnprof.stopping import stop_wishes
from attnprof.units import counted
from attnprof.verdicts.comparison import Comparison
from attnprof.verdicts.fingerprint import differences, refuse_hard
from attnprof.verdicts.judging import ONE_LAUNCH, Asked, Timed, compare_sides, timed_together
from attnprof.verdicts.procedure import (
    Contrast,
    Decision,
    confirming_level,
    contrast,
    decide_in_two_looks,
    is_flagged,
    undecided,
)
from attnprof.verdicts.sides import Observed, SideRun, side_of
from attnprof.workers import StopRequestedError
from attnprof.workload import Workload

COMPARISON_FILE = "comparison.json"
BUDGET_S = 420.0
MAX_SCREENS = 3  # of a workload that the first one leaves open
SUBJECTS = ("torch",)  # what may differ, since two Pythons have been named
# Fresh launches a side at which the strict test is made, and its share of the level: what is far
# slower needs no more than five, what waits for memory differs from launch to launch. To tell
# what is faster fifteen are enough.
CONFIRMING = ((5, 0.2), (15, 0.4), (30, 0.4))
MOST_FOR_FASTER = 15


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What to measure on both sides, and what to say of it.

    Args:
        budget_s: Nothing is begun after this long.
    """

    pair: PairRequest
    asked: Asked = field(default_factory=Asked)
    budget_s: float = BUDGET_S


@dataclass(frozen=True)
class Gated:
    """What a gate found; no comparison where it was stopped before there was anything to compare.

    Args:
        num_pairs: Of launches, of all workloads together.
    """

    comparison: Comparison | None
    interrupted: bool
    output: Path
    num_pairs: int


def measure_pair(request: GateRequest, tell: Callable[[str], None] = lambda text: None) -> Gated:
    """Measure both sides in turns until every workload is decided or the budget is spent.

    Keeps two run directories, ``base`` and ``new``, and ``comparison.json`` beside them.

    Args:
        tell: Told how it goes on.

    Raises:
        UsageError: The folder holds a comparison already, or the base has nothing that is ok.
        CannotMeasureError: The device is not there, the sides find other conditions, or the budget
            was spent before anything was measured.
    """
    asked = replace(
        request.asked,
        paired=True,
        allow_different=tuple(dict.fromkeys((*request.asked.allow_different, *SUBJECTS))),
    )
    try:
        return _measured(replace(request, asked=asked), tell)
    except StopRequestedError:  # while the sides were opened
        return Gated(None, True, request.pair.output, 0)


def _measured(request: GateRequest, tell: Callable[[str], None]) -> Gated:
    interrupted = False
    stop_at = time.monotonic() + request.budget_s
    with stop_wishes() as stop, open_pairs(request.pair, stop.is_set) as pairs:
        pairs.stop_at = stop_at
        gate = _Gate(pairs, request, tell)
        gate.refuse_other_conditions()
        try:
            gate.measure()
        except StopRequestedError:
            interrupted = True
        if not pairs.num_visits and not interrupted:
            raise CannotMeasureError(
                "the budget was spent before anything was measured", "give it more: --budget 7m"
            )
        try:
            comparison = replace(gate.comparison(), interrupted=interrupted)
        except AttnprofError:
            if not interrupted:
                raise
            comparison = None
        pairs.notes.extend(comparison.notes if comparison else ())
    if comparison is not None:
        _keep(comparison, request.pair.output / COMPARISON_FILE)
    return Gated(comparison, interrupted, request.pair.output, gate.num_pairs)


def _keep(comparison: Comparison, path: Path) -> None:
    try:
        content = json.loads(strict_json(comparison.to_json()))
        replace_file(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise CannotMeasureError(f"cannot write {path}: {error.strerror}", "make room") from None


@dataclass
class _Open:
    """How far one workload is."""

    workload: Workload
    num_screens: int = 1
    is_flagged: bool = False
    num_confirmed: int = 0  # fresh pairs at the last strict test
    level_share: float = CONFIRMING[-1][1]


class _Gate:
    """A gate under way."""

    def __init__(self, pairs: Pairs, request: GateRequest, tell: Callable[[str], None]) -> None:
        self.pairs = pairs
        self.request = request
        self.tell = tell
        self.workloads = request.pair.workloads
        self.open = {workload.workload_id: _Open(workload) for workload in self.workloads}
        self.level = confirming_level(len(self.workloads), MAX_SCREENS)
        self.num_pairs = 0
        self.notes: list[str] = []
        self.read: dict[str, tuple[int, tuple[SideRun, SideRun]]] = {}
        self.said_at = time.monotonic()

    def refuse_other_conditions(self) -> None:
        """Before anything is measured: conditions that make every comparison void."""
        base, new = (self._side_run(side, []) for side in self.pairs.sides)
        found = differences(base.facts, new.facts, self.request.asked.allow_different)
        refuse_hard(found, base.side.name, new.side.name)

    def measure(self) -> None:
        """All looks."""
        if not self._take(self.workloads, self.request.pair.num_screening, "screening"):
            self._note("the budget was spent before every workload was screened")
            return
        while True:
            self._confirm()
            useful = self._useful()
            if not useful:
                break
            self._say(f"{counted(len(useful), 'workload')} left open, measured further")
            for one in useful:
                one.num_screens += 1
            workloads = [one.workload for one in useful]
            if not self._take(workloads, self.request.pair.num_screening, "further"):
                break
        left = [key for key, one in self._decided() if one.verdict == "inconclusive"]
        if left and time.monotonic() + self._least_s(left) >= self.pairs.stop_at:
            self._note(f"the budget was spent with {counted(len(left), 'workload')} undecided")

    def _take(self, workloads: Sequence[Workload], num_pairs: int, why: str) -> bool:
        """So many pairs of each of ``workloads``; False when time was over before."""
        confirming = why == "confirming"
        for number in range(num_pairs):
            words = f"{why}: pair {number + 1} of {num_pairs}"
            left_s = (num_pairs - number) * self._pair_s(workloads)
            left = f", {time_words(left_s)} left of it" if left_s else ""
            self._say(f"{words}, {counted(len(workloads), 'workload')}{left}")
            heard = partial(self._sign_of_life, words)
            if not self.pairs.measure(workloads, confirming=confirming, progress=heard):
                return False
            self.num_pairs += len(workloads)
        return True

    def _sign_of_life(self, words: str, done: int, total: int) -> None:
        if time.monotonic() - self.said_at >= QUIET_S:
            self._say(f"{words}: {done} of {total}")

    def _say(self, text: str) -> None:
        self.said_at = time.monotonic()
        self.tell(text)

    def _pair_s(self, workloads: Sequence[Workload]) -> float:
        return math.fsum(self.pairs.took_s.get(one.workload_id, 0.0) for one in workloads)

    def _least_s(self, keys: Sequence[str]) -> float:
        """What one more screening of the shortest of ``keys`` takes."""
        pair_s = min(self.pairs.took_s.get(key, 0.0) for key in keys)
        return self.request.pair.num_screening * pair_s

    def _confirm(self) -> None:
        """Flag what the screening says is another, and test that on fresh launches: what is
        slower before what is faster."""
        flagged: dict[bool, list[_Open]] = {True: [], False: []}
        for key, found in self._contrasts("screening").items():
            one = self.open[key]
            if not one.is_flagged and is_flagged(found, self._threshold(key)):
                one.is_flagged = True
                flagged[found.rise > 0].append(one)
        self._confirm_these(flagged[True], CONFIRMING[-1][0])
        self._confirm_these(flagged[False], MOST_FOR_FASTER)

    def _confirm_these(self, flagged: Sequence[_Open], most: int) -> None:
        taken = 0
        pending = list(flagged)
        for num_fresh, share in CONFIRMING:
            if not pending or num_fresh > most:
                return
            whole = self._take([o.workload for o in pending], num_fresh - taken, "confirming")
            taken = num_fresh
            for one in pending:
                one.level_share = share
                one.num_confirmed = num_fresh
            decided = dict(self._decided())
            pending = [
                one
                for one in pending
                if (known := decided.get(one.workload.workload_id)) is not None
                and known.verdict == "inconclusive"
            ]
            if not whole:
                return

    def _useful(self) -> list[_Open]:
        """What is left open and may be decided within the budget, the soonest first."""
        contrasts = self._contrasts("screening")
        waiting: list[tuple[float, float, _Open]] = []
        for key, decision in self._decided():
            one = self.open[key]
            if (
                decision.verdict != "inconclusive"
                or one.is_flagged
                or one.num_screens >= MAX_SCREENS
                or key not in contrasts
                or self.pairs.has_ended(one.workload)
            ):
                continue
            screening_s = self.request.pair.num_screening * self.pairs.took_s[key]
            needed = _pairs_needed(contrasts[key], self._threshold(key))
            waiting.append((needed * self.pairs.took_s[key], screening_s, one))
        left_s = self.pairs.stop_at - time.monotonic()
        chosen = []
        for _, screening_s, one in sorted(waiting, key=lambda entry: entry[0]):
            left_s -= screening_s
            if left_s < 0:
                break
            chosen.append(one)
        return chosen

    def _threshold(self, key: str) -> float:
        kind = self.pairs.base.conditions.device_kind
        axes = Observed(identity(self.open[key].workload, kind)).axes
        return self.request.asked.thresholds.of("latency", key, axes).share

    def _side_runs(self, look: str) -> tuple[SideRun, SideRun]:
        """Both sides as they are now; made once for as long as there is no new visit."""
        now, runs = self.read.get(look, (-1, None))
        if runs is None or now != self.pairs.num_visits:
            base, new = (self._side_run(side, side.records(look)) for side in self.pairs.sides)
            now, runs = self.pairs.num_visits, (base, new)
            self.read[look] = now, runs
        return runs

    def _side_run(self, side: Side, records: Sequence[Mapping[str, Any]]) -> SideRun:
        complete = len(records) == len(self.workloads)
        return side_of(
            self.request.pair.output / side.name,
            {**side.header, "finished": side.header["started"] if complete else None},
            records,
            side.rulers,
            side.interpreter.typed,
        )

    def _timed(self, look: str) -> Iterator[tuple[str, Timed]]:
        """The launches of all workloads that are ok on both sides."""
        base, new = self._side_runs(look)
        for key, one in base.observed.items():
            if one.is_ok and key in new.observed and new.observed[key].is_ok:
                yield key, timed_together(base, new, key)

    def _contrasts(self, look: str) -> dict[str, Contrast]:
        """Of those whose clock can be trusted."""
        found = {}
        for key, timed in self._timed(look):
            if timed.clock is not None and timed.reason is None:
                one = contrast(timed.base, timed.new)
                if one is not None:
                    found[key] = one
        return found

    def _decided(self) -> Iterator[tuple[str, Decision]]:
        """What is to be said of every workload that is ok on both sides, by all looks so far."""
        first, fresh = self._contrasts("screening"), self._contrasts("confirming")
        most = max(num_fresh for num_fresh, _ in CONFIRMING)
        for key, timed in self._timed("screening"):
            one = self.open[key]
            if timed.clock is None:
                yield key, Decision("incomparable", reason=timed.reason)
            elif key not in first:
                yield key, undecided(timed.base, timed.new, timed.reason or ONE_LAUNCH)
            else:
                decision = decide_in_two_looks(
                    first[key],
                    fresh.get(key) if one.num_confirmed else None,
                    self._threshold(key),
                    level=self.level * one.level_share,
                    num_fresh=most,
                )
                yield key, decision

    def comparison(self) -> Comparison:
        """What is known by now."""
        base, new = self._side_runs("every")
        return compare_sides(base, new, self.request.asked, dict(self._decided()), self.notes)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(f"note: {text}")


def _pairs_needed(found: Contrast, threshold: float) -> float:
    """About how many more pairs bring the interval within the threshold."""
    limit = math.log1p(threshold)
    wanted = max(limit - abs(found.rise), limit / 4)
    have = min(found.num_launches)
    return max(0.0, have * ((found.half_width / wanted) ** 2 - 1))
