"""What a calibration foretells of kernels, of layers of them and of steps; what it leaves open."""

from dataclasses import replace

import pytest

from attnprof.law_shapes import columns_of_all
from attnprof.laws.calibration import Calibration
from attnprof.laws.steps import PACKED_FROM
from attnprof.predicted import attention_times, predict_workloads
from attnprof.workload import Workload
from tests.calibrations import DECODE, LAYER, PREFILL, cpu_calibration


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    found = cpu_calibration()
    laws = {key: law for key, law in found.laws.items() if key != "library"}
    return replace(found, laws=laws)


def mid_s(calibration: Calibration, workload: Workload) -> float:
    (made,) = predict_workloads(calibration, [workload])
    assert made.problem is None
    assert made.mid_s is not None
    assert made.low_s is not None
    assert made.high_s is not None
    assert made.low_s < made.mid_s < made.high_s
    assert sum(made.shares.values()) == pytest.approx(1)
    return made.mid_s


def test_a_kernel_takes_what_its_law_says(calibration: Calibration) -> None:
    law = calibration.laws["prefill"].fitted
    columns = columns_of_all([PREFILL], attention_times(calibration))
    assert mid_s(calibration, PREFILL) == pytest.approx(float(law.latency_s(columns)[0]))


def test_layers_of_a_kernel_take_as_many_times_as_long(calibration: Calibration) -> None:
    """Where none of them is found in the cache; where one alone is, the others lose it."""
    huge = replace(PREFILL, batch_size=512)
    assert mid_s(calibration, replace(huge, num_layers=3)) == pytest.approx(
        3 * mid_s(calibration, huge), rel=1e-3
    )
    held = replace(DECODE, batch_size=2)
    assert mid_s(calibration, replace(held, num_layers=8)) > 8 * mid_s(calibration, held)


def test_a_layer_takes_longer_than_the_attention_in_it(calibration: Calibration) -> None:
    layer, attention = LAYER, replace(PREFILL, num_layers=2)
    assert mid_s(calibration, layer) > mid_s(calibration, attention)


def test_rows_of_a_product_are_read_for_one_by_one_until_they_are_packed(
    calibration: Calibration,
) -> None:
    """With as many rows as are packed a step may be shorter than with one fewer."""
    decode = replace(DECODE, scope="layer", kv_len=16, num_q_heads=32, num_kv_heads=32)
    times = [mid_s(calibration, replace(decode, batch_size=b)) for b in (1, 2, 3, PACKED_FROM)]
    assert times[1] > 1.5 * times[0]
    assert times[2] > 1.3 * times[1]
    assert times[3] < times[2]


def test_a_model_is_foretold_by_the_law_of_layers(calibration: Calibration) -> None:
    model = replace(LAYER, scope="model", model="gpt2", num_q_heads=12, num_kv_heads=12)
    times = [mid_s(calibration, replace(model, num_layers=count)) for count in (2, 4, 8)]
    assert times[1] - times[0] == pytest.approx((times[2] - times[1]) / 2, rel=0.05)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (replace(PREFILL, phase="train"), "no law of train"),
        (replace(PREFILL, backend="math"), "no law of prefill by math"),
        (replace(PREFILL, dtype="bfloat16"), "no law of prefill by flash bfloat16"),
        (replace(LAYER, implementation="transformers"), "flash float32 transformers"),
        (replace(LAYER, backend="eager"), "no law of step by eager"),
        (replace(LAYER, scope="model", model="mamba2-2.7b"), "no law of layers with a state"),
        (replace(LAYER, scope="model", model="falcon-h1-1.5b"), "no law of layers with a state"),
        (replace(LAYER, scope="model", model="bart-base"), "with attention to a source"),
        (replace(LAYER, scope="model", model="deepseek-v2-lite"), "with a latent"),
    ],
)
def test_what_no_law_is_of_stays_unknown(
    calibration: Calibration, workload: Workload, words: str
) -> None:
    (made,) = predict_workloads(calibration, [workload])
    assert made.mid_s is None
    assert made.problem is not None
    assert words in made.problem


def test_a_law_of_another_variant_is_taken_with_a_wider_interval(calibration: Calibration) -> None:
    plain, windowed = predict_workloads(
        calibration, [PREFILL, replace(PREFILL, variant="sliding", window_len=128)]
    )
    assert plain.high_s is not None and plain.low_s is not None
    assert windowed.high_s is not None and windowed.low_s is not None
    assert windowed.high_s / windowed.low_s > plain.high_s / plain.low_s
