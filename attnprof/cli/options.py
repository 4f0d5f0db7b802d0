"""Options that several commands have alike, and how their texts are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnprof.cli import completion
from attnprof.errors import UsageError

if TYPE_CHECKING:
    from attnprof.figures.base import Figure

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

FigureFile = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw it, as .svg or .png.")
]
Dark = Annotated[bool, typer.Option("--dark", help="The figure on a dark ground.")]


def check_figure(path: Path | None, *, dark: bool) -> None:
    """That a figure that was asked for can be drawn, before the work that it will show.

    Raises:
        UsageError: A name or a folder that cannot be, or ``--dark`` without a figure.
        CannotMeasureError: matplotlib is not installed.
    """
    if path is None:
        if dark:
            raise UsageError("--dark goes with --figure", "add --figure FILE, or leave --dark out")
        return
    from attnprof.figures.drawing import check_can_draw

    check_can_draw(path)


def draw(figure: "Figure | None", path: Path, *, dark: bool) -> str:
    """Write a figure; what is to be said of it.

    Raises:
        UsageError: The file cannot be written.
    """
    from attnprof.figures.base import DARK, LIGHT
    from attnprof.figures.drawing import write_figure

    if figure is None:
        return f"there is nothing to draw, so {path} is not written"
    write_figure(figure, path, DARK if dark else LIGHT)
    return f"wrote {path}"


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
