"""A workload and a kind of device -> why a backend cannot run it, or None when it can.

Says what is known before anything is built, and imports no torch, so that a plan can be made
without it. What only the kernel itself knows (an old driver, a head size) it says when it is
called, and that becomes an ``unsupported`` record just the same.
"""

from dataclasses import dataclass

from attnprof.errors import UsageError, nearest
from attnprof.workload import Workload

_HALF = ("bfloat16", "float16")
_COMMON = ("float32", *_HALF)
_ALL = ("float64", *_COMMON)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What a backend is, where its code is, and what it can do on which kind of device."""

    name: str
    summary: str
    module: str
    dtypes: dict[str, tuple[str, ...]]  # by kind of device; a kind that is missing is not served
    masked_on: tuple[str, ...] = ()  # kinds on which it takes a mask, for windows of a prefill
    max_head_dim: int | None = None  # on accelerators
    shares_kv_heads: bool = True  # GQA without copying keys and values first
    grows: bool = True  # serves lengths that change from call to call
    package: str | None = None  # what to install for it

    @property
    def installed(self) -> bool:
        """Whether its package can be imported; those that torch brings have none."""
        import importlib.util

        return self.package is None or importlib.util.find_spec(self.module_of_package) is not None

    @property
    def module_of_package(self) -> str:
        return (self.package or "").replace("-", "_").removesuffix("_python")


_EVERYWHERE = ("cpu", "cuda", "rocm", "mps", "xpu")

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            name="eager",
            summary="plain torch; writes all scores to memory, O(n²)",
            module="attnprof.backends.eager",
            dtypes={
                "cpu": _ALL, "cuda": _ALL, "rocm": _ALL, "mps": _COMMON, "xpu": _ALL,
            },
            masked_on=_EVERYWHERE,
        ),
        Backend(
            name="math",
            summary="torch SDPA, its fall-back in plain operators, O(n²)",
            module="attnprof.backends.sdpa",
            dtypes={
                "cpu": _ALL, "cuda": _ALL, "rocm": _ALL, "mps": _COMMON, "xpu": _ALL,
            },
            masked_on=_EVERYWHERE,
        ),
        Backend(
            name="flash",
            summary="torch SDPA, FlashAttention",
            module="attnprof.backends.sdpa",
            dtypes={"cpu": _ALL, "cuda": _HALF, "rocm": _HALF, "xpu": _HALF},
            masked_on=("cpu",),
            max_head_dim=256,
        ),
        Backend(
            name="mem-efficient",
            summary="torch SDPA, memory-efficient attention (CUTLASS, once xFormers')",
            module="attnprof.backends.sdpa",
            dtypes={"cuda": _COMMON, "rocm": _COMMON},
            masked_on=("cuda", "rocm"),
            shares_kv_heads=False,
        ),
        Backend(
            name="cudnn",
            summary="torch SDPA, cuDNN",
            module="attnprof.backends.sdpa",
            dtypes={"cuda": _HALF},
            masked_on=("cuda",),
            max_head_dim=256,
        ),
        Backend(
            name="flex",
            summary="FlexAttention, compiled; skips the blocks that a window hides",
            module="attnprof.backends.flex",
            dtypes={"cpu": _COMMON, "cuda": _COMMON, "rocm": _COMMON, "xpu": _COMMON},
            masked_on=("cpu", "cuda", "rocm", "xpu"),
            grows=False,
        ),
        Backend(
            name="flash-attn",
            summary="the flash-attn package",
            module="attnprof.backends.flash_attn",
            dtypes={"cuda": _HALF, "rocm": _HALF},
            masked_on=("cuda", "rocm"),
            max_head_dim=256,
            package="flash-attn",
        ),
        Backend(
            name="flashinfer",
            summary="the FlashInfer package",
            module="attnprof.backends.flashinfer",
            dtypes={"cuda": _HALF},
            masked_on=("cuda",),
            max_head_dim=256,
            package="flashinfer-python",
        ),
        Backend(
            name="xformers",
            summary="the xFormers package",
            module="attnprof.backends.xformers",
            dtypes={"cuda": _COMMON, "rocm": _HALF},
            masked_on=("cuda", "rocm"),
            max_head_dim=256,
            package="xformers",
        ),
    )
}  # fmt: skip


def backend_named(name: str) -> Backend:
    """The backend called ``name``.

    Raises:
        UsageError: No such backend.
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}", nearest(name, list(BACKENDS)))
    return BACKENDS[name]


def unsupported_reason(workload: Workload, device_kind: str) -> str | None:
    """Why ``workload`` cannot run on such a device, or None when nothing speaks against it.

    The synthetic device computes nothing and so can all.

    >>> unsupported_reason(Workload(backend="cudnn", q_len=8, kv_len=8), "cpu")
    'cudnn does not run on cpu'

    Raises:
        UsageError: No such backend.
    """
    backend = backend_named(workload.backend)
    if device_kind == "synthetic":
        return None
    dtypes = backend.dtypes.get(device_kind)
    if dtypes is None:
        return f"{backend.name} does not run on {device_kind}"
    if workload.dtype not in dtypes:
        return f"{backend.name} on {device_kind} has no {workload.dtype}: {', '.join(dtypes)}"
    return (
        _scope_reason(workload)
        or _shape_reason(backend, workload, device_kind)
        or _cache_reason(backend, workload)
    )


def _scope_reason(workload: Workload) -> str | None:
    for axis, served in (("scope", "op"), ("attention", "self"), ("position", "none")):
        if getattr(workload, axis) != served:
            return f"{axis} {getattr(workload, axis)!r} is not measured yet"
    return None


def _shape_reason(backend: Backend, workload: Workload, device_kind: str) -> str | None:
    too_wide = backend.max_head_dim is not None and workload.head_dim > backend.max_head_dim
    if too_wide and device_kind != "cpu":
        return f"{backend.name} takes head_dim up to {backend.max_head_dim}"
    if not backend.shares_kv_heads and workload.num_kv_heads != workload.num_q_heads:
        return (
            f"{backend.name} cannot share {workload.num_kv_heads} KV heads among "
            f"{workload.num_q_heads} query heads without copying them"
        )
    masked = workload.window_len is not None and workload.q_len > 1
    if masked and device_kind not in backend.masked_on:
        return f"{backend.name} on {device_kind} has no sliding window and takes no mask"
    return None


def _cache_reason(backend: Backend, workload: Workload) -> str | None:
    if workload.phase == "prefill" and workload.cached_dtype != workload.dtype:
        return f"prefill attends to its own {workload.dtype} keys: no kv_dtype"
    if workload.phase == "kv-growth" and not backend.grows:
        return f"{backend.name} is compiled for one length, and a growing cache has many"
    return None
