"""What kinds of KV cache cost and save, each as a ratio within one run."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.dtypes import dtype_named
from attnprof.series import common_clock
from attnprof.session import Asked
from attnprof.theory.kv_cache import SCALE_BYTES, SCALED
from attnprof.units import tokens
from tests.benchmarks.number import Number
from tests.benchmarks.sweeps import ran

DECODE = {"phase": "decode", "backend": "flash", "num_q_heads": "8", "num_kv_heads": "2"}
CACHES = "contiguous,static,paged"
PAGED_LENGTHS = "1k,8k,32k"
QUANTISED_LEN = "8k"
GENERATED = {"start_len": "256", "kv_len": "384"}
# DeepSeek-V2-Lite's attention: 16 heads of 128 + 64 and values of 128, from a latent of 512.
LATENT = {
    "num_q_heads": "16", "head_dim": "192", "v_head_dim": "128", "kv_lora_rank": "512",
    "rope_head_dim": "64", "kv_cache": "latent", "mla": "expanded,absorbed",
}  # fmt: skip
LATENT_LEN = "8k"

Record = Mapping[str, Any]


def numbers(busy: bool) -> list[Number]:
    return [
        *paged_numbers(records_of(DECODE | {"kv_len": PAGED_LENGTHS, "kv_cache": CACHES})),
        *quantised_numbers(quantised(QUANTISED_LEN)),
        bought_number(records_of(GENERATED | {"phase": "generate", "kv_cache": "none,static"})),
        absorbed_number(latent(LATENT_LEN)),
    ]


def records_of(axes: Mapping[str, Any], device: str = "cpu") -> tuple[Record, ...]:
    asked = Asked(axes={"backend": "flash", **axes}, device=device)
    return tuple(ran(asked).outcome.records)


def quantised(kv_len: str, device: str = "cpu") -> tuple[Record, ...]:
    kinds = ",".join(("float32", *SCALED))
    return records_of(DECODE | {"kv_cache": "static", "kv_dtype": kinds, "kv_len": kv_len}, device)


def latent(kv_len: str, device: str = "cpu") -> tuple[Record, ...]:
    return records_of(LATENT | {"phase": "decode", "kv_len": kv_len}, device)


def paged_numbers(records: Sequence[Record]) -> list[Number]:
    """Shown and not judged: the kernels here know no block table, so blocks are gathered."""
    found = []
    for base in ("contiguous", "static"):
        for kv_len in sorted({record["kv_len"] for record in records}):
            paged, other = (_the(records, kv_len=kv_len, kv_cache=kind) for kind in ("paged", base))
            ratio, how = _ratio(paged, other)
            found.append(
                Number(
                    name=f"decode of a paged cache over a {base} one, {tokens(kv_len)} tokens",
                    found=f"{ratio:.2f}×",
                    how=how,
                )
            )
    return found


def quantised_numbers(records: Sequence[Record]) -> list[Number]:
    """Bytes of codes and scales, and what reading them back costs in time and in error."""
    plain = _the(records, kv_dtype="float32")
    return [_quantised_number(_the(records, kv_dtype=name), plain) for name in SCALED]


def _quantised_number(record: Record, plain: Record) -> Number:
    width = record["head_dim"]
    wanted = (width * dtype_named(record["kv_dtype"]).bytes + SCALE_BYTES) / (4 * width)
    share = record["kv_bytes"] / plain["kv_bytes"]
    ratio, how = _ratio(record, plain)
    error = (record.get("check") or {}).get("rms_error")
    if error is not None:
        how += f"; rms error {error:.2g}"
    return Number(
        name=f"bytes of a cache in {record['kv_dtype']}, of one in float32",
        found=f"{share:.4f}",
        wanted=f"{wanted:.4f}",
        met=share == wanted and record["kv_bytes"] == record["theory_kv_bytes"],
        how=f"codes and a scale a token and head of {width}; a decode takes {ratio:.2f}×, {how}",
    )


def bought_number(records: Sequence[Record]) -> Number:
    none, static = (_the(records, kv_cache=kind) for kind in ("none", "static"))
    clock = common_clock([none, static])
    key = "total_cpu_s" if clock == "cpu" else "total_s"
    without, with_it = none["growth"][-1][key], static["growth"][-1][key]
    return Number(
        name="generation without a cache over one with",
        found=f"{without / with_it:.1f}×",
        wanted="more than 1×",
        met=without > with_it,
        how=f"{none['start_len']} tokens and then to {none['kv_len']}, {clock}",
    )


def absorbed_number(records: Sequence[Record]) -> Number:
    expanded, absorbed = (_the(records, mla=form) for form in ("expanded", "absorbed"))
    ratio, how = _ratio(expanded, absorbed)
    return Number(
        name=f"MLA's decode, expanded over absorbed, {tokens(expanded['kv_len'])} tokens",
        found=f"{ratio:.1f}×",
        wanted="more than 1×",
        met=ratio > 1,
        how=how,
    )


def _the(records: Sequence[Record], **where: Any) -> Record:
    [record] = [
        one for one in records if all(one.get(key) == value for key, value in where.items())
    ]
    assert record["status"] == "ok", record["reason"]
    return record


def _ratio(record: Record, base: Record) -> tuple[float, str]:
    """Of the medians, on one clock for both."""
    clock = common_clock([record, base])
    key = f"median_{clock}_s"
    times = f"{record[key]:.3g} s to {base[key]:.3g} s by the median, {clock}"
    return record[key] / base[key], times
