"""What is asked of an estimate -> a deployment, every name found and every size checked."""

import math
from dataclasses import dataclass

from attnprof.dtypes import dtype_named
from attnprof.engines.base import SPLITS_LAYERS, Deployment
from attnprof.engines.profile import EngineProfile, engine_named
from attnprof.engines.quantize import quantized
from attnprof.errors import UsageError
from attnprof.gpus import Gpu, gpu_named
from attnprof.models.spec import ModelSpec

MAX_GPUS = 65_536
MAX_CONTEXT = 2**31
MAX_DRAFT_TOKENS = 1024
DEFAULT_CONTEXT = 8192
MAX_LIMIT_S = 1e6


@dataclass(frozen=True)
class EstimateRequest:
    """What is asked; None is left to the engine's or the model's default.

    ``num_gpus`` defaults to tp · pp · dp; names follow the engines' own flags.
    """

    model: ModelSpec
    gpu: str
    engine: str = "vllm"
    num_gpus: int | None = None
    tp: int | None = None
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    num_draft_tokens: int = 0
    prompt_len: int | None = None
    output_len: int | None = None
    users: int | None = None
    price: str | None = None
    ttft_s: float | None = None
    """The longest accepted time to first token, and below per output token. [s]"""
    tpot_s: float | None = None
    safely: bool = False
    """Whether limits are held by the upper ends of the intervals, in place of their middles."""
    calibration: str | None = None
    """Whose laws the kernels of a step follow, by name or file; None: the user's own of the GPU."""


def deployment_of(request: EstimateRequest) -> Deployment:
    """The deployment that a request asks for, every size checked.

    Raises:
        UsageError: A name that is none, or a size or share out of range.
    """
    engine = engine_named(request.engine)
    gpu = _device(request, engine)
    spec = request.model
    if not spec.layers and not spec.encoder_layers:
        raise UsageError(f"model {spec.name!r} has no layers", "give its config.json")
    if request.quantization is not None:
        spec = quantized(spec, request.quantization)
    tp, dp, attends_apart = _ranks(request, engine)
    pp = request.pp
    if engine.kind in SPLITS_LAYERS:
        tp, pp = 1, tp * pp
    if pp > max(1, len(spec.layers)):
        raise UsageError(
            f"{pp} stages are more than the {len(spec.layers)} layers of {spec.name}",
            f"use {len(spec.layers)} GPUs or fewer for them",
        )
    context = _context(request)
    utilization = request.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise UsageError(
            f"gpu_memory_utilization is {utilization}", "write a share above 0 and up to 1"
        )
    if request.output_len is not None and spec.kind == "encoder":
        raise UsageError(
            f"output_len is {request.output_len}, and {spec.name} writes no tokens",
            "leave it out: an encoder only reads",
        )
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "prompt_len",
                 "output_len", "users"):  # fmt: skip
        value = getattr(request, name)
        if value is not None and not 1 <= value <= MAX_CONTEXT:
            raise UsageError(f"{name} is {value}", f"write a whole number from 1 to {MAX_CONTEXT}")
    for name in ("ttft_s", "tpot_s"):
        limit = getattr(request, name)
        if limit is not None and not 0 < limit < MAX_LIMIT_S:
            raise UsageError(
                f"{name.removesuffix('_s')} is {limit:g} s",
                f"write a time above 0 and below {MAX_LIMIT_S:g} s: 200ms, 2s",
            )
    if request.safely and request.ttft_s is None and request.tpot_s is None:
        raise UsageError(
            "safely is how limits of latency are held, and none is given",
            "give --ttft or --tpot, or leave --safely out",
        )
    if request.tpot_s is not None and spec.kind == "encoder":
        raise UsageError(f"tpot is a limit, and {spec.name} writes no tokens", "leave it out")
    if not 0 <= request.num_draft_tokens <= MAX_DRAFT_TOKENS:
        raise UsageError(
            f"num_draft_tokens is {request.num_draft_tokens}",
            f"write a whole number from 0 to {MAX_DRAFT_TOKENS}",
        )
    return Deployment(
        model=spec,
        engine=engine,
        total_bytes=gpu.visible_memory_bytes,
        gpu=gpu,
        tp=tp,
        pp=pp,
        dp=dp,
        dp_attention=attends_apart,
        expert_parallel=request.expert_parallel or attends_apart,
        dtype=_dtype(request, engine),
        kv_dtype=request.kv_dtype,
        quantization=request.quantization,
        max_model_len=context,
        gpu_memory_utilization=utilization,
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        block_size=request.block_size,
        enforce_eager=request.enforce_eager,
        enable_prefix_caching=request.enable_prefix_caching,
        num_draft_tokens=request.num_draft_tokens,
        draft_layers=len(spec.draft_layers) or 1 if request.num_draft_tokens else 0,
    )


