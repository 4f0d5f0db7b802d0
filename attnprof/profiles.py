"""Finds and reads the YAML profiles of models, GPUs, engines, sweeps and calibrations."""

import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest, nearest_path

MAX_PROFILE_BYTES = 4 * 1024**2
MAX_NAME = 200


def user_profile_dir() -> Path:
    """The user's own folder of profiles: ``$ATTNPROF_PROFILES``, else the platform's place."""
    chosen = os.environ.get("ATTNPROF_PROFILES")
    if chosen:
        return Path(chosen)
    from platformdirs import user_config_dir

    return Path(user_config_dir("attnprof", appauthor=False))


@cache
def _shipped_dir() -> Path:
    in_wheel = Path(str(files("attnprof"))) / "_profiles"
    return in_wheel if in_wheel.is_dir() else Path(__file__).parent.parent / "profiles"


def profile_dir(kind: str) -> Path:
    """Where the shipped profiles of a kind lie: ``models``, ``gpus``, ``engines``, ``sweeps``."""
    return _shipped_dir() / kind


def list_profiles(kind: str) -> list[str]:
    """The names of a kind's profiles, the user's own included, sorted."""
    found = {
        path.stem
        for folder in (user_profile_dir() / kind, profile_dir(kind))
        if folder.is_dir()
        for path in folder.glob("*.yaml")
    }
    return sorted(found)


def find_profile(kind: str, name: str) -> Path | None:
    """The file of a profile, the user's folder first; None when there is none.

    A name is a name: one with a path separator is none, so nothing outside the folders is read.
    """
    is_plain = name == Path(name).name and "\\" not in name and not name.startswith(".")
    if not name or not is_plain or len(name) > MAX_NAME:
        return None
    for folder in (user_profile_dir() / kind, profile_dir(kind)):
        path = folder / f"{name.lower()}.yaml"
        if path.is_file():
            return path
    return None


def load_profile(kind: str, name: str) -> dict[str, Any]:
    """The content of a profile.

    Raises:
        UsageError: No such profile, or its file is not a YAML mapping.
    """
    path = find_profile(kind, name)
    if path is None:
        known = list_profiles(kind)
        raise UsageError(f"unknown {kind.removesuffix('s')} {name!r}", nearest(name.lower(), known))
    return read_yaml(path)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping, read safely: no tags, no code, no key twice.

    Raises:
        UsageError: Unreadable, too large (also once its aliases are written out), not YAML, or
            not a mapping of text keys.
    """
    import yaml

    try:
        with path.open("rb") as file:  # of a device or a pipe, the size is known only by reading
            data = file.read(MAX_PROFILE_BYTES + 1)
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(data) <= MAX_PROFILE_BYTES:
            raise UsageError(
                f"{path} is not UTF-8: {error.reason}", "give a YAML profile"
            ) from None
    except OSError as error:
        hint = nearest_path(path, "*.y*ml") or "give a YAML profile"
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None
    if len(data) > MAX_PROFILE_BYTES:
        raise UsageError(f"{path} is larger than a profile may be", "give a YAML profile")
    try:
        # libyaml's loader is ten times faster; PyYAML has it where it was built with libyaml.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                _refuse_odd_nodes(path, node)
            content = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {_yaml_words(error)}", "correct the file") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path} holds no mapping of names to values", "write 'key: value' lines")
    return content


def _refuse_odd_nodes(path: Path, root: Any) -> None:
    """No key twice in a mapping, and no aliases that unfold to more than a profile can hold.

    Raises:
        UsageError: There is one, or an alias of something to itself.
    """
    sizes: dict[int, int | None] = {}  # None: entered, and not left yet

    def size_of(node: Any) -> int:
        known = sizes.get(id(node), 0)
        if known is None:
            raise UsageError(f"{path} holds an alias of itself", "write the values out")
        if known:
            return known
        sizes[id(node)] = None
        size = 1
        if isinstance(node.value, list):
            pairs = [item for item in node.value if isinstance(item, tuple)]
            seen: set[str] = set()
            for key, _ in pairs:
                if isinstance(key.value, str) and key.value in seen:
                    line = key.start_mark.line + 1
                    raise UsageError(
                        f"{path} line {line}: the key {key.value!r} is there before",
                        "keep one of them",
                    )
                if isinstance(key.value, str):
                    seen.add(key.value)
            size += sum(
                sum(map(size_of, item)) if isinstance(item, tuple) else size_of(item)
                for item in node.value
            )
        if size > MAX_PROFILE_BYTES:
            raise UsageError(f"{path} unfolds to more than a profile may be", "use fewer aliases")
        sizes[id(node)] = size
        return size

    size_of(root)


def _yaml_words(error: Exception) -> str:
    """What is wrong, and in which line where the parser says so."""
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [""])[0]
    mark = getattr(error, "problem_mark", None)
    words = problem or "nested too deeply"
    return f"line {mark.line + 1}: {words}" if mark is not None else words


def check_keys(
    content: dict[str, Any], path: Path | str, required: set[str], optional: set[str]
) -> None:
    """Raise :class:`UsageError` for the first key that is missing or unknown."""
    known = sorted(required | optional)
    for key in content:
        if key not in required and key not in optional:
            raise UsageError(f"{path} has an unknown key {key!r}", nearest(key, known))
    for key in sorted(required):
        if key not in content:
            raise UsageError(f"{path} lacks the key {key!r}", f"add '{key}: …' to it")


def number(
    content: dict[str, Any], key: str, path: Path | str, *, least: float = 0.0
) -> float | None:
    """The number under ``key``, None when it is absent or null.

    Raises:
        UsageError: Not a finite number, or below ``least``.
    """
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = " (YAML reads 3.35e12 as text)" if isinstance(value, str) else ""
        raise UsageError(f"{path}: {key} is {value!r}, not a number", f"write 3.35e+12{hint}")
    if not least <= value < float("inf"):
        raise UsageError(f"{path}: {key} is {value!r}", f"write a number of at least {least:g}")
    return value
