"""What became of workloads over many runs: history."""

from pathlib import Path
from typing import Annotated

import typer

from attnprof.cli import completion
from attnprof.cli.app import Format, app, say
from attnprof.cli.options import Dark, FigureFile, check_figure, draw
from attnprof.render import OutputFormat


@app.command()
def history(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder of runs, and of folders of runs.")
    ],
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            metavar="ID",
            help="Workloads by id, or by a pattern: 'decode*'.",
            autocompletion=completion.workloads_of_history,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="latency, peak_memory, kv_bytes; a list; latency.",
            autocompletion=completion.some_of(completion.metrics),
        ),
    ] = None,
    smallest: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="The smallest change that counts: 5%; 2%."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Verdicts that fail, a list: regressed,inconclusive; none.",
            autocompletion=completion.some_of(completion.verdicts_of_history),
        ),
    ] = None,
    charts: Annotated[
        bool, typer.Option(help="On a terminal, a large chart of each that changed.")
    ] = True,
    figure: FigureFile = None,
    dark: Dark = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show rows without news, too.")] = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Show how each workload went over many runs: its levels, where they changed, how it creeps.

    Exit code 1 where one regressed and --fail-on says so.
    """
    from attnprof.history.asking import asked_of, exit_code, history_of
    from attnprof.history.tables import history_tables, points_table
    from attnprof.render import show, show_document

    check_figure(figure, dark=dark)
    asked = asked_of(workload, metric, smallest, fail_on)
    found = history_of(folder, asked)
    match output_format:
        case OutputFormat.json:
            show_document(found.to_json())
        case OutputFormat.csv:
            show(points_table(found), output_format)
        case _:
            is_terminal = output_format is OutputFormat.rich
            everything = show_all or not is_terminal
            tables = history_tables(found, charts=charts and is_terminal, everything=everything)
            show(tables, output_format)
    if figure is not None:
        from attnprof.figures.courses import history_figure

        say(draw(history_figure(found.to_json()), figure, dark=dark))
    say(found.words)
    if exit_code(found, asked):
        raise typer.Exit(exit_code(found, asked))
