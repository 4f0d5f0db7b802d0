"""Records -> series: measurements that differ in one length or one count, and how they are called.

A record is the plain dictionary of one line of ``records.jsonl``.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnprof.medians import median_interval
from attnprof.regression import Z95, relative_sd
from attnprof.units import tokens
from attnprof.workload import GROWING, plain_value

Record = Mapping[str, Any]

# All that tells two workloads apart, lengths excepted.
IDENTITY = (
    "scope", "phase", "attention", "variant", "window_len", "position", "kv_cache", "backend",
    "device", "dtype", "kv_dtype", "batch_size", "num_q_heads", "num_kv_heads", "head_dim",
    "num_layers", "cache_regime", "start_len", "mixer", "model", "model_digest", "implementation",
    "weight_dtype", "source_len", "prefill_len", "checkpointing", "prefix_len", "document_len",
    "sink_len", "min_len", "mla", "v_head_dim", "kv_lora_rank", "rope_head_dim", "softcap",
    "sink_logits", "block_tokens", "ffn", "ffn_dim", "num_experts", "num_active_experts",
)  # fmt: skip
LENGTHS = ("q_len", "kv_len")
_ALL = (*IDENTITY, *LENGTHS)
_PLACE = {name: place for place, name in enumerate(_ALL)}
# Counts that a sweep may vary alone, and what one more of each is called in a coefficient.
COUNTS = {
    "batch_size": "sequence",
    "num_layers": "layer",
    "num_q_heads": "head",
    "num_kv_heads": "kv_head",
    "head_dim": "element",
    "q_len": "query",
    "prefill_len": "prompt_token",
    "source_len": "source_token",
}
UNIT_OF_AXIS = {"seq_len": "token", "kv_len": "token", **COUNTS}
_OF_MODELS = ("num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "num_layers", "variant")
LEAST_COUNTS = 3  # values of a count that make a series; of a length, two do
BYTES_SD = 1e-4  # bytes are counted, not timed
_GROWTH_BINS = 8
_SHORT_DTYPES = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16",
    "float8_e4m3fn": "fp8", "float8_e5m2": "e5m2",
}  # fmt: skip
_USUAL = {
    "scope": "op", "attention": "self", "position": "none", "cache_regime": "warm",
    "mixer": "attention", "implementation": "plain", "checkpointing": False, "sink_logits": False,
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One quantity along one axis, everything else equal."""

    name: str
    axis: str
    quantity: str  # latency, peak_memory
    clock: str | None  # wall or cpu; None for bytes
    where: dict[str, Any]
    n: tuple[int, ...]
    values: tuple[float, ...]
    sd: tuple[float, ...]  # as a share of the value
    records: tuple[Record, ...]

    @property
    def degree(self) -> int:
        """Highest power of n that the work has along this axis: attention's, or a recurrence's."""
        is_attention = self.where.get("mixer", "attention") == "attention"
        return 2 if self.axis in ("seq_len", "prefill_len") and is_attention else 1


def is_ok(record: Record) -> bool:
    return record.get("status") == "ok"


