"""Commands that hold two runs against each other: compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnprof.cli import completion
from attnprof.cli.app import Format, app, say
from attnprof.cli.options import Dark, FigureFile, check_figure, draw
from attnprof.render import OutputFormat

if TYPE_CHECKING:
    from attnprof.verdicts.comparison import Comparison

Thresholds = Annotated[
    Path | None,
    typer.Option("--thresholds", metavar="FILE", help="YAML: thresholds, known ones, limits."),
]
AllowDifferent = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FACT",
        help="device, driver, torch, threads, clocks or environment may differ. May be repeated.",
        autocompletion=completion.one_of(completion.facts),
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="latency, peak_memory, kv_bytes; a list; all.",
        autocompletion=completion.some_of(completion.metrics),
    ),
]
FailOn = Annotated[
    str | None,
    typer.Option(
        help="Verdicts that fail, a list: regressed,failed,missing,incomparable.",
        autocompletion=completion.some_of(completion.verdicts),
    ),
]
ShowAll = Annotated[bool, typer.Option("--all", help="Show rows without news, too.")]


JUnit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML: a test a workload.")
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write a comment for a review.")
]
Annotations = Annotated[
    bool, typer.Option("--annotations", help="Annotate as GitHub reads it, on standard error.")
]


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="[BASE] NEW", help="The run to hold against, and the one under test."
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="In place of BASE: one of attnprof baseline show.",
            autocompletion=completion.baselines,
        ),
    ] = None,
    baselines: Annotated[
        Path, typer.Option("--baselines", metavar="DIR", help="The folder that --baseline is in.")
    ] = Path("attnprof-baselines"),
    thresholds: Thresholds = None,
    allow_different: AllowDifferent = None,
    metric: Metrics = None,
    fail_on: FailOn = None,
    margin: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="A rise of latency that drift between the runs may make: 3%; 2%."
        ),
    ] = None,
    junit: JUnit = None,
    markdown: Markdown = None,
    annotations: Annotations = False,
    figure: FigureFile = None,
    dark: Dark = False,
    show_all: ShowAll = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Say what got slower or bigger from one finished run to another, really, and by how much.

    Exit code 1 where something did, 3 where it cannot be decided.
    """
    from attnprof.verdicts.asking import asked_of, compare_runs
    from attnprof.verdicts.outputs.files import refusals_written

    with refusals_written(junit, markdown):
        check_figure(figure, dark=dark)
        base, new = _two_runs(runs, baseline, baselines)
        asked = asked_of(thresholds, allow_different, metric, fail_on, margin)
        comparison = compare_runs(base, new, asked)
    give_comparison(
        comparison,
        output_format,
        show_all=show_all,
        junit=junit,
        markdown=markdown,
        annotations=annotations,
        figure=figure,
        dark=dark,
    )


def _two_runs(runs: list[Path], baseline: str | None, folder: Path) -> tuple[Path, Path]:
    """The run to hold against, and the one under test.

    Raises:
        UsageError: There are not two: a base, or a baseline in its place, and a new one.
    """
    from attnprof.baselines import find_baseline
    from attnprof.errors import UsageError

    if baseline is not None:
        if len(runs) != 1:
            raise UsageError(
                f"--baseline {baseline} stands for BASE, and {len(runs)} runs were named beside it",
                f"attnprof compare --baseline {baseline} NEW",
            )
        return find_baseline(baseline, folder), runs[0]
    if len(runs) != 2:
        raise UsageError(
            f"two runs are compared, not {len(runs)}",
            "attnprof compare BASE NEW, or attnprof compare --baseline NAME NEW",
        )
    return runs[0], runs[1]


def give_comparison(
    comparison: "Comparison",
    output_format: OutputFormat,
    *,
    show_all: bool,
    junit: Path | None,
    markdown: Path | None,
    annotations: bool,
    figure: Path | None,
    dark: bool,
) -> None:
    """What CI asked for, tables or the document, the whole in a line, and the exit code."""
    from attnprof.render import show, show_document
    from attnprof.verdicts.outputs.files import write_outputs
    from attnprof.verdicts.tables import comparison_tables, whole_words

    lines = write_outputs(comparison, junit=junit, markdown=markdown, annotations=annotations)
    if output_format is OutputFormat.json:
        show_document(comparison.to_json())
    else:
        everything = show_all or output_format is not OutputFormat.rich
        show(comparison_tables(comparison, everything=everything), output_format)
    if figure is not None:
        from attnprof.figures.comparisons import comparison_figure

        lines = [*lines, draw(comparison_figure(comparison.to_json()), figure, dark=dark)]
    for line in lines:
        say(line)
    if output_format is not OutputFormat.rich:
        say(whole_words(comparison))
    if comparison.exit_code:
        raise typer.Exit(comparison.exit_code)
