"""Families of workloads whose launches are drawn, not measured: their luck, and drift."""

import random
from dataclasses import dataclass

from attnprof.gate import CONFIRMING, MAX_SCREENS
from attnprof.verdicts.judging import DRIFT_MARGIN
from attnprof.verdicts.procedure import (
    Contrast,
    Decision,
    confirming_level,
    contrast,
    decide,
    decide_family,
    decide_in_two_looks,
    is_flagged,
)
from attnprof.verdicts.thresholds import DEFAULTS

NUM_FIRST = 5
Launches = tuple[tuple[float, ...], tuple[float, ...]]

THRESHOLD = DEFAULTS["latency"].share


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How launches differ, each as a standard deviation of the log.

    Args:
        launch: Of what all workloads of a launch share.
        workload: Of what each has for itself in a launch.
        drift: Of the step that the machine takes from launch to launch, and keeps.
    """

    launch: float = 0.03
    workload: float = 0.015
    drift: float = 0.005


class Measuring:
    """One machine, as it is measured: launch after launch, in turns or one side after the other."""

    def __init__(self, machine: Machine, num_workloads: int, seed: int) -> None:
        self._machine = machine
        self._num = num_workloads
        self._random = random.Random(seed)
        self._level = 0.0

    def _launch(self, num: int, rise: float) -> list[float]:
        gauss = self._random.gauss
        self._level += gauss(0, self._machine.drift)
        common = self._level + gauss(0, self._machine.launch) + rise
        return [common + gauss(0, self._machine.workload) for _ in range(num)]

    def in_turns(self, num_launches: int, num: int, rise: float = 0.0) -> list[Launches]:
        """Pairs of launches in an order that is drawn."""
        sides: tuple[list[list[float]], list[list[float]]] = ([], [])
        for _ in range(num_launches):
            for side in self._random.sample((0, 1), 2):
                sides[side].append(self._launch(num, rise * side))
        return _by_workload(sides)

    def one_after_the_other(self, num_launches: int) -> list[Launches]:
        base = [self._launch(self._num, 0.0) for _ in range(num_launches)]
        new = [self._launch(self._num, 0.0) for _ in range(num_launches)]
        return _by_workload((base, new))

    def gated(self, rise: float = 0.0) -> list[Decision]:
        """What the gate makes of it, if its budget is never spent: what a look leaves open is
        screened again, and what one flags is decided on fresh launches."""
        level = confirming_level(self._num, MAX_SCREENS)
        screened: list[Launches] = [((), ())] * self._num
        fresh: dict[int, tuple[Contrast, float]] = {}
        decided: dict[int, Decision] = {}
        left = list(range(self._num))
        for _ in range(MAX_SCREENS):
            for place, more in zip(left, self.in_turns(NUM_FIRST, len(left), rise), strict=True):
                screened[place] = _joined(screened[place], more)
            flagged = [at for at in left if is_flagged(_contrast(screened[at]), THRESHOLD)]
            fresh |= self._confirmed(flagged, level, rise)
            for at in left:
                confirmed, share = fresh.get(at, (None, 1.0))
                decided[at] = decide_in_two_looks(
                    _contrast(screened[at]), confirmed, THRESHOLD,
                    level=level * share, num_fresh=CONFIRMING[-1][0],
                )  # fmt: skip
            left = [at for at in left if decided[at].verdict == "inconclusive" and at not in fresh]
            if not left:
                break
        return [decided[at] for at in range(self._num)]

    def _confirmed(
        self, flagged: list[int], level: float, rise: float
    ) -> dict[int, tuple[Contrast, float]]:
        """Fresh launches of each, as many as its test needs, and that test's share of the level."""
        launches: dict[int, Launches] = dict.fromkeys(flagged, ((), ()))
        found: dict[int, tuple[Contrast, float]] = {}
        taken, pending = 0, flagged
        for num_fresh, share in CONFIRMING:
            new = self.in_turns(num_fresh - taken, len(pending), rise)
            for at, more in zip(pending, new, strict=True):
                launches[at] = _joined(launches[at], more)
                found[at] = _contrast(launches[at]), share
            taken = num_fresh
            pending = [
                at
                for at in pending
                if decide(found[at][0], THRESHOLD, level=level * share).verdict
                not in ("regressed", "improved")
            ]
        return found

    def compared(
        self, num_launches: int, rise: float = 0.0, margin: float = DRIFT_MARGIN
    ) -> list[Decision]:
        """What a comparison of two finished runs makes of it."""
        contrasts = {
            str(place): _contrast(launches)
            for place, launches in enumerate(self.one_after_the_other(num_launches))
        }
        shares = dict.fromkeys(contrasts, THRESHOLD)
        return list(decide_family(contrasts, shares, margin=margin).values())


def _by_workload(sides: tuple[list[list[float]], list[list[float]]]) -> list[Launches]:
    base, new = (list(zip(*side, strict=True)) for side in sides)
    return list(zip(base, new, strict=True))


def _joined(one: Launches, more: Launches) -> Launches:
    return one[0] + more[0], one[1] + more[1]


def _contrast(launches: Launches) -> Contrast:
    found = contrast(*launches)
    assert found is not None
    return found
