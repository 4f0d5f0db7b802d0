"""Element types, by torch's names for them."""

from dataclasses import dataclass

from attnprof.errors import UsageError, nearest


@dataclass(frozen=True)
class Dtype:
    """An element type: torch's name, the size of an element and its relative rounding step."""

    name: str
    bytes: float
    epsilon: float
    aliases: tuple[str, ...] = ()


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float64", 8, 2**-52, ("fp64", "f64", "double")),
        Dtype("float32", 4, 2**-23, ("fp32", "f32", "float")),
        Dtype("bfloat16", 2, 2**-7, ("bf16",)),
        Dtype("float16", 2, 2**-10, ("fp16", "f16", "half")),
        Dtype("float8_e4m3fn", 1, 2**-3, ("fp8", "e4m3", "fp8_e4m3")),
        Dtype("float8_e5m2", 1, 2**-2, ("e5m2", "fp8_e5m2")),
    )
}
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
