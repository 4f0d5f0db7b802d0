"""Torch's many ways to say that there is no room -> one error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attnprof.errors import OutOfMemoryError

_REQUESTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc")


def as_out_of_memory(error: BaseException) -> OutOfMemoryError | None:
    """The error as one of ours when it says that memory is short, else None.

    >>> found = as_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: "
    ...     "you tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)"))
    >>> found.requested_bytes
    64
    >>> as_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. "
    ...     "GPU 0 has a total capacity of 79.10 GiB")).requested_bytes  # to two digits
    1610612736
    >>> as_out_of_memory(RuntimeError("shapes differ")) is None
    True
    """
    short = isinstance(error, MemoryError | torch.OutOfMemoryError)
    text = str(error)
    if not short and not (isinstance(error, RuntimeError) and any(s in text for s in _SIGNS)):
        return None
    requested = _REQUESTED.search(text)
    problem = text.strip().splitlines()[0] if text.strip() else "out of memory"
    num_bytes = round(float(requested[1]) * _UNITS[requested[2]]) if requested else None
    return OutOfMemoryError(problem, num_bytes)


@contextmanager
def raising_out_of_memory() -> Iterator[None]:
    """Turns what torch raises inside into :class:`~attnprof.errors.OutOfMemoryError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        found = as_out_of_memory(error)
        if found is None:
            raise
        raise found from error
