"""Engines that give the cache a share of what is free after the load: TensorRT-LLM and others."""

import math

from attnprof.engines.base import Deployment, MemoryPlan
from attnprof.engines.pool import BlockPool, block_pool, cache_entries
from attnprof.engines.vllm import dense_ffn_width, state_element_bytes
from attnprof.engines.weights import rank_weight_bytes, stage_layers

ROUNDS_UP = ("tensorrt-llm",)
"""Engines that take one block more than the share holds: the ceiling."""


def pool(deployment: Deployment, block_tokens: int) -> BlockPool:
    """Blocks over all layers, windows charged as full attention."""
    entries = cache_entries(
        stage_layers(deployment.model, deployment.pp),
        tp=deployment.tp,
        element_bytes=deployment.element_bytes,
        conv_bytes=deployment.dtype_bytes,
        state_element_bytes=state_element_bytes(deployment),
        windows_as_full=True,
    )
    return block_pool(
        entries,
        block_tokens=block_tokens,
        max_num_batched_tokens=deployment.max_model_len,
        source_len=deployment.model.max_source_len or deployment.max_model_len,
    )


def cache_share(deployment: Deployment) -> float:
    """The share of memory that the cache gets."""
    if deployment.gpu_memory_utilization is not None:
        return deployment.gpu_memory_utilization
    engine = deployment.engine
    for key in ("free_gpu_memory_fraction", "cache_max_entry_count", "memory_fraction"):
        if key in engine.constants:
            return engine.number(key)
    return 1.0


def plan(deployment: Deployment) -> MemoryPlan:
    """Split one GPU's memory as TensorRT-LLM, LMDeploy and TGI do.

        kv = share · (total − weights − buffers)

    TensorRT-LLM rounds the blocks up; old LMDeploy takes the share of the total; TGI takes
    weights and buffers from the share.
    """
    engine, share = deployment.engine, cache_share(deployment)
    weights = rank_weight_bytes(deployment)
    buffers = engine.overheads.runtime_bytes
    if buffers is None:
        buffers = round(engine.number("buffer_bytes"))
    free = deployment.total_bytes - weights - buffers
    if engine.kind == "tgi":
        kv = math.floor(deployment.total_bytes * share) - weights - buffers
    elif engine.constants.get("share_of") == "total":
        kv = min(free, math.floor(deployment.total_bytes * share))
    else:
        kv = math.floor(free * share)
    blocks = pool(deployment, deployment.block_size or int(engine.number("block_tokens")))
    exact = max(0, kv) / blocks.bytes_per_block
    num_blocks = math.ceil(exact) if engine.kind in ROUNDS_UP else math.floor(exact)
    return _planned(deployment, blocks, num_blocks, weights, buffers, kv, None)


def torch_plan(deployment: Deployment) -> MemoryPlan:
    """What plain torch holds: no blocks and no reserve, but logits and activations of a prefill.

    The prefill of one sequence peaks with its logits over the complete vocabulary, or in an FFN.
    """
    engine, spec = deployment.engine, deployment.model
    weights = rank_weight_bytes(deployment)
    context = engine.overheads.runtime_bytes
    if context is None:
        context = round(engine.number("context_bytes"))
    tokens, size = deployment.max_model_len, deployment.dtype_bytes
    width = 3 * dense_ffn_width(spec) / deployment.tp + 4 * spec.hidden_size
    activation = round(tokens * size * width * (engine.overheads.activation_scale or 1.0))
    kv = deployment.total_bytes - weights - context - activation
    blocks = pool(deployment, 1)
    return _planned(
        deployment, blocks, blocks.num_blocks(kv), weights, context, kv, activation,
        notes=("a cache that is concatenated holds one layer twice while it grows",),
    )  # fmt: skip


def _planned(
    deployment: Deployment, blocks: BlockPool, num_blocks: int, weights: int, runtime: int,
    kv: int, activation: int | None, notes: tuple[str, ...] = (),
) -> MemoryPlan:  # fmt: skip
    return MemoryPlan(
        total_bytes=deployment.total_bytes,
        usable_bytes=weights + runtime + (activation or 0) + max(0, kv),
        weight_bytes=weights,
        activation_bytes=activation,
        graph_bytes=None if activation is None else 0,
        runtime_bytes=runtime,
        kv_bytes=kv,
        bytes_per_sequence=blocks.bytes_per_sequence(deployment.max_model_len),
        block_tokens=blocks.block_tokens,
        num_blocks=num_blocks,
        kv_tokens=blocks.tokens(num_blocks, deployment.max_model_len) * deployment.dp,
        max_concurrency=blocks.concurrency(num_blocks, deployment.max_model_len) * deployment.dp,
        max_context_len=blocks.longest_context(num_blocks, deployment.longest_context),
        settings={"share": cache_share(deployment), "block_size": blocks.block_tokens},
        notes=notes,
    )
