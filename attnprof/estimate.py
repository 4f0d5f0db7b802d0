"""A model, GPUs and an engine -> memory, capacity, latency and cost, and how each was had."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from attnprof.capacity.alternatives import DATA_PARALLEL, Alternative, alternatives
from attnprof.capacity.kv_sizes import KvSizes, kv_sizes
from attnprof.capacity.latency import Interval, decode_batch, lengths
from attnprof.capacity.request import CPU, EstimateRequest, deployment_of
from attnprof.engines.base import GIB, Deployment, MemoryPlan
from attnprof.engines.registry import plan_memory
from attnprof.errors import CannotMeasureError
from attnprof.gpus import Gpu
from attnprof.prices import price_per_gpu_hour
from attnprof.serving.latency import Figures, Latency, Limits, Slo, Sum, latency_of
from attnprof.serving.load import Load
from attnprof.serving.offers import load_of, per_million
from attnprof.serving.own import KERNELS
from attnprof.theory.weights import weight_bytes

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
    ttft_loaded_s: Interval
    tpot_s: Interval
    output_tokens_per_s: Interval
    cost: dict[str, Any]
    binding: str
    provenance: dict[str, str]
    notes: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    curve: tuple[Figures, ...] = ()
    slo: Slo | None = None
    step: Sum | None = None
    latency_fix: str | None = None
    """What to type where latency is unknown for the lack of it."""

    @property
    def is_yes(self) -> bool:
        """Whether it fits, holds as many users as were asked for, and keeps the limits."""
        held = self.serves_users is not False and self.holds_limits is not False
        return self.plan.fits and held

    @property
    def holds_limits(self) -> bool | None:
        """Whether the users asked for, or one, are served within the limits; None without any.

        The middles of the intervals decide, or their upper ends where it was asked to be safe.
        """
        if self.slo is None:
            return None
        return self.slo.batch_size >= (self.settings.get("users") or 1)

    @property
    def num_served(self) -> int | None:
        """Of the users asked for, or of all that are held, those served within memory and limits;
        None where neither was asked for."""
        held = [self.settings["users_served"]] if self.settings.get("users") else []
        held += [] if self.slo is None else [self.slo.batch_size]
        return min([*held, self.settings.get("users") or max(held)]) if held else None

    @property
    def serves_users(self) -> bool | None:
        """Whether as many sequences as were asked for are held at once; None when none were."""
        asked = self.settings.get("users")
        return None if asked is None else self.settings["users_served"] >= asked

    @property
    def writes_tokens(self) -> bool:
        """Whether the model generates; an encoder only reads."""
        return self.deployment.model.kind != "encoder"

    def output_cost(self, point: Figures) -> float | None:
        """What a million output tokens cost at a point of the curve; None without a price."""
        return per_million(self.cost["per_hour"], point.output_tokens_per_s.mid)

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
                "ttft_loaded_s": self.ttft_loaded_s.to_json(),
                "tpot_s": self.tpot_s.to_json(),
                "output_tokens_per_s": self.output_tokens_per_s.to_json(),
            },
            "cost": self.cost,
            "curve": [
                {**point.to_json(), "per_million_output_tokens": self.output_cost(point)}
                for point in self.curve
            ],
            "slo": None if self.slo is None else self.slo.to_json(),
            "step": None if self.step is None else self.step.to_json(),
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

    Nothing is measured here: memory follows the engine's own arithmetic, latency the law of a step
    with coefficients that were fitted to published serving results.

    Raises:
        UsageError: A name that is none, or a size or share out of range.
        CannotMeasureError: Limits of latency, of which nothing is known.
    """
    deployment = deployment_of(request)
    gpu = deployment.gpu
    assert gpu is not None, "a request names one"
    plan = plan_memory(deployment)
    kv = kv_sizes(deployment, plan)
    prompt, output = lengths(request, deployment)
    batch = decode_batch(request, deployment, plan, prompt + output)
    # Of the lengths that were typed; where none were, of sequences as long as the context.
    users_len = prompt + output if request.prompt_len or request.output_len else None
    users_len = users_len or deployment.max_model_len
    served = decode_batch(replace(request, users=None), deployment, plan, users_len)
    law = latency_of(deployment, request.calibration)
    if law.problem is not None and Limits(request.ttft_s, request.tpot_s).are_given:
        fix = "leave --ttft and --tpot out" if law.fix is None else f"write {law.fix}"
        raise CannotMeasureError(f"whether limits hold cannot be said: {law.problem}", fix)
    load = load_of(deployment, plan, prompt, output, batch)
    timed = plan.fits and law.problem is None  # else the engine does not start, and has no times
    figures = law.figures(load) if timed else None
    most = decode_batch(replace(request, users=None), deployment, plan, prompt + output)
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
        "users": request.users,
        "users_served": served,
        "users_len": users_len,
        "safely": request.safely,
        "calibration": ", ".join(law.own.names) or None,
        **plan.settings,
    }
    slo = _slo(request, deployment, plan, law, load, most) if timed else None
    priced = figures
    binding = _binding(request, deployment, plan, law, load, served)
    if slo is not None:
        held = min(slo.batch_size, request.users or slo.batch_size)
        priced = law.figures(replace(load, concurrency=float(held))) if held else None
        if slo.binding is not None and slo.batch_size < (served if request.users else most):
            binding = slo.binding
    tried = tuple(alternatives(request, deployment, plan))
    return Estimate(
        deployment=deployment,
        gpu=gpu,
        plan=plan,
        kv=kv,
        model_weight_bytes=_model_weight_bytes(deployment),
        ttft_s=Interval() if figures is None else figures.ttft_s,
        ttft_loaded_s=Interval() if figures is None else figures.ttft_loaded_s,
        tpot_s=Interval() if figures is None else figures.tpot_s,
        output_tokens_per_s=Interval() if figures is None else figures.output_tokens_per_s,
        cost=_cost(request, deployment, priced, prompt),
        binding=binding,
        provenance=_provenance(request, deployment, gpu, law.provenance),
        notes=_notes(deployment, gpu, plan, kv, tried, law),
        alternatives=tried,
        settings=settings,
        curve=law.curve(load, most, _named_batches(request, slo)) if timed and output else (),
        slo=slo,
        step=law.summed(load) if timed else None,
        latency_fix=law.fix,
    )


