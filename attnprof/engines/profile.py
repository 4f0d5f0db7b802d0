"""An engine's name and version into its constants, each with the release that brought it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest
from attnprof.fields import Fields
from attnprof.profiles import find_profile, list_profiles, read_yaml

KINDS = (
    "vllm", "sglang", "tensorrt-llm", "llama-cpp", "ollama", "lmdeploy", "tgi", "torch",
)  # fmt: skip
_SPELLINGS = {
    "trt-llm": "tensorrt-llm", "trtllm": "tensorrt-llm", "tensorrtllm": "tensorrt-llm",
    "llamacpp": "llama-cpp", "llama.cpp": "llama-cpp", "ik-llama-cpp": "llama-cpp",
    "transformers": "torch", "hf": "torch", "pytorch": "torch", "sgl": "sglang",
}  # fmt: skip
_VERSION = re.compile(
    r"[a-z]?\d+(\.\d+)*([-_.]?(a|b|c|rc|alpha|beta|pre|post|rev|dev|d|cu)[-_.]?\d.*|[-+].+|\.?dev.*)?",
    re.IGNORECASE,
)  # 0.11.1rc2.dev5+g12ab, b4567, 0.5.7-0-ga420


@dataclass(frozen=True)
class Overheads:
    """What an audit found one engine to spend on one machine, in place of the constants."""

    runtime_bytes: int | None = None
    graph_bytes: int | None = None
    activation_scale: float | None = None
    weight_scale: float | None = None


@dataclass(frozen=True)
class EngineProfile:
    """An engine at one version: its constants, and where each came from."""

    name: str
    title: str
    kind: str
    version: str
    version_is_assumed: bool
    source: str
    constants: Mapping[str, Any]
    sources: Mapping[str, str]
    path: Path
    overheads: Overheads = field(default_factory=Overheads)
    newest_known: str = ""

    def at_least(self, version: str) -> bool:
        return _numbers(self.version) >= _numbers(version)

    @property
    def is_newer_than_known(self) -> bool:
        """Whether the version asked for comes after all that the profile describes."""
        return _numbers(self.version)[:2] > _numbers(self.newest_known)[:2]

    def number(self, key: str) -> float:
        """A numeric constant.

        Raises:
            UsageError: The profile lacks it, or it is no number.
        """
        value = self.constants.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise UsageError(
                f"{self.path}: {key} is {value!r}",
                f"write '{key}: NUMBER' under one of its versions",
            )
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.constants.get(key)
        if not isinstance(value, bool):
            raise UsageError(f"{self.path}: {key} is {value!r}", "write true or false")
        return value

    def text(self, key: str) -> str:
        value = self.constants.get(key)
        if not isinstance(value, str):
            raise UsageError(f"{self.path}: {key} is {value!r}", "write a text")
        return value

    def table(self, key: str) -> Mapping[Any, Any]:
        value = self.constants.get(key)
        if not isinstance(value, dict) or not value:
            raise UsageError(f"{self.path}: {key} is {value!r}", "write a mapping")
        return value

    def by_ranks(self, key: str, size: str, ranks: int) -> float:
        """The constant of the largest listed number of ranks that is not above ``ranks``."""
        listed = self.table(key)
        row = listed.get(size, listed)
        if not isinstance(row, dict):
            return float(row)
        fitting = [count for count in row if isinstance(count, int) and count <= ranks]
        return float(row[max(fitting, default=min(row))])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version.split("rc")[0])[:3])


@cache
def engine_named(text: str) -> EngineProfile:
    """The engine called ``name`` or ``name@version``.

    >>> engine_named("vllm@0.11.2").constants["max_num_seqs"]
    {'large': 1024, 'small': 256}

    Raises:
        UsageError: No such engine, or a version that is none.
    """
    name, at, version = text.replace("==", "@").partition("@")
    if at and not version.strip():
        raise UsageError(f"engine {text!r} has no version behind the @", f"write {name}@0.11")
    name = name.strip().lower()
    name = _SPELLINGS.get(name, name)
    path = find_profile("engines", name)
    if path is None:
        known = list_profiles("engines")
        raise UsageError(f"unknown engine {name!r}", nearest(name, [*known, *_SPELLINGS]))
    return read_engine(path, version.strip() or None)


def all_engines() -> list[EngineProfile]:
    """Every engine profile at its default version."""
    return [engine_named(name) for name in list_profiles("engines")]


def releases(name: str) -> list[str]:
    """The releases of an engine that changed what it holds, newest first; of no engine none."""
    path = find_profile("engines", _SPELLINGS.get(name, name))
    content = {} if path is None else read_yaml(path)
    listed = (
        []
        if path is None or "extends" in content
        else Fields(content, str(path)).tables("versions")
    )
    return [str(entry.get("since")) for entry in reversed(listed)]


def version_of_date(engine: str, date: str) -> str | None:
    """The newest version of an engine released by ``YYYY-MM`` (or ``YYYY``), None when none."""
    path = find_profile("engines", engine)
    if path is None:
        return None
    wanted = date if "-" in date else f"{date}-12"
    released = [
        str(entry.get("since"))
        for entry in Fields(read_yaml(path), str(path)).tables("versions")
        if str(entry.get("released", "9999")) <= wanted
    ]
    return released[-1] if released else None


def read_engine(path: Path, version: str | None = None) -> EngineProfile:
    """The engine profile in a file, at a version: the constants of that and earlier releases."""
    content = read_yaml(path)
    if "extends" in content:
        return _read_extension(path, content, version)
    fields = Fields(content, str(path))
    wanted = version or fields.text("default_version")
    newest = fields.text("default_version")
    if not _VERSION.fullmatch(wanted):
        raise UsageError(f"{wanted!r} is no version of {path.stem}", f"write {path.stem}@{newest}")
    constants: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for index, entry in enumerate(fields.tables("versions")):
        where = Fields(entry, f"{path}: versions[{index}]")
        since, source = where.text("since"), where.text("source")
        newest = max(newest, since, key=_numbers)
        if index and _numbers(since) > _numbers(wanted):
            continue
        for key, value in entry.items():
            if key not in ("since", "source", "released"):
                constants[key] = value
                sources[key] = f"since {since}: {source}"
    engine = EngineProfile(
        name=fields.text("name"),
        title=fields.text("title"),
        kind=fields.one_of("kind", KINDS),
        version=wanted,
        version_is_assumed=version is None,
        source=fields.text("source"),
        constants=constants,
        sources=sources,
        path=path,
        newest_known=newest,
    )
    fields.done()
    return engine


def _read_extension(path: Path, content: dict[str, Any], version: str | None) -> EngineProfile:
    """A user's profile: another engine, with overheads that an audit measured."""
    from dataclasses import replace

    fields = Fields(content, str(path))
    base_name = fields.text("extends")
    if base_name.partition("@")[0] == path.stem:
        raise UsageError(f"{path} extends itself", "give it another name than the engine's")
    base = engine_named(
        base_name if version is None else f"{base_name.partition('@')[0]}@{version}"
    )
    found = Fields(fields.table("overheads"), f"{path}: overheads")
    overheads = Overheads(
        runtime_bytes=found.count("runtime_bytes", low=0, high=2**40, needed=False),
        graph_bytes=found.count("graph_bytes", low=0, high=2**40, needed=False),
        activation_scale=found.number("activation_scale", high=100, needed=False),
        weight_scale=found.number("weight_scale", low=0.1, high=10, needed=False),
    )
    found.done()
    extended = replace(
        base,
        name=fields.text("name"),
        title=fields.text("title", default=base.title),
        source=fields.text("source"),
        path=path,
        overheads=overheads,
    )
    fields.done()
    return extended
