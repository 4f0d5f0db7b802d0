"""Work of whole models: against torch's own counter on meta tensors, and by hand."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.models.build import build_model
from attnprof.models.spec import Attention, Mixer
from attnprof.theory.model_flops import (
    STATE_FLOPS,
    attention_core_flops,
    attention_pairs,
    mixer_flops,
    model_flops,
)

SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4,
}  # fmt: skip
BART_SIDES = {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
}
DECODERS = {
    "mha": {"model_type": "llama", **SMALL, "num_key_value_heads": 4},
    "gqa": {"model_type": "llama", **SMALL, "num_key_value_heads": 2},
    "mqa": {"model_type": "llama", **SMALL, "num_key_value_heads": 1},
    "sliding": {"model_type": "gemma3_text", **SMALL, "num_key_value_heads": 2, "head_dim": 32,
                "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "chunked": {"model_type": "llama4_text", **SMALL, "num_key_value_heads": 2, "head_dim": 16,
                "intermediate_size_mlp": 96, "moe_layers": [], "attention_chunk_size": 8},
    "mla": {"model_type": "deepseek_v3", **SMALL, "num_key_value_heads": 4, "q_lora_rank": 24,
            "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
            "first_k_dense_replace": 4},
    "biased gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
                    "vocab_size": 512, "n_positions": 64},
}  # fmt: skip


def torch_count(values: dict[str, Any], q_len: int, source_len: int = 0, auto: str = "") -> int:
    """FLOP that torch counts in the library's own model of ``values``, on meta tensors."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import transformers
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[values["model_type"]](**values)
    config._attn_implementation = "eager"
    builder = getattr(transformers, auto or "AutoModelForCausalLM")
    with torch.device("meta"):
        model = builder.from_config(config).eval()
        inputs: dict[str, Any] = {"input_ids": torch.zeros((1, q_len), dtype=torch.long)}
        if source_len:
            inputs = {
                "input_ids": torch.zeros((1, source_len), dtype=torch.long),
                "decoder_input_ids": torch.zeros((1, q_len), dtype=torch.long),
            }
        elif values["model_type"] != "bert":
            # A mask given whole, because building one asks for values that meta tensors lack.
            mask = torch.zeros((1, 1, q_len, q_len))
            kinds = ("full_attention", "sliding_attention", "chunked_attention")
            mixed = values["model_type"] in ("gemma3_text", "llama4_text")
            inputs["attention_mask"] = dict.fromkeys(kinds, mask) if mixed else mask
            inputs["use_cache"] = False
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(**inputs)
    return int(counter.get_total_flops())


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoders_flops_are_those_torch_counts(kind: str) -> None:
    values = DECODERS[kind]
    counted = torch_count(values, q_len=16)
    spec = build_model(values, kind)
    rotary = counted - model_flops(spec, 16, 16, skips_masked=False)
    # The library makes its rotary angles by a product of positions and frequencies: 2 · d/2 · q.
    per_table = 2 * (spec.rotary_dim // 2) * 16
    assert rotary in {0, per_table, 2 * per_table}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize(
    ("values", "auto"),
    [
        ({"model_type": "bart", "d_model": 64, **BART_SIDES, "vocab_size": 512,
          "max_position_embeddings": 64}, "AutoModelForSeq2SeqLM"),
        ({"model_type": "t5", "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 2,
          "num_heads": 4, "vocab_size": 512}, "AutoModelForSeq2SeqLM"),
    ],
    ids=["bart", "t5"],
)  # fmt: skip
def test_an_encoder_decoders_flops_are_those_torch_counts(
    values: dict[str, Any], auto: str
) -> None:
    counted = torch_count(values, q_len=6, source_len=10, auto=auto)
    spec = build_model(values, "x")
    assert model_flops(spec, 6, 6, source_len=10, skips_masked=False) == counted


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::Warning")
def test_an_encoders_flops_are_those_torch_counts() -> None:
    values = {"model_type": "bert", **SMALL, "max_position_embeddings": 64}
    counted = torch_count(values, q_len=16, auto="AutoModelForMaskedLM")
    assert model_flops(build_model(values, "bert"), 16, 16, skips_masked=False) == counted


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["mamba2", "gated_delta_net"])
def test_a_recurrences_flops_are_those_torch_counts(kind: Any) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    heads, d_v, d_k, channels, kernel, tokens = 3, 8, 16, 20, 4, 5
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        state = torch.zeros(heads, d_k, d_v)
        torch.conv1d(
            torch.zeros(1, channels, tokens + kernel - 1),
            torch.zeros(channels, 1, kernel),
            groups=channels,
        )
        for _ in range(tokens):
            q, k, v = (
                torch.zeros(heads, 1, d_k),
                torch.zeros(heads, 1, d_k),
                torch.zeros(heads, 1, d_v),
            )
            if kind == "gated_delta_net":
                v = v - torch.bmm(k, state)
            state = state + torch.bmm(k.transpose(1, 2), v)
            torch.bmm(q, state)
    mixer = Mixer(kind, heads, d_v, d_k, conv_channels=channels, conv_len=kernel - 1)
    assert mixer_flops(mixer, tokens) == counter.get_total_flops()


