"""Visits of a workload -> its samples together, the clock that they are read on, when to stop."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from attnprof.kinds import misfit
from attnprof.measured import Check, Energy, GrowthPoint, Memory, Part, Samples, WarmUp
from attnprof.medians import FEWEST_FOR_INTERVAL, NO_INTERVAL, Interval, median_interval
from attnprof.workload import GROWING, Workload

HEAVY_BUDGETS = 10  # what a workload may take beyond its budget to get those six samples
CLEAN_DELAY = 0.05  # of a sample's wall time, spent waiting for a core
CLEAN_SHARE = 0.3
CLEAN_SAMPLES = 5
CALM_SHARE = 0.9  # with fewer clean samples than this, CPU time may carry the figure
FEWEST_FOR_SECOND_LOOK = 10  # also where the first look comes at six
MAX_GROWTHS = 30
ACCELERATORS = ("cuda", "rocm", "mps", "xpu")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a workload is measured.

    Until the half-width of the median's 95 % interval is ``target`` of the median, but at least
    ``min_samples`` in ``min_rounds``; ``max_samples`` or ``budget_s`` of timed calls end it too.
    """

    target: float = 0.02
    min_samples: int = 10
    max_samples: int = 300
    min_rounds: int = 3
    budget_s: float = 2.0
    warmup_s: float = 2.0


