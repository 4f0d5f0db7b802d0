"""Calibrations -> what they say of the kernels of a GPU's steps, and what was left out of them.

Those in the user's own folder count for the GPU that they name; one that ``--calibration`` names
goes alone. A file is read only where it is of this GPU, so that an estimate stays fast.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnprof.errors import UsageError
from attnprof.gpus import Gpu, gpu_named
from attnprof.profiles import MAX_PROFILE_BYTES, user_profile_dir

if TYPE_CHECKING:
    from attnprof.laws.calibration import CalibratedLaw, Calibration

KERNELS = {
    "gemm_compute": ("gemm", "compute"),
    "gemm_memory": ("gemm", "dram"),
    "decode_memory": ("decode", "dram"),
    "prefill_compute": ("prefill", "compute"),
}
"""Coefficients of a step -> the law of a calibration, and its coefficient, that says the same."""
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3  # of a kernel's time over that at its roof
HALVES = ("bf16", "bfloat16", "fp16", "float16")
MOST_NOTES = 3  # about files that were left out; of more, how many
_DEVICE = re.compile(r"^device:[ \t]*(['\"]?)(.*?)\1[ \t]*(?:#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class OwnKernels:
    """Coefficients of kernels that calibrations give, before the shipped ones.

    Args:
        values: By coefficient of a step, what the laws have of it.
        names: Of the calibrations that gave them.
        notes: What was left out, and why.
    """

    values: Mapping[str, float]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def covers(self, *coefficients: str) -> bool:
        return all(name in self.values for name in coefficients)


NOTHING_OWN = OwnKernels({})


def own_kernels(gpu: Gpu, calibration: str | None = None) -> OwnKernels:
    """What the user's own calibrations say of a GPU's kernels; or the one that is named, alone.

    A law that does not hold on what was held out is not used, and said to be left out. In the
    user's folder so is a file that cannot be read: others are none the worse for it.

    Args:
        calibration: A name, shipped or the user's own, or a file.

    Raises:
        UsageError: The one that is named is none, is of another device, or has no law to use.
    """
    if calibration is not None:
        return _named_kernels(gpu, calibration)
    values: dict[str, float] = {}
    names: list[str] = []
    notes: list[str] = []
    unread: list[str] = []
    for path in sorted((user_profile_dir() / "calibrations").glob("*.yaml")):
        if path.is_fifo() or not _may_be_of(path, gpu):
            continue
        from attnprof.laws.calibration import read_calibration

        try:
            found = read_calibration(path)
            if not _is_of(found.device, gpu):
                continue
            own, missed = kernels_of(found)
        except UsageError as error:
            unread.append(f"left out a calibration that cannot be read: {error.problem}")
            continue
        values |= own
        notes += _missed_words(found.name, missed)
        if own:
            names.append(found.name)
    if len(unread) > MOST_NOTES:
        more = len(unread) - MOST_NOTES
        unread = [*unread[:MOST_NOTES], f"left out {more} more that cannot be read"]
    return OwnKernels(values, tuple(dict.fromkeys(names)), tuple(dict.fromkeys((*unread, *notes))))


def _named_kernels(gpu: Gpu, calibration: str) -> OwnKernels:
    from attnprof.laws.calibration import calibration_named

    found = calibration_named(calibration)
    if not _is_of(found.device, gpu):
        raise UsageError(
            f"calibration {found.name!r} is of {found.device!r}, not of {gpu.name}",
            "leave --calibration out, or name one of this GPU: attnprof show calibrations",
        )
    values, missed = kernels_of(found)
    if not values:
        why = "it has none of a plain GEMM, decode or prefill of a GPU"
        if missed:
            why = f"{', '.join(missed)} miss too much of what was held out"
        raise UsageError(
            f"calibration {found.name!r} has no law that a step goes by: {why}",
            "leave --calibration out, or name another: attnprof show calibrations",
        )
    return OwnKernels(values, (found.name,), tuple(_missed_words(found.name, missed)))


def _missed_words(name: str, missed: tuple[str, ...]) -> list[str]:
    if not missed:
        return []
    verb = "does" if len(missed) == 1 else "do"
    return [
        f"calibration {name}: left out {', '.join(missed)}, which {verb} not hold on what was "
        "held out"
    ]


def _may_be_of(path: Path, gpu: Gpu) -> bool:
    """Whether a file may be of a GPU, by its line ``device:``; without one, reading it says why."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_PROFILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return True
    device = _DEVICE.search(text)
    return device is None or not device[2] or _is_of(device[2], gpu)


def _is_of(device: str, gpu: Gpu) -> bool:
    """Whether a device's name is the GPU's: a name, never a path to a profile."""
    if device.lower().endswith((".yaml", ".yml")):
        return False
    try:
        return gpu_named(device).name == gpu.name
    except UsageError:
        return False  # a device that is no GPU of the profiles


def kernels_of(
    calibration: "Calibration", *, only_holding: bool = True
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What a calibration has of the kernels of a step, and which of its laws do not hold.

    Geometric means over its plain kernels: those that compute and cache in half precision, over
    all keys, and share KV heads where any do.

    Args:
        only_holding: Whether laws that do not hold on what was held out are left out.

    Raises:
        UsageError: A coefficient that no kernel has.
    """
    logs: dict[str, list[float]] = {}
    missed = []
    for key, law in calibration.laws.items():
        wanted = [(name, coefficient) for name, (kind, coefficient) in KERNELS.items()
                  if law.fitted.law.name == kind]  # fmt: skip
        if not wanted or not _is_plain(law):
            continue
        if not law.holds:
            missed.append(key)
            if only_holding:
                continue
        values = dict(zip(law.fitted.law.names, law.fitted.coefficients.tolist(), strict=True))
        for name, coefficient in wanted:
            logs.setdefault(name, []).append(math.log(values[coefficient]))
    found = {name: math.exp(sum(those) / len(those)) for name, those in logs.items()}
    for name, factor in found.items():
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise UsageError(
                f"calibration {calibration.name!r}: {name} is {factor:g}",
                "fit it again: attnprof fit RUN --output FILE",
            )
    return found, tuple(missed)


def _is_plain(law: "CalibratedLaw") -> bool:
    dtype = law.where.get("dtype", law.where.get("q_dtype", HALVES[0]))
    if dtype not in HALVES or law.where.get("kv_dtype", dtype) not in (*HALVES, "auto"):
        return False
    return "window" not in law.where and law.where.get("sharing", "gqa") == "gqa"
