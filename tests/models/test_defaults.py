"""The shipped defaults are those of the library's own configuration classes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof.models.config import Config, library_defaults
from attnprof.profiles import profile_dir

TOOL = Path(__file__).parents[2] / "tools" / "architecture_defaults.py"


@pytest.mark.torch
@pytest.mark.slow
def test_the_tool_makes_the_shipped_file_again() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shipped = (profile_dir("architectures") / "transformers.json").read_text(encoding="utf-8")
    if transformers.__version__ not in json.loads(shipped)["source"]:
        pytest.skip("made from another version of the library")
    made = subprocess.run(
        [sys.executable, str(TOOL)], capture_output=True, text=True, check=True
    ).stdout
    assert made == shipped


def test_an_alias_of_a_class_and_its_own_name_mean_the_same() -> None:
    for key in ("n_embd", "hidden_size"):
        config = Config({key: 64}, "config.json", "gpt2")
        assert config.count("hidden_size") == 64


def test_defaults_state_sizes_and_flags_and_no_training_setting() -> None:
    llama = library_defaults()["llama"]["defaults"]
    assert llama["num_hidden_layers"] == 32
    assert not {"initializer_range", "attention_dropout", "use_cache"} & set(llama)
