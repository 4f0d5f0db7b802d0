"""A log's text -> plain lines: no colours, no carriage returns, no rank prefixes."""

import re
from collections.abc import Iterator
from pathlib import Path

from attnprof.errors import UsageError, nearest_path

START_BYTES = 2 * 1024**2
"""What is read of a log: engines say all of it as they start, and then log requests."""
MAX_LINE_CHARS = 20_000

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]|\x1b\][^\x07]{0,500}\x07|\x1b[()][A-Z0-9]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")
# "(EngineCore_DP0 pid=12)", "(Worker_TP1 pid=7)", "(RayWorkerWrapper pid=9, ip=10.0.0.2)", and the
# name that docker compose or kubectl puts before each line.
_PREFIX = re.compile(r"^(?:[\w.-]+\s*\|\s*)?(?:\([\w /:.-]*pid=\d+[^)]*\)\s*)*")


def clean_lines(text: str) -> Iterator[str]:
    """The lines of a log, without what a terminal or a launcher adds.

    >>> list(clean_lines("\\x1b[1;36m(Worker_TP0 pid=7)\\x1b[0;0m INFO took 1 GiB\\r\\n"))
    ['INFO took 1 GiB']
    """
    for raw in re.split(r"[\r\n]+", text):
        line = _CONTROL.sub("", _ANSI.sub("", raw[:MAX_LINE_CHARS]))
        line = _PREFIX.sub("", line, count=1).strip()
        if line:
            yield line


def read_log(path: Path) -> str:
    """The text of a log file's start.

    Raises:
        UsageError: Unreadable, or no text.
    """
    return decode_log(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """The start of a log file, and a byte more where there is more.

    Raises:
        UsageError: Unreadable.
    """
    try:
        with path.open("rb") as file:
            return file.read(START_BYTES + 1)
    except OSError as error:
        hint = nearest_path(path) or "give a log file"
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None


def decode_log(content: bytes, where: str) -> str:
    """The text in a log's first bytes; UTF-8, or UTF-16 as PowerShell redirects it.

    Raises:
        UsageError: The bytes are no text.
    """
    content, head = content[:START_BYTES], content[:65536]
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if len(head) > 1 and head[1::2].count(0) > 0.4 * len(head) > 0 == head[::2].count(0):
        return content.decode("utf-16-le", errors="replace")
    if head.count(0) > 0:
        raise UsageError(f"{where} is binary, not a log", "give the text that the engine printed")
    return content.decode("utf-8", errors="replace")
