"""SGLang: weights and cache share a fraction of what is free before the load; the rest is spare."""

import math
from collections import Counter

from attnprof.engines.base import GIB, Deployment, MemoryPlan
from attnprof.engines.pool import CacheEntry, cache_entries
from attnprof.engines.vllm import state_element_bytes
from attnprof.engines.weights import rank_weight_bytes, stage_layers
from attnprof.errors import UsageError

STATE_SHARE = 0.9 / 1.9
"""Of a hybrid's cache memory, states take 0.9 parts to 1 of keys and values, unless told."""


def entries(deployment: Deployment) -> Counter[CacheEntry]:
    """What the layers of one rank keep, and how many keep it."""
    return cache_entries(
        stage_layers(deployment.model, deployment.pp),
        tp=deployment.tp,
        element_bytes=deployment.element_bytes,
        conv_bytes=deployment.dtype_bytes,
        state_element_bytes=state_element_bytes(deployment),
        num_draft_tokens=deployment.num_draft_tokens,
    )


def printed_bytes_per_token(deployment: Deployment, kind: str | None = None) -> float:
    """Bytes a token in the pools that the log prints, of one kind of layer or of all. [bytes]"""
    return sum(
        entry.bytes_per_token * count
        for entry, count in entries(deployment).items()
        if kind is None or entry.kind == kind
    )


def bytes_per_token(deployment: Deployment) -> float:
    """Bytes that one token of the full pool costs on one rank. [bytes]

        full layers + 0.8 · sliding layers

    The window pool holds a fixed ratio of the full pool's tokens and is not bounded by the window.
    """
    ratio = deployment.engine.number("swa_full_tokens_ratio")
    return sum(
        entry.bytes_per_token * count * (ratio if entry.kind in ("sliding", "chunked") else 1)
        for entry, count in entries(deployment).items()
    ) + draft_bytes_per_token(deployment)


def draft_bytes_per_token(deployment: Deployment) -> float:
    """Bytes a token in the draft's layers, which are taken to be shaped like the model's."""
    attention = [e.bytes_per_token for e in entries(deployment) if e.bytes_per_token]
    return deployment.draft_layers * attention[0] if attention else 0.0


def state_bytes_per_slot(deployment: Deployment) -> int:
    """Bytes of all recurrent states of one sequence on one rank. [bytes]"""
    return sum(entry.state_bytes * count for entry, count in entries(deployment).items())


def static_fraction(deployment: Deployment) -> float:
    """The share of free memory for weights and cache: ``mem_fraction_static``.

    By the card's size where the version does so, else by the number of ranks.
    """
    if deployment.gpu_memory_utilization is not None:
        return deployment.gpu_memory_utilization
    engine = deployment.engine
    ranks = deployment.tp * deployment.pp
    if not engine.flag("reserve_by_card"):
        return engine.by_ranks("fraction_by_tp", deployment.card_size, ranks)
    card = deployment.gpu.memory_bytes if deployment.gpu else deployment.total_bytes
    rows = engine.constants.get("reserve_gib")
    if not isinstance(rows, list):
        raise UsageError(f"{engine.path}: reserve_gib is {rows!r}", "write a list of mappings")
    row = next((row for row in rows if card < row["below_gib"] * GIB), rows[-1])
    reserve = (float(row["base"]) + float(row["per_rank"]) * ranks) * GIB
    if deployment.draft_layers:
        reserve += 2 * GIB
    if deployment.dp > 1:
        reserve += 4 * GIB
    return round((card - reserve) / card, 3) if card else 0.0  # of a card that no log names


def plan(deployment: Deployment) -> MemoryPlan:
    """Split one GPU's memory as SGLang does.

        kv = free after load − free before load · (1 − mem_fraction_static)

    Nothing is profiled: graphs and activations live in the part that the fraction leaves.
    """
    engine = deployment.engine
    runtime = engine.overheads.runtime_bytes
    if runtime is None:
        runtime = round(engine.by_ranks("runtime_bytes", deployment.card_size, deployment.tp))
    before = deployment.total_bytes - runtime
    fraction = static_fraction(deployment)
    weights = rank_weight_bytes(deployment)
    kv = math.floor(before * fraction) - weights
    slot = state_bytes_per_slot(deployment)
    slots = deployment.max_num_seqs
    if slot and slots is None:
        slots = max(0, math.floor(max(0, kv) * STATE_SHARE / slot) - 1)
    states = slot * (slots + 1) if slot and slots is not None else 0
    page = deployment.block_size or int(engine.number("page_tokens"))
    unit = bytes_per_token(deployment)
    pages = max(0, math.floor((kv - states) / (unit * page))) if unit else 0
    tokens = pages * page
    pages_each = math.ceil(deployment.max_model_len / page)
    concurrency = pages / pages_each if unit else float(slots or 0)
    if slot and slots is not None:
        concurrency = min(concurrency, float(slots)) if kv >= states else 0.0
    graphs = round(engine.by_ranks("graph_bytes", deployment.card_size, 1))
    graphs = 0 if deployment.enforce_eager else graphs
    if engine.overheads.graph_bytes is not None and not deployment.enforce_eager:
        graphs = engine.overheads.graph_bytes
    spare = before - math.floor(before * fraction)
    notes = []
    if graphs > spare:
        notes.append(
            f"{spare / GIB:.2f} GiB stay for activations and graphs, which want "
            f"{graphs / GIB:.2f} GiB: lower mem_fraction_static"
        )
    return MemoryPlan(
        total_bytes=deployment.total_bytes,
        usable_bytes=math.floor(before * fraction),
        weight_bytes=weights,
        activation_bytes=max(0, spare - graphs),
        graph_bytes=graphs,
        runtime_bytes=runtime,
        kv_bytes=kv,
        bytes_per_sequence=round(pages_each * page * unit) + slot,
        block_tokens=page,
        num_blocks=pages,
        kv_tokens=tokens * deployment.dp,
        max_concurrency=concurrency * deployment.dp,
        max_context_len=(
            min(tokens, deployment.longest_context)
            if unit or concurrency < 1
            else deployment.longest_context
        ),
        settings={"mem_fraction_static": fraction, "page_size": page},
        notes=tuple(notes),
    )
