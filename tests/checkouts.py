"""Copies of this checkout's package in which a line is another: the sides that tests compare."""

import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def changed(folder: Path, changes: Mapping[str, str]) -> Path:
    """A copy of the package in ``folder``, with a text at the end of some of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(
        ROOT / "attnprof", folder / "attnprof", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, text in changes.items():
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(text)
    return folder
