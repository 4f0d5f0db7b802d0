"""A comparison -> GitHub's workflow commands: a line each, which the page of a run shows.

Source:
    GitHub, "Workflow commands for GitHub Actions"; the escapes are those of actions/toolkit,
    packages/core/src/command.ts. A step shows ten of a kind and drops the rest unsaid.
"""

from attnprof.render import plain
from attnprof.verdicts.comparison import Comparison
from attnprof.verdicts.outputs.sentences import headline, workload_sentence

MOST = 10  # annotations in all, the last one for what there was no room for


def annotation_lines(comparison: Comparison) -> list[str]:
    """At most :data:`MOST` commands: an error for each failing workload, the whole last."""
    level = "error" if comparison.exit_code else "notice"
    whole = _command(level, "attnprof", headline(comparison))
    room = MOST - 1
    failing = comparison.failing
    shown = failing if len(failing) <= room else failing[: room - 1]
    lines = [
        _command("error", workload.workload_id, workload_sentence(workload)) for workload in shown
    ]
    if len(shown) < len(failing):
        left = len(failing) - len(shown)
        lines.append(_command("error", "attnprof", f"and {left} more; the report lists them all"))
    return [*lines, whole]


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(plain(title))}::{_data(plain(message))}"


def _data(text: str) -> str:
    r"""What stands after the second ``::``.

    >>> _data("100 % of a\nb: c, d")
    '100 %25 of a%0Ab: c, d'
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """What stands before it, where colons and commas divide.

    >>> _property("a: b, 5 %")
    'a%3A b%2C 5 %25'
    """
    return _data(text).replace(":", "%3A").replace(",", "%2C")
