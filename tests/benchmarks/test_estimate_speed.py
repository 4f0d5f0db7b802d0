"""How light an estimate is, as ratios of CPU time within one run."""

import json
import os
import subprocess
import sys
import time

import pytest

from attnprof.estimate_grid import GridRequest, estimate_grid
from attnprof.gpus import all_gpus
from attnprof.serving_cases.model import model_of_case

LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
ESTIMATE = f"""
import json
from attnprof.capacity.request import EstimateRequest
from attnprof.estimate import estimate
from attnprof.serving_cases.model import model_of_case
model = model_of_case(json.loads({json.dumps(json.dumps(LLAMA_8B))}), "llama", {{}})
json.dumps(estimate(EstimateRequest(model, "h100", max_model_len=8192)).to_json())
"""


def _child_cpu_s(code: str) -> float:
    """CPU time of a fresh interpreter that runs ``code``: the least of five."""
    spent = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        spent.append(after.children_user + after.children_system
                     - before.children_user - before.children_system)  # fmt: skip
    return min(spent)


@pytest.mark.skipif(sys.platform == "win32", reason="no CPU time of children")
def test_an_estimate_takes_at_most_four_times_the_cpu_of_importing_typer() -> None:
    assert _child_cpu_s(ESTIMATE) <= 4 * _child_cpu_s("import typer")


@pytest.mark.skipif(sys.platform == "win32", reason="no CPU time of children")
def test_a_grid_of_100_000_takes_at_most_forty_times_the_cpu_of_importing_typer() -> None:
    request = GridRequest(
        models=(model_of_case(LLAMA_8B, "llama", {}),),
        gpus=tuple(gpu.name for gpu in all_gpus()),
        engines=("vllm", "vllm@0.11", "sglang"),
        max_model_lens=tuple(range(1024, 1024 + 63 * 1024, 1024)),
        tps=(1, 2, 4, 8),
        kv_dtypes=("auto", "fp8"),
    )
    estimate_grid(request)  # the first call imports numpy
    started = time.process_time()
    grid = estimate_grid(request)
    spent = time.process_time() - started
    assert len(grid) >= 100_000
    assert spent <= 40 * _child_cpu_s("import typer"), "two seconds where typer takes 0.05"
