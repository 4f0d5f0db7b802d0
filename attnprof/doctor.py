"""Launches of identical code -> what this machine can tell apart, and what disturbs it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, stdev

from attnprof.workload import Workload

NUM_LAUNCHES = 6
GATE_LAUNCHES = 15  # a side, of the confirming stage of a gate
GATE_LEVEL = 0.001
NAIVE_RATIO = 1.05
STEADY_SD = 0.02  # of log medians between launches: with it a 5 % gate on 15 launches sees 3 %

CANNED = (
    Workload(backend="flash", q_len=512, kv_len=512),
    Workload(backend="eager", q_len=256, kv_len=256),
    Workload(
        backend="flash", phase="decode", q_len=1, kv_len=4096, num_kv_heads=2, num_layers=4,
        kv_cache="static",
    ),
    Workload(
        backend="eager", phase="decode", q_len=1, kv_len=4096, num_kv_heads=2, num_layers=4,
        kv_cache="static",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """How far one clock's medians lie apart between launches of identical code.

    Args:
        sd: Standard deviation of the log of the launches' medians.
    """

    workload_id: str
    clock: str  # wall, cpu
    medians_s: tuple[float, ...]
    sd: float

    @property
    def false_alarm_share(self) -> float:
        """How often one launch against one looks over 5 % slower though nothing changed.

        P(Δ > ln 1.05), Δ ~ N(0, 2·sd²)
        """
        if self.sd == 0:
            return 0.0
        return 1 - NormalDist(0, math.sqrt(2) * self.sd).cdf(math.log(NAIVE_RATIO))

    @property
    def detectable_ratio(self) -> float:
        """Smallest slowdown that a gate of 15 launches a side sees four times in five.

        exp((z₀.₉₉₉ + z₀.₈) · sd · √(2/15))
        """
        normal = NormalDist()
        factor = normal.inv_cdf(1 - GATE_LEVEL) + normal.inv_cdf(0.8)
        return math.exp(factor * self.sd * math.sqrt(2 / GATE_LAUNCHES))


Launch = Callable[[int], Mapping[str, tuple[float, float | None]]]


def self_test(launch: Launch, num_launches: int = NUM_LAUNCHES) -> list[Spread]:
    """Measure the same workloads in ``num_launches`` fresh processes.

    Args:
        launch: Runs the canned workloads in a new process and gives, by workload id, the median
            wall seconds and the median CPU seconds (None where there is no such clock).
    """
    results = [launch(index) for index in range(num_launches)]
    spreads = []
    for workload_id in results[0]:
        walls = [result[workload_id][0] for result in results]
        cpus = [cpu for result in results if (cpu := result[workload_id][1]) is not None]
        spreads.append(_spread(workload_id, "wall", walls))
        if len(cpus) == num_launches:
            spreads.append(_spread(workload_id, "cpu", cpus))
    return spreads


def _spread(workload_id: str, clock: str, medians_s: Sequence[float]) -> Spread:
    return Spread(workload_id, clock, tuple(medians_s), stdev(math.log(m) for m in medians_s))


def verdict(spreads: Sequence[Spread]) -> str:
    """In a sentence, which clock a comparison on this machine can rest on."""
    worst = {
        clock: max(spread.sd for spread in spreads if spread.clock == clock)
        for clock in {spread.clock for spread in spreads}
    }
    wall, cpu = worst["wall"], worst.get("cpu")
    if wall <= STEADY_SD:
        return "This machine is steady: comparisons can rest on wall time."
    if cpu is not None and cpu <= 2 * STEADY_SD:
        return (
            f"Wall time moves by {100 * wall:.1f} % between launches of the same code: compare CPU "
            f"time here ({100 * cpu:.1f} %)."
        )
    spread = f"{100 * wall:.1f} % (wall)" + ("" if cpu is None else f", {100 * cpu:.1f} % (CPU)")
    return (
        f"Launches of the same code differ by {spread}: only large changes can be told apart here. "
        "Stop what runs beside and try again."
    )
