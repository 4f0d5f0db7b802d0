"""Decoders that norm in parallel, turn a part of a head, slope their scores or see in chunks, with
the weights of the Transformers library's own classes."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attnprof.errors import UsageError  # noqa: E402
from attnprof.models.build_architecture import build_architecture  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.kv_caches import KvCache, new_cache  # noqa: E402
from attnprof.workloads.transformer import Transformer, build_transformer, op_workload  # noqa: E402
from attnprof.workloads.transformer.loading import load_transformers_weights  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
OPT: dict[str, Any] = {**SIZES, "model_type": "opt", "ffn_dim": 80, "word_embed_proj_dim": 48}
BLOOM: dict[str, Any] = {
    "model_type": "bloom", "vocab_size": 97, "hidden_size": 48, "n_layer": 3, "n_head": 4,
}  # fmt: skip
NEOX: dict[str, Any] = {**SIZES, "model_type": "gpt_neox", "intermediate_size": 80}
NEOX_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
FALCON: dict[str, Any] = {**SIZES, "model_type": "falcon"}
LLAMA4: dict[str, Any] = {
    **SIZES, "model_type": "llama4_text", "num_hidden_layers": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 24, "intermediate_size_mlp": 80, "num_local_experts": 4,
    "num_experts_per_tok": 1, "attention_chunk_size": 6, "no_rope_layer_interval": 2,
    "interleave_moe_layer_step": 2, "floor_scale": 4, "attn_scale": 0.5,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "opt": OPT,
    "opt, norms after": {**OPT, "do_layer_norm_before": False, "enable_bias": False},
    "bloom": BLOOM,
    "bloom, six heads": {**BLOOM, "n_head": 6},
    "gpt_neox": {**NEOX, "rope_parameters": NEOX_ROPE},
    "gpt_neox, one after the other": {**NEOX, "rope_parameters": NEOX_ROPE,
        "use_parallel_residual": False, "attention_bias": False},
    "falcon": FALCON,
    "falcon, new": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    "falcon, new, one norm": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1},
    "falcon, as BLOOM": {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    "llama4": LLAMA4,
    "llama4, without norms": {**LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False,
        "num_experts_per_tok": 2, "attention_bias": True},
}  # fmt: skip
PROMPT, STEPS, VERIFIED = 8, 7, 3
LENGTH = PROMPT + STEPS + VERIFIED


def library_model(config: dict[str, Any]) -> Any:
    """The class of the configuration with random weights, none of them near zero or one."""
    values = dict(config)
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.dim() < 2 else 1.5 * parameter.shape[-1] ** -0.5
            noise = torch.randn(parameter.shape, generator=generator) * scale
            if parameter.dim() < 2:
                parameter.add_(noise)
            else:
                parameter.copy_(noise)
    return model.eval()


def our_model(config: dict[str, Any], theirs: Any, backend: str = "eager") -> Transformer:
    workload = Workload(backend=backend, q_len=LENGTH, kv_len=LENGTH)
    architecture = build_architecture(config, "config.json")
    model = build_transformer(architecture, workload, torch.device("cpu"))
    load_transformers_weights(model, theirs.state_dict())
    return model


def new_caches(model: Transformer, kv_cache: str) -> list[KvCache]:
    made = []
    for block in model.architecture.blocks:
        workload = op_workload(
            model.kernels.workload, block.attention, batch_size=2, q_len=1, kv_len=LENGTH
        )
        values = {**workload.to_json(), "kv_cache": kv_cache}
        made.append(new_cache(Workload.from_json(values), 0, torch.zeros, seed=0))
    return made


def some_tokens() -> Any:
    return torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(3))


def close(found: Any, expected: Any) -> bool:
    return bool((found - expected).abs().max() < 1e-4 * expected.std())


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return FAMILIES[request.param]


@pytest.mark.parametrize("backend", ["eager", "math"])
def test_a_prefill_gives_the_librarys_logits(config: dict[str, Any], backend: str) -> None:
    theirs, tokens = library_model(config), some_tokens()
    with torch.inference_mode():
        expected = theirs(tokens, use_cache=False).logits
        found = our_model(config, theirs, backend)(tokens)
    assert close(found, expected)


@pytest.mark.parametrize("kv_cache", ["contiguous", "paged"])
def test_the_cache_gives_the_librarys_logits(config: dict[str, Any], kv_cache: str) -> None:
    theirs, tokens = library_model(config), some_tokens()
    ours = our_model(config, theirs)
    caches, held, start = new_caches(ours, kv_cache), None, 0
    with torch.inference_mode():
        whole = theirs(tokens, use_cache=False).logits
        for length in (PROMPT, *[1] * STEPS, VERIFIED):
            new = tokens[:, start : start + length]
            said = theirs(new, past_key_values=held, use_cache=True)
            held = said.past_key_values
            found = ours(new, caches, start)
            assert close(found, whole[:, start : start + length])
            assert close(found, said.logits)
            start += length


def test_a_token_at_another_place_is_seen(config: dict[str, Any]) -> None:
    theirs, tokens = library_model(config), some_tokens()
    ours = our_model(config, theirs)
    with torch.inference_mode():
        whole = theirs(tokens, use_cache=False).logits
        shifted = ours(tokens.roll(1, dims=1))
        assert not close(shifted.roll(-1, dims=1)[:, :-1], whole[:, :-1])


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        (OPT, {"word_embed_proj_dim": 24}, "word_embed_proj_dim is 24"),
        (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
        (BLOOM, {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
        (FALCON, {"alibi": True}, "alibi is True"),
        (FALCON, {"parallel_attn": False, "new_decoder_architecture": True}, "parallel_attn"),
        (NEOX, {"rotary_pct": 0.3}, "cannot halve 3"),
        (LLAMA4, {"floor_scale": 0}, "floor_scale is 0"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    config: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError) as refused:
        build_architecture({**config, **change}, "config.json")
    assert named in refused.value.problem


def test_older_files_state_the_share_and_the_base_of_rope_by_other_names() -> None:
    wide = {**NEOX, "hidden_size": 64}
    older = build_architecture({**wide, "rotary_pct": 0.5, "rotary_emb_base": 500.0}, "")
    silent = build_architecture(wide, "")
    for model, width, base in ((older, 8, 500.0), (silent, 4, 1e4)):
        rope = model.blocks[0].attention.rope
        assert rope is not None
        assert (rope.rotated_dim, rope.base) == (width, base)


def test_each_thing_that_llama_4_does_otherwise_is_seen() -> None:
    theirs, tokens = library_model(LLAMA4), some_tokens()
    right = build_architecture(LLAMA4, "config.json")
    kinds = [(block.attention.variant, block.attention.rope is None) for block in right.blocks]
    assert kinds == [("chunked", False), ("causal", True)] * 2
    with torch.inference_mode():
        expected = theirs(tokens, use_cache=False).logits
        for wrong in (
            {"variant": "causal", "window_len": None}, {"window_len": 5}, {"temperature": None},
            {"norms_turned": False, "q_norm": None}, {"rope": None},
        ):  # fmt: skip
            blocks = tuple(
                replace(block, attention=replace(block.attention, **wrong))
                if all(getattr(block.attention, name) is not None for name in wrong)
                else block
                for block in right.blocks
            )
            assert blocks != right.blocks
            workload = Workload(backend="eager", q_len=LENGTH, kv_len=LENGTH)
            ours = build_transformer(replace(right, blocks=blocks), workload, torch.device("cpu"))
            load_transformers_weights(ours, theirs.state_dict())
            assert not close(ours(tokens), expected), wrong
