"""A deployment and its load -> intervals of TTFT, TPOT and throughput, how they were had, a curve
of throughput against latency, and what holds limits of both."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnprof import units
from attnprof.capacity.latency import Interval, decode_time, prefill_time, roofs_of
from attnprof.capacity.request import CPU
from attnprof.engines.base import Deployment, longest_within
from attnprof.serving.coefficients import INTERVAL_SDS, OF_KERNELS, StepProfile, step_profile
from attnprof.serving.load import Load, Served, even_loads, group_batch, prompt_step, serve
from attnprof.serving.own import KERNELS, NOTHING_OWN, OwnKernels, own_kernels
from attnprof.serving.step import StepModel
from attnprof.theory.serving_roofline import Roofs, StepTime

LONGEST_CURVE = 24
"""Points of a curve at most: batch sizes double."""


@dataclass(frozen=True)
class Figures:
    """What one load is served with; each interval should hold 80 % of the time.

    No part of one is better than the roofline allows: the law's error is spread evenly about its
    middle, and so past what the hardware can do, which no error of a law makes possible.

    ``ttft_s`` is of a lone request, ``ttft_loaded_s`` the mean while others are served.
    """

    batch_size: float
    ttft_s: Interval
    ttft_loaded_s: Interval
    tpot_s: Interval
    output_tokens_per_s: Interval
    served: Served

    def to_json(self) -> dict[str, Any]:
        """A point of the curve, as the document of ``estimate`` has it."""
        return {
            "batch_size": self.batch_size,
            "tpot_s": self.tpot_s.to_json(),
            "ttft_loaded_s": self.ttft_loaded_s.to_json(),
            "output_tokens_per_s": self.output_tokens_per_s.to_json(),
        }


@dataclass(frozen=True)
class Limits:
    """The longest times that are accepted; None is any. [s]"""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def are_given(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None

    @property
    def words(self) -> str:
        """As people read them: ``TTFT 2 s and TPOT 50 ms``."""
        given = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return " and ".join(
            f"{name} {units.seconds(limit)}" for name, limit in given if limit is not None
        )

    def hold(self, figures: Figures, bound: str = "mid") -> bool:
        """Whether both times are within, by the middles of their intervals or their ends."""
        return all(time_s <= limit for _, time_s, limit in self._times(figures, bound))

    def worst(self, figures: Figures, bound: str = "mid") -> str:
        """``ttft`` or ``tpot``: which comes to the larger multiple of its limit."""
        times = self._times(figures, bound)
        return max((time_s / limit, name) for name, time_s, limit in times)[1]

    def _times(self, figures: Figures, bound: str) -> Iterator[tuple[str, float, float]]:
        """Each time that has a limit, beside it; one that cannot be had is none that holds."""
        first = figures.ttft_loaded_s if figures.batch_size > 1 else figures.ttft_s
        for name, interval, limit in (
            ("ttft", first, self.ttft_s), ("tpot", figures.tpot_s, self.tpot_s),
        ):  # fmt: skip
            if limit is not None:
                time_s = getattr(interval, bound)
                yield name, math.inf if time_s is None else time_s, limit


@dataclass(frozen=True)
class Slo:
    """What holds the limits: zero where not even one sequence, or one token, does.

    Args:
        max_batch_size: Sequences at once of the prompt and answer that were asked for.
        safe_batch_size: The same by the upper ends of the intervals.
        max_prompt_len: Tokens of a prompt, for as many users as were asked for, or one.
        output_tokens_per_s: At ``batch_size``, as the times are.
        is_safe: Whether the upper ends decide, in place of the middles.
        bound_by: ``ttft`` or ``tpot``, the limit that one more sequence misses; None where memory
            or the scheduler hold no more.
        binding: The resource that makes it so slow.
    """

    limits: Limits
    max_batch_size: int
    safe_batch_size: int
    max_prompt_len: int
    prompt_users: int
    output_tokens_per_s: Interval
    tpot_s: Interval
    ttft_loaded_s: Interval
    is_safe: bool = False
    bound_by: str | None = None
    binding: str | None = None

    @property
    def batch_size(self) -> int:
        """Sequences at once that count as held."""
        return self.safe_batch_size if self.is_safe else self.max_batch_size

    def to_json(self) -> dict[str, Any]:
        return {
            "ttft_limit_s": self.limits.ttft_s,
            "tpot_limit_s": self.limits.tpot_s,
            "max_batch_size": self.max_batch_size,
            "safe_batch_size": self.safe_batch_size,
            "max_prompt_len": self.max_prompt_len,
            "prompt_users": self.prompt_users,
            "output_tokens_per_s": self.output_tokens_per_s.to_json(),
            "tpot_s": self.tpot_s.to_json(),
            "ttft_s": self.ttft_loaded_s.to_json(),
            "safely": self.is_safe,
            "batch_size": self.batch_size,
            "bound_by": self.bound_by,
        }


@dataclass(frozen=True)
class Sum:
    """What the time of a token, and of a lone prompt, is made of, term by term. [s]

    Args:
        token: The terms of a step, and ``others``: what reading the prompts of others adds.
        provenance: How each term is had.
    """

    token: Mapping[str, float]
    prompt: Mapping[str, float]
    provenance: Mapping[str, str]

    @property
    def token_s(self) -> float:
        return sum(self.token.values())

    @property
    def prompt_s(self) -> float:
        return sum(self.prompt.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "token_s": dict(self.token),
            "prompt_s": dict(self.prompt),
            "provenance": dict(self.provenance),
        }


@dataclass(frozen=True)
class Latency:
    """The latencies of a deployment, whatever its load."""

    model: StepModel
    profile: StepProfile
    own: OwnKernels = NOTHING_OWN

    @property
    def problem(self) -> str | None:
        """Why no time can be had, or None."""
        known = self.model.peak_flops_per_s is not None
        return None if known else "the GPU's profile states no peak"

    @property
    def provenance(self) -> str:
        """``calibrated`` where each term is, as :meth:`StepProfile.provenance` says; else
        ``assumed``."""
        had = set(self.profile.provenance(self.model.deployment, self.own).values())
        return "calibrated" if had == {"calibrated"} else "assumed"

    @property
    def fix(self) -> str | None:
        """What to type for the times that cannot be had; None where nothing helps."""
        return None

    @property
    def words(self) -> str:
        """Where the times come from: which results of this GPU and this engine were in the fit."""
        deployment = self.model.deployment
        fit = (
            "a law of a step that was fitted to published serving results, "
            f"{_fit_words(self.profile, deployment)}"
        )
        if self.provenance == "calibrated":
            return (
                f"latency follows {fit}; the interval of a token's time is as wide as held 80 % of "
                "those results whose model had been left out"
            )
        had = self.profile.provenance(deployment, self.own)
        scaled = "; it is scaled by the data sheet"
        if self.profile.engines_on(deployment):
            scaled = ""
        elif all(had[term] == "calibrated" for term in OF_KERNELS):
            scaled = (
                "; products and attention follow measurements of this GPU's kernels, the rest is "
                "scaled by the data sheet"
            )
        return f"latency is assumed: it follows {fit}{scaled}; the intervals are wider for it"

    @property
    def missed_laws(self) -> tuple[str, ...]:
        """Words on shipped laws that kernels follow though they do not hold."""
        assert self.model.deployment.gpu is not None
        missed = self.profile.missed_laws.get(self.model.deployment.gpu.name, ())
        if self.own.covers(*KERNELS):
            return ()
        return tuple(missed_words(key, key.split(".")[0]) for key in missed)

    def floored(self, interval: Interval, roofline_s: float | None) -> Interval:
        """An interval, no part of it faster than a roofline allows. [s]"""
        if roofline_s is None or interval.mid is None:
            return interval
        return Interval(*(max(roofline_s, end) for end in interval.ends))

    @cached_property
    def _roofs(self) -> Roofs:
        return roofs_of(self.model.deployment)

    @cached_property
    def _least(self) -> dict[tuple[int, ...], StepTime]:
        return {}

    def least_prompt(self, load: Load) -> StepTime:
        """What the roofline allows one prompt of a load to be read in."""
        deployment, new = self.model.deployment, max(1, int(load.prompt_len))
        key = (new, load.source_len)
        if key not in self._least:
            self._least[key] = prefill_time(deployment, self._roofs, new, load.source_len)
        return self._least[key]

    def least_token(self, load: Load) -> StepTime:
        """What the roofline allows the next token of each sequence of a load to take."""
        deployment, source = self.model.deployment, load.source_len
        context = int(load.prompt_len + load.output_len / 2)
        batch = int(group_batch(self.model, load.in_service))
        key = (context, batch, source)
        if key not in self._least:
            self._least[key] = decode_time(deployment, self._roofs, context, batch, source)
        return self._least[key]

    def _most_written(self, load: Load) -> float | None:
        """Output that the roofline allows, of each replica as it is filled. [tokens/s]"""
        prompt_s, most = self.least_prompt(load).total_s, 0.0
        for share, even in even_loads(self.model, load):
            token_s = self.least_token(even).total_s
            if not prompt_s or not token_s:
                return None
            written = even.concurrency * load.output_len
            most += share * written / (prompt_s + load.output_len * token_s)
        return most

    def figures(self, load: Load) -> Figures:
        """TTFT, TPOT and throughput of a load, each with its interval."""
        served = serve(self.model, load)
        sd = self.profile.log_sd(self.model.deployment, served.decode, self.own)
        spread = math.exp(INTERVAL_SDS * sd)
        first = math.exp(INTERVAL_SDS * math.hypot(sd, self.profile.ttft_log_sd))
        prompt_s, tpot, rate = self.least_prompt(load).total_s, Interval(), Interval()
        if load.output_len:
            token_s = self.least_token(load).total_s
            tpot = self.floored(_around(served.tpot_s, spread), token_s)
            rate = _around(served.output_tokens_per_s, spread)
            most = self._most_written(load)
            if most is not None:
                rate = Interval(*(min(most, end) for end in rate.ends))
        return Figures(
            batch_size=load.concurrency,
            ttft_s=self.floored(_around(served.ttft_idle_s, first), prompt_s),
            ttft_loaded_s=self.floored(_around(served.ttft_loaded_s, first), prompt_s),
            tpot_s=tpot,
            output_tokens_per_s=rate,
            served=served,
        )

    def summed(self, load: Load) -> Sum:
        """The sum by term of what :meth:`figures` gives as TPOT and as idle TTFT."""
        served = serve(self.model, load)
        others = served.tpot_s - served.decode.total_s
        return Sum(
            token={**served.decode.terms, "others": others},
            prompt=prompt_step(self.model, load).terms,
            provenance=self.profile.provenance(self.model.deployment, self.own),
        )

    def curve(self, load: Load, most: int, named: Iterable[int | None] = ()) -> tuple[Figures, ...]:
        """Figures of batches that double from one up to the ``most`` that are held, and of those
        that are ``named`` for another reason."""
        sizes = {2**power for power in range(LONGEST_CURVE)} | {size for size in named if size}
        return tuple(
            self.figures(replace(load, concurrency=float(size)))
            for size in sorted({size for size in sizes if size < most} | {most})
            if size
        )

    def largest_batch(self, load: Load, limits: Limits, most: int, bound: str = "mid") -> int:
        """Sequences at once, up to ``most``, with which limits hold: none where not one does.

        As many on each replica: with one more, that one is the fullest, and misses them.

        Args:
            bound: Of the intervals: their middles, or with ``high`` their upper ends.
        """

        replicas = self.model.deployment.dp

        def misses(each: int) -> float:
            figures = self.figures(replace(load, concurrency=float(max(1, each) * replicas)))
            return float(not limits.hold(figures, bound))

        return longest_within(0.0, misses, most // replicas) * replicas

    def slo(
        self, load: Load, limits: Limits, *, most: int, users: int,
        holds_prompt: Callable[[int], bool], longest: int, is_safe: bool = False,
    ) -> Slo:  # fmt: skip
        """The largest batch and the longest prompt with which limits hold.

        Args:
            most: Sequences that are held at once.
            holds_prompt: Whether so many users fit with a prompt of a length.
            longest: Tokens of the longest prompt that the context has room for.
            is_safe: Whether the upper ends of the intervals decide, in place of their middles.
        """
        bound = "high" if is_safe else "mid"

        def misses_prompt(length: int) -> float:
            asked = replace(load, concurrency=float(users), prompt_len=float(max(1, length)))
            return float(not holds_prompt(length) or not limits.hold(self.figures(asked), bound))

        largest = self.largest_batch(load, limits, most)
        safe = self.largest_batch(load, limits, largest, "high")
        prompt = longest_within(0.0, misses_prompt, longest)
        held = safe if is_safe else largest
        best = self.figures(replace(load, concurrency=float(max(1, held))))
        none = Interval()
        bound_by = binding = None
        if held < most:
            beyond = replace(load, concurrency=float(held + 1))
            bound_by = limits.worst(self.figures(beyond), bound)
            least = self.least_prompt if bound_by == "ttft" else self.least_token
            binding = least(beyond).binding
        return Slo(
            limits=limits,
            max_batch_size=largest,
            safe_batch_size=safe,
            max_prompt_len=prompt,
            prompt_users=users,
            output_tokens_per_s=best.output_tokens_per_s if held else none,
            tpot_s=best.tpot_s if held else none,
            ttft_loaded_s=(best.ttft_loaded_s if held > 1 else best.ttft_s) if held else none,
            is_safe=is_safe,
            bound_by=bound_by,
            binding=binding,
        )


def _fit_words(profile: StepProfile, deployment: Deployment) -> str:
    """Which of a deployment's GPU and engine the results in the fit were of."""
    engine, alike = deployment.engine, profile.engines_on(deployment)
    if engine.kind in alike:
        return f"{engine.title} on this GPU among them"
    assert deployment.gpu is not None
    is_fitted = engine.kind in profile.fitted
    if not any(deployment.gpu.name in gpus for gpus in profile.fitted.values()):
        of = f"{engine.title} among their engines" if is_fitted else f"none of {engine.title}"
        return f"of other GPUs alone, {of}"
    others = "other engines" if alike else "engines alone that have other kernels"
    of = f" and of {engine.title} on other GPUs" if is_fitted else f", none of {engine.title}"
    return f"of this GPU with {others}{of}"