@pytest.mark.torch
def test_attending_to_the_latent_costs_what_torch_counts() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    heads, rank, rope, kv_len = 4, 16, 8, 10
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        latent = torch.zeros(heads, kv_len, rank + rope)
        scores = torch.bmm(torch.zeros(heads, 1, rank + rope), latent.transpose(1, 2))
        torch.bmm(scores, latent[:, :, :rank])
    attention = Attention("mla", heads, heads, 24, 12, kv_lora_rank=rank, rope_head_dim=rope)
    flops = attention_core_flops(attention, 1, kv_len, mla="latent")
    assert flops == counter.get_total_flops()


@given(
    kind=st.sampled_from(["full", "sliding", "chunked"]),
    window_len=st.integers(1, 9),
    kv_len=st.integers(1, 40),
    data=st.data(),
)
def test_pairs_are_those_a_mask_written_out_lets_through(
    kind: Any, window_len: int, kv_len: int, data: st.DataObject
) -> None:
    q_len = data.draw(st.integers(1, kv_len))
    attention = Attention(kind, 1, 1, 8, 8, window_len=None if kind == "full" else window_len)

    def sees(q: int, k: int) -> bool:
        if kind == "chunked":
            return k <= q and k // window_len == q // window_len
        return k <= q and (kind == "full" or q - k < window_len)

    queries = range(kv_len - q_len, kv_len)
    expected = sum(sees(q, k) for q in queries for k in range(kv_len))
    assert attention_pairs(attention, q_len, kv_len, skips_masked=True) == expected


def test_every_mixer_has_a_cost() -> None:
    from typing import get_args

    from attnprof.models.spec import MixerKind

    assert set(STATE_FLOPS) == set(get_args(MixerKind))


def test_a_decode_makes_no_keys_of_the_source_again() -> None:
    values = {"model_type": "bart", "d_model": 64, **BART_SIDES, "vocab_size": 512}
    spec = build_model(values, "bart")
    prefill_and_decode = [
        model_flops(spec, q_len, 4, source_len=100, num_logits=1) for q_len in (4, 1)
    ]
    assert prefill_and_decode[1] < prefill_and_decode[0] / 20


def test_idle_experts_cost_nothing() -> None:
    values = {"model_type": "mixtral", **SMALL, "num_key_value_heads": 2, "num_local_experts": 8}
    costs = [
        model_flops(build_model({**values, "num_experts_per_tok": k}, "x"), 1, 1) for k in (1, 2, 3)
    ]
    assert costs[2] - costs[1] == costs[1] - costs[0] == 4 * 2 * 3 * 64 * 128


def test_flops_grow_with_the_batch_alone() -> None:
    spec = build_model(DECODERS["gqa"], "x")
    one = model_flops(spec, 8, 8)
    assert model_flops(spec, 8, 8, batch_size=5) == 5 * one
    assert model_flops(replace(spec, layers=spec.layers[:2]), 8, 8) < one
