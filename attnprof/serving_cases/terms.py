"""A serving case -> the terms that its log states, each predicted here."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from attnprof.engines import llama_cpp, ollama, sglang, share, vllm
from attnprof.engines.base import GIB, MemoryPlan
from attnprof.engines.pool import BlockPool
from attnprof.engines.registry import plan_memory
from attnprof.engines.weights import rank_weight_bytes
from attnprof.serving_cases.case import Case, setting

MIB = 2**20
V0_SWAP_BYTES = 4 * GIB
HALF_A_PRINTED_DIGIT = 0.005


@dataclass(frozen=True)
class Term:
    """One figure of one log: what was predicted, what was reported, and why they differ."""

    term: str
    predicted: float | None
    reported: float
    note: str = ""

    @property
    def relative_error(self) -> float | None:
        """Predicted over reported, less one; None where nothing can be predicted."""
        if self.predicted is None:
            return None
        if self.reported == 0:
            return 0.0 if self.predicted == 0 else None
        return (self.predicted - self.reported) / abs(self.reported)


def terms_of(case: Case) -> list[Term]:
    """Every term of a case that has a formula here."""
    kind = case.deployment.engine.kind
    sources = {
        "vllm": (_vllm_terms,),
        "sglang": (_sglang_terms, _sglang_settings_terms),
        "tensorrt-llm": (_trt_terms, _share_terms),
        "llama-cpp": (_llama_terms,),
        "ollama": (_ollama_terms,),
        "tgi": (_token_terms,),
        "lmdeploy": (_token_terms,),
    }[kind]
    return [term for source in sources for term in source(case)]


def rule_terms(row: dict[str, Any]) -> Iterator[Term]:
    """What an engine decides at start-up by its figures alone, whatever the model."""
    reported, outcome = row["reported"], str(row["reported"].get("outcome", ""))
    free, total = reported.get("free_at_start_gib"), row.get("gpu_total_gib")
    share = setting(row["settings"], "gpu_memory_utilization")
    if free and total and share and row["engine_family"] == "vLLM V1":
        yield Term("starts", float(free >= share * total), float("refused" not in outcome))
    held, asked = reported.get("tokens_that_fit"), setting(row["settings"], "max_model_len")
    if held and asked:
        yield Term("fits given tokens", float(held >= asked), float("not fit" not in outcome))


def _nearest_in(low: float, high: float, reported: float) -> float:
    """What the interval that the log's rounding leaves says closest to the reported figure."""
    return min(max(reported, low), high)


def _kv_interval(case: Case) -> tuple[float, float] | None:
    """The logged cache memory, as wide as its rounding. [bytes]

    Of a pipeline it is one stage's, and the stage that samples has less: what its sampler takes
    above the quoted stage's peak.
    """
    if exact := case.number("available_kv_bytes"):
        return exact, exact
    given = case.number("available_kv_gib", "kv_gib")
    if given is None:
        return None
    if float(given).is_integer() and case.number("kv_gib") is not None:
        return given * GIB, given * GIB
    peak = case.number("activation_peak_gib")
    if case.deployment.pp > 1 and peak is not None:
        given -= max(0.0, vllm.sampler_bytes(case.deployment) / GIB - peak)
    return (given - HALF_A_PRINTED_DIGIT) * GIB, (given + HALF_A_PRINTED_DIGIT) * GIB


def _weights_term(case: Case) -> Iterator[Term]:
    reported = case.number("weights_gib", "weights_gb")
    if reported is None:
        return
    model = case.deployment.model
    notes = []
    if not case.weights_are_described:
        notes.append("the line does not give every width, or the ranks: no prediction")
    if case.deployment.engine.kind == "sglang":
        notes.append("logged as the difference of two readings of the driver")
    if model.quantization is not None or case.row["settings"].get("quantization"):
        notes.append("quantised: the scheme is inferred from its name")
    if _has_towers(case) and not model.vision_params:
        notes.append("towers are not in the case's configuration")
    if case.row["settings"].get("enable_lora"):
        notes.append("the adapters' buffers come on top")
    if case.row.get("note") and "weights" in str(case.row["note"]):
        notes.append(str(case.row["note"]))
    predicted = rank_weight_bytes(case.deployment) / GIB if case.weights_are_described else None
    if predicted is not None and predicted > 1.8 * reported and model.quantization is None:
        notes.append("the logged weights are too few for 16 bits: their format is not stated")
    yield Term("weights_gib", predicted, reported, "; ".join(notes))


