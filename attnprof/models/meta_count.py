"""Counts a model's parameters by the Transformers library on meta tensors, in another process.

The library and torch are imported there alone: nothing here is slowed down or made to need them.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT_S = 120

_PROGRAM = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch, transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
transformers.logging.set_verbosity_error()
values = json.load(sys.stdin)
config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
names = [name for name in values.get("architectures") or [] if hasattr(transformers, name)]
with torch.device("meta"):
    if names:
        model = getattr(transformers, names[0])(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
print(sum(parameter.numel() for parameter in model.parameters()))
"""


def is_available() -> bool:
    """Whether both Transformers and torch are installed."""
    return find_spec("transformers") is not None and find_spec("torch") is not None


def _knows(model_type: object) -> bool:
    """Whether the library names the model type, by its own list of them and without loading it."""
    found = find_spec("transformers")
    places = list(found.submodule_search_locations or []) if found is not None else []
    marked = f'"{model_type}"'
    return any(
        marked in path.read_text(encoding="utf-8", errors="replace")
        for place in places
        for path in Path(place, "models", "auto").glob("*.py")
    )


def count_params(values: dict[str, Any]) -> int | None:
    """Unique parameters of the library's own model of a configuration; None where it has none.

    No code that comes with weights is run: only classes of the library itself are built.
    """
    if not is_available() or not _knows(values.get("model_type")):
        return None
    trusted = {key: value for key, value in values.items() if key != "auto_map"}
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps(trusted),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    last = run.stdout.strip().splitlines()[-1:] or [""]
    return int(last[0]) if run.returncode == 0 and last[0].isdigit() else None
