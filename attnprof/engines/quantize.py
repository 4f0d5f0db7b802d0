"""The name of a weight quantisation -> a model whose weights are stored so."""

from dataclasses import replace

from attnprof.errors import UsageError, nearest
from attnprof.models.spec import ModelSpec, Quantization, Role

_EXPERTS_ONLY: frozenset[Role] = frozenset(
    {"embedding", "head", "router", "other", "attention", "mixer", "ffn", "shared_experts"}
)
_ALL: frozenset[Role] = frozenset()

# Mean bits a weight of llama.cpp's mixes, from model sizes of Llama-3-8B; embeddings included.
_GGUF_BITS = {
    "q8_0": 8.5, "q6_k": 6.57, "q5_k_m": 5.7, "q5_k_s": 5.57, "q5_0": 5.57, "q4_k_m": 4.89,
    "q4_k_s": 4.67, "q4_0": 4.64, "q4_1": 5.13, "iq4_xs": 4.46, "iq4_nl": 4.68, "q3_k_l": 4.3,
    "q3_k_m": 4.0, "q3_k_s": 3.64, "q2_k": 3.16,
}  # fmt: skip

METHODS: dict[str, Quantization] = {
    "fp8": Quantization("fp8", 8),
    "int8": Quantization("int8", 8),
    "awq": Quantization("awq", 4, 128, has_zeros=True),
    "gptq": Quantization("gptq", 4, 128, has_zeros=True),
    "int4": Quantization("int4", 4, 128),
    "nvfp4": Quantization("nvfp4", 4, 16),
    "mxfp4": Quantization("mxfp4", 4, 32, skipped_roles=_EXPERTS_ONLY),
    "bitsandbytes": Quantization("bitsandbytes", 4, 64),
    **{name: Quantization("gguf", bits, skipped_roles=_ALL) for name, bits in _GGUF_BITS.items()},
}
SPELLINGS = {
    "w8a8": "int8", "fp8_e4m3": "fp8", "bnb": "bitsandbytes", "awq_marlin": "awq",
    "gptq_marlin": "gptq", "modelopt_fp4": "nvfp4", "w4a16": "int4", "modelopt": "fp8",
}  # fmt: skip


def quantized(spec: ModelSpec, name: str) -> ModelSpec:
    """The same model with its weights stored as ``name`` says; ``none`` for the model's dtype.

    Raises:
        UsageError: No such method.
    """
    key = name.lower()
    key = SPELLINGS.get(key, key)
    if key in ("none", "auto", "compressed-tensors"):
        chosen = spec.quantization if key != "none" else None
        return replace(spec, quantization=chosen)
    if key not in METHODS:
        raise UsageError(f"unknown quantization {name!r}", nearest(key, [*METHODS, *SPELLINGS]))
    return replace(spec, quantization=METHODS[key], stored_weight_bytes=None)
