"""Flags of commands that end in a verdict, for what CI shows of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnprof.cli.app import say

if TYPE_CHECKING:
    from attnprof.verdicts.comparison import Comparison

Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, a test a workload.")
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="FILE", help="Write Markdown for a comment on the change."),
]
Annotations = Annotated[
    bool,
    typer.Option("--annotations", help="GitHub's annotations, on standard error: ten at most."),
]


def tell_ci(
    comparison: "Comparison", junit: Path | None, markdown: Path | None, annotations: bool
) -> None:
    """Write the files that were asked for, and a step's summary wherever GitHub names one."""
    from attnprof.verdicts.outputs.files import write_outputs

    lines = write_outputs(comparison, junit=junit, markdown=markdown, annotations=annotations)
    for line in lines:
        say(line)
