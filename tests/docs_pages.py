"""A page of the documentation -> its commands, run in order in an empty folder, and what they say.

Blocks ``console`` hold commands after ``$`` and what they print at 100 columns; a line ``…`` stands
for lines left out. A block with a title, such as ``yaml title="grid.yaml"``, is a file of that
name. After ``<!-- measured -->`` a block shows times of some machine: it is run on the synthetic
device, and only the names in its tables are compared.
"""

import difflib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MEASURED = "<!-- measured -->\n"
BLOCK = re.compile(
    rf'(?P<mark>{re.escape(MEASURED)})?^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<body>.*?)^```$",
    re.M | re.S,
)
ELISION = "…\n"
SYNTHETIC = ("--device", "synthetic?noise=0.02", "--quiet")
MEASURING = ("sweep", "calibrate")
TableNames = tuple[str, str, frozenset[str]]
"""Of a table its title, its first heading and the names of its rows."""
_GAP = re.compile(r" {2,}")


@dataclass(frozen=True)
class Command:
    """A command of a page and what the page says that it prints."""

    typed: str
    said: str
    is_measured: bool


def blocks(text: str) -> Iterator[re.Match[str]]:
    return BLOCK.finditer(text)


def commands(block: re.Match[str]) -> list[Command]:
    """The commands of a block ``console``."""
    parts = re.split(r"^\$ ", block["body"], flags=re.M)
    assert parts[0] == "", "a block begins with a command"
    return [Command(*_typed_and_said(part), bool(block["mark"])) for part in parts[1:]]


def _typed_and_said(part: str) -> tuple[str, str]:
    typed, said = "", part
    while True:
        line, _, said = said.partition("\n")
        typed += line.removesuffix("\\")
        if not line.endswith("\\"):
            return typed, said


class Shell:
    """An empty folder in which the commands of a page are run, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.code = 0
        self.environment = {
            **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            "PATH": "",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
            "ATTNPROF_PROFILES": str(folder / "profiles"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HOME": str(folder),
        }

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, command: Command) -> str:
        """What it prints: on standard output, or on standard error where that is all."""
        if command.typed == "echo $?":
            return f"{self.code}\n"
        words = shlex.split(command.typed)
        assert words[0] == "attnprof", f"{command.typed} is no command of attnprof"
        measured = SYNTHETIC if command.is_measured and words[1] in MEASURING else ()
        done = subprocess.run(
            [sys.executable, "-m", *words, *measured],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )
        self.code = done.returncode
        assert self.code in (0, 1, 2, 3), done.stderr
        return done.stdout or done.stderr


def is_said(said: str, printed: str) -> bool:
    """Whether what was printed is what the page says, but for the lines that it leaves out."""
    pattern = ".*".join(map(re.escape, said.split(ELISION)))
    return re.fullmatch(pattern, printed, re.S) is not None


def names(text: str) -> list[TableNames]:
    """What the tables in a text are called, and their rows."""
    lines = text.replace(" (synthetic device)", "").splitlines()
    found = []
    for place, line in enumerate(lines):
        if line and not line.strip("─"):
            rows = []
            for row in lines[place + 1 :]:
                cells = _GAP.split(row)
                if len(cells) < 2:
                    break
                rows.append(cells[0])
            found.append((lines[place - 2], _GAP.split(lines[place - 1])[0], frozenset(rows)))
    return found


def renewed(said: str, printed: str) -> str:
    """What a page says, written anew: whole, or of each stretch as many lines as it had."""
    if ELISION not in said:
        return printed
    lines = printed.splitlines(keepends=True)
    parts, start = [], 0
    stretches = said.split(ELISION)
    for number, stretch in enumerate(stretches):
        old = stretch.splitlines(keepends=True)
        if not old:
            parts.append("")
            continue
        left = lines[start:]
        place = 0
        if number:
            close = difflib.get_close_matches(old[0], left, n=1, cutoff=0.0)
            place = left.index(close[0])
        parts.append("".join(left[place : place + len(old)]))
        start += place + len(old)
    return ELISION.join(parts)
