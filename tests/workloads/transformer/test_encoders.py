"""Encoders and encoder–decoders, with the weights of the Transformers library's own classes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attnprof.models.build_architecture import build_architecture  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads import build_operation  # noqa: E402
from attnprof.workloads.kv_caches import KvCache, new_cache  # noqa: E402
from attnprof.workloads.transformer import Transformer, build_transformer, op_workload  # noqa: E402
from attnprof.workloads.transformer.cross import CrossAttention, Source  # noqa: E402
from attnprof.workloads.transformer.loading import load_transformers_weights  # noqa: E402
from attnprof.workloads.transformer.relative import RelativePositions  # noqa: E402
from attnprof.workloads.transformer.step import PARTS  # noqa: E402
from tests.workloads.transformer.library import parts_met  # noqa: E402

VOCAB, BATCH, SOURCE, SHORTEST = 97, 3, 9, 4
PROMPT, STEPS, VERIFIED = 5, 4, 3
TARGET = PROMPT + STEPS + VERIFIED

BERT: dict[str, Any] = {
    "model_type": "bert", "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 80, "max_position_embeddings": 40,
    "type_vocab_size": 3, "pad_token_id": 1,
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert, relu": {**BERT, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    "roberta": {**BERT, "model_type": "roberta"},
    "distilbert": {"model_type": "distilbert", "vocab_size": VOCAB, "dim": 48, "n_layers": 3,
        "n_heads": 4, "hidden_dim": 80, "max_position_embeddings": 40, "pad_token_id": 1},
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "vocab_size": VOCAB, "d_model": 48, "d_kv": 10, "d_ff": 80,
    "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip
BART: dict[str, Any] = {
    "model_type": "bart", "vocab_size": VOCAB, "d_model": 48, "encoder_layers": 3,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 80, "decoder_ffn_dim": 72, "max_position_embeddings": 40,
}  # fmt: skip
PAIRS: dict[str, dict[str, Any]] = {
    "t5": T5,
    "t5 1.1": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "bart": BART,
    "bart, scaled": {**BART, "scale_embedding": True, "activation_function": "relu"},
    "mt5": {**T5, "model_type": "mt5", "feed_forward_proj": "gated-silu"},
    "mbart": {**BART, "model_type": "mbart", "scale_embedding": True},
    "pegasus": {**BART, "model_type": "pegasus", "activation_function": "relu"},
    "blenderbot": {**BART, "model_type": "blenderbot"},
    "marian": {**BART, "model_type": "marian", "activation_function": "swish",
        "pad_token_id": 1},
    "plbart": {**BART, "model_type": "plbart"},
    "whisper": {"model_type": "whisper", "vocab_size": VOCAB, "d_model": 48, "encoder_layers": 1,
        "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 80, "decoder_ffn_dim": 80, "max_source_positions": SOURCE,
        "max_target_positions": 40, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": [],
        "begin_suppress_tokens": []},
}  # fmt: skip
LIMIT = {"float32": 1e-4, "float64": 1e-9}

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.parametrize("dtype", LIMIT),
]


@pytest.fixture(autouse=True)
def nothing_is_trained() -> Iterator[None]:
    with torch.inference_mode():
        yield


def library_model(config: dict[str, Any], dtype: str) -> Any:
    """The class of the configuration with random weights, none of them near zero or one."""
    values = dict(config)
    kind = values.pop("model_type")
    made = transformers.AutoConfig.for_model(kind, **values)
    encoder = config in ENCODERS.values()
    chosen = "AutoModelForMaskedLM" if encoder else "AutoModelForSeq2SeqLM"
    if kind == "whisper":
        chosen = "AutoModelForSpeechSeq2Seq"
    torch.manual_seed(1)
    model = getattr(transformers, chosen).from_config(made, attn_implementation="eager")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            if weight.is_floating_point() and not name.endswith("position_ids"):
                scale = 0.3 if weight.dim() < 2 else weight.shape[-1] ** -0.5
                weight.add_(torch.randn(weight.shape, generator=generator) * scale)
    return model.to(getattr(torch, dtype)).eval()


def our_model(config: dict[str, Any], theirs: Any, dtype: str, **axes: Any) -> Transformer:
    workload = Workload(
        **{"backend": "eager", "dtype": dtype, "q_len": TARGET, "kv_len": TARGET, **axes}
    )
    model = build_transformer(
        build_architecture(config, "config.json"), workload, torch.device("cpu")
    )
    state = theirs.state_dict()
    if config["model_type"] == "whisper":  # its encoder turns sound into states
        state = {name: tensor for name, tensor in state.items() if "model.encoder." not in name}
    load_transformers_weights(model, state)
    return model


@contextmanager
def all_in(dtype: str) -> Iterator[None]:
    """The library's norms and softmaxes, which it computes in float32, in the given dtype."""
    with pytest.MonkeyPatch.context() as patch:
        if dtype == "float64":
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(torch, "float32", torch.float64)
        yield


