"""A configuration's ``quantization_config`` -> how the weights are stored."""

import re
from typing import Any

from attnprof.errors import UsageError
from attnprof.models.spec import Quantization, Role

ALWAYS_KEPT: frozenset[Role] = frozenset({"embedding", "head", "router", "other"})

# What the names in a list of modules that are left alone say of a matrix's role.
ROLE_OF_NAME: tuple[tuple[str, Role], ...] = (
    (r"shared_expert", "shared_experts"),
    (r"linear_attn|mamba|mixer|conv", "mixer"),
    (r"self_attn|attention|\battn", "attention"),
    (r"\.experts|block_sparse_moe", "experts"),
    (r"mlp\.gate$|router|mlp\.gate\b", "router"),
    (r"mlp\.(gate|up|down)_|mlp$|mlp\W*$|feed_forward", "ffn"),
)


def kept_roles(ignored: list[Any], num_layers: int) -> frozenset[Role]:
    """Roles that stay in the model's dtype, from the modules that a checkpoint lists.

    A role counts as left alone when a pattern without a layer number names it, or when at least
    half of the layers do.
    """
    layers_of: dict[Role, set[str]] = {}
    kept: set[Role] = set(ALWAYS_KEPT)
    for name in ignored:
        if not isinstance(name, str):
            continue
        plain = name.replace("\\", "").replace("re:", "").replace(".*", "").rstrip("$*")
        role = next((role for words, role in ROLE_OF_NAME if re.search(words, plain)), None)
        if role is None or re.search("visual|vision|mm_", plain):
            continue
        numbered = re.search(r"layers?\.(\d+)", plain)
        if numbered:
            layers_of.setdefault(role, set()).add(numbered[1])
        else:
            kept.add(role)
    kept |= {role for role, layers in layers_of.items() if 2 * len(layers) >= num_layers}
    return frozenset(kept)


def read_quantization(
    section: Any, where: str, num_layers: int, fallback: Any = None
) -> Quantization | None:
    """The storage that a ``quantization_config`` states, None for plain weights.

    Raises:
        UsageError: The section is no mapping, or its numbers make no sense.
    """
    if section is None:
        section = fallback
    if section is None:
        return None
    if not isinstance(section, dict):
        raise UsageError(f"{where}: quantization_config is no mapping", "correct the file")
    method = str(section.get("quant_method") or section.get("quant_algo") or "").lower()
    ignored = section.get("modules_to_not_convert") or section.get("ignored_layers")
    ignored = ignored or section.get("ignore") or section.get("exclude_modules") or []
    kept = kept_roles(ignored if isinstance(ignored, list) else [], num_layers)
    if method in ("compressed-tensors", "modelopt", "modelopt_fp4", "quark"):
        return _grouped(section, where, kept)
    if method in ("fp8", "fbgemm_fp8", "float8"):
        shape = _block_shape(section.get("weight_block_size"), where, "weight_block_size")
        return Quantization("fp8", 8, block_shape=shape, skipped_roles=kept)
    if method == "mxfp4":
        return Quantization("mxfp4", 4, 32, skipped_roles=kept | {"attention", "mixer"})
    if method in ("awq", "gptq", "auto-round", "auto_round", "awq_marlin", "gptq_marlin"):
        bits = _whole(section.get("bits", section.get("w_bit", 4)), where, "bits")
        group = section.get("group_size", section.get("q_group_size", 128))
        group_size = _whole(group, where, "group_size") if group not in (None, -1) else None
        kind = "awq" if "awq" in method else "gptq"
        return Quantization(kind, bits, group_size, has_zeros=True, skipped_roles=kept)
    if method in ("bitsandbytes", "bnb"):
        if section.get("load_in_8bit"):
            return Quantization("bitsandbytes", 8, skipped_roles=kept)
        double = bool(section.get("bnb_4bit_use_double_quant"))
        return Quantization("bitsandbytes", 4, 64, has_zeros=double, skipped_roles=kept)
    raise UsageError(
        f"{where}: quant_method is {method!r}",
        "give --quantization: fp8, awq, gptq, nvfp4, mxfp4, int8 or bitsandbytes",
    )


def _grouped(section: dict[str, Any], where: str, kept: frozenset[Role]) -> Quantization:
    """Compressed-tensors and ModelOpt: groups of layers, each with a format of its weights."""
    weights = _group_weights(section, where)
    algorithm = str(
        section.get("quant_algo") or weights.get("dtype") or section.get("format") or ""
    ).lower()
    bits = weights.get("num_bits", next((int(bit) for bit in algorithm if bit in "48"), None))
    bits = _whole(bits, where, "num_bits")
    group = weights.get("group_size")
    group_size = _whole(group, where, "group_size") if group not in (None, -1) else None
    is_float = weights.get("type", "float" if "fp" in algorithm else "int") == "float"
    if bits == 4 and is_float:
        name = "mxfp4" if group_size == 32 or "mxfp4" in algorithm else "nvfp4"
        return Quantization(name, 4, 32 if name == "mxfp4" else 16, skipped_roles=kept)
    if bits == 8:
        shape = _block_shape(weights.get("block_structure"), where, "block_structure")
        method = "fp8" if is_float else "int8"
        return Quantization(method, 8, block_shape=shape, skipped_roles=kept)
    has_zeros = weights.get("symmetric") is False
    return Quantization("int4", bits, group_size or 128, has_zeros, skipped_roles=kept)


def _group_weights(section: dict[str, Any], where: str) -> dict[str, Any]:
    """How the first group of layers stores its weights, as any of the three tools writes it."""
    groups = section.get("config_groups") or section.get("layer_quant_config")
    named = next(iter(groups.values())) if isinstance(groups, dict) and groups else None
    named = named or section.get("global_quant_config") or {}
    weights = named.get("weights", named.get("weight")) if isinstance(named, dict) else named
    if weights is None and not groups:
        return {}
    if not isinstance(weights, dict):
        raise UsageError(f"{where}: weights of a group are {weights!r:.80}", "expected a mapping")
    return weights


def _block_shape(block: Any, where: str, key: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None where a whole row does."""
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2:
        raise UsageError(f"{where}: {key} is {block!r:.80}", "expected two whole numbers")
    return _whole(block[0], where, key), _whole(block[1], where, key)


def _whole(value: Any, where: str, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65536:
        raise UsageError(f"{where}: {key} is {value!r}", "expected a positive whole number")
    return value
