"""A deployment and its load -> intervals of TTFT, TPOT and throughput, how they were had, a curve
of throughput against latency, and what holds limits of both."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnprof.capacity.latency import Interval
from attnprof.capacity.request import CPU
from attnprof.engines.base import Deployment, longest_within
from attnprof.serving.coefficients import INTERVAL_SDS, StepProfile, step_profile
from attnprof.serving.load import Load, Served, prompt_step, serve
from attnprof.serving.own import KERNELS, NOTHING_OWN, OwnKernels, own_kernels
from attnprof.serving.step import StepModel

LONGEST_CURVE = 24
"""Points of a curve at most: batch sizes double."""


@dataclass(frozen=True)
class Figures:
    """What one load is served with; each interval should hold 80 % of the time.

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

    def hold(self, figures: Figures, bound: str = "mid") -> bool:
        """Whether both times are within, by the middles of their intervals or their ends."""
        within = True
        for limit, interval in (
            (self.ttft_s, figures.ttft_loaded_s if figures.batch_size > 1 else figures.ttft_s),
            (self.tpot_s, figures.tpot_s),
        ):
            value = getattr(interval, bound)
            within &= limit is None or (value is not None and value <= limit)
        return within


@dataclass(frozen=True)
class Slo:
    """What holds the limits: zero where not even one sequence, or one token, does.

    Args:
        max_batch_size: Sequences at once of the prompt and answer that were asked for.
        safe_batch_size: The same by the upper ends of the intervals.
        max_prompt_len: Tokens of a prompt, for as many users as were asked for, or one.
        output_tokens_per_s: At ``max_batch_size``.
    """

    limits: Limits
    max_batch_size: int
    safe_batch_size: int
    max_prompt_len: int
    prompt_users: int
    output_tokens_per_s: Interval
    tpot_s: Interval
    ttft_loaded_s: Interval

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
        """``calibrated`` where every term was fitted to this GPU and engine, else ``assumed``."""
        had = set(self.profile.provenance(self.model.deployment, self.own).values())
        return "calibrated" if had == {"calibrated"} else "assumed"

    @property
    def missed_laws(self) -> tuple[str, ...]:
        """Words on shipped laws that kernels follow though they do not hold."""
        assert self.model.deployment.gpu is not None
        missed = self.profile.missed_laws.get(self.model.deployment.gpu.name, ())
        if not missed or self.own.covers(*KERNELS):
            return ()
        listed = ", ".join(missed)
        return (f"shipped laws of this GPU that miss much of what was held out: {listed}",)

    def floored(self, interval: Interval, roofline_s: float | None) -> Interval:
        """An interval, no part of it faster than a roofline allows. [s]"""
        if roofline_s is None or interval.mid is None:
            return interval
        return Interval(*(max(roofline_s, end) for end in interval.ends))

    def figures(self, load: Load) -> Figures:
        """TTFT, TPOT and throughput of a load, each with its interval."""
        served = serve(self.model, load)
        sd = self.profile.log_sd(self.model.deployment, served.decode, self.own)
        spread = math.exp(INTERVAL_SDS * sd)
        first = math.exp(INTERVAL_SDS * math.hypot(sd, self.profile.ttft_log_sd))
        writes = load.output_len > 0
        return Figures(
            batch_size=load.concurrency,
            ttft_s=_around(served.ttft_idle_s, first),
            ttft_loaded_s=_around(served.ttft_loaded_s, first),
            tpot_s=_around(served.tpot_s, spread) if writes else Interval(),
            output_tokens_per_s=(
                _around(served.output_tokens_per_s, spread) if writes else Interval()
            ),
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

    def curve(self, load: Load, most: int) -> tuple[Figures, ...]:
        """Figures of batches that double from one up to the ``most`` that are held."""
        sizes = [2**power for power in range(LONGEST_CURVE) if 2**power < most]
        return tuple(
            self.figures(replace(load, concurrency=float(size))) for size in [*sizes, most] if size
        )

    def largest_batch(self, load: Load, limits: Limits, most: int, bound: str = "mid") -> int:
        """Sequences at once, up to ``most``, with which limits hold: none where not one does.

        Args:
            bound: Of the intervals: their middles, or with ``high`` their upper ends.
        """

        def misses(size: int) -> float:
            figures = self.figures(replace(load, concurrency=float(max(1, size))))
            return float(not limits.hold(figures, bound))

        return longest_within(0.0, misses, most)

    def slo(
        self, load: Load, limits: Limits, *, most: int, users: int,
        holds_prompt: Callable[[int], bool], longest: int,
    ) -> Slo:  # fmt: skip
        """The largest batch and the longest prompt with which limits hold.

        Args:
            most: Sequences that are held at once.
            holds_prompt: Whether so many users fit with a prompt of a length.
            longest: Tokens of the longest prompt that the context has room for.
        """

        def misses_prompt(length: int) -> float:
            asked = replace(load, concurrency=float(users), prompt_len=float(max(1, length)))
            return float(not holds_prompt(length) or not limits.hold(self.figures(asked)))

        largest = self.largest_batch(load, limits, most)
        safe = self.largest_batch(load, limits, largest, "high")
        prompt = longest_within(0.0, misses_prompt, longest)
        best = self.figures(replace(load, concurrency=float(max(1, largest))))
        none = Interval()
        return Slo(
            limits=limits,
            max_batch_size=largest,
            safe_batch_size=safe,
            max_prompt_len=prompt,
            prompt_users=users,
            output_tokens_per_s=best.output_tokens_per_s if largest else none,
            tpot_s=best.tpot_s if largest else none,
            ttft_loaded_s=(best.ttft_loaded_s if largest > 1 else best.ttft_s) if largest else none,
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
