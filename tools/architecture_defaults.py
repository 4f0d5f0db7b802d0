"""Writes profiles/architectures/transformers.json: what the library's configuration classes assume.

A ``config.json`` states only what differs from the defaults of its model type's class, so an
omitted key is looked up in this file. Run it where Transformers is installed:

    python tools/architecture_defaults.py > profiles/architectures/transformers.json
"""

import dataclasses
import json
import re
import sys
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

HEADS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
)
# Training, sampling and token numbers: none of them changes a shape.
IRRELEVANT = re.compile(
    r"dropout|token_id|token_index|initializer|use_cache|eps(ilon)?$|pdrop|layerdrop|init_std"
    r"|router_aux|rope_(theta|scaling|parameters)|pretraining_tp|^summary_|^mask_time|^mask_feature"
    r"|^output_(?!emb|groups)|^time_step_(?!rank)|_coef$|^task_specific|^suppress|jitter|(?<!dim_)multiplier"
    r"|^generation|_loss|^label|length_penalty|^num_beams"
)


def plain(value: Any) -> bool:
    """Whether a default is a number, a text, a flag, null, or a short list of those."""
    if isinstance(value, list | tuple):
        return len(value) < 100 and all(plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def described(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The defaults, other names and nested configurations of one class."""
    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    defaults = {}
    for field in dataclasses.fields(config_class):
        if field.name in inherited - {"tie_word_embeddings"} or IRRELEVANT.search(field.name):
            continue
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is not dataclasses.MISSING and plain(value) and value != float("inf"):
            defaults[field.name] = value
    nested = {
        key: getattr(sub_class, "model_type", "")
        for key, sub_class in config_class.sub_configs.items()
        if getattr(sub_class, "model_type", "")
    }
    entry: dict[str, Any] = {"defaults": defaults}
    if config_class.attribute_map:
        entry["aliases"] = {
            name: actual
            for name, actual in config_class.attribute_map.items()
            if not IRRELEVANT.search(name)
        }
    if nested:
        entry["nested"] = nested
    return entry


def main() -> None:
    """Print the file: one line a model type, so that a change is a readable difference."""
    entries: dict[str, Any] = {}
    classes: dict[str, type[PreTrainedConfig]] = {}
    for mapping in HEADS:
        for model_type in getattr(modeling_auto, mapping):
            classes[model_type] = CONFIG_MAPPING[model_type]
    waiting = list(classes.items())
    while waiting:
        model_type, config_class = waiting.pop()
        if model_type in entries:
            continue
        entries[model_type] = described(config_class)
        for sub_class in config_class.sub_configs.values():
            if getattr(sub_class, "model_type", "") and dataclasses.is_dataclass(sub_class):
                waiting.append((sub_class.model_type, sub_class))
    lines = [
        f"{json.dumps(model_type)}: {json.dumps(entry, separators=(',', ':'))}"
        for model_type, entry in sorted(entries.items())
    ]
    head = json.dumps(f"Configuration classes of transformers {transformers.__version__}")
    sys.stdout.write('{"source": ' + head + ',\n"model_types": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
