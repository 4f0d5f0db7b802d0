import math
import random

import pytest

from attnprof.doctor import Spread, self_test, verdict


def launches(wall_sd: float, cpu_sd: float | None, seed: int = 1) -> list[Spread]:
    rng = random.Random(seed)

    def launch(_index: int) -> dict[str, tuple[float, float | None]]:
        cpu = None if cpu_sd is None else math.exp(rng.gauss(0, cpu_sd))
        return {"a": (math.exp(rng.gauss(0, wall_sd)), cpu)}

    return self_test(launch, num_launches=200)


def test_the_spread_between_launches_comes_back() -> None:
    wall, cpu = launches(0.3, 0.02)
    assert wall.sd == pytest.approx(0.3, rel=0.15)
    assert cpu.sd == pytest.approx(0.02, rel=0.15)


def test_false_alarms_are_as_frequent_as_said() -> None:
    rng = random.Random(2)
    spread = Spread("a", "wall", (), 0.05)
    pairs = [(rng.gauss(0, 0.05), rng.gauss(0, 0.05)) for _ in range(20_000)]
    share = sum(new - old > math.log(1.05) for old, new in pairs) / len(pairs)
    assert spread.false_alarm_share == pytest.approx(share, abs=0.01)
    assert Spread("a", "wall", (), 0.0).false_alarm_share == 0


def test_the_detectable_ratio_grows_with_the_spread() -> None:
    quiet, noisy = (Spread("a", "wall", (), sd).detectable_ratio for sd in (0.01, 0.1))
    assert 1 < quiet < 1.02 < noisy


@pytest.mark.parametrize(
    ("wall_sd", "cpu_sd", "words"),
    [
        (0.005, 0.005, "can rest on wall time"),
        (0.4, 0.02, "compare CPU time here"),
        (0.4, 0.3, "only large changes"),
        (0.4, None, "only large changes"),
    ],
)
def test_the_verdict_names_the_clock_to_trust(
    wall_sd: float, cpu_sd: float | None, words: str
) -> None:
    assert words in verdict(launches(wall_sd, cpu_sd))
