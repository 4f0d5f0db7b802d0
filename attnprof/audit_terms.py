"""A log's figures -> terms, each predicted from the settings or from another figure of the log."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from attnprof.engines import llama_cpp, ollama, sglang, share, vllm
from attnprof.engines.base import Deployment
from attnprof.engines.registry import plan_memory
from attnprof.logs.parse import EngineLog, rounding


@dataclass(frozen=True)
class AuditTerm:
    """One figure: what was predicted (``given`` the settings or the log's own parts), and logged.

    ``slack`` is half of the last digit that the log prints, in the same unit: by so much what was
    logged may differ from what was so.
    """

    term: str
    predicted: float | None
    logged: float
    unit: str = "bytes"
    given: str = "settings"
    slack: float = 0.0

    @property
    def difference(self) -> float | None:
        return None if self.predicted is None else self.predicted - self.logged

    @property
    def relative_error(self) -> float | None:
        """Predicted over logged, less one; None where there is no such ratio."""
        if self.difference is None:
            return None
        if self.logged == 0:
            return 0.0 if self.difference == 0 else None
        return self.difference / abs(self.logged)

    @property
    def beyond_rounding(self) -> float | None:
        """The part of the error that the log's rounding does not explain: 0 when within it."""
        if self.difference is None:
            return None
        beyond = max(0.0, abs(self.difference) - self.slack)
        if self.logged == 0:
            return 0.0 if beyond == 0 else None
        return math.copysign(beyond / abs(self.logged), self.difference)

    @property
    def is_within_rounding(self) -> bool:
        """Whether the log's rounding explains all of the error."""
        return self.difference is not None and abs(self.difference) <= self.slack

    def to_json(self) -> dict[str, float | str | bool | None]:
        return {
            "term": self.term,
            "predicted": self.predicted,
            "logged": self.logged,
            "unit": self.unit,
            "given": self.given,
            "relative_error": self.relative_error,
            "rounding": self.slack,
            "beyond_rounding": self.beyond_rounding,
            "within_rounding": self.is_within_rounding,
        }


def terms_of(log: EngineLog, deployment: Deployment) -> Iterator[AuditTerm]:
    """Every figure of the log that has a formula here."""
    readers = {
        "vllm": _vllm_terms,
        "sglang": _sglang_terms,
        "tensorrt-llm": _trt_terms,
        "llama-cpp": _llama_terms,
        "ollama": _ollama_terms,
    }
    yield from readers[log.engine](log, deployment)


def _term(
    log: EngineLog, key: str, predicted: float | None, *, unit: str = "bytes",
    given: str = "settings",
) -> Iterator[AuditTerm]:  # fmt: skip
    if key in log.figures:
        yield AuditTerm(key, predicted, log.figures[key], unit, given, rounding(log, key))


def _count(settings: Mapping[str, str], key: str, default: int) -> int:
    """A setting as a number; the default where the log has none, or nonsense."""
    text = settings.get(key, "")
    return int(text) if text.isdecimal() and 0 < len(text) < 12 and int(text) else default


def _vllm_terms(log: EngineLog, deployment: Deployment) -> Iterator[AuditTerm]:
    figures = log.figures
    plan = plan_memory(deployment)
    pool = vllm.pool(deployment)
    context = deployment.max_model_len
    has_total = deployment.total_bytes > 0
    yield from _term(log, "weights", plan.weight_bytes)
    yield from _term(log, "activation", plan.activation_bytes)
    yield from _term(log, "peak_torch", plan.weight_bytes + vllm.activation_bytes(deployment))
    yield from _term(log, "runtime", plan.runtime_bytes)
    yield from _term(log, "consumed", plan.weight_bytes + plan.runtime_bytes)
    yield from _term(log, "graphs", plan.graph_bytes)
    if has_total:
        yield from _term(log, "kv", plan.kv_bytes)
        yield from _term(log, "tokens", plan.kv_tokens, unit="tokens")
        yield from _term(log, "blocks", plan.num_blocks, unit="blocks")
    yield from _term(log, "block_tokens", max(g.block_tokens for g in pool.groups), unit="tokens")
    yield from _term(log, "cpu_blocks", pool.num_blocks(4 * 2**30), unit="blocks")
    if "kv" in figures:
        half = rounding(log, "kv")
        low, high = (pool.num_blocks(figures["kv"] + sign * half) for sign in (-1, 1))
        middle = pool.num_blocks(figures["kv"])
        spans: dict[str, list[float]] = {
            "tokens": [pool.tokens(count, context) for count in (low, middle, high)],
            "blocks": [low, middle, high],
            "concurrency": [pool.concurrency(count, context) for count in (low, middle, high)],
        }
        for key, (least, mid, most) in spans.items():
            if key in figures:
                slack = rounding(log, key) + max(mid - least, most - mid)
                unit = "x" if key == "concurrency" else key
                yield AuditTerm(f"{key} given kv", mid, figures[key], unit, "log", slack)
    parts = [figures.get(key) for key in ("weights", "activation", "runtime")]
    if has_total and "kv" in figures and None not in parts:
        budget = deployment.total_bytes * vllm.utilization(deployment)
        spent = sum(part for part in parts if part is not None)
        slack = sum(rounding(log, key) for key in ("weights", "activation", "runtime", "kv"))
        yield AuditTerm("kv given parts", budget - spent, figures["kv"], "bytes", "log",
                        slack + 2**23)  # fmt: skip
    if "needed" in figures:
        yield from _term(log, "needed", pool.bytes_per_sequence(context))


def _sglang_terms(log: EngineLog, deployment: Deployment) -> Iterator[AuditTerm]:
    figures = log.figures
    plan = plan_memory(deployment)
    yield from _term(log, "weights", plan.weight_bytes)
    if deployment.total_bytes > 0:
        yield from _term(log, "before", deployment.total_bytes - plan.runtime_bytes)
        yield from _term(log, "tokens", plan.kv_tokens // deployment.dp, unit="tokens")
    yield from _term(log, "graphs", plan.graph_bytes)
    unit = sglang.bytes_per_token(deployment)
    is_told = deployment.total_bytes > 0 or deployment.gpu_memory_utilization is not None
    if "before" in figures and "after" in figures and unit and is_told:
        fraction = sglang.static_fraction(deployment)
        kv = figures["after"] - figures["before"] * (1 - fraction)
        slack = (rounding(log, "before") + rounding(log, "after")) / unit
        if "tokens" in figures:
            yield AuditTerm("tokens given memory", max(0.0, kv) / unit, figures["tokens"],
                            "tokens", "log", slack)  # fmt: skip
    logged = figures.get("kv")
    if logged is None and "k" in figures and "v" in figures:
        logged = figures["k"] + figures["v"]
    if logged is not None and "tokens" in figures:
        per_token = sglang.printed_bytes_per_token(deployment)
        yield AuditTerm("kv given tokens", figures["tokens"] * per_token, logged, "bytes", "log",
                        2 * 0.005 * 2**30)  # fmt: skip


def _trt_terms(log: EngineLog, deployment: Deployment) -> Iterator[AuditTerm]:
    figures = log.figures
    pool = share.pool(deployment, deployment.block_size or 64)
    per_token = pool.bytes_per_block / pool.block_tokens
    yield from _term(log, "weights", plan_memory(deployment).weight_bytes)
    if deployment.total_bytes > 0:
        yield from _term(log, "tokens", plan_memory(deployment).kv_tokens, unit="tokens")
    if "kv" in figures and "tokens" in figures:
        yield AuditTerm("kv given tokens", figures["tokens"] * per_token, figures["kv"], "bytes",
                        "log", rounding(log, "kv"))  # fmt: skip
    if "available" in figures and "blocks" in figures:
        fraction = deployment.gpu_memory_utilization or 0.9
        blocks = fraction * figures["available"] / pool.bytes_per_block
        slack = 1 + rounding(log, "available") / pool.bytes_per_block
        yield AuditTerm("blocks given memory", blocks, figures["blocks"], "blocks", "log", slack)


def _llama_terms(log: EngineLog, deployment: Deployment) -> Iterator[AuditTerm]:
    settings = log.settings
    parallel = _count(settings, "parallel", 1)
    context = _count(settings, "ctx_size", deployment.max_model_len)
    cells = llama_cpp.cells_of(deployment, context, parallel)
    if "mla" in settings:
        mode = int(settings["mla"])
        cells = replace(cells, mla=None if mode in (2, 3) else mode)
    if settings.get("unified") in ("true", "1"):
        cells = replace(cells, unified=True)
    yield from _term(log, "kv", llama_cpp.kv_bytes(deployment.model, cells))
    yield from _term(log, "states", llama_cpp.state_bytes(deployment.model, cells))
    if "file" in log.figures and not deployment.model.tied_embeddings:
        # A tied embedding is kept twice: on the GPU as the head, and on the host.
        yield from _term(log, "weights", log.figures["file"], given="log")
    copies = 1 if deployment.model.tied_embeddings else 2
    compute = llama_cpp.compute_bytes(
        deployment.model, cells, flash_attention=deployment.flash_attention, hidden_copies=copies
    )
    yield from _term(log, "compute", compute)


def _ollama_terms(log: EngineLog, deployment: Deployment) -> Iterator[AuditTerm]:
    engine, settings, spec = deployment.engine, log.settings, deployment.model
    parallel = _count(settings, "parallel", 1)
    context = _count(settings, "ctx_size", deployment.max_model_len)
    batch = _count(settings, "batch", 512)
    cells = ollama.cells(deployment, context // parallel, parallel, batch=batch)
    yield from _term(log, "kv", llama_cpp.kv_bytes(spec, cells))
    graph = ollama.graph_bytes(
        spec, context, batch=batch, vocab_in_graph=engine.flag("vocab_in_graph")
    )
    yield from _term(log, "graph", graph)
