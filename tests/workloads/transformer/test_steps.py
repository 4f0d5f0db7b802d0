"""What a step promises whatever the model: segments, caches, parts, gradients, random weights."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attnprof.models.build_architecture import build_architecture  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.transformer import PARTS, Segment, build_transformer  # noqa: E402
from tests.workloads.transformer.library import (  # noqa: E402
    BATCH,
    CPU,
    FAMILIES,
    LENGTH,
    architecture_of,
    library_model,
    new_caches,
    our_model,
    parts_met,
    tokens_of,
)

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
untrained = pytest.mark.usefixtures("inference")

SOME = ["llama, scaled", "gemma-3", "gpt-oss", "deepseek-v3"]


@pytest.fixture
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def model_of(family: str) -> Any:
    return our_model(architecture_of(FAMILIES[family]), library_model(FAMILIES[family]))


@pytest.mark.parametrize("family", SOME)
@untrained
def test_a_decode_and_a_prompt_in_one_step_are_what_they_are_apart(family: str) -> None:
    ours = model_of(family)
    held, prompt = tokens_of(), tokens_of(7, seed=4)[:1]
    caches = new_caches(ours, "static")
    ours(held[:, :-1], caches)
    decoded = ours(held[:, -1:], caches, LENGTH - 1, keeps=False)
    alone = ours(prompt)
    segments = [
        Segment(batch_size=BATCH, num_tokens=1, first_pos=LENGTH - 1, caches=caches),
        Segment(batch_size=1, num_tokens=7),
    ]
    mixed = ours.run([held[:, -1:], prompt], ours.step(segments, keeps=False))
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(mixed[:BATCH], decoded[:, 0], **close)
    torch.testing.assert_close(mixed[BATCH:], alone[0], **close)
    last = ours.run([held[:, -1:], prompt], ours.step(segments, keeps=False), last_only=True)
    torch.testing.assert_close(last, mixed[[0, 1, BATCH + 6]], **close)


@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged", "latent"])
@untrained
def test_a_step_that_keeps_nothing_can_be_made_again(kv_cache: str) -> None:
    ours = model_of("deepseek-v3" if kv_cache == "latent" else "gemma-3")
    caches = new_caches(ours, kv_cache)
    ours(tokens_of()[:, :-3], caches)
    steps = [ours(tokens_of()[:, -3:], caches, LENGTH - 3, keeps=False) for _ in range(2)]
    assert torch.equal(*steps)
    assert {cache.length for cache in caches} == {LENGTH - 3}
    torch.testing.assert_close(steps[0], ours(tokens_of())[:, -3:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", SOME)
def test_gradients_are_the_librarys_with_and_without_checkpointing(family: str) -> None:
    theirs = library_model(FAMILIES[family])
    ours = our_model(architecture_of(FAMILIES[family]), theirs)
    weights = torch.randn(BATCH, LENGTH, 97, generator=torch.Generator().manual_seed(5))
    (theirs(tokens_of(), use_cache=False).logits * weights).sum().backward()
    expected = theirs.get_input_embeddings().weight.grad
    found = []
    for ours.checkpointing in (False, True):
        ours.zero_grad()
        (ours(tokens_of()) * weights).sum().backward()
        gradient = ours.embedding.weight.grad
        assert gradient is not None
        found.append(gradient.clone())
        missing = [
            name for name, p in ours.named_parameters() if p.requires_grad and p.grad is None
        ]
        assert not missing
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert float((found[0] - expected).abs().max() / expected.std()) < 1e-4


@pytest.mark.parametrize("family", SOME)
@untrained
def test_every_part_is_met_and_none_inside_another(family: str) -> None:
    ours = model_of(family)
    expected = ours(tokens_of())
    met = parts_met(ours)
    kind = "latent" if family.startswith("deepseek") else "static"
    assert torch.equal(ours(tokens_of(), new_caches(ours, kind)), expected)
    assert set(met) == set(PARTS)
    caches = new_caches(ours, kind)
    ours(tokens_of()[:, :-1], caches)
    met.clear()
    ours(tokens_of()[:, -1:], caches, LENGTH - 1, keeps=False)
    assert set(met) == set(PARTS)
    assert met.count("attention") == met.count("ffn") == len(ours.blocks)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
@untrained
def test_random_weights_keep_activations_finite_at_any_depth(family: str, dtype: str) -> None:
    layers = "n_layer" if family == "gpt-2" else "num_hidden_layers"
    config = {**FAMILIES[family], layers: 24}
    config.pop("layer_types", None)
    workload = Workload(backend="eager", dtype=dtype, q_len=LENGTH, kv_len=LENGTH)
    architecture = build_architecture(config, "config.json")
    ours = build_transformer(architecture, workload, CPU, seed=1)
    logits = ours(tokens_of()).float()
    assert 0.01 < float(logits.std()) < 100
    assert torch.equal(
        logits, build_transformer(architecture, workload, CPU, 1)(tokens_of()).float()
    )
    assert not torch.equal(
        logits, build_transformer(architecture, workload, CPU, 2)(tokens_of()).float()
    )


@untrained
def test_the_first_layers_alone_are_those_of_the_whole_model() -> None:
    config = FAMILIES["gemma-3"]
    theirs = library_model(config)
    whole = our_model(architecture_of(config), theirs)
    states = whole.embedded([tokens_of()], whole.step([_segment()]))
    for block in whole.blocks[:2]:
        states = block(states, whole.step([_segment()]))
    expected = whole.logits(states, whole.step([_segment()]))
    workload = Workload(backend="eager", q_len=LENGTH, kv_len=LENGTH)
    part = build_transformer(architecture_of(config).first(2), workload, CPU)
    part.load_state_dict(
        {name: weight for name, weight in whole.state_dict().items() if "blocks.2." not in name}
    )
    torch.testing.assert_close(part(tokens_of()).flatten(0, 1), expected)


def _segment() -> Segment:
    return Segment(batch_size=BATCH, num_tokens=LENGTH)


@untrained
def test_masks_of_a_prompt_that_grows_are_not_all_kept() -> None:
    ours = model_of("mistral")
    held = []
    for length in range(6, LENGTH):
        ours(tokens_of()[:, :length])
        held.append(ours.kernels.mask_bytes)
    assert max(held) <= 4 * LENGTH**2
    assert len(ours.kernels._prepared) <= 4


def test_the_first_call_is_pinned_already() -> None:
    config = FAMILIES["llama, scaled"]
    ours = our_model(architecture_of(config), library_model(config), backend="math")
    with torch.inference_mode(), ours.pinned():
        assert not torch.backends.cuda.flash_sdp_enabled()
        ours(tokens_of())
