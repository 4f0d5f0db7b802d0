"""What a notebook shows of a result: its tables, also as Markdown, and its figure as SVG."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnprof.errors import CannotMeasureError
from attnprof.notebook import Shown
from attnprof.render import markdown_text

if TYPE_CHECKING:
    from attnprof.figures.base import Figure


class Result(Shown):
    """A result that is shown as tables, wherever: in HTML, Markdown or text."""

    def _repr_markdown_(self) -> str:
        return "\n".join(markdown_text(table) for table in self.tables())


@dataclass(frozen=True, repr=False)
class Drawn:
    """A figure that a notebook shows; ``alt`` says in words what is to be seen in it."""

    title: str
    alt: str
    figure: "Figure" = field(compare=False)

    def svg(self, *, dark: bool = False) -> str:
        """The figure as SVG, on a light or a dark ground.

        Raises:
            CannotMeasureError: matplotlib is not installed.
        """
        from attnprof.figures.base import DARK, LIGHT
        from attnprof.figures.drawing import svg_text

        return svg_text(self.figure, DARK if dark else LIGHT)

    def save(self, path: str | Path, *, dark: bool = False) -> Path:
        """Write it to a file that is named ``.svg`` or ``.png``.

        Raises:
            UsageError: Another suffix, or a file that cannot be written.
            CannotMeasureError: matplotlib is not installed.
        """
        from attnprof.figures.base import DARK, LIGHT
        from attnprof.figures.drawing import write_figure

        write_figure(self.figure, Path(path), DARK if dark else LIGHT)
        return Path(path)

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<figure: {self.title}>"


def drawn(figure: "Figure | None", why_not: str) -> Drawn:
    """A figure as a result has it.

    Raises:
        CannotMeasureError: There is none.
    """
    if figure is None:
        raise CannotMeasureError(f"there is nothing to draw: {why_not}", "look at its tables")
    return Drawn(figure.title, figure.alt, figure)
