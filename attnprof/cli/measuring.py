"""Commands that measure here, or read what was measured: sweep, report, doctor, fit, calibrate."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import completion
from attnprof.cli.app import EXIT_CANNOT, EXIT_INTERRUPTED, EXIT_NO, Command, Format, app, give, say
from attnprof.cli.options import Allocator, AllowShared, Device, Quiet, Seed, Timeout, some_time
from attnprof.errors import UsageError
from attnprof.render import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnprof.session import SweepPlan
    from attnprof.sweep import Outcome, Watcher


class _SweepCommand(Command):
    """Its help names all axes, which are looked up when it is asked for."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        from attnprof.axes import AXIS_GROUPS

        with formatter.section("Axes (attnprof show axes explains them)"):
            formatter.write_dl(
                [
                    (group, ", ".join(axis.name for axis in axes))
                    for group, axes in AXIS_GROUPS.items()
                ],
                col_max=20,
            )


@app.command(cls=_SweepCommand)
def sweep(
    spec: Annotated[
        str | None,
        typer.Argument(
            help="A sweep by name (attnprof show sweeps), or a YAML file. Left out: 'quick', or "
            "the typed axes alone where there are any.",
            autocompletion=completion.one_of(completion.profiles("sweeps")),
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=VALUES",
            help="An axis, in place of that of each group: seq_len=512..8192x2, heads=4..16+4, "
            "backend=eager,flash. May be repeated; attnprof show axes lists them.",
            autocompletion=completion.axis_values,
        ),
    ] = None,
    seq_len: Annotated[
        str | None, typer.Option(help="Sequence lengths: 1k,4k or 1k..8k*2.")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help="Sequences in a call.")] = None,
    heads: Annotated[str | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[
        str | None,
        typer.Option(
            help="KV heads; mha and mqa too.",
            autocompletion=completion.some_of(completion.values_of("num_kv_heads")),
        ),
    ] = None,
    head_dim: Annotated[str | None, typer.Option(help="Widths of a head.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers, each with its own tensors.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16, ...",
            autocompletion=completion.some_of(completion.values_of("dtype")),
        ),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(
            help="prefill, decode, verify, train, generate, ...",
            autocompletion=completion.some_of(completion.values_of("phase")),
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            help="op, layer, block or model.",
            autocompletion=completion.some_of(completion.values_of("scope")),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's profile or config.json.",
            autocompletion=completion.some_of(completion.values_of("model")),
        ),
    ] = None,
    implementation: Annotated[
        str | None,
        typer.Option(
            help="plain, transformers.",
            autocompletion=completion.some_of(completion.values_of("implementation")),
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            help="full, causal, sliding, ...",
            autocompletion=completion.some_of(completion.values_of("variant")),
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="eager, math, flash, ..., or all.",
            autocompletion=completion.some_of(completion.values_of("backend")),
        ),
    ] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads; as many as can run at once.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run directory to write.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with --output, or with the newest unfinished run."),
    ] = False,
    for_fit: Annotated[
        bool,
        typer.Option(
            "--for-fit",
            help="Choose lengths and batches that pin a law down, then add those of which it is "
            "least sure, until --budget (7m) or --interval (of its latencies, 0.05) is met.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the workloads and what they need; run none.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this long: 90s, 5m.")
    ] = None,
    timeout: Timeout = "60s",
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=0.5, help="Half-width of the median's 95 % interval to reach: 0.02."
        ),
    ] = None,
    seed: Seed = 0,
    allocator: Allocator = "pinned",
    prune: Annotated[
        bool, typer.Option(help="Skip what is larger than a workload that ran out of memory.")
    ] = True,
    predict_memory: Annotated[
        bool, typer.Option(help="Skip what theory says does not fit in the free memory.")
    ] = True,
    energy: Annotated[
        bool,
        typer.Option("--energy", help="Joules of a call, where a meter exists: 2 s more each."),
    ] = False,
    allow_shared: AllowShared = False,
    quiet: Quiet = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Measure attention over a grid: latency, memory and KV cache, and how they grow.

    Writes a run directory with records.jsonl, results.csv, fit.json and report.md.
    """
    from attnprof import session

    short = {
        "seq_len": seq_len, "batch_size": batch_size, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "layers": layers, "dtype": dtype, "phase": phase,
        "variant": variant, "backend": backend, "scope": scope, "model": model,
        "implementation": implementation,
    }  # fmt: skip
    asked = session.Asked(
        spec=spec,
        axes=session.typed_axes(axis or [])
        | {name: values for name, values in short.items() if values is not None},
        device=device,
        threads=threads,
        output=output,
        resume=resume,
        budget_s=None if budget is None else some_time("budget", budget),
        timeout_s=some_time("timeout", timeout),
        interval=interval,
        seed=seed,
        allocator=allocator,
        prune=prune,
        predict_memory=predict_memory,
        energy=energy,
        allow_shared=allow_shared,
        for_fit=for_fit,
        command=("attnprof", *sys.argv[1:]),
    )
    from attnprof.render import show
    from attnprof.showing import Wanted, show_run

    plan = session.plan(asked)
    if dry_run:
        show(plan.table, output_format)
        say(plan.summary)
        return
    say(plan.summary)
    with _watcher(quiet) as watch:
        outcome = _measured(plan, watch)
    if outcome.records or outcome.unfinished:
        shown = show_run(outcome.run_dir, Wanted(), tidy=output_format is OutputFormat.csv)
        show(shown.tables, output_format)
    say(session.closing_words(outcome))
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not outcome.any_ok:
        raise typer.Exit(EXIT_CANNOT)


def _measured(plan: "SweepPlan", watch: "Watcher") -> "Outcome":
    if plan.limits is None:
        from attnprof import session

        return session.run(plan, watch)
    from attnprof import adaptive

    return adaptive.run(plan, watch)


@contextlib.contextmanager
def _watcher(quiet: bool) -> "Iterator[Watcher]":
    from attnprof.progress import LiveWatcher, PlainWatcher, SilentWatcher

    if quiet:
        yield SilentWatcher(sys.stderr)
    elif sys.stderr is not None and sys.stderr.isatty():
        with LiveWatcher(sys.stderr) as live:
            yield live
    else:
        yield PlainWatcher(sys.stderr)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a sweep.")],
    parquet: Annotated[
        bool,
        typer.Option("--parquet", help="Write results.parquet too, for pandas, DuckDB or Polars."),
    ] = False,
    figures: Annotated[
        bool,
        typer.Option("--figures", help="Draw it: SVG, light and dark, which report.md shows."),
    ] = False,
    png: Annotated[bool, typer.Option("--png", help="With --figures, PNG too.")] = False,
    html: Annotated[
        bool, typer.Option("--html", help="Write report.html: one page that needs nothing else.")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Small charts before the tables.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow a sweep that is still running, until it ends.")
    ] = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Show the tables of a run again, and write its results.csv, fit.json and report.md anew."""
    from attnprof.render import show, show_text
    from attnprof.showing import Wanted, show_run

    if plot and output_format is not OutputFormat.rich:
        form = output_format.value
        raise UsageError(f"--plot is not for --format {form}", "leave one of them out")
    if png and not figures:
        raise UsageError("--png goes with --figures", "add --figures, or leave --png out")
    if watch:
        from attnprof.watching import follow

        with _watcher(quiet=False) as watcher:
            is_done = follow(run_dir, watcher)
        say("the sweep is done" if is_done else "no sweep is writing it, and it is not done")
    shown = show_run(
        run_dir, Wanted(figures=figures, png=png, page=html, charts=plot),
        tidy=output_format is OutputFormat.csv,
    )  # fmt: skip
    if shown.charts is not None:
        show_text(shown.charts)
    show(shown.tables, output_format)
    for path in shown.written:
        say(f"wrote {path}")
    if parquet:
        from attnprof.frames import write_parquet

        say(f"wrote {write_parquet(run_dir)}")


