"""Figures -> files in a folder, light and dark, and the Markdown that shows them on GitHub."""

import html
from collections.abc import Sequence
from pathlib import Path

from attnprof.errors import UsageError
from attnprof.figures.base import THEMES, Figure
from attnprof.figures.drawing import aria_label, write_figure
from attnprof.render import plain


def write_figures(
    figures: Sequence[Figure], folder: Path, suffixes: Sequence[str] = (".svg",)
) -> list[Path]:
    """Write each figure in each theme and format, as ``latency-dark.svg``.

    Raises:
        UsageError: The folder cannot be made or written to.
        CannotMeasureError: matplotlib is not installed.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make {folder}: {error.strerror}", "copy the run to your folder"
        ) from None
    written = []
    for figure in figures:
        for theme in THEMES:
            for suffix in suffixes:
                path = folder / f"{figure.name}-{theme.name}{suffix}"
                write_figure(figure, path, theme)
                written.append(path)
    return written


def is_drawn(figure: Figure, folder: Path) -> bool:
    """Whether the files of a figure are there, and say what it says now: figures of a run that was
    gone on with since are of fewer measurements."""
    label = aria_label(figure).encode()
    try:
        return all(
            label in (folder / f"{figure.name}-{theme.name}.svg").read_bytes() for theme in THEMES
        )
    except OSError:
        return False


def pictures_markdown(figures: Sequence[Figure], folder: str) -> str:
    """Each figure by its files, in the reader's theme; what cannot be seen is told."""
    return "\n".join(_picture(figure, folder) for figure in figures)


def _picture(figure: Figure, folder: str) -> str:
    light, dark = (f"{folder}/{figure.name}-{theme.name}.svg" for theme in THEMES)
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img alt="{html.escape(plain(figure.alt))}" src="{light}">\n'
        "</picture>\n"
    )
