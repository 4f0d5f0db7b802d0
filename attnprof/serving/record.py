"""A line of published serving results -> the deployment and the load that it describes.

Names are those of many people: models by hub id with what packing added, GPUs as drivers, shops or
tools write them, engines with any version. What cannot be told is a reason, not a guess.
"""

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnprof.engines.base import Deployment
from attnprof.engines.profile import EngineProfile, engine_named
from attnprof.engines.quantize import METHODS
from attnprof.engines.registry import plan_memory
from attnprof.errors import UsageError
from attnprof.gpus import Gpu, gpu_named
from attnprof.known_models import model_called
from attnprof.models.spec import ModelSpec
from attnprof.serving.load import DEFAULT_CHUNK, Load

ENGINES = {
    "vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm",
    "llama.cpp": "llama-cpp", "llama-cpp": "llama-cpp", "deepspeed-mii": "torch",
    "deepspeed": "torch", "lmdeploy": "lmdeploy", "tgi": "tgi", "ollama": "ollama",
    "transformers": "torch", "torch": "torch",
}  # fmt: skip
PLAIN = ("", "bf16", "bfloat16", "fp16", "f16", "float16", "bf16_or_fp16", "half")
STORED = {"fp8_block": "fp8", "fp4": "nvfp4", "int4_wo": "int4", "int8_wo": "int8", "w4a16": "int4",
          "w8a8": "int8"}  # fmt: skip
"""What a weight format is called elsewhere -> here."""

BEYOND_CACHE = 2.0
"""Times the requests that the cache holds, from which on a concurrency is not that of the GPUs, or
the prompts are not read: the engines' memory is not known so badly."""


@dataclass(frozen=True)
class Topology:
    """Prefill and decode on workers of their own: how many of each."""

    prefill_workers: int
    decode_workers: int


@dataclass(frozen=True)
class Described:
    """What a line says was served, and how it was loaded.

    ``prefill`` is the deployment that reads prompts, where others write; ``load`` is that of one
    of the workers that write.
    """

    deployment: Deployment
    load: Load
    topology: Topology | None = None
    prefill: Deployment | None = None


def described(line: dict[str, Any]) -> Described:
    """The deployment and load of a line.

    Raises:
        UsageError: It does not say enough, or a name in it is none; ``problem`` is the reason.
    """
    spec = served_model(line)
    gpu = gpu_called(str(line["gpu"]))
    engine = engine_called(str(line["engine"]), str(line.get("engine_version", "")))
    workload = line["workload"]
    prompt, output = workload.get("isl_mean"), workload.get("osl_mean")
    if not prompt:
        raise UsageError("prompt length not stated", "add isl_mean")
    topology, ranks, reading = _ranks(line, spec)
    deployment = Deployment(
        model=spec, engine=engine, total_bytes=gpu.visible_memory_bytes, gpu=gpu,
        dtype=spec.dtype if spec.dtype in ("float16", "bfloat16") else "bfloat16",
        kv_dtype=_kv_dtype(line), max_model_len=round(prompt + (output or 0)) + 1, **ranks,
    )  # fmt: skip
    concurrency = workload.get("concurrency") or workload.get("avg_batch_size")
    if not concurrency and workload.get("arrival") in ("closed_loop", "saturated"):
        raise UsageError("concurrency not stated", "add concurrency")
    concurrency = concurrency or 1
    if topology is not None:
        concurrency = concurrency / topology.decode_workers
    settings = line.get("engine_args") or {}
    held = most_at_once(deployment)
    if concurrency > BEYOND_CACHE * held:
        raise UsageError(
            "more requests at once than twice what the cache holds",
            f"{concurrency:g} of {held:.3g}: state all GPUs, or what was cached before",
        )
    load = Load(
        concurrency=float(concurrency),
        prompt_len=float(prompt),
        output_len=float(output or 0),
        chunk_len=float(settings.get("max_num_batched_tokens") or DEFAULT_CHUNK),
    )
    prefill = replace(deployment, **reading) if reading is not None else None
    return Described(deployment, load, topology, prefill)


def served_model(line: dict[str, Any]) -> ModelSpec:
    """The line's model with its weights as the line says they were stored.

    Raises:
        UsageError: No profile of it, or a format that is not stated.
    """
    spec = model_called(str(line["model"]))
    if spec is None:
        raise UsageError("no model", f"add a profile of {line['model']}")
    dense = str(line.get("gemm_quant") or line.get("precision") or "").lower()
    experts = str(line.get("moe_quant") or "").lower()
    form = experts if spec.is_moe and experts else dense
    form = STORED.get(form, form)
    own = spec.quantization
    if form == "submission_specific":
        raise UsageError("precision and parallelism are in the submission alone", "state them")
    if own is not None and own.method == "mxfp4":
        return spec  # published in no other form: labels of it are those of the arithmetic
    if form in PLAIN:
        return replace(spec, quantization=None, stored_weight_bytes=None)
    if own is not None and (own.method == form or (form == "int4" and own.bits == 4)):
        return spec
    if form not in METHODS:
        raise UsageError(f"precision {form!r} is not known", "write bf16, fp8, nvfp4, int4")
    return replace(spec, quantization=METHODS[form], stored_weight_bytes=None)