def _named_batches(request: EstimateRequest, slo: Slo | None) -> list[int | None]:
    """Those that the answer speaks of: what was asked for, and what holds the limits."""
    return [request.users, *([slo.max_batch_size, slo.safe_batch_size] if slo else [])]


def _slo(
    request: EstimateRequest, deployment: Deployment, plan: MemoryPlan, law: Latency, load: Load,
    most: int,
) -> Slo | None:  # fmt: skip
    limits = Limits(request.ttft_s, request.tpot_s)
    if not limits.are_given:
        return None
    users, output = request.users or 1, round(load.output_len)

    def holds_prompt(length: int) -> bool:
        alone = replace(request, users=None)
        return decode_batch(alone, deployment, plan, length + output) >= users

    return law.slo(
        load, limits, most=most, users=users, holds_prompt=holds_prompt,
        longest=max(0, deployment.max_model_len - output), is_safe=request.safely,
    )  # fmt: skip


def _model_weight_bytes(deployment: Deployment) -> int:
    """Bytes of the model's weights as stored, no table and no copy on another rank."""
    spec = deployment.model
    if spec.stored_weight_bytes is not None and deployment.quantization is None:
        return spec.stored_weight_bytes
    return weight_bytes(spec, spec.quantization, deployment.dtype)


def _binding(
    request: EstimateRequest,
    deployment: Deployment,
    plan: MemoryPlan,
    law: Latency,
    load: Load,
    served: int,
) -> str:
    """What keeps the deployment from serving more: memory, the scheduler, or a roof.

    Where limits of latency hold fewer, it is what makes a step too slow (:class:`Slo`).
    """
    if not plan.fits and plan.kv_bytes <= 0:
        return "weights"
    limit = plan.settings.get("max_num_seqs")
    is_scheduled = isinstance(limit, int) and load.concurrency >= limit * deployment.dp
    if not plan.fits or (request.users or 0) > served:
        return "scheduler" if plan.fits and is_scheduled else "kv_memory"
    if request.users is not None or deployment.model.kind == "encoder":
        step = law.least_token(load) if load.output_len else law.least_prompt(load)
        return step.binding
    return "scheduler" if is_scheduled else "kv_memory"


