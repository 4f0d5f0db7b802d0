"""What is typed so far -> the names that a shell may complete it to."""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

Names = Callable[[], Iterable[str]]
Completion = Callable[[str], list[str]]


def one_of(names: Names) -> Completion:
    """Completes a single name; ``names`` are looked up when a shell asks."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def some_of(names: Names) -> Completion:
    """Completes the last name of a list with commas, to those that are not in it yet.

    >>> some_of(lambda: ["l4", "l40s", "t4"])("t4,l")
    ['t4,l4', 't4,l40s']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        found = (name for name in names() if name.startswith(last) and name not in taken)
        return [f"{before}{comma}{name}" for name in found]

    return complete


def profiles(kind: str) -> Names:
    """The names of a kind's profiles, the user's own included."""

    def names() -> list[str]:
        from attnprof.profiles import list_profiles

        return list_profiles(kind)

    return names


def gpus() -> Iterable[str]:
    """What ``estimate --gpu`` takes."""
    return ("cpu", *profiles("gpus")())


def engines(incomplete: str) -> list[str]:
    """Completes engines of a list; behind an ``@`` the releases that changed what they hold."""
    before, comma, last = incomplete.rpartition(",")
    name, at, _ = last.partition("@")
    if not at:
        return some_of(profiles("engines"))(incomplete)
    from attnprof.engines.profile import releases

    found = (f"{name}@{release}" for release in releases(name))
    return [f"{before}{comma}{one}" for one in found if one.startswith(last)]


def one_engine(incomplete: str) -> list[str]:
    """As :func:`engines`, of a single one."""
    return [] if "," in incomplete else engines(incomplete)


def metrics() -> Iterable[str]:
    """What ``--metric`` takes."""
    from attnprof.verdicts.comparison import METRICS

    return METRICS


def verdicts() -> Iterable[str]:
    """What ``compare --fail-on`` and ``gate --fail-on`` take."""
    from attnprof.verdicts.judging import MAY_FAIL

    return MAY_FAIL


def verdicts_of_history() -> Iterable[str]:
    """What ``history --fail-on`` takes."""
    from attnprof.history.asking import MAY_FAIL

    return MAY_FAIL


def facts() -> Iterable[str]:
    """What ``--allow-different`` takes."""
    from attnprof.verdicts.fingerprint import HARD

    return HARD


def devices() -> Iterable[str]:
    """What ``--device`` takes."""
    from attnprof.devices import DEVICES

    return DEVICES


def quantizations() -> Iterable[str]:
    """What ``--quantization`` takes."""
    from attnprof.engines.quantize import METHODS

    return ("none", *METHODS)


def cache_dtypes() -> Iterable[str]:
    """What ``--kv-dtype`` takes."""
    from attnprof.engines.base import CACHED_BYTES

    return ("auto", *CACHED_BYTES)


def formats() -> Iterable[str]:
    """What ``import --from`` takes."""
    from attnprof.imports.detecting import READERS

    return READERS


def validations() -> Iterable[str]:
    """What can be validated."""
    from attnprof.planning import VALIDATIONS

    return VALIDATIONS


def allocators() -> Iterable[str]:
    """What ``--allocator`` takes."""
    from attnprof.devices.environment import ALLOCATORS

    return ALLOCATORS


def values_of(axis: str) -> Names:
    """The values of an axis that has names; none of one that counts."""

    def names() -> Iterable[str]:
        from attnprof.axes import AXES, KV_HEADS, flag
        from attnprof.backends.support import BACKENDS
        from attnprof.dtypes import DTYPES
        from attnprof.workload import NAMES

        own: dict[str, Iterable[str]] = {
            "backend": (*BACKENDS, "all"),
            "variant": _variants(),
            "num_kv_heads": KV_HEADS,
            "softcap": ("none",),
        }
        if AXES[axis].parse is flag:
            return ("yes", "no")
        if axis.endswith("dtype"):
            return DTYPES
        if axis == "model":
            return profiles("models")()
        return own.get(axis) or dict(NAMES).get(axis, ())

    return names


def axis_values(incomplete: str) -> list[str]:
    """Completes ``NAME=VALUES``: the axis first, then its values where they have names."""
    from attnprof.axes import axis_named, axis_names
    from attnprof.errors import UsageError

    typed, equals, values = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in axis_names() if name.startswith(typed)]
    try:
        axis = axis_named(typed)
    except UsageError:
        return []
    return [f"{typed}={found}" for found in some_of(values_of(axis.name))(values)]


def shelf_kinds(incomplete: str) -> list[str]:
    """Completes what ``show`` lists."""
    from attnprof.shelf import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def shelf_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a thing of the kind that was typed before it."""
    from attnprof.errors import AttnprofError
    from attnprof.shelf import names_of

    kind = str(ctx.params.get("kind"))
    try:
        names = names_of(kind)
    except AttnprofError:
        return []
    if kind in ("variant", "variants"):
        names = [*names, *profiles("models")()]
    if kind in ("engine", "engines"):
        return one_engine(incomplete)
    return [name for name in names if name.startswith(incomplete)]


def baselines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a baseline of the folder that was typed, or of the usual one."""
    from attnprof.baselines import FOLDER, baseline_names

    folder = ctx.params.get("baselines") or ctx.params.get("folder") or FOLDER
    return [name for name in baseline_names(Path(folder)) if name.startswith(incomplete)]


def workloads_of_history(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the id of a workload of the runs in the folder that was typed."""
    from attnprof.errors import AttnprofError
    from attnprof.records import RUN_FILE, read_header

    found: set[str] = set()
    for path in Path(ctx.params.get("folder") or ".").rglob(RUN_FILE):
        with contextlib.suppress(AttnprofError):
            found.update(map(str, read_header(path.parent).get("workloads") or ()))
    return sorted(name for name in found if name.startswith(incomplete))


def workloads_of_sweep(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the id of a workload of the sweep and the axes that were typed."""
    from attnprof import session
    from attnprof.errors import AttnprofError

    try:
        asked = session.Asked(
            spec=ctx.params.get("spec"),
            axes=dict(session.typed_axes(ctx.params.get("axis") or [])),
            device=ctx.params.get("device") or "auto",
        )
        names = [one.workload_id for one in session.grid_of(asked).workloads]
    except AttnprofError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _variants() -> Iterable[str]:
    from attnprof.variants import VARIANTS

    return VARIANTS
