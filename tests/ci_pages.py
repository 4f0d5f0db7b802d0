"""Where the action and the page on CI are, and the snippets of its sections."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ACTION = ROOT / "action.yml"
PAGE = ROOT / "docs" / "ci.md"


def snippet(section: str) -> str:
    """The first YAML of a section."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.search(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    assert found is not None
    return found[1]
