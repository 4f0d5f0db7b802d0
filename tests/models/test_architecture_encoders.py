"""Encoders and encoder–decoders: what is read from their configurations, and what is refused."""

from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.models.architecture import RelativeBias
from attnprof.models.build_architecture import architecture_of, build_architecture

BERT: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "vocab_size": 99, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 3,
    "num_decoder_layers": 2, "num_heads": 4,
}  # fmt: skip
BART: dict[str, Any] = {
    "model_type": "bart", "vocab_size": 99, "d_model": 32, "encoder_layers": 3,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "max_position_embeddings": 40,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "model_type": "whisper", "vocab_size": 99, "d_model": 32, "encoder_layers": 3,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_target_positions": 40,
}  # fmt: skip


def test_an_encoder_sees_every_token_and_has_a_head_over_a_transform() -> None:
    bert = build_architecture(BERT, "config.json")
    assert {block.attention.variant for block in bert.blocks} == {"full"}
    assert all(block.placement == "post" and block.cross is None for block in bert.blocks)
    assert bert.head_transform is not None and bert.head_bias and bert.tied_head
    assert bert.num_token_types == 2
    assert bert.embedding_norm is not None and bert.embedding_norm.eps == 1e-12


def test_roberta_counts_positions_from_the_row_after_that_of_padding() -> None:
    roberta = build_architecture({**BERT, "model_type": "roberta", "pad_token_id": 1}, "config")
    assert (roberta.first_position, roberta.num_positions, roberta.max_len) == (2, 40, 38)


def test_a_decoder_of_two_stacks_looks_back_and_at_the_whole_source() -> None:
    for config in (T5, BART):
        model = build_architecture(config, "config.json")
        assert model.encoder is not None and not model.encoder.has_head
        assert (model.num_layers, model.encoder.num_layers) == (2, 3)
        for block in model.blocks:
            assert block.attention.variant == "causal"
            assert block.cross is not None and block.cross.variant == "full"
        for block in model.encoder.blocks:
            assert block.attention.variant == "full" and block.cross is None


def test_each_side_of_bart_has_heads_and_widths_of_its_own() -> None:
    bart = build_architecture(BART, "config.json")
    assert bart.encoder is not None
    ours, theirs = bart.blocks[0], bart.encoder.blocks[0]
    assert (ours.attention.num_q_heads, theirs.attention.num_q_heads) == (2, 4)
    assert (ours.ffn.width, theirs.ffn.width) == (64, 48)  # type: ignore[union-attr]
    assert (bart.first_position, bart.num_positions) == (2, 42)
    assert build_architecture({**BART, "scale_embedding": True}, "").embedding_scale == 32**0.5


def test_t5_scales_no_scores_and_what_its_head_is_given_where_that_is_the_embedding() -> None:
    first = build_architecture(T5, "config.json")
    assert {block.attention.scale for block in first.blocks} == {1.0}
    for block in first.blocks:
        assert block.attention.relative == RelativeBias(num_buckets=32, max_distance=128)
        assert block.cross is not None and block.cross.relative is None
    assert (first.tied_head, first.head_scale) == (True, 32**-0.5)
    gated = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    second = build_architecture(gated, "config.json")
    assert (second.tied_head, second.head_scale) == (False, 1.0)
    ffn = second.blocks[0].ffn
    assert (ffn.gated, ffn.activation, ffn.bias) == (True, "gelu-tanh", False)  # type: ignore[union-attr]


def test_whisper_takes_states_for_its_source_and_gives_its_keys_no_bias() -> None:
    whisper = build_architecture(WHISPER, "config.json")
    assert whisper.encoder is None
    for block in whisper.blocks:
        for attention in (block.attention, block.cross):
            assert attention is not None
            assert (attention.q_bias, attention.k_bias, attention.v_bias) == (True, False, True)


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        (BERT, {"is_decoder": True}, "is_decoder"),
        (BERT, {"num_attention_heads": 5}, "num_attention_heads is 5"),
        (BERT, {"hidden_act": "mish"}, "hidden_act is 'mish'"),
        (BERT, {"model_type": "roberta", "pad_token_id": 40}, "max_position_embeddings is 40"),
        (T5, {"feed_forward_proj": "wide-relu"}, "feed_forward_proj"),
        (T5, {"relative_attention_num_buckets": 3}, "relative_attention_num_buckets is 3"),
        (T5, {"relative_attention_max_distance": 16}, "relative_attention_max_distance is 16"),
        (BART, {"decoder_attention_heads": 5}, "decoder_attention_heads is 5"),
        (BART, {"tie_word_embeddings": False}, "tie_word_embeddings"),
        (WHISPER, {"activation_function": "mish"}, "activation_function"),
        (BERT, {"model_type": "convbert"}, "'convbert' cannot be built"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    config: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError) as refused:
        build_architecture({**config, **change}, "config.json")
    assert named in refused.value.problem


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "roberta-base", "t5-small", "flan-t5-xl", "bart-base",
             "whisper-tiny"],
)  # fmt: skip
def test_shipped_profiles_of_encoders_can_be_built(name: str) -> None:
    assert architecture_of(name).num_layers >= 4