def _has_towers(case: Case) -> bool:
    name = case.deployment.model.name.lower()
    words = ("vision", "-vl", "omni", "llama-4", "mistral-small-3.1", "gemma-3-", "gemma-4")
    return "multimodal" in case.row["tags"] or any(word in name for word in words)


def _vllm_terms(case: Case) -> Iterator[Term]:
    deployment = case.deployment
    yield from _weights_term(case)
    if (peak := case.number("activation_peak_gib")) is not None and case.weights_are_described:
        note = "the log's rank does not sample" if deployment.pp > 1 else ""
        if deployment.engine.at_least("0.20"):
            note = "what the sampler takes after 0.19 is not described"
        yield Term("activation_gib", vllm.activation_bytes(deployment) / GIB, peak, note)
    if (runtime := case.number("non_torch_gib")) is not None:
        yield Term("runtime_gib", vllm.runtime_bytes(deployment) / GIB, runtime)
    if (graphs := case.number("cuda_graph_actual_gib")) is not None and graphs > 0:
        yield Term("graphs_gib", vllm.graph_bytes(deployment) / GIB, graphs)
    if _kv_is_unplannable(case):
        return
    pool = vllm.pool(deployment)
    yield from _pool_terms(case, pool)
    yield from _fit_terms(case, pool)
    yield from _budget_term(case)
    yield from _settings_term(case)


def _kv_is_unplannable(case: Case) -> bool:
    return not any(layer.attention or layer.mixer for layer in case.deployment.model.layers)


def _pool_terms(case: Case, pool: BlockPool) -> Iterator[Term]:
    """Blocks, tokens and concurrency, given the cache memory that the log states."""
    context = case.deployment.max_model_len
    if (blocks := case.number("cpu_blocks")) is not None:
        swap = setting(case.row["settings"], "swap_space_gib")
        held = swap * GIB if swap else V0_SWAP_BYTES
        yield Term("cpu_blocks", pool.num_blocks(held), blocks)
    if (size := case.number("block_size")) is not None and len(pool.groups) > 1:
        attention = [group for group in pool.groups if group.kind != "state"]
        yield Term("block_tokens", attention[0].block_tokens, size)
    if (padding := case.number("padding_layers_added")) is not None:
        yield Term("padding_layers", pool.padding_layers, padding)
    interval = _kv_interval(case)
    note = _pool_note(case, pool)
    if interval is not None:
        low, high = (pool.num_blocks(edge) for edge in interval)
        tokens = case.number("kv_cache_tokens")
        logged_blocks = case.number("gpu_blocks", "num_gpu_blocks")
        if tokens is not None:
            edges = (pool.tokens(low, context), pool.tokens(high, context))
            yield Term("kv_tokens_given_memory", _nearest_in(*edges, tokens), tokens, note)
            implied = sum(interval) / 2 / tokens
            if len(pool.groups) == 1:
                per_token = pool.bytes_per_block / pool.block_tokens
                fits = (interval[0] / tokens, interval[1] / tokens)
                rounded = per_token * (1 + pool.block_tokens / tokens)
                shown = per_token if fits[0] <= rounded and per_token <= fits[1] else implied
                yield Term("kv_bytes_per_token", per_token, shown, note)
        elif logged_blocks is not None and logged_blocks > 0:
            predicted = _nearest_in(low, high, logged_blocks)
            yield Term("kv_blocks_given_memory", predicted, logged_blocks, note)
        concurrency = case.number("max_concurrency_x")
        if concurrency is not None and (case.row["settings"].get("max_model_len") or tokens):
            edges_x = (pool.concurrency(low, context), pool.concurrency(high, context))
            yield Term("concurrency", _nearest_in(*edges_x, concurrency), concurrency, note)
    elif (logged := case.number("gpu_blocks", "num_gpu_blocks")) is not None and logged > 0:
        concurrency = case.number("max_concurrency_x")
        if concurrency is not None:
            predicted_x = pool.concurrency(int(logged), context)
            yield Term("concurrency", predicted_x, concurrency)
    elif (tokens := case.number("kv_cache_tokens")) is not None:
        concurrency = case.number("max_concurrency_x")
        if concurrency is not None:
            blocks = round(tokens / pool.block_tokens * len(pool.groups))
            yield Term("concurrency", pool.concurrency(blocks, context), concurrency)


