"""A memory plan -> what a step works on, and the least time of it, as the roofline bounds it."""

import math
from dataclasses import dataclass, replace

from attnprof.capacity.kv_sizes import ideal_bytes
from attnprof.capacity.request import EstimateRequest
from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.registry import plan_memory
from attnprof.engines.weights import read_weight_bytes
from attnprof.errors import UsageError
from attnprof.theory.model_flops import model_flops
from attnprof.theory.serving_roofline import ALL_REDUCES_PER_LAYER, Roofs, StepTime, step_time

DEFAULT_PROMPT, DEFAULT_OUTPUT = 1024, 256


@dataclass(frozen=True)
class Interval:
    """A figure with its bounds; None where it cannot be had."""

    low: float | None = None
    mid: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float, float]:
        """All three, of a figure that can be had."""
        assert self.low is not None and self.mid is not None and self.high is not None
        return self.low, self.mid, self.high

    def to_json(self) -> dict[str, float | None]:
        return {"low": self.low, "mid": self.mid, "high": self.high}


def lengths(request: EstimateRequest, deployment: Deployment) -> tuple[int, int]:
    """Tokens of a prompt and of an answer, which is none where a model only reads. [tokens]

    Raises:
        UsageError: They are more than the context.
    """
    context = deployment.max_model_len
    prompt = request.prompt_len or min(DEFAULT_PROMPT, max(1, context * 3 // 4))
    output = request.output_len or min(DEFAULT_OUTPUT, max(1, context - prompt))
    if deployment.model.kind == "encoder":
        prompt, output = request.prompt_len or min(DEFAULT_PROMPT, context), 0
    if prompt + output > context + 1:
        raise UsageError(
            f"prompt_len {prompt} and output_len {output} are more than max_model_len {context}",
            f"write --max-model-len {prompt + output}",
        )
    return prompt, output


def stretches(deployment: Deployment, prompt: int) -> tuple[int, int]:
    """Of a prompt, what the encoder reads, and what the decoder (or the only stack). [tokens]

    Where the encoder's length is its own (Whisper's frames) it reads all of it, and the prompt is
    the decoder's; else the prompt is the encoder's, and the decoder begins with one token.
    """
    spec = deployment.model
    if not spec.encoder_layers:
        return 0, prompt
    return (spec.max_source_len, prompt) if spec.max_source_len else (prompt, 1)


def decode_batch(
    request: EstimateRequest, deployment: Deployment, plan: MemoryPlan, context: int
) -> int:
    """Sequences in a decode step: the users, as far as memory and the scheduler admit them.

    Each replica, or group that attends apart, holds whole ones: none has a part of a sequence.
    """
    if not plan.fits:
        return 0
    served = plan_memory(replace(deployment, max_model_len=min(context, deployment.max_model_len),
                                 max_num_batched_tokens=batched_tokens(plan)))  # fmt: skip
    limit = plan.settings.get("max_num_seqs")
    each = math.floor(served.max_concurrency / deployment.dp)
    if isinstance(limit, int):
        each = min(each, limit)
    most = max(1, each) * deployment.dp
    return max(1, min(most, request.users) if request.users else most)


def batched_tokens(plan: MemoryPlan) -> int | None:
    """Tokens that the plan's engine takes into a step at most. [tokens]"""
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


def roofs_of(deployment: Deployment) -> Roofs:
    """What each GPU of a deployment can do at most."""
    gpu = deployment.gpu
    assert gpu is not None
    return Roofs(
        peak_flops_per_s(deployment), gpu.memory_bandwidth_bytes_per_s, gpu.link_bytes_per_s
    )


def prefill_time(deployment: Deployment, roofs: Roofs, new: int, source: int = 0) -> StepTime:
    """The least time in which one prompt is read.

    Args:
        new: Tokens that the decoder, or the only stack, reads.
        source: Tokens that an encoder reads beside them.
    """
    spec = deployment.model
    flops = model_flops(
        spec, new, new, source_len=source, num_logits=None if spec.kind == "encoder" else 1
    )
    weights = read_weight_bytes(deployment, max(source, new), encodes=True)
    messages = len(spec.layers) * new + len(spec.encoder_layers) * source
    return _step_time(deployment, roofs, flops, weights, messages)


def decode_time(
    deployment: Deployment, roofs: Roofs, context: int, batch: int, source: int = 0
) -> StepTime:
    """The least time in which each of ``batch`` sequences of one group gets its next token.

    Args:
        context: Tokens that are cached of each.
        batch: Those of one stage of a pipeline, where stages work on parts of a batch at once.
        source: Tokens that an encoder read of each.
    """
    spec = deployment.model
    flops = model_flops(spec, 1, max(2, context), batch_size=batch, source_len=source, mla="latent")
    held = ideal_bytes(replace(deployment, max_model_len=max(1, context)), source or None)
    # The experts of a rank serve the sequences of all groups.
    groups = deployment.dp if deployment.dp_attention else 1
    read = read_weight_bytes(deployment, batch * groups, encodes=False)
    read += batch * held / deployment.tp
    return _step_time(deployment, roofs, flops, read, len(spec.layers) * batch)


def _step_time(
    deployment: Deployment, roofs: Roofs, flops: float, bytes_per_rank: float, messages: int
) -> StepTime:
    """A step of so much work, in which ``messages`` hidden states are summed over the ranks."""
    width = deployment.model.hidden_size * deployment.dtype_bytes
    return step_time(
        roofs,
        flops_per_rank=flops / deployment.tp,
        bytes_per_rank=bytes_per_rank,
        tp=deployment.tp,
        message_bytes=messages * width * ALL_REDUCES_PER_LAYER,
    )