@app.command()
def doctor(
    device: Annotated[
        str,
        typer.Option(
            help="The device to test, as for sweep.",
            autocompletion=completion.one_of(completion.devices),
        ),
    ] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    self_test: Annotated[
        bool, typer.Option(help="Measure identical code in six launches, about 30 s.")
    ] = True,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Say what this machine can measure, what disturbs it, and what would help."""
    from attnprof import session
    from attnprof.render import show

    tables, words = session.doctor(device, threads, self_test=self_test, tell=say)
    show(tables, output_format)
    say(words)


@app.command()
def fit(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of sweeps on one device.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The calibration to write; RUN/calibration.yaml."),
    ] = None,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Fit laws of latency to measured records, hold some out, and write a calibration.

    Exit code 1 where a law does not hold on what was held out.
    """
    from attnprof.planning import answer_fit

    answer, words = answer_fit(runs, output)
    give(answer, output_format)
    say(words)
    if not answer.is_yes:
        raise typer.Exit(EXIT_NO)


@app.command()
def calibrate(
    device: Device = "auto",
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Measure for this long: 90s, 10m; 7m.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=VALUES",
            help="A kernel's own: backend=flash,eager, dtype=bfloat16, heads=32, kv_heads=8. "
            "Lengths and batches are chosen.",
            autocompletion=completion.axis_values,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory of the run.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run.")] = False,
    quiet: Quiet = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Fit the laws of this device: a sweep for fit, then fit, kept under the device's name.

    Exit code 1 where a law does not hold on what was held out.
    """
    from attnprof import adaptive, session
    from attnprof.planning import answer_calibration

    plan = session.plan(
        session.Asked(
            for_fit=True,
            axes=dict(session.typed_axes(axis or [])),
            device=device,
            threads=threads,
            output=output,
            resume=resume,
            budget_s=None if budget is None else some_time("budget", budget),
            command=("attnprof", *sys.argv[1:]),
        )
    )
    say(plan.summary)
    with _watcher(quiet) as watch:
        outcome = adaptive.run(plan, watch)
    if outcome.interrupted:
        say(session.closing_words(outcome))
        raise typer.Exit(EXIT_INTERRUPTED)
    if not outcome.any_ok:
        raise typer.Exit(EXIT_CANNOT)
    answer, words = answer_calibration(outcome.run_dir)
    give(answer, output_format)
    say(words)
    if not answer.is_yes:
        raise typer.Exit(EXIT_NO)
