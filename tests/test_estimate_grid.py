"""Grids: every cell is what the estimate alone says, and nonsense is skipped with its reason."""

from typing import Any

import pytest

from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.registry import PLANNERS, plan_memory
from attnprof.errors import UsageError
from attnprof.estimate_grid import GridRequest, estimate_grid
from attnprof.gpus import all_gpus
from attnprof.models import load_model
from attnprof.models.spec import ModelSpec
from attnprof.serving_cases.model import model_of_case

LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA_2_9B = {
    "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000,
    "tie_word_embeddings": True, "sliding_window": 4096, "layer_pattern": "1:1 (21/21)",
}  # fmt: skip


def _model(config: dict[str, Any], name: str) -> ModelSpec:
    return model_of_case(config, name, {})


MODELS = (_model(LLAMA_8B, "llama"), _model(GEMMA_2_9B, "gemma-2"))


KINDS = (
    "bert-base-uncased", "whisper-small", "deepseek-v2-lite", "granite-4.0-h-tiny", "mamba-2.8b",
    "phi-3-mini",
)  # fmt: skip


@pytest.mark.parametrize("engine", PLANNERS)
def test_cells_of_every_kind_of_model_are_what_the_estimate_alone_says(engine: str) -> None:
    models = {name: load_model(name) for name in KINDS}
    request = GridRequest(
        models=tuple(models.values()), gpus=("t4", "h100"), engines=(engine,),
        max_model_lens=(256, 16384), tps=(1, 4),
    )  # fmt: skip
    grid = estimate_grid(request)
    assert len(grid) == request.num_combinations
    for row in grid.rows():
        alone = plan_memory(
            deployment_of(
                EstimateRequest(
                    models[row["model"]], row["gpu"], engine=engine, tp=row["tp"],
                    max_model_len=row["max_model_len"],
                )
            )
        )  # fmt: skip
        assert row["fits"] is alone.fits, row
        assert row["kv_bytes"] == pytest.approx(alone.kv_bytes, abs=4), row
        assert row["max_concurrency"] == pytest.approx(alone.max_concurrency, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("engine", [*PLANNERS, "vllm@0.6.4", "vllm@0.29"])
def test_every_cell_is_what_the_estimate_alone_says(engine: str) -> None:
    request = GridRequest(
        models=MODELS,
        gpus=("h100", "l40s", "rtx-4090", "b200"),
        engines=(engine,),
        max_model_lens=(1024, 8192),
        tps=(1, 2),
        kv_dtypes=("auto", "q8_0"),
        utilizations=(None, 0.8),
    )
    grid = estimate_grid(request)
    models = {model.name: model for model in MODELS}
    assert len(grid) == request.num_combinations
    for row in grid.rows():
        alone = plan_memory(
            deployment_of(
                EstimateRequest(
                    models[row["model"]], row["gpu"], engine=engine, tp=row["tp"],
                    max_model_len=row["max_model_len"], kv_dtype=row["kv_dtype"],
                    gpu_memory_utilization=row["gpu_memory_utilization"],
                )
            )
        )  # fmt: skip
        assert row["weight_bytes"] == alone.weight_bytes
        assert row["kv_bytes"] == pytest.approx(alone.kv_bytes, abs=4)
        assert row["max_concurrency"] == pytest.approx(alone.max_concurrency, rel=1e-3, abs=1e-3)
        assert row["kv_tokens"] == pytest.approx(alone.kv_tokens, rel=1e-3, abs=64)
        assert row["fits"] is alone.fits


def test_ranks_that_do_not_divide_the_heads_are_skipped_with_the_reason() -> None:
    grid = estimate_grid(GridRequest(MODELS[:1], ("h100",), tps=(1, 3)))
    assert len(grid) == 1
    ((combination, reason),) = grid.skipped
    assert combination["tp"] == 3
    assert "does not divide" in reason


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (GridRequest(MODELS, ()), "an axis of the grid is empty"),
        (GridRequest(MODELS, ("h100",), max_model_lens=(0,)), "max_model_len is 0"),
        (GridRequest(MODELS, ("h10",)), "unknown GPU"),
        (GridRequest(MODELS, ("h100",), tps=(3,)), "no combination of the grid makes sense"),
        (GridRequest(MODELS, ("h100",), max_model_lens=(1,) * 10**7), "combinations"),
    ],
)
def test_a_grid_that_makes_no_sense_is_one_error(request_: GridRequest, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        estimate_grid(request_)
    assert named in caught.value.problem


def test_a_hundred_thousand_combinations_are_one_table() -> None:
    gpus = tuple(gpu.name for gpu in all_gpus())
    request = GridRequest(
        MODELS,
        gpus,
        engines=("vllm", "vllm@0.11"),
        max_model_lens=tuple(range(1024, 1024 + 25 * 1024, 1024)),
        tps=(1, 2, 4, 8),
        kv_dtypes=("auto", "fp8"),
        quantizations=(None, "fp8"),
    )
    grid = estimate_grid(request)
    assert len(grid) == request.num_combinations > 100_000
    assert {len(column) for column in grid.axes.values()} == {len(grid)}
