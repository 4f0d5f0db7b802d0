"""What can go wrong, each with what to do about it."""

from pathlib import Path


class AttnprofError(Exception):
    """An expected failure: what is wrong, with the value, and what to type or edit instead."""

    exit_code = 2

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem if not fix else f"{problem} ({fix})")
        self.problem = problem
        self.fix = fix


class UsageError(AttnprofError):
    """The request makes no sense: an unknown name, a wrong value, a false file."""


class CannotMeasureError(AttnprofError):
    """It cannot be measured, compared or decided here: no such device, torch missing, too noisy."""

    exit_code = 3


class UnsupportedError(AttnprofError):
    """A backend or device lacks what a workload asks for; becomes an ``unsupported`` record."""


class OutOfMemoryError(AttnprofError):
    """The device has no room for a workload; becomes an ``out_of_memory`` record."""

    def __init__(self, problem: str, requested_bytes: int | None = None) -> None:
        super().__init__(problem)
        self.requested_bytes = requested_bytes


def nearest(name: str, known: "list[str] | tuple[str, ...]", listing: str = "") -> str:
    """A sentence that names the closest of ``known``, or lists them all when none is close.

    Args:
        listing: A command that lists them, where they are too many for a sentence.

    >>> nearest("falsh", ["flash", "math"])
    "did you mean 'flash'?"
    >>> nearest("zzz", ["flash", "math"])
    'use one of: flash, math'
    >>> nearest("zzz", ["h100", "t4"], "attnprof show gpus")
    'use one that attnprof show gpus lists'
    """
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5 if listing else 0.6)
    if close:
        return f"did you mean '{close[0]}'?" + (f" {listing} lists them all" if listing else "")
    return f"use one that {listing} lists" if listing else f"use one of: {', '.join(known)}"


def nearest_path(path: Path, pattern: str = "*") -> str | None:
    """What of a folder was probably meant by a path that is not there: ``did you mean …?``.

    Args:
        pattern: What comes into question, as the folder's files are called; of ``*/run.json``
            the folder that has it.

    >>> nearest_path(Path(__file__).with_name("eror.py"), "err*.py").endswith("errors.py'?")
    True
    """
    import difflib

    if path.exists():
        return None
    try:
        found = sorted(path.parent.glob(pattern))
    except (OSError, ValueError):  # no folder, or none that may be read
        return None
    depth = len(path.parent.parts)
    names = {one.parts[depth] for one in found if len(one.parts) > depth}
    close = difflib.get_close_matches(path.name, sorted(names), n=1)
    return f"did you mean '{path.with_name(close[0])}'?" if close else None
