"""A workload of scope layer, block or model -> why it cannot be built, and the attentions in it.

Like :mod:`attnprof.backends.support`, which asks here, it knows before anything is built.
"""

import functools
import importlib.util
from dataclasses import replace

from attnprof.errors import UsageError
from attnprof.models.architecture import Architecture, AttentionBlock
from attnprof.models.build_architecture import architecture_of
from attnprof.positions import POSITIONS
from attnprof.theory.calls import kernel_calls
from attnprof.theory.scopes import alone
from attnprof.workload import GROWING, Workload

LIBRARY_BACKENDS = ("eager", "math", "flash", "mem-efficient", "cudnn", "flex")
"""Kernels by which the Transformers library computes: its own, SDPA's, and FlexAttention."""

_OF_THE_MODEL = {
    "position": "none", "mla": None, "softcap": None, "sink_logits": False, "attention": "self",
    "prefix_len": None, "document_len": None, "sink_len": None,
}  # fmt: skip
"""Axes that a model has its own of, and what they are then."""


@functools.lru_cache(maxsize=64)
def _architecture(model: str, digest: str | None) -> Architecture:
    return architecture_of(model)


def scope_reason(workload: Workload) -> str | None:
    """Why a workload of more than attention cannot be built, or None when it can."""
    if workload.model is None:
        return _plain_reason(workload)
    try:
        architecture = _architecture(workload.model, workload.model_digest)
    except UsageError as error:
        return str(error)
    reason = _model_reason(workload, architecture)
    if reason is None and workload.implementation == "transformers":
        return _library_reason(workload, architecture.first(workload.num_layers))
    return reason


def _plain_reason(w: Workload) -> str | None:
    if w.phase == "train" and w.kv_dtype is not None:
        return f"a training step makes the source's keys anew and caches none: no {w.kv_dtype}"
    if w.phase == "train" and w.position == "shaw" and w.backend != "eager":
        return f"{w.backend} takes no gradients of a bias, and shaw's is made of the queries"
    if w.mla is None:
        return None
    if w.variant not in ("full", "causal", "sliding"):
        return f"mla at scope {w.scope} sees all, its past or a window of it, not {w.variant}"
    if w.sink_logits:
        return f"mla at scope {w.scope} has no logits of sinks"
    if w.mla == "expanded" and w.kv_cache == "latent":
        return f"mla over a latent cache is absorbed at scope {w.scope}; scope op has it expanded"
    if w.mla == "absorbed" and (w.phase in ("prefill", "train", "mixed") or w.kv_cache == "none"):
        return f"what has no tokens before it is expanded at scope {w.scope}: mla expanded"
    if w.mla == "absorbed" and w.weight_dtype is not None:
        return f"absorbed weights are multiplied as they are, not as {w.weight_dtype}"
    return None


def _model_reason(w: Workload, architecture: Architecture) -> str | None:
    for axis, own in _OF_THE_MODEL.items():
        if getattr(w, axis) != own:
            return f"{axis} {getattr(w, axis)}: a model has its own"
    if w.num_layers > architecture.num_layers:
        return f"{w.model} has {architecture.num_layers} layers, not {w.num_layers}"
    blocks = architecture.first(w.num_layers).blocks
    is_encoder = all(block.attention.variant == "full" for block in blocks)
    own = "full" if is_encoder else "causal"
    if w.variant != own:
        return f"variant {w.variant}: the layers of {w.model} say who sees whom, variant {own}"
    longest = max(w.kv_len, w.prefill_len or 0)
    if w.scope == "model" and architecture.num_positions is not None:
        room = architecture.num_positions - architecture.first_position
        if longest > room:
            return f"{w.model} has a table of {room} positions, and a sequence has {longest}"
    if is_encoder and w.phase not in ("prefill", "train"):
        return f"{w.model} is an encoder: prefill and train, not {w.phase}"
    if w.min_len is not None and not is_encoder:
        return f"min_len {w.min_len}: {w.model} is no encoder, whose batches are padded"
    reads = any(block.cross is not None for block in blocks)
    if reads and w.phase == "mixed":
        return f"{w.model} reads a source in each prompt: a mixed step is of a decoder alone"
    if w.source_len is not None and not reads:
        return f"source_len {w.source_len}: {w.model} reads no source"
    if reads and architecture.encoder is not None and architecture.encoder.num_positions:
        encoder, source_len = architecture.encoder, w.source_len or w.kv_len
        room = (encoder.num_positions or 0) - encoder.first_position
        if w.scope == "model" and source_len > room:
            return f"{w.model} has a table of {room} positions, and its source has {source_len}"
    learned = any(block.attention.relative is not None for block in blocks)
    if w.phase == "train" and learned and w.backend == "flash":
        return f"{w.backend} takes no gradients of a bias, and {w.model} learns one: eager or math"
    if w.kv_cache == "rolling" and all(block.attention.window_len is None for block in blocks):
        return f"{w.model} has no windows: kv_cache contiguous, static or paged, not rolling"
    if w.kv_cache == "latent" and not all(block.attention.latent for block in blocks):
        return f"{w.model} has no latent to cache: kv_cache contiguous, static or paged"
    if w.kv_cache == "latent" and w.weight_dtype is not None:
        return f"absorbed weights are multiplied as they are, not as {w.weight_dtype}"
    return None


