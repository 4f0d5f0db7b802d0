"""A log's text -> plain lines: no colours, no carriage returns, no rank prefixes."""

import re
from collections.abc import Iterator
from pathlib import Path

from attnprof.errors import UsageError

MAX_LOG_BYTES = 256 * 1024**2
MAX_LINE_CHARS = 20_000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
# "(EngineCore_DP0 pid=12)", "(Worker_TP1 pid=7)", "(RayWorkerWrapper pid=9, ip=10.0.0.2)", and the
# name that docker compose or kubectl puts before each line.
_PREFIX = re.compile(r"^(?:[\w.-]+\s*\|\s*)?(?:\([\w /:.-]*pid=\d+[^)]*\)\s*)*")


def clean_lines(text: str) -> Iterator[str]:
    """The lines of a log, without what a terminal or a launcher adds.

    >>> list(clean_lines("\\x1b[1;36m(Worker_TP0 pid=7)\\x1b[0;0m INFO took 1 GiB\\r\\n"))
    ['INFO took 1 GiB']
    """
    for raw in re.split(r"[\r\n]+", text):
        line = _ANSI.sub("", raw[:MAX_LINE_CHARS])
        line = _PREFIX.sub("", line, count=1).strip()
        if line:
            yield line


def read_log(path: Path) -> str:
    """The text of a log file.

    Raises:
        UsageError: Unreadable, too large, or no text.
    """
    return decode_log(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """The content of a log file.

    Raises:
        UsageError: Unreadable, or too large.
    """
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise UsageError(
                f"{path} has {path.stat().st_size} bytes, more than a start-up log",
                "give its beginning: head -n 2000",
            )
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a log file") from None


def decode_log(content: bytes, where: str) -> str:
    """The text in a log's bytes; UTF-8, or UTF-16 as PowerShell redirects it.

    Raises:
        UsageError: The bytes are no text.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if content[:65536].count(0) > 0:
        raise UsageError(f"{where} is binary, not a log", "give the text that the engine printed")
    return content.decode("utf-8", errors="replace")
