"""A model's name, as logs and people write it -> its shipped profile; never the network."""

import re
from functools import cache

from attnprof.models.load import load_model
from attnprof.models.spec import ModelSpec
from attnprof.profiles import find_profile, list_profiles

# What names add to a model's own: how it was tuned, stored and packed.
_SUFFIX = re.compile(
    r"[-_.](?:instruct|chat|it|hf|base|pt|fp8|dynamic|awq|gptq|int4|int8|4bit|bnb|nvfp4|mxfp4|fp4|kv|gguf|"
    r"quantized|w8a8|w4a16|bf16|fp16|v\d+(?:\.\d+)*|\d{4}|q\d(?:_[k0-9a-z]+)*|unsloth|autoround)$"
)
_COMMENT = re.compile(r"\s*[(+].*$")


def spellings(name: str) -> list[str]:
    """The name, then shorter ones without what tuning and packing added.

    >>> spellings("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic")[-1]
    'llama-3.3-70b'
    """
    plain = _COMMENT.sub("", name).strip().rsplit("/", 1)[-1].lower().replace(" ", "-")
    plain = plain.removesuffix(".gguf")
    for maker in ("meta-", "nvidia-"):
        plain = plain.removeprefix(maker)
    found = [plain]
    while (shorter := _SUFFIX.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    return found


def known_model(name: str) -> ModelSpec | None:
    """The model of a shipped or user's profile that a name stands for; None when there is none."""
    for spelling in spellings(name):
        if find_profile("models", spelling) is not None:
            return load_model(spelling)
    hub_id = _COMMENT.sub("", name).strip()
    if "/" in hub_id and _is_listed(hub_id):
        return load_model(hub_id)
    return None


def model_called(name: str) -> ModelSpec | None:
    """As :func:`known_model`, also by what profiles list of the same shape, and by MLPerf's names.

    >>> [model_called(name).name for name in ("nvidia/DeepSeek-V3.1-NVFP4", "llama2-70b-99.9")]
    ['deepseek-v3', 'llama-2-70b']
    """
    found = known_model(name)
    if found is not None:
        return found
    for spelling in spellings(re.sub(r"-99(\.\d)?$", "", name)):
        dotted = re.sub(r"^llama-?(\d)(?:[._](\d))?-", _dotted_llama, spelling)
        for variant in (spelling, dotted):
            listed = variant if find_profile("models", variant) else _listed_names().get(variant)
            if listed is not None:
                return load_model(listed)
    return None


def _dotted_llama(match: re.Match[str]) -> str:
    major, minor = match.groups()
    return f"llama-{major}.{minor}-" if minor else f"llama-{major}-"


@cache
def _listed_names() -> dict[str, str]:
    """The last part of every hub id and other name, lower case, to the profile that lists it."""
    names: dict[str, str] = {}
    for profile in list_profiles("models"):
        path = find_profile("models", profile)
        text = path.read_text(encoding="utf-8") if path is not None else ""
        for listed in re.findall(r"(?m)^(?:hub_ids|aliases): \[([^\]]*)\]", text):
            for entry in listed.split(","):
                names.setdefault(entry.strip("\"' ").rsplit("/", 1)[-1].lower(), profile)
    return names


def model_of_shape(
    num_layers: int, hidden_size: int, vocab_size: int, heads: tuple[int, int]
) -> ModelSpec | None:
    """The one model of the profiles with these sizes; None when there is none, or several.

    Fine-tunes go by other names and keep the shape.
    """
    layers = re.compile(rf"\b(?:num_hidden_layers|n_layers?|num_layers): {num_layers}\b")
    width = re.compile(rf"\b(?:hidden_size|n_embd|d_model): {hidden_size}\b")
    found: list[ModelSpec] = []
    for name in list_profiles("models"):
        path = find_profile("models", name)
        text = path.read_text(encoding="utf-8") if path is not None else ""
        if not (layers.search(text) and width.search(text)):
            continue
        spec = load_model(name)
        attention = next((la.attention for la in spec.layers if la.attention is not None), None)
        if (
            attention is not None
            and spec.vocab_size == vocab_size
            and heads
            == (
                attention.num_q_heads,
                attention.num_kv_heads,
            )
        ):
            found.append(spec)
    counts = {spec.num_params for spec in found}
    return found[0] if len(counts) == 1 else None


def _is_listed(hub_id: str) -> bool:
    """Whether a profile lists the id, so that loading it stays off the network."""
    wanted = re.compile(rb"(?<![\w./-])" + re.escape(hub_id.lower().encode()) + rb"(?![\w./-])")
    for name in list_profiles("models"):
        path = find_profile("models", name)
        if path is not None and wanted.search(path.read_bytes().lower()):
            return True
    return False
