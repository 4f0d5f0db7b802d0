"""A model, GPUs and an engine -> memory, capacity, latency and cost, and how each was had."""

from dataclasses import dataclass, field, replace
from typing import Any

from attnprof.capacity.alternatives import Alternative, alternatives
from attnprof.capacity.kv_sizes import KvSizes, kv_sizes
from attnprof.capacity.latency import (
    DECODE_SHARES,
    PREFILL_SHARES,
    Interval,
    decode_batch,
    decode_time,
    latency,
    lengths,
    peak_flops_per_s,
    prefill_time,
)
from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.base import GIB, Deployment, MemoryPlan
from attnprof.engines.profile import engine_named
from attnprof.engines.registry import plan_memory
from attnprof.engines.weights import rank_weight_bytes
from attnprof.gpus import Gpu
from attnprof.prices import price_per_gpu_hour
from attnprof.theory.serving_roofline import Roofs, StepTime

__all__ = ["Estimate", "EstimateRequest", "estimate"]

FORMAT = 1


@dataclass(frozen=True)
class Estimate:
    """All that an estimate says; :meth:`to_json` is its stable document."""

    deployment: Deployment
    gpu: Gpu
    plan: MemoryPlan
    kv: KvSizes
    model_weight_bytes: int
    ttft_s: Interval
    tpot_s: Interval
    output_tokens_per_s: Interval
    cost: dict[str, Any]
    binding: str
    provenance: dict[str, str]
    notes: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document of ``estimate --format json``, format 1."""
        spec, plan, kv = self.deployment.model, self.plan, self.kv
        return {
            "format": FORMAT,
            "model": {
                "name": spec.name,
                "architecture": spec.architecture or spec.model_type,
                "num_params": spec.num_params,
                "num_active_params": spec.num_active_params,
                "weight_bytes": self.model_weight_bytes,
            },
            "kv": {
                "bytes_per_token": _whole(kv.bytes_per_token),
                "bytes_per_sequence": kv.admitted_bytes,
                "bytes_per_token_per_rank": _whole(kv.bytes_per_token_per_rank),
                "block_tokens": plan.block_tokens,
                "state_bytes_per_sequence": kv.state_bytes,
                "ideal_bytes_per_sequence": kv.ideal_bytes,
                "windowless_bytes_per_sequence": kv.windowless_bytes,
            },
            "memory_per_gpu": {
                "total_bytes": self.gpu.memory_bytes,
                "usable_bytes": plan.usable_bytes,
                "weight_bytes": plan.weight_bytes,
                "activation_bytes": plan.activation_bytes,
                "graph_bytes": plan.graph_bytes,
                "runtime_bytes": plan.runtime_bytes,
                "kv_bytes": max(0, plan.kv_bytes),
            },
            "capacity": {
                "fits": plan.fits,
                "kv_tokens": plan.kv_tokens,
                "max_concurrency": plan.max_concurrency,
                "max_context_len": plan.max_context_len,
                "num_blocks": plan.num_blocks,
            },
            "latency": {
                "ttft_s": self.ttft_s.to_json(),
                "tpot_s": self.tpot_s.to_json(),
                "output_tokens_per_s": self.output_tokens_per_s.to_json(),
            },
            "cost": self.cost,
            "binding": self.binding,
            "provenance": self.provenance,
            "notes": list(self.notes),
            "alternatives": [
                {
                    "change": tried.change,
                    "fits": tried.fits,
                    "max_concurrency": tried.max_concurrency,
                    "max_context_len": tried.max_context_len,
                    "gain": tried.gain,
                }
                for tried in self.alternatives
            ],
            "settings": self.settings,
        }


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def estimate(request: EstimateRequest) -> Estimate:
    """Say what a deployment needs and holds, how fast it can be at best, and what limits it.

    Nothing is measured here: memory follows the engine's own arithmetic, latency is the roofline
    with assumed shares of it.

    Raises:
        UsageError: A name that is none, or a size or share out of range.
    """
    deployment = deployment_of(request)
    gpu = deployment.gpu
    assert gpu is not None, "a request names one"
    plan = plan_memory(deployment)
    kv = kv_sizes(deployment, plan)
    prompt, output = lengths(request, deployment)
    batch = decode_batch(request, deployment, plan, prompt + output)
    roofs = Roofs(
        peak_flops_per_s(deployment), gpu.memory_bandwidth_bytes_per_s, gpu.link_bytes_per_s
    )
    prefill = prefill_time(deployment, plan, roofs, prompt)
    decode = decode_time(
        deployment, plan, roofs, prompt + output // 2, max(1, batch // deployment.dp)
    )
    ttft, tpot = latency(prefill, PREFILL_SHARES), latency(decode, DECODE_SHARES)
    throughput = Interval(*(batch / time if time and batch else None
                            for time in (tpot.high, tpot.mid, tpot.low)))  # fmt: skip
    settings = {
        "gpu": gpu.name,
        "num_gpus": deployment.num_gpus,
        "tp": deployment.tp,
        "pp": deployment.pp,
        "dp": deployment.dp,
        "engine": deployment.engine.name,
        "engine_version": deployment.engine.version,
        "dtype": deployment.dtype,
        "kv_dtype": deployment.kv_dtype,
        "max_model_len": deployment.max_model_len,
        "prompt_len": prompt,
        "output_len": output,
        "batch_size": batch,
        **plan.settings,
    }
    binding = _binding(request, plan, decode, batch)
    tried = tuple(alternatives(request, deployment, plan))
    return Estimate(
        deployment=deployment,
        gpu=gpu,
        plan=plan,
        kv=kv,
        model_weight_bytes=_model_weight_bytes(deployment),
        ttft_s=ttft,
        tpot_s=tpot,
        output_tokens_per_s=throughput,
        cost=_cost(request, deployment, ttft, throughput, prompt),
        binding=binding,
        provenance=_provenance(request, deployment, gpu),
        notes=_notes(deployment, gpu, plan, kv, tried),
        alternatives=tried,
        settings=settings,
    )


def _model_weight_bytes(deployment: Deployment) -> int:
    """Bytes of the model's weights as stored, no table and no copy on another rank."""
    spec = deployment.model
    if spec.stored_weight_bytes is not None and deployment.quantization is None:
        return spec.stored_weight_bytes
    plain = engine_named("torch")
    whole = replace(deployment, model=replace(spec, rotary_dim=0), engine=plain, tp=1, pp=1, dp=1)
    return rank_weight_bytes(replace(whole, expert_parallel=False))