def positive(value: Any) -> float | None:
    """``value`` as a float when it is a finite number above zero, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


class Kept(tuple[dict[str, Any], ...]):
    """The records of a run as tables, fits, figures and pages are made of them: what all of these
    ask of all records is found once."""

    @cached_property
    def varying(self) -> dict[str, tuple[str, ...]]:
        return _varying_keys(self)

    @cached_property
    def series(self) -> list[Series]:
        return _group_series(self)

    @cached_property
    def contests(self) -> dict[tuple[str, ...], list["Contest"]]:
        """By the axes that were asked for so far."""
        return {}


def varying_keys(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    """For each phase, the keys of the identity that take more than one value in it.

    What its model says of each workload, as its heads, is left out beside the model's name.
    """
    return dict(records.varying) if isinstance(records, Kept) else _varying_keys(records)


def _varying_keys(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for phase, mine in _by_phase(records).items():
        keys = _not_common(mine)
        if "model" in keys:
            keys = tuple(key for key in keys if not _follows_from_model(key, mine))
        found[phase] = keys
    return found


def _by_phase(records: Sequence[Record]) -> dict[str, list[Record]]:
    phases: dict[str, list[Record]] = {}
    for record in records:
        phases.setdefault(str(record.get("phase")), []).append(record)
    return phases


def _not_common(records: Sequence[Record]) -> tuple[str, ...]:
    return tuple(
        key for key in IDENTITY if len({_hashable(record.get(key)) for record in records}) > 1
    )


def _follows_from_model(key: str, records: Sequence[Record]) -> bool:
    """Whether the model alone tells the value of a size, in all of these workloads."""
    if key not in _OF_MODELS:
        return False
    values: dict[Any, set[Any]] = {}
    for record in records:
        model = (record.get("model"), record.get("model_digest"))
        values.setdefault(model, set()).add(_hashable(record.get(key)))
    return all(len(of_one) == 1 for of_one in values.values())


def label(
    record: Record, varying: Mapping[str, Sequence[str]], *, without: str | Sequence[str] = ()
) -> str:
    """A short name: phase, backend, what else varies in this run, and the length.

    Args:
        without: The axis that is left out, with its number, or several.
    """
    left_out = (without,) if isinstance(without, str) else tuple(without)
    shown = varying.get(str(record.get("phase")), IDENTITY)
    if "variant" in shown and "window_len" not in shown:
        shown = (*shown, "window_len")
    words = [str(record.get("phase"))]
    if not {"backend", "mixer"} & set(left_out):
        words.append(str(record.get("backend") if is_attention(record) else record["mixer"]))
    words += [word for key in shown if key not in left_out and (word := _word(key, record))]
    q_len = record.get("q_len")
    if "q_len" not in left_out and not is_square(record) and q_len not in (1, None):
        words.append(f"q{tokens(q_len)}")
    if not {"seq_len", "kv_len"} & set(left_out):
        words.append(tokens(record.get("kv_len")))
    return " ".join(words)


def is_attention(record: Record) -> bool:
    """Whether it attends; a recurrence is named by its mixer, and has one backend."""
    return record.get("mixer") in (None, "attention")


def is_square(record: Record) -> bool:
    """Whether queries and keys are the same tokens, so that both grow along one axis."""
    return record.get("phase") in ("prefill", "train") and record.get("attention") != "cross"


def _word(key: str, record: Record) -> str:
    """What the label says of one key; ``""`` where the phase and backend have said it."""
    value = record.get(key)
    if value is None or value == _USUAL.get(key) or key in ("phase", "backend", "mixer"):
        return ""
    match key:
        case "variant":  # of a sliding one, the window says it
            return "" if value in ("causal", "sliding") else str(value)
        case "window_len":
            return f"window {tokens(value)}"
        case "dtype":
            return short_dtype(value)
        case "kv_dtype":
            same = value == record.get("dtype")
            return "" if same else f"kv-{short_dtype(value)}"
        case "weight_dtype":
            return f"w-{short_dtype(value)}"
        case "model":
            return plain_value(value)
        case _ if key in _WORDS:
            return f"{_WORDS[key]} {tokens(value)}"
        case "checkpointing" | "sink_logits":
            return key.replace("_", " ")
        case "softcap":
            return f"cap {value:g}"
        case "kv_cache":
            if value == "none":
                return "no cache" if record.get("phase") == "generate" else ""
            return str(value)
        case _ if key in _PREFIXES:
            return f"{_PREFIXES[key]}{value}"
        case _:
            return str(value)


_PREFIXES = {
    "batch_size": "b", "num_q_heads": "h", "num_kv_heads": "kv", "head_dim": "d", "num_layers": "l",
    "v_head_dim": "v", "kv_lora_rank": "r", "rope_head_dim": "rd", "mla": "mla-", "ffn": "ffn-",
    "ffn_dim": "f", "num_experts": "e", "num_active_experts": "top",
}  # fmt: skip
_WORDS = {
    "start_len": "from", "prefix_len": "prefix", "document_len": "documents", "sink_len": "sink",
    "min_len": "padded from", "block_tokens": "blocks of", "prefill_len": "with prompt",
    "source_len": "source",
}  # fmt: skip


def short_dtype(name: str) -> str:
    """An element type as people call it.

    >>> short_dtype("bfloat16"), short_dtype("int8")
    ('bf16', 'int8')
    """
    return _SHORT_DTYPES.get(name, str(name))


def what_is_common(records: Sequence[Record]) -> list[str]:
    """For each phase, in words, what all its workloads share."""
    said = []
    for phase, mine in _by_phase(records).items():
        one, keys = mine[0], _not_common(mine)
        words = [
            key if one[key] is True else f"{key} {one[key]}"
            for key in IDENTITY
            if key not in (*keys, "phase", "device", "model_digest")
            and one.get(key) not in (None, "none", _USUAL.get(key))
            and not (key == "kv_dtype" and one[key] == one.get("dtype"))
        ]
        if "variant" in keys:
            words.insert(0, "causal unless another is named")
        said.append(f"All of {phase}: {', '.join(words)}.")
    return said


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def group_series(records: Sequence[Record]) -> list[Series]:
    """All series that the good records hold, latency before memory, lengths before counts."""
    return list(records.series) if isinstance(records, Kept) else _group_series(records)


def _group_series(records: Sequence[Record]) -> list[Series]:
    good = [record for record in records if is_ok(record)]
    varying = varying_keys(records)
    identities = [
        (record, [_hashable(record.get(name)) for name in _ALL])
        for record in good
        if record.get("phase") not in GROWING
    ]
    groups = [(axis, group) for axis in (None, *COUNTS) for group in _groups(identities, axis)]
    found = [
        series
        for quantity in ("latency", "peak_memory")
        for axis, group in groups
        for series in _series_of(group, axis, quantity, varying)
    ]
    found += [
        series
        for record in good
        if record.get("phase") in GROWING and (series := _growth_series(record, varying))
    ]
    return found


def _groups(
    identities: Iterable[tuple[Record, Sequence[Any]]], axis: str | None
) -> list[list[Record]]:
    """Records equal in all but ``axis``, as many as make a series; None stands for the length.

    Args:
        identities: Each record with its values of all that tells two workloads apart.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record, identity in identities:
        key = list(identity)
        key[_PLACE[axis or "kv_len"]] = None
        if axis is None and is_square(record):
            key[_PLACE["q_len"]] = "that of the keys"
        if axis == "num_q_heads" and record.get("num_kv_heads") == record.get("num_q_heads"):
            key[_PLACE["num_kv_heads"]] = "one a query head"
        groups.setdefault(tuple(key), []).append(record)
    return [group for group in groups.values() if len(group) >= _fewest(axis)]


