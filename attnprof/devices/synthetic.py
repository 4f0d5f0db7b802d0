"""A device without hardware: a known law, noise, drift, a memory limit, and failures on request.

Its clock is virtual: a sweep that would take minutes takes milliseconds. No torch.
"""

import fnmatch
import itertools
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from attnprof.dtypes import dtype_named
from attnprof.errors import OutOfMemoryError, UnsupportedError, UsageError, nearest
from attnprof.measured import Check, Energy, GrowthPoint, Memory, Part, Samples, WarmUp
from attnprof.theory.flops import products_flops
from attnprof.theory.kv_cache import cached_len, cached_slots, copy_overshoot_bytes
from attnprof.theory.memory import peak_activation_bytes
from attnprof.theory.scopes import stacks_of
from attnprof.theory.summary import (
    call_bytes,
    call_flops,
    held_bytes,
    theory_kv_bytes,
    theory_weight_bytes,
    timed_step,
)
from attnprof.units import parse_bytes, parse_seconds
from attnprof.workload import GROWING, Workload

MIN_SAMPLE_S = 1e-3
WARM_CALLS = 4
FIRST_CALL_FACTOR = 5.0
QUADRATIC_BACKENDS = ("eager", "math")
COUNTED_LENGTHS = 17  # of a growth, where to count one takes long
SLIVER = 0.01  # of a call, for each part that multiplies no matrices
RULERS_S = {"matmul_s": 1e-3, "copy_s": 2e-3}

# What a law may say, least and most; of what is not named here, anything from zero up.
_BOUNDS = {
    "t0": (0.0, 1e6),
    "flops": (1.0, 1e21),
    "bandwidth": (1.0, 1e18),
    "compute_efficiency": (1e-6, 1.0),
    "memory_efficiency": (1e-6, 1.0),
    "noise": (0.0, 3.0),
    "launch": (0.0, 3.0),
    "spikes": (0.0, 1.0),
    "spike": (1e-3, 1e6),
    "drift": (0.0, 1e3),
    "contended": (0.0, 1.0),
    "memory": (1, 2**60),
    "pace": (0.0, 3600.0),
    "slow": (1e-6, 1e6),
}

Globs = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Law:
    """How long a call takes, and what goes wrong.

        t = t₀ + F / (e_c · P) + B / (e_m · W)

    Args:
        noise: Standard deviation of the log of a sample.
        launch: Standard deviation of the log of what all samples of a visit share.
        spikes: Share of samples that take ``spike`` times as long.
        drift: What every call adds to the time of the next, as a share.
        contended: Share of samples whose thread waited for a core, half of their wall time.
        slow: Workloads and the factor by which they are slower than the law.
        pace: Real seconds that every visit sleeps.
        hang, crash, ...: Workloads that fail so.
    """

    t0: float = 20e-6
    flops: float = 1e12
    bandwidth: float = 1e11
    compute_efficiency: float = 0.5
    memory_efficiency: float = 0.8
    noise: float = 0.01
    launch: float = 0.0
    spikes: float = 0.0
    spike: float = 3.0
    drift: float = 0.0
    contended: float = 0.0
    memory: int = 16 * 2**30
    seed: int = 0
    pace: float = 0.0
    slow: tuple[tuple[str, float], ...] = ()
    throttle: Globs = ()
    hang: Globs = ()
    crash: Globs = ()
    exit: Globs = ()
    segv: Globs = ()
    kill: Globs = ()
    error: Globs = ()
    oom: Globs = ()
    wrong: Globs = ()
    unsupported: Globs = ()
    chatter: Globs = ()


def parse_law(spec: str) -> Law:
    """The law of ``synthetic?noise=0.02&memory=8GiB&hang=*s4096*&slow=decode*:1.1``.

    Workloads are named by shell patterns of their ids, several divided by commas.

    >>> parse_law("synthetic?memory=8GiB&slow=decode*:1.1").slow
    (('decode*', 1.1),)

    Raises:
        UsageError: A key that the law does not have, one that is given twice, or a value of
            another kind or beyond its bounds.
    """
    known = {one.name: one.default for one in fields(Law)}
    given: dict[str, Any] = {}
    _, _, settings = spec.partition("?")
    for part in filter(None, settings.split("&")):
        key, equals, text = part.partition("=")
        if key not in known:
            raise UsageError(f"the synthetic device has no {key!r}", nearest(key, list(known)))
        if not equals or not text:
            raise UsageError(f"{key!r} has no value", f"write synthetic?{key}=...")
        if key in given:
            raise UsageError(f"{key!r} is given twice", "divide several patterns by commas")
        given[key] = _value(key, text, known[key])
    return Law(**given)


