"""RoPE turns as the Transformers library does, and keeps what it is for."""

import importlib
import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from attnprof.rope import Rope, rope_named, rope_of_parameters, yarn_mscale  # noqa: E402
from attnprof.workload import Workload  # noqa: E402
from attnprof.workloads.positions import Rotary, position_for  # noqa: E402
from attnprof.workloads.positions.rotary import (  # noqa: E402
    attention_factor,
    frequencies,
    plain_frequencies,
    yarn_frequencies,
)

CPU = torch.device("cpu")
ROPES = ("rope", "rope-partial", "rope-linear", "rope-dynamic", "rope-yarn", "rope-llama3")
HEADS = {"head_dim": 64, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


def rotary(name: str, head_dim: int = 16, max_len: int = 64, dtype: Any = None) -> Rotary:
    return Rotary(rope_named(name, head_dim), max_len, CPU, dtype or torch.float64)


def llama(
    rope: dict[str, Any] | None, theta: float, max_len: int, dtype: str
) -> tuple[Rotary, Any]:
    """RoPE by a configuration's parameters, and what the Transformers library makes of them."""
    transformers = pytest.importorskip("transformers")
    modeling = importlib.import_module("transformers.models.llama.modeling_llama")
    given = {**HEADS, "max_position_embeddings": max_len}
    scaled = {"rope_theta": theta, **(rope or {"rope_type": "default"})}
    config = transformers.LlamaConfig(**given, rope_parameters=scaled)
    ours = Rotary(rope_of_parameters(scaled, 64, max_len), 16, CPU, getattr(torch, dtype))
    return ours, modeling.LlamaRotaryEmbedding(config)


@pytest.mark.parametrize(
    ("rope", "theta", "max_len", "tokens"),
    [
        pytest.param(None, 10_000.0, 4096, 100, id="default"),
        pytest.param({"rope_type": "linear", "factor": 4.0}, 10_000.0, 4096, 100, id="linear"),
        pytest.param({"rope_type": "dynamic", "factor": 4.0}, 10_000.0, 128, 100, id="dynamic"),
        pytest.param({"rope_type": "dynamic", "factor": 4.0}, 10_000.0, 64, 100, id="dynamic long"),
        pytest.param(YARN, 1e6, 8192, 3000, id="yarn, as Qwen"),
        pytest.param({**YARN, "truncate": False}, 150_000.0, 8192, 100, id="yarn, as gpt-oss"),
        pytest.param(
            {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 24.0},
            10_000.0, 81920, 100, id="yarn, as DeepSeek",
        ),
        pytest.param({**YARN, "attention_factor": 0.8}, 1e4, 8192, 100, id="yarn, its own factor"),
        pytest.param(LLAMA3, 500_000.0, 131_072, 9000, id="llama3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cosines_and_sines_are_the_bits_of_the_transformers_library(
    rope: dict[str, Any] | None, theta: float, max_len: int, tokens: int, dtype: str
) -> None:
    ours, theirs = llama(rope, theta, max_len, dtype)
    like = torch.zeros(1, dtype=getattr(torch, dtype))
    cos, sin = theirs(like, torch.arange(tokens)[None])
    got_cos, got_sin = ours.tables(0, tokens)
    assert torch.equal(got_cos, cos[0])
    assert torch.equal(torch.cat((-got_sin[:, :32], got_sin[:, 32:]), dim=-1), sin[0])


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 2**-6)]
)
def test_queries_and_keys_are_turned_as_llama_turns_them(dtype: str, rtol: float) -> None:
    ours, theirs = llama(LLAMA3, 500_000.0, 131_072, dtype)
    modeling = importlib.import_module("transformers.models.llama.modeling_llama")
    kind = getattr(torch, dtype)
    q, k = torch.randn(2, 4, 9, 64).to(kind), torch.randn(2, 2, 9, 64).to(kind)
    cos, sin = theirs(q, torch.arange(30, 39)[None])
    their_q, their_k = modeling.apply_rotary_pos_emb(q, k, cos, sin)
    assert torch.allclose(ours.rotate(q, 30), their_q, rtol=rtol, atol=rtol)
    assert torch.allclose(ours.rotate(k, 30), their_k, rtol=rtol, atol=rtol)
    assert not torch.allclose(ours.rotate(q, 31), their_q, rtol=rtol, atol=rtol)


