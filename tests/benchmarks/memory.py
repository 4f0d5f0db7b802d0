"""Whether memory is what formulas say: the peak of a call, the bytes of a cache, how it grows."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.session import Asked
from attnprof.theory.kv_cache import kv_bytes
from attnprof.units import capacity
from attnprof.workload import PAGED_BLOCK_TOKENS
from tests.benchmarks.number import Number
from tests.benchmarks.sweeps import ONCE, Ran, ran

PEAK_BYTES = 0.1 * 2**20
LENGTHS = "256..2048x2"
THREADS = (1, 2)
GROWN_LEN = 512

Record = Mapping[str, Any]


def numbers(busy: bool) -> list[Number]:
    return of_sweeps({threads: prefills(threads) for threads in THREADS}, caches_grown(GROWN_LEN))


def of_sweeps(weighed: Mapping[int, Sequence[Record]], grown: Ran) -> list[Number]:
    """Rows of the prefills by their number of threads, and of the caches."""
    found = [
        _peak_number(backend, threads, records)
        for backend in ("math", "flash")
        for threads, records in weighed.items()
    ]
    prefilled = [record for records in weighed.values() for record in records]
    found.append(_kv_number([*prefilled, *grown.outcome.records]))
    found += [growth_number(kv, grown.outcome.records[0]) for kv in grown.fits["kv"]]
    return found


def prefills(threads: int, seq_len: str = LENGTHS) -> Sequence[Record]:
    """Records of ``math`` and ``flash`` on CPU, full and causal."""
    axes = {"backend": "math,flash", "variant": "full,causal", "seq_len": seq_len}
    return ran(Asked(axes=axes, device="cpu", threads=threads), ONCE).outcome.records


def caches_grown(kv_len: int, device: str = "cpu") -> Ran:
    """A decode of each kind of cache, from one token to ``kv_len``."""
    axes = {
        "phase": "kv-growth", "kv_cache": "contiguous,static,paged", "num_kv_heads": "2",
        "num_layers": "4", "start_len": "1", "kv_len": str(kv_len),
    }  # fmt: skip
    return ran(Asked(axes=axes, device=device), ONCE)


def furthest_off_bytes(records: Sequence[Record], backend: str) -> int:
    """Largest difference between a measured peak and its formula. [bytes]"""
    return max(
        abs(int(record["peak_activation_bytes"]) - int(record["theory_peak_activation_bytes"]))
        for record in records
        if record["backend"] == backend
    )


def _peak_number(backend: str, threads: int, records: Sequence[Record]) -> Number:
    off_bytes = furthest_off_bytes(records, backend)
    mine = [record for record in records if record["backend"] == backend]
    peaks = [record["peak_activation_bytes"] for record in mine]
    lengths = [record["kv_len"] for record in mine]
    return Number(
        name=f"peak of {backend}, threads {threads}, against its formula",
        found=f"{off_bytes:,} bytes off",
        wanted="0.1 MiB at most",
        met=off_bytes <= PEAK_BYTES,
        how=f"furthest of {len(peaks)} prefills, full and causal, n {min(lengths)} to "
        f"{max(lengths)}: profiler {capacity(min(peaks))} to {capacity(max(peaks))}",
    )


def _kv_number(records: Sequence[Record]) -> Number:
    equal = sum(record["kv_bytes"] == record["theory_kv_bytes"] for record in records)
    return Number(
        name="KV bytes equal to theory's, to the byte",
        found=f"{equal} of {len(records)}",
        wanted="all",
        met=equal == len(records),
        how="bytes of the tensors of prefills and grown caches",
    )


def expected_growth(kv_cache: str, record: Record) -> dict[str, float | None]:
    """What a cache of ``record``'s sizes shows when it has grown to the end, by kind.

    A contiguous one holds, while the last layer appends, that layer's old V beside the new one;
    a static one has everything from the start; a paged one takes blocks, in all layers at once.
    """

    def bytes_of(num_tokens: int, num_layers: int) -> int:
        return kv_bytes(
            num_tokens * record["batch_size"],
            num_layers=num_layers,
            num_kv_heads=record["num_kv_heads"],
            head_dim=record["head_dim"],
            dtype=record["kv_dtype"],
        )

    old_v = bytes_of(record["kv_len"] - 1, 1) // 2
    overshoot_bytes = old_v if kv_cache == "contiguous" else 0
    step_tokens = {"contiguous": 1, "paged": PAGED_BLOCK_TOKENS}.get(kv_cache)
    return {
        "overshoot_bytes": overshoot_bytes,
        "step_tokens": step_tokens,
        "step_bytes": None if step_tokens is None else bytes_of(step_tokens, record["num_layers"]),
    }


def growth_number(kv: Mapping[str, Any], record: Record) -> Number:
    kv_cache = kv["where"]["kv_cache"]
    expected = expected_growth(kv_cache, record)
    found = {name: kv[name] for name in expected}
    return Number(
        name=f"growth of a {kv_cache} cache",
        found=_in_words(found),
        wanted=_in_words(expected),
        met=found == expected,
        how=f"kv-growth from {kv['from']} to {kv['to']} tokens, 4 layers, "
        f"{kv['bytes_per_token']:,.0f} bytes a token",
    )


def _in_words(growth: Mapping[str, float | None]) -> str:
    steps = (
        "no steps"
        if growth["step_tokens"] is None
        else f"steps of {growth['step_tokens']:,} tokens, {growth['step_bytes']:,} bytes"
    )
    return f"{steps}; overshoot {growth['overshoot_bytes']:,} bytes"
