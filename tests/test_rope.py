"""What RoPE is made with is read from configurations of every age, or refused by name."""

from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.rope import Rope, rope_of_parameters


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, Rope(rotated_dim=64), id="nothing said"),
        pytest.param(
            {"rope_type": "default", "rope_theta": 5e5}, Rope(rotated_dim=64, base=5e5), id="base"
        ),
        pytest.param(
            {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 99},
            Rope(rotated_dim=64, scaling="dynamic", factor=2.0, original_len=32_768),
            id="dynamic counts from the longest length",
        ),
        pytest.param(
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": None, "truncate": False},
            Rope(
                rotated_dim=64, scaling="yarn", factor=4.0, original_len=32_768, truncate=False
            ),
            id="None is not said, False is",
        ),
        pytest.param(
            {"rope_type": "yarn", "original_max_position_embeddings": 4096},
            Rope(rotated_dim=64, scaling="yarn", factor=8.0, original_len=4096),
            id="yarn without a factor has the ratio of its lengths",
        ),
        pytest.param(
            {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0,
             "original_max_position_embeddings": 8192, "beta_fast": 3.0},
            Rope(
                rotated_dim=64, scaling="llama3", factor=32.0, original_len=8192,
                low_freq_factor=2.0, high_freq_factor=3.0,
            ),
            id="llama3, which reads no beta",
        ),
    ],
)  # fmt: skip
def test_parameters_are_read(parameters: dict[str, Any], expected: Rope) -> None:
    assert rope_of_parameters(parameters, 64, max_len=32_768) == expected


@pytest.mark.parametrize(
    ("parameters", "width", "said"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, 64, "'longrope' is not served"),
        ({}, 7, "cannot halve 7"),
        ({}, 0, "cannot halve 0"),
        ({"rope_type": "dynamic", "factor": 2.0}, 2, "2 elements are but one"),
        ({"rope_type": "linear"}, 64, "'linear' without a factor"),
        ({"rope_type": "llama3", "factor": 8.0}, 64, "without original_max_position_embeddings"),
    ],
)
def test_parameters_that_make_no_rope_are_refused_by_name(
    parameters: dict[str, Any], width: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        rope_of_parameters(parameters, width)
