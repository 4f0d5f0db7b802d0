"""Element types, by torch's names for them."""

from dataclasses import dataclass

from attnprof.errors import UsageError, nearest


@dataclass(frozen=True)
class Dtype:
    """An element type: torch's name, the size of an element and its relative rounding step.

    ``storage_only`` types hold weights or cached keys and values, with scales beside them, and are
    made another type before they are multiplied.
    """

    name: str
    bytes: float
    epsilon: float
    aliases: tuple[str, ...] = ()
    storage_only: bool = False


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float64", 8, 2**-52, ("fp64", "f64", "double")),
        Dtype("float32", 4, 2**-23, ("fp32", "f32", "float")),
        Dtype("tf32", 4, 2**-10),  # float32 in memory, multiplied with 10 bits of mantissa
        Dtype("bfloat16", 2, 2**-7, ("bf16",)),
        Dtype("float16", 2, 2**-10, ("fp16", "f16", "half")),
        Dtype("float8_e4m3fn", 1, 2**-3, ("fp8", "e4m3", "fp8_e4m3")),
        Dtype("float8_e5m2", 1, 2**-2, ("e5m2", "fp8_e5m2")),
        Dtype("int8", 1, 2**-7, storage_only=True),
        Dtype("int4", 0.5, 2**-3, storage_only=True),
    )
}
# How weights and activations of a GEMM are stored, beyond torch's element types.
GEMM_SCHEMES = ("fp8_static", "fp8_block", "nvfp4", "mxfp4", "int8_wo", "int4_wo", "w8a8_int8")
_ALIASES = {alias: dtype.name for dtype in DTYPES.values() for alias in dtype.aliases}


def dtype_named(name: str) -> Dtype:
    """The element type called ``name`` by torch or by the field.

    >>> dtype_named("bf16").name
    'bfloat16'

    Raises:
        UsageError: No such type.
    """
    found = DTYPES.get(_ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise UsageError(f"unknown dtype {name!r}", nearest(name, [*DTYPES, *_ALIASES]))
    return found


def arithmetic_dtype(name: str) -> Dtype:
    """The element type called ``name``, of those that are multiplied as they are.

    Raises:
        UsageError: No such type, or one that only stores.
    """
    found = dtype_named(name)
    if found.storage_only:
        raise UsageError(
            f"dtype {found.name!r} only stores: nothing is multiplied in it",
            "give it as kv_dtype (of the cache) or weight_dtype (of the weights)",
        )
    return found
