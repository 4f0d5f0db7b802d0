"""What reading one file gives: its records, whose they are, what was left out and why."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError
from attnprof.gpus import Gpu, gpu_named
from attnprof.units import counted

TOO_FAST = 1.1  # times the peak that no kernel passes, the margin of a data sheet's clock included
TOLD_S = 1e-6  # at the peak: the least work that tells a unit
TOO_SLOW = 0.002  # of the peak, which the best of the large calls of any table passes
LARGE_S = 1e-4  # at the peak: from here on launching is no excuse


@dataclass(frozen=True)
class Asked:
    """What the user said of the sources beyond their paths."""

    device: str | None = None
    licence: str | None = None
    version: str | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where numbers come from; what is unknown is None."""

    source: str
    licence: str | None
    version: str | None  # a commit or release of the source

    @property
    def words(self) -> str:
        return f"{self.source}@{self.version}" if self.version else self.source

    def asked(self, asked: Asked) -> "Origin":
        """With what the user said in place of what was found."""
        return Origin(self.source, asked.licence or self.licence, asked.version or self.version)


@dataclass
class Part:
    """One file as it was read."""

    path: Path
    form: str
    origin: Origin
    num_rows: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    reason: str | None = None  # why the whole file was left out
    columns: Sequence[str] = ()  # of its tables, or the names of its fields
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the device, where they are known

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "form": self.form,
            "source": self.origin.source,
            "licence": self.origin.licence,
            "version": self.origin.version,
            "num_rows": self.num_rows,
            "num_records": len(self.records),
            "skipped": dict(self.skipped),
            "reason": self.reason,
        }


def found_gpu(names: Iterable[str | None], asked: Asked, where: str) -> str:
    """The profile of the GPU that the first known of ``names`` means.

    The user's word is for what a file does not say: it may not gainsay what the file does.

    Raises:
        UsageError: None of them is known, or the user names another.
    """
    wanted = None if asked.device is None else gpu_named(asked.device).name
    given = [name for name in names if name]
    problem: UsageError | None = None
    for name in given:
        try:
            found = gpu_named(name).name
        except UsageError as error:
            problem = problem or error
            continue
        if wanted is not None and found != wanted:
            raise UsageError(
                f"{where} is of {found!r}, --device says {wanted!r}", "leave --device out"
            )
        return found
    if wanted is not None:
        return wanted
    if problem is not None:
        raise UsageError(
            f"{where}: {problem.problem}",
            f"{problem.fix}; give --device NAME (attnprof show gpus), or write a profile of it",
        )
    raise UsageError(f"{where} does not say what it ran on", "give --device NAME")


def check_units(part: Part, unit: str) -> None:
    """Hold times against what the GPU can do at most: a wrong unit is off by a thousand.

    Single rows that pass the peak are kept and flagged: whoever measured them did not compute all.

    Raises:
        UsageError: Most calls are faster than the GPU's peak, or no large call is near it.
    """
    gpus: dict[str, Gpu] = {}
    num_told = num_fast = 0
    best = 0.0
    for record in part.records:
        flops = _flops(record)
        if flops is None:
            continue
        device = record["device"]
        if device not in gpus:
            gpus[device] = gpu_named(device)
        peak = gpus[device].peak_flops_per_s(record["dtype"])
        if peak is None or flops / peak < TOLD_S:
            continue
        share = flops / record["median_s"] / peak
        num_told += 1
        if share > TOO_FAST:
            num_fast += 1
            record["flags"] = ["above_peak"]
        if flops / peak >= LARGE_S:
            best = max(best, share)
    fix = f"give times in {unit}, and check the device"
    if 2 * num_fast > num_told:
        raise UsageError(
            f"{part.path}: {num_fast} of {counted(num_told, 'call')} would run at over "
            f"{TOO_FAST} times the peak of {', '.join(gpus)}",
            fix,
        )
    if 0 < best < TOO_SLOW:
        raise UsageError(
            f"{part.path}: its best large call would run at {best:.2g} of the peak", fix
        )


def _flops(record: Mapping[str, Any]) -> float | None:
    """FLOP of a GEMM or a causal prefill; None of what memory bounds."""
    if record["kind"] == "gemm":
        return float(2 * record["m_tokens"] * record["n_out"] * record["k_in"])
    if record["kind"] == "attention" and record["phase"] == "prefill":
        keys = min(record["kv_len"], record["window_len"] or record["kv_len"])
        pairs = keys * (record["kv_len"] - keys / 2)
        heads = record["batch_size"] * record["num_q_heads"]
        return float(4 * heads * pairs * record["head_dim"])
    return None