def _library_reason(w: Workload, architecture: Architecture) -> str | None:
    """Why the Transformers library's own class is not measured so."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install transformers"
    of_library = f"implementation transformers, backend {w.backend}"
    if w.scope != "model":
        return f"the transformers implementation is of a whole model: scope model, not {w.scope}"
    if w.backend not in LIBRARY_BACKENDS:
        return f"{of_library}: the library is measured by {', '.join(LIBRARY_BACKENDS)}"
    blocks = [block.attention for block in architecture.blocks]
    if any(block.cross is not None for block in architecture.blocks):
        return f"the transformers implementation of {w.model}, which reads a source, is not served"
    in_float32 = any(one.rope is not None for one in blocks) or any(
        block.norm.kind == "rms" for block in architecture.blocks
    )
    if w.dtype == "float64" and in_float32:
        return "the library turns and norms in float32: dtype float32, bfloat16 or float16"
    if w.phase == "mixed" or w.min_len is not None:
        return f"the transformers implementation is not measured in {w.phase} of such batches"
    if w.kv_cache not in ("none", "contiguous", "static"):
        return f"the transformers implementation has caches contiguous and static: not {w.kv_cache}"
    if w.kv_cache == "static" and any(block.window_len is not None for block in blocks):
        return "the library's static cache of a window rolls on in each call: kv_cache contiguous"
    if w.kv_dtype is not None or w.weight_dtype is not None:
        return "the transformers implementation stores weights and caches in its own dtype here"
    if w.backend != "eager" and any(block.softcap is not None for block in blocks):
        return f"{of_library}: the library caps scores by its eager kernel"
    if w.backend not in ("eager", "flex") and any(block.sinks for block in blocks):
        return f"{of_library}: the library's SDPA takes no logits of sinks"
    return None


def attention_calls(workload: Workload) -> tuple[Workload, ...]:
    """The attentions of all kinds of layers in a call, as workloads of scope op."""
    if workload.model is None:
        added = POSITIONS[workload.position].acts == "scores"
        attention = alone(_last_step(workload), workload.num_layers)
        return kernel_calls(replace(attention, position=workload.position if added else "none"))
    architecture = _architecture(workload.model, workload.model_digest)
    kinds = dict.fromkeys(
        block.attention for block in architecture.first(workload.num_layers).blocks
    )
    step = _last_step(workload)
    return tuple(call for block in kinds for call in kernel_calls(_of_block(step, block)))


def _last_step(workload: Workload) -> Workload:
    return workload.step(workload.kv_len) if workload.phase in GROWING else workload


def _of_block(step: Workload, block: AttentionBlock) -> Workload:
    window_len = None if block.window_len is None else min(block.window_len, step.kv_len)
    is_absorbed = step.kv_cache == "latent" and step.q_len < step.kv_len
    latent = block.latent
    return replace(
        alone(step, 1), num_q_heads=block.num_q_heads, num_kv_heads=block.num_kv_heads,
        head_dim=block.head_dim,
        v_head_dim=None if block.v_head_dim == block.head_dim else block.v_head_dim,
        variant=block.variant, window_len=window_len, softcap=block.softcap,
        sink_logits=block.sinks,
        position="alibi" if block.alibi else "none" if block.relative is None else "t5",
        mla=None if latent is None else "absorbed" if is_absorbed else "expanded",
        kv_lora_rank=None if latent is None else latent.kv_rank,
        rope_head_dim=None if latent is None else latent.rope_dim,
    )  # fmt: skip
