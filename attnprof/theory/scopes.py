"""A layer, block or model -> its FLOP, its bytes and its weights, one kind of layer at a time.

What is attention's own is counted by the formulas of scope op; here are the matrices around it.
"""

import math
from dataclasses import dataclass, replace

from attnprof.dtypes import dtype_named
from attnprof.models.load import load_model
from attnprof.models.parts import Parts
from attnprof.models.spec import Attention, Layer, Matrix, ModelSpec
from attnprof.theory.calls import parts_of_step
from attnprof.theory.flops import products_flops
from attnprof.theory.kv_cache import cached_bytes
from attnprof.theory.traffic import attention_bytes, latent_weight_bytes
from attnprof.theory.weights import linear_bytes
from attnprof.workload import GROWING, Workload


@dataclass(frozen=True)
class Stack:
    """``count`` equal layers, and the attentions that a call of them makes, as workloads of scope
    op: two in a mixed step, one over the source where the layer has one."""

    layer: Layer
    count: int
    attentions: tuple[Workload, ...]
    cross: Workload | None = None

    @property
    def held(self) -> tuple[Workload, ...]:
        """The attentions whose keys and values stay between calls."""
        own = tuple(one for one in self.attentions if one.kv_cache != "none")
        reads_anew = bool(self.attentions) and self.attentions[0].phase == "prefill"
        return own if self.cross is None or reads_anew else (*own, self.cross)


@dataclass(frozen=True)
class Stacks:
    """What a workload computes: its layers, those of its encoder, and what is around them."""

    layers: tuple[Stack, ...]
    encoder: tuple[Stack, ...] = ()
    spec: ModelSpec | None = None  # None of a layer or block

    @property
    def all(self) -> tuple[Stack, ...]:
        return (*self.encoder, *self.layers)


def stacks_of(workload: Workload, spec: ModelSpec | None = None) -> Stacks:
    """The layers of a workload whose scope is more than op.

    Args:
        spec: Of its model; read by the model's name where left out.

    Raises:
        UsageError: No such model.
    """
    if workload.model is None:
        layer = plain_layer(workload)
        attention = alone(workload, workload.num_layers)
        if workload.attention == "cross":
            return Stacks((Stack(layer, workload.num_layers, (), attention),))
        return Stacks((Stack(layer, workload.num_layers, parts_of_step(attention)),))
    return _stacks_of_model(workload, _as_run(spec or load_model(workload.model)))


def _as_run(spec: ModelSpec) -> ModelSpec:
    """A model without what is not run of it: of Whisper the decoder alone is, over states."""
    if spec.model_type != "whisper":
        return spec
    outer = tuple(
        one for one in spec.outer if one.name != "encoder_positions" and one.role != "other"
    )
    return replace(spec, encoder_layers=(), outer=outer, outer_vector_params=2 * spec.hidden_size)


def alone(workload: Workload, num_layers: int) -> Workload:
    """Attention alone, over as many layers, of a call forward."""
    return replace(
        workload, scope="op", position="none", num_layers=num_layers, weight_dtype=None,
        model=None, model_digest=None, source_len=None, implementation="plain", ffn=None,
        ffn_dim=None, num_experts=None, num_active_experts=None, checkpointing=False,
        phase="prefill" if workload.phase == "train" else workload.phase,
    )  # fmt: skip


def plain_layer(workload: Workload) -> Layer:
    """What a layer, or block, without a model multiplies by: no biases, RMS norms in a block."""
    parts, hidden_size = Parts(), workload.hidden_size
    heads = workload.num_q_heads
    if workload.mla is None:
        parts.attention = Attention(
            "full", heads, workload.num_kv_heads, workload.head_dim, workload.value_dim
        )
        parts.attention_projections(hidden_size, parts.attention)
    else:
        rank, rope = workload.kv_lora_rank, workload.rope_head_dim
        assert rank is not None and rope is not None
        up = workload.head_dim - rope + workload.value_dim
        parts.linear("q_b", "attention", heads * workload.head_dim, hidden_size)
        parts.linear("kv_a", "attention", rank + rope, hidden_size)
        parts.vector(rank)
        parts.linear("kv_b", "attention", heads * up, rank)
        parts.linear("o", "attention", hidden_size, heads * workload.value_dim)
    if workload.sink_logits:
        parts.vector(heads)
    if workload.scope == "block":
        parts.vector(2 * hidden_size)
        _plain_ffn(workload, parts)
    return parts.layer()