def _fewest(axis: str | None) -> int:
    """Points that make a series: of a length two do."""
    return LEAST_COUNTS if axis else 2


def _series_of(
    group: Sequence[Record], axis: str | None, quantity: str, varying: Mapping[str, Sequence[str]]
) -> list[Series]:
    length_key = "kv_len"
    key = axis or length_key
    by_n = {int(record[key]): record for record in group if positive(record.get(key))}
    rows = [by_n[n] for n in sorted(by_n)]
    clock = common_clock(rows) if quantity == "latency" else None
    points = [
        (int(row[key]), *point, row)
        for row in rows
        if (point := latency_on(row, clock) if clock else _peak(row)) is not None
    ]
    if len(points) < _fewest(axis):
        return []
    first = points[0][3]
    named = axis or ("seq_len" if is_square(first) else length_key)
    fixed = [*IDENTITY, *(LENGTHS if axis else () if is_square(first) else ("q_len",))]
    return [
        Series(
            name=label(first, varying, without=named),
            axis=named,
            quantity=quantity,
            clock=clock,
            where={name: first[name] for name in fixed if name != axis and name in first},
            n=tuple(point[0] for point in points),
            values=tuple(point[1] for point in points),
            sd=tuple(point[2] for point in points),
            records=tuple(point[3] for point in points),
        )
    ]


@dataclass(frozen=True)
class Contest:
    """One workload on several backends, or with several values of another axis, the fastest
    first, all on one clock."""

    name: str
    kv_len: int
    clock: str
    rows: tuple[Record, ...]
    medians_s: tuple[float, ...]
    sd: tuple[float, ...]  # of each median, as a share of it
    num_first: int  # rows that may be as fast as the first, by their intervals, itself included

    def ratio(self, row: int, base: int) -> tuple[float, float]:
        """How many times as long one row takes as another, and the half-width of its 95 %
        interval, as a share of it."""
        return (
            self.medians_s[row] / self.medians_s[base],
            Z95 * math.hypot(self.sd[row], self.sd[base]),
        )

    @property
    def fastest(self) -> list[str]:
        """The backend with the shortest time, and those that may equal it."""
        return [str(row.get("backend")) for row in self.rows[: self.num_first]]

    @property
    def slower(self) -> list[tuple[str, float]]:
        """All other backends, and how many times the shortest time each takes."""
        return [
            (str(row.get("backend")), median_s / self.medians_s[0])
            for row, median_s in zip(self.rows, self.medians_s, strict=True)
        ][self.num_first :]


