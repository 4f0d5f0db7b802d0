"""What the Transformers library calls the weights of encoders, of encoder–decoders, and of
decoders that name nothing as Llama does."""

Names = dict[str, tuple[str, ...]]  # ours -> theirs, laid one below the other; {} is the layer


def linear(ours: str, *theirs: str) -> Names:
    """Weight and bias of one module of ours, which is made of one or several of theirs."""
    return {
        f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs) for kind in ("weight", "bias")
    }


def _bert(model: str, transform: str, norm: str, head: str) -> Names:
    embeddings, layer = f"{model}.embeddings", f"{model}.encoder.layer.{{}}"
    attention = f"{layer}.attention"
    return {
        "embedding.weight": (f"{embeddings}.word_embeddings.weight",),
        "positions.weight": (f"{embeddings}.position_embeddings.weight",),
        "token_types.weight": (f"{embeddings}.token_type_embeddings.weight",),
        **linear("embedding_norm", f"{embeddings}.LayerNorm"),
        **linear(
            "blocks.{}.attention.qkv",
            *(f"{attention}.self.{name}" for name in ("query", "key", "value")),
        ),
        **linear("blocks.{}.attention.out", f"{attention}.output.dense"),
        **linear("blocks.{}.norms_after.0", f"{attention}.output.LayerNorm"),
        **linear("blocks.{}.ffn.up", f"{layer}.intermediate.dense"),
        **linear("blocks.{}.ffn.down", f"{layer}.output.dense"),
        **linear("blocks.{}.norms_after.1", f"{layer}.output.LayerNorm"),
        **linear("head_transform", transform),
        **linear("head_norm", norm),
        **linear("head", head),
    }


