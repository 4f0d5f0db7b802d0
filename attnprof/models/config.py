"""A ``config.json`` -> its values, checked, with the library's defaults where it is silent."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.profiles import profile_dir

MAX_CONFIG_BYTES = 16 * 1024**2
MAX_COUNT = 10**9
MAX_LAYERS = 10_000

SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "d_model", "d_ff", "num_layers", "num_heads", "encoder_layers", "decoder_layers",
    "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim",
)  # fmt: skip
"""What a ``config.json`` always states, whatever the library's defaults: without it another model
would be counted."""

ONE_VALUE = ("hidden_size", "num_attention_heads")
"""What a file that states it under two names must state alike."""

# Names that configurations of other times and houses use for the same thing.
OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model", "n_embed", "model_dim", "dim", "emb_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads", "multi_query_group_num", "n_head_kv"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "d_inner", "dff"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length",
                                "model_max_length", "max_sequence_length"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "head_dim": ("kv_channels", "attention_head_dim", "d_kv"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_k", "moe_topk", "top_k_experts",
                            "experts_per_token"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "sliding_window": ("sliding_window_size", "attention_window_size"),
    "layer_types": ("layers_block_type",),
    "mamba_d_state": ("ssm_state_size", "state_size"),
}  # fmt: skip


@cache
def library_defaults() -> dict[str, Any]:
    """What each of the library's configuration classes assumes, by model type."""
    path = profile_dir("architectures") / "transformers.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["model_types"]
    return content


class Config:
    """The values of one configuration: what the file says, else what the library assumes.

    Every read checks what it finds, and an error names the file, the key and the value.
    """

    def __init__(
        self, values: dict[str, Any], where: str, model_type: str, like: str | None = None
    ) -> None:
        self.values = values
        self.where = where
        self.model_type = model_type
        defaults = library_defaults()
        known = defaults.get(model_type) or defaults.get(like or "", {})
        self.defaults: dict[str, Any] = known.get("defaults", {})
        self.aliases: dict[str, str] = known.get("aliases", {})
        self.nested_types: dict[str, str] = known.get("nested", {})
        self.left_out: dict[str, Any] = {}
        """Sizes that were read and the file does not state, with the library's defaults."""

    def _names(self, key: str) -> tuple[str, ...]:
        alias = self.aliases.get(key)
        return (key, *((alias,) if alias else ()), *OTHER_NAMES.get(key, ()))

    def get(self, key: str, default: Any = None) -> Any:
        """The value under ``key`` or one of its other names; ``default`` where it is null."""
        alias = self.aliases.get(key)
        if key in ONE_VALUE and alias in self.values and key in self.values:
            ours, theirs = self.values[key], self.values[alias]
            if ours != theirs and ours is not None and theirs is not None:
                raise self.wrong(key, ours, f"what {alias} says too: {theirs!r:.80}")
        for source in (self.values, self.defaults):
            for name in self._names(key):
                if name in source:
                    value = source[name]
                    return default if value is None else value
        return default

    def says(self, key: str) -> bool:
        """Whether the file itself, not a default, gives ``key`` a value."""
        return any(self.values.get(name) is not None for name in self._names(key))

    def wrong(self, key: str, value: Any, expected: str) -> UsageError:
        """The error of a key whose value is not ``expected``."""
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return UsageError(f"{self.where}: {key} is {shown}", f"expected {expected}")

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT
    ) -> int:
        """The whole number under ``key``.

        Raises:
            UsageError: Missing without a default, not a whole number, negative or absurd.
        """
        value = self.get(key, default)
        if value is None:
            raise UsageError(
                f"{self.where}: {key} is missing",
                f"add {key} to it; {self.model_type or 'a model'} needs it",
            )
        if key in SIZES and key not in self.left_out and not self.says(key) and default != value:
            self.left_out[key] = value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "a whole number")
        if not least <= value <= most:
            raise self.wrong(key, value, f"a number from {least} to {most}")
        return value

    def optional_count(self, key: str, *, least: int = 1) -> int | None:
        """As :meth:`count`, None where the key is missing or null."""
        return None if self.get(key) is None else self.count(key, least=least)

    def share(self, key: str, default: float) -> float:
        """The number under ``key``, not negative and finite."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise self.wrong(key, value, "a number that is not negative")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """The flag under ``key``."""
        value = self.get(key, default)
        if value not in (True, False, 0, 1):
            raise self.wrong(key, value, "true or false")
        return bool(value)

    def text(self, key: str, default: str = "") -> str:
        """The text under ``key``."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "text")
        return value

    def items(self, key: str) -> list[Any] | None:
        """The list under ``key``, None where it is missing or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS:
            raise self.wrong(key, value, "a list")
        return list(value)

    def counts(self, key: str, *, most: int = MAX_COUNT) -> list[int]:
        """The whole numbers of the list under ``key``; none where it is missing."""
        found = self.items(key) or []
        for value in found:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
                raise self.wrong(key, value, f"whole numbers from 1 to {most}")
        return found

    def section(self, key: str) -> "Config":
        """The nested configuration under ``key``, with the defaults of its own model type."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, "a mapping")
        own_type = value.get("model_type", "")
        expected_type = self.nested_types.get(key, "")
        known = isinstance(own_type, str) and own_type in library_defaults()
        model_type = own_type if known or not expected_type else expected_type
        return Config(dict(value), f"{self.where}, {key}", str(model_type))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a mapping.

    Raises:
        UsageError: Unreadable, too large, not JSON, or not a mapping.
    """
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise UsageError(
                f"{path} has {path.stat().st_size} bytes, more than a config.json may have",
                "give the config.json of a model",
            )
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a config.json") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UsageError(f"{path} is not JSON: {reason}", "give a config.json") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object", "give a config.json")
    return content
