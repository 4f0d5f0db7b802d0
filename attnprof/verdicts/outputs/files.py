"""A comparison -> the files and lines that CI asked for."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from attnprof.errors import AttnprofError, CannotMeasureError
from attnprof.files import replace_file
from attnprof.verdicts.comparison import Comparison
from attnprof.verdicts.outputs.annotations import annotation_lines
from attnprof.verdicts.outputs.markdown import markdown_comment, refused_comment

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def write_outputs(
    comparison: Comparison,
    *,
    junit: Path | None = None,
    markdown: Path | None = None,
    annotations: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Write what was asked for; return the lines that belong on standard error.

    The step summary is written wherever GitHub names a file for it. That it cannot be written, as
    in a container that lacks the folder, is said and changes no verdict.

    Raises:
        CannotMeasureError: A file that was asked for cannot be written.
    """
    if junit is not None:
        from attnprof.verdicts.outputs.junit import junit_text

        _write(junit, junit_text(comparison))
    if markdown is not None:
        _write(markdown, markdown_comment(comparison))
    lines = annotation_lines(comparison) if annotations else []
    summary = environment.get(SUMMARY_VARIABLE)
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown_comment(comparison))
        except OSError as error:
            lines.append(f"cannot write the step summary {summary}: {error.strerror}")
    return lines


@contextlib.contextmanager
def refusals_written(junit: Path | None, markdown: Path | None) -> Iterator[None]:
    """Where there is no comparison, the files that were asked for say so: one that is left of an
    earlier run, and green, would be taken for this one's."""
    try:
        yield
    except (AttnprofError, KeyboardInterrupt) as error:
        write_refusal(getattr(error, "problem", "interrupted"), junit, markdown)
        raise


def write_refusal(problem: str, junit: Path | None, markdown: Path | None) -> None:
    """Say in the files that were asked for why there is no comparison, as far as they can be
    written."""
    if junit is not None:
        from attnprof.verdicts.outputs.junit import refused_text

        with contextlib.suppress(CannotMeasureError):
            _write(junit, refused_text(problem))
    if markdown is not None:
        with contextlib.suppress(CannotMeasureError):
            _write(markdown, refused_comment(problem))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise CannotMeasureError(
            f"cannot write {path}: {error.strerror}", "name a file in a folder of your own"
        ) from None
