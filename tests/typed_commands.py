"""Every command of the program by what is typed for it, those of groups included."""

from typing import Any

import typer.main

from attnprof.cli.app import app


def _walked(group: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= _walked(command, f"{before}{name} ")
        else:
            found[f"{before}{name}"] = command
    return found


COMMANDS = _walked(typer.main.get_group(app))


def command_of(words: list[str]) -> tuple[str, Any, list[str]]:
    """The name of the command that ``words`` begin with, the command, and the other words."""
    num_names = 1 if words[0] in COMMANDS else 2
    name = " ".join(words[:num_names])
    return name, COMMANDS[name], words[num_names:]
