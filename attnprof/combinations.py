"""A workload -> why its values make no sense together, or None when they do."""

from attnprof.dtypes import dtype_named
from attnprof.positions import POSITIONS, ROTARY_SHARE
from attnprof.workload import GROWING, MIXERS, Workload

VERIFIED = range(2, 17)  # query tokens of a speculative step


def problem(workload: Workload) -> str | None:
    """Why this combination makes no sense, by name and before anything is allocated."""
    return next((found for rule in _RULES if (found := rule(workload)) is not None), None)


def _lengths(w: Workload) -> str | None:
    cross = w.attention == "cross"
    if cross and w.phase not in ("prefill", "decode", "verify", "train"):
        return f"a cross-attention has no {w.phase}: its keys are those of the source, cached once"
    match w.phase:
        case "prefill" | "train":
            if w.q_len != w.kv_len and not cross:
                return f"{w.phase} has q_len == kv_len, not {w.q_len} and {w.kv_len}"
        case "chunked-prefill":
            if not 1 < w.q_len < w.kv_len:
                return (
                    f"chunked-prefill has a chunk of 2 tokens or more after cached ones, "
                    f"not q_len {w.q_len} of kv_len {w.kv_len}"
                )
        case "verify":
            if w.q_len not in VERIFIED:
                return (
                    f"verify has {VERIFIED[0]} to {VERIFIED[-1]} query tokens, not q_len {w.q_len}"
                )
            if w.q_len > w.kv_len and not cross:
                return f"verify has q_len {w.q_len}, more than kv_len {w.kv_len}"
        case _:
            if w.q_len != 1:
                return f"{w.phase} has one query token, not {w.q_len}"
    if (w.phase == "mixed") != (w.prefill_len is not None):
        if w.prefill_len is None:
            return "a mixed step has a prompt: give prefill_len, its tokens"
        return f"prefill_len {w.prefill_len} belongs to a mixed step, not to {w.phase}"
    if w.checkpointing and w.phase != "train":
        return f"checkpointing belongs to train, not to {w.phase}"
    return None


def _growth(w: Workload) -> str | None:
    if w.phase not in GROWING:
        return None if w.start_len is None else f"start_len {w.start_len} belongs to kv-growth"
    if w.start_len is None or not 0 < w.start_len < w.kv_len:
        return f"{w.phase} from start_len {w.start_len} to kv_len {w.kv_len}"
    if w.cache_regime != "warm":
        return f"the steps of a {w.phase} follow each other: their caches are warm"
    return None


def _heads(w: Workload) -> str | None:
    if w.num_q_heads % w.num_kv_heads:
        return f"num_q_heads {w.num_q_heads} is not a multiple of num_kv_heads {w.num_kv_heads}"
    sizes = (w.kv_lora_rank, w.rope_head_dim)
    if w.mla is None:
        return None if sizes == (None, None) else "kv_lora_rank and rope_head_dim belong to mla"
    if w.kv_lora_rank is None or w.rope_head_dim is None:
        return f"mla {w.mla} has no kv_lora_rank or no rope_head_dim"
    if not w.rope_head_dim < w.head_dim:
        return f"rope_head_dim {w.rope_head_dim} is the rotated part of head_dim {w.head_dim}"
    if w.num_kv_heads != w.num_q_heads:
        return f"mla expands one latent for all {w.num_q_heads} heads: num_kv_heads is as many"
    if w.position not in ("none", "rope", "rope-yarn"):
        return f"mla rotates a part of its own: position {w.position!r} is not for it"
    if w.attention == "cross" or w.mixer != "attention":
        return "mla is a self-attention"
    return None


def _sights(w: Workload) -> str | None:
    for name in ("window_len", "prefix_len", "document_len", "sink_len"):
        size = getattr(w, name)
        if size is not None and size > w.kv_len:
            return f"{name} {size} is longer than the sequence of {w.kv_len}: give at most that"
    if w.attention == "cross" and w.variant != "full":
        return f"a cross-attention sees the whole source: variant full, not {w.variant}"
    if w.min_len is not None:
        if w.variant != "full" or w.phase not in ("prefill", "train"):
            return f"min_len {w.min_len}: padding is of a full prefill, as in an encoder"
        if w.batch_size == 1 or not w.min_len < w.kv_len:
            return (
                f"min_len {w.min_len} pads nothing: "
                f"batch_size {w.batch_size} of sequences up to {w.kv_len}"
            )
    if w.variant == "packed" and w.phase not in ("prefill", "train"):
        return f"packed documents have no {w.phase}: all their tokens come at once"
    return None


