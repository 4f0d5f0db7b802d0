"""Which layer attends to what, and which of them have experts: one name a layer."""

from attnprof.models.config import Config
from attnprof.models.families import Family

KIND_OF_TYPE = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "deepseek_sparse_attention": "full",
    "minimax_m3_sparse": "full",
    "compressed_sparse_attention": "full",
    "heavily_compressed_attention": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "mixer",
    "mamba": "mixer",
    "mamba2": "mixer",
    "recurrent": "mixer",
    "conv": "mixer",
    "hybrid": "hybrid",
    "cross_attention": "cross",
    "mlp": "mlp",
    "moe": "moe",
}
NEMOTRON_BLOCKS = ["mamba", "moe", "attention", "mlp"]  # where the configuration names none
NEMOTRON_LETTERS = {"M": "mixer", "*": "full", "-": "mlp", "E": "moe"}


def window_of(config: Config) -> int | None:
    """Tokens that a sliding layer sees; None where there is no window. [tokens]"""
    if not config.flag("use_sliding_window", True):
        return None
    value = config.get("sliding_window")
    if value is None:
        value = config.get("local_attention") or config.get("window_size")
    if value is None or isinstance(value, list):
        return None
    window_len = config.count("sliding_window", value, least=-1)
    return window_len if window_len > 0 else None


def layer_kinds(config: Config, family: Family, num_layers: int) -> list[str]:
    """The kind of every layer by what it keeps: as stated, but a window that no context reaches
    is none.

    Raises:
        UsageError: A kind that is not known, or not one for every layer.
    """
    window_len = window_of(config)
    longest = config.get("max_position_embeddings") or 0
    idle = window_len is None or (isinstance(longest, int) and 0 < longest <= window_len)
    kinds = stated_kinds(config, family, num_layers)
    return ["full" if kind == "sliding" and idle else kind for kind in kinds]


def stated_kinds(config: Config, family: Family, num_layers: int) -> list[str]:
    """The kind of every layer: full, sliding, chunked, mixer, hybrid, cross, mlp or moe.

    Raises:
        UsageError: A kind that is not known, or not one for every layer.
    """
    if family.parallel_mixer:
        return ["hybrid"] * num_layers
    named = config.items("layer_types")
    if (
        named is None
        and family.extra == "nemotron_h"
        and not config.says("hybrid_override_pattern")
    ):
        named = NEMOTRON_BLOCKS
    if named is not None:
        kinds = []
        for name in named:
            if not isinstance(name, str) or name not in KIND_OF_TYPE:
                raise config.wrong("layer_types", name, f"one of {', '.join(KIND_OF_TYPE)}")
            kinds.append(KIND_OF_TYPE[name])
        if len(kinds) < num_layers:
            raise config.wrong("layer_types", named, f"{num_layers} names, one a layer")
        return kinds[:num_layers]
    return _derived_kinds(config, family, num_layers)


def _derived_kinds(config: Config, family: Family, num_layers: int) -> list[str]:
    """The kinds that follow from the other keys, as each family's code derives them."""
    index = range(num_layers)
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        unknown = set(pattern) - set(NEMOTRON_LETTERS)
        if unknown or len(pattern) < num_layers:
            raise config.wrong("hybrid_override_pattern", pattern, "a letter of M*-E a layer")
        return [NEMOTRON_LETTERS[letter] for letter in pattern[:num_layers]]
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full = set(linear["full_attn_layers"])  # counted from 1
        return ["full" if i + 1 in full else "mixer" for i in index]
    cross_at = config.items("cross_attention_layers")
    if cross_at is None and family.extra == "mllama":
        cross_at = list(range(3, num_layers, 5))
    if cross_at is not None:
        return ["cross" if i in cross_at else "full" for i in index]
    for key, full_mark in (("attn_type_list", 1), ("no_rope_layers", 0)):
        marks = config.items(key)
        if marks and len(marks) >= num_layers:
            other = "mixer" if key == "attn_type_list" else "chunked"
            return ["full" if marks[i] == full_mark else other for i in index]
    blocks = config.items("block_types")
    if blocks and family.mixer == "rg_lru":
        names = [KIND_OF_TYPE.get(str(block), "mixer") for block in blocks]
        local = ["sliding" if name == "full" else name for name in names]
        return [local[i % len(local)] for i in index]
    if config.model_type == "gpt_neo":
        return _gpt_neo_kinds(config, num_layers)
    if family.mixer and config.get("attn_layer_period") is not None:
        period = config.count("attn_layer_period")
        offset = config.count("attn_layer_offset", 0, least=0)
        return ["full" if i % period == offset else "mixer" for i in index]
    for key in ("full_attn_idxs", "attn_layer_indices"):
        full_at = config.items(key)
        if full_at is not None:
            return ["full" if i in full_at else "mixer" for i in index]
    if family.pattern is not None:
        return _patterned_kinds(config, family, num_layers)
    if family.mixer:
        return ["full" if family.mixer == "short_conv" else "mixer"] * num_layers
    if window_of(config) is None:
        return ["full"] * num_layers
    first = config.count("max_window_layers", 0, least=0)
    return ["full" if i < first else "sliding" for i in index]


