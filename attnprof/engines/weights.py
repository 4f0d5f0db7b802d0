"""The weights of one rank: a model's share under tensor, pipeline and expert parallelism."""

import math
from dataclasses import replace

from attnprof.engines.base import Deployment
from attnprof.models.spec import Layer, Matrix, ModelSpec, Quantization

MXFP4_TILE = 256
"""vLLM's MXFP4 kernels pad the inner width of experts to tiles: gpt-oss, 2,880 to 3,072."""

ROTARY_ELEMENT_BYTES = 2
"""Engines keep the cosines and sines of every position in half precision."""


def stage_layers(spec: ModelSpec, pp: int) -> ModelSpec:
    """The model with the layers of its largest pipeline stage alone."""
    if pp == 1:
        return spec
    return replace(spec, layers=spec.layers[: math.ceil(len(spec.layers) / pp)])


def rotary_table_bytes(spec: ModelSpec) -> int:
    """The table of rotary angles that every rank holds whole. [bytes]

        max_position_embeddings · rotary_dim · 2

    Llama-3.1-8B loads 0.029 GiB more than Llama-3-8B for its 128k positions.

    Source:
        Start-up logs of both.
    """
    return (spec.max_position_embeddings or 0) * spec.rotary_dim * ROTARY_ELEMENT_BYTES


def bytes_per_param(matrix: Matrix, dtype_bytes: float, quantization: Quantization | None) -> float:
    """Bytes that one element of a matrix takes in memory, its share of the scales included.

    A scale of two bytes (one in MXFP4 and NVFP4, four in bitsandbytes, quantised again one and a
    little) and, where the method has them, zeros as wide as a weight stand beside each group; FP8
    in blocks has a float32 a block.
    """
    if quantization is None or matrix.role in quantization.skipped_roles:
        return dtype_bytes
    bits = float(quantization.bits)
    if quantization.group_size:
        scale_bits = {"mxfp4": 8.0, "nvfp4": 8.0, "bitsandbytes": 32.0}.get(
            quantization.method, 16.0
        )
        if quantization.method == "bitsandbytes" and quantization.has_zeros:
            scale_bits = 8 + 32 / 256
        bits += scale_bits / quantization.group_size
        if quantization.has_zeros and quantization.method in ("awq", "gptq", "int4"):
            bits += quantization.bits / quantization.group_size
    if quantization.block_shape is not None:
        rows, columns = quantization.block_shape
        bits += 32 / (rows * columns)
    return bits / 8


def rank_weight_bytes(deployment: Deployment) -> int:
    """Bytes of weights that the fullest rank loads, its rotary table included. [bytes]

    Matrices are divided among the ranks of tensor parallelism, keys and values as far as there
    are KV heads; experts also among data-parallel ranks under expert parallelism; norms, biases
    and routers are whole on each. A pipeline's fullest stage has its layers and an embedding.
    """
    scale = deployment.engine.overheads.weight_scale or 1.0
    if deployment.weight_bytes_per_rank is not None:
        return round(deployment.weight_bytes_per_rank * scale)
    spec = deployment.model
    rotary = rotary_table_bytes(spec)
    if spec.stored_weight_bytes is not None and deployment.quantization is None:
        return round((spec.stored_weight_bytes / (deployment.tp * deployment.pp) + rotary) * scale)
    stage = stage_layers(spec, deployment.pp)
    held = sum(
        _layer_bytes(layer, deployment) * count
        for layer, count in stage.layer_groups().items()
        if not layer.is_shared
    )
    held += sum(
        _layer_bytes(layer, deployment) for layer in spec.encoder_layers if not layer.is_shared
    )
    outer = [_matrix_bytes(matrix, None, deployment) for matrix in spec.outer]
    held += max(outer, default=0.0) if deployment.pp > 1 else sum(outer)
    held += (spec.outer_vector_params + spec.vision_params) * deployment.dtype_bytes
    held += absorbed_latent_bytes(deployment)
    if deployment.engine.kind == "tensorrt-llm" and spec.tied_embeddings:
        # The engine's head is a constant of its own, unless it was built to share the embedding.
        held += sum(size for size, matrix in zip(outer, spec.outer, strict=True)
                    if matrix.role == "embedding")  # fmt: skip
    return round((held + rotary) * scale)


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


def _layer_bytes(layer: Layer, deployment: Deployment) -> float:
    matrices = sum(_matrix_bytes(matrix, layer, deployment) for matrix in layer.matrices)
    return matrices + layer.vector_params * deployment.dtype_bytes


def _matrix_bytes(matrix: Matrix, layer: Layer | None, deployment: Deployment) -> float:
    spec = deployment.model
    each = bytes_per_param(matrix, deployment.dtype_bytes, spec.quantization)
    if matrix.role == "experts" and each < 1 and _pads_experts(deployment):
        inner = (
            matrix.in_features if matrix.out_features == spec.hidden_size else matrix.out_features
        )
        each *= math.ceil(inner / MXFP4_TILE) * MXFP4_TILE / inner
    ranks = float(deployment.tp)
    if matrix.role == "experts" and deployment.expert_parallel:
        ranks = deployment.tp * deployment.dp
    elif matrix.sharding == "replicated" or _is_plain_embedding(matrix, deployment):
        ranks = 1.0
    elif matrix.sharding == "kv_heads" and layer is not None and layer.attention is not None:
        ranks = min(deployment.tp, layer.attention.num_kv_heads)
    return matrix.num_params * each / ranks