def _pool_note(case: Case, pool: BlockPool) -> str:
    """Why the relation may not hold on a line, where a reason is known."""
    if _agrees_in_fp8(case, pool):
        return "the figures are those of an fp8 cache, which the line does not state"
    if case.deployment.pp > 1:
        return "the tokens are those of the stage that samples, the GiB another's"
    if case.row["check_strength"] == "close" and case.deployment.tp > 1:
        return "the tokens are the least over the ranks, the GiB those of one rank"
    if len(pool.groups) > 1 and pool.bytes_per_block > 2**22:
        return "few large blocks: the printed GiB hide one"
    return ""


def _agrees_in_fp8(case: Case, pool: BlockPool) -> bool:
    """Whether the logged tokens are those of an 8-bit cache and not of the stated one."""
    tokens, interval = case.number("kv_cache_tokens"), _kv_interval(case)
    if tokens is None or interval is None or case.deployment.element_bytes == 1:
        return False
    if "kv_cache_dtype" in case.row["settings"]:
        return False
    context, middle = case.deployment.max_model_len, sum(interval) / 2
    smaller = vllm.pool(replace(case.deployment, kv_dtype="fp8"))
    stated = pool.tokens(pool.num_blocks(middle), context)
    eighth = smaller.tokens(smaller.num_blocks(middle), context)
    return abs(eighth / tokens - 1) < 0.01 < abs(stated / tokens - 1)


def _fit_terms(case: Case, pool: BlockPool) -> Iterator[Term]:
    """A refusal's figures: what is needed, and the longest context that would fit."""
    deployment = case.deployment
    whole = pool
    if deployment.pp > 1:
        whole = vllm.pool(replace(deployment, pp=1))
    if (needed := case.number("needed_gib")) is not None:
        per_request = whole.bytes_per_sequence(deployment.max_model_len) / GIB
        yield Term("needed_gib", per_request, needed)
    longest, interval = case.number("estimated_max_len"), _kv_interval(case)
    if longest is not None and interval is not None:
        page = 256 if "TPU" in case.row["engine"] else whole.block_tokens
        edges = [
            whole.longest_context(whole.num_blocks(edge), 2**30) // page * page for edge in interval
        ]
        yield Term("estimated_max_len", _nearest_in(edges[0], edges[1], longest), longest)


def _budget_term(case: Case) -> Iterator[Term]:
    """The cache memory from the log's own parts: total · utilisation less what it prints."""
    kv = case.number("available_kv_gib")
    parts = [case.number("weights_gib", "weights_gb"), case.number("activation_peak_gib"),
             case.number("non_torch_gib")]  # fmt: skip
    total = case.row.get("gpu_total_gib")
    if kv is None or total is None or any(part is None for part in parts):
        return
    if case.deployment.pp > 1:
        return
    spent = sum(part for part in parts if part is not None)
    budget = case.number("requested_gib") or total * vllm.utilization(case.deployment)
    if abs(kv) > 0.5:
        yield Term("kv_gib_from_parts", budget - spent, kv)


def _settings_term(case: Case) -> Iterator[Term]:
    """Tokens from the settings alone: nothing that the log measured goes in."""
    deployment = case.deployment
    logged = case.number("kv_cache_tokens")
    pool = vllm.pool(deployment)
    if logged is None and (blocks := case.number("gpu_blocks", "num_gpu_blocks")) is not None:
        logged = blocks * pool.block_tokens
    kv = case.number("available_kv_gib")
    outcome = case.reported.get("outcome")
    if not (case.total_is_known and case.weights_are_described):
        return
    plan = plan_memory(deployment)
    note = "; ".join(_settings_notes(case, plan, logged, pool))
    if outcome is not None and "fit" in str(outcome) + "no memory" * ("memory" in str(outcome)):
        yield Term("fits", float(plan.fits), 0.0, note)
    if logged is not None and logged > 0:
        yield Term("kv_tokens_from_settings", plan.kv_tokens, logged, note)
    elif kv is not None and kv > 0:
        yield Term("kv_gib_from_settings", plan.kv_bytes / GIB, kv, note)


