"""What a plain implementation of a model computes, layer by layer: the data that a builder fills
in from a configuration, and that :mod:`attnprof.workloads.transformer` interprets."""

from dataclasses import dataclass, replace
from typing import Literal

from attnprof.rope import Rope

NormKind = Literal["rms", "layer", "unit"]
Placement = Literal["pre", "post", "both", "parallel", "parallel-one-norm"]
Activation = Literal["silu", "gelu", "gelu-tanh", "relu"]
Router = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Root-mean-square or layer norm; ``layer`` has a bias as well, ``unit`` (RMS) no weight.

    With ``weight_offset`` 1 the stored weight is what it differs from one by (Gemma); where
    weights are loaded it is added, so that nothing of it is left in the computation.
    """

    kind: NormKind = "rms"
    eps: float = 1e-6
    weight_offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Latent:
    """The low ranks of multi-head latent attention; queries have none where it is None."""

    kv_rank: int
    q_rank: int | None
    rope_dim: int
    bias: bool = False
    interleaved: bool = True  # the stored rows of rotated pairs alternate; told to the loader


@dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """T5's trained bias a head and bucket of distances: one table for all layers of a stack."""

    num_buckets: int = 32
    max_distance: int = 128


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """Queries times 1 + slope · ln(1 + ⌊(position + 1) / step_len⌋): scores that stay as sharp in
    long contexts (Llama 4)."""

    step_len: int
    slope: float


@dataclass(frozen=True, kw_only=True)
class AttentionBlock:
    """Projections, position and attention of one layer, alike in all layers where it is equal."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    variant: str = "causal"
    window_len: int | None = None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    q_norm: Norm | None = None  # of each head's queries and keys
    norms_turned: bool = False  # queries and keys are normed after they are turned, not before
    softcap: float | None = None
    sinks: bool = False
    rope: Rope | None = None
    relative: RelativeBias | None = None
    alibi: bool = False
    temperature: Temperature | None = None
    latent: Latent | None = None


@dataclass(frozen=True, kw_only=True)
class Ffn:
    """Two matrices with an activation between; gated, a third one times it.

    A ``clamp`` is gpt-oss's: gate at most so much, the other within plus and minus it, and
    (up + 1) · gate · σ(1.702 · gate).
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    clamp: float | None = None


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Feed-forward blocks of which each token passes ``num_active``, and a shared one for all.

    ``num_groups`` and ``num_active_groups`` restrict the choice to the experts of the best
    groups, a group being as good as the sum of its ``group_best`` best.
    """

    expert: Ffn
    num_experts: int
    num_active: int
    router: Router = "softmax"
    router_bias: bool = False
    router_is_wide: bool = False  # rows and router are widened to float32 for the scores
    choice_bias: bool = False  # added to the scores only to choose by (balancing without a loss)
    normalised: bool = False
    weights_inputs: bool = False  # a token is weighted before its experts, not after (Llama 4)
    scaling: float = 1.0
    num_groups: int = 1
    num_active_groups: int = 1
    group_best: int = 2
    shared: Ffn | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """One layer: attention, over the source as well where ``cross`` says so, and an FFN.

    Norms stand before each part, after its sum with the residual (``post``), or before and after
    it (``both``). Parts in parallel both read the layer's input, each through a norm of its own or
    through one for both.
    """

    attention: AttentionBlock
    ffn: Ffn | Experts
    norm: Norm
    placement: Placement = "pre"
    cross: AttentionBlock | None = None


@dataclass(frozen=True, kw_only=True)
class HeadTransform:
    """A layer of the hidden size, its activation and norm, before the projection to the
    vocabulary: BERT's."""

    activation: Activation
    norm: Norm


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as plain arithmetic; sizes in elements and tokens.

    Of an encoder–decoder it is the decoder, whose blocks have a ``cross`` attention; its
    ``encoder`` is an architecture without a head, over the same embedding. Without one (Whisper)
    the source comes as states of the hidden size.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    max_len: int
    blocks: tuple[Block, ...]
    final_norm: Norm | None
    embedding_scale: float = 1.0
    num_positions: int | None = None  # rows of a learned table
    first_position: int = 0  # the row of a sequence's first token
    num_token_types: int = 0  # rows of a table that tells sentences apart
    embedding_norm: Norm | None = None
    has_head: bool = True
    tied_head: bool = False
    head_transform: HeadTransform | None = None
    head_bias: bool = False
    head_scale: float = 1.0  # of what the head is given
    logit_softcap: float | None = None
    encoder: "Architecture | None" = None

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    def first(self, num_layers: int) -> "Architecture":
        """The same with the first layers alone, to be measured where all have no room."""
        return replace(self, blocks=self.blocks[:num_layers])
