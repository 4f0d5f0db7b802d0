"""Workloads and records -> which law they are of, and their shapes in the columns that it takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from attnprof.errors import UsageError
from attnprof.laws.base import Floats
from attnprof.laws.steps import PACKED_FROM
from attnprof.models.load import load_model
from attnprof.models.spec import ModelSpec
from attnprof.theory.kv_cache import cached_bytes
from attnprof.theory.steps import Product, StepWork, work_of_step
from attnprof.theory.summary import call_bytes, call_flops
from attnprof.workload import Workload

Identity = tuple[tuple[str, str], ...]
PHASES = ("prefill", "decode")
STEP = "step"
KERNELS_AROUND = 4  # a layer, beside its products: norms, positions, activations, residuals
_WORKLOAD_KEYS = frozenset(field.name for field in fields(Workload))


def workload_of(record: Mapping[str, Any]) -> Workload:
    """The workload that a record is of; what it leaves out has its default.

    Raises:
        UsageError: It leaves out what no workload is without.
    """
    for key in ("backend", "q_len", "kv_len"):
        if record.get(key) is None:
            raise UsageError(f"{record.get('workload_id')} has no {key}", "remove that record")
    values = {key: value for key, value in record.items() if key in _WORKLOAD_KEYS}
    if values.get("kv_dtype") == values.get("dtype"):
        values["kv_dtype"] = None
    return Workload(**values)


def is_call(record: Mapping[str, Any]) -> bool:
    """Whether there is a law for such a workload: a prefill or decode, of attention alone or of
    layers around it, not a latent's."""
    return why_no_call(record) is None


def why_no_call(record: Mapping[str, Any]) -> str | None:
    """What a workload is that no law is of, or None."""
    phase = str(record.get("phase"))
    if phase not in PHASES:
        return phase
    if record.get("mixer", "attention") != "attention":
        return f"{phase} by layers with a state"
    if record.get("mla") is not None:
        return f"{phase} with a latent"
    if record.get("attention", "self") != "self":
        return f"{phase} with attention to a source"
    return None if record.get("start_len") is None else f"{phase} that grows"


def is_step(record: Mapping[str, Any]) -> bool:
    """Whether it is of layers, blocks or a model, which have one law whatever their phase."""
    return bool(record.get("scope", "op") != "op")


def identity_of(record: Mapping[str, Any]) -> Identity:
    """What sets the law of a record apart: of a workload too, by the same names."""
    kv_dtype = record.get("kv_dtype") or record["dtype"]
    own = (
        ("backend", str(record["backend"])),
        ("dtype", str(record["dtype"])),
        ("kv_dtype", "" if kv_dtype == record["dtype"] else str(kv_dtype)),
    )
    cold = ("cache", "cold" if record.get("cache_regime") == "cold" else "")
    if is_step(record):
        implementation = str(record.get("implementation") or "plain")
        return (
            ("phase", STEP),
            *own,
            ("weight_dtype", str(record.get("weight_dtype") or "")),
            ("implementation", "" if implementation == "plain" else implementation),
            cold,
        )
    layers = record.get("num_layers") or 1
    return (
        ("phase", str(record["phase"])),
        *own,
        ("variant", str(record.get("variant"))),
        ("kv_cache", str(record.get("kv_cache") or "")),
        ("position", "" if record.get("position") in (None, "none") else str(record["position"])),
        ("layers", f"l{layers}" if layers > 1 else ""),
        cold,
    )


def columns_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """Shapes of attention alone as laws take them; FLOP and bytes are what theory says of each."""

    def column(name: str) -> Floats:
        return np.array([float(record.get(name) or 0) for record in records])

    layers = np.maximum(column("num_layers"), 1.0)
    return {
        "batch": column("batch_size") * layers,
        "q_len": column("q_len"),
        "kv_len": column("kv_len"),
        "q_heads": column("num_q_heads"),
        "kv_heads": column("num_kv_heads"),
        "head_dim": column("head_dim"),
        "window": column("window_len"),
        "flops": np.maximum(column("flops"), 1.0),
        "bytes": np.maximum(column("bytes_moved"), 1.0),
    }


AttentionTime = Callable[[Workload], float]


def columns_of_all(
    workloads: Sequence[Workload], attention_s: AttentionTime, spec: ModelSpec | None = None
) -> dict[str, Floats]:
    """Workloads of one law as it takes them."""
    if is_step(vars(workloads[0])):
        return step_columns(workloads, attention_s, spec)
    return columns_of(
        [
            {**vars(one), "flops": call_flops(one), "bytes_moved": call_bytes(one)}
            for one in workloads
        ]
    )


def step_columns(
    workloads: Sequence[Workload], attention_s: AttentionTime, spec: ModelSpec | None = None
) -> dict[str, Floats]:
    """Work of layers, blocks and models as their law takes it.

    Args:
        attention_s: Of one call of attention alone, over all its layers, by its own law.
        spec: Of the model of all; read by its name where left out.

    Raises:
        UsageError: No such model, or one with layers that carry a state.
    """
    names = {one.model for one in workloads if one.model is not None}
    specs = {name: spec or load_model(name) for name in names}
    for name, one in specs.items():
        if any(layer.mixer is not None for layer in one.layers):
            raise UsageError(
                f"there is no law of layers with a state, as {name} has", "leave it out"
            )
    rows = [
        _step_row(one, work_of_step(one, specs.get(one.model or "")), attention_s)
        for one in workloads
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _step_row(
    workload: Workload, work: StepWork, attention_s: AttentionTime
) -> dict[str, float]:  # fmt: skip
    by_row = [one for one in work.products if one.is_by_row]
    few = [one for one in work.products if not one.is_by_row and one.rows < PACKED_FROM]
    many = [one for one in work.products if not one.is_by_row and one.rows >= PACKED_FROM]
    kv_bytes = sum(cached_bytes(one) for one in work.attentions if one.kv_cache != "none")
    grows = workload.kv_cache == "contiguous" and workload.q_len < workload.kv_len
    around = KERNELS_AROUND if workload.scope != "layer" else 0
    return {
        "batch": float(workload.batch_size),
        "num_tokens": float(work.num_tokens),
        "num_layers": float(work.num_layers),
        "num_kernels": float(work.num_products + around * work.num_layers),
        "num_shared": float(sum(one.count for one in work.products if one.rows > 1)),
        "flops": work.flops,
        "weight_bytes": work.weight_bytes,
        "few_rows_bytes": _bytes(few) + _bytes(by_row),
        "few_rows_reads_bytes": _bytes(few, each_row=True),
        "row_products_bytes": _bytes(by_row, each_row=True),
        "many_rows_bytes": _bytes(many),
        "largest_bytes": float(max((one.weight_bytes for one in many), default=0.0)),
        "rows_bytes": work.rows_bytes,
        "kv_bytes": float(kv_bytes),
        "copied_bytes": 2.0 * kv_bytes if grows else 0.0,
        "attention_s": sum(attention_s(one) for one in work.attentions),
        "bytes": work.weight_bytes + kv_bytes + work.rows_bytes,
    }


def _bytes(products: Sequence[Product], *, each_row: bool = False) -> float:
    """Of the weights of some products, once or for each of their rows."""
    return float(
        sum(one.count * one.weight_bytes * (one.rows if each_row else 1) for one in products)
    )