def _cost(
    request: EstimateRequest, deployment: Deployment, priced: Figures | None, prompt: int
) -> dict[str, Any]:
    """Of the load that is asked for, within the limits if there are any: ``priced``, or none.

    Input is priced as prompts that are read one after another.
    """
    assert deployment.gpu is not None
    each = price_per_gpu_hour(request.price, deployment.gpu.name)
    per_hour = None if each.per_hour is None else each.per_hour * deployment.num_gpus
    read = written = None
    if priced is not None:
        read = prompt * deployment.dp / (priced.ttft_s.mid or math.inf)
        written = priced.output_tokens_per_s.mid
    return {
        "per_hour": per_hour,
        "per_million_input_tokens": per_million(per_hour, read),
        "per_million_output_tokens": per_million(per_hour, written),
        "currency": each.currency,
        "price_list": None if each.prices is None else each.prices.name,
        "price_list_is": None if each.prices is None else each.prices.basis,
        "batch_size": None if priced is None else round(priced.batch_size),
    }


def _provenance(
    request: EstimateRequest, deployment: Deployment, gpu: Gpu, latency: str
) -> dict[str, str]:
    """How each number of the document was had; where it is missing, computed."""
    engine = deployment.engine.overheads
    exact = "computed" if deployment.model.exact else "assumed"
    is_stored = deployment.model.stored_weight_bytes is not None
    known = {
        "model.num_params": exact,
        "model.num_active_params": exact,
        "model.weight_bytes": "computed" if is_stored else exact,
        "memory_per_gpu.total_bytes": "measured" if gpu.name == CPU else "datasheet",
        "memory_per_gpu.usable_bytes": "assumed" if gpu.visible_is_assumed else "computed",
        "memory_per_gpu.weight_bytes": "measured" if engine.weight_scale else exact,
        "memory_per_gpu.activation_bytes": "measured" if engine.activation_scale else "computed",
        "memory_per_gpu.graph_bytes": "measured" if engine.graph_bytes is not None else "assumed",
        "memory_per_gpu.runtime_bytes": (
            "measured" if engine.runtime_bytes is not None else "assumed"
        ),
        "cost.per_hour": (
            "datasheet" if price_per_gpu_hour(request.price, gpu.name).is_known else "assumed"
        ),
    }
    asked = {
        f"settings.{name}": "assumed"
        for name in ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens",
                     "block_size", "max_model_len", "prompt_len", "output_len")
        if getattr(request, name) is None
    }  # fmt: skip
    timed = {name: latency for name in _NUMBERS if name.startswith("latency.")}
    timed |= dict.fromkeys(("curve", "slo", "step"), latency)
    return {**{name: known.get(name, "computed") for name in _NUMBERS}, **timed, **asked}


_NUMBERS = (
    *(f"model.{name}" for name in ("num_params", "num_active_params", "weight_bytes")),
    *(f"kv.{name}" for name in (
        "bytes_per_token", "bytes_per_sequence", "bytes_per_token_per_rank", "block_tokens",
        "state_bytes_per_sequence", "ideal_bytes_per_sequence", "windowless_bytes_per_sequence",
    )),
    *(f"memory_per_gpu.{name}_bytes" for name in (
        "total", "usable", "weight", "activation", "graph", "runtime", "kv",
    )),
    *(f"capacity.{name}" for name in (
        "fits", "kv_tokens", "max_concurrency", "max_context_len", "num_blocks",
    )),
    *(f"latency.{name}{bound}" for name in (
        "ttft_s", "ttft_loaded_s", "tpot_s", "output_tokens_per_s",
    )
      for bound in ("", ".low", ".mid", ".high")),
    *(f"cost.{name}" for name in (
        "per_hour", "per_million_input_tokens", "per_million_output_tokens", "batch_size",
    )),
    "binding", "alternatives", "settings.batch_size", "settings.users_served",
)  # fmt: skip


