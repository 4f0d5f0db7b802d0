"""Positions that make no sense are refused by name, before anything is allocated."""

from typing import Any

import pytest

from attnprof.combinations import problem
from attnprof.positions import POSITIONS
from attnprof.workload import Workload


def workload_of(position: str, **given: Any) -> Workload:
    scope = "layer" if POSITIONS[position].acts == "embeddings" else "op"
    sizes: dict[str, Any] = {"q_len": 64, "kv_len": 64, "head_dim": 64, "scope": scope}
    return Workload(backend="eager", position=position, **(sizes | given))


MLA = {"mla": "expanded", "kv_lora_rank": 64, "rope_head_dim": 16}
CROSS = {"attention": "cross", "variant": "full", "kv_cache": "cross"}
ODD = {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 7}
BLOCK = {"scope": "block", "model": "llama-3.1-8b"}


@pytest.mark.parametrize("name", POSITIONS)
def test_every_scheme_has_a_place_where_it_makes_sense(name: str) -> None:
    assert problem(workload_of(name)) is None


@pytest.mark.parametrize(
    ("position", "given", "said"),
    [
        ("rope", {"head_dim": 63}, "rope turns pairs, and cannot halve 63 of head_dim 63"),
        ("rope-partial", {"head_dim": 36}, "cannot halve 9 of head_dim 36"),
        ("rope-partial", {"head_dim": 4}, "cannot halve 1 of head_dim 4"),
        ("rope", {**MLA, "rope_head_dim": 15}, "cannot halve 15"),
        ("rope-dynamic", {"head_dim": 2}, "2 elements are but one"),
        ("sinusoidal", ODD, "hidden_size 7 is odd"),
        ("sinusoidal", {"scope": "op"}, "scope layer, not op"),
        ("learned", {"scope": "op"}, "scope layer, not op"),
        ("alibi", MLA, "position 'alibi' is not for it"),
        ("t5", MLA, "position 't5' is not for it"),
        ("rope-llama3", MLA, "position 'rope-llama3' is not for it"),
        ("alibi", CROSS, "position none, not alibi"),
        ("rope", CROSS, "position none, not rope"),
        ("learned", CROSS, "position none, not learned"),
        ("alibi", BLOCK, "a model has positions of its own: position none, not alibi"),
        ("rope", {"mixer": "lstm", "scope": "layer"}, "position none, not rope"),
    ],
)  # fmt: skip
def test_a_position_without_sense_says_why(position: str, given: dict[str, Any], said: str) -> None:
    assert said in (problem(workload_of(position, **given)) or "")
