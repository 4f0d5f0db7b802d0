"""A Transformers class's state dict -> the same weights in our modules, to hold one against the
other."""

from collections.abc import Callable, Mapping

import torch

from attnprof.models.architecture import AttentionBlock
from attnprof.workloads.transformer.loading_names import OTHER_NAMES, Names, linear
from attnprof.workloads.transformer.model import Transformer

_SELF = "model.layers.{}.self_attn."
_MLP = "model.layers.{}.mlp."
_LAYER = "model.layers.{}."


LLAMA: Names = {
    "embedding.weight": ("model.embed_tokens.weight",),
    "head.weight": ("lm_head.weight",),
    "final_norm.weight": ("model.norm.weight",),
    **linear("blocks.{}.attention.qkv", *(f"{_SELF}{name}_proj" for name in "qkv")),
    **linear("blocks.{}.attention.out", f"{_SELF}o_proj"),
    "blocks.{}.attention.q_norm.weight": (f"{_SELF}q_norm.weight",),
    "blocks.{}.attention.k_norm.weight": (f"{_SELF}k_norm.weight",),
    "blocks.{}.attention.sinks": (f"{_SELF}sinks",),
    "blocks.{}.norms_before.0.weight": (f"{_LAYER}input_layernorm.weight",),
    "blocks.{}.norms_before.1.weight": (f"{_LAYER}post_attention_layernorm.weight",),
    **linear("blocks.{}.ffn.up", f"{_MLP}gate_proj", f"{_MLP}up_proj"),
    **linear("blocks.{}.ffn.down", f"{_MLP}down_proj"),
}
# Routed experts lie in one tensor; of a sparse layer ``up`` and ``down`` have no ``.weight``.
MIXTURE: Names = {
    **LLAMA,
    "blocks.{}.ffn.router.weight": (f"{_MLP}gate.weight",),
    "blocks.{}.ffn.up": (f"{_MLP}experts.gate_up_proj",),
    "blocks.{}.ffn.down": (f"{_MLP}experts.down_proj",),
}
GEMMA2: Names = {
    **LLAMA,
    "blocks.{}.norms_within.0.weight": (f"{_LAYER}post_attention_layernorm.weight",),
    "blocks.{}.norms_before.1.weight": (f"{_LAYER}pre_feedforward_layernorm.weight",),
    "blocks.{}.norms_within.1.weight": (f"{_LAYER}post_feedforward_layernorm.weight",),
}
GPT_OSS: Names = {
    **MIXTURE,
    **linear("blocks.{}.ffn.router", f"{_MLP}router"),
    "blocks.{}.ffn.up_bias": (f"{_MLP}experts.gate_up_proj_bias",),
    "blocks.{}.ffn.down_bias": (f"{_MLP}experts.down_proj_bias",),
}
DEEPSEEK: Names = {
    **MIXTURE,
    "blocks.{}.ffn.choice_bias": (f"{_MLP}gate.e_score_correction_bias",),
    **linear(
        "blocks.{}.ffn.shared.up", *(f"{_MLP}shared_experts.{n}_proj" for n in ("gate", "up"))
    ),
    **linear("blocks.{}.ffn.shared.down", f"{_MLP}shared_experts.down_proj"),
    "blocks.{}.attention.q.weight": (f"{_SELF}q_b_proj.weight",),
    **linear("blocks.{}.attention.q_down", f"{_SELF}q_a_proj"),
    "blocks.{}.attention.q_norm.weight": (f"{_SELF}q_a_layernorm.weight",),
    **linear("blocks.{}.attention.kv_down", f"{_SELF}kv_a_proj_with_mqa"),
    "blocks.{}.attention.kv_norm.weight": (f"{_SELF}kv_a_layernorm.weight",),
    "blocks.{}.attention.kv_up.weight": (f"{_SELF}kv_b_proj.weight",),
}
GPT2: Names = {
    "embedding.weight": ("transformer.wte.weight",),
    "positions.weight": ("transformer.wpe.weight",),
    "head.weight": ("lm_head.weight",),
    **linear("final_norm", "transformer.ln_f"),
    **linear("blocks.{}.attention.qkv", "transformer.h.{}.attn.c_attn"),
    **linear("blocks.{}.attention.out", "transformer.h.{}.attn.c_proj"),
    **linear("blocks.{}.norms_before.0", "transformer.h.{}.ln_1"),
    **linear("blocks.{}.norms_before.1", "transformer.h.{}.ln_2"),
    **linear("blocks.{}.ffn.up", "transformer.h.{}.mlp.c_fc"),
    **linear("blocks.{}.ffn.down", "transformer.h.{}.mlp.c_proj"),
}
NAMES: dict[str, Names] = {
    "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA, "gemma": LLAMA,
    "mixtral": MIXTURE, "qwen3_moe": MIXTURE, "gemma2": GEMMA2, "gemma3_text": GEMMA2,
    "gpt2": GPT2, "gpt_oss": GPT_OSS, "deepseek_v2": DEEPSEEK, "deepseek_v3": DEEPSEEK,
    **OTHER_NAMES,
}  # fmt: skip


