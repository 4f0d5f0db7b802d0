"""Decoders of every family give what the Transformers library's classes give."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attnprof.errors import UnsupportedError  # noqa: E402
from attnprof.models.architecture import Architecture, AttentionBlock, Experts, Norm  # noqa: E402
from tests.workloads.transformer.library import (  # noqa: E402
    BATCH,
    FAMILIES,
    LENGTH,
    architecture_of,
    library_model,
    new_caches,
    our_model,
    tokens_of,
)

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

PARTS_OF_LENGTH = (11, 1, 1, 1, 1, 3)  # a prompt, four tokens one by one, three to verify
LIMIT = 2e-5  # of the logits' own spread, in float32
EXACT = 1e-9
LATENT = [name for name in FAMILIES if name.startswith("deepseek")]
WINDOWED = ["mistral", "qwen2", "gemma-2", "gemma-3", "gpt-oss"]


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.inference_mode():
        yield


def furthest_off(found: Any, expected: Any) -> float:
    """The largest error, in standard deviations of what is expected."""
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefill_gives_the_librarys_logits(family: str) -> None:
    theirs = library_model(FAMILIES[family])
    ours = our_model(architecture_of(FAMILIES[family]), theirs)
    expected = theirs(tokens_of(), use_cache=False).logits
    assert furthest_off(ours(tokens_of()), expected) < LIMIT


@pytest.mark.parametrize(
    ("family", "kv_cache"),
    [
        *((family, "static") for family in FAMILIES),
        *((family, "contiguous") for family in ("llama, scaled", "gemma-3", LATENT[0])),
        *((family, "paged") for family in ("llama, scaled", "gemma-2", LATENT[0])),
        *((family, "latent") for family in LATENT),
    ],
)
def test_steps_over_a_cache_give_the_librarys_logits(family: str, kv_cache: str) -> None:
    theirs = library_model(FAMILIES[family])
    ours = our_model(architecture_of(FAMILIES[family]), theirs)
    caches, held, start = new_caches(ours, kv_cache), None, 0
    for length in PARTS_OF_LENGTH:
        new = tokens_of()[:, start : start + length]
        expected = theirs(new, past_key_values=held, use_cache=True)
        held = expected.past_key_values
        assert furthest_off(ours(new, caches, start), expected.logits) < LIMIT
        start += length
    assert {cache.length for cache in caches} == {LENGTH}


@pytest.mark.parametrize("family", WINDOWED)
def test_layers_with_a_window_need_no_more_than_a_ring_of_it(family: str) -> None:
    theirs = library_model(FAMILIES[family])
    ours = our_model(architecture_of(FAMILIES[family]), theirs)
    caches, held = new_caches(ours, "rolling"), None
    for position in range(LENGTH):
        new = tokens_of()[:, position : position + 1]
        expected = theirs(new, past_key_values=held, use_cache=True)
        held = expected.past_key_values
        assert furthest_off(ours(new, caches, position), expected.logits) < LIMIT


DENSE = ["llama, scaled", "llama, tied", "mistral", "qwen2", "qwen3", "gemma", "gemma-3", "gpt-2"]


@pytest.mark.parametrize("family", DENSE)
def test_in_float64_nothing_but_the_rounding_is_off(family: str) -> None:
    """What the library rounds to float32 is replaced: norms and Gemma's factor; but routers,
    which are left out."""
    theirs = library_model(FAMILIES[family], kernel="sdpa").double()
    architecture = architecture_of(FAMILIES[family])
    for module in theirs.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _exactly(module, architecture.blocks[0].norm)
    embedding = theirs.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):
        embedding.embed_scale = torch.tensor(architecture.embedding_scale, dtype=torch.float64)
    ours = our_model(architecture, theirs, dtype="float64")
    caches = new_caches(ours, "static")
    prompt, rest = tokens_of()[:, :11], tokens_of()[:, 11:]
    expected = theirs(tokens_of(), use_cache=False).logits
    assert furthest_off(ours(tokens_of()), expected) < EXACT
    assert furthest_off(ours(prompt, caches), expected[:, :11]) < EXACT
    assert furthest_off(ours(rest, caches, 11), expected[:, 11:]) < EXACT


def _exactly(module: Any, norm: Norm) -> Callable[[Any], Any]:
    def forward(x: Any) -> Any:
        root = torch.sqrt(x.square().mean(-1, keepdim=True) + norm.eps)
        return x / root * (module.weight + norm.weight_offset)

    return forward


def changed(architecture: Architecture, **values: Any) -> Architecture:
    """The architecture with other values in the attention of every layer that has them."""

    def other(block: AttentionBlock) -> AttentionBlock:
        applies = {name: value for name, value in values.items() if getattr(block, name)}
        return replace(block, **applies)

    blocks = tuple(replace(b, attention=other(b.attention)) for b in architecture.blocks)
    return replace(architecture, blocks=blocks)


def routed(architecture: Architecture, **values: Any) -> Architecture:
    """The architecture with other experts."""

    def other(ffn: Any) -> Any:
        return replace(ffn, **values) if isinstance(ffn, Experts) else ffn

    blocks = tuple(replace(block, ffn=other(block.ffn)) for block in architecture.blocks)
    return replace(architecture, blocks=blocks)


WRONG: dict[str, tuple[str, Callable[[Architecture], Architecture]]] = {
    "a window of one token more": ("gemma-3", lambda a: changed(a, window_len=6)),
    "no window": ("mistral", lambda a: changed(a, window_len=None, variant="causal")),
    "queries that see all": ("qwen3", lambda a: changed(a, variant="full")),
    "no cap of scores": ("gemma-2", lambda a: changed(a, softcap=None)),
    "no cap of logits": ("gemma-2", lambda a: replace(a, logit_softcap=None)),
    "a scale by the head": ("gemma-2", lambda a: changed(a, scale=0.25)),
    "no embedding scale": ("gemma", lambda a: replace(a, embedding_scale=1.0)),
    "one base for all layers": (
        "gemma-3",
        lambda a: changed(a, rope=a.blocks[1].attention.rope),
    ),
    "no position": ("llama, scaled", lambda a: changed(a, rope=None)),
    "no groups of experts": ("deepseek-v3", lambda a: routed(a, num_groups=1)),
    "experts by their best": ("deepseek-v3", lambda a: routed(a, group_best=1)),
    "weights left as they are": ("deepseek-v3", lambda a: routed(a, normalised=False)),
    "no scaling of experts": ("deepseek-v3", lambda a: routed(a, scaling=1.0)),
    "weights of all experts": (
        "gpt-oss",
        lambda a: routed(a, normalised=False),
    ),
    "one expert fewer": ("mixtral", lambda a: routed(a, num_active=1)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_computed_otherwise_is_seen(what: str) -> None:
    family, change = WRONG[what]
    theirs = library_model(FAMILIES[family])
    wrong = our_model(change(architecture_of(FAMILIES[family])), theirs)
    expected = theirs(tokens_of(), use_cache=False).logits
    assert furthest_off(wrong(tokens_of()), expected) > 100 * LIMIT


@pytest.mark.parametrize("family", ["llama, scaled", "gpt-2", "deepseek-v3"])
def test_a_step_at_the_wrong_position_is_seen(family: str) -> None:
    theirs = library_model(FAMILIES[family])
    ours = our_model(architecture_of(FAMILIES[family]), theirs)
    caches = new_caches(ours, "contiguous")
    expected = theirs(tokens_of(), use_cache=False).logits[:, -1:]
    ours(tokens_of()[:, :-1], caches)
    wrong = ours(tokens_of()[:, -1:], caches, LENGTH - 2, keeps=False)
    assert furthest_off(wrong, expected) > 100 * LIMIT
    assert furthest_off(ours(tokens_of()[:, -1:], caches, LENGTH - 1), expected) < LIMIT


@pytest.mark.parametrize("family", ["llama, scaled", "qwen3", "mistral", "gpt-2", "mixtral"])
def test_another_kernel_gives_the_same(family: str) -> None:
    theirs = library_model(FAMILIES[family])
    ours = our_model(architecture_of(FAMILIES[family]), theirs, backend="flash")
    expected = theirs(tokens_of(), use_cache=False).logits
    with ours.pinned():
        assert furthest_off(ours(tokens_of()), expected) < LIMIT


def test_a_kernel_that_lacks_what_a_layer_needs_is_refused() -> None:
    config = FAMILIES["gemma-2"]
    ours = our_model(architecture_of(config), library_model(config), backend="flash")
    with pytest.raises(UnsupportedError, match="softcap"):
        ours(tokens_of())


@pytest.mark.parametrize("change", ["a weight too many", "a weight too few", "another width"])
def test_weights_of_another_model_are_not_loaded(change: str) -> None:
    config = FAMILIES["llama, scaled"]
    theirs = library_model(config)
    state = theirs.state_dict()
    if change == "a weight too many":
        state["model.layers.7.mlp.up_proj.weight"] = torch.zeros(80, 48)
    elif change == "a weight too few":
        del state["model.layers.1.mlp.up_proj.weight"]
    else:
        state["model.layers.1.mlp.up_proj.weight"] = torch.zeros(79, 48)
    theirs.state_dict = lambda: state
    with pytest.raises((KeyError, RuntimeError)):
        our_model(architecture_of(config), theirs)


def test_a_batch_is_its_sequences_one_by_one() -> None:
    config = FAMILIES["gpt-oss"]
    ours = our_model(architecture_of(config), library_model(config))
    together = ours(tokens_of())
    for number in range(BATCH):
        alone = ours(tokens_of()[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3", "mixtral"])
def test_halves_choose_the_experts_that_the_library_chooses(family: str) -> None:
    theirs = library_model(FAMILIES[family]).to(torch.bfloat16)
    ours = our_model(architecture_of(FAMILIES[family]), theirs, dtype="bfloat16")
    x = torch.randn(1, 200, 48, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    their_moe = theirs.model.layers[1].mlp
    if family == "deepseek-v3":
        expected = their_moe.route_tokens_to_experts(their_moe.gate(x))[0]
    elif family == "deepseek-v2":
        scores = torch.nn.functional.linear(x.float(), their_moe.gate.weight.float())
        expected = their_moe.route_tokens_to_experts(scores)[0]
    else:
        expected = their_moe.gate(x[0])[2]
    our_moe: Any = ours.get_submodule("blocks.1.ffn")
    found, _ = our_moe.route(x[0])
    assert torch.equal(found.sort(-1).values, expected.sort(-1).values)


@pytest.mark.parametrize("family", DENSE)
def test_halves_are_rounded_no_worse_than_the_librarys(family: str) -> None:
    theirs = library_model(FAMILIES[family])
    expected = theirs(tokens_of(), use_cache=False).logits
    theirs = theirs.to(torch.bfloat16)
    ours = our_model(architecture_of(FAMILIES[family]), theirs, dtype="bfloat16")
    off = [
        float((logits.float() - expected).square().mean().sqrt())
        for logits in (ours(tokens_of()), theirs(tokens_of(), use_cache=False).logits)
    ]
    assert off[0] < 1.5 * off[1]
