"""FLOP, bytes and weights of layers, blocks and models, by torch's counter and by their modules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnprof.forecast import forecast
from attnprof.grid import sizes_of_model
from attnprof.models import load_model
from attnprof.theory.model_cache import kv_bytes_per_sequence
from attnprof.theory.scopes import (
    scope_bytes,
    scope_flops,
    scope_kv_bytes,
    scope_weight_bytes,
    weight_params,
)
from attnprof.theory.summary import step_of_growth, theory_of, timed_step
from attnprof.workload import Workload, checked

MODELS = Path(__file__).parents[1] / "data" / "models"
DECODERS = ("tiny-llama", "tiny-gemma2", "tiny-gpt2", "tiny-moe", "tiny-gpt-oss", "tiny-deepseek")
SEQ2SEQ = ("tiny-bart", "tiny-t5")


def layer(**axes: Any) -> Workload:
    sizes: dict[str, Any] = {
        "backend": "eager", "scope": "layer", "q_len": 12, "kv_len": 12, "num_q_heads": 4,
        "num_kv_heads": 2, "head_dim": 8, "num_layers": 2, "variant": "full",
    }  # fmt: skip
    return checked(Workload(**{**sizes, **axes}))


def of_model(name: str, **axes: Any) -> Workload:
    path = str(MODELS / f"{name}.json")
    usual: dict[str, Any] = {"backend": "eager", "scope": "model", "model": path}
    return checked(Workload(**{**usual, **sizes_of_model(path), **axes}))


def test_a_layer_of_one_number_is_counted_by_hand() -> None:
    one = layer(q_len=1, kv_len=1, num_q_heads=1, num_kv_heads=1, head_dim=1, num_layers=1)
    assert scope_flops(one) == 4 * 2 + 4  # four products of a weight, and attention's two
    assert scope_weight_bytes(one) == 4 * 4
    assert scope_bytes(one) == 4 * 4 + 4 * 4  # weights; q, k, v and the output


def test_a_training_step_is_three_forward_passes_and_four_with_checkpoints() -> None:
    forward = layer(scope="block", ffn="gated", ffn_dim=16)
    trained = replace(forward, phase="train")
    assert scope_flops(trained) == 3 * scope_flops(forward)
    assert scope_flops(replace(trained, checkpointing=True)) == 4 * scope_flops(forward)


def test_the_head_is_not_made_again_by_checkpoints() -> None:
    trained = of_model("tiny-llama", phase="train", q_len=8, kv_len=8)
    again = replace(trained, checkpointing=True)
    verified = replace(trained, phase="verify", kv_cache="static")  # the same logits, forward
    head = 2 * 64 * 32 * 8
    assert scope_flops(again) - scope_flops(trained) == scope_flops(verified) - head


def test_a_mixed_step_is_a_decode_and_a_prefill() -> None:
    mixed = layer(phase="mixed", q_len=1, kv_len=9, batch_size=3, prefill_len=5, kv_cache="static")
    decode = replace(mixed, phase="decode", prefill_len=None)
    prompt = replace(decode, phase="prefill", q_len=5, kv_len=5, batch_size=1, kv_cache="none")
    assert scope_flops(mixed) == scope_flops(decode) + scope_flops(prompt)
    # but weights are read once
    weights = scope_weight_bytes(mixed)
    assert scope_bytes(mixed) == scope_bytes(decode) + scope_bytes(prompt) - weights


def test_a_cross_attention_makes_its_keys_in_training_alone() -> None:
    cross = layer(attention="cross", kv_cache="cross", q_len=3, kv_len=7, num_layers=1)
    trained = replace(cross, phase="train")
    keys = 2 * 7 * 32 * (2 * 2 * 8)
    assert scope_flops(trained) == 3 * (scope_flops(cross) + keys)


def test_few_tokens_read_few_experts() -> None:
    block = layer(
        scope="block", ffn="moe", ffn_dim=16, num_experts=64, num_active_experts=2, q_len=1,
        kv_len=1, num_layers=1,
    )  # fmt: skip
    expert = 3 * 16 * 32 * 4
    many = replace(block, batch_size=10_000)
    assert scope_weight_bytes(block) - scope_bytes(block) == pytest.approx(62 * expert, rel=0.01)
    assert scope_bytes(many) > scope_weight_bytes(many)


@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ, "tiny-bert"])
def test_parameters_are_those_of_the_model(name: str) -> None:
    workload = of_model(name, q_len=4, kv_len=4)
    assert weight_params(workload) == load_model(str(MODELS / f"{name}.json")).num_params


def test_a_shipped_profile_weighs_what_it_says() -> None:
    workload = Workload(
        backend="eager", scope="model", model="llama-3.1-8b", dtype="bfloat16", q_len=1, kv_len=64,
        phase="decode", kv_cache="static", num_layers=32, num_q_heads=32, num_kv_heads=8,
        head_dim=128,
    )  # fmt: skip
    assert weight_params(workload) == 8_030_261_248
    assert scope_flops(workload) == 15_009_841_152 + 32 * 4 * 32 * 128 * 63
    assert scope_kv_bytes(workload) == 64 * 131_072


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2", "tiny-gpt2"])
@pytest.mark.parametrize("kv_cache", ["static", "rolling"])
def test_kv_bytes_are_those_of_every_layers_kind(name: str, kv_cache: str) -> None:
    workload = of_model(name, phase="decode", q_len=1, kv_len=40, batch_size=3, kv_cache=kv_cache)
    spec = load_model(str(MODELS / f"{name}.json"))
    one = kv_bytes_per_sequence(spec, 40, 4.0, windows=kv_cache == "rolling")
    assert scope_kv_bytes(workload) == 3 * one


def test_of_whisper_the_decoder_alone_is_counted() -> None:
    workload = of_model("tiny-whisper", q_len=4, kv_len=4, source_len=9)
    spec = load_model(str(MODELS / "tiny-whisper.json"))
    embeddings, final_norm = (64 + 64) * 32, 2 * 32
    assert weight_params(workload) == 2 * spec.layers[0].num_params + embeddings + final_norm
    decode = replace(workload, phase="decode", q_len=1, kv_cache="static")
    assert scope_kv_bytes(decode) == 2 * 2 * 32 * 4 * (4 + 9)


def test_a_latent_cache_holds_latents_and_others_keys_and_values() -> None:
    workload = of_model("tiny-deepseek", phase="decode", q_len=1, kv_len=10, kv_cache="latent")
    assert scope_kv_bytes(workload) == 2 * 10 * (24 + 8) * 4
    assert scope_kv_bytes(replace(workload, kv_cache="static")) == 2 * 10 * 4 * (20 + 10) * 4


def test_a_layer_that_reads_a_source_caches_it_but_in_training() -> None:
    reads = layer(attention="cross", kv_cache="cross", q_len=3)
    assert scope_kv_bytes(reads) == 2 * 12 * 2 * 2 * 8 * 4
    assert scope_kv_bytes(replace(reads, phase="train")) == 0


def test_what_has_no_cache_holds_no_keys() -> None:
    assert scope_kv_bytes(of_model("tiny-llama", q_len=8, kv_len=8)) == 0
    assert scope_kv_bytes(of_model("tiny-t5", q_len=8, kv_len=8, source_len=5)) == 0


def test_a_model_that_does_not_fit_is_known_before_it_is_built() -> None:
    workload = Workload(
        backend="eager", scope="model", model="llama-3.1-8b", dtype="bfloat16", q_len=1, kv_len=64,
        phase="decode", kv_cache="static", num_layers=32, num_q_heads=32, num_kv_heads=8,
        head_dim=128,
    )  # fmt: skip
    [found] = forecast([workload], "synthetic", 1, {}, 8 * 2**30)
    assert found.problem is not None and "needs 15 GiB" in found.problem
    [small] = forecast([replace(workload, num_layers=1)], "synthetic", 1, {}, 8 * 2**30)
    assert small.problem is None


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_the_source_of_a_growing_model_does_not_grow(name: str) -> None:
    growing = of_model(name, phase="generate", kv_cache="static", q_len=1, kv_len=20, start_len=4)
    steps = [step_of_growth(growing, length) for length in (5, 6, 20)]
    held = [scope_kv_bytes(step) for step in steps]
    assert held[1] - held[0] == (held[2] - held[0]) / 15
    assert held[2] == scope_kv_bytes(growing)
    assert timed_step(growing) == step_of_growth(growing, 12)


def test_a_growing_model_is_told_by_its_middle_step() -> None:
    grown = of_model("tiny-llama", phase="generate", q_len=1, kv_len=21, start_len=10,
        kv_cache="static")  # fmt: skip
    middle = replace(grown, phase="decode", kv_len=16, start_len=None)
    assert theory_of(grown, "cpu")["flops"] == scope_flops(middle)
    without = replace(grown, kv_cache="none")
    whole = replace(middle, phase="prefill", q_len=16, kv_cache="none")
    assert theory_of(without, "cpu")["flops"] == scope_flops(whole)


BUILT = [
    pytest.param(layer(), id="layer"),
    pytest.param(layer(num_kv_heads=4, mla="expanded", kv_lora_rank=6, rope_head_dim=4), id="mla"),
    pytest.param(
        layer(num_kv_heads=4, mla="absorbed", kv_lora_rank=6, rope_head_dim=4, phase="verify",
            kv_cache="latent", q_len=3, variant="causal"), id="absorbed mla",
    ),
    pytest.param(layer(attention="cross", kv_cache="cross", q_len=5), id="cross"),
    pytest.param(layer(attention="cross", kv_cache="cross", q_len=5, phase="train"),
        id="cross, trained"),
    pytest.param(layer(scope="block", ffn="plain", ffn_dim=20), id="plain block"),
    pytest.param(layer(scope="block", ffn="gated", ffn_dim=20), id="gated block"),
    pytest.param(
        layer(scope="block", ffn="moe", ffn_dim=20, num_experts=4, num_active_experts=2),
        id="block of experts",
    ),
    pytest.param(layer(scope="block", ffn="gated", ffn_dim=20, phase="train"), id="trained"),
    pytest.param(layer(scope="block", ffn="gated", ffn_dim=20, phase="train", checkpointing=True),
        id="trained with checkpoints"),
    pytest.param(layer(phase="decode", q_len=1, kv_cache="paged"), id="decode"),
    pytest.param(layer(phase="mixed", q_len=1, kv_cache="static", prefill_len=6), id="mixed"),
    *(
        pytest.param(of_model(name, phase="decode", q_len=1, kv_len=12, kv_cache="static"), id=name)
        for name in (*DECODERS, *SEQ2SEQ)
    ),
    *(
        pytest.param(of_model(name, q_len=12, kv_len=12), id=f"{name}, prefill")
        for name in (*DECODERS, *SEQ2SEQ, "tiny-bert")
    ),
    pytest.param(of_model("tiny-deepseek", phase="decode", q_len=1, kv_len=12, kv_cache="latent"),
        id="tiny-deepseek, latent"),
    pytest.param(of_model("tiny-llama", q_len=12, kv_len=12, phase="train"), id="llama, train"),
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("workload", BUILT)
def test_flops_are_those_of_torchs_counter(workload: Workload) -> None:
    """Torch counts masked pairs too, so what is masked is counted as if it were not."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.workloads import build_operation

    op = build_operation(workload, torch.device("cpu"), 1)
    with op.active():
        op()
        with FlopCounterMode(display=False) as counter:
            op()
    counted = counter.get_total_flops() + not_made_again(workload)
    assert counted == scope_flops(workload) + masked_flops(workload)
    assert op.weight_bytes == scope_weight_bytes(workload) + buffer_bytes(workload)


