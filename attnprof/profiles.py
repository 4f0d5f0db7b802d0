"""Finds and reads the YAML profiles of models, GPUs, engines, sweeps and calibrations."""

import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest

MAX_PROFILE_BYTES = 4 * 1024**2


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
    if not name or name != Path(name).name or "\\" in name or name.startswith("."):
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
    """A YAML file that holds a mapping, read safely: no tags, no code.

    Raises:
        UsageError: Unreadable, too large, not YAML, or not a mapping of text keys.
    """
    import yaml

    # libyaml's loader is ten times faster; PyYAML has it where it was built with libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise UsageError(f"{path} is larger than a profile may be", "give a YAML profile")
        content = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "give a YAML profile") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first_line = (str(error).splitlines() or ["recursion"])[0]
        raise UsageError(f"{path} is not YAML: {first_line}", "correct the file") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path} holds no mapping of names to values", "write 'key: value' lines")
    return content


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
