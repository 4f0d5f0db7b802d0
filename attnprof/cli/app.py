"""What all commands share: the application, exit codes, and where results and words go."""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnprof import __version__
from attnprof.cli import completion
from attnprof.cli.examples import EXAMPLES, FIRST, epilog, examples_of_group
from attnprof.errors import UsageError, nearest
from attnprof.render import OutputFormat, plain

if TYPE_CHECKING:
    from attnprof.planning import Answer

EXIT_NO = 1
EXIT_CANNOT = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
FORMATS = tuple(form.value for form in OutputFormat)


class Command(TyperCommand):
    """Its help ends with examples, line by line as they are."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self.epilog, formatter)


class _Program(TyperGroup):
    """As :class:`Command`."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self.epilog, formatter)


def _write_epilog(text: str | None, formatter: Any) -> None:
    if text:
        formatter.write_paragraph()
        formatter.write(f"{text}\n")


app = typer.Typer(
    name="attnprof",
    cls=_Program,
    help="Measure attention on the hardware in front of you; plan LLM serving on hardware to come.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    epilog=epilog(FIRST),
)


def give_examples(program: typer.Typer, before: str = "") -> None:
    """Let the help of every command, once all are there, end with its examples."""
    for command in program.registered_commands:
        name = command.name or str(getattr(command.callback, "__name__", ""))
        command.cls = command.cls if issubclass(command.cls or Command, Command) else Command
        command.epilog = epilog(EXAMPLES.get(f"{before}{name}", ()))
    for group in program.registered_groups:
        if group.typer_instance is not None:
            name = f"{before}{group.typer_instance.info.name}"
            group.cls, group.epilog = _Program, epilog(examples_of_group(name))
            give_examples(group.typer_instance, f"{name} ")


def _format(text: str) -> OutputFormat:
    if text not in FORMATS:
        raise UsageError(f"no format is called {text!r}", nearest(text, FORMATS))
    return OutputFormat(text)


Format = Annotated[
    OutputFormat,
    typer.Option(
        "--format",
        help="How tables are written to standard output.",
        metavar=f"[{'|'.join(FORMATS)}]",
        parser=_format,
        autocompletion=completion.one_of(lambda: FORMATS),
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnprof {__version__}")
        raise typer.Exit


@app.callback()
def attnprof(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Measure attention on the hardware in front of you; plan LLM serving on hardware to come."""


def give(answer: "Answer", output_format: OutputFormat) -> None:
    """Tables for people; for programs the document, which holds more."""
    from attnprof.render import show, show_document

    if output_format is OutputFormat.json:
        show_document(answer.document)
    else:
        show(answer.tables, output_format)


def say(text: str) -> None:
    """Print to standard error: results alone go to standard output.

    Whether anybody reads it changes nothing: a closed pipe ends no sweep.
    """
    with contextlib.suppress(OSError, ValueError):
        typer.echo("\n".join(map(plain, text.splitlines())), err=True)
