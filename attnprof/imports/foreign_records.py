"""One measurement of another project -> a record: the keys of each kind, and an id of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attnprof.dtypes import dtype_named
from attnprof.errors import UsageError
from attnprof.record_values import FORMAT
from attnprof.workload import Workload

PROVENANCE = "imported"
_WHOSE = (
    "workload_id", "kind", "status", "provenance", "source", "device", "engine", "engine_version",
    "kernel", "backend", "dtype", "median_s", "statistic", "num_samples", "samples_s", "num_merged",
    "clock", "flags",
)  # fmt: skip
_OF_WORKLOADS = (
    "scope", "phase", "attention", "variant", "window_len", "position", "kv_cache",
    "block_tokens", "kv_dtype", "batch_size", "q_len", "kv_len", "num_q_heads", "num_kv_heads",
    "head_dim", "num_layers",
)  # fmt: skip
KEYS: Mapping[str, tuple[str, ...]] = {
    "attention": (*_WHOSE, *_OF_WORKLOADS),
    "gemm": (*_WHOSE, "op", "m_tokens", "n_out", "k_in"),
    "all-reduce": (*_WHOSE, "system", "collective", "num_ranks", "message_bytes"),
    "layer-op": (
        *_WHOSE, "op", "num_tokens", "hidden_size", "ffn_dim", "num_q_heads", "num_kv_heads",
        "tensor_parallel",
    ),
    "model": (
        *_WHOSE, "phase", "model", "batch_size", "kv_dtype", "prompt_len", "output_len",
        "depth_len", "num_devices", "num_params", "weight_bytes", "settings", "tokens_per_s",
        "stddev_s",
    ),
}  # fmt: skip
"""The keys of a record of each kind: what a call was, and what else its time depends on."""
FOREIGN_KEYS = tuple(dict.fromkeys(key for keys in KEYS.values() for key in keys))
LEAST_RANKS = 2
ONE_RANK = "one rank has nobody to reduce with"


@dataclass(frozen=True)
class Measured:
    """Whose time it is: what was run on what, by which source, and what the number is."""

    source: str
    device: str  # a GPU profile's name, or a processor as its driver calls it
    engine: str
    engine_version: str | None
    kernel: str | None  # as the source names it
    dtype: str | None
    statistic: str  # mean or median, of how the source made one number of its repeats


def dtype_words(name: str, schemes: tuple[str, ...] = ()) -> str | None:
    """torch's name of an element type, or one of ``schemes`` as it is; None where it is neither.

    >>> dtype_words("half"), dtype_words("nvfp4", ("nvfp4",)), dtype_words("fp7")
    ('float16', 'nvfp4', None)
    """
    if name in schemes:
        return name
    try:
        return dtype_named(name).name
    except UsageError:
        return None


def is_foreign(record: Mapping[str, Any]) -> bool:
    """Whether a record was made of another project's number: it has a ``kind``."""
    return record.get("kind") is not None


def _record(
    kind: str, of: Measured, base_id: str, median_s: float, values: Mapping[str, Any]
) -> dict[str, Any]:
    version = f"-{of.engine_version}" if of.engine_version else ""
    found: dict[str, Any] = {
        "workload_id": f"{of.device}-{of.engine}{version}-{base_id}",
        "kind": kind,
        "status": "ok",
        "provenance": PROVENANCE,
        "source": of.source,
        "device": of.device,
        "engine": of.engine,
        "engine_version": of.engine_version,
        "kernel": of.kernel,
        "backend": of.kernel or of.engine,
        "dtype": of.dtype,
        "median_s": median_s,
        "statistic": of.statistic,
        "num_samples": None,
        "samples_s": [],
        "num_merged": 1,
        "clock": "wall",
        "flags": [],
        **values,
    }
    return {"format": FORMAT, **{key: found[key] for key in KEYS[kind]}}


