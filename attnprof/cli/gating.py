"""Commands that measure two sides in turns: gate."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnprof.cli import completion
from attnprof.cli.app import EXIT_INTERRUPTED, Format, app, say
from attnprof.cli.comparing import (
    AllowDifferent,
    Annotations,
    FailOn,
    JUnit,
    Markdown,
    Metrics,
    ShowAll,
    Thresholds,
    give_comparison,
)
from attnprof.cli.options import (
    Allocator,
    AllowShared,
    Axis,
    Dark,
    Device,
    FigureFile,
    Quiet,
    Seed,
    Timeout,
    check_figure,
    some_time,
)
from attnprof.errors import UsageError
from attnprof.render import OutputFormat


@app.command()
def gate(
    spec: Annotated[
        str | None,
        typer.Argument(
            help="A sweep by name (attnprof show sweeps), or a YAML file. Left out: 'quick', or "
            "the typed axes alone where there are any.",
            autocompletion=completion.one_of(completion.profiles("sweeps")),
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="What to hold against: a python, a folder with a checkout of attnprof or a venv "
            "in it, or a command such as 'env PYTHONPATH=... python'.",
        ),
    ] = None,
    new: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="What is under test; left out: this very Python."),
    ] = None,
    axis: Axis = None,
    device: Device = "auto",
    threads: Annotated[
        int, typer.Option(min=1, max=1024, help="CPU threads; of one, CPU time is all there is.")
    ] = 1,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Begin nothing more after this long: 90s, 7m.")
    ] = "7m",
    timeout: Timeout = "60s",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder that gets both runs and comparison.json."),
    ] = None,
    seed: Seed = 0,
    allocator: Allocator = "pinned",
    allow_shared: AllowShared = False,
    thresholds: Thresholds = None,
    allow_different: AllowDifferent = None,
    metric: Metrics = None,
    fail_on: FailOn = None,
    junit: JUnit = None,
    markdown: Markdown = None,
    annotations: Annotations = False,
    figure: FigureFile = None,
    dark: Dark = False,
    quiet: Quiet = False,
    show_all: ShowAll = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Measure two Pythons in turns on this machine, and say what got slower or bigger, really.

    Everything is screened; what is flagged is measured again in fresh processes with a strict
    test. Exit code 1 where something regressed, 3 where it cannot be decided.
    """
    from attnprof import session
    from attnprof.gate import COMPARISON_FILE, GateRequest, measure_pair
    from attnprof.interpreters import find_interpreter
    from attnprof.pairs import Pace, PairRequest
    from attnprof.verdicts.asking import asked_of
    from attnprof.verdicts.outputs.files import refusals_written, write_refusal

    with refusals_written(junit, markdown):
        check_figure(figure, dark=dark)
        if base is None:
            raise UsageError("there is nothing to hold against", "name it with --base PYTHON")
        asked = session.Asked(
            spec=spec,
            axes=dict(session.typed_axes(axis or [])),
            device=device,
            allocator=allocator,
            allow_shared=allow_shared,
        )
        grid = session.grid_of(asked)
        request = GateRequest(
            pair=PairRequest(
                base=find_interpreter(base),
                new=find_interpreter(sys.executable if new is None else new),
                workloads=grid.workloads,
                output=output or session.new_dir("gate"),
                device=device,
                threads=threads,
                settings=asked.settings,
                allocator=allocator,
                seed=seed,
                pace=Pace(timeout_s=some_time("timeout", timeout)),
                command=("attnprof", *sys.argv[1:]),
                grid_name=grid.name,
            ),
            asked=asked_of(thresholds, allow_different, metric, fail_on, None),
            budget_s=some_time("budget", budget),
        )
        gated = measure_pair(request, (lambda text: None) if quiet else say)
    if gated.comparison is None:
        write_refusal("interrupted before anything could be compared", junit, markdown)
        say(f"interrupted before anything could be compared; what there is lies in {gated.output}")
        raise typer.Exit(EXIT_INTERRUPTED)
    say(f"both runs and {COMPARISON_FILE} lie in {gated.output}")
    give_comparison(
        gated.comparison,
        output_format,
        show_all=show_all,
        junit=junit,
        markdown=markdown,
        annotations=annotations,
        figure=figure,
        dark=dark,
    )