def _binding(request: EstimateRequest, plan: MemoryPlan, decode: StepTime, batch: int) -> str:
    if plan.kv_bytes <= 0:
        return "weights"
    if not plan.fits or (request.users or 0) > batch:
        return "kv_memory" if not _at_scheduler_limit(plan, batch) else "scheduler"
    if request.users is None and _at_scheduler_limit(plan, batch):
        return "scheduler"
    return decode.binding if request.users else "kv_memory"


def _at_scheduler_limit(plan: MemoryPlan, batch: int) -> bool:
    limit = plan.settings.get("max_num_seqs")
    return isinstance(limit, int) and batch >= limit


def _cost(
    request: EstimateRequest, deployment: Deployment, ttft: Interval, throughput: Interval,
    prompt: int,
) -> dict[str, Any]:  # fmt: skip
    assert deployment.gpu is not None
    each, currency = price_per_gpu_hour(request.price, deployment.gpu.name)
    per_hour = None if each is None else each * deployment.num_gpus
    per_output = per_input = None
    if per_hour is not None and throughput.mid:
        per_output = per_hour / 3600 / throughput.mid * 1e6
    if per_hour is not None and ttft.mid:
        per_input = per_hour / 3600 * ttft.mid / (prompt * deployment.dp) * 1e6
    return {
        "per_hour": per_hour,
        "per_million_input_tokens": per_input,
        "per_million_output_tokens": per_output,
        "currency": currency,
    }


