"""A memory plan -> the times of a prefill and a decode step, as the roofline bounds them."""

import math
from dataclasses import dataclass, replace

from attnprof.capacity.kv_sizes import kv_sizes
from attnprof.capacity.request import EstimateRequest
from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.registry import plan_memory
from attnprof.errors import UsageError
from attnprof.theory.serving_roofline import (
    ALL_REDUCES_PER_LAYER,
    Roofs,
    StepTime,
    read_weight_share,
    step_flops,
    step_time,
)

DEFAULT_PROMPT, DEFAULT_OUTPUT = 1024, 256
PREFILL_SHARES = (0.5, 0.3)
DECODE_SHARES = (0.65, 0.4)
"""Shares of a roof that serving kernels reach, where nothing is calibrated: assumed."""
STEP_OVERHEAD_S = (0.0, 0.0005, 0.002)
"""Scheduling and launches of one step, for the low, mid and high time: assumed."""


@dataclass(frozen=True)
class Interval:
    """A figure with its bounds; None where it cannot be had."""

    low: float | None = None
    mid: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        return {"low": self.low, "mid": self.mid, "high": self.high}


def lengths(request: EstimateRequest, deployment: Deployment) -> tuple[int, int]:
    context = deployment.max_model_len
    prompt = request.prompt_len or min(DEFAULT_PROMPT, max(1, context * 3 // 4))
    output = request.output_len or min(DEFAULT_OUTPUT, max(1, context - prompt))
    if prompt + output > context + 1:
        raise UsageError(
            f"prompt_len {prompt} and output_len {output} are more than max_model_len {context}",
            f"write --max-model-len {prompt + output}",
        )
    return prompt, output


def decode_batch(
    request: EstimateRequest, deployment: Deployment, plan: MemoryPlan, context: int
) -> int:
    """Sequences in a decode step: the users, as far as memory and the scheduler admit them."""
    if not plan.fits:
        return 0
    served = plan_memory(replace(deployment, max_model_len=min(context, deployment.max_model_len),
                                 max_num_batched_tokens=batched_tokens(plan)))  # fmt: skip
    limit = plan.settings.get("max_num_seqs")
    most = math.floor(served.max_concurrency)
    if isinstance(limit, int):
        most = min(most, limit * deployment.dp)
    return max(1, min(most, request.users) if request.users else most)


def batched_tokens(plan: MemoryPlan) -> int | None:
    batched = plan.settings.get("max_num_batched_tokens")
    return batched if isinstance(batched, int) else None


def peak_flops_per_s(deployment: Deployment) -> float | None:
    """The roof of matrix products: FP8's where weights are stored so and the GPU has it."""
    assert deployment.gpu is not None
    quantization = deployment.model.quantization
    if quantization is not None and quantization.method in ("fp8", "int8", "nvfp4"):
        wanted = {"fp8": "float8_e4m3fn", "int8": "int8", "nvfp4": "float4_e2m1fn_x2"}
        peak = deployment.gpu.peak_flops_per_s(wanted[quantization.method])
        if peak is not None:
            return peak
    return deployment.gpu.peak_flops_per_s(deployment.dtype) or deployment.gpu.peak_flops_per_s(
        "float16"
    )


def prefill_time(deployment: Deployment, plan: MemoryPlan, roofs: Roofs, prompt: int) -> StepTime:
    spec = deployment.model
    flops = step_flops(spec, prompt, prompt / 2, 1)
    message = spec.hidden_size * deployment.dtype_bytes * prompt
    return step_time(
        roofs,
        flops_per_rank=flops / deployment.tp,
        bytes_per_rank=plan.weight_bytes * deployment.pp * read_weight_share(spec, prompt),
        tp=deployment.tp,
        message_bytes=message * ALL_REDUCES_PER_LAYER * len(spec.layers),
    )


def decode_time(
    deployment: Deployment, plan: MemoryPlan, roofs: Roofs, context: int, batch: int
) -> StepTime:
    spec = deployment.model
    flops = step_flops(spec, batch, context, batch)
    kv = kv_sizes(replace(deployment, max_model_len=max(1, context)), plan)
    weights = plan.weight_bytes * deployment.pp * read_weight_share(spec, batch)
    return step_time(
        roofs,
        flops_per_rank=flops / deployment.tp,
        bytes_per_rank=weights + batch * kv.ideal_bytes / deployment.tp,
        tp=deployment.tp,
        message_bytes=spec.hidden_size
        * deployment.dtype_bytes
        * batch
        * ALL_REDUCES_PER_LAYER
        * len(spec.layers),
    )


def latency(step: StepTime, shares: tuple[float, float]) -> Interval:
    """The roofline as the least time, and the times at the shares of it that kernels reach."""
    least = step.total_s
    if least is None:
        return Interval()
    low, mid, high = STEP_OVERHEAD_S
    return Interval(least + low, least / shares[0] + mid, least / shares[1] + high)
