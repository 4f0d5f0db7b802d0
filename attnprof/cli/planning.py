"""Commands that plan, and that hold plans against what others measured."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnprof.cli import completion
from attnprof.cli.app import EXIT_NO, Format, app, give, say
from attnprof.cli.options import Dark, check_figure, draw
from attnprof.errors import UsageError
from attnprof.render import OutputFormat


@app.command("show")
def show_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="models, gpus, engines, backends, sweeps, axes, variants, positions, caches, "
            "calibrations, prices.",
            autocompletion=completion.shelf_kinds,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them, explained. Of 'variant' also a model: which layer sees what.",
            autocompletion=completion.shelf_names,
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
    from attnprof.shelf import KINDS, shelf_tables
    from attnprof.units import parse_tokens

    if kind is None:
        raise UsageError("show what?", f"write attnprof show KIND, one of: {', '.join(KINDS)}")
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
            "safetensors file, or a hub id; several, with commas, make a grid.",
            autocompletion=completion.some_of(completion.profiles("models")),
        ),
    ],
    gpu: Annotated[
        str,
        typer.Option(
            help="GPU by name (attnprof show gpus), or cpu, this computer's; several make a grid.",
            autocompletion=completion.some_of(completion.gpus),
        ),
    ],
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs: tp × pp × dp.")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="vllm, vllm@0.11, sglang, ... (attnprof show engines); a list too.",
            autocompletion=completion.engines,
        ),
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
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of the arithmetic; the model's.",
            autocompletion=completion.one_of(completion.values_of("dtype")),
        ),
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Of the weights: fp8, awq, gptq, nvfp4, ...; a list too.",
            autocompletion=completion.some_of(completion.quantizations),
        ),
    ] = None,
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Of the cache: auto, fp8, int8, q8_0, ...; a list too.",
            autocompletion=completion.some_of(completion.cache_dtypes),
        ),
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
    safely: Annotated[
        bool,
        typer.Option(
            "--safely",
            help="Hold --ttft and --tpot by the upper ends of the intervals, not their middles.",
        ),
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Laws that the kernels follow; your own of this GPU, if any, where left out.",
            autocompletion=completion.one_of(completion.profiles("calibrations")),
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            help="Per GPU and hour: a number, or a list of prices by name (attnprof show prices).",
            autocompletion=completion.one_of(completion.profiles("prices")),
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw it, as .svg or .png: throughput against latency; of a grid, users against "
            "context.",
        ),
    ] = None,
    dark: Dark = False,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Say what a deployment needs, holds and costs, and which resource binds.

    Lists compare deployments by what they hold, latency, throughput and cost.

    Exit code 1 where it does not fit, or not as many --users, or not within --ttft and --tpot; of
    a comparison where none is within these. Whether limits hold goes by the middle of the estimate,
    which the truth is as often above as below; with --safely by the upper end of its interval.
    """
    from attnprof.planning import EstimateFlags, answer_estimate

    check_figure(figure, dark=dark)
    flags = EstimateFlags(
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
        safely=safely,
        calibration=calibration,
    )
    answer = answer_estimate(flags)
    give(answer, output_format)
    if figure is not None:
        from attnprof.estimate_figures import estimate_figure

        say(draw(estimate_figure(flags, answer), figure, dark=dark))
    if not answer.is_yes:
        say(answer.why_not)
        raise typer.Exit(EXIT_NO)


@app.command()
def audit(
    log: Annotated[str, typer.Argument(metavar="LOG", help="A start-up log; - is standard input.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="What was served, if not in the log.",
            autocompletion=completion.one_of(completion.profiles("models")),
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="What it ran on, if not in the log.",
            autocompletion=completion.one_of(completion.profiles("gpus")),
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="name@version, if not in the log.",
            autocompletion=completion.one_engine,
        ),
    ] = None,
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
    give(answer, output_format)
    if words:
        say(words)


@app.command()
def validate(
    kind: Annotated[
        str,
        typer.Argument(
            help="parameters, serving-cases, kernels, serving-perf or calibration.",
            autocompletion=completion.one_of(completion.validations),
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="JSON Lines with what others measured; of kernels CSV tables, or folders of them; "
            "of a calibration runs of its device.",
        ),
    ],
    summary: Annotated[
        bool, typer.Option("--summary", help="The last table alone: errors by stratum.")
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What foretells; that of the runs' device where left out.",
            autocompletion=completion.one_of(completion.profiles("calibrations")),
        ),
    ] = None,
    output_format: Format = OutputFormat.rich,
) -> None:
    """Score our predictions against what others measured, line by line; or what a calibration
    foretells of this device against runs that it was not fitted to."""
    from dataclasses import replace

    from attnprof.planning import answer_validation

    answer = answer_validation(kind, files, calibration)
    give(replace(answer, tables=answer.tables[-1:]) if summary else answer, output_format)


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
            autocompletion=completion.one_of(completion.formats),
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="What it ran on, if a source does not say.",
            autocompletion=completion.one_of(completion.profiles("gpus")),
        ),
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
    from attnprof.units import counted

    asked = Asked(device, licence, source_version, tuple(ignore or ()))
    found = import_sources(sources, output, form, asked, ["attnprof", *sys.argv[1:]])
    give(Answer(found.tables, found.document), output_format)
    say(f"{counted(found.num_records, 'record')} in {found.run_dir}")
