"""Sweeps of layers, blocks and models from the command line, on a CPU and on no hardware at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import attnprof

MODEL = Path(__file__).parent / "data" / "models" / "tiny-llama.json"
GROWN = {"generate", "kv-growth"}
PHASES = ("prefill", "decode", "verify", "mixed", "train", "generate", "kv-growth")


def records(folder: Path, *axes: str, device: str) -> list[dict[str, Any]]:
    output = folder / "run"
    done = attnprof(
        "sweep", "-q", "-o", str(output), "--device", device, "--interval", "0.5", "--threads", "1",
        *(part for axis in (*axes, "backend=eager") for part in ("--axis", axis)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (output / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def axes_of(scope: str) -> list[str]:
    lengths = ["kv_len=12", "start_len=8", "prefill_len=3"]
    if scope == "model":
        return [f"model={MODEL}", *lengths]
    block = ["ffn=gated", "ffn_dim=16"] if scope == "block" else []
    return [f"scope={scope}", "heads=2", "head_dim=8", *block, *lengths]


def held_well(record: dict[str, Any]) -> None:
    """What a record of more than attention has to say."""
    assert record["status"] == "ok", record["reason"]
    assert record["check"]["passed"]
    assert record["weight_bytes"] > 0 and record["median_s"] > 0
    assert record["kv_bytes"] == record["theory_kv_bytes"]
    if record["phase"] == "generate":
        assert record["ttft_s"] > 0 and len(record["itl_s"]) == 4
    if record["phase"] in GROWN:
        assert record["growth"][-1]["kv_len"] == 12


@pytest.mark.parametrize("scope", ["layer", "block", "model"])
def test_every_phase_of_a_scope_is_swept_on_the_synthetic_device(folder: Path, scope: str) -> None:
    axes = axes_of(scope)
    found = records(folder, *axes, f"phase={','.join(PHASES)}", device="synthetic")
    chunk = records(folder / "chunk", *axes, "q_len=5", "phase=chunked-prefill", device="synthetic")
    assert {record["phase"] for record in found} == set(PHASES)
    for record in (*found, *chunk):
        held_well(record)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("scope", "phases"),
    [("layer", "prefill,generate"), ("block", "train,decode"), ("model", "mixed,generate")],
)
def test_a_scope_is_swept_on_this_cpu(folder: Path, scope: str, phases: str) -> None:
    pytest.importorskip("torch")
    found = records(folder, *axes_of(scope), f"phase={phases}", device="cpu")
    assert {record["phase"] for record in found} == set(phases.split(","))
    for record in found:
        held_well(record)
        assert record["check"]["reference"] == "float64"
        if record["phase"] != "train":
            names = [part["name"] for part in record["parts"]]
            assert {"attention", "projection", "other"} <= set(names)
            assert sum(part["share"] for part in record["parts"]) == pytest.approx(1.0)


@pytest.mark.torch
@pytest.mark.slow
def test_the_librarys_class_is_swept_beside_ours(folder: Path) -> None:
    pytest.importorskip("transformers")
    found = records(
        folder, f"model={MODEL}", "implementation=plain,transformers", "kv_len=12",
        "kv_cache=contiguous", "phase=prefill,decode", device="cpu",
    )  # fmt: skip
    assert len(found) == 4
    for record in found:
        held_well(record)
    library = [record for record in found if record["implementation"] == "transformers"]
    assert {record["check"]["reference"] for record in library} == {"our plain model in float64"}
    assert all(record["parts"] is None for record in library)


def test_scopes_models_and_implementations_have_options_of_their_own(folder: Path) -> None:
    done = attnprof(
        "sweep", "-q", "-o", "run", "--device", "synthetic", "--backend", "eager", "--seq-len", "8",
        "--scope", "model", "--model", str(MODEL), "--implementation", "plain,transformers",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (folder / "run/records.jsonl").read_text().splitlines()]
    assert {(one["scope"], one["model"], one["implementation"]) for one in found} == {
        ("model", str(MODEL), "plain"), ("model", str(MODEL), "transformers")
    }  # fmt: skip


def test_a_run_of_a_configuration_that_changed_is_not_resumed(folder: Path) -> None:
    mine = folder / "mine.json"
    mine.write_text(MODEL.read_text())
    sweep = ("sweep", "-q", "-o", "run", "--device", "synthetic")
    begun = attnprof(*sweep, "--axis", "model=mine.json", "--seq-len", "8,16", "--budget", "1ms")
    assert begun.returncode == 3, begun.stderr  # nothing was measured yet
    values = json.loads(MODEL.read_text())
    mine.write_text(json.dumps(values | {"intermediate_size": 2 * values["intermediate_size"]}))
    resumed = attnprof(*sweep, "--resume")
    assert resumed.returncode == 2
    assert "mine.json has changed since run was begun" in resumed.stderr
    mine.write_text(MODEL.read_text())
    assert attnprof(*sweep, "--resume").returncode == 0
