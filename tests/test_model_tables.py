"""Lists of models: what a token and a sequence keep is what an estimate says."""

import pytest

from attnprof.capacity.request import EstimateRequest
from attnprof.estimate import estimate
from attnprof.model_tables import CACHE_LEN, model_table, models_table
from attnprof.models import load_model
from attnprof.profiles import list_profiles

NAMES = sorted(list_profiles("models"))
ROWS = {row["name"]: row for row in models_table([load_model(name) for name in NAMES]).rows}


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_of_a_model_is_that_of_its_estimate(name: str) -> None:
    model, row = load_model(name), ROWS[name]
    request = EstimateRequest(model, "h200-sxm", max_model_len=CACHE_LEN, dtype="bfloat16")
    kv = estimate(request).kv
    if row["kv_bytes_per_token"] is None:
        assert model.kind == "encoder"
        assert kv.bytes_per_token == kv.ideal_bytes == 0
        return
    assert row["kv_bytes_per_token"] == kv.bytes_per_token
    if row["cache_bytes"] is None:
        assert (model.max_position_embeddings or 0) < CACHE_LEN
    else:
        assert round(row["cache_bytes"]) == kv.ideal_bytes
    held = row["windowless_bytes_per_token"] * CACHE_LEN + kv.state_bytes
    if not any(layer.cross or (layer.attention and layer.attention.tokens_per_entry > 1)
               for layer in model.layers):  # fmt: skip
        assert held == kv.windowless_bytes


def test_a_window_counts_no_more_than_it_holds() -> None:
    gemma = ROWS["gemma-3-27b"]
    assert gemma["kv_bytes_per_token"] == 80 * 1024
    assert gemma["windowless_bytes_per_token"] == 496 * 1024
    explained = {row["key"]: row["value"] for row in model_table(load_model("gemma-3-27b")).rows}
    assert explained["KV a token, 16-bit"] == "80 KiB"
    assert explained["  ignoring windows"] == "496 KiB"
    assert explained["KV of 32k, 16-bit"] == "2.91 GiB"


def test_a_latent_counts_with_the_keys_of_its_indexer() -> None:
    assert ROWS["deepseek-v3"]["kv_bytes_per_token"] == 61 * 576 * 2
    assert ROWS["deepseek-v3.2"]["kv_bytes_per_token"] > 61 * 576 * 2
