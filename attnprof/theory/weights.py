"""Bytes of a model's weights in any dtype or quantisation, scales and zeros included."""

import math

from attnprof.dtypes import dtype_named
from attnprof.models.spec import Matrix, ModelSpec, Quantization

# Elements and bytes of a block of each of GGML's types.
GGML_BLOCKS = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q4_0": (32, 18), "q4_1": (32, 20),
    "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q2_k": (256, 84), "q3_k": (256, 110),
    "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210), "q8_k": (256, 292),
    "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74),
    "iq2_s": (256, 82), "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18),
    "iq4_xs": (256, 136), "tq1_0": (256, 54), "tq2_0": (256, 66), "mxfp4": (32, 17),
}  # fmt: skip


def matrix_bytes(matrix: Matrix, dtype_bytes: float, quantization: Quantization | None) -> float:
    """Bytes of a matrix and of what its dequantisation needs. [bytes]

    | method | beside the packed weights |
    | --- | --- |
    | fp8 | a float32 a block of ``block_shape``, or one an output row |
    | int8 | a float32 an output row |
    | awq, gptq, int4 | a half a group of inputs and row; zeros as wide as a weight if any |
    | mxfp4 | a byte a group of 32 |
    | nvfp4 | a byte a group of 16, and a float32 a matrix |
    | bitsandbytes | a float32 a group of 64; doubly quantised, a byte and a float32 of 256 |
    | GGML's types | whole blocks a row, each with its scales |

    >>> matrix_bytes(Matrix("up", "ffn", 64, 64), 2, Quantization("mxfp4", 4, 32))
    2176.0
    """
    params = matrix.num_params
    if quantization is None or matrix.role in quantization.skipped_roles:
        return params * dtype_bytes
    if quantization.method in GGML_BLOCKS and quantization.method != "mxfp4":
        return ggml_bytes(matrix, quantization.method)
    rows = matrix.out_features * matrix.count
    packed = params * quantization.bits / 8
    method = quantization.method
    if quantization.block_shape is not None:
        block_rows, block_columns = quantization.block_shape
        blocks = math.ceil(matrix.out_features / block_rows) * matrix.count
        return packed + 4 * blocks * math.ceil(matrix.in_features / block_columns)
    if method in ("fp8", "int8"):
        return packed + 4 * rows
    if method == "bitsandbytes" and quantization.bits == 8:
        return packed + 4 * rows
    if not quantization.group_size:
        scale = 2 * rows if method in ("awq", "gptq", "int4") else 0
        return packed + scale
    groups = rows * math.ceil(matrix.in_features / quantization.group_size)
    if method == "mxfp4":
        return packed + groups
    if method == "nvfp4":
        return packed + groups + 4 * matrix.count
    if method == "bitsandbytes":
        return packed + (groups + 4 * groups / 256 if quantization.has_zeros else 4 * groups)
    zeros = groups * quantization.bits / 8 if quantization.has_zeros else 0
    return packed + 2 * groups + zeros


def weight_bytes(
    spec: ModelSpec, quantization: Quantization | None = None, dtype: str | None = None
) -> int:
    """Bytes of a model's weights. [bytes]

    Args:
        quantization: How they are stored; as the checkpoint's configuration says when None.
        dtype: What is not quantised; the checkpoint's dtype when None. Given alone, nothing is.

    Draft layers are left out: an engine loads them when it uses them.

    Source:
        OCP Microscaling Formats 1.0, section 5.3 (MXFP4); the methods' own packing.

    >>> from attnprof.models import load_model
    >>> round(weight_bytes(load_model("gpt-oss-120b")) / 2**30, 2)
    60.77
    """
    if quantization is None and dtype is None:
        quantization = spec.quantization
    dtype_bytes = dtype_named(dtype or spec.dtype).bytes
    total = sum(matrix_bytes(matrix, dtype_bytes, quantization) for matrix in spec.matrices())
    counted = sum(matrix.num_params for matrix in spec.matrices())
    return math.ceil(total + (spec.num_params - counted) * dtype_bytes)


def stored_share(spec: ModelSpec) -> float:
    """What a checkpoint's files hold over what its configuration makes; 1 where no header told.

    Layers for multi-token prediction are counted where the files are nearer to the sum with them.
    """
    if spec.stored_weight_bytes is None:
        return 1.0
    plain = weight_bytes(spec)
    drafted = plain + sum(
        matrix_bytes(matrix, dtype_named(spec.dtype).bytes, spec.quantization)
        for layer in spec.draft_layers
        for matrix in layer.matrices
    )
    stored = spec.stored_weight_bytes
    nearest = min((plain, drafted), key=lambda held: abs(held - stored))
    return stored / nearest if nearest else 1.0


def ggml_bytes(matrix: Matrix, ggml_type: str) -> int:
    """Bytes of a matrix in one of GGML's types, whole blocks a row. [bytes]

    >>> ggml_bytes(Matrix("up", "ffn", 2, 256), "q4_k")
    288
    """
    block, size = GGML_BLOCKS[ggml_type]
    return matrix.count * matrix.out_features * math.ceil(matrix.in_features / block) * size


STORED_DTYPES = ("int8", "int4", "float8_e4m3fn")
"""Types in which torchao stores weights that are multiplied in another."""
INT4_GROUPS = (128, 64, 32)
"""Inputs that may share a scale and a zero point in int4, the first that divides a row."""


def linear_bytes(rows: int, columns: int, dtype: str, weight_dtype: str | None = None) -> int:
    """Bytes of the weight of a linear layer as torchao stores it; plain where it does not. [bytes]

    | weight_dtype | beside the packed weights |
    | --- | --- |
    | int8 | a float32 scale and a byte of zero point an output row |
    | float8_e4m3fn | a float32 scale an output row |
    | int4 | a scale and a zero point in ``dtype`` a group of up to 128 inputs and row |

    Source:
        torchao 0.18: ``Int8Tensor``, ``Float8Tensor``, ``Int4OpaqueTensor``; each measured.

    >>> linear_bytes(128, 256, "bfloat16", "int4")
    17408
    """
    element_bytes = dtype_named(dtype).bytes
    if weight_dtype is None or weight_dtype == dtype:
        return int(rows * columns * element_bytes)
    packed = rows * columns * dtype_named(weight_dtype).bytes
    if weight_dtype == "int4":
        group = next((size for size in INT4_GROUPS if columns % size == 0), columns)
        return int(packed + 2 * rows * columns // group * element_bytes)
    return int(packed + rows * (5 if weight_dtype == "int8" else 4))