_NOISE = re.compile(
    r"\b(?:\d+\s*GB|GPU|\d+-Core|per GPU|Blackwell)\b|\(.*\)|NVIDIA|Nvidia|AMD|Habana|Intel"
)


@cache
def gpu_called(name: str) -> Gpu:
    """The GPU of a name as people write it, maker and memory said or not.

    >>> gpu_called("NVIDIA H200 SXM5 141GB").name, gpu_called("4090 24GB").name
    ('h200-sxm', 'rtx-4090')

    Raises:
        UsageError: No profile of it.
    """
    plain = name.replace("_", "-").replace("‑", "-")
    short = " ".join(_NOISE.sub(" ", plain).split())
    short = re.sub(r"SXM\d", "SXM", re.sub(r" SE$", " server", short))
    tries = [plain, short, f"rtx {short}", f"{short} sxm", f"{short} 80gb", f"{short} sxm 80gb"]
    tries.append(f"{short} server")
    for attempt in tries:
        try:
            return gpu_named(attempt)
        except UsageError:
            continue
    raise UsageError("no GPU profile", f"add one of {name}")


@cache
def engine_called(name: str, version: str) -> EngineProfile:
    """The engine of a name, at the version where it is one.

    Raises:
        UsageError: No profile of it.
    """
    known = ENGINES.get(name.lower())
    if known is None:
        raise UsageError("no engine profile", f"add one of {name}")
    number = re.match(r"v?(\d+\.\d+(?:\.\d+)?)", version)
    if number:
        try:
            return engine_named(f"{known}@{number[1]}")
        except UsageError:
            pass
    return engine_named(known)


def _kv_dtype(line: dict[str, Any]) -> str:
    stated = line.get("kv_dtype")
    if stated:
        return str(stated)
    # NVIDIA's own quantised checkpoints ask for a cache in FP8, and its engine does so.
    asks = str(line["model"]).startswith("nvidia/") and line.get("engine") == "trtllm"
    return "fp8" if asks else "auto"


def most_at_once(deployment: Deployment) -> float:
    """Requests of the deployment's context that its cache holds; none are said not to fit."""
    plan = plan_memory(deployment)
    return plan.max_concurrency if plan.fits else math.inf


def _count(value: Any) -> int:
    """A size of parallelism: 1 where it is none, a flag or zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def _ranks(
    line: dict[str, Any], spec: ModelSpec
) -> tuple[Topology | None, dict[str, Any], dict[str, Any] | None]:
    """How one worker's ranks are arranged, and of workers that read prompts, where there are."""
    split = line.get("topology")
    if split:
        topology = Topology(
            _count(split.get("prefill_workers")), _count(split.get("decode_workers"))
        )
        each = _count(split.get("gpus_per_worker")) if "gpus_per_worker" in split else None
        return topology, _worker(split, "decode", each, spec), _worker(split, "prefill", each, spec)
    tp, pp = line.get("tp"), _count(line.get("pp"))
    if tp is None and line["num_gpus"] != 1:
        raise UsageError("parallelism not stated", "add tp")
    tp = _count(tp)
    attention_dp = _count(line.get("attention_dp"))
    dp = _count(line.get("dp"))
    if attention_dp == 1 and dp == 1 and line["num_gpus"] > tp * pp and line.get("ep"):
        dp = line["num_gpus"] // (tp * pp)
    experts = line.get("moe_ep") or line.get("ep") or 0
    spreads = spec.is_moe and (experts is True or _count(experts) > 1)
    if attention_dp > 1 and tp == line["num_gpus"] // pp:
        tp = max(1, tp // attention_dp)
    groups = max(dp, attention_dp)
    return None, {"tp": tp, "pp": pp, "dp": groups, "expert_parallel": spreads,
                  "dp_attention": groups > 1 and spreads}, None  # fmt: skip


def _worker(split: dict[str, Any], kind: str, each: int | None, spec: ModelSpec) -> dict[str, Any]:
    if each is not None:
        return {"tp": each, "pp": 1, "dp": 1, "expert_parallel": False, "dp_attention": False}
    groups = _count(split.get(f"{kind}_attention_dp"))
    spreads = spec.is_moe and _count(split.get(f"{kind}_moe_ep")) > 1
    return {"tp": _count(split.get(f"{kind}_tp")), "pp": _count(split.get(f"{kind}_pp")),
            "dp": groups, "expert_parallel": spreads or groups > 1,
            "dp_attention": groups > 1 and spec.is_moe}  # fmt: skip
