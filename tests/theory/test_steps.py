"""The kernels of a step: what they compute and read is what the formulas of a scope say."""

from dataclasses import replace

import pytest

from attnprof.theory.flops import products_flops
from attnprof.theory.scopes import scope_flops
from attnprof.theory.steps import work_of_step
from attnprof.workload import Workload

LAYER = Workload(backend="flash", scope="layer", q_len=64, kv_len=64, num_q_heads=8,
                 num_kv_heads=2, head_dim=64, num_layers=3)  # fmt: skip
BLOCK = replace(LAYER, scope="block", ffn="gated", ffn_dim=256)
MOE = replace(BLOCK, ffn="moe", num_experts=8, num_active_experts=2)


def of_model(name: str, num_layers: int, **more: object) -> Workload:
    model = Workload(backend="flash", scope="model", model=name, q_len=32, kv_len=32,
                     num_layers=num_layers)  # fmt: skip
    return replace(model, **more)  # type: ignore[arg-type]


WORKLOADS = [
    LAYER, BLOCK, MOE,
    replace(LAYER, phase="decode", q_len=1, kv_cache="static", batch_size=5),
    of_model("gpt2", 2),
    of_model("smollm2-135m", 4),
    of_model("qwen3-30b-a3b", 2),
    of_model("gemma-3-270m", 6),
    of_model("bert-base-uncased", 2, variant="full"),
    of_model("t5-small", 2, source_len=48),
    of_model("t5-small", 2, source_len=48, phase="decode", q_len=1, kv_cache="static"),
    of_model("gpt2", 2, phase="decode", q_len=1, kv_cache="static", batch_size=3),
]  # fmt: skip


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.workload_id)
def test_products_and_attentions_compute_all_of_a_step(workload: Workload) -> None:
    work = work_of_step(workload)
    attention = sum(products_flops(one) for one in work.attentions)
    assert work.flops + attention == scope_flops(workload)


def test_a_layer_reads_the_weights_of_its_four_products_once() -> None:
    work = work_of_step(LAYER)
    hidden, kv_width = 512, 128
    assert work.num_products == 4 * LAYER.num_layers
    assert work.weight_bytes == 3 * 4 * (2 * hidden * hidden + 2 * hidden * kv_width)
    assert work.num_tokens == 64
    assert {one.rows for one in work.products} == {64}


def test_the_head_of_a_model_sees_the_rows_whose_logits_are_made() -> None:
    prompt = work_of_step(of_model("gpt2", 2, batch_size=3))
    head = max(prompt.products, key=lambda one: one.weight_bytes)
    assert head.rows == 3
    assert head.weight_bytes == 50257 * 768 * 4


def test_the_library_multiplies_the_last_row_of_each_prompt_by_itself() -> None:
    """It takes them as a view of all rows, which torch does not fold into one product."""
    prompt = of_model("gpt2", 2, batch_size=3, implementation="transformers")
    token = replace(prompt, phase="decode", q_len=1, kv_cache="contiguous")
    for workload, by_row in ((prompt, 1), (token, 0)):
        products = [one for one in work_of_step(workload).products if one.is_by_row]
        assert len(products) == by_row
        assert all(one.rows == 3 for one in products)


def test_of_experts_those_are_read_that_tokens_choose() -> None:
    one_token = replace(MOE, phase="decode", q_len=1, kv_cache="static")
    many = replace(one_token, batch_size=64)
    dense = replace(one_token, ffn="gated", num_experts=None, num_active_experts=None)
    expert = work_of_step(dense).weight_bytes - work_of_step(LAYER).weight_bytes
    attention_and_router = work_of_step(LAYER).weight_bytes + 3 * 4 * 8 * 512
    chosen = work_of_step(one_token).weight_bytes - attention_and_router
    assert chosen == pytest.approx(2 * expert)
    assert work_of_step(many).weight_bytes == pytest.approx(attention_and_router + 8 * expert,
                                                            rel=1e-3)  # fmt: skip