def _provenance(request: EstimateRequest, deployment: Deployment, gpu: Gpu) -> dict[str, str]:
    engine = deployment.engine.overheads
    exact = "computed" if deployment.model.exact else "assumed"
    return {
        "model.num_params": exact,
        "model.num_active_params": exact,
        "model.weight_bytes": exact,
        "kv.bytes_per_token": "computed",
        "kv.bytes_per_sequence": "computed",
        "kv.bytes_per_token_per_rank": "computed",
        "kv.block_tokens": "computed",
        "kv.state_bytes_per_sequence": "computed",
        "kv.ideal_bytes_per_sequence": "computed",
        "kv.windowless_bytes_per_sequence": "computed",
        "memory_per_gpu.total_bytes": "datasheet",
        "memory_per_gpu.usable_bytes": "assumed" if gpu.visible_is_assumed else "computed",
        "memory_per_gpu.weight_bytes": "measured" if engine.weight_scale else exact,
        "memory_per_gpu.activation_bytes": "measured" if engine.activation_scale else "computed",
        "memory_per_gpu.graph_bytes": "measured" if engine.graph_bytes is not None else "assumed",
        "memory_per_gpu.runtime_bytes": (
            "measured" if engine.runtime_bytes is not None else "assumed"
        ),
        "memory_per_gpu.kv_bytes": "computed",
        "capacity.fits": "computed",
        "capacity.kv_tokens": "computed",
        "capacity.max_concurrency": "computed",
        "capacity.max_context_len": "computed",
        "capacity.num_blocks": "computed",
        "latency.ttft_s": "computed",
        "latency.tpot_s": "computed",
        "latency.output_tokens_per_s": "computed",
        "cost.per_hour": "assumed" if request.price is None else "datasheet",
        "cost.per_million_input_tokens": "computed",
        "cost.per_million_output_tokens": "computed",
        "binding": "computed",
    }


def _notes(
    deployment: Deployment, gpu: Gpu, plan: MemoryPlan, kv: KvSizes,
    tried: tuple[Alternative, ...],
) -> tuple[str, ...]:  # fmt: skip
    notes = list(deployment.model.notes)
    engine = deployment.engine
    if engine.version_is_assumed:
        notes.append(
            f"{engine.title} {engine.version} is assumed: the budget differs by version "
            f"(write --engine {engine.name}@VERSION)"
        )
    if gpu.verified == "recalled":
        notes.append(f"the figures of {gpu.title} are recalled from its datasheet, not checked")
    if gpu.visible_is_assumed and gpu.vendor == "NVIDIA":
        notes.append("the memory that programs see is assumed 0.46 GiB below the driver's total")
    if kv.ideal_bytes < 0.99 * kv.windowless_bytes:
        notes.append(
            f"cache of one sequence: ideal {kv.ideal_bytes / GIB:.3g} GiB, admitted by "
            f"{engine.title} {kv.admitted_bytes / GIB:.3g} GiB, "
            f"{kv.windowless_bytes / GIB:.3g} GiB by a formula that ignores windows"
        )
    if deployment.model.kind == "mla" and deployment.tp > 1:
        notes.append(
            f"the latent cache is whole on each of {deployment.tp} ranks: data-parallel attention "
            "would pool them"
        )
    limit = deployment.model.max_position_embeddings
    if limit and deployment.max_model_len > limit:
        notes.append(
            f"max_model_len {deployment.max_model_len} is above the model's {limit} positions"
        )
    notes.extend(plan.notes)
    notes.append(
        "latency is the roofline: low is its limit, mid and high assume shares of it that "
        "serving kernels reach"
    )
    if not plan.fits:
        fixes = [one.change for one in tried if one.fits]
        notes.append(
            "it does not fit; it would with " + ", or ".join(fixes)
            if fixes
            else "it does not fit, and none of the changes tried alone makes it fit"
        )
    return tuple(notes)
