"""A config.json or the name of a scheme -> what RoPE is made with: width, base and scaling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from attnprof.errors import UsageError
from attnprof.positions import ROTARY_SHARE

Scaling = Literal["default", "linear", "dynamic", "yarn", "llama3"]

BASE = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Rope:
    """What RoPE is made with; a value that a scaling does not read is left at its default.

    The first ``rotated_dim`` elements of each head are turned in pairs: an element with the one
    half of ``rotated_dim`` further on, or of ``interleaved`` with its neighbour.
    """

    rotated_dim: int
    base: float = BASE
    scaling: Scaling = "default"
    factor: float = 1.0  # how many times longer than ``original_len`` a sequence may be
    original_len: int = 4096  # of the sequences that the model was first trained on
    beta_fast: float = 32.0  # YaRN: turns over original_len from which a pair is left alone
    beta_slow: float = 1.0  # YaRN: turns up to which it is slowed by the whole factor
    truncate: bool = True  # YaRN: whether the ramp between them begins and ends at whole pairs
    attention_factor: float | None = None  # YaRN: of cosines and sines; None: by its formula
    mscale: float | None = None  # YaRN as DeepSeek has it
    mscale_all_dim: float | None = None
    low_freq_factor: float = 1.0  # Llama 3: wavelengths over original_len / this are slowed
    high_freq_factor: float = 4.0  # Llama 3: those under original_len / this are left alone
    interleaved: bool = False

    @property
    def varies_beyond(self) -> int | None:
        """The length beyond which frequencies depend on it; None where they never do."""
        return self.original_len if self.scaling == "dynamic" else None


# Of the schemes by name: Llama 2's first length stretched fourfold, and Llama 3.1 as it is.
_NAMED: dict[str, dict[str, Any]] = {
    "rope": {},
    "rope-partial": {},
    "rope-linear": {"scaling": "linear", "factor": 4.0},
    "rope-dynamic": {"scaling": "dynamic", "factor": 4.0, "original_len": 4096},
    "rope-yarn": {"scaling": "yarn", "factor": 4.0, "original_len": 4096},
    "rope-llama3": {
        "scaling": "llama3", "base": 500_000.0, "factor": 8.0, "original_len": 8192,
    },
}  # fmt: skip


def rope_named(name: str, head_dim: int) -> Rope:
    """The RoPE of the scheme called ``name``, for heads of ``head_dim``.

    >>> rope_named("rope-partial", 64).rotated_dim
    16
    """
    return Rope(rotated_dim=int(head_dim * ROTARY_SHARE.get(name, 1.0)), **_NAMED[name])


def rope_of_config(config: Mapping[str, Any], layer_type: str | None = None) -> Rope:
    """The RoPE of a Transformers ``config.json``, of its fifth version and of those before.

    Args:
        config: With ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``.
        layer_type: Of a model whose kinds of layers turn differently, as Gemma 3:
            ``full_attention`` or ``sliding_attention``.

    Source:
        Transformers 5, modeling_rope_utils.py, ``standardize_rope_params``.

    >>> rope_of_config({"head_dim": 64, "rope_theta": 1e6, "max_position_embeddings": 4096,
    ...     "rope_scaling": {"type": "linear", "factor": 2.0}}).factor
    2.0

    Raises:
        UsageError: A scaling that is not served, no width, or a width that has no halves.
    """
    settings = _settings(config, layer_type)
    scaling = settings.get("rope_type") or settings.get("type") or "default"
    if scaling not in get_args(Scaling):
        raise UsageError(
            f"rope_type {scaling!r} is not served", f"those served: {', '.join(get_args(Scaling))}"
        )
    given: dict[str, Any] = {
        name: settings[name] for name in _READ[scaling] if settings.get(name) is not None
    }
    longest = config.get("max_position_embeddings")
    if scaling != "default":
        # Dynamic NTK counts from the longest length, whatever else the configuration says.
        first = None if scaling == "dynamic" else _original_len(config, settings)
        given["original_len"] = first or longest
        if given["original_len"] is None:
            raise UsageError(
                f"rope_type {scaling!r} without original_max_position_embeddings",
                "add it, or max_position_embeddings",
            )
        if "factor" not in given:
            given["factor"] = (longest or given["original_len"]) / given["original_len"]
    return Rope(
        rotated_dim=_rotated_dim(config, settings),
        base=float(settings.get("rope_theta") or config.get("rope_theta") or BASE),
        scaling=cast("Scaling", scaling),
        interleaved=bool(config.get("rope_interleave", "qk_rope_head_dim" in config)),
        **given,
    )


_YARN = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
_READ = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", *_YARN),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def _settings(config: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    """The dict that speaks of RoPE, of one kind of layer where there are several."""
    local_base = config.get("rope_local_base_freq")
    if layer_type == "sliding_attention" and local_base is not None:
        return {"rope_theta": local_base}
    found = config.get("rope_parameters") or config.get("rope_scaling")
    settings: Mapping[str, Any] = found or {}
    by_layer = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    if not by_layer:
        return settings
    if layer_type not in by_layer:
        raise UsageError(
            f"no RoPE for layer_type {layer_type!r}", f"the configuration has {', '.join(by_layer)}"
        )
    return by_layer[layer_type]


def _original_len(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    key = "original_max_position_embeddings"
    return config.get(key) or settings.get(key)


def _rotated_dim(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    width = config.get("qk_rope_head_dim") or config.get("head_dim")
    if width is None and config.get("hidden_size") and config.get("num_attention_heads"):
        width = config["hidden_size"] // config["num_attention_heads"]
    if width is None:
        raise UsageError("a configuration without the width of its heads", "add head_dim")
    share = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    rotated = int(width * (share or config.get("rotary_pct") or 1.0))
    if rotated < 2 or rotated % 2:
        raise UsageError(
            f"RoPE turns pairs, and cannot halve {rotated} of head_dim {width}",
            "give an even width",
        )
    return rotated
