"""A record -> the first of its values that no record can have: another kind than its key's, a
name that nobody knows, a size or time beyond all measure, or one that belies another."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NotRequired, Required, TypedDict, get_type_hints

from attnprof.backends.support import BACKENDS
from attnprof.dtypes import DTYPES, GEMM_SCHEMES
from attnprof.errors import nearest
from attnprof.kinds import misfit
from attnprof.variants import VARIANTS
from attnprof.workload import NAMES, SIZES

FORMAT = 1
LARGEST_SIZE = 2**40  # tokens, heads, widths, samples
LARGEST_BATCH = 2**20  # of each sequence there is a length
LARGEST_BYTES = 2**60  # and parameters
LONGEST_S = 1e6  # eleven days
SHORTEST_S = 1e-12  # of what a clock measured; nothing is timed in less
LARGEST_SHARE = 1e4  # of a roof: a call that stays in its cache passes the memory's many times
LARGEST_RATE = 1e24
LEAST_RATE = 1e-6  # above zero
STATUSES = (
    "ok", "wrong_result", "crashed", "timeout", "out_of_memory", "predicted_out_of_memory",
    "unsupported", "skipped",
)  # fmt: skip
KINDS = ("attention", "gemm", "all-reduce", "layer-op", "model")
"""What another project measured; of what was measured here no kind is said."""

_NAMES: Mapping[str, Collection[str]] = {
    **dict(NAMES),
    "status": STATUSES,
    "variant": VARIANTS,
    "clock": ("wall", "cpu"),
    "kind": KINDS,
    "provenance": ("imported",),
    "statistic": ("mean", "median"),
    "collective": ("all_reduce",),
}
_TYPES = {"dtype": (*DTYPES, *GEMM_SCHEMES), "kv_dtype": DTYPES, "weight_dtype": DTYPES}
_OF_ATTENTION = ("batch_size", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim")
_NEEDED: Mapping[str | None, tuple[str, ...]] = {
    "attention": ("phase", "variant", "backend", "dtype", *_OF_ATTENTION),
    "gemm": ("backend", "dtype", "m_tokens", "n_out", "k_in"),
    "all-reduce": ("backend", "dtype", "num_ranks", "message_bytes"),
}
_FROM_ONE = frozenset(
    (*SIZES, "num_merged", "m_tokens", "n_out", "k_in", "message_bytes", "num_tokens",
     "hidden_size", "tensor_parallel", "num_devices", "num_params", "window_len", "threads",
     "num_sms", "physical_cores")
)  # fmt: skip
_LISTS_OF_TIMES = ("samples_s", "samples_cpu_s", "run_delay_s", "itl_s")
_OF_NO_CLOCK = ("run_delay_s", "theory_s", "stddev_s")  # may be shorter than any call
_OF_MLA = ("kv_lora_rank", "rope_head_dim")
# What a part of a workload cannot do without, by the key that asks for it and its value.
_ASKED_FOR = (
    ("scope", "block", ("ffn_dim",)),
    ("ffn", "moe", ("num_experts", "num_active_experts")),
    ("phase", "generate", ("start_len",)),
    ("phase", "mixed", ("prefill_len",)),
    ("kv_cache", "latent", _OF_MLA),
)
_FROM_TWO = frozenset(("num_ranks",))  # one rank has nobody to reduce with


class _KeptPoint(TypedDict):
    kv_len: int
    wall_s: float
    cpu_s: float | None
    useful_bytes: int
    allocated_bytes: int
    peak_bytes: int | None
    total_s: NotRequired[float | None]
    total_cpu_s: NotRequired[float | None]
    theory_bytes: NotRequired[int]


class _KeptPart(TypedDict):
    name: str
    wall_s: float
    cpu_s: float | None
    share: float | None
    peak_bytes: int | None


class _KeptCheck(TypedDict, total=False):
    rms_error: float | None


class _KeptRecord(TypedDict, total=False):
    """What may be in a record, as far as tables and fits look at it."""

    workload_id: Required[str]
    status: Required[str]
    reason: str | None
    phase: str
    backend: str
    device: str
    dtype: str | None
    kv_dtype: str | None
    variant: str
    kv_cache: str
    cache_regime: str
    scope: str
    attention: str
    position: str
    clock: str | None
    flags: tuple[str, ...]
    batch_size: int
    q_len: int
    kv_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    window_len: int | None
    start_len: int | None
    mixer: str
    model: str | None
    implementation: str
    weight_dtype: str | None
    mla: str | None
    softcap: float | None
    sink_logits: bool
    checkpointing: bool
    ffn: str | None
    source_len: int | None
    prefill_len: int | None
    prefix_len: int | None
    document_len: int | None
    sink_len: int | None
    min_len: int | None
    v_head_dim: int | None
    kv_lora_rank: int | None
    rope_head_dim: int | None
    block_tokens: int | None
    ffn_dim: int | None
    num_experts: int | None
    num_active_experts: int | None
    check: _KeptCheck | None
    num_samples: int | None
    samples_s: tuple[float, ...]
    samples_cpu_s: tuple[float, ...]
    run_delay_s: tuple[float, ...]
    sample_clean: tuple[bool, ...] | None
    median_s: float | None
    median_low_s: float | None
    median_high_s: float | None
    median_wall_s: float | None
    median_cpu_s: float | None
    achieved_flops_per_s: float | None
    mfu: float | None
    mbu: float | None
    flops: int
    bytes_moved: int
    weight_bytes: int | None
    kv_bytes: int | None
    peak_activation_bytes: int | None
    peak_rss_bytes: int | None
    theory_kv_bytes: int | None
    theory_peak_activation_bytes: int | None
    theory_s: float | None
    growth: tuple[_KeptPoint, ...] | None
    ttft_s: float | None
    itl_s: tuple[float, ...]
    parts: tuple[_KeptPart, ...] | None
    rms_error: float | None
    median_itl_s: float | None
    model_digest: str | None
    # Of a record that was imported; ``kind`` has one of another project's alone.
    provenance: str
    kind: str
    source: str
    engine: str
    engine_version: str | None
    kernel: str | None
    statistic: str
    num_merged: int
    op: str | None
    m_tokens: int
    n_out: int
    k_in: int
    system: str | None
    collective: str
    num_ranks: int
    message_bytes: int
    num_tokens: int
    hidden_size: int
    tensor_parallel: int
    prompt_len: int
    output_len: int
    depth_len: int
    num_devices: int | None
    num_params: int | None
    settings: str
    tokens_per_s: float
    stddev_s: float | None


def record_kinds() -> dict[str, Any]:
    """The keys of a record that tables and fits look at, each with its type."""
    return get_type_hints(_KeptRecord)


def record_misfit(record: Mapping[str, Any]) -> str | None:
    """Where a record has a value that no record can have, or None.

    >>> record_misfit({"workload_id": "w", "status": "ok", "phase": "prefil"})
    "phase is 'prefil': did you mean 'prefill'?"
    >>> record_misfit({"workload_id": "w", "status": "ok", "kv_len": 2**62})
    'kv_len is 4611686018427387904, more than 1.09951e+12'
    """
    if record.get("format", FORMAT) != FORMAT:
        return f"format is {record['format']!r}, this version reads {FORMAT}"
    return misfit(record, _KeptRecord) or values_misfit(record)


def values_misfit(record: Mapping[str, Any]) -> str | None:
    """The same of a record whose values are all of the kind that they should be."""
    kind = record.get("kind")
    for key, value in record.items():
        found = None if value is None else _misfit(key, value, kind)
        if found is not None:
            return found
    return _missing(record, kind) or _belied(record)


def _misfit(key: str, value: Any, kind: str | None) -> str | None:
    known = _NAMES.get(key)
    if known is None and kind is None and key == "backend":
        known = BACKENDS
    if known is None and kind != "model":  # an engine has types of its own for whole models
        known = _TYPES.get(key)
    if known is not None:
        return None if value in known else f"{key} is {value!r}: {nearest(value, list(known))}"
    if isinstance(value, int | float):
        return _beyond(key, value)
    if key in _LISTS_OF_TIMES and value:
        return _list_beyond(key, value)
    if key in ("growth", "parts"):
        return _first(
            found and f"{key}[{place}].{found}"
            for place, one in enumerate(value)
            for found in [numbers_misfit(one)]
        ) or (_growth_belied(value) if key == "growth" else None)
    return None


def _list_beyond(key: str, values: Sequence[float]) -> str | None:
    if max(values) > LONGEST_S:
        return f"{key} has {max(values):g}, more than {LONGEST_S:g}"
    if key not in _OF_NO_CLOCK and 0 < (least := min(filter(None, values), default=0)) < SHORTEST_S:
        return f"{key} has {least:g}, less than {SHORTEST_S:g}"
    return None


def _growth_belied(growth: Sequence[Mapping[str, Any]]) -> str | None:
    """Where a cache that grows does not: its lengths rise, and what holds tokens takes bytes."""
    holds = any(point["useful_bytes"] for point in growth)
    before = 0
    for place, point in enumerate(growth):
        kv_len = point["kv_len"]
        if kv_len <= before:
            what = f"not above {before}, the one before" if before else "less than 1"
            return f"growth[{place}].kv_len is {kv_len}, {what}"
        before = kv_len
        for name in ("useful_bytes", "allocated_bytes"):
            if holds and point[name] == 0:
                return f"growth[{place}].{name} is 0 of a cache that holds tokens"
    return None


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one), None)


def _beyond(key: str, value: float) -> str | None:
    """Where a number is less or more than its key can have."""
    if isinstance(value, bool):
        return None
    least = 1 if key in _FROM_ONE else 2 if key in _FROM_TWO else 0
    if value < least:
        return f"{key} is {value}, less than {least}"
    if 0 < value < (shortest := _shortest(key)):
        return f"{key} is {value}, less than {shortest:g}"
    most = _most(key, isinstance(value, int))
    return f"{key} is {value}, more than {most:g}" if value > most else None


def _shortest(key: str) -> float:
    """The least that a time or rate above zero may be."""
    if "_per_" in key:
        return LEAST_RATE
    return SHORTEST_S if key.endswith("_s") and key not in _OF_NO_CLOCK else 0.0


def numbers_misfit(values: Mapping[str, Any]) -> str | None:
    """The first number, however deep inside, that is less or more than its key can have.

    >>> numbers_misfit({"conditions": {"threads": 2**62, "ceilings": {}}})
    'threads is 4611686018427387904, more than 1.09951e+12'
    """
    for key, value in values.items():
        found = numbers_misfit(value) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            found = _beyond(key, value)
        if found is not None:
            return found
    return None


def _most(key: str, is_whole: bool) -> float:
    """The largest value that a key may have, by the unit that its name ends with."""
    if "_per_" in key or key == "flops":
        return LARGEST_RATE
    if key.endswith("_s"):
        return LONGEST_S
    if key.endswith("bytes") or key in ("bytes_moved", "num_params"):
        return LARGEST_BYTES
    if is_whole:
        return LARGEST_BATCH if key == "batch_size" else LARGEST_SIZE
    return LARGEST_SHARE if key in ("mfu", "mbu") else math.inf


def _missing(record: Mapping[str, Any], kind: str | None) -> str | None:
    """The first key without which a time says nothing; what has no phase is no call."""
    needed: tuple[str, ...] = (*_NEEDED.get(kind, ()), "median_s", "device")
    if kind is None:
        needed = _needed_here(record) if "phase" in record or "backend" in record else ()
    return next((f"{key} is missing" for key in needed if record.get(key) is None), None)


def _needed_here(record: Mapping[str, Any]) -> tuple[str, ...]:
    """What a call that was measured here cannot do without."""
    needed = ["phase", "backend", "dtype"]
    if record.get("model") is None:
        for key, value, names in _ASKED_FOR:
            needed += names if record.get(key) == value else ()
        needed += _OF_MLA if record.get("mla") is not None else ()
    return tuple(needed)


def _belied(record: Mapping[str, Any]) -> str | None:
    """Two values that cannot both be right."""
    if record["status"] == "ok" and record.get("median_s") == 0:
        return "median_s is 0: nothing takes no time"
    low, high = record.get("median_low_s"), record.get("median_high_s")
    if low is not None and high is not None and low > high:
        return f"median_low_s is {low:g}, above median_high_s, {high:g}"
    num_samples, samples_s = record.get("num_samples"), record.get("samples_s")
    if samples_s and num_samples is not None and num_samples != len(samples_s):
        return f"num_samples is {num_samples}, samples_s has {len(samples_s)}"
    q_len, kv_len = record.get("q_len"), record.get("kv_len")
    if q_len is None or kv_len is None or record.get("attention", "self") != "self":
        return None
    phase = record.get("phase")
    if phase == "decode" and q_len != 1:
        return f"q_len is {q_len} of a decode, which has one query a sequence"
    if phase == "prefill" and q_len != kv_len:
        return f"q_len is {q_len} of a prefill of {kv_len} tokens"
    heads, kv_heads = record.get("num_q_heads"), record.get("num_kv_heads")
    if heads and kv_heads and heads % kv_heads:
        return f"num_q_heads is {heads}, no multiple of num_kv_heads {kv_heads}"
    return None
