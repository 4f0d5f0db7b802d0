"""Hardware with a clock, found by name; each is imported only when it is asked for."""

import importlib.util
import re
from typing import Any

from attnprof.devices.base import Device
from attnprof.errors import CannotMeasureError, UsageError, nearest, to_install

DEVICES = ("auto", "cpu", "cuda", "rocm", "mps", "xpu", "synthetic")


NUMBERED = ("cuda", "rocm", "xpu")  # of which there may be several


def kind_of(name: str) -> str:
    """The kind of the device called ``name``, without looking whether it is there.

    >>> kind_of("cuda:1")
    'cuda'

    Raises:
        UsageError: No such kind, or something behind it that such a device does not take.
    """
    kind = name.split("?")[0].split(":")[0]
    if kind not in DEVICES:
        raise UsageError(f"unknown device {name!r}", nearest(kind, DEVICES))
    rest = name.removeprefix(kind)
    if not rest:
        return kind
    if kind == "synthetic" and rest.startswith("?"):
        from attnprof.devices.synthetic import parse_law

        parse_law(name)
    elif kind not in NUMBERED:
        raise UsageError(f"device {kind} takes no {rest!r}", f"write --device {kind}")
    elif not re.fullmatch(":[0-9]{1,4}", rest):
        raise UsageError(f"no device is called {name!r}", f"use {kind}, or {kind}:0")
    return kind


def open_device(name: str, threads: int | None = None, **settings: Any) -> Device:
    """The device called ``name``, ready to build workloads.

    Args:
        name: ``auto`` (an accelerator if there is one, else the CPU), ``cpu``, ``cuda``,
            ``cuda:1``, ``rocm``, ``mps``, ``xpu``, or ``synthetic?noise=0.02&memory=8GiB``.
        threads: Of the CPU; None for as many as can run at once.
        settings: Of CUDA and ROCm, such as ``mode``; the others have none to set.

    Raises:
        UsageError: No such kind of device.
        CannotMeasureError: The device is not there, or torch is not.
    """
    kind = kind_of(name)
    if kind == "synthetic":
        from attnprof.devices.synthetic import open_synthetic

        return open_synthetic(name)
    if importlib.util.find_spec("torch") is None:
        raise CannotMeasureError(
            f"torch is not installed, and {kind} is measured with it",
            f"{to_install('torch')}, or use --device synthetic",
        )
    if kind == "auto":
        from attnprof.devices.accelerators import best_kind

        return open_device(best_kind(), threads, **settings)
    if kind in ("cuda", "rocm"):
        from attnprof.devices.cuda import open_cuda

        return open_cuda(name, settings)
    if kind == "mps":
        from attnprof.devices.mps import open_mps

        return open_mps()
    if kind == "xpu":
        from attnprof.devices.xpu import open_xpu

        return open_xpu(name)
    from attnprof.devices.cpu import CpuDevice

    return CpuDevice(threads=threads)