def tokens_of(seed: int, length: int) -> Any:
    """Tokens of which none is one that stands for padding."""
    return torch.randint(3, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def padding(dtype: str) -> Any:
    """The mask of a padded source, as the library wants it; lengths as a workload spreads them."""
    lengths = Workload(
        backend="eager", dtype=dtype, q_len=SOURCE, kv_len=SOURCE, batch_size=BATCH,
        min_len=SHORTEST,
    ).lengths  # fmt: skip
    assert len(set(lengths)) == BATCH
    return (torch.arange(SOURCE) < torch.tensor(lengths)[:, None]).long()


def close(found: Any, expected: Any, dtype: str) -> bool:
    limit = LIMIT[dtype] * float(expected.std())
    return bool((found - expected).abs().max() < limit)


def library_source(config: dict[str, Any], theirs: Any, ours: Transformer, mask: Any) -> Any:
    """Both encoders' states of one padded source; of Whisper states of no encoder."""
    dtype = ours.kernels.workload.dtype
    min_len = None if mask is None else SHORTEST
    if config["model_type"] == "whisper":
        generator = torch.Generator().manual_seed(5)
        states = torch.randn(BATCH, SOURCE, 48, generator=generator, dtype=getattr(torch, dtype))
        return states, Source(states=states)
    tokens = tokens_of(4, SOURCE)
    with all_in(dtype):
        states = theirs.get_encoder()(tokens, attention_mask=mask).last_hidden_state
    return states, ours.encode(tokens, min_len)


def library_logits(theirs: Any, states: Any, mask: Any, new: Any, held: Any, dtype: str) -> Any:
    with all_in(dtype):
        return theirs(
            encoder_outputs=(states,), attention_mask=mask, decoder_input_ids=new,
            past_key_values=held, use_cache=held is not None,
        )  # fmt: skip


def new_caches(model: Transformer, kv_cache: str) -> list[KvCache]:
    def empty(*shape: int) -> Any:
        return torch.zeros(shape)

    made = []
    for block in model.architecture.blocks:
        workload = op_workload(
            model.kernels.workload, block.attention, batch_size=BATCH, q_len=1, kv_len=TARGET
        )
        values = {**workload.to_json(), "kv_cache": kv_cache}
        made.append(new_cache(Workload.from_json(values), 0, empty, seed=0))
    return made


@pytest.mark.parametrize("family", ENCODERS)
def test_a_padded_batch_gives_the_librarys_logits(family: str, dtype: str) -> None:
    config = ENCODERS[family]
    theirs = library_model(config, dtype)
    ours = our_model(config, theirs, dtype)
    tokens, mask = tokens_of(3, SOURCE), padding(dtype)
    tokens = tokens.where(mask.bool(), 1)
    said = {"input_ids": tokens, "attention_mask": mask}
    types = None
    if ours.token_types is not None:
        types = tokens % ours.architecture.num_token_types
        said["token_type_ids"] = types
    if config["model_type"] == "roberta":
        types = said["token_type_ids"] = torch.zeros_like(tokens)
    with all_in(dtype):
        expected = theirs(**said).logits
    found = ours(tokens, min_len=SHORTEST, token_types=types)
    real = mask.bool()
    assert close(found[real], expected[real], dtype)
    assert not close(ours(tokens, token_types=types)[real], expected[real], dtype)


def test_without_token_types_all_tokens_are_of_the_first(dtype: str) -> None:
    theirs = library_model(BERT, dtype)
    ours = our_model(BERT, theirs, dtype)
    tokens = tokens_of(3, SOURCE)
    expected, found = theirs(tokens).logits, ours(tokens)
    others = ours(tokens, token_types=torch.ones_like(tokens))
    assert close(found, expected, dtype)
    assert not close(others, expected, dtype)


# Whisper's encoder pads sound with silence, which it masks nowhere.
SOURCES = [(family, padded) for family in PAIRS for padded in (False, family != "whisper")]


@pytest.mark.parametrize(("family", "padded"), dict.fromkeys(SOURCES))
def test_source_and_target_give_the_librarys_logits(family: str, padded: bool, dtype: str) -> None:
    config = PAIRS[family]
    theirs = library_model(config, dtype)
    ours = our_model(config, theirs, dtype)
    mask = padding(dtype) if padded else None
    states, source = library_source(config, theirs, ours, mask)
    real = padding(dtype).bool() if padded else torch.ones(BATCH, SOURCE, dtype=torch.bool)
    assert close(source.states[real], states[real], dtype)
    target = tokens_of(6, TARGET)
    expected = library_logits(theirs, states, mask, target, None, dtype).logits
    assert close(ours(target, source=source), expected, dtype)
    if padded:
        assert not close(ours(target, source=replace(source, min_len=None)), expected, dtype)
    shorter = Source(states=source.states[:, :-1])
    assert not close(ours(target, source=shorter), expected, dtype)


@pytest.mark.parametrize("family", PAIRS)
@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
def test_both_caches_give_the_librarys_logits_step_by_step(
    family: str, kv_cache: str, dtype: str
) -> None:
    config = PAIRS[family]
    theirs = library_model(config, dtype)
    ours = our_model(config, theirs, dtype)
    mask = None if family == "whisper" else padding(dtype)
    states, source = library_source(config, theirs, ours, mask)
    source = ours.cached_source(source)
    made_again: list[str] = []
    for module in ours.modules():
        if isinstance(module, CrossAttention):
            module.kv.register_forward_hook(lambda *_: made_again.append("keys"))
    target = tokens_of(6, TARGET)
    held = transformers.EncoderDecoderCache(
        transformers.DynamicCache(), transformers.DynamicCache()
    )
    caches, start = new_caches(ours, kv_cache), 0
    for length in (PROMPT, *[1] * STEPS, VERIFIED):
        new = target[:, start : start + length]
        expected = library_logits(theirs, states, mask, new, held, dtype).logits
        found = ours(new, caches, start, source=source)
        assert close(found, expected, dtype)
        start += length
    assert [cache.length for cache in caches] == [TARGET] * ours.architecture.num_layers
    assert not made_again
    full = ours(target, source=source)
    assert close(found, full[:, -VERIFIED:], dtype)


def test_a_wrong_place_or_a_wrong_source_is_seen(dtype: str) -> None:
    for family in ("t5", "bart", "whisper"):
        config = PAIRS[family]
        theirs = library_model(config, dtype)
        ours = our_model(config, theirs, dtype)
        states, source = library_source(config, theirs, ours, None)
        target = tokens_of(6, TARGET)
        expected = library_logits(theirs, states, None, target, None, dtype).logits
        caches = new_caches(ours, "contiguous")
        ours(target[:, :-1], caches, 0, source=source)
        last = expected[:, -1:]
        other = Source(states=source.states.flip(0))
        assert not close(
            ours(target[:, -1:], caches, TARGET - 1, source=other, keeps=False), last, dtype
        )
        assert close(
            ours(target[:, -1:], caches, TARGET - 1, source=source, keeps=False), last, dtype
        )
        if isinstance(ours.relative, RelativePositions):
            ours.relative.bidirectional = True
            moved = ours(target[:, -1:], caches, TARGET - 1, source=source)
            assert not close(moved, last, dtype)
        else:
            assert not close(ours(target[:, -1:], caches, 2, source=source), last, dtype)


def test_a_cross_cache_holds_every_key_of_the_source_once(dtype: str) -> None:
    theirs = library_model(BART, dtype)
    ours = our_model(BART, theirs, dtype)
    source = ours.cached_source(ours.encode(tokens_of(4, SOURCE)))
    assert source.caches is not None and len(source.caches) == 2
    for cache in source.caches:
        element = 8 if dtype == "float64" else 4
        assert cache.length == SOURCE
        assert cache.allocated_bytes == 2 * BATCH * 48 * SOURCE * element
        with pytest.raises(TypeError):
            cache.append(*cache.held())


@pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn"])
def test_a_quantised_cross_cache_is_a_quarter_and_close(stored: str, dtype: str) -> None:
    theirs = library_model(BART, dtype)
    ours = our_model(BART, theirs, dtype)
    target, source = tokens_of(6, TARGET), ours.encode(tokens_of(4, SOURCE))
    exact, rounded = ours.cached_source(source), ours.cached_source(source, stored)
    assert exact.caches is not None and rounded.caches is not None
    for cache, narrow in zip(exact.caches, rounded.caches, strict=True):
        scales = 2 * BATCH * 6 * SOURCE * 4
        element = 8 if dtype == "float64" else 4
        assert (narrow.allocated_bytes - scales) * element == cache.allocated_bytes
    expected = ours(target, source=exact)
    error = float((ours(target, source=rounded) - expected).abs().max() / expected.std())
    assert 1e-4 < error < 0.1


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("backend", ["math", "flash"])
def test_other_kernels_agree_with_the_plain_one(backend: str, family: str, dtype: str) -> None:
    config = PAIRS[family]
    theirs = library_model(config, dtype)
    plain = our_model(config, theirs, dtype)
    ours = our_model(config, theirs, dtype, backend=backend)
    source, target = tokens_of(4, SOURCE), tokens_of(6, TARGET)
    expected = plain(target, source=plain.encode(source, SHORTEST))
    found = ours(target, source=ours.encode(source, SHORTEST))
    assert close(found, expected, dtype)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_training_step_gives_the_librarys_gradients(
    family: str, checkpointing: bool, dtype: str
) -> None:
    config = PAIRS[family]
    with torch.inference_mode(False), torch.enable_grad():
        theirs = library_model(config, dtype)
        ours = our_model(config, theirs, dtype)
        ours.checkpointing = checkpointing
        source, target = tokens_of(4, SOURCE), tokens_of(6, TARGET)
        with all_in(dtype):
            said = theirs(input_ids=source, decoder_input_ids=target, use_cache=False)
            torch.logsumexp(said.logits, dim=-1).sum().backward()
        found = ours(target, source=ours.encode(source))
        torch.logsumexp(found, dim=-1).sum().backward()
    pairs = [(ours.embedding.weight, theirs.get_input_embeddings().weight)]
    for stack, side in ((ours, "decoder"), (ours.encoder, "encoder")):
        if stack is not None and isinstance(stack.relative, RelativePositions):
            first = getattr(theirs, side).block[0].layer[0].SelfAttention
            pairs.append((stack.relative.table, first.relative_attention_bias.weight))
    assert len(pairs) == (3 if family == "t5" else 1)
    for our_weight, their_weight in pairs:
        assert our_weight.grad is not None and float(our_weight.grad.std()) > 0
        assert close(our_weight.grad, their_weight.grad, dtype)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_random_weights_spread_scores_by_about_one(family: str, dtype: str) -> None:
    workload = Workload(backend="eager", dtype=dtype, q_len=TARGET, kv_len=TARGET)
    wide = {**PAIRS[family], "d_model": 144, "d_kv": 36}
    architecture = build_architecture(wide, "config.json")
    model = build_transformer(architecture, workload, torch.device("cpu"))
    rows = torch.randn(64, 144, dtype=getattr(torch, dtype))
    for module in model.blocks[0].modules():
        if isinstance(module, CrossAttention):
            k, _ = module.keys_and_values(rows[None])
            q = module.q(rows).view(64, -1, module.block.head_dim).transpose(0, 1)
            spread = float((q @ k[0].transpose(-1, -2) * module.block.scale).std())
            assert 0.5 < spread < 2


@pytest.mark.parametrize("scope", ["model", "block"])
def test_a_padded_batch_is_one_at_every_scope_of_a_model(
    scope: str, dtype: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT))
    padded = Workload(
        backend="eager", dtype=dtype, scope=scope, model=str(path), variant="full", q_len=SOURCE,
        kv_len=SOURCE, batch_size=BATCH, min_len=SHORTEST, num_layers=3,
    )  # fmt: skip
    found, without = (
        build_operation(workload, torch.device("cpu"), seed=0)
        for workload in (padded, replace(padded, min_len=None))
    )
    assert found.check().passed and without.check().passed
    assert found.mask_bytes > without.mask_bytes == 0
    width = VOCAB if scope == "model" else 48
    rows, others = (one().view(BATCH, -1, width) for one in (found, without))
    assert close(rows[-1], others[-1], dtype)  # the longest has no padding
    assert not close(rows[0], others[0], dtype)


@pytest.mark.parametrize("family", ["bert", "t5", "bart", "whisper"])
def test_parts_of_both_stacks_are_met_and_none_inside_another(family: str, dtype: str) -> None:
    config = {**ENCODERS, **PAIRS}[family]
    ours = our_model(config, library_model(config, dtype), dtype)
    met = parts_met(ours)
    source, attentions = None, len(ours.blocks)
    if ours.encoder is not None:
        source = ours.encode(tokens_of(4, SOURCE))
        attentions += len(ours.blocks) + len(ours.encoder.blocks)
    elif family == "whisper":
        source = Source(states=torch.zeros(BATCH, SOURCE, 48, dtype=getattr(torch, dtype)))
        attentions *= 2
    ours(tokens_of(6, TARGET), source=source)
    assert met.count("attention") == attentions
    assert set(met) == set(PARTS) - {"cache"}
