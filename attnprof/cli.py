"""Flags in, one call, one table out, an exit code."""

import atexit
import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from attnprof import __version__
from attnprof.errors import AttnprofError, UsageError
from attnprof.render import OutputFormat, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnprof.planning import Answer
    from attnprof.session import SweepPlan
    from attnprof.sweep import Outcome, Watcher

EXIT_NO = 1
EXIT_CANNOT = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
NEW_OBJECTS = 100_000  # between two looks for garbage

app = typer.Typer(
    name="attnprof",
    help="Measure attention on the hardware in front of you; plan LLM serving on hardware to come.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
)

Format = Annotated[
    OutputFormat, typer.Option("--format", help="How tables are written to standard output.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnprof {__version__}")
        raise typer.Exit


@app.callback()
def attnprof(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Measure attention on the hardware in front of you; plan LLM serving on hardware to come."""


class _SweepCommand(TyperCommand):
    """Its help ends with the names of all axes, which are looked up when it is asked for."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
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
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=VALUES",
            help="An axis, in place of that of each group: seq_len=512..8192x2, heads=4..16+4, "
            "backend=eager,flash. May be repeated; attnprof show axes lists them.",
        ),
    ] = None,
    seq_len: Annotated[
        str | None, typer.Option(help="Sequence lengths: 1k,4k or 1k..8k*2.")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help="Sequences in a call.")] = None,
    heads: Annotated[str | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[str | None, typer.Option(help="KV heads; mha and mqa too.")] = None,
    head_dim: Annotated[str | None, typer.Option(help="Widths of a head.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers, each with its own tensors.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16, ...")] = None,
    phase: Annotated[
        str | None, typer.Option(help="prefill, decode, verify, train, generate, ...")
    ] = None,
    scope: Annotated[str | None, typer.Option(help="op, layer, block or model.")] = None,
    model: Annotated[str | None, typer.Option(help="A model's profile or config.json.")] = None,
    implementation: Annotated[str | None, typer.Option(help="plain, transformers.")] = None,
    variant: Annotated[str | None, typer.Option(help="full, causal, sliding, ...")] = None,
    backend: Annotated[str | None, typer.Option(help="eager, math, flash, ..., or all.")] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1, rocm, mps, xpu, or synthetic?noise=0.02.")
    ] = "auto",
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
            "least sure, until --budget (4m) or --interval (of its latencies, 0.05) is met.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the workloads and what they need; run none.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this long: 90s, 5m.")
    ] = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Give a phase of a workload up after this long.")
    ] = "60s",
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=0.5, help="Half-width of the median's 95 % interval to reach: 0.02."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs and of the order.")] = 0,
    allocator: Annotated[
        str,
        typer.Option(help="CPU: pinned keeps freed memory, default leaves it to the C library."),
    ] = "pinned",
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
    allow_shared: Annotated[
        bool, typer.Option("--allow-shared", help="Measure on a GPU that others hold too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
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
        budget_s=None if budget is None else _some_time("budget", budget),
        timeout_s=_some_time("timeout", timeout),
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
    from attnprof.report import report_run

    plan = session.plan(asked)
    if dry_run:
        show(plan.table, output_format)
        say(plan.summary)
        return
    say(plan.summary)
    with _watcher(quiet) as watch:
        outcome = _measured(plan, watch)
    if outcome.records or outcome.unfinished:
        show(report_run(outcome.run_dir, tidy=output_format is OutputFormat.csv), output_format)
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


def _some_time(name: str, text: str) -> float:
    from attnprof.units import parse_seconds

    time_s = parse_seconds(text)
    if time_s <= 0:
        raise UsageError(f"--{name} {text} is no time", "write 200ms, 90s or 5m")
    return time_s


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
    output_format: Format = OutputFormat.rich,
) -> None:
    """Show the tables of a run again, and write its results.csv, fit.json and report.md anew."""
    from attnprof.render import show
    from attnprof.report import report_run

    show(report_run(run_dir, tidy=output_format is OutputFormat.csv), output_format)


@app.command()
def doctor(
    device: Annotated[str, typer.Option(help="The device to test, as for sweep.")] = "auto",
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


@app.command("show")
def show_command(
    kind: Annotated[
        str,
        typer.Argument(
            help="models, gpus, engines, backends, sweeps, axes, variants, positions, caches, "
            "calibrations."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them, explained. Of 'variant' also a model: which layer sees what."
        ),
    ] = None,
    q_len: Annotated[str | None, typer.Option(help="Queries that a variant is drawn with.")] = None,
    kv_len: Annotated[str | None, typer.Option(help="Keys that it is drawn with.")] = None,
    window_len: Annotated[str | None, typer.Option(help="Its window, or chunk.")] = None,
    prefix_len: Annotated[str | None, typer.Option(help="Its prefix.")] = None,
    document_len: Annotated[str | None, typer.Option(help="Mean length of its documents.")] = None,
    sink_len: Annotated[str | None, typer.Option(help="Its first tokens, always seen.")] = None,
    output_format: Format = OutputFormat.rich,
) -> None:
    """List what there is of a kind, or explain one by name; draw who sees whom in a variant."""
    from attnprof.render import show
    from attnprof.shelf import shelf_tables
    from attnprof.units import parse_tokens

    typed = {
        "q_len": q_len, "kv_len": kv_len, "window_len": window_len, "prefix_len": prefix_len,
        "document_len": document_len, "sink_len": sink_len,
    }  # fmt: skip
    sizes = {key: None if text is None else parse_tokens(text) for key, text in typed.items()}
    show(shelf_tables(kind, name, sizes), output_format)


@app.command()
def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help="A profile (attnprof show models), a config.json or its folder, a GGUF or "
            "safetensors file, or a hub id; several, with commas, make a grid."
        ),
    ],
    gpu: Annotated[
        str, typer.Option(help="GPU by name (attnprof show gpus); several make a grid.")
    ],
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs: tp × pp × dp.")] = None,
    engine: Annotated[
        str, typer.Option(help="vllm, vllm@0.11, sglang, ... (attnprof show engines); a list too.")
    ] = "vllm",
    tp: Annotated[str | None, typer.Option(help="Tensor parallelism; a list too.")] = None,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel replicas.")] = 1,
    ep: Annotated[bool, typer.Option("--ep", help="Experts spread over all ranks.")] = False,
    max_model_len: Annotated[
        str | None, typer.Option(help="Context of a sequence: 8k, 32768; a list too.")
    ] = None,
    gpu_memory_utilization: Annotated[
        str | None, typer.Option(help="Share of the memory for the engine: 0.9; a list too.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the arithmetic; the model's.")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Of the weights: fp8, awq, gptq, nvfp4, ...; a list too.")
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option(help="Of the cache: auto, fp8, int8, q8_0, ...; a list too.")
    ] = "auto",
    max_num_seqs: Annotated[
        str | None, typer.Option(help="Sequences in a step, at most; a list too.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens in a step, at most.")
    ] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens in a KV block.")] = None,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="No CUDA graphs.")] = False,
    enable_prefix_caching: Annotated[
        bool | None, typer.Option(help="Shared prefixes; the engine's default.")
    ] = None,
    num_draft_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that speculation drafts.")
    ] = 0,
    prompt_len: Annotated[str | None, typer.Option(help="Tokens of a prompt.")] = None,
    output_len: Annotated[str | None, typer.Option(help="Tokens of an answer.")] = None,
    users: Annotated[int | None, typer.Option(min=1, help="Sequences wanted at once.")] = None,
    ttft: Annotated[
        str | None, typer.Option(help="Longest time to first token that is accepted: 2s.")
    ] = None,
    tpot: Annotated[
        str | None, typer.Option(help="Longest time per output token that is accepted: 50ms.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(help="Per GPU and hour: a number, or a list of prices by name.")
    ] = None,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Say what a deployment needs, holds and costs, and which resource binds.

    Exit code 1 where it does not fit, or not as many --users, or not within --ttft and --tpot.
    """
    from attnprof.planning import EstimateFlags, answer_estimate

    answer = answer_estimate(
        EstimateFlags(
            model=model,
            gpu=gpu,
            num_gpus=gpus,
            engine=engine,
            tp=tp,
            pp=pp,
            dp=dp,
            expert_parallel=ep,
            max_model_len=max_model_len,
            gpu_memory_utilization=gpu_memory_utilization,
            dtype=dtype,
            quantization=quantization,
            kv_dtype=kv_dtype,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            enforce_eager=enforce_eager,
            enable_prefix_caching=enable_prefix_caching,
            num_draft_tokens=num_draft_tokens,
            prompt_len=prompt_len,
            output_len=output_len,
            users=users,
            price=price,
            ttft=ttft,
            tpot=tpot,
        )
    )
    _give(answer, output_format)
    if not answer.is_yes:
        raise typer.Exit(EXIT_NO)


@app.command()
def audit(
    log: Annotated[str, typer.Argument(metavar="LOG", help="A start-up log; - is standard input.")],
    model: Annotated[str | None, typer.Option(help="What was served, if not in the log.")] = None,
    gpu: Annotated[str | None, typer.Option(help="What it ran on, if not in the log.")] = None,
    engine: Annotated[str | None, typer.Option(help="name@version, if not in the log.")] = None,
    write: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep the overheads as an engine profile.")
    ] = None,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Hold an engine's start-up log against the estimate, term by term.

    Reads logs of vLLM, SGLang, TensorRT-LLM, llama.cpp and Ollama.
    """
    from attnprof.logs.lines import START_BYTES, read_bytes
    from attnprof.planning import answer_audit

    content = sys.stdin.buffer.read(START_BYTES + 1) if log == "-" else read_bytes(Path(log))
    answer, words = answer_audit(
        content,
        "standard input" if log == "-" else log,
        model=model,
        gpu=gpu,
        engine=engine,
        write=write,
    )
    _give(answer, output_format)
    if words:
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
    _give(answer, output_format)
    say(words)
    if not answer.is_yes:
        raise typer.Exit(EXIT_NO)


@app.command()
def calibrate(
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1, rocm, mps, xpu, or synthetic?noise=0.02.")
    ] = "auto",
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Measure for this long: 90s, 10m; 4m.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=VALUES",
            help="A kernel's own: backend=flash,eager, dtype=bfloat16, heads=32, kv_heads=8. "
            "Lengths and batches are chosen.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory of the run.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
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
            budget_s=None if budget is None else _some_time("budget", budget),
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
    _give(answer, output_format)
    say(words)
    if not answer.is_yes:
        raise typer.Exit(EXIT_NO)


@app.command()
def validate(
    kind: Annotated[str, typer.Argument(help="parameters, serving-cases, kernels, serving-perf.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="JSON Lines with what others measured; of kernels CSV tables, or folders of them.",
        ),
    ],
    summary: Annotated[
        bool, typer.Option("--summary", help="The last table alone: errors by stratum.")
    ] = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Score our predictions against what others measured, line by line."""
    from dataclasses import replace

    from attnprof.planning import answer_validation

    answer = answer_validation(kind, files)
    _give(replace(answer, tables=answer.tables[-1:]) if summary else answer, output_format)


@app.command("import")
def import_command(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Files, or folders of them, in any mixture."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run directory to write.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="aiconfigurator, vidur, llama-bench, tables or attnprof-csv; by content if "
            "left out.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="What it ran on, if a source does not say.")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Of the numbers, if not known.")] = None,
    source_version: Annotated[
        str | None, typer.Option(help="Commit or release of the source, if not found.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Leave out a column that is not understood."),
    ] = None,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Take in what others measured, as a run that report and fit read.

    Reads AIConfigurator's Parquet, Vidur's CSV, llama-bench's JSON and Markdown, tidied tables of
    kernels, and results.csv.
    """
    from attnprof.importing import import_sources
    from attnprof.imports.parts import Asked
    from attnprof.planning import Answer

    asked = Asked(device, licence, source_version, tuple(ignore or ()))
    found = import_sources(sources, output, form, asked, ["attnprof", *sys.argv[1:]])
    _give(Answer(found.tables, found.document), output_format)
    say(f"{found.num_records:,} records in {found.run_dir}")


def _give(answer: "Answer", output_format: OutputFormat) -> None:
    """Tables for people; for programs the document, which holds more."""
    from attnprof.render import document_text, show

    if output_format is OutputFormat.json:
        sys.stdout.write(document_text(answer.document))
    else:
        show(answer.tables, output_format)


def say(text: str) -> None:
    """Print to standard error: results alone go to standard output.

    Whether anybody reads it changes nothing: a closed pipe ends no sweep.
    """
    with contextlib.suppress(OSError, ValueError):
        typer.echo("\n".join(map(plain, text.splitlines())), err=True)


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
