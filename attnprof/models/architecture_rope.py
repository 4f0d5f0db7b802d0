"""A configuration's keys for RoPE, of today and of before -> the rotation of one kind of layer."""

from typing import Any

from attnprof.errors import UsageError
from attnprof.models.config import Config
from attnprof.rope import Rope, rope_of_parameters

WORDS = ("rope_type", "type", "truncate")  # whose values are no numbers
LOCAL = "sliding_attention"


def layer_rope(
    config: Config,
    head_dim: int,
    *,
    layer_type: str = "full_attention",
    theta: float = 10_000.0,
    local_theta: float | None = None,
    unstated: tuple[tuple[str, Any], ...] = (),
    share: float = 1.0,
) -> Rope:
    """Base and scaling by which the layers of ``layer_type`` turn heads of ``head_dim``.

    Args:
        theta: The base, where none is stated.
        local_theta: That of layers with a window, where they have one of their own.
        unstated: The parameters, where nothing is stated of RoPE.
        share: Of a head's elements that are turned, where none is stated.

    Raises:
        UsageError: A scaling that is not known, a parameter that is none, or a width that cannot
            be halved.
    """
    is_local = local_theta is not None and layer_type == LOCAL
    parameters = _stated(config, layer_type, is_local, unstated)
    parameters.setdefault("rope_theta", local_theta if is_local else theta)
    for name, value in parameters.items():
        if name in WORDS:
            if value is not None and not isinstance(value, str | bool):
                raise config.wrong(name, value, "the name of a scaling")
        elif value is not None and not _is_positive(value):
            raise config.wrong(name, value, "a number above zero")
    if config.get("original_max_position_embeddings") is not None:
        first_len = config.count("original_max_position_embeddings")
        parameters.setdefault("original_max_position_embeddings", first_len)
    stated = config.get("partial_rotary_factor", config.get("rotary_pct"))
    share = parameters.get("partial_rotary_factor") or stated or share
    if not _is_positive(share):
        raise config.wrong("partial_rotary_factor", share, "a number above zero")
    if share > 1:
        raise config.wrong("partial_rotary_factor", share, "a share of 1 at most")
    max_len = config.count("max_position_embeddings", most=10**8)
    try:
        return rope_of_parameters(parameters, int(head_dim * share), max_len)
    except UsageError as error:
        raise UsageError(f"{config.where}: {error.problem}", error.fix) from None


def _stated(
    config: Config, layer_type: str, is_local: bool, unstated: tuple[tuple[str, Any], ...]
) -> dict[str, Any]:
    """The parameters that the configuration states for a kind of layer."""
    today = _mapping(config, "rope_parameters")
    if today is not None:
        by_type = today.get(layer_type)
        return dict(by_type if isinstance(by_type, dict) else today)
    theta_key = "rope_local_base_freq" if is_local else "rope_theta"
    scaling = None if is_local else _mapping(config, "rope_scaling")
    if scaling is None and not is_local and not config.says(theta_key):
        return dict(unstated)
    parameters = dict(scaling or {})
    if config.says(theta_key):
        parameters["rope_theta"] = config.get(theta_key)
    return parameters


def _mapping(config: Config, key: str) -> dict[str, Any] | None:
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise config.wrong(key, value, "a mapping")
    return value


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < 1e12
