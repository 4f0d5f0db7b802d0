"""Two fingerprints -> what differs, and how much it weighs.

A fact that one side lacks is a difference, and so is one that both lack and a comparison needs.
"""

from collections.abc import Collection, Mapping
from typing import Any

from attnprof.errors import CannotMeasureError, UsageError, nearest
from attnprof.verdicts.comparison import Difference

# What is named at --allow-different -> the facts that it stands for.
HARD: Mapping[str, tuple[str, ...]] = {
    "device": (
        "kind", "name", "memory_bytes", "physical_cores", "machine", "system", "capability",
        "cpu_capability",
    ),
    "driver": ("driver", "cuda", "rocm"),
    "torch": ("torch", "torch_parallel"),
    "threads": (
        "threads", "environment.OMP_NUM_THREADS", "environment.MKL_NUM_THREADS",
        "environment.OMP_DYNAMIC", "environment.MKL_DYNAMIC",
    ),
    "clocks": ("governor",),
    "environment": (),  # all else that workers are started with: waiting, the allocator
}  # fmt: skip
SOFT = ("attnprof", "python", "libc")
NEEDED = {  # by kind of device; what neither side says is no match
    "cpu": ("name", "threads", "torch", "environment.OMP_WAIT_POLICY"),
    "cuda": ("name", "driver", "torch"),
    "rocm": ("name", "driver", "torch"),
    "mps": ("name", "torch"),
    "xpu": ("name", "torch"),
}
MEMORY_SHARE = 0.02  # by which one machine's memory differs from start to start of it
_SHOWN = 60
_MOST_DIGITS = 30

Facts = Mapping[str, str | None]


def flat(fingerprint: Mapping[str, Any]) -> dict[str, str | None]:
    """A fingerprint with one text for each fact.

    >>> flat({"threads": 2, "environment": {"OMP_WAIT_POLICY": "passive"}, "governor": None})
    {'threads': '2', 'environment.OMP_WAIT_POLICY': 'passive', 'governor': None}
    """
    found: dict[str, str | None] = {}
    for key, value in fingerprint.items():
        if isinstance(value, Mapping):
            inner = {f"{key}.{name}": item for name, item in value.items()}
            found.update(
                {name: None if item is None else str(item) for name, item in inner.items()}
            )
        else:
            found[key] = None if value is None else str(value)
    return found


def differences(base: Facts, new: Facts, allowed: Collection[str] = ()) -> tuple[Difference, ...]:
    """All facts that differ, the hard ones first.

    Args:
        allowed: Groups of :data:`HARD`, or single facts, that may differ: they are what the
            comparison is about.

    Raises:
        UsageError: There is nothing of such a name to allow.
    """
    for name in allowed:
        if name not in HARD and name not in base and name not in new:
            raise UsageError(f"no fact is called {name!r}", nearest(name, list(HARD)))
    needed = {key for facts in (base, new) for key in NEEDED.get(facts.get("kind") or "", ())}
    found = [
        Difference(key, base.get(key), new.get(key), _weight(key, allowed))
        for key in dict.fromkeys((*base, *new, *sorted(needed)))
        if _differ(key, base, new) or (key in needed and base.get(key) is None)
    ]
    order = ("hard", "subject", "soft")
    return tuple(sorted(found, key=lambda one: order.index(one.weight)))


def refuse_hard(found: Collection[Difference], base_name: str, new_name: str) -> None:
    """Raise :class:`CannotMeasureError`, naming each hard difference and what insists on it."""
    hard = [one for one in found if one.weight == "hard"]
    if not hard:
        return
    told = "; ".join(f"{one.key}: {_words(one.base)}, {_words(one.new)}" for one in hard)
    flags = " ".join(f"--allow-different {name}" for name in dict.fromkeys(map(_group, hard)))
    raise CannotMeasureError(
        f"{base_name} and {new_name} were not measured under the same conditions: {told}",
        f"measure both on one machine, or insist with {flags}",
    )


def _words(value: str | None) -> str:
    if value is None:
        return "unknown"
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"


def _group(one: Difference) -> str:
    return group_of(one.key) or one.key


def group_of(key: str) -> str | None:
    """The name in :data:`HARD` that a fact goes by; None of a soft one.

    >>> group_of("cuda"), group_of("environment.OMP_WAIT_POLICY"), group_of("libc")
    ('driver', 'environment', None)
    """
    for name, keys in HARD.items():
        if key in keys:
            return name
    return "environment" if key.startswith("environment.") else None


def _weight(key: str, allowed: Collection[str]) -> str:
    group = group_of(key)
    if key in allowed or group in allowed:
        return "subject"
    return "soft" if group is None else "hard"


def _differ(key: str, base: Facts, new: Facts) -> bool:
    one, other = base.get(key), new.get(key)
    if one == other:
        return (key in base) != (key in new)
    if key != "memory_bytes":
        return True
    sizes = _size(one), _size(other)
    if sizes[0] is None or sizes[1] is None:
        return True
    return abs(sizes[0] - sizes[1]) > MEMORY_SHARE * max(sizes[0], sizes[1])


def _size(value: str | None) -> int | None:
    """A whole number of bytes that some memory may have."""
    return int(value) if value and value.isdecimal() and len(value) <= _MOST_DIGITS else None
