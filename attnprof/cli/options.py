"""Options that several commands have alike, and how their texts are read."""

from typing import Annotated

import typer

from attnprof.cli import completion
from attnprof.errors import UsageError

Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, cuda:1, rocm, mps, xpu, or synthetic?noise=0.02.",
        autocompletion=completion.one_of(completion.devices),
    ),
]
Axis = Annotated[
    list[str] | None,
    typer.Option(
        "--axis",
        metavar="NAME=VALUES",
        help="An axis, as for sweep. May be repeated.",
        autocompletion=completion.axis_values,
    ),
]
Timeout = Annotated[
    str, typer.Option(metavar="TIME", help="Give a phase of a workload up after this long.")
]
Seed = Annotated[int, typer.Option(help="Of the inputs and of the order.")]
Allocator = Annotated[
    str,
    typer.Option(
        help="CPU: pinned keeps freed memory, default leaves it to the C library.",
        autocompletion=completion.one_of(completion.allocators),
    ),
]
AllowShared = Annotated[
    bool, typer.Option("--allow-shared", help="Measure on a GPU that others hold too.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def some_time(name: str, text: str) -> float:
    """A time that was typed for an option. [s]

    Raises:
        UsageError: It is none, or not above zero.
    """
    from attnprof.units import parse_seconds

    time_s = parse_seconds(text)
    if time_s <= 0:
        raise UsageError(f"--{name} {text} is no time", "write 200ms, 90s or 5m")
    return time_s
