"""Axes, typed or from a sweep's YAML, into workloads."""

import itertools
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnprof.dtypes import dtype_named
from attnprof.errors import UsageError, nearest
from attnprof.units import parse_tokens
from attnprof.variants import VARIANTS
from attnprof.workload import CACHE_REGIMES, KV_CACHES, PHASES, Workload, checked

MAX_WORKLOADS = 10_000
MAX_LENGTH = 2**31
USUAL = {"dtype": "float32", "cache_regime": "warm"}  # of a CPU
USUAL_OF_ACCELERATORS = {"dtype": "bfloat16", "cache_regime": "cold"}

_RANGE = re.compile(r"(?P<start>[^.]+)\.\.(?P<stop>[^x*+]+)(?:(?P<sign>[x*+])(?P<step>.+))?", re.I)


@dataclass(frozen=True)
class Axis:
    """One thing that a grid varies."""

    name: str
    help: str
    parse: Callable[[str], Any]
    default: Any = None
    alias: str | None = None
    is_length: bool = False  # counts, which may be ranges


def _count(text: str) -> int:
    value = parse_tokens(text)
    if not 1 <= value <= MAX_LENGTH:
        raise UsageError(
            f"{text!r} is out of range", f"write a whole number from 1 to {MAX_LENGTH}"
        )
    return value


def _kv_heads(text: str) -> int | str:
    return text if text in ("mha", "mqa") else _count(text)