def _gpt_neo_kinds(config: Config, num_layers: int) -> list[str]:
    """GPT-Neo's list of patterns, each with the number of its repeats."""
    kinds: list[str] = []
    for item in config.items("attention_types") or [[["global", "local"], num_layers]]:
        names, repeats = item if isinstance(item, list) and len(item) == 2 else (None, None)
        if not isinstance(names, list) or not isinstance(repeats, int):
            raise config.wrong("attention_types", item, "a list of names and its repeats")
        kinds += [KIND_OF_TYPE.get(str(name), "full") for name in names] * min(repeats, num_layers)
    if len(kinds) < num_layers:
        raise config.wrong("attention_types", config.get("attention_types"), f"{num_layers} layers")
    return kinds[:num_layers]


def _patterned_kinds(config: Config, family: Family, num_layers: int) -> list[str]:
    """Every n-th layer attends to everything, the others as the pattern says."""
    pattern = family.pattern
    assert pattern is not None
    other = KIND_OF_TYPE[pattern.other]
    stated = config.get(pattern.key) if pattern.key else None
    if isinstance(stated, str) and set(stated) <= {"L", "G"} and stated:
        return ["full" if stated[i % len(stated)] == "G" else "sliding" for i in range(num_layers)]
    period = config.count(pattern.key, pattern.period, least=0) if pattern.key else pattern.period
    if period == 0:
        return ["full"] * num_layers
    full_at = pattern.full_at % period
    kinds = ["full" if i % period == full_at else other for i in range(num_layers)]
    if family.extra == "gemma4" and kinds:
        kinds[-1] = "full"
    return kinds


def sparse_layers(config: Config, family: Family, num_layers: int) -> list[bool]:
    """Which layers have experts, by whichever of the families' rules the configuration states."""
    index = range(num_layers)
    if family.moe is None or num_experts(config) == 0:
        return [False] * num_layers
    named = config.items("mlp_layer_types")
    if named is not None:
        if len(named) < num_layers:
            raise config.wrong("mlp_layer_types", named, f"{num_layers} names, one a layer")
        return [name != "dense" for name in named[:num_layers]]
    listed = config.items("moe_layers")
    if listed is not None:
        return [i in listed for i in index]
    every = config.get("interleave_moe_layer_step")
    if every is not None:
        step = config.count("interleave_moe_layer_step", least=0)
        return [step > 0 and (i + 1) % step == 0 for i in index]
    if config.get("expert_layer_period") is not None:
        period = config.count("expert_layer_period")
        offset = config.count("expert_layer_offset", 0, least=0)
        return [i % period == offset for i in index]
    if config.get("moe_layer_start_index") is not None:
        start = config.count("moe_layer_start_index", 0, least=0)
        end = config.count("moe_layer_end_index", -1, least=-1)
        end = num_layers - 1 if end == -1 else end
        interval = config.count("moe_layer_interval", 1)
        return [start <= i <= end and (i + 1) % interval == 0 for i in index]
    if config.get("decoder_sparse_step") is not None:
        step = config.count("decoder_sparse_step", least=0)
        dense = config.items("mlp_only_layers") or []
        return [i not in dense and step > 0 and (i + 1) % step == 0 for i in index]
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(mark) for mark in frequency[:num_layers]]
    first = config.count("num_dense_layers", family.moe.dense_first, least=0)
    first = config.count("first_k_dense_replace", first, least=0)
    step = config.count("moe_layer_freq", 1)
    return [i >= first and i % step == 0 for i in index]


def num_experts(config: Config) -> int:
    """Routed experts of a sparse layer; 0 in a dense model."""
    return config.count("num_experts", 0, least=0, most=100_000)
