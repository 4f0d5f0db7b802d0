"""Doctests are collected from the package: without torch, from those modules that do without."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent

if importlib.util.find_spec("torch") is None:
    collect_ignore = [
        str(path.relative_to(ROOT))
        for folder in ("backends", "devices", "workloads")
        for path in (ROOT / "attnprof" / folder).rglob("*.py")
        if re.search(r"^(import|from) torch\b", path.read_text(), re.MULTILINE)
    ]
