"""Text -> a file, whole or not at all."""

import contextlib
from pathlib import Path

from attnprof.errors import UsageError


def write_whole(path: Path, text: str) -> None:
    """Replace a file as a whole, or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "make room, or copy the run to your folder"
        ) from None
