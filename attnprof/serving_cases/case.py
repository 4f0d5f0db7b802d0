"""A line of the serving cases -> a deployment, with what the line leaves open kept open."""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnprof.engines.base import GIB, Deployment
from attnprof.engines.profile import engine_named, version_of_date
from attnprof.errors import UsageError
from attnprof.gpus import Gpu, gpu_named
from attnprof.known_models import known_model, model_of_shape
from attnprof.models.spec import ModelSpec
from attnprof.serving_cases.model import model_of_case

FAMILIES = {
    "vLLM V0": "vllm", "vLLM V1": "vllm", "SGLang": "sglang", "TensorRT-LLM": "tensorrt-llm",
    "llama.cpp family": "llama-cpp", "Ollama": "ollama",
}  # fmt: skip
LAST_V0 = "0.7.9"
UNKNOWN_TOTAL_BYTES = 24 * GIB


@dataclass(frozen=True)
class Case:
    """One logged deployment: the line, and what is deployed as far as it says."""

    row: dict[str, Any]
    deployment: Deployment
    total_is_known: bool
    version_is_known: bool
    weights_are_described: bool
    """Whether the weights follow from the line: a known model, or all widths given."""

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def reported(self) -> dict[str, Any]:
        found: dict[str, Any] = self.row["reported"]
        return found

    def number(self, *keys: str) -> float | None:
        """The first of ``keys`` that the log gave as a number."""
        for key in keys:
            value = self.reported.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return None


def setting(settings: dict[str, Any], *keys: str) -> float | None:
    """The number that a setting holds, in front of what a reader added to it.

    >>> setting({"gpu_memory_utilization": "default 0.9"}, "gpu_memory_utilization")
    0.9
    >>> setting({"max_model_len": "8192 (implied)"}, "max_model_len")
    8192.0
    """
    for key in keys:
        value = settings.get(key)
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str) and (found := re.search(r"\d+(?:\.\d+)?", value)):
            return float(found[0])
    return None


def _size(row: dict[str, Any], key: str, limit: float) -> float | None:
    """A number that the line itself states, None when it states none.

    Raises:
        ValueError: It is no number, or out of range.
    """
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= limit:
        raise ValueError(f"{key} is {value!r}")
    return float(value)


def _whole(settings: dict[str, Any], *keys: str) -> int | None:
    found = setting(settings, *keys)
    return None if found is None else int(found)


def gpu_of(text: str) -> Gpu | None:
    """The GPU that a line names, None when it names none or only describes it.

    >>> gpu_of("H100 80GB").name, gpu_of("24 GB card")
    ('h100-sxm', None)
    """
    if "unstated" in text or "not certain" in text:
        return None
    plain = re.sub(r"\(.*?\)|\bx\s*\d+\b|^\d+\s*x\s*|^NVIDIA ", "", text).strip()
    tries = [plain, re.sub(r"\s*\d+\s*GB$", "", plain), plain.split(",")[0]]
    for name in tries:
        try:
            return gpu_named(name)
        except UsageError:
            continue
    return None


def engine_version(row: dict[str, Any]) -> tuple[str, bool]:
    """The version to assume, and whether the line states one.

    A date stands for what was newest then, and the late V0 of a release that already had V1 for
    the last V0.
    """
    kind, text = FAMILIES.get(row["engine_family"], ""), str(row["engine_version"])
    dated = re.search(r"(20\d\d)(?:-(\d\d))?", text)
    number = re.search(r"(\d+\.\d+(?:\.\d+)?)", text)
    if dated is not None and (number is None or kind == "llama-cpp"):
        month = f"{dated[1]}-{dated[2]}" if dated[2] else dated[1]
        month = f"{dated[1]}-03" if "early" in text else month
        if kind == "llama-cpp":
            return month.replace("-0", ".").replace("-", "."), True
        found, known = version_of_date(kind, month) or "", bool(dated[2])
    elif number is not None:
        found, known = number[1], True
    else:
        found, known = "", False
    if re.match(r"0\.2x", text):
        found, known = "0.21", False
    if row["engine_family"] == "vLLM V0" and (not found or _tuple(found) >= (0, 8)):
        return LAST_V0, known
    if row["engine_family"] == "vLLM V1" and found and _tuple(found) < (0, 8):
        return "0.8", known
    return found, known