def _settings_notes(
    case: Case, plan: MemoryPlan, tokens: float | None, pool: BlockPool
) -> Iterator[str]:
    """Why a prediction from the settings may be far off: what the line leaves open."""
    deployment, settings = case.deployment, case.row["settings"]
    if not case.version_is_known:
        yield "the version is not stated"
    if not deployment.engine.at_least("0.4"):
        yield "how these early versions profiled is not described"
    if deployment.model.quantization is not None and not deployment.model.exact:
        yield "the quantisation is inferred from its name"
    elif deployment.model.quantization is not None:
        yield "how the quantised weights are padded and kept is the kernel's"
    if setting(settings, "gpu_memory_utilization", "fraction") is None:
        yield "the utilisation is not stated"
    if _has_towers(case):
        yield "the towers' profile run is not described"
    if tokens:
        held = tokens / pool.block_tokens * len(pool.groups) * pool.bytes_per_block
        if held + plan.weight_bytes > deployment.total_bytes:
            yield "the logged cache and the weights exceed the card: settings are missing"
    if 0 < plan.kv_bytes < 0.1 * plan.usable_bytes:
        yield "the cache is what little the rest leaves: each GiB elsewhere counts many times"


def _sglang_terms(case: Case) -> Iterator[Term]:
    deployment = case.deployment
    yield from _weights_term(case)
    tokens = case.number("tokens", "max_total_num_tokens")
    per_token = sglang.printed_bytes_per_token(deployment)
    per_token += sglang.draft_bytes_per_token(deployment)
    k, v, kv = case.number("k_gib"), case.number("v_gib"), case.number("kv_gib")
    pool_gib = kv if kv is not None else (k + v if k is not None and v is not None else None)
    halves = 1 if kv is not None else 2
    if tokens is not None and pool_gib is not None:
        note = ""
        if "indexer" in str(case.row["checks"].get("note", "")):
            per_token -= 132 * deployment.model.num_layers
            note = "the indexer is allocated but not in the printed size"
        slack = halves * HALF_A_PRINTED_DIGIT
        page = 64 if deployment.model.kind == "mla" and "DSA" in case.row["model"] else 1
        page = 128 if "Ascend" in str(case.row["engine_version"]) else page
        predicted = (tokens + page) * per_token / GIB
        shown = _nearest_in(pool_gib - slack, pool_gib + slack, predicted)
        yield Term("kv_gib_given_tokens", predicted, shown, note)
    before, after = case.number("available_after_gib"), case.number("pool_end_gib")
    if tokens is not None and pool_gib is None and before is not None and after is not None:
        yield Term("kv_gib_given_tokens", tokens * per_token / GIB, before - after,
                   "cache taken as the difference of two readings")  # fmt: skip
    if (swa := case.number("swa_tokens")) is not None:
        yield from _sglang_windows(case, swa)
    if (slots := case.number("mamba_slots")) is not None and case.number("ssm_gib"):
        held = sum(
            layer.mixer.state_elements(deployment.tp)[1] for layer in deployment.model.layers
            if layer.mixer
        ) * 4 * (slots + 1) / GIB  # fmt: skip
        reported = case.number("ssm_gib") or 0.0
        shown = _nearest_in(reported - HALF_A_PRINTED_DIGIT, reported + HALF_A_PRINTED_DIGIT, held)
        yield Term("state_gib", held, shown)


def _sglang_settings_terms(case: Case) -> Iterator[Term]:
    """SGLang's tokens from the settings alone, each rank's own pool."""
    tokens = case.number("tokens", "max_total_num_tokens")
    is_capped = case.row["settings"].get("max_total_tokens") is not None
    if tokens is None or is_capped or not (case.total_is_known and case.weights_are_described):
        return
    plan = plan_memory(case.deployment)
    notes = []
    if not case.version_is_known:
        notes.append("the version is not stated")
    if case.deployment.model.quantization is not None:
        notes.append("how the quantised weights are padded and kept is the kernel's")
    predicted = plan.kv_tokens // case.deployment.dp
    yield Term("kv_tokens_from_settings", predicted, tokens, "; ".join(notes))


def _sglang_windows(case: Case, tokens: float) -> Iterator[Term]:
    deployment = case.deployment
    printed = {"sliding": ("swa_k_gib", "swa_v_gib"), "full": ("full_k_gib", "full_v_gib")}
    for kind, keys in printed.items():
        reported = [case.number(key) for key in keys]
        if None in reported:
            continue
        held = sglang.printed_bytes_per_token(deployment, kind)
        total = sum(part for part in reported if part is not None)
        predicted = (tokens + 1) * held / GIB
        shown = _nearest_in(total - 0.01, total + 0.01, predicted)
        yield Term(f"kv_gib_{kind}_given_tokens", predicted, shown)


