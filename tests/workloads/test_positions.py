"""Biases and embeddings are those of the Transformers library, and keep what they are for."""

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.errors import UsageError  # noqa: E402
from attnprof.positions import POSITIONS  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.positions import position_for  # noqa: E402
from attnprof.workloads.positions.biases import (  # noqa: E402
    Alibi,
    Shaw,
    T5Bias,
    alibi_slopes,
    t5_bucket,
)
from attnprof.workloads.positions.embeddings import sinusoids  # noqa: E402

CPU = torch.device("cpu")
BIASES = ("alibi", "t5")


def transformers_module(name: str) -> Any:
    pytest.importorskip("transformers")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def workload_of(position: str, **given: Any) -> Workload:
    scope = "layer" if POSITIONS[position].acts == "embeddings" else "op"
    sizes = {"q_len": 24, "kv_len": 24, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    return Workload(backend="eager", position=position, scope=scope, **(sizes | given))


def position_of(position: str, seed: int = 0, **given: Any) -> Any:
    return position_for(workload_of(position, **given), CPU, torch.float32, seed)


# ALiBi


@given(num_heads=st.integers(1, 128))
@settings(max_examples=40, deadline=None)
def test_slopes_are_those_of_bloom(num_heads: int) -> None:
    theirs = transformers_module("bloom").build_alibi_tensor(
        torch.ones(1, 2), num_heads, torch.float32
    )
    assert torch.allclose(torch.tensor(alibi_slopes(num_heads)), theirs[:, 0, 1], rtol=1e-5)


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        pytest.param(8, [1, 2, 3, 4, 5, 6, 7, 8], id="Press et al. 2022, section 3: 8 heads"),
        pytest.param(
            16, [0.5 * head for head in range(1, 17)], id="Press et al. 2022, section 3: 16 heads"
        ),
        pytest.param(
            12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5], id="the authors' get_slopes(12)"
        ),
    ],
)
def test_slopes_are_the_published_ones(num_heads: int, exponents: list[float]) -> None:
    assert alibi_slopes(num_heads) == pytest.approx([2.0**-exponent for exponent in exponents])


@given(num_heads=st.integers(1, 200))
@settings(max_examples=50)
def test_every_head_has_a_slope_of_its_own(num_heads: int) -> None:
    slopes = alibi_slopes(num_heads)
    assert len(set(slopes)) == len(slopes) == num_heads
    assert all(0 < slope < 1 for slope in slopes)


def test_a_causal_softmax_with_our_bias_is_that_with_blooms() -> None:
    # Bloom adds m·j, which differs from −m·(i − j) by a number that is the same along a row.
    theirs = transformers_module("bloom").build_alibi_tensor(torch.ones(1, 9), 6, torch.float32)
    ours = Alibi(6, CPU, torch.float32).constant_bias(0, 9, 0, 9)
    scores = torch.randn(1, 6, 9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    expected = (scores + theirs[None]).softmax(dim=-1)
    assert torch.allclose((scores + ours).softmax(dim=-1), expected, atol=1e-5)


def test_alibi_is_a_slope_times_the_distance() -> None:
    bias = Alibi(2, CPU, torch.float64).constant_bias(3, 2, 1, 4)
    distances = torch.tensor([[2, 1, 0, 1], [3, 2, 1, 0]])
    expected = torch.stack([-distances / 16, -distances / 256])
    assert torch.equal(bias, expected[None].double())


# T5


@given(
    start=st.integers(-1000, 1000), num_buckets=st.integers(2, 32).map(lambda half: 4 * half),
    reach=st.integers(2, 40), bidirectional=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_buckets_are_those_of_t5(
    start: int, num_buckets: int, reach: int, bidirectional: bool
) -> None:
    distances = torch.arange(start, start + 50)
    max_distance = num_buckets * reach
    theirs = transformers_module("t5").T5Attention._relative_position_bucket(
        distances, bidirectional, num_buckets, max_distance
    )
    assert torch.equal(t5_bucket(distances, bidirectional, num_buckets, max_distance), theirs)


def test_near_tokens_have_a_bucket_each_and_far_ones_share_the_last() -> None:
    back = t5_bucket(-torch.arange(400), bidirectional=False)
    assert back[:16].tolist() == list(range(16))
    assert (back.diff() >= 0).all()
    assert set(back.tolist()) == set(range(32))
    assert (back[128:] == 31).all()
    assert back[100] < 31


def test_later_tokens_have_the_second_half_of_the_buckets_where_they_are_seen() -> None:
    distances = torch.arange(1, 400)
    earlier, later = (t5_bucket(sign * distances, bidirectional=True) for sign in (-1, 1))
    assert torch.equal(later, earlier + 16)
    assert earlier[:7].tolist() == list(range(1, 8))
    assert earlier.max() == 15
    assert t5_bucket(torch.tensor([0]), bidirectional=True).item() == 0


def test_later_tokens_share_the_bucket_of_the_query_where_they_are_hidden() -> None:
    assert not t5_bucket(torch.arange(400), bidirectional=False).any()


@pytest.mark.parametrize("is_decoder", [True, False])
def test_a_bias_is_the_one_that_t5_computes(is_decoder: bool) -> None:
    module = transformers_module("t5")
    config = importlib.import_module("transformers").T5Config(
        d_model=16, num_heads=4, d_kv=4, is_decoder=is_decoder
    )
    layer = module.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    table = layer.relative_attention_bias.weight.detach()
    with torch.no_grad():
        theirs = layer.compute_bias(7, 207, past_seen_tokens=200)
    ours = T5Bias(table, bidirectional=not is_decoder)
    assert torch.equal(ours.constant_bias(200, 7, 0, 207), theirs)
    assert not torch.equal(ours.constant_bias(199, 7, 0, 207), theirs)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ({"variant": "causal"}, False),
        ({"variant": "full"}, True),
        ({"variant": "prefix-lm", "prefix_len": 8}, True),
        ({"variant": "sliding", "window_len": 8}, False),
    ],
)
def test_t5_tells_later_tokens_apart_where_a_query_sees_them(
    variant: dict[str, Any], expected: bool
) -> None:
    bias = position_of("t5", **variant).constant_bias(0, 24, 0, 24)
    assert bool((bias[0, :, 0, 1] != bias[0, :, 0, 0]).any()) == expected