_TIMES_OF = {
    "gemm": "products with weights", "decode": "attention over the cache",
    "prefill": "attention over a prompt", "step": "a whole step",
}  # fmt: skip
"""Kinds of laws -> what of a step they time; a CPU's begin with ``cpu-``."""


def missed_words(key: str, kind: str, *, is_tested: bool = True) -> str:
    """What a law that does not hold means for the times that are shown.

    Args:
        is_tested: Whether anything was held out of its fit.

    >>> missed_words("gemm.bf16", "gemm").split(":")[0]
    'the law of products with weights (gemm.bf16) missed much of what it was tested on'
    """
    timed = _TIMES_OF.get(kind.removeprefix("cpu-"))
    what = f"law {key}" if timed is None else f"law of {timed} ({key})"
    missed = "missed much of what it was tested on" if is_tested else "was tested on nothing"
    return (
        f"the {what} {missed}: the times, and the costs by them, may "
        "lie outside their intervals more often than elsewhere"
    )


def latency_of(deployment: Deployment, calibration: str | None = None) -> Latency:
    """The latencies of a deployment by the shipped coefficients, or the user's own.

    Args:
        calibration: The one that kernels follow, by name or file; None takes the user's own.

    Raises:
        UsageError: The one that is named cannot be used for this GPU.
    """
    profile = step_profile()
    assert deployment.gpu is not None
    if deployment.gpu.name == CPU:
        from attnprof.capacity.local_cpu import calibration_of_cpu
        from attnprof.serving.local import local_latency

        coefficients = profile.values_on(CPU, NOTHING_OWN)
        return local_latency(
            StepModel(deployment, coefficients), profile, calibration_of_cpu(calibration)
        )
    own = own_kernels(deployment.gpu, calibration)
    model = StepModel(deployment, profile.values_on(deployment.gpu.name, own))
    return Latency(model, profile, own)


def _around(value: float, factor: float) -> Interval:
    return Interval(value / factor, value, value * factor)
