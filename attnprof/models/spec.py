"""What a model is made of: the one description that every figure of theory is computed from.

A model is a tuple of layers, each with the matrices it multiplies by, the number of its other
parameters, and what it keeps of the tokens it has seen: keys and values, a latent, a state.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Role = Literal[
    "embedding", "head", "attention", "mixer", "ffn", "experts", "shared_experts", "router", "other"
]
Sharding = Literal["split", "kv_heads", "replicated"]
CacheKind = Literal["full", "sliding", "chunked", "mla", "cross", "state", "none"]
MixerKind = Literal[
    "mamba", "mamba2", "gated_delta_net", "kimi_delta", "lightning", "rg_lru", "rwkv", "short_conv",
    "xlstm",
]  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A weight ``[out_features, in_features]``, of which ``count`` exist (one an expert).

    ``sharding`` says what tensor parallelism does: ``split`` divides it among the ranks,
    ``kv_heads`` divides it as far as there are KV heads, ``replicated`` gives each rank all of it.
    """

    name: str
    role: Role
    out_features: int
    in_features: int
    count: int = 1
    active_count: int = 1
    sharding: Sharding = "split"

    @property
    def num_params(self) -> int:
        return self.out_features * self.in_features * self.count

    @property
    def num_active_params(self) -> int:
        return self.out_features * self.in_features * min(self.active_count, self.count)


@dataclass(frozen=True)
class Indexer:
    """The small attention that picks which tokens sparse attention reads (DeepSeek-V3.2)."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class Attention:
    """Attention over cached keys and values.

    ``kind`` is what the cache holds: every token (``full``), the last ``window_len``
    (``sliding``), those of the current chunk of ``window_len`` (``chunked``), a latent in place of
    keys and values (``mla``), or the encoder's output (``cross``). ``head_dim`` is the width of a
    query and a key, ``v_head_dim`` that of a value.
    """

    kind: CacheKind
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window_len: int | None = None
    causal: bool = True
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    indexer: Indexer | None = None
    tokens_per_entry: int = 1
    """Tokens that one cached entry stands for, beside a window of single ones (DeepSeek-V4)."""
    reads_other_layer: bool = False
    """The layer attends to the cache of an earlier one and keeps none (Gemma-3n, Gemma-4)."""

    def cached_elements(self, tp: int = 1) -> tuple[int, int]:
        """Elements kept per token and rank: of keys (or the latent), and of values.

        KV heads are divided among the ranks and replicated when there are fewer than ranks; a
        latent is not divided.

        >>> Attention("full", 32, 8, 128, 128).cached_elements(tp=16)
        (128, 128)
        >>> Attention("mla", 128, 128, 192, 128, kv_lora_rank=512, rope_head_dim=64
        ...     ).cached_elements(tp=8)
        (576, 0)
        """
        if self.reads_other_layer:
            return 0, 0
        if self.kind == "mla":
            return self.kv_lora_rank + self.rope_head_dim, 0
        heads = max(1, self.num_kv_heads // tp)
        return heads * self.head_dim, heads * self.v_head_dim

    def expanded_elements(self, tp: int = 1) -> tuple[int, int]:
        """As :meth:`cached_elements`, by an engine that stores MLA as keys and values of heads."""
        if self.reads_other_layer:
            return 0, 0
        heads = max(1, (self.num_q_heads if self.kind == "mla" else self.num_kv_heads) // tp)
        return heads * self.head_dim, heads * self.v_head_dim

    def cached_tokens(self, context_len: int, source_len: int = 0) -> int:
        """Tokens that the cache must hold at ``context_len``: the ideal, before any engine.

        >>> Attention("sliding", 8, 8, 64, 64, window_len=128).cached_tokens(4096)
        128
        """
        if self.kind == "cross":
            return source_len
        recent = min(context_len, self.window_len) if self.window_len else context_len
        if self.tokens_per_entry > 1:
            return recent + context_len // self.tokens_per_entry
        return recent


@dataclass(frozen=True)
class Mixer:
    """A recurrent or state-space mixer: a state of constant size instead of a cache.

    The convolution keeps the last ``conv_len`` inputs of ``conv_channels`` channels; the
    recurrence keeps ``num_heads`` matrices ``[head_dim, state_dim]``.
    """

    kind: MixerKind
    num_heads: int
    head_dim: int
    state_dim: int
    conv_channels: int = 0
    conv_len: int = 0

    def state_elements(self, tp: int = 1) -> tuple[int, int]:
        """Elements kept per sequence and rank: of the convolution, and of the recurrence."""
        return (
            self.conv_channels * self.conv_len // tp,
            self.num_heads * self.head_dim * self.state_dim // tp,
        )


@dataclass(frozen=True)
class Layer:
    """One layer: what it attends with, what it multiplies by, and its other parameters.

    A parallel hybrid (Falcon-H1) has attention and a mixer; a decoder layer of an
    encoder–decoder has ``cross`` too; a layer that pruning emptied has neither.
    """

    attention: Attention | None = None
    mixer: Mixer | None = None
    cross: Attention | None = None
    matrices: tuple[Matrix, ...] = ()
    vector_params: int = 0
    """Norms, biases, convolutions and such: what quantisation leaves alone."""
    is_shared: bool = False
    """The weights are an earlier layer's (ALBERT, Zamba): they cost work, not memory."""

    @property
    def num_params(self) -> int:
        if self.is_shared:
            return 0
        return self.vector_params + sum(matrix.num_params for matrix in self.matrices)

    @property
    def num_active_params(self) -> int:
        """Parameters that one token's pass goes through, shared weights included."""
        return self.vector_params + sum(matrix.num_active_params for matrix in self.matrices)

    @property
    def is_moe(self) -> bool:
        return any(matrix.role == "experts" for matrix in self.matrices)

    @property
    def cache_kind(self) -> CacheKind:
        """What the layer keeps; attention goes before a mixer that works beside it."""
        if self.attention is not None and not self.attention.reads_other_layer:
            return self.attention.kind if self.attention.causal else "none"
        return "state" if self.mixer is not None else "none"


