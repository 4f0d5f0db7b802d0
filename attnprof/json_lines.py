"""A JSON Lines file -> its mappings, each with the number of its line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnprof.errors import UsageError, nearest_path

MAX_FILE_BYTES = 64 * 1024**2


def read_json_lines(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The mappings of a file, blank lines left out.

    Args:
        what: What a line is, for an error: ``serving case``.

    Raises:
        UsageError: The file is unreadable, too large or no text, or a line is no JSON object.
    """
    fix = f"give a JSON Lines file, one {what} a line"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB", fix)
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", nearest_path(path) or fix
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text", fix) from None
    # Not splitlines: a text within a line may hold separators that JSON does not escape.
    for number, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError) as error:
            reason = str(error)[:120]
            raise UsageError(f"{path}, line {number} is not JSON: {reason}", fix) from None
        if not isinstance(line, dict):
            raise UsageError(f"{path}, line {number} is no mapping", fix)
        yield number, line
