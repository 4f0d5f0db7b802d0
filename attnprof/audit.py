"""An engine's start-up log -> each of its figures held against the estimate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnprof.audit_terms import AuditTerm, terms_of
from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.profile import engine_named
from attnprof.engines.registry import plan_memory
from attnprof.errors import UsageError
from attnprof.files import replace_file
from attnprof.gpus import gpu_named
from attnprof.known_models import known_model
from attnprof.logs.lines import START_BYTES, read_log
from attnprof.logs.parse import EngineLog, parse_log
from attnprof.models.spec import Attention, Layer, Matrix, ModelSpec

FORMAT = 1
MAX_LAYERS, MAX_SIZE = 10_000, 10**8
CLOSE = 0.05
"""A share of difference, beyond the log's rounding, within which a term counts as explained."""


@dataclass(frozen=True)
class Audit:
    """What a log says, term by term, and what is not in it."""

    log: EngineLog
    deployment: Deployment | None
    terms: tuple[AuditTerm, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def off(self) -> str | None:
        """The part of memory whose prediction misses by most, None when all are close."""
        parts = [
            term
            for term in self.terms
            if term.unit == "bytes" and term.given == "settings"
            and abs(term.beyond_rounding or 0.0) > CLOSE and term.term not in ("kv", "total")
        ]  # fmt: skip
        worst = max(parts, key=lambda term: abs(term.difference or 0.0), default=None)
        return worst.term if worst is not None else None

    def to_json(self) -> dict[str, Any]:
        """The document of ``audit --format json``, format 1."""
        spec = self.deployment.model if self.deployment else None
        return {
            "format": FORMAT,
            "engine": self.log.engine,
            "engine_version": self.log.settings.get("version"),
            "model": spec.name if spec else self.log.settings.get("model"),
            "gpu": self.log.settings.get("gpu"),
            "settings": dict(self.log.settings),
            "terms": [term.to_json() for term in self.terms],
            "off": self.off,
            "missing": list(self.missing),
            "outcomes": list(self.log.outcomes),
            "notes": list(self.notes),
        }


def audit_file(path: Path, **choices: Any) -> Audit:
    """As :func:`audit_log`, of a file."""
    return audit_log(read_log(path), **choices)


def audit_log(
    text: str,
    *,
    model: ModelSpec | None = None,
    gpu: str | None = None,
    engine: str | None = None,
) -> Audit:
    """Hold a start-up log against the estimate.

    Args:
        text: The log, colours and rank prefixes and all.
        model: What was served, when the log does not name a model known here.
        gpu: What it ran on, when the log does not say.
        engine: ``name@version``, when the log does not say.

    Raises:
        UsageError: No line of a known engine, or a name that is none.
    """
    log = parse_log(text)
    notes: list[str] = []
    if len(text) >= START_BYTES:
        notes.append(f"only the first {START_BYTES // 2**20} MiB of the log are read")
    missing = [name for name in ("version", "model", "gpu") if name not in log.settings]
    if "build" in log.settings and "version" in missing:
        missing.remove("version")
    spec = model or _model_of(log, notes)
    if spec is None:
        wanted = log.settings.get("model")
        notes.append(
            f"the model {wanted!r} is not known here: give --model"
            if wanted
            else "the log names no model: give --model"
        )
        return Audit(log, None, (), (*missing, *_absent(log)), tuple(notes))
    card = gpu_named(gpu).name if gpu is not None else None
    kind = engine_named(engine).kind if engine is not None else log.engine
    if kind != log.engine:
        raise UsageError(
            f"the log is of {log.engine}, not of {engine}", f"write --engine {log.engine}@VERSION"
        )
    try:
        deployment = _deployment(log, spec, card, engine, notes)
        terms = tuple(terms_of(log, deployment))
    except UsageError as error:
        raise UsageError(
            f"the log's settings make no sense: {error.problem}",
            "give another start-up log, or --model if another one was served",
        ) from None
    return Audit(log, deployment, terms, (*missing, *_absent(log)), tuple(notes))


_WANTED = {
    "vllm": ("weights", "activation", "runtime", "graphs", "kv", "tokens"),
    "sglang": ("weights", "before", "after", "tokens", "graphs"),
    "tensorrt-llm": ("weights", "kv", "tokens"),
    "llama-cpp": ("weights", "kv", "compute"),
    "ollama": ("weights", "kv", "graph"),
}
_COVERS = {"tokens": ("blocks",), "runtime": ("consumed",), "weights": ("peak_torch", "consumed"),
           "activation": ("peak_torch",), "kv": ("k", "blocks")}  # fmt: skip


def _absent(log: EngineLog) -> list[str]:
    """Figures that this engine usually prints and the log lacks."""
    return [
        key
        for key in _WANTED[log.engine]
        if key not in log.figures
        and not any(other in log.figures for other in _COVERS.get(key, ()))
    ]


def _model_of(log: EngineLog, notes: list[str]) -> ModelSpec | None:
    if "n_embd" in log.settings:
        notes.append("the model's shape is what llama.cpp printed of the file")
        return printed_model(log.settings)
    name = log.settings.get("model")
    return known_model(name) if name else None


def printed_model(settings: dict[str, str]) -> ModelSpec:
    """The model whose hyperparameters llama.cpp prints as it loads a GGUF file."""

    def number(key: str, default: int = 0) -> int:
        text = settings.get(key, "")
        if not text.isdigit():
            return default
        limit = MAX_LAYERS if key == "n_layer" else MAX_SIZE
        if len(text) > 12 or int(text) > limit:
            raise UsageError(f"the log says that {key} is {text[:20]}", "give --model")
        return int(text)

    hidden, heads = number("n_embd"), max(1, number("n_head", 1))
    head_dim = number("n_embd_head_k", hidden // heads)
    attention = Attention(
        "full", heads, number("n_head_kv", heads), head_dim, number("n_embd_head_v", head_dim)
    )
    layers = [Layer(attention=attention)] * number("n_layer")
    if window := number("n_swa"):
        sliding = Layer(attention=replace(attention, kind="sliding", window_len=window))
        arch = settings.get("arch", "")
        period = {"gemma3": 6, "gemma2": 2, "gpt": 2, "gptoss": 2, "cohere2": 4}.get(arch, 0)
        layers = [
            layers[index] if not period or (index + 1) % period == 0 else sliding
            for index in range(len(layers))
        ]
    vocab = number("n_vocab")
    return ModelSpec(
        name=settings.get("model", "the model of the log"),
        model_type=settings.get("arch", ""),
        architecture=settings.get("arch", ""),
        hidden_size=hidden,
        vocab_size=vocab,
        layers=tuple(layers),
        outer=(Matrix("token_embd", "embedding", vocab, hidden),),
        tied_embeddings=settings.get("arch", "").startswith("gemma"),
        exact=False,
        source="the log",
    )


def _deployment(
    log: EngineLog, spec: ModelSpec, gpu: str | None, engine: str | None, notes: list[str]
) -> Deployment:
    settings = log.settings
    total = log.figures.get("total")
    card = gpu or settings.get("gpu")
    if card is not None:
        try:
            card = gpu_named(card).name
        except UsageError:
            notes.append(f"the GPU {card!r} is not known here: give --gpu")
            card = None
    if card is None and total is None:
        notes.append("the log names no GPU: its memory is not predicted (give --gpu)")
    request = EstimateRequest(
        model=spec,
        gpu=card or "h100-sxm",
        engine=engine or _engine_text(log),
        tp=_int(settings, "tp") or 1,
        pp=_int(settings, "pp") or 1,
        max_model_len=_int(settings, "max_model_len", "ctx_size"),
        gpu_memory_utilization=_share(settings.get("utilization")),
        dtype=settings.get("dtype") if settings.get("dtype") != "auto" else None,
        quantization=_quantization(settings.get("quantization"), spec),
        kv_dtype=settings.get("k_dtype") or settings.get("kv_dtype") or "auto",
        max_num_seqs=_int(settings, "max_num_seqs"),
        max_num_batched_tokens=_int(settings, "max_num_batched_tokens", "ubatch"),
        block_size=_int(settings, "block_size"),
        enforce_eager=settings.get("enforce_eager") == "True",
        enable_prefix_caching=None,
    )
    deployment = deployment_of(request)
    deployment = replace(deployment, v_dtype=settings.get("v_dtype"))
    if "flash_attention" in settings:
        on = settings["flash_attention"] in ("1", "enabled", "true", "on")
        deployment = replace(deployment, flash_attention=on)
    if total is not None:
        deployment = replace(deployment, total_bytes=round(total))
        if card is None:
            deployment = replace(deployment, gpu=None)
    elif card is None:
        deployment = replace(deployment, gpu=None, total_bytes=0)
    return deployment


WINDOWS_SINCE_BUILD = 5400
"""llama.cpp's build of May 2025, from which sliding layers keep their window alone."""


def _engine_text(log: EngineLog) -> str:
    version = log.settings.get("version", "").lstrip("v")
    if log.engine == "llama-cpp" and log.settings.get("build", "").isdigit():
        return (
            f"llama-cpp@{2025.5 if int(log.settings['build']) >= WINDOWS_SINCE_BUILD else 2024.1}"
        )
    return f"{log.engine}@{version}" if version[:1].isdigit() else log.engine


def _int(settings: dict[str, str], *keys: str) -> int | None:
    for key in keys:
        text = settings.get(key, "").replace(",", "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return None


def _share(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0 < value <= 1 else None


def _quantization(name: str | None, spec: ModelSpec) -> str | None:
    """The logged method, unless the model's own configuration says more about it."""
    if name is None or spec.quantization is not None:
        return None
    from attnprof.engines.quantize import METHODS, SPELLINGS

    return name if name.lower() in METHODS or name.lower() in SPELLINGS else None


def write_profile(audit: Audit, name: str, folder: Path) -> Path:
    """Save what the log measured as an engine profile of the user, for later estimates.

    The memory outside torch and that of graphs are kept as they are, activations and weights as a
    ratio to the prediction, since they follow the settings. Where the log gives no such parts, what
    the cache is smaller by than predicted counts as outside torch.

    Raises:
        UsageError: The log holds no overhead, the name is none, or the folder is not writable.
    """
    if audit.deployment is None:
        raise UsageError("the log's model is not known, so nothing can be saved", "give --model")
    if not name or not all(char.isalnum() or char in "-_." for char in name) or name[0] == ".":
        raise UsageError(f"{name!r} is no name of a profile", "use letters, digits, - and _")
    engine = audit.deployment.engine
    if name == engine.name:
        raise UsageError(f"{name!r} is the engine's own profile", f"name it {name}-here")
    overheads: list[str] = []
    figures = audit.log.figures
    plan = plan_memory(audit.deployment)
    runtime = figures.get("runtime", _unexplained_bytes(plan, figures))
    if runtime is not None and runtime >= 0:
        overheads.append(f"  runtime_bytes: {round(runtime)}")
    if figures.get("graphs", 0) > 0:
        overheads.append(f"  graph_bytes: {round(figures['graphs'])}")
    for key, predicted in (("activation", plan.activation_bytes), ("weight", plan.weight_bytes)):
        logged = figures.get("weights" if key == "weight" else key)
        if logged and predicted and 0.2 < logged / predicted < 5:
            overheads.append(f"  {key}_scale: {logged / predicted:.4f}")
    if not overheads:
        raise UsageError("the log holds no overhead to save", "give a log with the memory's parts")
    path = folder / "engines" / f"{name.lower()}.yaml"
    lines = [
        f"name: {name.lower()}",
        f"extends: {engine.name}@{engine.version}",
        f"title: {engine.title}, as audited",
        f"source: a start-up log of {_one_line(audit.deployment.model.name)}",
        "overheads:",
        *overheads,
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "name another folder") from None
    return path


def _unexplained_bytes(plan: MemoryPlan, figures: Mapping[str, float]) -> float | None:
    """What else the engine took, where its log gives weights and cache and not the parts between.

    Activations stay as predicted; all that the cache is smaller by counts as outside torch.
    """
    if "kv" not in figures or "weights" not in figures or "activation" in figures:
        return None
    if not plan.total_bytes:
        return None
    taken = plan.weight_bytes + plan.kv_bytes - figures["weights"] - figures["kv"]
    return plan.runtime_bytes + taken


def _one_line(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-_./ " else "_" for char in text)[:80]