def _value(key: str, text: str, default: Any) -> Any:
    if key == "slow":
        return tuple(_slowdown(part) for part in text.split(","))
    if isinstance(default, tuple):
        return tuple(text.split(","))
    if key == "memory":
        return _within_bounds(key, text, parse_bytes(text))
    if key in ("pace", "t0"):
        return _within_bounds(key, text, parse_seconds(text))
    try:
        return _within_bounds(key, text, type(default)(text))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{key}={text!r} is not a number", f"write synthetic?{key}={default}"
        ) from None


def _within_bounds(key: str, text: str, number: Any) -> Any:
    least, most = _BOUNDS.get(key, (0, math.inf))
    if not (least <= number <= most and math.isfinite(number)):
        raise UsageError(
            f"{key}={text!r} is out of bounds", f"write a number from {least:g} to {most:g}"
        )
    return number


def _slowdown(text: str) -> tuple[str, float]:
    pattern, _, factor = text.rpartition(":")
    try:
        return pattern, _within_bounds("slow", text, float(factor))
    except ValueError:
        raise UsageError(f"slow={text!r} names no factor", "write slow=decode*:1.1") from None


def open_synthetic(spec: str) -> "SyntheticDevice":
    return SyntheticDevice(parse_law(spec))


@dataclass
class SyntheticDevice:
    """The device that ``law`` describes; ``num_calls`` is its virtual age."""

    law: Law
    kind: str = "synthetic"
    num_calls: int = 0

    def facts(self) -> dict[str, Any]:
        return {"name": "synthetic", "memory_bytes": self.law.memory, "threads": 1}

    def ceilings(self, dtypes: tuple[str, ...]) -> dict[str, Any]:
        law = self.law
        return {
            "copy_bytes_per_s": law.bandwidth,
            "copy_bytes_per_cpu_s": law.bandwidth,
            "matmul": {
                dtype: {"flops_per_s": law.flops, "flops_per_cpu_s": law.flops} for dtype in dtypes
            },
        }

    def free_bytes(self) -> int:
        return self.law.memory

    def rulers(self) -> dict[str, float]:
        return {name: value * self.drifted() for name, value in RULERS_S.items()}

    def drifted(self) -> float:
        return 1 + self.law.drift * self.num_calls

    def build(self, workload: Workload, seed: int) -> "SyntheticCell":
        """Raises:
        UnsupportedError: The law says so.
        OutOfMemoryError: The workload needs more than the law's memory.
        """
        if _named(workload, self.law.unsupported):
            raise UnsupportedError(f"{workload.backend} is unsupported by request")
        if _named(workload, self.law.oom):
            needed = held_bytes(workload)
            raise OutOfMemoryError(f"no room for {needed} bytes, by request", needed)
        needed = held_bytes(workload) + activation_bytes(workload)
        if needed > self.law.memory:
            raise OutOfMemoryError(
                f"tried to allocate {needed} bytes of {self.law.memory}", requested_bytes=needed
            )
        return SyntheticCell(self, workload, seed)


