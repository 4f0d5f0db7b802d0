"""The weights of one rank: a model's share under tensor, pipeline and expert parallelism."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from attnprof.engines.base import Deployment
from attnprof.models.spec import Layer, Matrix, ModelSpec
from attnprof.theory.weights import matrix_bytes, stored_share

MXFP4_TILE = 256
"""vLLM's MXFP4 kernels pad the inner width of experts to tiles: gpt-oss, 2,880 to 3,072."""

ROTARY_ELEMENT_BYTES = 2
KEEPS_ROTARY_TABLE = ("vllm", "sglang")
"""Engines that keep the cosines and sines of every position, in half precision; the others work
them out as they go."""

EMBEDS_ON_HOST = ("llama-cpp", "ollama")
"""Engines that look an embedding up in host memory, unless it is the head as well."""

SPLITS_DENSE = ("sglang",)
"""Engines whose data-parallel attention leaves dense blocks and the head split over all ranks."""


Where = Literal["layer", "shared", "encoder", "outer", "tower"]


@dataclass(frozen=True)
class RankPart:
    """Weights of one rank: a matrix (None: norms, biases, tables) and where it stands.

    ``shared`` ones are an earlier layer's: read again, and held once.
    """

    where: Where
    matrix: Matrix | None
    num_bytes: float


