"""What a user calls a model -> its description: a profile, a file, a folder, or a hub id."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest, nearest_path
from attnprof.models.build import build_model
from attnprof.models.config import read_json
from attnprof.models.spec import ModelSpec
from attnprof.profiles import check_keys, find_profile, list_profiles, read_yaml

PROFILE_KEYS = {"name", "source", "config"}
OPTIONAL_PROFILE_KEYS = {"hub_ids", "aliases", "num_params", "num_active_params", "notes"}
MAX_PATH, MAX_NAME = 4000, 250
"""Characters of a path, and of a name in it, beyond which a file system refuses to look."""


def load_model(name_or_path: str) -> ModelSpec:
    """The model that a profile's name, a path or a hub id stands for.

    Args:
        name_or_path: A profile (``llama-3.1-8b``), a ``config.json`` or the folder that holds
            one, a ``.safetensors`` or ``.gguf`` file, or a hub id (``Qwen/Qwen3-8B``). An id of
            which there is a profile is read from it, without the network.

    Raises:
        UsageError: There is no such model, or its file makes no sense.
    """
    path = _found(name_or_path)
    if path is None:
        from attnprof.models.hub import fetch_config

        values = fetch_config(name_or_path)
        where = f"{name_or_path}/config.json"
        return build_model(values, where, name_or_path, ask_library=True, is_whole=True)
    return _from_profile(path) if path.suffix == ".yaml" else _from_path(path)


def read_config(name_or_path: str) -> tuple[dict[str, Any], str]:
    """The values of the configuration of a model, and what to call them in an error.

    Args:
        name_or_path: As of :func:`load_model`; weights are found by the ``config.json`` beside
            them.

    Raises:
        UsageError: There is no such model, or its file has no configuration.
    """
    path = _found(name_or_path)
    if path is None:
        from attnprof.models.hub import fetch_config

        return fetch_config(name_or_path), f"{name_or_path}/config.json"
    if path.suffix == ".yaml":
        return _profile_config(path, _profile_content(path)), str(path)
    if path.suffix == ".gguf":
        raise UsageError(f"{path} has no config.json", "give the config.json of the model")
    if path.is_dir():
        path = path / "config.json"
    elif path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        path = path.parent / "config.json"
    return read_json(path), str(path)


def _found(name_or_path: str) -> Path | None:
    """The path that is meant, of a profile its YAML; None where it is an id of the hub."""
    path = Path(name_or_path)
    if not name_or_path.strip():
        raise UsageError("the model has no name", "give a profile, a path or a hub id")
    if len(name_or_path) > MAX_PATH or max(map(len, path.parts)) > MAX_NAME:
        raise UsageError(
            f"the model's name has {len(name_or_path)} characters: {name_or_path[:40]!r}...",
            "give a profile, a path or a hub id",
        )
    if path.suffix in (".json", ".gguf", ".safetensors") or path.is_dir():
        return path
    profile = find_profile("models", name_or_path.rsplit("/", 1)[-1].lower())
    profile = profile or _profile_of_id(name_or_path)
    if profile is not None:
        return profile
    if path.is_file():
        return path
    if name_or_path.count("/") == 1 and not name_or_path.startswith((".", "/")):
        return None
    hint = nearest(name_or_path.lower(), list_profiles("models"))
    if hint.startswith("use one of"):
        hint = "list them with: attnprof show models; or give the path of a config.json"
    raise UsageError(f"unknown model {name_or_path!r}", hint)


def _from_path(path: Path) -> ModelSpec:
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        hint = nearest_path(path) or "give a model's config.json, GGUF or safetensors"
        raise UsageError(f"no such file: {path}", hint)
    if path.suffix == ".gguf":
        from attnprof.models.gguf import read_gguf

        return read_gguf(path)
    if path.suffix == ".safetensors":
        from attnprof.models.safetensors import with_stored_bytes

        return with_stored_bytes(_from_folder(path.parent), path)
    if path.name.endswith(".safetensors.index.json"):
        return _from_folder(path.parent)
    name = path.parent.name if path.name == "config.json" else path.stem
    return build_model(read_json(path), str(path), name, ask_library=True, is_whole=True)


def _from_folder(folder: Path) -> ModelSpec:
    config = folder / "config.json"
    if not config.is_file():
        gguf = sorted(folder.glob("*.gguf"))
        if len(gguf) == 1:
            return _from_path(gguf[0])
        raise UsageError(f"{folder} holds no config.json", "give the folder of a model")
    spec = _from_path(config)
    from attnprof.models.safetensors import weight_files, with_stored_bytes

    return with_stored_bytes(spec, folder) if weight_files(folder) else spec


def _from_profile(path: Path) -> ModelSpec:
    content = _profile_content(path)
    spec = build_model(_profile_config(path, content), str(path), str(content["name"]))
    expected: Any = content.get("num_params")
    if expected is not None and expected != spec.num_params:
        raise UsageError(
            f"{path}: num_params is {expected}, its config makes {spec.num_params}",
            "correct one of the two",
        )
    notes = content.get("notes")
    return replace(
        spec, source=str(content["source"]), notes=(*spec.notes, *([str(notes)] if notes else []))
    )


def _profile_content(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    check_keys(content, path, PROFILE_KEYS, OPTIONAL_PROFILE_KEYS)
    return content


def _profile_config(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    config = content["config"]
    if not isinstance(config, dict):
        raise UsageError(f"{path}: config is no mapping", "give the keys of a config.json")
    return config


def _profile_of_id(hub_id: str) -> Path | None:
    """The profile whose hub ids or other names hold ``hub_id``, ignoring case."""
    wanted = hub_id.lower().encode()
    for name in list_profiles("models"):
        path = find_profile("models", name)
        if path is None or wanted not in path.read_bytes().lower():
            continue
        content = read_yaml(path)
        names = [*(content.get("hub_ids") or []), *(content.get("aliases") or [])]
        if hub_id.lower() in (str(other).lower() for other in names):
            return path
    return None
