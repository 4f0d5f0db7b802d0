"""How light laws are: 10,000 records fitted, and what latency adds to an estimate."""

import json
import math
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnprof.capacity.request import EstimateRequest, deployment_of
from attnprof.engines.registry import plan_memory
from attnprof.fit_laws import fit_runs
from attnprof.models.load import load_model
from attnprof.run_header import Header
from attnprof.serving.coefficients import step_profile
from attnprof.serving.latency import latency_of
from attnprof.serving.offers import load_of
from attnprof.session import Asked
from attnprof.theory.summary import call_bytes, call_flops
from attnprof.workload import Workload
from tests.benchmarks.number import Number
from tests.benchmarks.sweeps import ONCE, ran

NUM_RECORDS, FIT_S = 10_000, 10.0
LATENCY_S = 0.020
DEVICE = "synthetic?noise=0"
BACKENDS, LENGTHS, BATCHES, HEADS = ("flash", "eager"), (4, 13), (0, 8), (1, 2, 4, 8, 16)
REQUEST = EstimateRequest(model=load_model("llama-3.1-8b"), gpu="h100-sxm")
PROMPT, OUTPUT, BATCH = 1024, 256, 256


def numbers(busy: bool) -> list[Number]:
    with tempfile.TemporaryDirectory() as folder:
        fit_s = fit_cpu_s(Path(folder) / "run", NUM_RECORDS)
    return of_measured(fit_s, min(latency_cpu_s() for _ in range(5)))


def of_measured(fit_s: float, latency_s: float) -> list[Number]:
    return [
        Number(
            name=f"{NUM_RECORDS:,} records fitted",
            found=f"{fit_s:.1f} s CPU",
            wanted=f"{FIT_S:g} s at most",
            met=fit_s <= FIT_S,
            how="read, grouped, held out and fitted: prefill and decode of two backends",
        ),
        Number(
            name="latency in attnprof estimate",
            found=f"{latency_s * 1e3:.1f} ms CPU",
            wanted=f"{LATENCY_S * 1e3:g} ms at most",
            met=latency_s <= LATENCY_S,
            how="coefficients read, figures, curve and sum by term; least of 5",
        ),
    ]


def fit_cpu_s(run_dir: Path, num_records: int) -> float:
    """CPU seconds of a fit of as many records of a planted law."""
    small = ran(Asked(device=DEVICE, axes={"backend": "flash", "seq_len": "1k"}), ONCE)
    write_run(run_dir, small.header, small.outcome.records[0], num_records)
    started = time.process_time()
    found = fit_runs([run_dir])
    spent_s = time.process_time() - started
    assert len(found.groups) == 2 * len(BACKENDS)
    return spent_s


def write_run(run_dir: Path, header: Header, like: dict[str, Any], num_records: int) -> None:
    run_dir.mkdir()
    (run_dir / "run.json").write_text(json.dumps(header), encoding="utf-8")
    records = [record_of(workload, like) for workload in shuffled(num_records)]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run_dir / "records.jsonl").write_text(text, encoding="utf-8")


def shuffled(num: int) -> Iterator[Workload]:
    """Different workloads, lengths and batches evenly over their doublings."""
    chance, seen = random.Random(0), set[Workload]()
    while len(seen) < num:
        length = round(2 ** chance.uniform(*LENGTHS))
        heads = chance.choice(HEADS)
        prefill = Workload(
            backend=chance.choice(BACKENDS), batch_size=round(2 ** chance.uniform(*BATCHES)),
            q_len=length, kv_len=length, num_q_heads=heads, num_kv_heads=heads,
        )  # fmt: skip
        decode = replace(prefill, phase="decode", q_len=1, kv_cache="static")
        workload = chance.choice((prefill, decode))
        if workload not in seen:
            seen.add(workload)
            yield workload


def record_of(workload: Workload, like: dict[str, Any]) -> dict[str, Any]:
    """What was measured of a workload by a planted law, with all else that a record holds."""
    flops, moved = call_flops(workload), call_bytes(workload)
    noise = random.Random(workload.workload_id).gauss(0, 0.02)
    time_s = (30e-6 + flops / 4e11 + moved / 7e10) * math.exp(noise)
    times = {name: time_s for name in like if name.startswith("median") and name.endswith("_s")}
    samples = {
        name: [time_s] * len(like[name]) for name in ("samples_s", "samples_cpu_s") if like[name]
    }
    return {
        **like, **workload.to_json(), **times, **samples, "workload_id": workload.workload_id,
        "flops": flops, "bytes_moved": moved,
    }  # fmt: skip


def latency_cpu_s() -> float:
    """CPU seconds of the latency of an estimate, its coefficients read anew."""
    deployment = deployment_of(REQUEST)
    plan = plan_memory(deployment)
    step_profile.cache_clear()
    started = time.process_time()
    law = latency_of(deployment)
    load = load_of(deployment, plan, PROMPT, OUTPUT, BATCH)
    law.figures(load)
    law.curve(load, BATCH)
    law.summed(load)
    return time.process_time() - started