def _cache(w: Workload) -> str | None:
    cache = w.kv_cache
    if (cache == "cross") != (w.attention == "cross") and w.scope in ("op", "layer"):
        return f"kv_cache {cache!r} with attention {w.attention!r}: cross goes with cross"
    if w.phase in ("prefill", "train"):
        if cache not in ("none", "cross") and (w.scope == "op" or w.phase == "train"):
            return f"{w.phase} attends to its own keys; kv_cache {cache!r} belongs to decode"
    elif cache == "none" and w.phase != "generate" and w.mixer == "attention":
        return f"{w.phase} needs a kv_cache: contiguous, static, paged, rolling or latent"
    if cache == "rolling":
        if w.variant != "sliding" and w.model is None:
            return f"a rolling cache keeps a sliding window, and the variant is {w.variant}"
        if w.phase not in ("decode", *GROWING):
            return f"a rolling cache takes a token at a time, and {w.phase} brings more"
    if cache == "latent" and w.mla is None and w.model is None:
        return "a latent cache belongs to mla"
    if w.mla == "absorbed" and cache not in ("latent", "none"):
        return f"absorbed mla attends to its latent: kv_cache latent, not {cache}"
    if w.block_tokens is not None and cache != "paged":
        return f"block_tokens {w.block_tokens} belongs to a paged cache, not to {cache}"
    if w.kv_dtype is not None:
        if cache == "none":
            return f"{w.phase} without a cache attends to its own keys: no kv_dtype {w.kv_dtype}"
        if w.kv_dtype == "int4" and (odd := _odd_width(w)) is not None:
            return f"int4 packs two elements in a byte, and {odd} is odd"
    return None


def _odd_width(w: Workload) -> str | None:
    """The width of what a cache holds, in words, where it is odd."""
    if w.kv_cache == "latent":
        width = (w.kv_lora_rank or 0) + (w.rope_head_dim or 0)
        widths = {"kv_lora_rank + rope_head_dim": width}
    else:
        widths = {"head_dim": w.head_dim, "v_head_dim": w.value_dim}
    return next((f"{name} {width}" for name, width in widths.items() if width % 2), None)


def _place(w: Workload) -> str | None:
    acts = POSITIONS[w.position].acts
    if acts == "rotation":
        rotated = w.rope_head_dim or int(w.head_dim * ROTARY_SHARE.get(w.position, 1.0))
        if rotated < 2 or rotated % 2:
            return f"{w.position} turns pairs, and cannot halve {rotated} of head_dim {w.head_dim}"
        if w.position == "rope-dynamic" and rotated == 2:
            return "rope-dynamic spreads its scaling over pairs, and 2 elements are but one"
    if acts == "embeddings" and w.scope == "op":
        return f"{w.position} positions are added to a layer's input: scope layer, not op"
    if w.position == "sinusoidal" and w.hidden_size % 2:
        return f"sinusoidal positions pair sines with cosines: hidden_size {w.hidden_size} is odd"
    if w.model is not None and acts != "nowhere":
        return f"a model has positions of its own: position none, not {w.position}"
    if w.attention == "cross" and acts != "nowhere":
        return f"a cross-attention has no common positions: position none, not {w.position}"
    if w.mixer != "attention" and w.position != "none":
        return f"{w.mixer} knows the order of its tokens: position none, not {w.position}"
    return None


def _around(w: Workload) -> str | None:
    if (w.model is not None) != (w.scope == "model") and w.scope != "block":
        if w.model is None:
            return "scope model builds one: give model, a profile's name or a config.json"
        return f"model {w.model!r} with scope {w.scope}: scopes model and block have one"
    if w.implementation == "transformers" and w.model is None:
        return "the transformers implementation builds a model: give one"
    if w.scope == "block" and w.model is None:
        if w.ffn is None or w.ffn_dim is None:
            return "a block has an ffn (plain, gated or moe) and an ffn_dim, or a model's"
        if (w.ffn == "moe") != (None not in (w.num_experts, w.num_active_experts)):
            return "num_experts and num_active_experts go with ffn moe, both"
        if (w.num_active_experts or 0) > (w.num_experts or 0):
            return f"{w.num_active_experts} active experts of {w.num_experts}"
    elif (w.ffn, w.ffn_dim, w.num_experts, w.num_active_experts) != (None,) * 4:
        return "ffn, ffn_dim and experts are those of a block without a model"
    if w.weight_dtype is not None and w.scope == "op":
        return f"attention alone has no weights: weight_dtype {w.weight_dtype} is for scope layer"
    if w.source_len is not None and w.scope != "model":
        return "source_len is of an encoder–decoder model; a cross-attention's keys are kv_len"
    if w.phase == "mixed" and (w.attention == "cross" or w.mixer != "attention"):
        return "a mixed step is of self-attention"
    return None


def _recurrence(w: Workload) -> str | None:
    if w.mixer == "attention":
        return None
    assert w.mixer in MIXERS
    if w.backend != "eager":
        return f"{w.mixer} is no attention and has no kernel {w.backend!r}: backend eager"
    if w.scope != "layer" or w.attention == "cross":
        return f"{w.mixer} is a layer in place of self-attention: scope layer"
    if w.phase not in ("prefill", "decode", "train"):
        return f"{w.mixer} keeps a state, and no cache that grows: prefill, decode or train"
    if w.kv_cache != "none":
        return f"{w.mixer} keeps a state of constant size: kv_cache none, not {w.kv_cache}"
    if w.variant != "causal" or w.softcap or w.sink_logits:
        return f"{w.mixer} sees all of its past: variant causal, no softcap and no sinks"
    return None


def _training(w: Workload) -> str | None:
    if w.phase != "train":
        return None
    if w.weight_dtype is not None:
        return f"weights of {w.weight_dtype} are not trained"
    if dtype_named(w.dtype).bytes < 2:
        return f"nothing is trained in {w.dtype}"
    return None


_RULES = (_lengths, _growth, _heads, _sights, _cache, _place, _around, _recurrence, _training)