def _trt_terms(case: Case) -> Iterator[Term]:
    deployment = case.deployment
    pool = share.pool(deployment, deployment.block_size or 64)
    per_token = pool.bytes_per_block / pool.block_tokens
    tokens = case.number("max_tokens", "tokens")
    if (engine := case.number("engine_mib")) is not None:
        yield Term("weights_mib", rank_weight_bytes(deployment) / MIB, engine)
    if (exact := case.number("kv_bytes")) is not None and tokens is not None:
        yield Term("kv_bytes_given_tokens", tokens * per_token, exact)
    kv = case.number("kv_gib", "kv_gib_fp16")
    if kv is not None and tokens is not None:
        predicted = tokens * per_token / GIB
        shown = _nearest_in(kv - HALF_A_PRINTED_DIGIT, kv + HALF_A_PRINTED_DIGIT, predicted)
        yield Term("kv_gib_given_tokens", predicted, shown)
    blocks, available = case.number("blocks"), case.number("available_gib")
    if blocks is not None and available is not None:
        fraction = deployment.gpu_memory_utilization or 0.9
        edges = [
            math.ceil(fraction * (available + sign * HALF_A_PRINTED_DIGIT) * GIB
                      / pool.bytes_per_block) for sign in (-1, 1)
        ]  # fmt: skip
        yield Term("kv_blocks_given_memory", _nearest_in(edges[0], edges[1], blocks), blocks)


def _share_terms(case: Case) -> Iterator[Term]:
    """TensorRT-LLM's tokens from the settings alone."""
    logged = case.number("max_tokens")
    if case.total_is_known and logged is not None:
        plan = plan_memory(case.deployment)
        yield Term("kv_tokens_from_settings", plan.kv_tokens, logged,
                   "the runtime's and the decoder's buffers are assumed")  # fmt: skip


def _token_terms(case: Case) -> Iterator[Term]:
    """Engines that print one token count: from the settings alone, when the card is known."""
    logged = case.number("max_batch_total_tokens", "max_tokens")
    if case.total_is_known and logged is not None:
        yield Term("kv_tokens_from_settings", plan_memory(case.deployment).kv_tokens, logged,
                   "one log only: the share and the buffers are assumed")  # fmt: skip


def _llama_terms(case: Case) -> Iterator[Term]:
    row, settings = case.row, case.row["settings"]
    deployment, spec = case.deployment, case.deployment.model
    yield from _model_size_term(case)
    parallel = int(setting(settings, "parallel", "n_seq") or 1)
    base = replace(
        llama_cpp.cells_of(deployment, deployment.max_model_len, parallel),
        ubatch=int(setting(settings, "ubatch") or 512),
    )
    both = [part.strip() for part in str(settings.get("cache_type") or "float16").split("/")]
    k_dtype = str(settings.get("cache_type_k") or both[0])
    v_dtype = str(settings.get("cache_type_v") or both[-1])
    if settings.get("f16_kv") is False or "ggml example" in row["engine"]:
        k_dtype = v_dtype = "float32"
    mode = settings.get("mla")
    mla = int(mode) if isinstance(mode, int) and not isinstance(mode, bool) else base.mla
    base = replace(base, k_dtype=k_dtype, v_dtype=v_dtype, mla=None if mla in (2, 3) else mla)
    if "ik_llama" in row["engine"]:
        base = replace(base, windows=False)
    given = case.reported.get("kv_mib")
    if isinstance(given, dict):
        yield from _llama_slots(case, base, given)
        return
    if "whisper" in row["engine"]:
        yield from _whisper_terms(case)
        return
    reported = case.number("kv_mib", "kv_mb", "memory_size_mb", "kv_self_mb")
    if reported is None and isinstance(parts := case.reported.get("kv_by_device_mib"), dict | list):
        values = parts.values() if isinstance(parts, dict) else parts
        reported = float(sum(values))
    if reported is not None and settings.get("ctx_size") is not None:
        cells = _logged_cells(settings, base)
        predicted = llama_cpp.kv_bytes(spec, cells) / MIB
        note = ""
        if "ggml example" in row["engine"]:
            heads = max(la.attention.num_q_heads for la in spec.layers if la.attention)
            predicted *= heads
            note = "the first GGML examples stored MQA expanded to all heads"
        yield Term("kv_mib", predicted, reported, note)
    if (states := case.number("rs_mib", "slot_mib")) is not None:
        yield Term("state_mib", llama_cpp.state_bytes(spec, base) / MIB, states)
    yield from _compute_term(case, base)


