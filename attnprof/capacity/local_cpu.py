"""The calibration of this computer's CPU -> the device that an estimate plans for."""

from functools import lru_cache
from pathlib import Path

from attnprof.devices.cpu_meters import cpu_name, total_bytes
from attnprof.devices.environment import default_threads
from attnprof.errors import UsageError
from attnprof.gpus import Gpu
from attnprof.laws.calibration import KIND, Calibration, calibration_named, read_calibration
from attnprof.profiles import find_profile
from attnprof.run_header import device_words, slug

CPU = "cpu"


def calibration_of_cpu(name: str | None = None) -> Calibration:
    """The laws of this CPU with as many threads as a sweep takes, or those that are named.

    Raises:
        UsageError: There are none yet, they cannot be read, or they are of another device.
    """
    found = find_calibration(default_threads()) if name is None else calibration_named(name)
    if found is None:
        device = device_words(cpu_name(), CPU, default_threads())
        raise UsageError(
            f"nothing is known of this CPU: there is no calibration of {device}",
            "measure it: attnprof calibrate --device cpu",
        )
    if not found.device.startswith(f"{cpu_name()}, "):
        raise UsageError(
            f"calibration {found.name!r} is of {found.device!r}, not of this CPU",
            "leave --calibration out, or name one of this CPU",
        )
    return found


def find_calibration(threads: int) -> Calibration | None:
    """The laws of this CPU with so many threads, as ``calibrate`` keeps them; None without any.

    Raises:
        UsageError: They cannot be read, or are of another device.
    """
    device = device_words(cpu_name(), CPU, threads)
    name = slug(device)
    path = find_profile(KIND, name)
    if path is None:
        return None
    found = _read(path, path.stat().st_mtime_ns)
    if found.device != device:
        raise UsageError(
            f"calibration {name!r} is of {found.device!r}, not of {device!r}",
            "calibrate again: attnprof calibrate --device cpu",
        )
    return found


@lru_cache(maxsize=1)
def _read(path: Path, changed_ns: int) -> Calibration:
    """An estimate asks for it several times."""
    return read_calibration(path)


def local_cpu(calibration: Calibration) -> Gpu:
    """This computer as the device of a deployment: its memory, and its measured roofs."""
    laws = [law.fitted.hardware for law in calibration.laws.values()]
    total = total_bytes()
    if total is None:
        raise UsageError(
            "the system does not say how much memory there is", "name a GPU of the profiles"
        )
    return Gpu(
        name=CPU,
        title=calibration.device,
        vendor="CPU",
        segment="workstation",
        matches=(),
        aliases=(),
        verified="measured",
        source=f"calibration {calibration.name}",
        memory_bytes=total,
        memory_basis="unified",
        visible_memory_bytes=total,
        visible_is_assumed=False,
        memory_bandwidth_bytes_per_s=laws[0].bytes_per_s,
        dense_flops_per_s={
            law.where["dtype"]: law.fitted.hardware.flops_per_s
            for law in calibration.laws.values()
            if "dtype" in law.where
        },
        num_compute_units=round(laws[0].num_units),
        l2_bytes=None,
        link=None,
        link_bytes_per_s=None,
        power_w=None,
        path=Path(f"{calibration.name}.yaml"),
    )
