"""Which commit made a workload worse: bisect."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from attnprof.cli import completion
from attnprof.cli.app import EXIT_CANNOT, Format, app, say
from attnprof.cli.options import AllowShared, Axis, Device, Quiet, Seed, Timeout, some_time
from attnprof.render import OutputFormat


@app.command()
def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit before it got worse.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A commit after that.")],
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="ID",
            help="The workload that got worse, by its id.",
            autocompletion=completion.workloads_of_sweep,
        ),
    ],
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec",
            help="The sweep that has it, by name or as a YAML file; quick, or the axes.",
            autocompletion=completion.one_of(completion.profiles("sweeps")),
        ),
    ] = None,
    axis: Axis = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            help="latency, peak_memory or kv_bytes.",
            autocompletion=completion.one_of(completion.metrics),
        ),
    ] = "latency",
    repository: Annotated[
        Path, typer.Option("--repository", help="A git checkout; it is left as it is.")
    ] = Path(),
    python: Annotated[
        str,
        typer.Option(
            metavar="PYTHON",
            help="What runs a commit, {} standing for its checkout: 'env PYTHONPATH={} python', "
            "'{}/.venv/bin/python'. Left out: the attnprof in it, by this very Python.",
        ),
    ] = "{}",
    setup: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Makes a checkout ready, run by the shell in it; fails: skip."
        ),
    ] = None,
    device: Device = "auto",
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads.")] = 1,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Of each step: begin nothing more after this long.")
    ] = "4m",
    timeout: Timeout = "60s",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder that gets what is measured.")
    ] = None,
    seed: Seed = 0,
    allow_shared: AllowShared = False,
    quiet: Quiet = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Find the commit from which on a workload is worse, by git bisect run.

    Proves that the two ends differ, and measures the good end anew beside each step. Commits that
    do not run, or cannot be decided on, are skipped. Exit code 3 where they leave it open.
    """
    from attnprof import session
    from attnprof.bisecting import bisection
    from attnprof.bisecting.asking import request_of
    from attnprof.bisecting.repository import find_ends
    from attnprof.bisecting.tables import bisection_tables, whole_words
    from attnprof.render import show, show_document

    find_ends(repository, good, bad)
    asked = session.Asked(
        spec=spec,
        axes=dict(session.typed_axes(axis or [])),
        device=device,
        allow_shared=allow_shared,
    )
    request = request_of(
        good, bad, repository,
        workload_id=workload,
        grid=session.grid_of(asked),
        listing=_listing(spec, axis or []),
        metric=metric,
        python=python,
        setup=setup,
        device=device,
        settings=asked.settings,
        threads=threads,
        budget_s=some_time("budget", budget),
        timeout_s=some_time("timeout", timeout),
        output=output or session.new_dir("bisect"),
        seed=seed,
        quiet=quiet,
        command=("attnprof", *sys.argv[1:]),
    )  # fmt: skip
    found = bisection.bisect(request, (lambda text: None) if quiet else say)
    if output_format is OutputFormat.json:
        show_document(found.to_json())
    else:
        show(bisection_tables(found), output_format)
    say(f"what was measured lies in {found.output}")
    if output_format is not OutputFormat.rich:
        say(whole_words(found))
    if found.first_bad is None:
        raise typer.Exit(EXIT_CANNOT)


def _listing(spec: str | None, axes: list[str]) -> str:
    """The command that lists the workloads of a grid with their ids."""
    words = [] if spec is None else [spec]
    for axis in axes:
        words += ["--axis", axis]
    return shlex.join(["attnprof", "sweep", *words, "--dry-run", "--format", "csv"])
