"""Content -> a file, whole or not at all: what was there stays as it was where there is no room."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from attnprof.errors import UsageError

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")  # also where they are a file


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write in place of ``path``, which it becomes once all is written.

    A link is followed. What is no regular file, as ``/dev/stdout``, is written itself.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    is_there = path.exists()
    if (is_there and not path.is_file()) or str(path.absolute()).startswith(_STREAMS):
        yield path
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        if is_there:
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file as a whole, or leave what is there as it is.

    Raises:
        OSError: It cannot be written.
    """
    with replacing(path) as to:
        to.write_bytes(content.encode() if isinstance(content, str) else content)


def write_whole(
    path: Path, content: str | bytes, fix: str = "make room, or copy the run to your folder"
) -> None:
    """Write a file as a whole, or leave what is there as it is.

    Args:
        fix: What to do where that cannot be.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        replace_file(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", fix) from None