def contests(records: Sequence[Record], axes: Sequence[str] = ("backend",)) -> list[Contest]:
    """The workloads that were timed twice or more, all else but ``axes`` equal."""
    if not isinstance(records, Kept):
        return _contests(records, axes)
    if tuple(axes) not in records.contests:
        records.contests[tuple(axes)] = _contests(records, axes)
    return list(records.contests[tuple(axes)])


def _contests(records: Sequence[Record], axes: Sequence[str]) -> list[Contest]:
    varying = varying_keys(records)
    names = [name for name in _ALL if name not in axes]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if is_ok(record):
            groups.setdefault(tuple(_hashable(record.get(name)) for name in names), []).append(
                record
            )
    found = []
    for rows in groups.values():
        clock = common_clock(rows)
        timed = [(*point, row) for row in rows if (point := latency_on(row, clock)) is not None]
        timed.sort(key=lambda point: point[0])
        if len(timed) > 1:
            first_s, first_sd, first = timed[0]
            apart = [
                math.log(median_s / first_s) > Z95 * math.hypot(first_sd, sd)
                for median_s, sd, _ in timed
            ]
            found.append(
                Contest(
                    name=label(first, varying, without=axes),
                    kv_len=first["kv_len"],
                    clock=clock,
                    rows=tuple(row for _, _, row in timed),
                    medians_s=tuple(median_s for median_s, _, _ in timed),
                    sd=tuple(sd for _, sd, _ in timed),
                    num_first=apart.index(True) if any(apart) else len(apart),
                )
            )
    return found


def common_clock(rows: Sequence[Record]) -> str:
    """One clock for all rows: CPU time as soon as one row was disturbed, where all have it."""
    disturbed = any(
        row.get("clock") == "cpu" or "contended" in (row.get("flags") or ()) for row in rows
    )
    return "cpu" if disturbed and all(positive(row.get("median_cpu_s")) for row in rows) else "wall"


def latency_on(row: Record, clock: str | None) -> tuple[float, float] | None:
    """Median on ``clock`` and its standard deviation as a share of it."""
    name = "median_s"
    if row.get("clock", "wall") != clock:
        name = "median_cpu_s" if clock == "cpu" else "median_wall_s"
    value = positive(row.get(name))
    return None if value is None else (value, relative_sd(value, *interval_on(row, clock)))


def interval_on(row: Record, clock: str | None) -> tuple[float | None, float | None]:
    """The 95 % interval of the median on ``clock``, as far as it is known. [s]"""
    if row.get("clock", "wall") == clock:
        return row.get("median_low_s"), row.get("median_high_s")
    interval = median_interval(row.get("samples_cpu_s" if clock == "cpu" else "samples_s") or ())
    return interval.low_s, interval.high_s


def _peak(row: Record) -> tuple[float, float] | None:
    value = positive(row.get("peak_activation_bytes"))
    return None if value is None else (value, BYTES_SD)


def _growth_series(record: Record, varying: Mapping[str, Sequence[str]]) -> Series | None:
    """Time of a step against the length of the cache, as medians over stretches of steps.

    A step without a cache computes all tokens anew, so its length is that of a prompt.
    """
    growth = [point for point in record.get("growth") or () if positive(point.get("wall_s"))]
    if record.get("phase") == "generate":
        growth = [point for point in growth if point["kv_len"] != record.get("start_len")]
    if len(growth) < 3 * _GROWTH_BINS:
        return None
    on_cpu = common_clock([record]) == "cpu" and all(positive(p.get("cpu_s")) for p in growth)
    key = "cpu_s" if on_cpu else "wall_s"
    edges = [len(growth) * i // _GROWTH_BINS for i in range(_GROWTH_BINS + 1)]
    n, values, sd = [], [], []
    for start, stop in itertools.pairwise(edges):
        stretch = growth[start:stop]
        times_s = [float(point[key]) for point in stretch]
        interval, median_s = median_interval(times_s), statistics.median(times_s)
        n.append(round(sum(point["kv_len"] for point in stretch) / len(stretch)))
        values.append(median_s)
        sd.append(relative_sd(median_s, interval.low_s, interval.high_s))
    return Series(
        name=label(record, varying, without="kv_len"),
        axis="seq_len" if record.get("kv_cache") == "none" else "kv_len",
        quantity="latency",
        clock="cpu" if on_cpu else "wall",
        where={name: record[name] for name in (*IDENTITY, "q_len") if name in record},
        n=tuple(n),
        values=tuple(values),
        sd=tuple(sd),
        records=(record,),
    )