def plan_for(device_kind: str) -> Plan:
    """The defaults: accelerators are steadier, and their calls are shorter.

    >>> plan_for("cuda").target, plan_for("cpu").target
    (0.01, 0.02)
    """
    if device_kind in ACCELERATORS:
        return Plan(target=0.01, min_samples=30, max_samples=1000, warmup_s=3.0)
    return Plan()


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What one worker gave for one workload in one round.

    Args:
        launch: Number of the worker process in this run: samples of one launch are alike.
        phases_s: Seconds that each phase took, as the worker saw it.
        turnaround_s: What the visit cost the sweep, its share of starting the worker included.
    """

    workload_id: str
    round: int
    launch: int
    launch_kind: str
    status: str = "ok"
    reason: str | None = None
    phase: str | None = None
    requested_bytes: int | None = None
    samples: Samples | None = None
    warm_up: WarmUp | None = None
    check: Check | None = None
    memory: Memory | None = None
    energy: Energy | None = None
    growths: tuple[tuple[GrowthPoint, ...], ...] = ()
    parts: tuple[Part, ...] = ()
    kernels: tuple[str, ...] = ()
    prepare_s: float | None = None
    phases_s: dict[str, float] = field(default_factory=dict)
    turnaround_s: float | None = None
    started: str | None = None
    ended: str | None = None

    @property
    def timed_s(self) -> float:
        """Wall time inside warm-up and timed calls."""
        total = sum(self.warm_up.wall_s) if self.warm_up else 0.0
        if self.growths:
            return self.phases_s.get("measure", 0.0)
        if self.samples:
            total += self.samples.inner * sum(self.samples.wall_s)
        return total

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Visit":
        """The visit that :meth:`to_json` wrote, through JSON or not."""
        made = dict(data)
        for name, kind in _PARTS.items():
            if made.get(name) is not None:
                made[name] = kind(**_tuples(made[name]))
        made["growths"] = tuple(
            tuple(GrowthPoint(**point) for point in growth) for growth in made.get("growths", ())
        )
        made["parts"] = tuple(Part(**part) for part in made.get("parts", ()))
        made["kernels"] = tuple(made.get("kernels", ()))
        return cls(**made)


_METERS = ("cpu_s", "host_s", "run_delay_s", "minor_faults", "cycles")


def visit_misfit(visit: Mapping[str, Any]) -> str | None:
    """Where what was kept of a visit is of another kind, or its meters say not as much as its
    clock, or None."""
    found = misfit(visit, Visit)
    samples = visit.get("samples")
    if found is not None or samples is None:
        return found
    num_samples = len(samples["wall_s"])
    for name in _METERS:
        count = len(samples.get(name) or ())
        if count not in (0, num_samples):
            return f"samples.{name} has {count}, samples.wall_s has {num_samples}"
    return None


_PARTS: dict[str, Any] = {
    "samples": Samples, "warm_up": WarmUp, "check": Check, "memory": Memory, "energy": Energy,
}  # fmt: skip


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def step_samples(
    growths: Sequence[Sequence[GrowthPoint]], prompt_len: int | None = None
) -> Samples:
    """A sample for each growth: the median time of its steps.

    Args:
        prompt_len: Of a generate, whose prompt is no step; left in where it is all there is.
    """
    walls, cpus = [], []
    for growth in growths:
        points = [point for point in growth if point.kv_len != prompt_len] or growth
        walls.append(statistics.median(point.wall_s for point in points))
        known = [point.cpu_s for point in points if point.cpu_s is not None]
        if len(known) == len(points):
            cpus.append(statistics.median(known))
    return Samples(
        wall_s=tuple(walls), cpu_s=tuple(cpus) if len(cpus) == len(walls) else (), mode="growth"
    )


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """The samples of all visits together, each with its launch."""

    wall_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()
    clean: tuple[bool, ...] | None = None  # None: nobody counted who waited for a core
    run_delay_s: tuple[float, ...] = ()
    minor_faults: tuple[float, ...] = ()
    cycles: tuple[float, ...] = ()
    launch: tuple[int, ...] = ()

    @property
    def clean_share(self) -> float | None:
        if self.clean is None or not self.clean:
            return None
        return sum(self.clean) / len(self.clean)


def pool(visits: Iterable[Visit], threads: int | None) -> Pooled:
    """All samples of ``visits``. A meter that one visit lacks is unknown for all.

    A sample is clean when its threads waited for a core, each on average, under 5 % of its wall
    time. The kernel counts the waits of all threads together, so they are shared out: their sum
    would call a quiet machine of many cores contended.
    """
    with_samples = [visit for visit in visits if visit.samples and visit.samples.wall_s]
    walls = [value for visit in with_samples for value in _samples(visit).wall_s]

    def all_of(name: str) -> tuple[float, ...]:
        values = [value for visit in with_samples for value in getattr(visit.samples, name)]
        return tuple(values) if len(values) == len(walls) else ()

    delays = all_of("run_delay_s")
    return Pooled(
        wall_s=tuple(walls),
        cpu_s=all_of("cpu_s"),
        clean=tuple(
            delay / (threads or 1) < CLEAN_DELAY * wall
            for delay, wall in zip(delays, walls, strict=True)
        )
        if delays
        else None,
        run_delay_s=delays,
        minor_faults=all_of("minor_faults"),
        cycles=all_of("cycles"),
        launch=tuple(visit.launch for visit in with_samples for _ in _samples(visit).wall_s),
    )


def _samples(visit: Visit) -> Samples:
    assert visit.samples is not None
    return visit.samples


@dataclass(frozen=True)
class Figure:
    """The interval that stands for a workload, the clock that it is on, and what to mistrust."""

    interval: Interval
    clock: str  # wall, cpu
    contended: bool = False


def figure(pooled: Pooled, target: float) -> Figure:
    """Which clock carries the figure.

    Wall time, by its clean samples alone, as long as there are five (of fewer samples, all) and
    they are 30 % of all: what makes a sample unclean is the kernel's count of waiting, never the
    sample's own value.
    Otherwise other work has moved the wall clock, and CPU time stands, ``contended``. So it does
    where wall time misses the target that CPU time meets (a hypervisor's neighbours are in no
    count of waiting), or where some samples waited and CPU time is at least twice as certain.
    """
    if not pooled.wall_s:
        return Figure(NO_INTERVAL, "wall")
    wall_s: Sequence[float] = pooled.wall_s
    calm = pooled.clean is None
    if pooled.clean is not None:
        clean_s = [value for value, clean in zip(wall_s, pooled.clean, strict=True) if clean]
        calm = len(clean_s) >= max(CLEAN_SHARE * len(wall_s), min(CLEAN_SAMPLES, len(wall_s)))
        wall_s = clean_s if calm else wall_s
    wall = median_interval(wall_s)
    if not pooled.cpu_s:
        return Figure(wall, "wall", contended=not calm)
    cpu = median_interval(pooled.cpu_s)
    if not calm:
        return Figure(cpu, "cpu", contended=True)
    waited = pooled.clean_share is None or pooled.clean_share < CALM_SHARE
    surer = cpu.meets(target) or (waited and _twice_as_sure(cpu, wall))
    if not wall.meets(target) and surer:
        return Figure(cpu, "cpu", contended=True)
    return Figure(wall, "wall")


def _twice_as_sure(one: Interval, other: Interval) -> bool:
    if one.half_width is None or other.half_width is None:
        return False
    return 2 * one.half_width <= other.half_width


def _spent_s(visit: Visit, samples: Samples) -> float:
    """What a visit takes from the budget: by the faster clock, so that neighbours, who stretch
    the wall's, do not leave a workload with fewer samples than on a quiet machine."""
    if visit.growths:
        return visit.phases_s.get("measure", 0.0)
    times = (samples.wall_s, samples.cpu_s) if samples.cpu_s else (samples.wall_s,)
    return samples.inner * math.fsum(min(both) for both in zip(*times, strict=True))


