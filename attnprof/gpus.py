"""A GPU's name, as people or drivers write it, into its profile: memory, bandwidth, peaks, link."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnprof.errors import UsageError, nearest
from attnprof.fields import Fields
from attnprof.profiles import find_profile, list_profiles, read_yaml

# What the CUDA runtime keeps of the driver's total before any engine starts, for cards whose
# visible memory was not logged. The logged ones: A10 0.30, T4 0.40, 3090 0.42, 4090 and H100 0.46,
# A6000 0.49, H200 and RTX PRO 6000 0.6, A100 0.6 to 0.85 GiB.
_RUNTIME_HOLDS_BYTES = round(0.46 * 2**30)
_VERIFIED = ("checked", "partly", "recalled", "measured")
_CPU = "cpu"
_BASES = ("driver", "nominal", "unified", "documented")


@dataclass(frozen=True)
class Gpu:
    """One accelerator, or one device of it as the driver shows it; unknown is None.

    ``memory_bytes`` is what the driver's own tool prints, ``visible_memory_bytes`` what a program
    is told (``cudaMemGetInfo``), which is what engines multiply by their utilisation.
    """

    name: str
    title: str
    vendor: str
    segment: str
    matches: tuple[str, ...]
    aliases: tuple[str, ...]
    verified: str
    source: str
    memory_bytes: int
    memory_basis: str
    visible_memory_bytes: int
    visible_is_assumed: bool
    memory_bandwidth_bytes_per_s: float
    dense_flops_per_s: Mapping[str, float]
    num_compute_units: int | None
    l2_bytes: int | None
    link: str | None
    link_bytes_per_s: float | None
    power_w: float | None
    path: Path

    def peak_flops_per_s(self, dtype: str) -> float | None:
        """The dense peak for an element type by torch's name, None when the profile has none."""
        return self.dense_flops_per_s.get(dtype)


def _normal(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    for maker in ("nvidia-", "amd-", "instinct-", "geforce-", "tesla-", "apple-", "intel-r-"):
        plain = plain.removeprefix(maker)
    return plain


def _path(name: str) -> Path:
    path = find_profile("gpus", name)
    assert path is not None, "only listed names come here"
    return path


@cache
def _names() -> dict[str, str]:
    """Every way to write a GPU, normalised, to its profile's name, without parsing the YAML."""
    known: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name in list_profiles("gpus"):
        known[_normal(name)] = name
        path = _path(name)
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(("matches:", "aliases:", "title:")):
                listed = line.split(":", 1)[1].strip().strip("[]")
                others += [(_normal(text.strip("\" '")), name) for text in listed.split(",")]
    for spelling, name in others:
        known.setdefault(spelling, name)
    return known


def gpu_named(name: str) -> Gpu:
    """The GPU called ``name``: a profile, an alias, or what a driver reports.

    >>> gpu_named("NVIDIA H100 80GB HBM3").name
    'h100-sxm'

    Raises:
        UsageError: No such GPU; the nearest known is named, this computer's processor too.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return read_gpu(path)
    names = _names()
    found = names.get(_normal(name))
    if found is None:
        raise UsageError(f"unknown GPU {name!r}", _hint(_normal(name), names))
    return read_gpu(_path(found))


def _hint(name: str, names: Mapping[str, str]) -> str:
    """What was meant by a name that is no GPU: another one, or this computer's processor."""
    if name == _CPU:
        return "estimate --gpu cpu plans for it; attnprof doctor says what it can do"
    hint = nearest(name, [_CPU, *list_profiles("gpus"), *names], "attnprof show gpus")
    return hint.replace(f"'{_CPU}'?", f"'{_CPU}', this computer's own, as estimate takes it?")


def all_gpus() -> list[Gpu]:
    """Every GPU profile, the user's own included, by name."""
    return [read_gpu(_path(name)) for name in list_profiles("gpus")]


def read_gpu(path: Path) -> Gpu:
    """The GPU profile in a file, every key and number checked."""
    fields = Fields(read_yaml(path), str(path))
    memory = fields.count("memory_bytes", low=2**28, high=2**44)
    assert memory is not None
    visible = fields.count("visible_memory_bytes", low=2**28, high=memory, needed=False)
    vendor = fields.text("vendor")
    guess = memory - _RUNTIME_HOLDS_BYTES if vendor == "NVIDIA" else memory
    bandwidth = fields.number("memory_bandwidth_bytes_per_s", low=1e9, high=1e15)
    assert bandwidth is not None
    peaks = Fields(fields.table("dense_flops_per_s"), f"{path}: dense_flops_per_s")
    flops = {
        dtype: peak
        for dtype in fields.table("dense_flops_per_s")
        if (peak := peaks.number(dtype, low=1e9, high=1e18)) is not None
    }
    link = fields.text("link", default="none")
    gpu = Gpu(
        name=fields.text("name"),
        title=fields.text("title"),
        vendor=vendor,
        segment=fields.one_of("segment", ("datacenter", "workstation", "consumer")),
        matches=fields.texts("matches"),
        aliases=fields.texts("aliases"),
        verified=fields.one_of("verified", _VERIFIED),
        source=fields.text("source"),
        memory_bytes=memory,
        memory_basis=fields.one_of("memory_basis", _BASES),
        visible_memory_bytes=visible if visible is not None else guess,
        visible_is_assumed=visible is None,
        memory_bandwidth_bytes_per_s=bandwidth,
        dense_flops_per_s=flops,
        num_compute_units=fields.count("num_compute_units", high=10**5, needed=False),
        l2_bytes=fields.count("l2_bytes", high=2**34, needed=False),
        link=None if link == "none" else link,
        link_bytes_per_s=fields.number("link_bytes_per_s", low=1e8, high=1e14, needed=False),
        power_w=fields.number("power_w", low=1, high=1e5, needed=False),
        path=path,
    )
    fields.done()
    return gpu