def stage_layers(spec: ModelSpec, pp: int) -> ModelSpec:
    """The model with the layers of its heaviest pipeline stage alone.

    Stages are as long as each other; what is left over goes to those before the last, from the
    back, as the last one has the head.

    Source:
        vLLM's distributed/utils.py, get_pp_indices.
    """
    if pp == 1:
        return spec
    each, left = divmod(len(spec.layers), pp)
    sizes = [each + (0 < pp - 1 - index <= left) for index in range(pp)]
    starts = itertools.accumulate(sizes, initial=0)
    stages = [spec.layers[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    return replace(spec, layers=max(stages, key=lambda stage: sum(la.num_params for la in stage)))


def rotary_table_bytes(deployment: Deployment) -> int:
    """The table of rotary angles that every rank holds whole. [bytes]

        max_position_embeddings · rotary_dim · 2

    Llama-3.1-8B loads 0.029 GiB more than Llama-3-8B for its 128k positions.

    Source:
        vLLM's start-up logs of both.
    """
    if deployment.engine.kind not in KEEPS_ROTARY_TABLE:
        return 0
    spec = deployment.model
    return (spec.max_position_embeddings or 0) * spec.rotary_dim * ROTARY_ELEMENT_BYTES


def rank_weight_bytes(deployment: Deployment) -> int:
    """Bytes of weights that the fullest rank loads, its rotary table included. [bytes]

    Matrices are divided among the ranks of tensor parallelism, keys and values as far as there
    are KV heads; experts also among the ranks that attend apart; norms, biases and routers are
    whole on each. A pipeline's fullest stage has its layers and an embedding. Where a file's
    header told the bytes, all of it is scaled to them.
    """
    spec = deployment.model
    outer = []
    held = 0.0
    for part in rank_parts(deployment, stage_layers(spec, deployment.pp)):
        if part.where == "outer" and part.matrix is not None:
            outer.append(part.num_bytes)
        elif part.where != "shared":
            held += part.num_bytes
    held += max(outer, default=0.0) if deployment.pp > 1 else sum(outer)
    held += absorbed_latent_bytes(deployment) + rotary_table_bytes(deployment)
    return round(held * (deployment.engine.overheads.weight_scale or 1.0))


def rank_parts(deployment: Deployment, spec: ModelSpec) -> Iterator[RankPart]:
    """What one rank loads of ``spec``, which is the deployment's model or a stage of it."""
    scale = stored_share(deployment.model)
    for layer, count in spec.layer_groups().items():
        where: Where = "shared" if layer.is_shared else "layer"
        yield from _layer_parts(layer, where, count * scale, deployment)
    if deployment.num_draft_tokens:
        for layer, count in Counter(spec.draft_layers).items():
            yield from _layer_parts(layer, "layer", count * scale, deployment)
    for layer, count in Counter(spec.encoder_layers).items():
        yield from _layer_parts(layer, "encoder", count * scale, deployment)
    on_host = deployment.engine.kind in EMBEDS_ON_HOST and not spec.tied_embeddings
    for matrix in spec.outer:
        if not (on_host and matrix.role == "embedding"):
            held = rank_matrix_bytes(matrix, None, deployment) * scale
            # TensorRT-LLM's head is a constant of its own, unless it was built to share it.
            copies = 2 if matrix.role == "embedding" and _copies_head(deployment) else 1
            yield RankPart("outer", matrix, copies * held)
    yield RankPart("outer", None, spec.outer_vector_params * deployment.dtype_bytes * scale)
    yield RankPart("tower", None, spec.vision_params * deployment.dtype_bytes * scale)


def _layer_parts(
    layer: Layer, where: Where, times: float, deployment: Deployment
) -> Iterator[RankPart]:
    for matrix in layer.matrices:
        held = rank_matrix_bytes(matrix, layer, deployment)
        yield RankPart(where, matrix, held * times)
    yield RankPart(where, None, layer.vector_params * deployment.dtype_bytes * times)


def _copies_head(deployment: Deployment) -> bool:
    return deployment.engine.kind == "tensorrt-llm" and deployment.model.tied_embeddings


def _is_plain_embedding(matrix: Matrix, deployment: Deployment) -> bool:
    """vLLM gives encoder-decoders a plain embedding, whole on each rank."""
    is_seq2seq = bool(deployment.model.encoder_layers)
    return is_seq2seq and matrix.role == "embedding" and deployment.engine.kind == "vllm"


def _pads_experts(deployment: Deployment) -> bool:
    quantization = deployment.model.quantization
    is_mxfp4 = quantization is not None and quantization.method == "mxfp4"
    return is_mxfp4 and deployment.engine.kind == "vllm"


def absorbed_latent_bytes(deployment: Deployment) -> float:
    """Copies of MLA's up-projections that decoding multiplies by, beside the stored ones. [bytes]

        layers · heads / tp · (nope + v) · rank · s

    The first release with MLA multiplied them into the query's and the output's projections,
    which made them as wide as the model.

    Source:
        vLLM's MLA layers after loading; a log of 0.7.1 within 0.02 GiB.
    """
    engine, spec = deployment.engine, deployment.model
    form = engine.constants.get("latent_copies", "none")
    if form == "none":
        return 0.0
    elements = 0
    for layer, count in stage_layers(spec, deployment.pp).layer_groups().items():
        attention = layer.attention
        if attention is None or attention.kind != "mla":
            continue
        heads = max(1, attention.num_q_heads // deployment.tp)
        width = attention.head_dim - attention.rope_head_dim + attention.v_head_dim
        if form == "fused":
            width = 2 * spec.hidden_size
        elements += count * heads * width * attention.kv_lora_rank
    return elements * deployment.dtype_bytes


def rank_matrix_bytes(matrix: Matrix, layer: Layer | None, deployment: Deployment) -> float:
    spec = deployment.model
    held = matrix_bytes(matrix, deployment.dtype_bytes, spec.quantization)
    if matrix.role == "experts" and _pads_experts(deployment):
        inner = (
            matrix.in_features if matrix.out_features == spec.hidden_size else matrix.out_features
        )
        held *= math.ceil(inner / MXFP4_TILE) * MXFP4_TILE / inner
    return held / ranks_of(matrix, layer, deployment)


def ranks_of(matrix: Matrix, layer: Layer | None, deployment: Deployment) -> int:
    """How many ranks a matrix is divided among."""
    if matrix.sharding == "replicated" or _is_plain_embedding(matrix, deployment):
        return 1
    if matrix.role == "experts":
        return deployment.expert_ranks
    splits_dense = deployment.dp_attention and deployment.engine.kind in SPLITS_DENSE
    if splits_dense and matrix.role in ("ffn", "shared_experts", "head"):
        return deployment.tp * deployment.dp
    if matrix.sharding == "kv_heads" and layer is not None and layer.attention is not None:
        return min(deployment.tp, layer.attention.num_kv_heads)
    return deployment.tp


def read_weight_bytes(deployment: Deployment, num_tokens: int, *, encodes: bool) -> float:
    """Bytes of weights that a step of ``num_tokens`` tokens reads on one rank. [bytes]

    Every layer of the model once, through all stages of a pipeline; of the experts those that at
    least one token is sent to. An embedding is looked up, not read, unless it is the head too.

    Args:
        encodes: Whether the encoder runs in this step.
    """
    spec, read = deployment.model, 0.0
    for part in rank_parts(deployment, spec):
        matrix = part.matrix
        if part.where == "tower" or (part.where == "encoder" and not encodes):
            continue
        if matrix is not None and matrix.role == "experts":
            read += part.num_bytes * touched_expert_share(
                num_tokens, matrix.count, matrix.active_count
            )
        elif matrix is None or matrix.role != "embedding" or _is_head(matrix, spec):
            read += part.num_bytes
    return read * (deployment.engine.overheads.weight_scale or 1.0)


def _is_head(matrix: Matrix, spec: ModelSpec) -> bool:
    return spec.tied_embeddings and matrix.out_features == spec.vocab_size


def touched_expert_share(num_tokens: float, num_experts: int, chosen: int) -> float:
    """Share of the experts that at least one of ``num_tokens`` tokens is sent to.

        1 − (1 − k / E)^T

    Tokens are taken to choose evenly and apart from each other.

    >>> touched_expert_share(1, 8, 2)
    0.25
    """
    return float(1 - (1 - min(1.0, chosen / max(1, num_experts))) ** num_tokens)