def test_a_quarter_of_a_head_is_turned_as_gpt_neox_turns_it() -> None:
    transformers = pytest.importorskip("transformers")
    modeling = importlib.import_module("transformers.models.gpt_neox.modeling_gpt_neox")
    config = transformers.GPTNeoXConfig(hidden_size=256, num_attention_heads=4, rotary_pct=0.25)
    theirs = modeling.GPTNeoXRotaryEmbedding(config)
    q = torch.randn(1, 4, 7, 64)
    their_q, _ = modeling.apply_rotary_pos_emb(q, q, *theirs(q, torch.arange(7)[None]))
    ours = rotary("rope-partial", 64, dtype=torch.float32).rotate(q, 0)
    assert torch.allclose(ours, their_q, atol=1e-6)


@pytest.mark.parametrize("name", ROPES)
@given(
    q_pos=st.integers(0, 40), k_pos=st.integers(0, 40), shift=st.integers(1, 200),
    seed=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_a_product_depends_on_the_distance_alone(
    name: str, q_pos: int, k_pos: int, shift: int, seed: int
) -> None:
    turns = rotary(name)
    q, k = torch.randn(
        2, 1, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )

    def product(at: int) -> float:
        return float((turns.rotate(q, q_pos + at) * turns.rotate(k, k_pos + at)).sum())

    assert product(shift) == pytest.approx(product(0), abs=2e-4)


@given(distance=st.integers(1, 60), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_a_product_is_another_at_another_distance(distance: int, seed: int) -> None:
    turns = rotary("rope")
    q = torch.randn(1, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    product = (turns.rotate(q, distance) * turns.rotate(q, 0)).sum()
    assert product < (q * q).sum() - 1e-4


@pytest.mark.parametrize("name", ROPES)
@given(first=st.integers(0, 5000), tokens=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_turning_keeps_norms_but_for_the_temperature_of_yarn(
    name: str, first: int, tokens: int, seed: int
) -> None:
    turns = rotary(name)
    x = torch.randn(
        2, 3, tokens, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    factor = yarn_mscale(4.0) if name == "rope-yarn" else 1.0
    assert torch.allclose(turns.rotate(x, first).norm(dim=-1), factor * x.norm(dim=-1), atol=1e-5)


@pytest.mark.parametrize("name", ROPES)
@given(first=st.integers(0, 90), cut=st.integers(1, 19))
@settings(max_examples=20, deadline=None)
def test_tokens_are_turned_alike_one_by_one_and_together(name: str, first: int, cut: int) -> None:
    turns = rotary(name, max_len=32)
    x = torch.randn(1, 2, 20, 16, dtype=torch.float64)
    pieces = (turns.rotate(x[:, :, :cut], first), turns.rotate(x[:, :, cut:], first + cut))
    assert torch.equal(torch.cat(pieces, dim=2), turns.rotate(x, first))


def test_what_is_beyond_the_turned_width_stays() -> None:
    x = torch.randn(1, 2, 5, 16)
    turned = Rotary(Rope(rotated_dim=4), 9, CPU, x.dtype).rotate(x, 3)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.isclose(turned[..., :4], x[..., :4]).all()


@given(length=st.integers(1, 4096))
@settings(max_examples=20, deadline=None)
def test_dynamic_ntk_is_plain_rope_up_to_the_original_length(length: int) -> None:
    rope = rope_named("rope-dynamic", 64)
    assert torch.equal(frequencies(rope, length), plain_frequencies(64))


@given(length=st.integers(4097, 10**6), longer=st.integers(1, 10**6))
@settings(max_examples=20, deadline=None)
def test_dynamic_ntk_slows_down_as_the_length_grows(length: int, longer: int) -> None:
    assume(longer / length > 1e-4)
    rope = rope_named("rope-dynamic", 64)
    slow, slower = frequencies(rope, length), frequencies(rope, length + longer)
    assert slow[0] == slower[0] == 1.0
    assert (slower[1:] < slow[1:]).all()
    assert (slow[1:] < plain_frequencies(64)[1:]).all()


def test_dynamic_ntk_reaches_the_slowest_wavelength_of_linear_scaling() -> None:
    # The base is chosen so that the slowest pair turns as if positions were divided.
    rope = rope_named("rope-dynamic", 64)
    stretch = 4.0 * 16_384 / 4096 - 3
    slowest, plain = float(frequencies(rope, 16_384)[-1]), float(plain_frequencies(64)[-1])
    assert slowest == pytest.approx(plain / stretch, rel=1e-5)


def test_dynamic_ntk_makes_its_rows_for_each_length_and_comes_back() -> None:
    rope = Rope(rotated_dim=8, scaling="dynamic", factor=4.0, original_len=16)
    turns, x = Rotary(rope, 64, CPU, torch.float64), torch.randn(1, 1, 4, 8, dtype=torch.float64)
    short = turns.rotate(x, 12)
    plain = Rotary(Rope(rotated_dim=8), 64, CPU, torch.float64)
    assert torch.equal(short, plain.rotate(x, 12))
    assert not torch.allclose(turns.rotate(x, 60), plain.rotate(x, 60))
    assert not torch.allclose(turns.rotate(x, 13), plain.rotate(x, 13))
    assert torch.equal(turns.rotate(x, 12), short)


def test_yarn_leaves_fast_pairs_and_slows_slow_ones_by_the_whole_factor() -> None:
    scaled, plain = yarn_frequencies(64, 10_000.0, 4.0, 4096), plain_frequencies(64)
    turns = 4096 * plain / (2 * math.pi)
    ratio = plain / scaled
    assert torch.allclose(ratio[turns > 40], torch.tensor(1.0), rtol=1e-6)
    assert torch.allclose(ratio[turns < 0.7], torch.tensor(4.0), rtol=1e-6)
    assert (ratio.diff() > -1e-5).all()


def test_llama3_leaves_short_wavelengths_and_stretches_long_ones() -> None:
    scaled = frequencies(rope_named("rope-llama3", 128), 1)
    plain = plain_frequencies(128, 500_000.0)
    wavelengths, ratio = 2 * math.pi / plain, plain / scaled
    assert (ratio[wavelengths < 2048] == 1).all()
    assert (ratio[wavelengths > 8192] == 8).all()
    between = ratio[(wavelengths > 2048) & (wavelengths < 8192)]
    assert ((between > 1) & (between < 8)).all()
    assert between.numel() > 0


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        pytest.param(Rope(rotated_dim=8), 1.0, id="plain"),
        pytest.param(
            Rope(rotated_dim=8, scaling="yarn", factor=4.0), 0.1 * math.log(4) + 1,
            id="YaRN equation 22",
        ),
        pytest.param(
            Rope(rotated_dim=8, scaling="yarn", factor=40.0, mscale=1.0, mscale_all_dim=1.0), 1.0,
            id="DeepSeek-V3: the scores are scaled instead",
        ),
        pytest.param(Rope(rotated_dim=8, scaling="yarn", factor=0.5), 1.0, id="nothing stretched"),
    ],
)  # fmt: skip
def test_the_temperature_is_that_of_its_formula(rope: Rope, expected: float) -> None:
    assert attention_factor(rope) == pytest.approx(expected)


def test_a_table_grows_when_a_sequence_does() -> None:
    turns = rotary("rope", max_len=4)
    held, x = turns.table_bytes, torch.randn(1, 1, 3, 16, dtype=torch.float64)
    assert held == 2 * 4 * 16 * 8
    assert torch.equal(turns.rotate(x, 30), rotary("rope").rotate(x, 30))
    assert turns.table_bytes > held


def test_tables_grown_in_inference_serve_a_training_step() -> None:
    turns, x = rotary("rope", max_len=4), torch.randn(1, 1, 9, 16, dtype=torch.float64)
    with torch.inference_mode():
        turns.rotate(x, 0)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(turns.rotate(x, 0).sum(), x)
    assert gradient.shape == x.shape


def test_mla_turns_its_own_width() -> None:
    workload = Workload(
        backend="eager", q_len=4, kv_len=4, head_dim=24, v_head_dim=16, mla="expanded",
        kv_lora_rank=32, rope_head_dim=8, position="rope",
    )  # fmt: skip
    turns = position_for(workload, CPU, torch.float32, seed=0)
    assert isinstance(turns, Rotary)
    assert turns.rope.rotated_dim == 8
