"""A function's own annotations -> a check of what it is called with, by name and value."""

import functools
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attnprof.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_WORDS = {
    int: "a whole number", float: "a number", str: "a text", Path: "a path", bool: "True or False",
}  # fmt: skip
_NONE = object()


def takes_its_types(
    *, of_lists: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:  # fmt: skip
    """Refuse an argument of another type than the function says, before anything is done.

    Whole numbers and numbers of other libraries, such as numpy's, become Python's own.

    >>> @takes_its_types()
    ... def doubled(count: int) -> int:
    ...     return 2 * count
    >>> doubled(2)
    4
    >>> doubled("2")
    Traceback (most recent call last):
        ...
    attnprof.errors.UsageError: count is '2' (give a whole number)

    Args:
        of_lists: What to do where several values were given for one, added to the fix.
    """

    def checking(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # which says what is wrong by its own name
            for name, value in bound.arguments.items():
                parameter = signature.parameters[name]
                if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                    given = (_taken(name, one, parameter.annotation, of_lists) for one in value)
                    bound.arguments[name] = tuple(given)
                elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = _taken(name, value, parameter.annotation, of_lists)
            return function(*bound.args, **bound.kwargs)

        return called

    return checking


def _taken(name: str, value: Any, kind: Any, of_lists: str) -> Any:
    """The value as its kind has it.

    Raises:
        UsageError: It is of another.
    """
    kinds = _arms(kind)
    for one in kinds:
        found = _as(value, one)
        if found is not _NONE:
            return found
    words = " or ".join(dict.fromkeys(_words(one) for one in kinds if one is not type(None)))
    hint = f"; {of_lists}" if of_lists and isinstance(value, list | tuple) else ""
    raise UsageError(f"{name} is {reprlib.repr(value)}", f"give {words}{hint}")


def _arms(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _as(value: Any, kind: Any) -> Any:
    if typing.get_origin(kind) is Sequence:
        (inner,) = typing.get_args(kind)
        if not isinstance(value, list | tuple):
            return _NONE
        found = [
            next((a for k in _arms(inner) if (a := _as(one, k)) is not _NONE), _NONE)
            for one in value
        ]
        return _NONE if _NONE in found else tuple(found)
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
            return _NONE
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, str | Path) and "\0" in str(value):
        return _NONE  # no file, and no name, has that sign
    return value if isinstance(value, kind) else _NONE


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is Sequence:
        inner = " or ".join(_words(one) for one in _arms(typing.get_args(kind)[0]))
        return f"a list, each {inner}"
    return _WORDS.get(kind, f"a {kind.__name__}")