def masked_flops(workload: Workload) -> int:
    """Of the pairs that a mask hides, which the plain kernel computes like any other."""
    from attnprof.theory.scopes import stacks_of

    hidden = 0
    stacks = stacks_of(workload)
    for stack in stacks.all:
        for call in stack.attentions:
            first = call.mask.first_visible(call.q_len, call.kv_len)
            given = call.q_len * (call.kv_len - first)
            seen = call.mask.attended_pairs(call.q_len, call.kv_len)
            width = call.head_dim + call.value_dim
            if call.mla == "absorbed":
                width = 2 * (call.kv_lora_rank or 0) + (call.rope_head_dim or 0)
            pairs = call.num_layers * call.batch_size * call.num_q_heads * (given - seen)
            hidden += 2 * pairs * width
    return hidden * (3 if workload.phase == "train" else 1)


def not_made_again(workload: Workload) -> int:
    """Of the last product of a layer, at which torch's checkpoint stops to make things again."""
    last = workload.ffn_dim if workload.scope == "block" else workload.hidden_size
    return workload.checkpointing * workload.num_layers * 24 * workload.hidden_size * (last or 0)


def buffer_bytes(workload: Workload) -> int:
    """Of what is a parameter here and a buffer, so not counted, in the library: the bias of BART's
    logits, and that by which DeepSeek chooses experts."""
    name = Path(workload.model).stem if workload.model else ""
    return {"tiny-bart": 64 * 4, "tiny-deepseek": 8 * 4}.get(name, 0)