def _plain_ffn(workload: Workload, parts: Parts) -> None:
    width = workload.ffn_dim
    assert width is not None
    if workload.ffn != "moe":
        parts.ffn(workload.hidden_size, width, gated=workload.ffn == "gated")
        return
    total, active = workload.num_experts, workload.num_active_experts
    assert total is not None and active is not None
    parts.linear("router", "router", total, workload.hidden_size)
    parts.ffn(
        workload.hidden_size, width, role="experts", count=total, active=active, prefix="expert_"
    )


def _stacks_of_model(step: Workload, spec: ModelSpec) -> Stacks:
    layers = spec.layers or spec.encoder_layers
    decoder = tuple(
        _stack(step, layer, count) for layer, count in _groups(layers[: step.num_layers])
    )
    if not spec.layers or not spec.encoder_layers or step.scope == "block":
        return Stacks(decoder, spec=spec)
    source_len = step.source_len or step.kv_len
    reads = replace(
        step, phase="prefill", q_len=source_len, kv_len=source_len, kv_cache="none",
        kv_dtype=None, block_tokens=None,
    )  # fmt: skip
    encoder = tuple(_stack(reads, layer, count) for layer, count in _groups(spec.encoder_layers))
    return Stacks(decoder, encoder, spec)


def _groups(layers: tuple[Layer, ...]) -> list[tuple[Layer, int]]:
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return list(counts.items())


def _stack(step: Workload, layer: Layer, count: int) -> Stack:
    """A model's layer with its own heads and window in place of the workload's."""
    attention = None if layer.attention is None else _of_shape(step, layer.attention, count)
    cross = None
    if layer.cross is not None:
        source_len = step.source_len or step.kv_len
        at_source = replace(
            step, attention="cross", kv_len=source_len, kv_cache="cross", prefill_len=None,
            phase="decode" if step.phase == "mixed" else step.phase,
            q_len=step.q_len + (step.prefill_len or 0),
        )  # fmt: skip
        cross = replace(_of_shape(at_source, layer.cross, count), variant="full", window_len=None)
    return Stack(layer, count, () if attention is None else parts_of_step(attention), cross)


def _of_shape(step: Workload, shape: Attention, count: int) -> Workload:
    windowed = shape.kind in ("sliding", "chunked") and shape.window_len is not None
    variant = shape.kind if windowed else "causal" if shape.causal else "full"
    cache = step.kv_cache
    if windowed and cache == "contiguous" and step.implementation == "transformers":
        cache = "rolling"  # the library's cache of such a layer keeps the window alone
    if (cache == "rolling" and not windowed) or (cache == "latent" and shape.kind != "mla"):
        cache = "contiguous"
    is_latent = shape.kind == "mla"
    window_len = min(shape.window_len or 0, step.kv_len) if windowed else None
    return replace(
        alone(step, count), num_q_heads=shape.num_q_heads, num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        v_head_dim=None if shape.v_head_dim == shape.head_dim else shape.v_head_dim,
        variant=variant, window_len=window_len, prefix_len=None, document_len=None, sink_len=None,
        kv_cache=cache,
        mla=_form(step, cache) if is_latent else None,
        kv_lora_rank=shape.kv_lora_rank if is_latent else None,
        rope_head_dim=shape.rope_head_dim if is_latent else None,
    )  # fmt: skip


def _form(step: Workload, cache: str) -> str:
    """A cached latent is attended to as it is; what has no tokens before it is expanded."""
    return "absorbed" if cache == "latent" and step.q_len < step.kv_len else "expanded"