class SyntheticCell:
    """A workload on the synthetic device."""

    prepare_s = 0.0

    def __init__(self, device: SyntheticDevice, workload: Workload, seed: int) -> None:
        self.workload = workload
        self.kernels = (f"synthetic_{workload.backend}",)
        self._device = device
        self._random = random.Random(f"{device.law.seed}/{seed}")
        self._base_s = law_s(device.law, workload)
        self._base_s *= math.exp(self._random.gauss(0, device.law.launch))

    def check(self) -> Check:
        """Right unless the law says otherwise; what rounding costs is a step of the coarsest type
        that anything is kept in."""
        wrong = _named(self.workload, self._device.law.wrong)
        workload = self.workload
        kept = (workload.dtype, workload.cached_dtype, workload.weight_dtype or workload.dtype)
        return Check(
            passed=not wrong,
            max_abs_error=1.0 if wrong else 0.0,
            bound=1e-6,
            rows=1,
            rms_error=max(dtype_named(name).epsilon for name in kept),
        )

    def warm_up(self, limit_s: float) -> WarmUp:
        calls = [FIRST_CALL_FACTOR * self._call_s(), *(self._call_s() for _ in range(WARM_CALLS))]
        return WarmUp(wall_s=tuple(calls), settled=True)

    def sample(self, num_samples: int, limit_s: float) -> Samples:
        law = self._device.law
        self._fail_as_wished()
        time.sleep(law.pace)
        inner = max(1, math.ceil(MIN_SAMPLE_S / self._base_s))
        walls: list[float] = []
        cpus: list[float] = []
        delays: list[float] = []
        spent_s = 0.0
        while len(walls) < num_samples and (not walls or spent_s < limit_s):
            cpu_s = self._call_s()
            delay_s = cpu_s if self._random.random() < law.contended else 0.0
            cpus.append(cpu_s)
            walls.append(cpu_s + delay_s)
            delays.append(delay_s)
            spent_s += inner * walls[-1]
        return Samples(
            wall_s=tuple(walls),
            cpu_s=tuple(cpus),
            run_delay_s=tuple(delays),
            minor_faults=(0.0,) * len(walls),
            inner=inner,
            mode="virtual",
            flags=("throttled",) if _named(self.workload, law.throttle) else (),
        )

    def grow(self, limit_s: float) -> tuple[GrowthPoint, ...]:
        law, workload = self._device.law, self.workload
        assert workload.start_len is not None
        self._fail_as_wished()
        time.sleep(law.pace)
        lengths = list(range(workload.start_len + 1, workload.kv_len + 1))
        bare_s = _at_lengths(workload, lengths, partial(_bare_s, law))
        if workload.phase == "generate":
            bare_s.insert(0, _bare_s(law, workload.prompt()))
            lengths.insert(0, workload.start_len)
        useful_bytes = _at_lengths(workload, lengths, theory_kv_bytes)
        points: list[GrowthPoint] = []
        total_s = 0.0
        for kv_len, step_bare_s, held in zip(lengths, bare_s, useful_bytes, strict=True):
            self._base_s = step_bare_s * _slowness(law, workload)
            step_s = self._call_s()
            total_s += step_s
            useful, allocated, peak = cache_bytes(workload, kv_len, round(held))
            points.append(GrowthPoint(
                kv_len=kv_len, wall_s=step_s, cpu_s=step_s, useful_bytes=useful,
                allocated_bytes=allocated, peak_bytes=peak, total_s=total_s, total_cpu_s=total_s,
            ))  # fmt: skip
        return tuple(points)

    def weigh(self) -> Memory:
        held = theory_kv_bytes(self.workload)
        _, allocated, _ = cache_bytes(self.workload, self.workload.kv_len, held)
        return Memory(
            kv_bytes=allocated,
            weight_bytes=theory_weight_bytes(self.workload),
            peak_activation_bytes=activation_bytes(self.workload),
            meter="virtual",
        )

    def parts(self, limit_s: float) -> tuple[Part, ...]:
        """The law's time by the FLOP of each part; of norms, positions and caches a sliver."""
        if self.workload.scope == "op" or self.workload.mixer != "attention":
            return ()
        shares = part_shares(self.workload)
        peak_bytes = activation_bytes(self.workload)
        return tuple(
            Part(
                name=name, wall_s=share * self._base_s, cpu_s=share * self._base_s,
                peak_bytes=round(share * peak_bytes),
            )
            for name, share in shares.items()
        )  # fmt: skip

    def energy(self) -> Energy | None:
        return None

    def close(self) -> None:
        pass

    def _call_s(self) -> float:
        """One call by the law: noise is log-normal, so the median is the law's own time."""
        law = self._device.law
        call_s = self._base_s * self._device.drifted() * math.exp(self._random.gauss(0, law.noise))
        if self._random.random() < law.spikes:
            call_s *= law.spike
        self._device.num_calls += 1
        return call_s

    def _fail_as_wished(self) -> None:
        for name, fail in _FAILURES.items():
            if _named(self.workload, getattr(self._device.law, name)):
                fail()


def _hang() -> None:
    threading.Event().wait()


def _segv() -> None:
    signal.raise_signal(signal.SIGSEGV)


def _kill() -> None:
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _error() -> None:
    raise RuntimeError("device-side error by request")


def _chatter() -> None:
    print("a library says hello", flush=True)  # noqa: T201 - what libraries do
    os.write(1, b"\x00\x01 and writes bytes besides\n")


