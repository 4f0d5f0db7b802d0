"""Flags in, one call, one table out, an exit code."""

import atexit
import errno
import gc
import os
import sys
from pathlib import Path

from attnprof import __version__
from attnprof.cli import baselines, bisecting, comparing, gating, history, measuring, planning
from attnprof.cli.app import EXIT_BUG, EXIT_INTERRUPTED, EXIT_NO, app, give_examples, say
from attnprof.cli.completion_scripts import use_own_scripts
from attnprof.errors import AttnprofError, UsageError
from attnprof.render import unwritten

__all__ = [
    "EXIT_BUG",
    "baselines",
    "bisecting",
    "comparing",
    "gating",
    "history",
    "main",
    "measuring",
    "planning",
]

give_examples(app)
use_own_scripts()

NEW_OBJECTS = 100_000  # between two looks for garbage
MOST_SHOWN = 80  # letters of a path that is too long


def main() -> None:
    """Run the command line; the process ends with the exit code that it earned."""
    _seldom_collect_garbage()
    _keep_closed_output_closed()
    try:
        app()
    except AttnprofError as error:
        sys.exit(_say_error(error))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe left, as `head` does
        _drop_what_cannot_be_written()
        sys.exit(EXIT_NO)
    except Exception as bug:  # noqa: BLE001 - whatever is left is ours, and its traceback is kept
        if isinstance(bug, OSError) and (expected := _expected(bug)) is not None:
            sys.exit(_say_error(expected))
        sys.exit(_report_bug(bug))


def _seldom_collect_garbage() -> None:
    """Look for cycles seldom, and not at exit: what a short command makes it needs to its end, and
    looking takes a sixth of its time."""
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)


def _keep_closed_output_closed() -> None:
    """Where a shell wrote ``>&-``, let every write fail: else nobody would be told that nothing is
    written, or the next file that is opened would be what is written to."""
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)


def _expected(error: OSError) -> AttnprofError | None:
    """What is to be said of a failure that comes from what was typed; None of what is ours.

    It is of a path that no file can have, or of printing help, a version or a script, which
    click's ``echo`` does.
    """
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        name = str(error.filename)
        shown = name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}..."
        return UsageError(f"{shown}: {error.strerror}", "give a path that a file can have")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_of_output = trace is not None and trace.tb_frame.f_code.co_name == "echo"
    return unwritten(error) if is_of_output else None


def _drop_what_cannot_be_written() -> None:
    """Let what is left for standard output go nowhere, if it has to: Python would complain once
    more at its end, and end with another exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_error(error: AttnprofError) -> int:
    _drop_what_cannot_be_written()
    say(f"error {error.problem}")
    if error.fix:
        say(f"  fix {error.fix}")
    return error.exit_code


def _report_bug(bug: Exception) -> int:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="attnprof-bug-", suffix=".txt", delete=False, encoding="utf-8"
    ) as kept:
        kept.write(f"attnprof {__version__}\n{' '.join(sys.argv)}\n")
        traceback.print_exception(bug, file=kept)
    say(f"error this is a bug of attnprof: {type(bug).__name__}: {bug}")
    say(f"  fix report it with {Path(kept.name)}")
    return EXIT_BUG