def _logged_cells(settings: dict[str, object], base: llama_cpp.Cells) -> llama_cpp.Cells:
    """The cells of a line; some say beside the context how many cells it became."""
    if found := setting({"cells": str(settings["ctx_size"]).partition("(")[2]}, "cells"):
        return replace(base, ctx_size=int(found))
    return base


def _llama_slots(case: Case, base: llama_cpp.Cells, given: dict[str, float]) -> Iterator[Term]:
    for name, reported in given.items():
        numbers = [int(part) for part in name.replace("ctx", "").split("_slots") if part.isdigit()]
        if len(numbers) == 2:
            cells = replace(base, ctx_size=numbers[0], parallel=numbers[1])
            predicted = llama_cpp.kv_bytes(case.deployment.model, cells) / MIB
            yield Term(f"kv_mib {name}", predicted, reported)


def _whisper_terms(case: Case) -> Iterator[Term]:
    """whisper.cpp: keys and values of 448 positions, and of 1,500 frames once (decimal MB)."""
    spec = case.deployment.model
    for key, tokens in (("kv_self_mb", 448), ("kv_cross_mb", spec.max_source_len or 1500)):
        if (reported := case.number(key)) is not None:
            width = 2 * spec.num_layers * spec.hidden_size * tokens * 2
            yield Term(key, width / MIB, reported, "printed with two decimals")


def _compute_term(case: Case, cells: llama_cpp.Cells) -> Iterator[Term]:
    """The compute buffer of one device, where flash attention makes it independent of context."""
    buffers, settings = case.reported.get("compute_mib"), case.row["settings"]
    if not isinstance(buffers, dict) or settings.get("flash_attn") is not True:
        return
    if case.row["gpu_count"] != 1 or case.deployment.model.kind in ("mla", "linear_hybrid"):
        return
    device, reported = max(buffers.items(), key=lambda item: float(item[1]))
    untied = not case.deployment.model.tied_embeddings
    copies = 2 if device.startswith("CUDA") and untied else 1
    predicted = llama_cpp.compute_bytes(case.deployment.model, cells, hidden_copies=copies) / MIB
    yield Term(f"compute_mib {device}", predicted, float(reported))


def _model_size_term(case: Case) -> Iterator[Term]:
    """The printed model size against the sum of the device buffers."""
    size, buffers = case.number("model_size_gib"), case.reported.get("model_buffers_mib")
    if size is None or not isinstance(buffers, dict):
        return
    spec = case.deployment.model
    total = float(sum(buffers.values())) / 1024
    if spec.tied_embeddings and total > size * 1.001:
        total -= float(buffers.get("CPU", 0.0)) / 1024
    if total / size > 0.9:
        yield Term("model_gib_from_buffers", total, size)


def _ollama_terms(case: Case) -> Iterator[Term]:
    settings, spec, engine = case.row["settings"], case.deployment.model, case.deployment.engine
    parallel = int(setting(settings, "parallel") or 1)
    total = setting(settings, "ctx_size_total")
    context = int(total or (setting(settings, "num_ctx") or 2048) * parallel)
    batch = int(setting(settings, "batch") or 512)
    cells = ollama.cells(case.deployment, context // parallel, parallel, batch=batch)
    predicted = llama_cpp.kv_bytes(spec, cells)
    if (mib := case.number("kv_mib")) is not None:
        yield Term("kv_mib", predicted / MIB, mib)
    elif (gib := case.number("kv_gib")) is not None:
        shown = _nearest_in(gib - 0.05, gib + 0.05, predicted / GIB)
        yield Term("kv_gib", predicted / GIB, shown, "printed with one decimal")
    graph = ollama.graph_bytes(
        spec, context, batch=batch, vocab_in_graph=engine.flag("vocab_in_graph")
    )
    if (reported := case.number("graph_full_mib")) is not None:
        note = "" if graph is not None else "the rule of this family is not known here"
        yield Term("graph_mib", None if graph is None else graph / MIB, reported, note)