def _device(request: EstimateRequest, engine: EngineProfile) -> Gpu:
    """The GPU, or this computer's CPU, on which plain torch alone is planned."""
    if not is_cpu(request.gpu):
        return gpu_named(request.gpu)
    if engine.kind != "torch":
        raise UsageError(f"engine {engine.name} is not planned on a CPU", "write --engine torch")
    if max(request.num_gpus or 1, request.tp or 1, request.pp, request.dp) > 1:
        raise UsageError("a CPU is one device", "leave out gpus, tp, pp and dp")
    return device_named(request.gpu, request.calibration)


def device_named(name: str, calibration: str | None = None) -> Gpu:
    """A GPU, or this computer's CPU as its calibration describes it.

    Raises:
        UsageError: No such GPU, or a CPU of which nothing is known.
    """
    if not is_cpu(name):
        return gpu_named(name)
    from attnprof.capacity.local_cpu import calibration_of_cpu, local_cpu

    return local_cpu(calibration_of_cpu(calibration))


def is_cpu(name: str) -> bool:
    """Whether ``--gpu`` names this computer's own processor."""
    return name.lower() == CPU


CPU = "cpu"
"""What ``--gpu`` calls this computer's own processor."""
SHARES_EXPERTS = ("vllm",)
"""Engines whose data-parallel ranks always hold the experts of a model together."""


def _ranks(request: EstimateRequest, engine: EngineProfile) -> tuple[int, int, bool]:
    """Ranks of attention's tensor parallelism, groups of them, and whether these share experts.

    Data-parallel attention, as SGLang writes it, divides the ranks of ``tp`` into ``dp`` groups;
    elsewhere, and with as many GPUs, ``dp`` multiplies them: replicas, but for vLLM's experts.
    """
    for name in ("pp", "dp"):
        value = getattr(request, name)
        if not 1 <= value <= MAX_GPUS:
            raise UsageError(f"{name} is {value}", f"write a number from 1 to {MAX_GPUS}")
    tp, dp = request.tp, request.dp
    if request.num_gpus is not None and not 1 <= request.num_gpus <= MAX_GPUS:
        raise UsageError(f"gpus is {request.num_gpus}", f"write a number from 1 to {MAX_GPUS}")
    if tp is None:
        tp = (request.num_gpus or request.pp * dp) // (request.pp * dp)
    if not 1 <= tp <= MAX_GPUS:
        few = "give as many GPUs as tp x pp x dp"
        raise UsageError(f"tp is {tp}", f"write a number from 1 to {MAX_GPUS}" if tp > 0 else few)
    divides = request.num_gpus == tp * request.pp
    if engine.kind == "sglang" and request.num_gpus is None:
        divides = True
    if dp > 1 and divides:
        if tp % dp:
            raise UsageError(f"dp {dp} does not divide tp {tp}", f"write --gpus {tp * dp}")
        tp //= dp
    asked = tp * request.pp * dp
    if request.num_gpus is not None and asked != request.num_gpus:
        raise UsageError(
            f"tp x pp x dp is {asked}, gpus is {request.num_gpus}", f"write --gpus {asked}"
        )
    if asked > MAX_GPUS:
        raise UsageError(f"tp x pp x dp is {asked}", f"ask for at most {MAX_GPUS} GPUs")
    heads = [layer.attention.num_q_heads for layer in request.model.layers if layer.attention]
    if any(count % tp for count in heads) and engine.kind in ("vllm", "sglang", "tensorrt-llm"):
        raise UsageError(
            f"tp {tp} does not divide the {heads[0]} query heads of {request.model.name}",
            f"write a tp that divides {math.gcd(*heads)}"
            + (f", or --tp 1 --dp {tp}" if request.tp is None and dp == 1 else ""),
        )
    shares = divides or engine.kind in SHARES_EXPERTS
    return tp, dp, dp > 1 and shares and request.model.is_moe


def _context(request: EstimateRequest) -> int:
    limit = request.model.max_position_embeddings
    context = request.max_model_len
    if context is None:
        context = min(limit, DEFAULT_CONTEXT) if limit else DEFAULT_CONTEXT
        needed = (request.prompt_len or 0) + (request.output_len or 0)
        context = max(context, needed)
    if not 1 <= context <= MAX_CONTEXT:
        raise UsageError(
            f"max_model_len is {context}", f"write a number of tokens from 1 to {MAX_CONTEXT}"
        )
    return context


HALVES_FLOAT32 = ("vllm", "sglang", "tgi", "lmdeploy", "tensorrt-llm")
"""Engines that load a float32 checkpoint as float16 unless told."""


def _dtype(request: EstimateRequest, engine: EngineProfile) -> str:
    if request.dtype in (None, "auto"):
        dtype = request.model.dtype
        if dtype == "float32" and engine.kind in HALVES_FLOAT32:
            return "float16"
        return dtype if dtype in ("float16", "bfloat16", "float32") else "bfloat16"
    name = dtype_named(request.dtype or "").name
    if name not in ("float16", "bfloat16", "float32"):
        raise UsageError(
            f"dtype {request.dtype!r} is for weights alone", f"write --quantization {request.dtype}"
        )
    return name