def _tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _model(config: dict[str, Any], name: str, settings: dict[str, Any]) -> tuple[ModelSpec, bool]:
    """The model of a line, and whether its weights are described.

    A profile of that name is better than the line's few values, where the two agree.
    """
    described = model_of_case(config, name, settings)
    known = known_model(name) or _same_shape(described)
    shape = (described.num_layers, described.hidden_size)
    if known is not None and (known.num_layers, known.hidden_size) == shape:
        quantization = described.quantization or known.quantization
        return replace(known, name=name, quantization=quantization), True
    has_widths = bool(config.get("intermediate_size"))
    if config.get("moe"):
        # Where latent attention is, intermediate_size is that of the few dense layers.
        has_own = bool(config.get("moe_intermediate_size"))
        has_widths = bool(config.get("n_experts")) and (
            has_own or (has_widths and not config.get("kv_lora_rank"))
        )
    plain = described.model_type not in ("granitemoehybrid", "nemotron_h", "kimi_linear")
    return described, has_widths and plain


@cache
def _known_shape(
    num_layers: int, hidden_size: int, vocab_size: int, heads: tuple[int, int]
) -> ModelSpec | None:
    return model_of_shape(num_layers, hidden_size, vocab_size, heads)


def _same_shape(spec: ModelSpec) -> ModelSpec | None:
    """The known model that a fine-tune of another name has the shape of."""
    attention = next((la.attention for la in spec.layers if la.attention is not None), None)
    if attention is None or spec.encoder_layers:
        return None
    heads = (attention.num_q_heads, attention.num_kv_heads)
    return _known_shape(spec.num_layers, spec.hidden_size, spec.vocab_size, heads)


def case_of(row: dict[str, Any]) -> Case | None:
    """The case in a line; None for engines and models that are not described."""
    kind = FAMILIES.get(str(row.get("engine_family")))
    if row["engine_family"] == "LMDeploy/TGI":
        kind = "tgi" if row["engine"] == "TGI" else "lmdeploy"
    config = row.get("config") or {}
    if kind is None or not config.get("num_hidden_layers"):
        return None
    settings = row.get("settings") or {}
    version, is_known = engine_version(row)
    engine = engine_named(f"{kind}@{version}" if version else kind)
    gpu = gpu_of(str(row.get("gpu") or ""))
    if re.search(r"Metal|TPU", str(row["engine"])):  # plugins that plan windows as full attention
        engine = replace(engine, constants={**engine.constants, "hybrid_groups": False})
    if re.search(r"CPU|Ascend", str(row["engine"])):
        engine = replace(engine, constants={**engine.constants, "block_tokens": 128})
    total = _size(row, "gpu_total_gib", 2.0**20)
    if total is None and row["reported"].get("total_bytes"):
        total = row["reported"]["total_bytes"] / GIB
    total_bytes = round(total * GIB) if total else gpu.visible_memory_bytes if gpu else None
    text = str(settings.get("speculative") or "")
    mtp = re.search(r"MTP, (?:up to )?(\d+)", text)
    dtype = {"half": "float16"}.get(str(settings.get("dtype")), settings.get("dtype"))
    cache = settings.get("kv_cache_dtype") or settings.get("cache_type") or "auto"
    model, is_described = _model(config, str(row["model"]), settings)
    tp, dp = int(_size(row, "tp", 1024) or 1), int(setting(settings, "dp") or 1)
    if kind == "sglang" and dp > 1 and tp % dp == 0:
        tp //= dp
    else:
        dp = 1
    deployment = Deployment(
        model=model,
        engine=engine,
        total_bytes=total_bytes or UNKNOWN_TOTAL_BYTES,
        gpu=gpu,
        tp=tp,
        dp=dp,
        dp_attention=dp > 1,
        expert_parallel=dp > 1,
        pp=int(_size(row, "pp", 1024) or 1),
        dtype=str(dtype) if dtype in ("float32", "float16", "bfloat16") else "bfloat16",
        kv_dtype=str(cache).split("/")[0].strip(),
        max_model_len=_whole(settings, "max_model_len", "ctx_size", "ctx_size_total", "num_ctx")
        or model.max_position_embeddings
        or 8192,
        gpu_memory_utilization=setting(
            settings, "gpu_memory_utilization", "mem_fraction_static",
            "kv_cache_free_gpu_mem_fraction", "fraction",
        ),
        max_num_seqs=_whole(settings, "max_num_seqs", "max_running_requests"),
        max_num_batched_tokens=_whole(settings, "max_num_batched_tokens"),
        block_size=_whole(settings, "block_size", "tokens_per_block", "page_size"),
        enforce_eager=settings.get("enforce_eager") is True,
        enable_prefix_caching=settings.get("enable_prefix_caching"),
        mamba_ssm_cache_dtype=settings.get("mamba_ssm_cache_dtype"),
        num_draft_tokens=int(mtp[1]) if mtp else 0,
        draft_layers=1 if text else 0,
    )  # fmt: skip
    is_described = is_described and row.get("tp", 1) is not None
    return Case(row, deployment, total_bytes is not None, is_known, is_described)