def attention_record(
    of: Measured,
    latency_s: float,
    *,
    phase: str,
    batch_size: int,
    q_len: int,
    kv_len: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_dtype: str,
    window_len: int | None = None,
    variant: str = "causal",
    block_tokens: int | None = None,
) -> dict[str, Any]:
    """One attention call of one layer; a decode reads a paged cache, as all these engines have."""
    assert of.dtype is not None
    workload = Workload(
        backend=of.kernel or of.engine,
        phase=phase,
        dtype=of.dtype,
        batch_size=batch_size,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        variant=variant if window_len is None else "sliding",
        window_len=window_len,
        kv_cache="none" if phase == "prefill" else "paged",
        kv_dtype=kv_dtype,
        block_tokens=block_tokens,
    )
    values = {key: getattr(workload, key) for key in _OF_WORKLOADS}
    return _record("attention", of, workload.workload_id, latency_s, values)


def gemm_record(
    of: Measured, latency_s: float, *, m_tokens: int, n_out: int, k_in: int, op: str | None = None
) -> dict[str, Any]:
    """One product ``[m, k] × [k, n]``: m tokens into a linear layer."""
    base = f"gemm-{of.kernel or of.engine}-{of.dtype}-m{m_tokens}-n{n_out}-k{k_in}"
    values = {"op": op, "m_tokens": m_tokens, "n_out": n_out, "k_in": k_in}
    return _record("gemm", of, f"{base}-{op}" if op else base, latency_s, values)


def all_reduce_record(
    of: Measured,
    latency_s: float,
    *,
    num_ranks: int,
    message_bytes: int,
    system: str | None = None,
) -> dict[str, Any]:
    """One all-reduce of ``message_bytes`` that each rank holds; ``system`` is how they are wired,
    where the source has several."""
    base = f"all-reduce-{of.kernel or of.engine}-{of.dtype}-r{num_ranks}-{message_bytes}b"
    values = {
        "system": system, "collective": "all_reduce", "num_ranks": num_ranks,
        "message_bytes": message_bytes,
    }  # fmt: skip
    return _record("all-reduce", of, f"{base}-{system}" if system else base, latency_s, values)


def layer_op_record(
    of: Measured,
    latency_s: float,
    *,
    op: str,
    num_tokens: int,
    hidden_size: int,
    ffn_dim: int | None,
    num_q_heads: int,
    num_kv_heads: int,
    tensor_parallel: int,
) -> dict[str, Any]:
    """A small operator of a layer: a norm, a rotation, an activation, an addition."""
    values = {
        "op": op, "num_tokens": num_tokens, "hidden_size": hidden_size, "ffn_dim": ffn_dim,
        "num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads,
        "tensor_parallel": tensor_parallel,
    }  # fmt: skip
    heads = f"h{num_q_heads}kv{num_kv_heads}"
    base = f"{op}-{of.dtype}-t{num_tokens}-{hidden_size}-f{ffn_dim}-{heads}-tp{tensor_parallel}"
    return _record("layer-op", of, base, latency_s, values)


@lru_cache(maxsize=4096)
def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]


def model_record(
    of: Measured,
    total_s: float,
    *,
    model: str,
    prompt_len: int,
    output_len: int,
    depth_len: int,
    kv_dtype: str | None,
    num_devices: int | None,
    num_params: int | None,
    weight_bytes: int | None,
    settings: str,
    stddev_s: float | None,
    samples_s: list[float],
) -> dict[str, Any]:
    """A prompt, an answer or both through a whole model; ``settings`` are the engine's."""
    tokens = prompt_len + output_len
    phase = "generate" if output_len else "prefill"
    base = f"model-{phase}-{model}-p{prompt_len}-n{output_len}-d{depth_len}-{_digest(settings)}"
    values = {
        "phase": phase, "model": model, "batch_size": 1, "kv_dtype": kv_dtype,
        "prompt_len": prompt_len, "output_len": output_len, "depth_len": depth_len,
        "num_devices": num_devices, "num_params": num_params, "weight_bytes": weight_bytes,
        "settings": settings, "tokens_per_s": tokens / total_s, "stddev_s": stddev_s,
        "samples_s": samples_s, "num_samples": len(samples_s) or None,
    }  # fmt: skip
    return _record("model", of, base, total_s, values)
