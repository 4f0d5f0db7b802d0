"""Flags in, one call, one table out, an exit code."""

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer

from attnprof import __version__
from attnprof.errors import AttnprofError

EXIT_NO = 1
EXIT_USAGE = 2
EXIT_CANNOT = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="attnprof",
    help="Measure attention on the hardware in front of you; plan LLM serving on hardware to come.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
)


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


def say(text: str) -> None:
    """Print to standard error: results alone go to standard output."""
    typer.echo(text, err=True)


def main() -> None:
    """Run the command line; the process ends with the exit code that it earned."""
    try:
        app()
    except AttnprofError as error:
        say(f"error {error.problem}")
        if error.fix:
            say(f"  fix {error.fix}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_NO)
    except Exception as bug:  # noqa: BLE001 - whatever is left is ours, and its traceback is kept
        sys.exit(_report_bug(bug))


def _report_bug(bug: Exception) -> int:
    with tempfile.NamedTemporaryFile(
        "w", prefix="attnprof-bug-", suffix=".txt", delete=False, encoding="utf-8"
    ) as kept:
        kept.write(f"attnprof {__version__}\n{' '.join(sys.argv)}\n")
        traceback.print_exception(bug, file=kept)
    say(f"error this is a bug of attnprof: {type(bug).__name__}: {bug}")
    say(f"  fix report it with {Path(kept.name)}")
    return EXIT_BUG
