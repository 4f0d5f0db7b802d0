"""Axes, typed or from a sweep's YAML, into workloads."""

import functools
import itertools
import json
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from attnprof.axes import AXES, MAX_LENGTH, MAX_WORKLOADS, axis_named, parse_values
from attnprof.combinations import problem
from attnprof.errors import UsageError, nearest
from attnprof.variants import PARAMETERS, VARIANTS, parameters_of
from attnprof.workload import (
    GROWING,
    Workload,
    checked,
)

USUAL = {"dtype": "float32", "cache_regime": "warm"}  # of a CPU
USUAL_OF_ACCELERATORS = {"dtype": "bfloat16", "cache_regime": "cold"}


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
    unused: tuple[str, ...] = ()  # axes that were typed and that no workload takes


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
    asked: set[str] = set()
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
            made = _workload(dict(zip(values, combination, strict=True)), device_usual, asked)
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
        reason, fix = "no group has that phase", "name one of its phases, or another sweep"
        if skipped:
            reason, fix = next(iter(skipped)).reason, "change one of the axes that it names"
        raise UsageError(f"nothing to run: {reason}", fix)
    unused = tuple(axis for axis in typed if axis not in asked)
    return Grid(name, tuple(workloads), tuple(skipped), unused)


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


def _workload(
    chosen: dict[str, Any], usual: Mapping[str, Any], asked: set[str]
) -> Workload | Skipped:
    """The workload of one combination; axes of other phases and variants do not multiply it.

    The axes that were looked at are added to ``asked``.
    """
    asked.update(("model", "implementation"))
    model = chosen.get("model")
    of_model = {} if model is None else sizes_of_model(model, chosen.get("implementation", "plain"))

    def value(name: str) -> Any:
        asked.add(name)
        if name in chosen:
            return chosen[name]
        return of_model.get(name, usual.get(name, AXES[name].default))

    what = ", ".join(f"{name}={chosen[name]}" for name in chosen)
    if value("num_layers") > of_model.get("num_layers", MAX_LENGTH):
        return Skipped(
            what,
            f"num_layers {value('num_layers')}: {model} has {of_model['num_layers']}",
        )
    phase, attention = value("phase"), value("attention")
    q_len, kv_len = _lengths(value, phase, attention)
    if q_len is None or kv_len is None:
        name = "source_len" if attention == "cross" else "seq_len or kv_len"
        return Skipped(what, f"{phase} of a {attention}-attention has no length: give {name}")
    num_q_heads, num_kv_heads = value("num_q_heads"), value("num_kv_heads")
    variant = "full" if attention == "cross" else value("variant")
    mla = value("mla")
    scope = value("scope") if model is None or "scope" in chosen else "model"
    workload = checked(
        Workload(
            backend=value("backend") if value("mixer") == "attention" else "eager",
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
            **_variant_sizes(value, variant, kv_len),
            min_len=value("min_len"),
            scope=scope,
            attention=attention,
            position="none" if attention == "cross" else value("position"),
            kv_cache=_cache_of(value, chosen, phase, attention, mla),
            kv_dtype=None if phase in ("prefill", "train") else value("kv_dtype"),
            block_tokens=value("block_tokens"),
            start_len=value("start_len") if phase in GROWING else None,
            cache_regime="warm" if phase in GROWING else value("cache_regime"),
            v_head_dim=value("v_head_dim"),
            mla=mla,
            kv_lora_rank=value("kv_lora_rank") if mla else None,
            rope_head_dim=value("rope_head_dim") if mla else None,
            softcap=value("softcap"),
            sink_logits=value("sink_logits"),
            prefill_len=value("prefill_len") if phase == "mixed" else None,
            checkpointing=phase == "train" and value("checkpointing"),
            mixer=value("mixer"),
            ffn=value("ffn"),
            ffn_dim=value("ffn_dim"),
            num_experts=value("num_experts") if value("ffn") == "moe" else None,
            num_active_experts=value("num_active_experts") if value("ffn") == "moe" else None,
            model=model,
            model_digest=of_model.get("model_digest"),
            source_len=value("source_len") if scope == "model" else None,
            implementation=value("implementation"),
            weight_dtype=value("weight_dtype"),
        )
    )
    reason = problem(workload)
    return workload if reason is None else Skipped(what, reason)


@functools.cache
def sizes_of_model(model: str, implementation: str = "plain") -> dict[str, Any]:
    """What a model says of axes that are not typed: its layers and the heads of the first.

    Raises:
        UsageError: No such model, one that has no attention, or one of which there is no plain
            implementation.
    """
    from attnprof.models.load import load_model, read_config

    if implementation == "plain":
        from attnprof.models.build_architecture import architecture_of

        architecture = architecture_of(model)
        num_layers, block = architecture.num_layers, architecture.blocks[0].attention
        heads = (block.num_q_heads, block.num_kv_heads, block.head_dim, block.v_head_dim)
        causal = block.variant != "full"
    else:
        spec = load_model(model)
        layers = spec.layers or spec.encoder_layers
        attention = next((layer.attention for layer in layers if layer.attention is not None), None)
        if attention is None:
            raise UsageError(f"model {model!r} has no attention", "give a model that has")
        num_layers, causal = len(layers), attention.causal
        heads = (
            attention.num_q_heads, attention.num_kv_heads, attention.head_dim,
            attention.v_head_dim,
        )  # fmt: skip
    digest = None
    if Path(model).exists():
        values, _ = read_config(model)
        digest = f"{crc32(json.dumps(values, sort_keys=True).encode()):08x}"
    return {
        "model_digest": digest,
        "num_layers": num_layers,
        **dict(zip(("num_q_heads", "num_kv_heads", "head_dim", "v_head_dim"), heads, strict=True)),
        "variant": "causal" if causal else "full",
    }


def _lengths(value: Callable[[str], Any], phase: str, attention: str) -> tuple[Any, Any]:
    """Queries and keys of a call; None where nothing tells them."""
    seq_len, q_len, kv_len = value("seq_len"), value("q_len"), value("kv_len")
    if attention == "cross":
        source_len = value("source_len") or kv_len
        one = 1 if phase == "decode" else None
        return q_len or one or seq_len or source_len, source_len
    if phase in ("prefill", "train"):
        return seq_len or q_len or kv_len, seq_len or kv_len or q_len
    if phase in ("chunked-prefill", "verify"):
        usual = min(512, max(2, (kv_len or seq_len or 2) // 2))
        return q_len or (usual if phase == "chunked-prefill" else 4), kv_len or seq_len
    return q_len or 1, kv_len or seq_len


def _variant_sizes(value: Callable[[str], Any], variant: str, kv_len: int) -> dict[str, Any]:
    """The sizes that ``variant`` has; where none is typed, one that suits the length."""
    usual = {
        "window_len": min(4096, kv_len),
        "prefix_len": max(1, kv_len // 4),
        "document_len": max(2, kv_len // 4),
    }
    wanted = parameters_of(variant) if variant in VARIANTS else PARAMETERS
    return {name: value(name) or usual.get(name) for name in wanted}


def _cache_of(
    value: Callable[[str], Any], chosen: dict[str, Any], phase: str, attention: str, mla: str | None
) -> str:
    """The cache: of the phases that have none, none; else as typed, or what suits the attention."""
    if value("mixer") != "attention":
        return "none"
    if attention == "cross":
        return "cross"
    if phase in ("prefill", "train"):
        return "none"
    if mla == "absorbed" and "kv_cache" not in chosen:
        return "latent"
    return str(value("kv_cache"))


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
