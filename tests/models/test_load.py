"""What a user may call a model: a profile, a path, a hub id, and what is not found."""

import socket
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.models import load_model
from attnprof.profiles import check_keys, find_profile, list_profiles, load_profile, read_yaml

PROFILE = """
name: mine
source: my own
config:
  model_type: llama
  hidden_size: 64
  intermediate_size: 128
  num_hidden_layers: 2
  num_attention_heads: 4
  vocab_size: 100
"""


@pytest.fixture
def own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("LLAMA-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("gpt2", "gpt2"),
    ],
)
def test_a_profile_is_found_by_name_and_by_hub_id(name: str, expected: str) -> None:
    assert load_model(name).name == expected


def test_a_typo_is_told_what_was_meant() -> None:
    with pytest.raises(UsageError) as caught:
        load_model("lama-3.1-8b")
    assert caught.value.fix == "did you mean 'llama-3.1-8b'?"


def test_the_users_own_profile_goes_before_the_shipped_one(own_profiles: Path) -> None:
    (own_profiles / "gpt2.yaml").write_text(PROFILE)
    assert load_model("gpt2").name == "mine"
    assert "gpt2" in list_profiles("models")


def test_a_profile_whose_count_is_wrong_is_refused(own_profiles: Path) -> None:
    (own_profiles / "mine.yaml").write_text(PROFILE + "num_params: 5\n")
    with pytest.raises(UsageError, match="num_params is 5, its config makes"):
        load_model("mine")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: mine\nsource: s\n", "lacks the key 'config'"),
        (PROFILE + "colour: red\n", "unknown key 'colour'"),
        ("name: [unclosed", "is not YAML"),
        ("- a\n- b\n", "holds no mapping"),
        ("name: !!python/object/apply:os.system ['true']\n", "is not YAML"),
        ("1: 2\n", "holds no mapping of names"),
    ],
)
def test_a_profile_that_makes_no_sense_is_one_error(
    own_profiles: Path, content: str, said: str
) -> None:
    (own_profiles / "mine.yaml").write_text(content)
    with pytest.raises(UsageError) as caught:
        load_model("mine")
    assert said in caught.value.problem
    assert "mine.yaml" in caught.value.problem


@pytest.mark.parametrize("name", ["../gpus/h100-sxm", "a/../../b", "..", ".hidden", "a\\b", ""])
def test_a_name_never_leads_out_of_the_folder(name: str) -> None:
    assert find_profile("models", name) is None


def test_an_unknown_hub_id_without_a_network_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")

    def refuse(*_: Any, **__: Any) -> socket.socket:
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(UsageError, match="the hub cannot be reached"):
        load_model("nobody/no-such-model-here")


def test_a_missing_file_and_an_empty_name_are_errors(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none.gguf"), str(tmp_path / "none.json"), str(tmp_path), " "):
        with pytest.raises(UsageError):
            load_model(name)


def test_no_profile_is_found_under_an_unknown_name() -> None:
    with pytest.raises(UsageError, match="unknown model 'nope'"):
        load_profile("models", "nope")


def test_a_profile_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("a: " + "x" * 5_000_000)
    with pytest.raises(UsageError, match="larger than a profile"):
        read_yaml(path)


def test_keys_are_checked_both_ways() -> None:
    with pytest.raises(UsageError, match="unknown key 'sourc'") as caught:
        check_keys({"sourc": 1}, "p.yaml", {"source"}, set())
    assert caught.value.fix == "did you mean 'source'?"