def scope_flops(workload: Workload) -> int:
    """FLOP of a call of a layer, block or model. [FLOP]

        F = Σ layers (2 · active weights · tokens + attention) + head

    A training step is three times its forward pass, and four where activations are made again:
    each matrix product has two on its way back. The head is never made again; torch leaves out the
    last product of each layer too, whose result nothing needs. Left out here: norms,
    activations, softmax, positions and look-ups, all O(tokens · hidden size).

    Source:
        Kaplan et al. 2020, "Scaling Laws", arXiv:2001.08361, section 2.1 (2 per weight and token,
        backward twice the forward); Korthikanti et al. 2022, arXiv:2205.05198, section 5 (one
        more forward where activations are recomputed).

    >>> scope_flops(Workload(backend="eager", scope="layer", q_len=1, kv_len=1, num_q_heads=1,
    ...     num_kv_heads=1, head_dim=1))
    12
    """
    step, stacks = workload, stacks_of(workload)
    layers = sum(stack.count * _matrix_flops(stack.layer, step) for stack in stacks.layers)
    layers += sum(_attention_flops(stack) for stack in stacks.layers)
    if stacks.encoder and step.phase in ("prefill", "train"):
        source = replace(step, phase="prefill", q_len=step.source_len or step.kv_len)
        layers += sum(stack.count * _matrix_flops(stack.layer, source) for stack in stacks.encoder)
        layers += sum(_attention_flops(stack) for stack in stacks.encoder)
    head = _head_flops(stacks, step)
    if step.phase != "train":
        return layers + head
    return (4 if step.checkpointing else 3) * layers + 3 * head


def _attention_flops(stack: Stack) -> int:

    cross = () if stack.cross is None else (stack.cross,)
    return sum(products_flops(one) for one in (*stack.attentions, *cross))


def tokens_of(step: Workload) -> int:
    """New tokens of a step, over all sequences."""
    return step.batch_size * step.q_len + (step.prefill_len or 0)


def _matrix_flops(layer: Layer, step: Workload) -> int:
    return sum(
        2 * matrix.num_active_params * rows_of(matrix, layer, step) for matrix in layer.matrices
    )


def rows_of(matrix: Matrix, layer: Layer, step: Workload) -> int:
    """Rows that a matrix is multiplied with in a step.

    The source's keys and values are made once, in a prefill of a model or in training.
    """
    if step.model is None and step.attention == "cross" and matrix.name in ("k", "v"):
        return step.batch_size * step.kv_len if step.phase == "train" else 0
    if matrix.name in ("cross_k", "cross_v"):
        reads = step.phase in ("prefill", "train")
        return step.batch_size * (step.source_len or step.kv_len) if reads else 0
    return tokens_of(step)


def num_logits(step: Workload) -> int:
    """Positions whose logits a step of a model makes: the last of each sequence where the next
    token alone is wanted, all where each is."""
    if step.phase in ("prefill", "chunked-prefill", "decode"):
        return step.batch_size
    if step.phase == "mixed":
        return step.batch_size + 1
    return tokens_of(step)


def logit_rows(stacks: Stacks, step: Workload) -> int:
    """Rows that the head of a model multiplies: all of an encoder's."""
    attentions = [stack.layer.attention for stack in stacks.layers]
    is_encoder = not any(one is not None and one.causal for one in attentions)
    return tokens_of(step) if is_encoder else num_logits(step)


def _head_flops(stacks: Stacks, step: Workload) -> int:
    spec = stacks.spec
    if spec is None or step.scope != "model":
        return 0
    head = sum(matrix.num_params for matrix in spec.outer if matrix.role == "head")
    if spec.tied_embeddings:
        head += sum(matrix.num_params for matrix in spec.outer if matrix.name == "embedding")
    other = sum(matrix.num_active_params for matrix in spec.outer if matrix.role == "other")
    return 2 * (head * logit_rows(stacks, step) + other * tokens_of(step))


