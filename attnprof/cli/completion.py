"""What is typed so far -> the names that a shell may complete it to."""

from collections.abc import Callable, Iterable

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
        from attnprof.backends.support import BACKENDS
        from attnprof.dtypes import DTYPES
        from attnprof.workload import NAMES

        own: dict[str, Iterable[str]] = {"backend": (*BACKENDS, "all"), "variant": _variants()}
        if axis.endswith("dtype"):
            return DTYPES
        if axis == "model":
            return profiles("models")()
        return own.get(axis) or dict(NAMES).get(axis, ())

    return names


def axis_values(incomplete: str) -> list[str]:
    """Completes ``NAME=VALUES``: the axis first, then its values where they have names."""
    from attnprof.axes import AXES
    from attnprof.errors import UsageError

    typed, equals, values = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in AXES if name.startswith(typed)]
    from attnprof.axes import axis_named

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

    try:
        names = names_of(str(ctx.params.get("kind")))
    except AttnprofError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _variants() -> Iterable[str]:
    from attnprof.variants import VARIANTS

    return VARIANTS
