"""Work of a whole model for a step: FLOP of its matrices, attentions and recurrences."""

from typing import Literal

from attnprof.models.spec import Attention, Layer, Mixer, ModelSpec
from attnprof.variants import Causal, Full, SlidingWindow, Variant

# FLOP per token and element of the state: an update and a reading are an outer and an inner
# product (2 each); the delta rule first reads what the key recalls (2 more).
STATE_FLOPS = {
    "mamba": 4, "mamba2": 4, "lightning": 4, "xlstm": 4, "rwkv": 4, "gated_delta_net": 6,
    "kimi_delta": 6, "rg_lru": 0, "short_conv": 0,
}  # fmt: skip


def mask_of(attention: Attention, skips_masked: bool) -> Variant:
    """Which pairs are computed: those the mask lets through, or all where nothing is skipped."""
    if not skips_masked or not attention.causal or attention.kind == "cross":
        return Full()
    if attention.kind == "sliding" and attention.window_len:
        return SlidingWindow(attention.window_len)
    return Causal()


def attention_pairs(attention: Attention, q_len: int, kv_len: int, skips_masked: bool) -> int:
    """Pairs of a query and a key that one attention computes for one sequence and head.

    A chunked layer attends within chunks of ``window_len`` that begin at its multiples.

    >>> attention_pairs(Attention("chunked", 1, 1, 8, 8, window_len=2), 4, 4, skips_masked=True)
    6
    """
    if attention.kind == "chunked" and attention.window_len and skips_masked:
        return _chunked_pairs(kv_len, attention.window_len) - _chunked_pairs(
            kv_len - q_len, attention.window_len
        )
    return mask_of(attention, skips_masked).attended_pairs(q_len, kv_len)


def _chunked_pairs(length: int, chunk: int) -> int:
    whole, rest = divmod(length, chunk)
    return whole * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2


def attention_core_flops(
    attention: Attention,
    q_len: int,
    kv_len: int,
    *,
    skips_masked: bool = True,
    mla: Literal["expanded", "latent"] = "expanded",
) -> int:
    """FLOP of the scores and the output of one sequence, projections left out. [FLOP]

        F = 2 · H · P · (d + d_v)

    A latent that is not expanded is key and value of every head: d is r + d_rope and d_v is r.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1.

    >>> attention_core_flops(Attention("full", 2, 1, 8, 8), q_len=1, kv_len=4)
    256
    """
    pairs = attention_pairs(attention, q_len, kv_len, skips_masked)
    width = attention.head_dim + attention.v_head_dim
    if attention.kind == "mla" and mla == "latent":
        width = 2 * attention.kv_lora_rank + attention.rope_head_dim
    return 2 * attention.num_q_heads * pairs * width


def mixer_flops(mixer: Mixer, q_len: int) -> int:
    """FLOP of a recurrence run token by token, and of its convolution. [FLOP]

    A chunked form trades a constant more of these for matrix products; it is left out.
    """
    state = mixer.num_heads * mixer.head_dim * mixer.state_dim
    convolution = 2 * mixer.conv_channels * (mixer.conv_len + 1) if mixer.conv_len else 0
    return q_len * (STATE_FLOPS[mixer.kind] * state + convolution)


def layer_flops(
    layer: Layer,
    q_len: int,
    kv_len: int,
    *,
    source_len: int = 0,
    reads_source: bool = False,
    skips_masked: bool = True,
    mla: Literal["expanded", "latent"] = "expanded",
) -> int:
    """FLOP of one layer for one sequence: 2 per weight and token, and its attentions. [FLOP]

    Args:
        source_len: Tokens of the encoder that cross-attention reads.
        reads_source: The keys and values of the source are made in this step (a prefill).
    """
    flops = 0
    for matrix in layer.matrices:
        tokens = q_len
        if matrix.name in ("cross_k", "cross_v"):
            tokens = source_len if reads_source else 0
        elif matrix.name == "kv_b" and mla == "expanded":
            tokens = kv_len if layer.attention is not None else q_len
        flops += 2 * matrix.num_active_params * tokens
    if layer.attention is not None:
        flops += attention_core_flops(
            layer.attention, q_len, kv_len, skips_masked=skips_masked, mla=mla
        )
    if layer.cross is not None:
        flops += attention_core_flops(layer.cross, q_len, source_len, skips_masked=False)
    if layer.mixer is not None:
        flops += mixer_flops(layer.mixer, q_len)
    return flops


def model_flops(
    spec: ModelSpec,
    q_len: int,
    kv_len: int,
    *,
    batch_size: int = 1,
    source_len: int = 0,
    num_logits: int | None = None,
    skips_masked: bool = True,
    mla: Literal["expanded", "latent"] = "expanded",
) -> int:
    """FLOP of a step of a whole model. [FLOP]

    Two per active weight and token, the attentions, the recurrences and the head. Left out:
    the embedding's look-up, norms, softmax, activations, and the towers of multimodal models.

    Args:
        q_len: New tokens of each sequence; equal to ``kv_len`` it is a prefill.
        source_len: Tokens of the encoder; it runs in a prefill alone.
        num_logits: Positions of each sequence whose logits are made; all of them when None.
        skips_masked: Whether masked pairs are skipped, as flash kernels do. False counts what
            torch's own counter counts.
        mla: Whether keys and values are expanded from the latent (all cached ones, in each step),
            or the latent is attended to as it is.

    >>> from attnprof.models import load_model
    >>> model_flops(load_model("llama-3.1-8b"), 1, 1)
    15009841152
    """
    is_prefill = q_len == kv_len
    per_sequence = sum(
        count
        * layer_flops(
            layer,
            q_len,
            kv_len,
            source_len=source_len,
            reads_source=is_prefill,
            skips_masked=skips_masked,
            mla=mla,
        )
        for layer, count in spec.layer_groups().items()
    )
    if is_prefill:
        per_sequence += sum(
            layer_flops(layer, source_len, source_len, skips_masked=skips_masked)
            for layer in spec.encoder_layers
        )
    logits = q_len if num_logits is None else num_logits
    head = sum(matrix.num_params for matrix in spec.outer if matrix.role == "head")
    if spec.tied_embeddings:
        head += sum(matrix.num_params for matrix in spec.outer if matrix.name == "embedding")
    other = sum(matrix.num_active_params for matrix in spec.outer if matrix.role == "other")
    return batch_size * (per_sequence + 2 * head * logits + 2 * other * q_len)
