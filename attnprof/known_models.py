"""A model's name, as logs and people write it -> its shipped profile; never the network."""

import re

from attnprof.models.load import load_model
from attnprof.models.spec import ModelSpec
from attnprof.profiles import find_profile, list_profiles

# What names add to a model's own: how it was tuned, stored and packed.
_SUFFIX = re.compile(
    r"[-_.](?:instruct|chat|it|hf|base|pt|fp8|dynamic|awq|gptq|int4|int8|4bit|bnb|nvfp4|mxfp4|gguf|"
    r"quantized|w8a8|w4a16|bf16|fp16|v\d+(?:\.\d+)*|\d{4}|q\d(?:_[k0-9a-z]+)*|unsloth|autoround)$"
)
_COMMENT = re.compile(r"\s*[(+].*$")


def spellings(name: str) -> list[str]:
    """The name, then shorter ones without what tuning and packing added.

    >>> spellings("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic")[-1]
    'llama-3.3-70b'
    """
    plain = _COMMENT.sub("", name).strip().rsplit("/", 1)[-1].lower().replace(" ", "-")
    plain = plain.removeprefix("meta-").removesuffix(".gguf")
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


def _is_listed(hub_id: str) -> bool:
    """Whether a profile lists the id, so that loading it stays off the network."""
    wanted = re.compile(rb"(?<![\w./-])" + re.escape(hub_id.lower().encode()) + rb"(?![\w./-])")
    for name in list_profiles("models"):
        path = find_profile("models", name)
        if path is not None and wanted.search(path.read_bytes().lower()):
            return True
    return False
