"""The least time that serving steps take: FLOP, bytes and messages over a GPU's three roofs."""

from dataclasses import dataclass

from attnprof.models.spec import Layer, ModelSpec

ALL_REDUCES_PER_LAYER = 2
"""After attention and after the FFN, under tensor parallelism."""


@dataclass(frozen=True)
class Roofs:
    """What one GPU can do at most; None is unknown."""

    flops_per_s: float | None
    bytes_per_s: float | None
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class StepTime:
    """The least time of a step under each roof; None where a roof is unknown. [s]"""

    compute_s: float | None
    memory_s: float | None
    link_s: float | None

    @property
    def total_s(self) -> float | None:
        """Arithmetic and traffic overlap, messages do not: max(compute, memory) + link. [s]"""
        if self.compute_s is None or self.memory_s is None:
            return None
        return max(self.compute_s, self.memory_s) + (self.link_s or 0.0)

    @property
    def binding(self) -> str:
        """``compute``, ``bandwidth`` or ``interconnect``: the longest of the three."""
        times = {
            "compute": self.compute_s or 0.0,
            "bandwidth": self.memory_s or 0.0,
            "interconnect": self.link_s or 0.0,
        }
        return max(times, key=lambda name: times[name])


def touched_expert_share(num_tokens: int, num_experts: int, chosen: int) -> float:
    """Share of the experts that at least one of ``num_tokens`` tokens is sent to.

        1 − (1 − k / E)^T

    Tokens are taken to choose evenly and apart from each other.

    >>> touched_expert_share(1, 8, 2)
    0.25
    """
    return float(1 - (1 - min(1.0, chosen / max(1, num_experts))) ** num_tokens)


def read_weight_share(spec: ModelSpec, num_tokens: int) -> float:
    """Share of the weights that a step of ``num_tokens`` tokens reads.

    The embedding is a lookup, and idle experts are not read.
    """
    read = total = 0.0
    for layer, count in spec.layer_groups().items():
        for matrix in layer.matrices:
            share = 1.0
            if matrix.role == "experts":
                share = touched_expert_share(num_tokens, matrix.count, matrix.active_count)
            read += count * matrix.num_params * share
            total += count * matrix.num_params
    for matrix in spec.outer:
        total += matrix.num_params
        if matrix.role == "head" or (matrix.role == "embedding" and spec.tied_embeddings):
            read += matrix.num_params
    return read / total if total else 0.0


def attention_flops_per_token(layer: Layer, kv_len: float) -> float:
    """FLOP of one query's scores and output over ``kv_len`` keys in one layer. [FLOP]

    2 · heads · kv · (d + d_v)
    """
    flops = 0.0
    for attention in (layer.attention, layer.cross):
        if attention is not None:
            seen = min(kv_len, attention.window_len) if attention.window_len else kv_len
            width = attention.head_dim + attention.v_head_dim
            flops += 2 * attention.num_q_heads * seen * width
    return flops


def step_flops(spec: ModelSpec, num_tokens: int, mean_kv_len: float, num_logits: int) -> float:
    """FLOP of a step that takes in ``num_tokens`` tokens. [FLOP]

        2 · active parameters · tokens + attention + 2 · H · V · logits

    Attention runs over ``mean_kv_len`` keys a token; norms, softmax and activations are left out.

    Source:
        Kaplan et al. 2020, "Scaling Laws", arXiv:2001.08361, section 2.1.
    """
    flops = 0.0
    for layer, count in spec.layer_groups().items():
        matrices = sum(matrix.num_active_params for matrix in layer.matrices)
        each = 2.0 * matrices + attention_flops_per_token(layer, mean_kv_len)
        flops += count * num_tokens * each
    return flops + 2.0 * spec.hidden_size * spec.vocab_size * num_logits


def step_time(
    roofs: Roofs,
    *,
    flops_per_rank: float,
    bytes_per_rank: float,
    tp: int,
    message_bytes: float,
) -> StepTime:
    """The least time of a step on one of ``tp`` ranks.

    ``message_bytes`` is what all all-reduces of the step carry; a ring sends each byte
    2 · (tp − 1) / tp times over one rank's link.
    """
    ring = 2 * (tp - 1) / tp
    link = None
    if tp > 1 and roofs.link_bytes_per_s:
        link = message_bytes * ring / roofs.link_bytes_per_s
    return StepTime(
        flops_per_rank / roofs.flops_per_s if roofs.flops_per_s else None,
        bytes_per_rank / roofs.bytes_per_s if roofs.bytes_per_s else None,
        link if tp > 1 else 0.0,
    )
