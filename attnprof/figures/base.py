"""What a figure is: panels on common axes, and its words. How it is drawn is in drawing.py.

Making one needs no library: it is drawn when it is written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 9


@dataclass(frozen=True)
class Theme:
    """Colours that people who see few colours tell apart (after Okabe and Ito 2008), each with a
    contrast of at least 3 to the background, text with one of at least 4.5. A ghost is what is
    drawn elsewhere as well, and stands behind."""

    name: str
    background: str
    ink: str
    muted: str
    ghost: str
    grid: str
    blue: str
    orange: str
    green: str
    purple: str
    yellow: str
    grey: str


LIGHT = Theme(
    name="light", background="#ffffff", ink="#1f2328", muted="#57606a", ghost="#bcc4cc",
    grid="#e6e9ed", blue="#0072b2", orange="#c85200", green="#008060", purple="#a8477f",
    yellow="#9a6a00", grey="#7d868f",
)  # fmt: skip
DARK = Theme(
    name="dark", background="#0d1117", ink="#e6edf3", muted="#9da7b1", ghost="#515b66",
    grid="#242b33", blue="#56b4e9", orange="#f28e4b", green="#2fc79b", purple="#e29ac4",
    yellow="#e8c547", grey="#7b8590",
)  # fmt: skip
THEMES = (LIGHT, DARK)


@dataclass(frozen=True)
class Axis:
    """Of all panels or of one: what it shows with its unit, its ends, and where it is labelled."""

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    show: Callable[[float], str]
    is_log: bool = True


@dataclass(frozen=True)
class Key:
    """How one thing looks, in words beside it."""

    words: str
    colour: str  # the name of one of a theme's
    look: Literal["point", "hollow", "ring", "line", "dashes", "dots", "band", "area"] = "line"
    marker: str = "o"  # of a point, filled or hollow


@dataclass(frozen=True)
class Panel:
    """One of the small pictures that a figure is made of.

    Args:
        note: What is to be seen in it, a line or more.
        x: An axis of its own, where it shares only the vertical one with the others.
    """

    title: str
    note: str
    draw: Callable[["Axes", Theme], None]
    x: Axis | None = None


@dataclass(frozen=True)
class Figure:
    """What a figure shows, and its words.

    Args:
        name: Of its file.
        alt: What a reader who does not see it is told.
        source: Where its numbers come from, in a line under it.
        panel_in: Height of a panel; by the number of columns where it is None. [in]
    """

    name: str
    title: str
    alt: str
    source: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...] = ()
    panel_in: float | None = None
