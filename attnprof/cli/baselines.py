"""Commands that keep what others are compared with."""

from pathlib import Path
from typing import Annotated

import typer

from attnprof.cli import completion
from attnprof.cli.app import Format, app, say
from attnprof.render import OutputFormat

baseline = typer.Typer(
    name="baseline", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.add_typer(baseline, help="Keep a run as the one that others are compared with, and say why.")

Folder = Annotated[
    Path, typer.Option(help="Where baselines are: a folder in the repository, or an artifact.")
]


@baseline.command("accept")
def accept_command(
    run: Annotated[Path, typer.Argument(help="The run directory that a sweep or gate wrote.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever asks later; it is kept.")],
    name: Annotated[
        str,
        typer.Option(
            help="Of the baseline: one a machine, for example.",
            autocompletion=completion.baselines,
        ),
    ] = "main",
    verify: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A second run of the same code, which has to agree."),
    ] = None,
    folder: Folder = Path("attnprof-baselines"),
) -> None:
    """Keep RUN as a baseline: attnprof compare --baseline NAME NEW holds others against it."""
    from attnprof.baselines import accept_baseline

    accepted = accept_baseline(run, reason, name=name, folder=folder, verify=verify)
    say(f"accepted {run} as {folder / name}: {accepted.num_records} workloads; commit that folder")


@baseline.command("show")
def show_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them, with all its reasons.", autocompletion=completion.baselines
        ),
    ] = None,
    folder: Folder = Path("attnprof-baselines"),
    output_format: Format = OutputFormat.rich,
) -> None:
    """List the baselines, or say when and why one of them was accepted."""
    from attnprof.baseline_tables import baselines_table, history_table
    from attnprof.baselines import baseline_names, find_baseline, history_document
    from attnprof.render import show, show_document

    names = baseline_names(folder)
    if name is not None:
        find_baseline(name, folder)
        names = [name]
    if output_format is OutputFormat.json:
        show_document(history_document(folder, names))
    elif name is None:
        show(baselines_table(folder, names), output_format)
    else:
        show(history_table(folder, name), output_format)