_FAILURES: dict[str, Callable[[], object]] = {
    "chatter": _chatter,
    "hang": _hang,
    "crash": os.abort,
    "exit": lambda: sys.exit(7),
    "segv": _segv,
    "kill": _kill,
    "error": _error,
}


def _named(workload: Workload, patterns: Globs) -> bool:
    return any(fnmatch.fnmatchcase(workload.workload_id, pattern) for pattern in patterns)


def law_s(law: Law, workload: Workload) -> float:
    """What a call takes by the law, without noise. [s]

    The step of a growing cache is the median one's.
    """
    if workload.phase in GROWING:
        assert workload.start_len is not None
        ends = (workload.start_len + 1, workload.kv_len)
        bare_s = statistics.fmean(_bare_s(law, workload.step(kv_len)) for kv_len in ends)
    else:
        bare_s = _bare_s(law, workload)
    return bare_s * _slowness(law, workload)


def _bare_s(law: Law, workload: Workload) -> float:
    return (
        law.t0
        + call_flops(workload) / (law.compute_efficiency * law.flops)
        + call_bytes(workload) / (law.memory_efficiency * law.bandwidth)
    )


def _slowness(law: Law, workload: Workload) -> float:
    named = (factor for pattern, factor in law.slow if _named(workload, (pattern,)))
    return math.prod(named) * (2.0 if _named(workload, law.throttle) else 1.0)


def activation_bytes(workload: Workload) -> int:
    """What theory says; where it has no formula, the output of one layer, and its scores where the
    backend writes them down."""
    known = peak_activation_bytes(workload, "synthetic")
    if known is not None:
        return known
    size = dtype_named(workload.dtype).bytes
    rows = workload.batch_size * workload.num_q_heads * workload.q_len
    scores = rows * workload.kv_len if workload.backend in QUADRATIC_BACKENDS else 0
    return int(size * (rows * workload.value_dim + scores))


def _at_lengths(
    workload: Workload, lengths: list[int], of: Callable[[Workload], float]
) -> list[float]:
    """``of`` the step to each length: of more than attention alone, which takes long to count, it
    is counted at some lengths and lies on lines between them."""
    if workload.scope == "op" or len(lengths) <= COUNTED_LENGTHS:
        return [of(workload.step(length)) for length in lengths]
    last = len(lengths) - 1
    marks = [last * number // (COUNTED_LENGTHS - 1) for number in range(COUNTED_LENGTHS)]
    counted = [of(workload.step(lengths[mark])) for mark in marks]
    found = [counted[0]]
    for (start, low), (end, high) in itertools.pairwise(zip(marks, counted, strict=True)):
        steps = range(1, end - start + 1)
        found += [low + (high - low) * step / (end - start) for step in steps]
    return found


def cache_bytes(workload: Workload, kv_len: int, useful: int) -> tuple[int, int, int]:
    """Bytes useful, allocated, and at the highest of the step that appends token ``kv_len``.

    Where there is no cache a growth holds nothing, and another call what it is given.
    """
    if workload.phase in GROWING and workload.kv_cache == "none":
        return 0, 0, 0
    if workload.mixer != "attention":
        return useful, useful, useful
    allocated = useful * cached_slots(workload, kv_len) // cached_len(workload, kv_len)
    return useful, allocated, allocated + copy_overshoot_bytes(workload, kv_len)


def part_shares(workload: Workload) -> dict[str, float]:
    """What each part of a layer, block or model takes of a call, by its FLOP."""
    step = timed_step(workload)
    tokens = step.batch_size * step.q_len + (step.prefill_len or 0)
    flops: dict[str, float] = {}
    for stack in stacks_of(step).layers:
        cross = () if stack.cross is None else (stack.cross,)
        products = sum(products_flops(one) for one in (*stack.attentions, *cross))
        flops["attention"] = flops.get("attention", 0.0) + products
        for matrix in stack.layer.matrices:
            name = "projection" if matrix.role in ("attention", "mixer") else "ffn"
            product = 2 * stack.count * matrix.num_active_params * tokens
            flops[name] = flops.get(name, 0.0) + product
    around = {"layer": (), "block": ("norm",), "model": ("norm", "embedding", "head")}
    names = ("position", "cache", "other", *around[workload.scope])
    slivers = dict.fromkeys(names, SLIVER)
    rest = (1 - sum(slivers.values())) / sum(flops.values())
    return {name: count * rest for name, count in flops.items()} | slivers