def _notes(
    deployment: Deployment, gpu: Gpu, plan: MemoryPlan, kv: KvSizes,
    tried: tuple[Alternative, ...], law: Latency,
) -> tuple[str, ...]:  # fmt: skip
    notes = list(deployment.model.notes)
    engine = deployment.engine
    if engine.version_is_assumed:
        notes.append(
            f"{engine.title} {engine.version} is assumed: the budget differs by version "
            f"(write --engine {engine.name}@VERSION)"
        )
    if engine.is_newer_than_known:
        notes.append(
            f"{engine.title} {engine.version} is newer than any known here: it is planned by "
            f"the rules of {engine.newest_known}"
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
    notes.extend(_latent_notes(deployment, plan, tried))
    if deployment.model.kind != "encoder" and not kv.bytes_per_token:
        notes.append(
            "every layer has a window or a state: at this context one more token adds no cache"
        )
    if deployment.num_draft_tokens and not deployment.model.draft_layers:
        notes.append("the draft model's weights are not counted: its cache is, as of one layer")
    limit = deployment.model.max_position_embeddings
    if limit and deployment.max_model_len > limit:
        notes.append(
            f"max_model_len {deployment.max_model_len} is above the model's {limit} positions"
        )
    notes.extend(plan.notes)
    notes.append(_latency_words(law))
    notes.extend(_calibration_notes(law))
    if not plan.fits:
        fixes = [one.change for one in tried if one.fits]
        notes.append(
            "it does not fit; it would with " + ", or ".join(fixes)
            if fixes
            else "it does not fit, and none of the changes tried alone makes it fit"
        )
    return tuple(notes)


def _latency_words(law: Latency) -> str:
    if law.problem is not None:
        return f"latency is unknown: {law.problem}"
    return law.words


def _calibration_notes(law: Latency) -> Iterator[str]:
    """Which calibrations the kernels follow, and what was left out of them."""
    if law.own.values:
        laws = sorted({KERNELS[name][0] for name in law.own.values})
        named = " and ".join(law.own.names)
        yield f"kernels follow the calibration {named}: its laws of {', '.join(laws)}"
    yield from law.own.notes
    yield from law.missed_laws


def _latent_notes(
    deployment: Deployment, plan: MemoryPlan, tried: tuple[Alternative, ...]
) -> Iterator[str]:
    """Whether the latent cache is copied or pooled, and what data-parallel attention changes."""
    if deployment.model.kind != "mla":
        return
    if deployment.tp > 1:
        pooled = next((one for one in tried if one.change.startswith(DATA_PARALLEL)), None)
        gained = ""
        if pooled is not None and pooled.gain is not None:
            gained = (
                f"; that is {deployment.tp} times the sequences for the same cache memory of a "
                f"GPU, and {pooled.gain:.2f} times here, where each then holds attention whole"
            )
        yield (
            f"the latent cache is whole on each of {deployment.tp} ranks: data-parallel attention "
            f"would have {deployment.tp} pools in place of {deployment.tp} copies{gained}"
        )
    if deployment.dp_attention:
        ranks = deployment.tp * deployment.dp
        split = replace(deployment, tp=ranks, dp=1, dp_attention=False)
        more = plan.weight_bytes - plan_memory(split).weight_bytes
        yield (
            f"{deployment.dp} pools of latents, not copies: {deployment.dp} times the sequences "
            f"for the same cache memory of a GPU, of which {more / GIB:.3g} GiB go to attention "
            f"weights that --tp {ranks} would split"
        )