def _one_of(what: str, known: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise UsageError(f"unknown {what} {text!r}", nearest(text, known))
        return text

    return parse


def _backend(text: str) -> str:
    from attnprof.backends.support import BACKENDS

    return _one_of("backend", (*BACKENDS, "all"))(text)


def _dtype(text: str) -> str:
    return dtype_named(text).name


AXES = {
    axis.name: axis
    for axis in (
        Axis("phase", "prefill, decode, kv-growth", _one_of("phase", PHASES), "prefill"),
        Axis("backend", "kernels, or 'all'", _backend, "flash"),
        Axis(
            "dtype",
            "float32, bfloat16, float16, ...; an accelerator's default is bfloat16, else float32",
            _dtype,
        ),
        Axis("variant", "full, causal, sliding", _one_of("variant", VARIANTS), "causal"),
        Axis("window_len", "tokens that 'sliding' sees", _count, None, "window", is_length=True),
        Axis("batch_size", "sequences in a call", _count, 1, "batch", is_length=True),
        Axis("seq_len", "sequence length", _count, None, "n", is_length=True),
        Axis("q_len", "query length", _count, None, is_length=True),
        Axis("kv_len", "cached tokens of a decode", _count, None, is_length=True),
        Axis("num_q_heads", "query heads", _count, 8, "heads", is_length=True),
        Axis("num_kv_heads", "KV heads, or mha, mqa", _kv_heads, "mha", "kv_heads", is_length=True),
        Axis("head_dim", "width of a head", _count, 64, is_length=True),
        Axis("num_layers", "layers, each with its tensors", _count, 1, "layers", is_length=True),
        Axis("kv_cache", "contiguous, static, paged", _one_of("kv_cache", KV_CACHES), "static"),
        Axis("kv_dtype", "element type of the cache, if another", _dtype, None),
        Axis("start_len", "cached tokens where kv-growth starts", _count, 1, is_length=True),
        Axis(
            "cache_regime",
            "warm or cold; an accelerator's default is cold, a CPU's warm",
            _one_of("cache_regime", CACHE_REGIMES),
        ),
    )
}
_ALIASES = {axis.alias: axis.name for axis in AXES.values() if axis.alias}


@dataclass(frozen=True)
class Skipped:
    """A combination that makes no sense, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class Grid:
    """The workloads of a sweep, in order, and what was left out of the product."""

    name: str
    workloads: tuple[Workload, ...]
    skipped: tuple[Skipped, ...] = ()


def axis_named(name: str) -> Axis:
    """The axis called ``name``, dashes and the short names of the field included.

    >>> axis_named("kv-heads").name
    'num_kv_heads'

    Raises:
        UsageError: No such axis.
    """
    plain = name.strip().replace("-", "_")
    found = AXES.get(_ALIASES.get(plain, plain))
    if found is None:
        known = [known.replace("_", "-") for known in (*AXES, *_ALIASES)]
        raise UsageError(f"unknown axis {name!r}", nearest(name.replace("_", "-"), known))
    return found


def parse_values(axis: Axis, given: Any) -> tuple[Any, ...]:
    """The values of one axis, from text such as ``1k,4k`` or ``512..8192x2``, or a YAML list.

    ``a..bxr`` and ``a..b*r`` multiply by ``r`` while they stay at or below ``b``; ``a..b+s`` adds.

    >>> parse_values(AXES["seq_len"], "512..4kx2")
    (512, 1024, 2048, 4096)
    >>> parse_values(AXES["num_q_heads"], "4..8+2, 32")
    (4, 6, 8, 32)

    Raises:
        UsageError: A value that the axis does not have, or a range with no end.
    """
    if isinstance(given, list | tuple):
        parts = list(given)
    elif isinstance(given, str):
        parts = [part for part in (piece.strip() for piece in given.split(",")) if part]
    else:
        parts = [given]
    if not parts:
        raise UsageError(f"axis {axis.name} has no value", f"it takes {axis.help}")
    values: list[Any] = []
    for part in parts:
        values.extend(_parse_part(axis, part))
        if len(values) > MAX_WORKLOADS:
            raise UsageError(
                f"axis {axis.name} has more than {MAX_WORKLOADS:,} values", "take fewer"
            )
    return tuple(dict.fromkeys(values))


def _parse_part(axis: Axis, part: Any) -> Iterable[Any]:
    if isinstance(part, bool) or not isinstance(part, str | int):
        raise UsageError(f"axis {axis.name} got {reprlib.repr(part)}", f"it takes {axis.help}")
    text = str(part).strip()
    span = _RANGE.fullmatch(text)
    try:
        if span is None:
            return [axis.parse(text)]
        if not axis.is_length:
            raise UsageError(f"{text!r} is a range", f"it takes {axis.help}")
        return _range(text, span)
    except UsageError as error:
        raise UsageError(f"axis {axis.name}: {error.problem}", error.fix) from None


def _range(text: str, span: re.Match[str]) -> Iterable[int]:
    start, stop = _count(span["start"]), _count(span["stop"])
    if span["sign"] is None:
        raise UsageError(
            f"range {text!r} has no step", f"write {text}x2 to double or {text}+1 to count"
        )
    step = _count(span["step"])
    multiplies = span["sign"] != "+"
    if start > stop or (multiplies and step < 2):
        raise UsageError(f"range {text!r} has no end", "write 512..8192x2 or 4..16+4")
    num_values = (
        math.floor(math.log(stop / start, step) + 1e-9) + 1
        if multiplies
        else (stop - start) // step + 1
    )
    if num_values > MAX_WORKLOADS:
        raise UsageError(f"range {text!r} has {num_values:,} values", "take a larger step")
    return [start * step**i if multiplies else start + i * step for i in range(num_values)]


def expand(
    name: str,
    groups: Mapping[str, Mapping[str, Any]],
    overrides: Mapping[str, Any] | None = None,
    backends: tuple[str, ...] = (),
    usual: Mapping[str, Any] | None = None,
) -> Grid:
    """The product of each group's axes, without repeats, in the order of the groups.

    Args:
        groups: Axes by group; an axis that a group does not name has its default.
        overrides: Axes that replace those of every group.
        backends: What ``all`` stands for.
        usual: What the device makes of axes that a group does not name, in place of the default.

    Raises:
        UsageError: An unknown axis or value, a product of more than ``MAX_WORKLOADS``, or a grid
            in which nothing makes sense.
    """
    typed = _parsed(overrides or {})
    device_usual = {**USUAL, **(usual or {})}
    workloads: dict[Workload, None] = {}
    skipped: dict[Skipped, None] = {}
    for group, given in groups.items():
        try:
            values = _overridden(_parsed(given), typed)
            if "all" in values.get("backend", ()):
                values["backend"] = backends
            num_combinations = math.prod(len(choices) for choices in values.values())
            if num_combinations > MAX_WORKLOADS:
                raise UsageError(
                    f"{num_combinations:,} combinations, more than {MAX_WORKLOADS:,}",
                    "take fewer values on an axis, or several sweeps",
                )
        except UsageError as error:
            where = f"group {group!r}" if len(groups) > 1 else "sweep"
            raise UsageError(f"{where}: {error.problem}", error.fix) from None
        for combination in itertools.product(*values.values()):
            made = _workload(dict(zip(values, combination, strict=True)), device_usual)
            if isinstance(made, Skipped):
                skipped.setdefault(made)
            else:
                workloads.setdefault(made)
        if len(workloads) + len(skipped) > MAX_WORKLOADS:
            raise UsageError(
                f"{name!r} has more than {MAX_WORKLOADS:,} combinations in all its groups",
                "take fewer values on an axis, or several sweeps",
            )
    if not workloads:
        reason = next(iter(skipped)).reason if skipped else "no group has that phase"
        raise UsageError(
            f"nothing to run: {reason}",
            "change that axis, or name a sweep whose axes the typed ones replace: sweep quick ...",
        )
    return Grid(name, tuple(workloads), tuple(skipped))


def _parsed(given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: parse_values(AXES[name], values) for name, values in _by_full_name(given).items()}


def _by_full_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with its axes by their full names, so that a short name cannot hide a long one."""
    found: dict[str, Any] = {}
    for name, values in given.items():
        axis = axis_named(name)
        if axis.name in found:
            raise UsageError(
                f"axis {axis.name} is given twice, once as {name!r}", "give its values once"
            )
        found[axis.name] = values
    return found


def _overridden(
    group: dict[str, tuple[Any, ...]], typed: dict[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, ...]]:
    """The axes of a group with the typed ones in place of its own.

    Typed phases choose among those that a group names: they do not turn a decode's axes into a
    prefill's. A group without any of them has no value left on that axis, and so no workload.
    """
    chosen = dict(typed)
    if "phase" in group and "phase" in typed:
        chosen["phase"] = tuple(phase for phase in group["phase"] if phase in typed["phase"])
    return group | chosen


def _workload(chosen: dict[str, Any], usual: Mapping[str, Any]) -> Workload | Skipped:
    """The workload of one combination; axes of other phases and variants do not multiply it."""

    def value(name: str) -> Any:
        return chosen.get(name, usual.get(name, AXES[name].default))

    phase, variant = value("phase"), value("variant")
    num_q_heads, num_kv_heads = value("num_q_heads"), value("num_kv_heads")
    seq_len = value("seq_len")
    if phase == "prefill":
        q_len = seq_len or value("q_len") or value("kv_len")
        kv_len = seq_len or value("kv_len") or q_len
    else:
        q_len = value("q_len") or 1
        kv_len = value("kv_len") or seq_len
    what = ", ".join(f"{name}={chosen[name]}" for name in chosen)
    if kv_len is None:
        return Skipped(what, f"{phase} has no length: give seq_len or kv_len")
    workload = checked(
        Workload(
            backend=value("backend"),
            phase=phase,
            dtype=value("dtype"),
            batch_size=value("batch_size"),
            q_len=q_len,
            kv_len=kv_len,
            num_q_heads=num_q_heads,
            num_kv_heads={"mha": num_q_heads, "mqa": 1}.get(num_kv_heads, num_kv_heads),
            head_dim=value("head_dim"),
            num_layers=value("num_layers"),
            variant=variant,
            window_len=(value("window_len") or min(4096, kv_len)) if variant == "sliding" else None,
            kv_cache="none" if phase == "prefill" else value("kv_cache"),
            kv_dtype=None if value("kv_dtype") == value("dtype") else value("kv_dtype"),
            start_len=value("start_len") if phase == "kv-growth" else None,
            cache_regime="warm" if phase == "kv-growth" else value("cache_regime"),
        )
    )
    problem = workload.problem()
    return workload if problem is None else Skipped(what, problem)


def sweep_groups(data: Any, where: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Name and groups of a sweep as its YAML holds them.

    Args:
        data: ``{name, description, source?, defaults?, groups: {group: {axis: values}}}``.
        where: The file, for the error.

    Raises:
        UsageError: A key that a sweep does not have, or a value of another type.
    """
    known = ("name", "description", "source", "defaults", "groups")
    if not isinstance(data, dict):
        raise UsageError(f"{where} holds no mapping", "write keys name, description and groups")
    for key in data:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}", nearest(str(key), known))
    groups, defaults = data.get("groups"), data.get("defaults") or {}
    if not isinstance(groups, dict) or not groups or not isinstance(defaults, dict):
        raise UsageError(
            f"{where}: groups is {reprlib.repr(groups)}", "write groups: {prefill: {seq_len: 1k}}"
        )
    name = data.get("name", where)
    if not isinstance(name, str) or not name.isprintable():
        raise UsageError(f"{where}: name is {reprlib.repr(name)}", "write a name of one line")
    for group, axes in (("defaults", defaults), *groups.items()):
        if not isinstance(axes, dict) or not all(isinstance(axis, str) for axis in axes):
            raise UsageError(
                f"{where}: group {group!r} is {reprlib.repr(axes)}", "write {axis: values}"
            )
    try:
        usual = _by_full_name(defaults)
        return name, {
            str(group): {**usual, **_by_full_name(axes)} for group, axes in groups.items()
        }
    except UsageError as error:
        raise UsageError(f"{where}: {error.problem}", error.fix) from None
