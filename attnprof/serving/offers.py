"""A deployment that is asked for -> the batch, latency, throughput and cost that it offers.

Within limits of latency the largest batch that holds them, without any the largest that memory and
scheduler hold: one row of a comparison of deployments.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from attnprof.capacity.latency import (
    Interval,
    batched_tokens,
    decode_batch,
    lengths,
    stretches,
)
from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.registry import plan_memory
from attnprof.errors import UsageError
from attnprof.prices import PriceList, price_per_gpu_hour
from attnprof.serving.latency import Limits, latency_of
from attnprof.serving.load import DEFAULT_CHUNK, Load

_NONE = Interval()
FITS_NOT, TOO_SLOW, UNKNOWN, HOLDS = "does not fit", "too slow", "unknown", "yes"


@dataclass(frozen=True)
class Offer:
    """What one deployment serves, and what that costs; None where it cannot be had.

    Args:
        verdict: ``yes``, or why not: it does not fit, is too slow for the limits even alone (its
            times are then those of one request), or unknown.
        reason: What cannot be had, where the verdict is ``unknown``.
        batch_size: Sequences at once, by the middles of the intervals.
        safe_batch_size: The same by their upper ends; None where there are no limits.
        is_safe: Whether the upper ends decide: then the times, output and cost are of
            ``safe_batch_size``, else of ``batch_size``.
        num_gpus: What the price is of.
        input_tokens_per_s: Of prompts that are read one after another; None where no load holds.
    """

    verdict: str
    num_gpus: int
    reason: str | None = None
    batch_size: int = 0
    safe_batch_size: int | None = None
    is_safe: bool = False
    ttft_s: Interval = _NONE
    tpot_s: Interval = _NONE
    output_tokens_per_s: Interval = _NONE
    input_tokens_per_s: float | None = None
    per_hour: float | None = None
    currency: str | None = None
    prices: PriceList | None = None
    """The list that the price is of, or was looked for in; None of one that was typed."""
    provenance: str | None = None

    @property
    def priced_batch_size(self) -> int | None:
        """Sequences at once that times, output and cost are of; None where no load holds."""
        return (self.safe_batch_size if self.is_safe else self.batch_size) or None

    @property
    def per_million_input_tokens(self) -> float | None:
        return per_million(self.per_hour, self.input_tokens_per_s)

    @property
    def per_million_output_tokens(self) -> float | None:
        return per_million(self.per_hour, self.output_tokens_per_s.mid)

    def to_json(self) -> dict[str, Any]:
        """Its columns in the document of a grid."""
        found: dict[str, Any] = {
            "verdict": self.verdict,
            "reason": self.reason,
            "num_gpus": self.num_gpus,
            "batch_size": self.batch_size,
            "safe_batch_size": self.safe_batch_size,
        }
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            found[name] = getattr(self, name).to_json()
        return found | {
            "per_hour": self.per_hour,
            "per_million_input_tokens": self.per_million_input_tokens,
            "per_million_output_tokens": self.per_million_output_tokens,
            "currency": self.currency,
            "price_list": None if self.prices is None else self.prices.name,
            "price_list_is": None if self.prices is None else self.prices.basis,
            "priced_batch_size": self.priced_batch_size,
            "latency_is": self.provenance,
        }


def offer_of(request: EstimateRequest) -> Offer:
    """What a deployment offers within the limits of the request.

    Raises:
        UsageError: A name that is none, or a size out of range.
    """
    deployment = deployment_of(request)
    assert deployment.gpu is not None
    plan = plan_memory(deployment)
    num_gpus = deployment.num_gpus
    if not plan.fits:
        return Offer(FITS_NOT, num_gpus)
    try:
        prompt, output = lengths(request, deployment)
    except UsageError as error:
        return Offer(UNKNOWN, num_gpus, error.problem)
    law = latency_of(deployment, request.calibration)
    if law.problem is not None:
        return Offer(UNKNOWN, num_gpus, law.problem)
    most = decode_batch(replace(request, users=None), deployment, plan, prompt + output)
    load = load_of(deployment, plan, prompt, output, most)
    limits = Limits(request.ttft_s, request.tpot_s)
    batch, safe = most, None
    if limits.are_given:
        batch = law.largest_batch(load, limits, most)
        safe = law.largest_batch(load, limits, batch, "high")
    held = batch if safe is None or not request.safely else safe
    figures = law.figures(replace(load, concurrency=float(max(1, held))))
    each = price_per_gpu_hour(request.price, deployment.gpu.name)
    return Offer(
        verdict=HOLDS if held else TOO_SLOW,
        num_gpus=num_gpus,
        batch_size=batch,
        safe_batch_size=safe,
        is_safe=request.safely,
        ttft_s=figures.ttft_loaded_s if held > 1 else figures.ttft_s,
        tpot_s=figures.tpot_s,
        output_tokens_per_s=figures.output_tokens_per_s if held else _NONE,
        input_tokens_per_s=(
            prompt * deployment.dp / (figures.ttft_s.mid or math.inf) if held else None
        ),
        per_hour=None if each.per_hour is None else each.per_hour * num_gpus,
        currency=each.currency,
        prices=each.prices,
        provenance=law.provenance,
    )


def load_of(deployment: Deployment, plan: MemoryPlan, prompt: int, output: int, batch: int) -> Load:
    """What the law of a step is asked: an encoder's source is beside the decoder's prompt."""
    source, read = stretches(deployment, prompt)
    return Load(
        concurrency=float(max(1, batch)),
        prompt_len=float(read),
        output_len=float(output),
        chunk_len=float(batched_tokens(plan) or DEFAULT_CHUNK),
        source_len=source,
    )


def per_million(per_hour: float | None, tokens_per_s: float | None) -> float | None:
    """What a million tokens cost; None without a price or a throughput."""
    if per_hour is None or not tokens_per_s:
        return None
    return per_hour / 3600 / tokens_per_s * 1e6
