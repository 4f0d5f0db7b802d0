"""A page of the documentation -> its commands, run in order in an empty folder, and what they say.

Blocks ``console`` hold commands after ``$`` and what they print at 100 columns; a line ``…`` stands
for lines left out. A block with a title, such as ``yaml title="grid.yaml"``, is a file of that
name. ``<picture>`` shows a figure that such a command draws: ``figures/serving-light.svg`` is what
``--figure serving.svg`` or ``report --figures`` wrote. After ``<!-- measured -->`` a block shows
times of some machine: it is run on the synthetic device; the tables, their columns and the names
of their rows are compared, and what a cache holds.
"""

import difflib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

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
EVERYWHERE = ("KV", "KV by theory")  # columns that are the same on every machine
_GAP = re.compile(r" {2,}")
PICTURE = re.compile(
    r"<picture>\n"
    r'  <source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\n'
    r'  <img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\n'
    r"</picture>"
)


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


def figure_option(typed: str) -> str | None:
    """The file that a command was told to draw."""
    words = shlex.split(typed)
    return words[words.index("--figure") + 1] if "--figure" in words else None


def texts_of(svg: str) -> list[str]:
    """What is written in a figure; and first what a reader is told who does not see it."""
    root = ElementTree.fromstring(svg)
    return [
        root.attrib["aria-label"],
        *(one.text or "" for one in root.iter() if one.tag.endswith("}text")),
    ]


def is_said(said: str, printed: str) -> bool:
    """Whether what was printed is what the page says, but for the lines that it leaves out."""
    pattern = ".*".join(map(re.escape, said.split(ELISION)))
    return re.fullmatch(pattern, printed, re.S) is not None


@dataclass(frozen=True)
class Printed:
    """A table as it was printed.

    Args:
        rows: The cells of each row, by the name in its first; of rows without an empty cell.
        hidden: Headings of columns that there was no room for.
    """

    title: str
    headings: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    hidden: str

    def cell(self, row: str, column: str) -> str | None:
        """What stands in a column; None where there is none."""
        return self.rows[row][self.headings.index(column)] if column in self.headings else None


def tables_of(text: str) -> list[Printed]:
    """The tables in a text; what a synthetic device adds to their titles is left out."""
    lines = text.replace(" (synthetic device)", "").splitlines()
    rules = [place for place, line in enumerate(lines) if line and not line.strip("─")]
    found = []
    for place, following in itertools.pairwise([*rules, len(lines) + 2]):
        cells = [tuple(_GAP.split(row)) for row in itertools.takewhile(_is_row, lines[place + 1 :])]
        _, _, hidden = " ".join(lines[place : following - 2]).partition("no room for: ")
        headings = tuple(_GAP.split(lines[place - 1]))
        found.append(Printed(lines[place - 2], headings, {row[0]: row for row in cells}, hidden))
    return found


def _is_row(line: str) -> bool:
    return len(_GAP.split(line)) > 1


def is_table_within(said: Printed, of: Printed) -> bool:
    """Whether a table of some machine's times can be this one: the same columns and rows, and the
    same in what is no time."""
    if (said.title, said.headings[0]) != (of.title, of.headings[0]):
        return False
    if any(name not in of.headings and name not in of.hidden for name in said.headings):
        return False
    return said.rows.keys() <= of.rows.keys() and all(
        said.cell(name, column) == of.cell(name, column)
        for name in said.rows
        for column in EVERYWHERE
    )


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
