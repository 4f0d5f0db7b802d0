"""Run directories written by hand: each workload's latency by launch, its memory, its status."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

FINGERPRINT = {
    "attnprof": "0.1.0", "python": "3.11.7", "system": "Linux", "kind": "cpu", "name": "AMD EPYC",
    "memory_bytes": 25_276_510_208, "physical_cores": 2, "threads": 1, "governor": None,
    "machine": "x86_64", "libc": "glibc 2.36", "torch": "2.13.0+cpu", "cpu_capability": "AVX512",
    "torch_parallel": "OpenMP 4.5", "environment": {"OMP_WAIT_POLICY": "passive"},
}  # fmt: skip
NUM_LAUNCHES, NUM_SAMPLES = 5, 10
SHAPES = tuple((phase, 512 * 2**place) for phase in ("prefill", "decode") for place in range(4))


def workload_id(phase: str, kv_len: int) -> str:
    return f"{phase}-causal-flash-float32-b1-s{kv_len}-h8-d64-l1"


IDS = tuple(workload_id(*shape) for shape in SHAPES)


def record(
    place: int = 0, *, factor: float = 1.0, launch: float = 0.01, seed: int = 0,
    num_launches: int = NUM_LAUNCHES, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """The record of one of :data:`SHAPES`; its launches differ by ``launch``, a log's deviation."""
    phase, kv_len = SHAPES[place]
    drawn = random.Random(f"{seed}/{place}")
    samples, launches = [], []
    for number in range(num_launches):
        luck = drawn.gauss(0, launch)
        for _ in range(NUM_SAMPLES):
            samples.append(1e-6 * kv_len * factor * 2.718281828 ** (luck + drawn.gauss(0, 0.005)))
            launches.append(number)
    return {
        "format": 1, "workload_id": IDS[place], "phase": phase, "backend": "flash",
        "dtype": "float32", "variant": "causal", "scope": "op", "attention": "self",
        "batch_size": 1, "q_len": kv_len if phase == "prefill" else 1, "kv_len": kv_len,
        "num_q_heads": 8, "num_kv_heads": 8, "head_dim": 64, "num_layers": 1, "status": "ok",
        "reason": None, "flags": [], "mode": "host", "samples_s": samples,
        "samples_cpu_s": samples, "sample_launch": launches, "median_s": samples[0],
        "weight_bytes": 0, "kv_bytes": 4096 * kv_len, "peak_activation_bytes": 2**16 * kv_len,
        "memory_meter": "profiler", **changes,
    }  # fmt: skip


def failed(place: int, status: str, reason: str) -> dict[str, Any]:
    none: dict[str, Any] = {
        "samples_s": [], "samples_cpu_s": [], "sample_launch": [], "kv_bytes": None,
        "peak_activation_bytes": None, "weight_bytes": None,
    }  # fmt: skip
    return record(place, **none) | {"status": status, "reason": reason}


def write_run(
    folder: Path, records: Iterable[Mapping[str, Any]], *, listed: Iterable[str] | None = None,
    rulers: Iterable[float] = (), finished: bool = True, **facts: Any,
) -> Path:  # fmt: skip
    """A run directory; ``facts`` are of its fingerprint, of which None leaves the key out."""
    kept = list(records)
    known = {key: value for key, value in (FINGERPRINT | facts).items() if value is not ...}
    header = {
        "format": 1, "attnprof": "0.1.0", "command": ["attnprof", "sweep"],
        "started": "2026-11-29T18:34:41+00:00",
        "finished": "2026-11-29T18:35:38+00:00" if finished else None, "device": "cpu",
        "launch_kind": "fork",
        "conditions": {"device_kind": "cpu", "threads": 1, "ceilings": {}},
        "facts": {"name": "AMD EPYC"}, "fingerprint": known,
        "workloads": list(listed) if listed is not None else [one["workload_id"] for one in kept],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(header), encoding="utf-8")
    lines = "".join(f"{json.dumps(one)}\n" for one in kept)
    (folder / "records.jsonl").write_text(lines, encoding="utf-8")
    ruled = [{"rulers": {"matmul_s": value, "copy_s": 2 * value}} for value in rulers]
    (folder / "rulers.jsonl").write_text(
        "".join(f"{json.dumps(one)}\n" for one in ruled), encoding="utf-8"
    )
    return folder


def whole(
    change: Callable[[int], Mapping[str, Any]] = lambda place: {}, *, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """A record of each of :data:`SHAPES`, each changed as ``change`` says."""
    return [record(place, **{"seed": seed, **change(place)}) for place in range(len(SHAPES))]
