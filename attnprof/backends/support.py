"""A workload and a kind of device -> why a backend cannot run it, or None when it can.

Says what is known before anything is built, and imports no torch, so that a plan can be made
without it. What only the kernel itself knows (an old driver, a head size) it says when it is
called, and that becomes an ``unsupported`` record just the same.
"""

from dataclasses import dataclass, replace

from attnprof.errors import UsageError, nearest
from attnprof.positions import POSITIONS
from attnprof.theory.calls import kernel_calls
from attnprof.theory.weights import STORED_DTYPES
from attnprof.workload import GROWING, Workload

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
    # Kinds on which it takes a mask as a tensor, has sliding windows of its own, or a causal
    # triangle that ends at the last key.
    masked_on: tuple[str, ...] = ()
    windowed_on: tuple[str, ...] = ()
    ends_causal_on: tuple[str, ...] = ()
    # Kinds on which it takes a bias, caps scores, takes logits of sinks, has values that are not
    # as wide as keys, and goes backward.
    biased_on: tuple[str, ...] = ()
    softcapped_on: tuple[str, ...] = ()
    sinks_on: tuple[str, ...] = ()
    value_widths_on: tuple[str, ...] = ()
    trains_on: tuple[str, ...] = ()
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
                "cpu": _ALL, "cuda": (*_ALL, "tf32"), "rocm": _ALL, "mps": _COMMON,
                "xpu": _ALL,
            },
            masked_on=_EVERYWHERE,
            biased_on=_EVERYWHERE,
            softcapped_on=_EVERYWHERE,
            sinks_on=_EVERYWHERE,
            value_widths_on=_EVERYWHERE,
            trains_on=_EVERYWHERE,
        ),
        Backend(
            name="math",
            summary="torch SDPA, its fall-back in plain operators, O(n²)",
            module="attnprof.backends.sdpa",
            dtypes={
                "cpu": _ALL, "cuda": (*_ALL, "tf32"), "rocm": _ALL, "mps": _COMMON,
                "xpu": _ALL,
            },
            masked_on=_EVERYWHERE,
            biased_on=_EVERYWHERE,
            value_widths_on=_EVERYWHERE,
            trains_on=_EVERYWHERE,
        ),
        Backend(
            name="flash",
            summary="torch SDPA, FlashAttention",
            module="attnprof.backends.sdpa",
            dtypes={"cpu": _ALL, "cuda": _HALF, "rocm": _HALF, "xpu": _HALF},
            masked_on=("cpu",),
            ends_causal_on=("cuda", "rocm"),
            biased_on=("cpu",),
            trains_on=("cpu", "cuda", "rocm", "xpu"),
            max_head_dim=256,
        ),
        Backend(
            name="mem-efficient",
            summary="torch SDPA, memory-efficient attention (CUTLASS, once xFormers')",
            module="attnprof.backends.sdpa",
            dtypes={"cuda": _COMMON, "rocm": _COMMON},
            masked_on=("cuda", "rocm"),
            biased_on=("cuda", "rocm"),
            trains_on=("cuda", "rocm"),
            shares_kv_heads=False,
        ),
        Backend(
            name="cudnn",
            summary="torch SDPA, cuDNN",
            module="attnprof.backends.sdpa",
            dtypes={"cuda": _HALF},
            masked_on=("cuda",),
            trains_on=("cuda",),
            max_head_dim=256,
        ),
        Backend(
            name="flex",
            summary="FlexAttention, compiled; skips the blocks that a window hides",
            module="attnprof.backends.flex",
            dtypes={"cpu": _COMMON, "cuda": _COMMON, "rocm": _COMMON, "xpu": _COMMON},
            masked_on=("cpu", "cuda", "rocm", "xpu"),
            biased_on=("cpu", "cuda", "rocm", "xpu"),
            softcapped_on=("cpu", "cuda", "rocm", "xpu"),
            sinks_on=("cuda", "rocm"),
            value_widths_on=("cpu", "cuda", "rocm", "xpu"),
            trains_on=("cuda", "rocm"),
            grows=False,
        ),
        Backend(
            name="flash-attn",
            summary="the flash-attn package",
            module="attnprof.backends.flash_attn",
            dtypes={"cuda": _HALF, "rocm": _HALF},
            windowed_on=("cuda", "rocm"),
            ends_causal_on=("cuda", "rocm"),
            softcapped_on=("cuda", "rocm"),
            trains_on=("cuda", "rocm"),
            max_head_dim=256,
            package="flash-attn",
        ),
        Backend(
            name="flashinfer",
            summary="the FlashInfer package",
            module="attnprof.backends.flashinfer",
            dtypes={"cuda": _HALF},
            masked_on=("cuda",),
            windowed_on=("cuda",),
            ends_causal_on=("cuda",),
            softcapped_on=("cuda",),
            max_head_dim=256,
            package="flashinfer-python",
        ),
        Backend(
            name="xformers",
            summary="the xFormers package",
            module="attnprof.backends.xformers",
            dtypes={"cuda": _COMMON, "rocm": _HALF},
            windowed_on=("cuda", "rocm"),
            ends_causal_on=("cuda", "rocm"),
            trains_on=("cuda", "rocm"),
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
        lacks = f"{backend.name} on {device_kind} has no {workload.dtype}: {', '.join(dtypes)}"
        if workload.dtype.startswith("float8"):
            lacks += (
                "; no kernel here multiplies scores in 8 bits: store keys and values in them by "
                "kv_dtype, and weights of a layer by weight_dtype"
            )
        return lacks
    if workload.weight_dtype is not None and (reason := _weight_reason(workload)):
        return reason
    if workload.mixer != "attention":
        return None
    if workload.scope != "op":
        return _scope_reason(backend, workload, device_kind)
    return (
        _going_reason(backend, workload, device_kind)
        or _phase_reason(workload)
        or _cache_reason(backend, workload)
        or next(
            (
                reason
                for call in _calls(workload)
                if (reason := _call_reason(backend, fitted(call, device_kind), device_kind))
            ),
            None,
        )
    )


def _calls(workload: Workload) -> tuple[Workload, ...]:
    """What kernels compute for a workload: of one that grows its last step, and its prompt."""
    if workload.phase not in GROWING or workload.start_len is None:
        return kernel_calls(workload)
    calls = kernel_calls(workload.step(workload.kv_len))
    return calls if workload.phase == "kv-growth" else (*calls, *kernel_calls(workload.prompt()))


def fitted(call: Workload, device_kind: str) -> Workload:
    """A call of a kernel as this one can take it.

    Of MLA, values are made in the call, so for a kernel whose values are as wide as its keys they
    are: the expanded ones with zeros behind them, of the latent all that is beside it. Engines do
    so for FlashAttention 2, and cut the output.
    """
    backend = backend_named(call.backend)
    narrow = call.mla is not None and device_kind not in (*backend.value_widths_on, "synthetic")
    return replace(call, v_head_dim=None) if narrow else call


def _weight_reason(workload: Workload) -> str | None:
    """Why the weights cannot be stored so; whether torchao is there is told when it is needed."""
    stored = workload.weight_dtype
    if workload.mixer not in ("attention", "linear"):
        return f"{workload.mixer} has cells and no linear layers: weights of its own dtype only"
    if stored not in STORED_DTYPES:
        return f"weights are stored in {', '.join(STORED_DTYPES)} or in the dtype, not in {stored}"
    if workload.dtype == "float64":
        return f"torchao stores no {stored} weights of float64: dtype float32, bfloat16 or float16"
    return None


def _scope_reason(backend: Backend, workload: Workload, device_kind: str) -> str | None:
    """Why a layer, block or model cannot run: it cannot be built, or one of its attentions not."""
    from attnprof.backends.scope_support import attention_calls, scope_reason

    reason = scope_reason(workload) or _going_reason(backend, workload, device_kind)
    if reason is not None:
        return reason
    reasons = (_call_reason(backend, call, device_kind) for call in attention_calls(workload))
    return next((reason for reason in reasons if reason), None)


def _going_reason(backend: Backend, workload: Workload, device_kind: str) -> str | None:
    """Why the kernel does not go backward, or from length to length."""
    phase = workload.phase
    if phase == "train" and device_kind not in backend.trains_on:
        return f"{backend.name} on {device_kind} does not go backward"
    if phase in GROWING and not backend.grows:
        return f"{backend.name} is compiled for one length, and a growing cache has many"
    return None


def _phase_reason(workload: Workload) -> str | None:
    """Why a phase is not there for attention alone."""
    phase = workload.phase
    if workload.mla is not None and phase == "train":
        return "a latent and its weights go forward alone: no training step of mla at scope op"
    if phase == "train" and workload.position == "shaw":
        return "gradients of shaw's keys are not measured yet"
    return None


def _call_reason(backend: Backend, call: Workload, device_kind: str) -> str | None:
    return (
        _shape_reason(backend, call, device_kind)
        or _sight_reason(backend, call, device_kind)
        or _score_reason(backend, call, device_kind)
    )


def _shape_reason(backend: Backend, call: Workload, device_kind: str) -> str | None:
    too_wide = backend.max_head_dim is not None and call.head_dim > backend.max_head_dim
    if too_wide and device_kind != "cpu":
        return f"{backend.name} takes head_dim up to {backend.max_head_dim}, not {call.head_dim}"
    if call.value_dim != call.head_dim and device_kind not in backend.value_widths_on:
        return (
            f"{backend.name} on {device_kind} has values as wide as keys: "
            f"v_head_dim {call.value_dim} is not head_dim {call.head_dim}"
        )
    if not backend.shares_kv_heads and call.num_kv_heads != call.num_q_heads:
        return (
            f"{backend.name} cannot share {call.num_kv_heads} KV heads among "
            f"{call.num_q_heads} query heads without copying them"
        )
    return None


def _sight_reason(backend: Backend, call: Workload, device_kind: str) -> str | None:
    """Why the kernel cannot hide what the variant hides."""
    if device_kind in backend.masked_on:
        return None
    without = f"{backend.name} on {device_kind} takes no mask"
    if min(call.lengths) < call.kv_len:
        return f"{without}, and sequences from {call.min_len} to {call.kv_len} are padded"
    first = call.mask.first_visible(call.q_len, call.kv_len)
    pairs = call.mask.attended_pairs(call.q_len, call.kv_len)
    if pairs == call.q_len * (call.kv_len - first):
        return None
    if call.variant == "sliding":
        if device_kind not in backend.windowed_on:
            return f"{without} and has no sliding window"
        return None
    if call.variant != "causal":
        return f"{without}, and variant {call.variant} needs one"
    if call.q_len < call.kv_len and device_kind not in backend.ends_causal_on:
        return f"{without}, and its causal triangle begins at the first key, not after cached ones"
    return None


def _score_reason(backend: Backend, call: Workload, device_kind: str) -> str | None:
    """Why the kernel cannot change the scores as they are to be changed."""
    place = f"{backend.name} on {device_kind}"
    if call.softcap is not None and device_kind not in backend.softcapped_on:
        return f"{place} does not cap scores: softcap {call.softcap:g}"
    if call.sink_logits and device_kind not in backend.sinks_on:
        return f"{place} takes no logits of sinks"
    if POSITIONS[call.position].acts == "scores":
        if device_kind not in backend.biased_on:
            return f"{place} takes no bias, and position {call.position} is one"
        if call.kv_cache == "rolling":
            return f"a rolling cache is out of order, and position {call.position} goes by order"
    return None


def _cache_reason(backend: Backend, workload: Workload) -> str | None:
    phase = workload.phase
    own_keys = phase == "train" or (phase == "prefill" and workload.attention == "self")
    if own_keys and workload.cached_dtype != workload.dtype:
        return f"{phase} attends to its own {workload.dtype} keys: no kv_dtype"
    return None
