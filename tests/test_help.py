"""The help of every command ends with examples, and the examples are commands that exist."""

import shlex

import pytest
from typer.testing import CliRunner

from attnprof.cli.app import app
from attnprof.cli.examples import EXAMPLES, FIRST
from tests.typed_commands import COMMANDS, command_of

TYPED = [command for examples in (FIRST, *EXAMPLES.values()) for _, command in examples]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_of_itself_at_the_end_of_its_help(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).stdout
    assert "\nExamples:\n" in shown
    for what, command in EXAMPLES[name]:
        assert f"  {what}" in shown
        assert f"\n    {command}\n" in f"{shown}\n"
    assert any(f"attnprof {name}" in command for _, command in EXAMPLES[name])


def test_commands_of_many_uses_have_several_examples() -> None:
    for name in ("bisect", "gate", "history", "compare", "baseline accept", "baseline show"):
        assert len(EXAMPLES[name]) >= 2


def test_a_group_of_commands_ends_with_an_example_of_each() -> None:
    shown = CliRunner().invoke(app, ["baseline", "--help"], env={"COLUMNS": "80"}).stdout
    _, _, examples = shown.partition("\nExamples:\n")
    assert "    attnprof baseline accept runs/new" in examples
    assert "    attnprof baseline show" in examples


def test_examples_are_of_commands_that_exist() -> None:
    assert {*EXAMPLES} == {*COMMANDS}


@pytest.mark.parametrize("typed", TYPED)
def test_an_example_can_be_typed(typed: str) -> None:
    assert len(typed) <= 76  # four places in, 80 wide
    program, *words = shlex.split(typed.rpartition(" | ")[2])
    assert program == "attnprof"
    _, command, others = command_of(words)
    # Every option is known, and every value fits.
    with command.make_context(program, others) as context:
        assert context.params


def test_the_program_begins_with_what_to_type_first() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert shown.rstrip().endswith(FIRST[-1][1])
