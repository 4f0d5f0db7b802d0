"""GPU profiles: every shipped one loads, names its source, and is found by what drivers say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.gpus import all_gpus, gpu_named, read_gpu
from attnprof.profiles import find_profile, list_profiles

GIB = 2**30


def _t4_text() -> str:
    path = find_profile("gpus", "t4")
    assert path is not None
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list_profiles("gpus"))
def test_a_shipped_gpu_loads_and_names_its_source(name: str) -> None:
    gpu = gpu_named(name)
    assert gpu.name == name
    assert len(gpu.source) > 10
    assert gpu.matches
    assert gpu.visible_memory_bytes <= gpu.memory_bytes
    assert gpu.dense_flops_per_s
    for half in ("float16", "bfloat16"):
        peak, eighth = gpu.peak_flops_per_s(half), gpu.peak_flops_per_s("float8_e4m3fn")
        assert peak is None or eighth is None or eighth >= peak


def test_at_least_45_parts_ship_from_six_makers() -> None:
    gpus = all_gpus()
    assert len(gpus) >= 45
    assert {gpu.vendor for gpu in gpus} == {"NVIDIA", "AMD", "Intel", "Apple", "Google"}
    assert len({name for gpu in gpus for name in (gpu.name, *gpu.aliases)}) == sum(
        1 + len(gpu.aliases) for gpu in gpus
    )


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        pytest.param("h100", 79.65, id="nvidia-smi: 81,559 MiB"),
        pytest.param("h200", 140.40, id="nvidia-smi: 143,771 MiB"),
        pytest.param("rtx-4090", 23.99, id="nvidia-smi: 24,564 MiB"),
        pytest.param("b200", 179.06, id="nvidia-smi: 183,359 MiB"),
    ],
)
def test_memory_is_the_drivers_and_not_the_labels(name: str, gib: float) -> None:
    assert gpu_named(name).memory_bytes / GIB == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("nvidia h100 80gb hbm3", "h100-sxm"),
        ("H100", "h100-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX 4090 24GB", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("Apple M2 Ultra", "m2-ultra"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_gpu_is_found_by_what_drivers_and_people_call_it(written: str, name: str) -> None:
    assert gpu_named(written).name == name


def test_a_typo_names_the_nearest_gpu() -> None:
    with pytest.raises(UsageError, match=r"unknown GPU 'h10'.*did you mean 'h100'"):
        gpu_named("h10")


def test_the_users_own_folder_is_searched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = _t4_text()
    (tmp_path / "gpus").mkdir()
    mine = re.sub(r"power_w: \d+", "power_w: 42", shipped)
    (tmp_path / "gpus" / "t4.yaml").write_text(mine, encoding="utf-8")
    monkeypatch.setenv("ATTNPROF_PROFILES", str(tmp_path))
    assert gpu_named("t4").power_w == 42


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("memory_bytes: 16_106_127_360", "memory_bytes: -1", "memory_bytes is -1"),
        ("memory_bytes: 16_106_127_360", "memory_byte: 16_106_127_360", "memory_bytes is missing"),
        ("power_w: 70", "power: 70", "unknown key 'power'.*power_w"),
        ("3.2e+11", "3.2e11", "memory_bandwidth_bytes_per_s is '3.2e11'"),
        ("vendor: NVIDIA", "vendor: [", "is not YAML"),
        ("verified: partly", "verified: sure", "verified is 'sure'"),
    ],
)
def test_a_wrong_profile_is_one_error_that_names_file_key_and_value(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    shipped = _t4_text()
    assert old in shipped
    path = tmp_path / "mine.yaml"
    path.write_text(shipped.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=named) as caught:
        read_gpu(path)
    assert "mine.yaml" in caught.value.problem


def test_a_binary_or_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(UsageError, match="cannot read"):
        read_gpu(path)
    path.write_bytes(b"\xff\x00\x01" * 100)
    with pytest.raises(UsageError, match="not UTF-8"):
        read_gpu(path)
    path.write_text("- a\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no mapping"):
        read_gpu(path)


def test_looking_up_a_gpu_loads_no_heavy_library() -> None:
    code = (
        "import json, sys; from attnprof.gpus import gpu_named; gpu_named('h100');"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "pandas", "scipy", "rich", "typer"} & set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("name", "hint"), [("RTX 5099", "did you mean 'rtx-5090'"), ("zzz", "use")]
)
def test_an_unknown_gpu_names_the_nearest_and_where_all_are_listed(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        gpu_named(name)
    assert refused.value.fix.startswith(hint)
    assert "attnprof show gpus" in refused.value.fix
    assert "mi300x" not in refused.value.fix
