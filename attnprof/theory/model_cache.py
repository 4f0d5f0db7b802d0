"""Bytes that a model keeps of what it has read: keys and values, latents, and states."""

from attnprof.models.spec import ModelSpec


def kv_bytes_per_token(
    spec: ModelSpec, element_bytes: float = 2.0, *, tp: int = 1, expanded: bool = False
) -> float:
    """Bytes that one more token adds on one rank, windows ignored. [bytes]

        Σ layers · (k + v elements of the rank) · element bytes

    KV heads are divided among ranks, and replicated when there are fewer; a latent is not
    divided. Layers that read another's cache add nothing. What an encoder or a state keeps does
    not grow, and is left out.

    Args:
        expanded: An engine without latent attention stores MLA as keys and values of heads.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 2.1.1 (61 layers of 576).

    >>> from attnprof.models import load_model
    >>> kv_bytes_per_token(load_model("deepseek-v3"))
    70272.0
    >>> kv_bytes_per_token(load_model("llama-3.1-8b"))
    131072.0
    """
    elements = 0.0
    for layer, count in spec.layer_groups().items():
        attention = layer.attention
        if attention is not None and attention.causal:
            kept = attention.expanded_elements(tp) if expanded else attention.cached_elements(tp)
            elements += count * sum(kept) / attention.tokens_per_entry
    return elements * element_bytes


def kv_bytes_per_sequence(
    spec: ModelSpec,
    context_len: int,
    element_bytes: float = 2.0,
    *,
    source_len: int = 0,
    tp: int = 1,
    windows: bool = True,
) -> float:
    """Bytes that one sequence's cache needs at ``context_len`` on one rank. [bytes]

    The ideal: a sliding layer holds its window, a chunked one its chunk, cross-attention the
    source. Without ``windows``, what a formula that ignores them says.

    >>> from attnprof.models import load_model
    >>> gemma = load_model("gemma-3-27b")
    >>> [round(kv_bytes_per_sequence(gemma, 32768, windows=w) / 2**30, 1) for w in (True, False)]
    [2.9, 15.5]
    """
    elements = 0.0
    for layer, count in spec.layer_groups().items():
        if layer.attention is not None and layer.attention.causal:
            attention = layer.attention
            tokens = attention.cached_tokens(context_len) if windows else context_len
            elements += count * sum(attention.cached_elements(tp)) * tokens
        if layer.cross is not None:
            elements += count * sum(layer.cross.cached_elements(tp)) * source_len
    return elements * element_bytes


def state_bytes_per_sequence(
    spec: ModelSpec,
    conv_element_bytes: float = 2.0,
    state_element_bytes: float = 2.0,
    *,
    tp: int = 1,
) -> float:
    """Bytes of the convolutions' inputs and recurrent states of one sequence and rank. [bytes]

    They do not grow with the context.

    >>> from attnprof.models import load_model
    >>> state_bytes_per_sequence(load_model("mamba-2.8b"), 4, 4) / 2**20
    23.75
    """
    total = 0.0
    for layer, count in spec.layer_groups().items():
        if layer.mixer is not None:
            convolution, state = layer.mixer.state_elements(tp)
            total += count * (convolution * conv_element_bytes + state * state_element_bytes)
    return total
