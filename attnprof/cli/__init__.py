"""Flags in, one call, one table out, an exit code."""

import atexit
import gc
import os
import sys
from pathlib import Path

from attnprof import __version__
from attnprof.cli import baselines, bisecting, comparing, gating, history, measuring, planning
from attnprof.cli.app import EXIT_BUG, EXIT_INTERRUPTED, EXIT_NO, app, give_examples, say
from attnprof.cli.completion_scripts import use_own_scripts
from attnprof.errors import AttnprofError

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


def main() -> None:
    """Run the command line; the process ends with the exit code that it earned."""
    _seldom_collect_garbage()
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


def _seldom_collect_garbage() -> None:
    """Look for cycles seldom, and not at exit: what a short command makes it needs to its end, and
    looking takes a sixth of its time."""
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)


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
