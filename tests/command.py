"""The command line as tests run it: a process of its own, as a shell would start it."""

import os
import subprocess
import sys


def attnprof(
    *args: str, stdin: bytes | None = None, columns: int = 160
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "attnprof", *args],
        capture_output=True,
        text=True,
        input=None if stdin is None else stdin.decode(),
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": str(columns)},
        check=False,
    )