def load_transformers_weights(model: Transformer, state: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights of the Transformers class of the model's type into ``model``.

    Raises:
        KeyError: The class lacks a weight that ours has, or has one that ours lacks.
    """
    names = NAMES[model.architecture.model_type]
    used = set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            template, layer = _template(name)
            theirs = [
                found for their in names[template] for found in _stored(state, their.format(layer))
            ]
            used.update(theirs)
            together = torch.cat([_weight(state, their) for their in theirs])
            parameter.copy_(_adapted(model, template, together))
    places = {state[name].data_ptr() for name in used & set(state)}
    left = [name for name in state if state[name].data_ptr() not in places]  # the rest is tied
    if left:
        raise KeyError(f"weights that the model lacks: {', '.join(sorted(left))}")


def _template(name: str) -> tuple[str, str]:
    """The name with {} for the layer, and the layer."""
    side, blocks, within = name.partition("blocks.")
    if not blocks:
        return name, ""
    layer, rest = within.split(".", 1)
    return f"{side}blocks.{{}}.{rest}", layer


# What stands in place of a module that a configuration leaves out.
_ELSE = {
    "q_b_proj": ("q_proj",), "wi": ("wi_0", "wi_1"), "input_layernorm": ("ln_attn",),
    "post_attention_layernorm": ("ln_mlp",),
}  # fmt: skip


def _stored(state: Mapping[str, torch.Tensor], name: str) -> list[str]:
    """The weight of that name, or those in its place."""
    if name in state:
        return [name]
    *front, module, kind = name.split(".")
    if module not in _ELSE:
        return [name]
    return [".".join((*front, other, kind)) for other in _ELSE[module]]


def _weight(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The weight; zeros for the bias of keys that alone have none (Whisper)."""
    if name.endswith("k_proj.bias") and name not in state:
        return torch.zeros_like(state[name.replace("k_proj", "v_proj")])
    return state[name]


def _adapted(model: Transformer, template: str, theirs: torch.Tensor) -> torch.Tensor:
    """Their weight as ours is laid out."""
    architecture = model.architecture
    part = template.rsplit("}.", 1)[-1]
    if "norm" in part:
        norm = architecture.blocks[0].norm
        return theirs + norm.weight_offset if part.endswith("weight") else theirs
    if part == "head.bias":
        return theirs.flatten()  # BART's has a dimension more
    if architecture.model_type == "gpt2" and part.endswith(_TRANSPOSED_IN_GPT2):
        return theirs.T
    if part.startswith("attention.qkv.") and architecture.model_type in _FUSED:
        return _ungrouped(theirs, architecture.blocks[0].attention)
    if architecture.model_type == "llama4_text":
        if part in ("ffn.up", "ffn.down"):
            return theirs.transpose(1, 2)
        if part.startswith("attention.qkv."):
            return _halves_turned(theirs, architecture.blocks[0].attention)
    if architecture.model_type == "gpt_oss" and part in _OF_GPT_OSS:
        return _OF_GPT_OSS[part](theirs)
    latent = architecture.blocks[0].attention.latent
    if latent is not None and latent.interleaved and part.startswith(_TURNED_ROWS):
        num_heads = architecture.blocks[0].attention.num_q_heads if "q.w" in part else 1
        by_head = theirs.view(num_heads, -1, *theirs.shape[1:])
        fixed, turned = by_head[:, : -latent.rope_dim], by_head[:, -latent.rope_dim :]
        return torch.cat((fixed, _evens_first(turned, 1)), dim=1).view_as(theirs)
    return theirs


_TRANSPOSED_IN_GPT2 = ("qkv.weight", "out.weight", "up.weight", "down.weight")
_TURNED_ROWS = ("attention.q.weight", "attention.kv_down.")


_FUSED = ("gpt_neox", "bloom", "falcon")


def _ungrouped(theirs: torch.Tensor, block: AttentionBlock) -> torch.Tensor:
    """Rows of queries, keys and values from those that lie together by KV head."""
    num_groups = block.num_kv_heads
    by_group = theirs.view(num_groups, -1, block.head_dim, *theirs.shape[1:])
    q, k, v = torch.split(by_group, [by_group.shape[1] - 2, 1, 1], dim=1)
    return torch.cat([heads.flatten(0, 2) for heads in (q, k, v)])


def _halves_turned(theirs: torch.Tensor, block: AttentionBlock) -> torch.Tensor:
    """Llama 4 turns neighbours, and the rows of queries and keys lie so."""
    num_turned = block.num_q_heads + block.num_kv_heads
    by_head = theirs.view(-1, block.head_dim, *theirs.shape[1:])
    turned = _evens_first(by_head[:num_turned], 1)
    return torch.cat((turned, by_head[num_turned:])).view_as(theirs)


def _evens_first(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Even elements of a dimension, then odd ones: pairs of neighbours as pairs of halves."""
    order = torch.arange(x.shape[dim])
    return x.index_select(dim, torch.cat((order[0::2], order[1::2])))


# gpt-oss stores inputs before outputs, and gate and up in turns.
_OF_GPT_OSS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ffn.up": lambda theirs: _evens_first(theirs.transpose(1, 2), 1),
    "ffn.up_bias": lambda theirs: _evens_first(theirs, 1),
    "ffn.down": lambda theirs: theirs.transpose(1, 2),
}