@dataclass(frozen=True)
class Quantization:
    """How the weights of a checkpoint are stored, as its configuration states it.

    ``method`` is the field's name for it (``fp8``, ``awq``, ``gptq``, ``mxfp4``, ``nvfp4``,
    ``bitsandbytes``); ``bits`` and ``group_size`` are those of one weight and one scale.
    ``skipped_roles`` stay in the model's dtype.
    """

    method: str
    bits: float
    group_size: int | None = None
    has_zeros: bool = False
    block_shape: tuple[int, int] | None = None
    skipped_roles: frozenset[Role] = frozenset({"embedding", "head", "router", "other"})


@dataclass(frozen=True)
class ModelSpec:
    """A model, whole: its layers, what stands around them, and how sure the count is."""

    name: str
    model_type: str
    architecture: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    encoder_layers: tuple[Layer, ...] = ()
    draft_layers: tuple[Layer, ...] = ()
    """Multi-token-prediction layers: in the checkpoint, not in ``num_params``."""
    outer: tuple[Matrix, ...] = ()
    """Embeddings, the untied head, and projections that belong to no layer."""
    outer_vector_params: int = 0
    vision_params: int = 0
    """Vision, audio and other towers with their projectors; part of ``num_params``."""
    tied_embeddings: bool = False
    max_position_embeddings: int | None = None
    rotary_dim: int = 0
    max_source_len: int | None = None
    """Positions of the encoder (Whisper: 1,500), when it is bounded."""
    logit_softcap: bool = False
    dtype: str = "bfloat16"
    quantization: Quantization | None = None
    stored_weight_bytes: int | None = None
    """Exact bytes of the weights, when a safetensors or GGUF header told them."""
    exact: bool = True
    """Whether the parameter count is exact: a known family, or a header."""
    library_params: int | None = None
    """What the Transformers library counts, where the shape here is only the common one."""
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def num_params(self) -> int:
        """Unique parameters: a tied head and shared layers count once."""
        if self.library_params is not None:
            return self.library_params
        layers = sum(layer.num_params for layer in (*self.encoder_layers, *self.layers))
        outer = sum(matrix.num_params for matrix in self.outer)
        return layers + outer + self.outer_vector_params + self.vision_params

    @property
    def num_active_params(self) -> int:
        """Parameters that work for one token: all but the experts that are not chosen."""
        layers = (*self.encoder_layers, *self.layers)
        idle = sum(
            matrix.num_params - matrix.num_active_params
            for layer in layers
            if not layer.is_shared
            for matrix in layer.matrices
        )
        return self.num_params - idle

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def is_moe(self) -> bool:
        return any(layer.is_moe for layer in self.layers)

    @property
    def kind(self) -> str:
        """mha, gqa, mqa, mla, sliding, linear_hybrid, encdec or encoder: how the cache grows."""
        kept = Counter(layer.cache_kind for layer in self.layers)
        if self.encoder_layers and self.layers:
            return "encdec"
        if kept["state"] or any(layer.mixer for layer in self.layers):
            return "linear_hybrid"
        if kept["mla"]:
            return "mla"
        if kept["sliding"] or kept["chunked"]:
            return "sliding"
        heads = [
            (layer.attention.num_q_heads, layer.attention.num_kv_heads)
            for layer in self.layers
            if layer.attention is not None and layer.attention.causal
        ]
        if not heads:
            return "encoder"
        if all(q == kv for q, kv in heads):
            return "mha"
        return "mqa" if all(kv == 1 for _, kv in heads) else "gqa"

    def matrices(self) -> Iterator[Matrix]:
        """Every stored matrix of the model, shared ones once, towers and draft layers left out."""
        yield from self.outer
        for layer in (*self.encoder_layers, *self.layers):
            if not layer.is_shared:
                yield from layer.matrices

    def layer_groups(self) -> dict[Layer, int]:
        """The distinct layers and how often each occurs, in order of first occurrence."""
        return self._layer_groups

    @cached_property
    def _layer_groups(self) -> dict[Layer, int]:
        # Grids ask this thousands of times, and hashing a layer goes through all its matrices.
        return dict(Counter(self.layers))

    def params_by_role(self) -> dict[str, int]:
        """Parameters by component; they add up to ``num_params``."""
        shares: Counter[str] = Counter()
        for matrix in self.matrices():
            shares[matrix.role] += matrix.num_params
        shares["norms and biases"] = self.outer_vector_params + sum(
            layer.vector_params
            for layer in (*self.encoder_layers, *self.layers)
            if not layer.is_shared
        )
        shares["towers"] = self.vision_params
        return {role: count for role, count in shares.items() if count}
