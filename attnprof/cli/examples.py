"""What the help of a command ends with: what people want -> what to type for it."""

Examples = tuple[tuple[str, str], ...]

FIRST: Examples = (
    ("Measure attention on this machine, in about two minutes", "attnprof sweep"),
    (
        "Say what a model needs, holds and costs on a GPU that you may rent",
        "attnprof estimate llama-3.1-8b --gpu h100-sxm --max-model-len 32k",
    ),
    ("List what there is by name", "attnprof show models"),
)
"""Of the program as a whole."""

EXAMPLES: dict[str, Examples] = {
    "sweep": (
        ("See where O(n²) begins to hurt", "attnprof sweep context"),
        (
            "Two kernels over doubling lengths, with 32 heads",
            "attnprof sweep --seq-len 1k..8k*2 --backend flash,math --heads 32",
        ),
        (
            "A named sweep in another precision, within ten minutes",
            "attnprof sweep quick --dtype bfloat16 --budget 10m",
        ),
        ("What would run, and what of it does not fit", "attnprof sweep full --dry-run"),
        ("Go on with what was interrupted", "attnprof sweep --resume"),
    ),
    "report": (
        ("The tables of a run", "attnprof report attnprof-runs/mine"),
        ("For pandas, DuckDB or Polars", "attnprof report attnprof-runs/mine --parquet"),
        ("As a page to send to somebody", "attnprof report attnprof-runs/mine --html"),
        ("Follow a sweep from another window", "attnprof report attnprof-runs/mine --watch"),
        ("A row a workload, as CSV", "attnprof report attnprof-runs/mine --format csv"),
    ),
    "doctor": (
        ("What disturbs this machine, and what it can tell apart", "attnprof doctor"),
        ("Only what is installed and what disturbs", "attnprof doctor --no-self-test"),
    ),
    "fit": (
        ("The laws of one run", "attnprof fit attnprof-runs/mine"),
        (
            "Of several runs of one device, into a file",
            "attnprof fit runs/a runs/b --output mine.yaml",
        ),
    ),
    "calibrate": (
        ("This machine, in about four minutes", "attnprof calibrate"),
        (
            "One kernel with the heads of Llama-3.1-8B, for longer",
            "attnprof calibrate --axis heads=32 --axis kv_heads=8 --budget 10m",
        ),
    ),
    "show": (
        ("All GPUs that are known", "attnprof show gpus"),
        ("One of them, with its source", "attnprof show gpu h100-sxm"),
        ("What GPUs cost by the list that estimate takes", "attnprof show prices on-demand-2025"),
        ("Who sees whom in a sliding window", "attnprof show variant sliding --window-len 4"),
        ("Which layers of a model see what", "attnprof show variant gemma-3-1b"),
        ("What the axes of a sweep are", "attnprof show axes"),
    ),
    "estimate": (
        (
            "Will it fit, and how many sequences of 32k at once?",
            "attnprof estimate llama-3.1-8b --gpu h100-sxm --max-model-len 32k",
        ),
        (
            "Twenty users with a cache of half the size; exit code 1 where they do not fit",
            "attnprof estimate llama-3.1-8b --gpu l40s --kv-dtype fp8 --users 20",
        ),
        (
            "A checkpoint of your own over eight GPUs",
            "attnprof estimate ./config.json --gpu h200-sxm --tp 8 --engine sglang",
        ),
        (
            "Which GPU serves it in time, and at what cost?",
            "attnprof estimate qwen3-32b --gpu h100-sxm,l40s --ttft 2s --tpot 50ms",
        ),
        (
            "The same as a figure: how many users at which context, and what binds",
            "attnprof estimate qwen3-8b --gpu h100-sxm,l40s --figure users.svg",
        ),
    ),
    "compare": (
        ("What got slower or bigger, really?", "attnprof compare runs/before runs/after"),
        (
            "Against an accepted baseline, as JUnit for CI",
            "attnprof compare --baseline main runs/new --junit report.xml",
        ),
        (
            "Time alone, where up to 5 % may be the machine's drift",
            "attnprof compare runs/before runs/after --metric latency --margin 5%",
        ),
    ),
    "gate": (
        (
            "A checkout against the branch that it left, measured in turns",
            "attnprof gate --base ../main --new .",
        ),
        (
            "A sweep by name, with 3 minutes' time, as a comment for a review",
            "attnprof gate context --base ../main --budget 3m --markdown comment.md",
        ),
        (
            "Two versions of torch; a workload that fails or is missing fails it too",
            "attnprof gate --base venvs/old --new venvs/new --allow-different torch",
        ),
    ),
    "history": (
        ("Levels, changes and creeps over all runs in a folder", "attnprof history attnprof-runs"),
        (
            "Of decoding alone: time and memory, changes from 5 % on",
            "attnprof history runs --workload 'decode*' --metric latency,peak_memory",
        ),
        (
            "For a nightly job: exit code 1 where something got worse, and a figure",
            "attnprof history runs --fail-on regressed --figure history.svg",
        ),
    ),
    "bisect": (
        (
            "The first commit from which on a workload is worse",
            "attnprof bisect v1.0 HEAD --workload prefill-causal-flash-float32-b1-s4096",
        ),
        (
            "Of a named sweep, in commits that have to be built first",
            "attnprof bisect v1.0 HEAD --workload ID --spec context --setup 'make build'",
        ),
        (
            "Of memory, each commit run by a Python of its own",
            "attnprof bisect v1 v2 --workload ID --metric kv_bytes --python '{}/v/python'",
        ),
    ),
    "baseline accept": (
        (
            "Keep a run as the one that others are held against",
            "attnprof baseline accept runs/new --reason 'new allocator, 3 % slower'",
        ),
        (
            "Of one machine, if a second run of the same code agrees",
            "attnprof baseline accept runs/a --verify runs/b --name l4 --reason first",
        ),
    ),
    "baseline show": (
        ("All baselines", "attnprof baseline show"),
        ("When and why one of them was accepted, each time", "attnprof baseline show main"),
        ("What a run is to one of them", "attnprof compare --baseline main runs/new"),
    ),
    "audit": (
        ("Hold a log against the estimate", "attnprof audit vllm-startup.log"),
        (
            "Keep what the engine really needed, for estimates to come",
            "attnprof audit vllm-startup.log --write our-vllm",
        ),
        ("From a container", "docker logs vllm 2>&1 | attnprof audit - --gpu h100-sxm"),
    ),
    "validate": (
        (
            "Score memory estimates against what engines logged, by stratum",
            "attnprof validate serving-cases cases.jsonl --summary",
        ),
        (
            "Hold a calibration against a run that it was not fitted to",
            "attnprof validate calibration attnprof-runs/later",
        ),
    ),
    "import": (
        (
            "llama-bench's JSON as a run",
            "attnprof import bench.json --output runs/theirs",
        ),
        (
            "Tables of kernels, on a GPU that they do not name",
            "attnprof import kernels.csv --from tables --device h100-sxm",
        ),
    ),
}


def examples_of_group(name: str) -> Examples:
    """What the help of a group of commands ends with: the first example of each.

    >>> [command.split()[:3] for _, command in examples_of_group("baseline")]
    [['attnprof', 'baseline', 'accept'], ['attnprof', 'baseline', 'show']]
    """
    return tuple(made[0] for typed, made in EXAMPLES.items() if typed.startswith(f"{name} "))


def epilog(examples: Examples) -> str:
    """The text below the options of a command; of one without examples none.

    >>> print(epilog((("This machine", "attnprof doctor"),)))
    Examples:
      This machine:
        attnprof doctor
    """
    if not examples:
        return ""
    lines = (f"  {what}{_end(what)}\n    {command}" for what, command in examples)
    return "\n".join(("Examples:", *lines))


def _end(what: str) -> str:
    return "" if what.endswith("?") else ":"