_PREDICTIONS = "cls.predictions"
BERT = _bert(
    "bert", f"{_PREDICTIONS}.transform.dense", f"{_PREDICTIONS}.transform.LayerNorm",
    f"{_PREDICTIONS}.decoder",
)  # fmt: skip
ROBERTA = _bert("roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
_DISTILBERT = "distilbert.transformer.layer.{}"
DISTILBERT: Names = {
    "embedding.weight": ("distilbert.embeddings.word_embeddings.weight",),
    "positions.weight": ("distilbert.embeddings.position_embeddings.weight",),
    **linear("embedding_norm", "distilbert.embeddings.LayerNorm"),
    **linear("blocks.{}.attention.qkv", *(f"{_DISTILBERT}.attention.{name}_lin" for name in "qkv")),
    **linear("blocks.{}.attention.out", f"{_DISTILBERT}.attention.out_lin"),
    **linear("blocks.{}.norms_after.0", f"{_DISTILBERT}.sa_layer_norm"),
    **linear("blocks.{}.ffn.up", f"{_DISTILBERT}.ffn.lin1"),
    **linear("blocks.{}.ffn.down", f"{_DISTILBERT}.ffn.lin2"),
    **linear("blocks.{}.norms_after.1", f"{_DISTILBERT}.output_layer_norm"),
    **linear("head_transform", "vocab_transform"),
    **linear("head_norm", "vocab_layer_norm"),
    **linear("head", "vocab_projector"),
}


def _t5(side: str) -> Names:
    """One stack; its feed-forward part is its last, after a decoder's second attention."""
    layers = f"{side}.block.{{}}.layer"
    last = f"{layers}.{2 if side == 'decoder' else 1}"
    first, second = f"{layers}.0.SelfAttention", f"{layers}.1.EncDecAttention"
    table = f"{first}.relative_attention_bias.weight".format(0)
    return {
        "final_norm.weight": (f"{side}.final_layer_norm.weight",),
        "relative.table": (table,),
        "blocks.{}.norms_before.0.weight": (f"{layers}.0.layer_norm.weight",),
        "blocks.{}.attention.qkv.weight": tuple(f"{first}.{name}.weight" for name in "qkv"),
        "blocks.{}.attention.out.weight": (f"{first}.o.weight",),
        "blocks.{}.norms_before.2.weight": (f"{layers}.1.layer_norm.weight",),
        "blocks.{}.cross.q.weight": (f"{second}.q.weight",),
        "blocks.{}.cross.kv.weight": tuple(f"{second}.{name}.weight" for name in "kv"),
        "blocks.{}.cross.out.weight": (f"{second}.o.weight",),
        "blocks.{}.norms_before.1.weight": (f"{last}.layer_norm.weight",),
        "blocks.{}.ffn.up.weight": (f"{last}.DenseReluDense.wi.weight",),
        "blocks.{}.ffn.down.weight": (f"{last}.DenseReluDense.wo.weight",),
    }


def _bart(side: str, norms: str) -> Names:
    layer = f"model.{side}.layers.{{}}"
    first, second = f"{layer}.self_attn", f"{layer}.encoder_attn"
    return {
        "positions.weight": (f"model.{side}.embed_positions.weight",),
        **linear("embedding_norm", f"model.{side}.layernorm_embedding"),
        **linear(f"blocks.{{}}.{norms}.0", f"{first}_layer_norm"),
        **linear("blocks.{}.attention.qkv", *(f"{first}.{name}_proj" for name in "qkv")),
        **linear("blocks.{}.attention.out", f"{first}.out_proj"),
        **linear(f"blocks.{{}}.{norms}.2", f"{second}_layer_norm"),
        **linear("blocks.{}.cross.q", f"{second}.q_proj"),
        **linear("blocks.{}.cross.kv", *(f"{second}.{name}_proj" for name in "kv")),
        **linear("blocks.{}.cross.out", f"{second}.out_proj"),
        **linear(f"blocks.{{}}.{norms}.1", f"{layer}.final_layer_norm"),
        **linear("blocks.{}.ffn.up", f"{layer}.fc1"),
        **linear("blocks.{}.ffn.down", f"{layer}.fc2"),
    }


def _of_encoder(names: Names) -> Names:
    return {f"encoder.{ours}": theirs for ours, theirs in names.items()}


T5: Names = {
    "embedding.weight": ("shared.weight",),
    "head.weight": ("lm_head.weight",),
    **_t5("decoder"),
    **_of_encoder(_t5("encoder")),
}
BART: Names = {
    "embedding.weight": ("model.shared.weight",),
    "head.bias": ("final_logits_bias",),
    **_bart("decoder", "norms_after"),
    **_of_encoder(_bart("encoder", "norms_after")),
}
# Of those that norm before each part.
MBART: Names = {
    "embedding.weight": ("model.shared.weight",),
    "head.bias": ("final_logits_bias",),
    **linear("final_norm", "model.decoder.layer_norm"),
    **_bart("decoder", "norms_before"),
    **_of_encoder(linear("final_norm", "model.encoder.layer_norm")),
    **_of_encoder(_bart("encoder", "norms_before")),
}
WHISPER: Names = {
    "embedding.weight": ("model.decoder.embed_tokens.weight",),
    "head.weight": ("proj_out.weight",),
    **linear("final_norm", "model.decoder.layer_norm"),
    **_bart("decoder", "norms_before"),
}
ENCODER_NAMES: dict[str, Names] = {
    "bert": BERT, "roberta": ROBERTA, "camembert": ROBERTA, "xlm-roberta": ROBERTA,
    "distilbert": DISTILBERT, "t5": T5, "mt5": T5, "bart": BART, "plbart": BART, "marian": BART,
    "mbart": MBART, "blenderbot": MBART, "pegasus": MBART, "whisper": WHISPER,
}  # fmt: skip


def _fused(layer: str, attention: str) -> Names:
    """Layers whose queries, keys and values are one matrix: GPT-NeoX's, BLOOM's and Falcon's."""
    return {
        **linear("blocks.{}.attention.qkv", f"{layer}.{attention}.query_key_value"),
        **linear("blocks.{}.attention.out", f"{layer}.{attention}.dense"),
        **linear("blocks.{}.norms_before.0", f"{layer}.input_layernorm"),
        **linear("blocks.{}.norms_before.1", f"{layer}.post_attention_layernorm"),
        **linear("blocks.{}.ffn.up", f"{layer}.mlp.dense_h_to_4h"),
        **linear("blocks.{}.ffn.down", f"{layer}.mlp.dense_4h_to_h"),
    }


GPT_NEOX: Names = {
    "embedding.weight": ("gpt_neox.embed_in.weight",),
    "head.weight": ("embed_out.weight",),
    **linear("final_norm", "gpt_neox.final_layer_norm"),
    **_fused("gpt_neox.layers.{}", "attention"),
}
BLOOM: Names = {
    "embedding.weight": ("transformer.word_embeddings.weight",),
    "head.weight": ("lm_head.weight",),
    **linear("embedding_norm", "transformer.word_embeddings_layernorm"),
    **linear("final_norm", "transformer.ln_f"),
    **_fused("transformer.h.{}", "self_attention"),
}
_OPT = "model.decoder.layers.{}"


def _opt(norms: str) -> Names:
    return {
        **linear(f"blocks.{{}}.{norms}.0", f"{_OPT}.self_attn_layer_norm"),
        **linear(f"blocks.{{}}.{norms}.1", f"{_OPT}.final_layer_norm"),
    }


OPT: Names = {
    "embedding.weight": ("model.decoder.embed_tokens.weight",),
    "positions.weight": ("model.decoder.embed_positions.weight",),
    "head.weight": ("lm_head.weight",),
    **linear("final_norm", "model.decoder.final_layer_norm"),
    **linear("blocks.{}.attention.qkv", *(f"{_OPT}.self_attn.{name}_proj" for name in "qkv")),
    **linear("blocks.{}.attention.out", f"{_OPT}.self_attn.out_proj"),
    **_opt("norms_before"),
    **_opt("norms_after"),
    **linear("blocks.{}.ffn.up", f"{_OPT}.fc1"),
    **linear("blocks.{}.ffn.down", f"{_OPT}.fc2"),
}
_LLAMA4 = "model.layers.{}"
_GATE_AND_UP = ("gate_proj", "up_proj")
LLAMA4: Names = {
    "embedding.weight": ("model.embed_tokens.weight",),
    "head.weight": ("lm_head.weight",),
    "final_norm.weight": ("model.norm.weight",),
    **linear("blocks.{}.attention.qkv", *(f"{_LLAMA4}.self_attn.{name}_proj" for name in "qkv")),
    **linear("blocks.{}.attention.out", f"{_LLAMA4}.self_attn.o_proj"),
    "blocks.{}.norms_before.0.weight": (f"{_LLAMA4}.input_layernorm.weight",),
    "blocks.{}.norms_before.1.weight": (f"{_LLAMA4}.post_attention_layernorm.weight",),
    **linear("blocks.{}.ffn.up", *(f"{_LLAMA4}.feed_forward.{name}" for name in _GATE_AND_UP)),
    **linear("blocks.{}.ffn.down", f"{_LLAMA4}.feed_forward.down_proj"),
    "blocks.{}.ffn.router.weight": (f"{_LLAMA4}.feed_forward.router.weight",),
    "blocks.{}.ffn.up": (f"{_LLAMA4}.feed_forward.experts.gate_up_proj",),
    "blocks.{}.ffn.down": (f"{_LLAMA4}.feed_forward.experts.down_proj",),
    **linear(
        "blocks.{}.ffn.shared.up",
        *(f"{_LLAMA4}.feed_forward.shared_expert.{name}" for name in _GATE_AND_UP),
    ),
    **linear("blocks.{}.ffn.shared.down", f"{_LLAMA4}.feed_forward.shared_expert.down_proj"),
}
OTHER_NAMES: dict[str, Names] = {
    **ENCODER_NAMES, "gpt_neox": GPT_NEOX, "bloom": BLOOM, "falcon": BLOOM, "opt": OPT,
    "llama4_text": LLAMA4,
}  # fmt: skip
