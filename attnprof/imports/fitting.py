"""Records of other people's kernels -> the laws of one GPU and engine, held out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnprof.errors import UsageError
from attnprof.fit_laws import FittedGroup, RunFit, verdict
from attnprof.laws.calibrating import by_key, calibrate
from attnprof.laws.calibration import HOLDS_MEDIAN, HOLDS_P90, Calibration
from attnprof.laws.foreign import FAMILIES, Family, ForeignTable
from attnprof.laws.groups import Group, sort_tables
from attnprof.laws.holdouts import FORM, judge, least_rows
from attnprof.records import Run
from attnprof.units import counted

# Types by the names that laws have for them; of the others no law is known.
_NAMES = {
    "float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16",
    "float8_e4m3fn": "fp8", "fp8_block": "fp8_block", "int8": "int8", "nvfp4": "nvfp4",
    "mxfp4": "mxfp4", "int4": "int4",
}  # fmt: skip
_KEY_OF = {
    "gpu": "device", "q_dtype": "dtype", "batch": "batch_size", "q_len_tokens": "q_len",
    "kv_len_tokens": "kv_len", "q_heads": "num_q_heads", "kv_heads": "num_kv_heads",
    "window_tokens": "window_len", "ranks": "num_ranks",
}  # fmt: skip
_TYPES = ("q_dtype", "kv_dtype", "dtype")


def fit_foreign(runs: Sequence[Run], name: str | None = None) -> RunFit:
    """The laws of all kernels of some imported runs: attention, GEMM and all-reduce.

    Raises:
        UsageError: A run that was measured here, records of two devices or engines, none of a
            kernel that has a law, or too few of each.
    """
    for run in runs:
        if not any(record.get("kind") for record in run.records):
            raise UsageError(
                f"{run.path} was measured by attnprof, others of these runs are imported",
                "fit them one by one",
            )
    records = [record for run in runs for record in run.records]
    tables, notes = tables_of(records, runs[0])
    pairs = sorted(
        {
            (str(gpu), str(engine))
            for one in tables
            for gpu, engine in zip(one.texts["gpu"], one.texts["engine"], strict=True)
        }
    )
    if len(pairs) > 1:
        listed = ", ".join(f"{engine} on {gpu}" for gpu, engine in pairs)
        raise UsageError(
            f"{runs[0].path} holds records of {listed}",
            "import each GPU and engine by itself, and fit them one by one",
        )
    found = sort_tables(tables)
    notes += [f"{counted(count, 'row')}: {why}" for why, count in found.left_out.items()]
    groups = []
    for key, group in sorted(by_key(found.groups).items()):
        if len(group.latency_s) < least_rows(group):
            notes.append(
                f"{key}: {counted(len(group.latency_s), 'row')}, a law needs {least_rows(group)}"
            )
            continue
        groups.append(_fitted(key, group))
    if not groups:
        raise UsageError(
            f"{runs[0].path}: no law can be fitted. {'; '.join(notes)}",
            "import tables of attention, GEMM or all-reduce with more rows",
        )
    (device, engine), header = pairs[0], runs[0].header
    sources = [one for run in runs for one in run.header.get("sources") or ()]
    calibration = Calibration(
        name=name or f"{device}--{engine}",
        device=device,
        engine=engine,
        source={
            "repository": _words(sources, "source"),
            "commit": _words(sources, "version"),
            "licence": _words(sources, "licence"),
            "attnprof": str(header.get("attnprof")),
            "made_by": "attnprof fit",
        },
        laws={one.key: one.law for one in groups},
    )
    return RunFit(calibration, groups, notes)


def _words(sources: Sequence[Mapping[str, Any]], key: str) -> str:
    return " ".join(sorted({str(one[key]) for one in sources if one.get(key)})) or "unknown"


def _fitted(key: str, group: Group) -> FittedGroup:
    outcomes = judge(group)
    held = next((o for o in outcomes if o.holdout == "random" and o.method == FORM), None)
    holds = held is not None and held.median <= HOLDS_MEDIAN and held.p90 <= HOLDS_P90
    words = ["too few rows to hold any out"] if held is None else [verdict(held, holds)]
    return FittedGroup(group, key, calibrate(group, outcomes), outcomes, holds, words)


def tables_of(
    records: Sequence[Mapping[str, Any]], run: Run
) -> tuple[list[ForeignTable], list[str]]:
    """Records as the tables that laws are fitted to, and words on what none is known for."""
    kept: dict[str, list[Mapping[str, Any]]] = {}
    left_out: dict[str, int] = {}
    for record in records:
        why = _why_none(record)
        if why is None:
            kept.setdefault(str(record["kind"]), []).append(record)
        else:
            left_out[why] = left_out.get(why, 0) + 1
    families = {one.name: one for one in FAMILIES}
    tables = [_table(families[kind], mine, run) for kind, mine in kept.items()]
    return tables, [f"{counted(count, 'record')}: {why}" for why, count in left_out.items()]


def _why_none(record: Mapping[str, Any]) -> str | None:
    kind = record.get("kind")
    if kind not in ("attention", "gemm", "all-reduce"):
        return f"{kind or 'measured by attnprof'}, for which there is no law here"
    if record["dtype"] not in _NAMES or record.get("kv_dtype", "int8") not in _NAMES:
        return f"{record['dtype']}, for which there is no law"
    if kind == "attention" and record["variant"] == "full":
        return "attention that is not causal"
    return None


def _table(family: Family, records: Sequence[Mapping[str, Any]], run: Run) -> ForeignTable:
    def column(name: str) -> list[Any]:
        key = _KEY_OF.get(name, name)
        return [record.get(key) for record in records]

    texts = {
        name: np.array([_NAMES[one] if name in _TYPES else one or "" for one in column(name)])
        for name in family.texts
    }
    texts["kernel"] = np.array([record["backend"] for record in records])
    if "phase" in texts:  # a chunk is a prefill whose keys are more than its queries
        texts["phase"] = np.where(texts["phase"] == "decode", "decode", "prefill")
    counts = {name: np.array([float(one or 0) for one in column(name)]) for name in family.counts}
    latency_s = np.array([float(record["median_s"]) for record in records])
    return ForeignTable(run.path, family, texts, counts, latency_s)