# What is so of every bias that the queries do not change


@pytest.mark.parametrize("name", BIASES)
@given(
    q_first=st.integers(0, 30), q_len=st.integers(1, 6), kv_first=st.integers(0, 30),
    kv_len=st.integers(1, 6), shift=st.integers(0, 300),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_bias_depends_on_the_distance_alone_and_is_a_cut_of_the_whole(
    name: str, q_first: int, q_len: int, kv_first: int, kv_len: int, shift: int
) -> None:
    position = position_of(name, variant="full")
    cut = position.constant_bias(q_first, q_len, kv_first, kv_len)
    assert cut.shape == (1, 4, q_len, kv_len)
    assert cut.is_contiguous()
    shifted = position.constant_bias(q_first + shift, q_len, kv_first + shift, kv_len)
    assert torch.equal(cut, shifted)
    whole = position.constant_bias(0, 36, 0, 36)
    rows, columns = slice(q_first, q_first + q_len), slice(kv_first, kv_first + kv_len)
    assert torch.equal(cut, whole[:, :, rows, columns])


# Shaw


@given(
    q_first=st.integers(0, 60), q_len=st.integers(1, 5), kv_first=st.integers(0, 60),
    kv_len=st.integers(1, 40), clip=st.integers(1, 16), seed=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_shaw_is_its_equation_pair_by_pair(
    q_first: int, q_len: int, kv_first: int, kv_len: int, clip: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(2 * clip + 1, 8, dtype=torch.float64, generator=generator)
    q = torch.randn(2, 3, q_len, 8, dtype=torch.float64, generator=generator)
    bias = Shaw(table).query_bias(q, q_first, kv_first, kv_len)
    assert bias.shape == (2, 3, q_len, kv_len)
    for i in range(q_len):
        for j in range(kv_len):
            distance = min(clip, max(-clip, (kv_first + j) - (q_first + i)))
            expected = q[:, :, i] @ table[clip + distance] / math.sqrt(8)
            assert torch.allclose(bias[:, :, i, j], expected)


def test_distances_beyond_the_clip_of_shaw_are_one() -> None:
    q = torch.randn(1, 4, 1, 8)
    bias = position_of("shaw").query_bias(q, 40, 0, 81)[0, :, 0]
    assert (bias[:, :25] == bias[:, :1]).all()
    assert (bias[:, 56:] == bias[:, -1:]).all()
    assert (bias[:, 24:57].diff(dim=-1) != 0).all()


# Absolute positions


def test_sinusoids_are_those_of_the_paper() -> None:
    table = sinusoids(50, 12)
    for pos in (0, 1, 17, 49):
        for i in range(6):
            angle = pos / 10_000 ** (2 * i / 12)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoids_are_those_of_marian_which_has_all_sines_first() -> None:
    theirs = transformers_module("marian").MarianSinusoidalPositionalEmbedding(300, 64)
    ours = sinusoids(300, 64)
    sines_first = torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=-1)
    assert torch.allclose(sines_first, theirs.create_weight(), atol=1e-6)


@given(shift=st.integers(1, 300), width=st.integers(1, 16).map(lambda half: 2 * half))
@settings(max_examples=25, deadline=None)
def test_sinusoids_of_a_shift_are_one_linear_map_of_those_before(shift: int, width: int) -> None:
    table = sinusoids(60 + shift, width).double()
    mapping = torch.zeros(width, width, dtype=torch.float64)
    for sin in range(0, width, 2):
        cos, angle = sin + 1, shift * 10_000 ** (-sin / width)
        mapping[sin, sin] = mapping[cos, cos] = math.cos(angle)
        mapping[cos, sin], mapping[sin, cos] = math.sin(angle), -math.sin(angle)
    assert torch.allclose(table[:60] @ mapping, table[shift:], atol=1e-5)


def test_learned_positions_have_no_such_map() -> None:
    # More rows than a map of this width can fit, so that random vectors do not.
    table = position_of("learned", num_q_heads=1, num_kv_heads=1, kv_len=60).embed(
        torch.zeros(1, 60, 8), 0
    )[0]
    fitted = torch.linalg.lstsq(table[:-1], table[1:]).solution
    assert (table[:-1] @ fitted - table[1:]).abs().max() > 0.1


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_tokens_are_embedded_where_they_are(name: str) -> None:
    position, x = position_of(name), torch.randn(2, 24, 32)
    whole = position.embed(x, 0)
    assert torch.equal(whole[:, 5:9], position.embed(x[:, 5:9], 5))
    assert not torch.allclose(whole[:, 5:9], position.embed(x[:, 5:9], 6), atol=1e-3)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_a_token_beyond_the_table_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a table of 24 positions, and 25 tokens"):
        position_of(name).embed(torch.zeros(1, 1, 32), 24)


# Every scheme


@pytest.mark.parametrize("name", POSITIONS)
def test_a_scheme_acts_where_the_table_says_and_nowhere_else(name: str) -> None:
    position, acts = position_of(name), POSITIONS[name].acts
    x, hidden = torch.randn(1, 4, 5, 8), torch.randn(1, 5, 32)
    biases = (position.constant_bias(2, 5, 0, 7), position.query_bias(x, 2, 0, 7))
    assert torch.equal(position.rotate(x, 2), x) == (acts != "rotation")
    assert torch.equal(position.embed(hidden, 2), hidden) == (acts != "embeddings")
    assert [bias is not None for bias in biases].count(True) == (acts == "scores")
    assert (position.table_bytes > 0) == (acts != "nowhere")


@pytest.mark.parametrize("name", ["learned", "t5", "shaw"])
def test_trained_tables_come_from_the_seed(name: str) -> None:
    def tables(seed: int) -> tuple[Any, ...]:
        position = position_of(name, seed)
        given = (
            position.constant_bias(0, 4, 0, 4),
            position.query_bias(torch.ones(1, 4, 4, 8), 0, 0, 4),
        )
        return (
            *(bias for bias in given if bias is not None),
            position.embed(torch.zeros(1, 4, 32), 0),
        )

    first, again, other = tables(1), tables(1), tables(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_what_a_scheme_gives_is_of_the_dtype_of_the_arithmetic(name: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    position = position_for(replace(workload_of(name), dtype=dtype), CPU, kind, 0)
    x = torch.randn(1, 4, 5, 8).to(kind)
    assert position.rotate(x, 0).dtype == kind
    assert position.embed(torch.zeros(1, 5, 32, dtype=kind), 0).dtype == kind
    for bias in (position.constant_bias(0, 5, 0, 5), position.query_bias(x, 0, 0, 5)):
        assert bias is None or bias.dtype == kind


def test_a_table_is_other_noise_than_queries_of_the_same_seed() -> None:
    from attnprof.workloads.operation import Noise

    table = position_of("learned", seed=3).embed(torch.zeros(1, 24, 32), 0)[0]
    assert not torch.equal(table, Noise(3, CPU)(24, 32, dtype=torch.float32))