def weight_params(workload: Workload) -> int:
    """Parameters that a layer, block or model holds: unique ones, all experts."""
    stacks = stacks_of(workload)
    layers = sum(
        stack.layer.num_params * (1 if stack.layer.is_shared else stack.count)
        for stack in stacks.all
    )
    spec = stacks.spec
    if spec is None or workload.scope != "model":
        return layers
    return layers + sum(one.num_params for one in spec.outer) + spec.outer_vector_params


def scope_weight_bytes(workload: Workload) -> int:
    """Bytes of the weights of a layer, block or model. [bytes]

        parameters · element bytes

    Of a narrower ``weight_dtype`` the linear layers within layers are stored so, with their scales;
    embedding, head and experts, which are no linear layers, are not.

    >>> scope_weight_bytes(Workload(backend="eager", scope="layer", q_len=1, kv_len=1,
    ...     num_q_heads=8, num_kv_heads=2, head_dim=64)) / 2**20
    2.5
    """
    element_bytes = dtype_named(workload.dtype).bytes
    total = math.ceil(weight_params(workload) * element_bytes)
    if workload.weight_dtype is None:
        return total
    for stack in stacks_of(workload).all:
        for matrix in stack.layer.matrices:
            if matrix.role == "experts":
                continue
            sizes = (matrix.out_features, matrix.in_features, workload.dtype)
            saved = linear_bytes(*sizes) - linear_bytes(*sizes, workload.weight_dtype)
            total -= stack.count * saved
    return total


def scope_kv_bytes(workload: Workload) -> int:
    """Bytes of the tokens that the caches of all layers hold at ``kv_len``: windows, latents and
    the source's keys each as their layers keep them; a training step keeps none. [bytes]"""
    if workload.phase == "train":
        return 0
    last = workload.step(workload.kv_len) if workload.phase in GROWING else workload
    return sum(cached_bytes(one) for stack in stacks_of(last).layers for one in stack.held)


def scope_bytes(workload: Workload) -> int:
    """Bytes that a call needs to move: weights once, and what its attentions move. [bytes]

    Of experts those that are chosen are read: of E experts, k a token, T tokens choose
    E · (1 − (1 − k/E)^T) on average, if all are as likely. A training step moves three times as
    many, four where activations are made again. Activations between the parts of a layer are left
    out: a kernel may keep them.
    """
    step, stacks = workload, stacks_of(workload)
    read = stacks.layers
    if step.phase in ("prefill", "train"):
        read = stacks.all
    size = dtype_named(workload.weight_dtype or workload.dtype).bytes
    plain = dtype_named(workload.dtype).bytes
    moved = 0.0
    for stack in read:
        layer = stack.layer
        matrices = sum(read_params(matrix, tokens_of(step)) for matrix in layer.matrices)
        moved += stack.count * (matrices * size + layer.vector_params * plain)
        moved += _attention_bytes(stack)
    moved += plain * _outer_elements(stacks, step)
    times = 1 if step.phase != "train" else 4 if step.checkpointing else 3
    return times * math.ceil(moved)


def read_params(matrix: Matrix, num_tokens: int) -> float:
    if matrix.active_count >= matrix.count:
        return matrix.num_params
    missed = (1 - matrix.active_count / matrix.count) ** num_tokens
    return matrix.num_params * (1 - missed)


def _outer_elements(stacks: Stacks, step: Workload) -> int:
    """Elements read around the layers: rows of tables that tokens look up, and the head whole."""
    spec = stacks.spec
    if spec is None or step.scope != "model":
        return 0
    tables = [one for one in spec.outer if one.role == "embedding"]
    rows = sum(min(tokens_of(step), one.out_features) * one.in_features for one in tables)
    whole = sum(one.num_params for one in spec.outer if one.role != "embedding")
    if spec.tied_embeddings:
        whole += sum(one.num_params for one in tables if one.name == "embedding")
    return rows + whole + spec.outer_vector_params


def _attention_bytes(stack: Stack) -> int:
    """What the attentions move; weights of a latent are among the layer's matrices."""
    cross = () if stack.cross is None else (stack.cross,)
    calls = (*stack.attentions, *cross)
    return sum(attention_bytes(one) - latent_weight_bytes(one) for one in calls)
