"""JSON from a file and the type that it should have -> where it has another.

Types are those that the code is annotated with: text, numbers, lists as ``tuple[X, ...]``,
``dict[str, X]``, dataclasses and TypedDicts, and any of them or None. All numbers here are sizes,
times, counts and shares: finite, and never below zero.
"""

import dataclasses
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

LARGEST = 10**100  # what passes it is no measurement, and its square no float


def misfit(value: Any, kind: Any, name: str = "") -> str | None:
    """Where in ``value`` something is of another kind, or None.

    Of a dataclass every field without a default has to be there, and no other key; of a TypedDict
    its required keys, and others are not looked at.

    >>> misfit({"samples_s": [0.1, "x"]}, dict[str, tuple[float, ...]])
    "samples_s[1] is 'x', not a number from 0 up"
    """
    if kind is Any:
        return None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return misfit(value, next(one for one in arguments if one is not type(None)), name)
    if origin is tuple and isinstance(value, list | tuple):
        return _first(
            misfit(item, arguments[0], f"{name}[{place}]") for place, item in enumerate(value)
        )
    if origin is dict and isinstance(value, Mapping):
        return _first(misfit(item, arguments[1], _inside(name, key)) for key, item in value.items())
    if isinstance(value, Mapping) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
        return _misfit_of_keys(value, kind, name)
    if _is_plain(value, kind):
        return None
    return f"{name or 'it'} is {reprlib.repr(value)}, not {_words(kind)}"


_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number from 0 up",
    float: "a number from 0 up",
}


def _words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    return "a list" if typing.get_origin(kind) is tuple else "keys and values"


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is str:
        return isinstance(value, str)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and 0 <= value <= LARGEST
    if kind is float:
        return isinstance(value, int | float) and 0 <= value <= LARGEST
    return False


def _misfit_of_keys(value: Mapping[str, Any], kind: Any, name: str) -> str | None:
    hints, required, closed = _keys_of(kind)
    for key in hints:
        if key in required and key not in value:
            return f"{_inside(name, key)} is missing"
    for key, item in value.items():
        if key in hints:
            found = misfit(item, hints[key], _inside(name, key))
            if found is not None:
                return found
        elif closed:
            return f"{_inside(name, reprlib.repr(key))} is no key of it"
    return None


@cache
def _keys_of(kind: Any) -> tuple[dict[str, Any], frozenset[str], bool]:
    """The types of the keys, which of them are required, and whether there may be no other."""
    hints = typing.get_type_hints(kind)
    if typing.is_typeddict(kind):
        return hints, kind.__required_keys__, False
    required = frozenset(
        one.name
        for one in dataclasses.fields(kind)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    )
    return hints, required, True


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def _inside(name: str, key: str) -> str:
    return f"{name}.{key}" if name else str(key)