@dataclass(frozen=True)
class Next:
    """What the next visit shall take."""

    num_samples: int
    limit_s: float


@dataclass
class Progress:
    """How far a workload is: what its visits gave, and what the plan says of it."""

    workload: Workload
    plan: Plan
    threads: int | None = None
    visits: list[Visit] = field(default_factory=list)
    spent_s: float = 0.0
    settled: bool = False
    noisy: bool = False
    figure: Figure = field(default_factory=lambda: Figure(NO_INTERVAL, "wall"))
    num_samples: int = 0
    _look: int = 0

    def __post_init__(self) -> None:
        if self.workload.phase in GROWING:
            self.plan = replace(self.plan, min_samples=FEWEST_FOR_INTERVAL, max_samples=MAX_GROWTHS)
        self._look = self.plan.min_samples

    @property
    def status(self) -> str:
        return self.visits[-1].status if self.visits else "ok"

    @property
    def seconds_per_sample(self) -> float | None:
        return self.spent_s / self.num_samples if self.num_samples else None

    def add(self, visit: Visit) -> None:
        """Take in a finished visit. A failed one ends the workload."""
        self.visits.append(visit)
        if visit.status != "ok" or visit.samples is None:
            self.settled = True
            return
        self.num_samples += len(visit.samples.wall_s)
        self.spent_s += _spent_s(visit, visit.samples)
        self.figure = figure(pool(self.visits, self.threads), self.plan.target)
        # Looking only now and then keeps the interval honest: whoever looks after every sample
        # stops at a moment when it happens to be narrow.
        looked = len(self.visits) >= self.plan.min_rounds and self.num_samples >= self._look
        self.noisy = not self.figure.interval.meets(self.plan.target)
        if self.noisy:
            self.settled = self.num_samples >= self.most
        else:
            self.settled = looked or self.num_samples >= self.affordable
        while self._look <= self.num_samples:
            self._look = math.ceil(1.5 * self._look)

    @property
    def affordable(self) -> int:
        """Samples that the budget pays for. However heavy a call is, six, unless they would take
        ten budgets; and one at the least."""
        cost = self.seconds_per_sample
        if not cost:
            return self.plan.max_samples
        in_budget = min(self.plan.max_samples, int(self.plan.budget_s / cost))
        return max(1, in_budget, self._within_heavy_budget(FEWEST_FOR_INTERVAL))

    @property
    def most(self) -> int:
        """Samples after which a workload is left noisy: those of the budget, but for a heavy call
        as many as a light one has at its second look, within ten budgets."""
        second_look = math.ceil(1.5 * max(self.plan.min_samples, FEWEST_FOR_SECOND_LOOK))
        return max(self.affordable, self._within_heavy_budget(second_look))

    def _within_heavy_budget(self, num_samples: int) -> int:
        cost = self.seconds_per_sample
        if not cost:
            return num_samples
        return min(num_samples, int(HEAVY_BUDGETS * self.plan.budget_s / cost))

    def next_visit(self) -> Next:
        """Quota of the next visit: a third of the first look's samples until there were three
        rounds, then all that are missing for the next look."""
        plan = self.plan
        cost = self.seconds_per_sample
        if cost is None:
            rounds = plan.min_rounds
            return Next(math.ceil(plan.min_samples / rounds), plan.budget_s / rounds)
        goal = min(self._look, self.affordable)
        if goal <= self.num_samples:
            goal = min(self._look, self.most)
        missing = goal - self.num_samples
        rounds_left = max(1, plan.min_rounds - len(self.visits))
        quota = max(1, math.ceil(missing / rounds_left))
        return Next(quota, max(plan.budget_s - self.spent_s, 3 * quota * cost))
