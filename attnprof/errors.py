"""What can go wrong, each with what to do about it."""

from pathlib import Path

MOST_LISTED = 32  # names that an error lists; of more it lists a few
FEW_LISTED = 10


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


def to_install(extra: str) -> str:
    """What to type for a library that is missing, by the name of the extra that brings it.

    >>> to_install("figures")
    "pip install '.[figures]' in the checkout of attnprof"
    """
    return f"pip install '.[{extra}]' in the checkout of attnprof"


def nearest(name: str, known: "list[str] | tuple[str, ...]", listing: str = "") -> str:
    """A sentence that names the closest of ``known``, or lists them when none is close.

    Args:
        listing: What lists them, where they are too many for a sentence: a command.

    >>> nearest("falsh", ["flash", "math"])
    "did you mean 'flash'?"
    >>> nearest("zzz", ["flash", "math"])
    'use one of: flash, math'
    >>> nearest("zzz", ["h100", "t4"], "attnprof show gpus")
    'use one that attnprof show gpus lists'
    >>> nearest("zzz", [f"h{number}" for number in range(100)])
    'use one of: h0, h1, h2, h3, h4, h5, h6, h7, h8, h9 and 90 more'
    """
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5 if listing else 0.6)
    if close:
        return f"did you mean '{close[0]}'?" + (f" {listing} lists them all" if listing else "")
    if listing:
        return f"use one that {listing} lists"
    if len(known) <= MOST_LISTED:
        return f"use one of: {', '.join(known)}"
    return f"use one of: {', '.join(known[:FEW_LISTED])} and {len(known) - FEW_LISTED} more"


def nearest_path(path: Path, pattern: str = "*") -> str | None:
    """What of a folder was probably meant by a path that is not there: ``did you mean …?``.

    Of a path whose folder is not there either, the same within the folder that was meant.

    Args:
        pattern: What comes into question, as the folder's files are called; of ``*/run.json``
            the folder that has it, of ``*/`` any folder.

    >>> nearest_path(Path(__file__).with_name("eror.py"), "err*.py").endswith("errors.py'?")
    True
    """
    if path.exists():
        return None
    meant = _near(path, pattern)
    if meant is None and not path.parent.is_dir():
        folder = _near(path.parent, "*/")
        meant = None if folder is None or not (folder / path.name).exists() else folder / path.name
    return None if meant is None else f"did you mean '{meant}'?"


def _near(path: Path, pattern: str) -> Path | None:
    import difflib

    try:
        found = sorted(path.parent.glob(pattern))
    except (OSError, ValueError):  # no folder, or none that may be read
        return None
    depth = len(path.parent.parts)
    names = {one.parts[depth] for one in found if len(one.parts) > depth}
    close = difflib.get_close_matches(path.name, sorted(names), n=1)
    return path.with_name(close[0]) if close else None
