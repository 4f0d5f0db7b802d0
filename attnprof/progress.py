"""What a sweep tells while it runs -> a live display, or plain lines where there is no terminal."""

import contextlib
import io
import time
from typing import TYPE_CHECKING, Any, TextIO

from attnprof import units
from attnprof.medians import Interval
from attnprof.render import plain
from attnprof.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

QUIET_S = 10.0  # without a terminal, a line at least so often


def record_line(record: dict[str, Any]) -> str:
    """A finished workload in one line.

    >>> record_line({"workload_id": "w", "status": "ok", "clock": "wall", "flags": [],
    ...     "median_s": 0.002, "median_low_s": 0.00198, "median_high_s": 0.00202})
    'w: 2 ms ± 1 %'
    >>> record_line({"workload_id": "w", "status": "timeout", "reason": "no answer in 60 s"})
    'w: timeout: no answer in 60 s'
    """
    if record["status"] != "ok":
        return plain(f"{record['workload_id']}: {record['status']}: {record['reason']}")
    interval = Interval(record["median_s"], record["median_low_s"], record["median_high_s"])
    figure = units.seconds(interval.median_s)
    if interval.half_width is not None:
        figure += f" ± {units.percent(interval.half_width)}"
    if record["clock"] == "cpu":
        figure += " CPU"
    flags = f" ({', '.join(record['flags'])})" if record["flags"] else ""
    return plain(f"{record['workload_id']}: {figure}{flags}")


def time_words(left_s: float) -> str:
    """About how long something takes.

    >>> time_words(42.0), time_words(300.0), time_words(9000.0)
    ('about 40 s', 'about 5 min', 'about 2.5 h')
    """
    if left_s < 90:
        return f"about {max(5, 5 * round(left_s / 5))} s"
    if left_s < 5400:
        return f"about {round(left_s / 60)} min"
    return f"about {left_s / 3600:.1f} h"


def _tell(stream: TextIO | None, text: str) -> None:
    """Write a line; a sweep does not end because nobody listens any more."""
    with contextlib.suppress(OSError):
        print(text, file=stream or io.StringIO(), flush=True)


class PlainWatcher:
    """A line for every finished workload, and a sign of life in between."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._total = 0
        self._done = 0
        self._left_s: float | None = None
        self._said_at = time.monotonic()

    def started(self, num_workloads: int, num_kept: int) -> None:
        self._total, self._done = num_workloads, num_kept
        kept = f", {num_kept} kept from before" if num_kept else ""
        plural = "" if num_workloads == 1 else "s"
        self._say(f"measuring {num_workloads} workload{plural}{kept}")

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None:
        if time.monotonic() - self._said_at >= QUIET_S:
            left = "" if self._left_s is None else f", {time_words(self._left_s)} left"
            self._say(f"round {round_ + 1}: {workload.workload_id}: {phase}{left}")

    def record(self, record: dict[str, Any]) -> None:
        self._done += 1
        self._say(f"[{self._done}/{self._total}] {record_line(record)}")

    def note(self, text: str) -> None:
        self._say(f"note: {plain(text)}")

    def time_left(self, left_s: float) -> None:
        self._left_s = left_s

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        _tell(self._stream, text)


class LiveWatcher:
    """A display of two lines that is drawn again in place, above it what is done."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
        )
        self._task = self._bar.add_task("workloads", total=None, left="")
        self._now = ""
        self._live = Live(
            console=self._console, get_renderable=self._drawn, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> "LiveWatcher":
        self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._live.stop()

    def _drawn(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        return Group(self._bar, Text(self._now, overflow="ellipsis", no_wrap=True))

    def started(self, num_workloads: int, num_kept: int) -> None:
        self._bar.update(self._task, total=num_workloads, completed=num_kept)

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None:
        figure = ""
        if interval.median_s is not None:
            figure = f", {num_samples} samples, {units.seconds(interval.median_s)}"
            if interval.half_width is not None:
                figure += f" ± {units.percent(interval.half_width)}"
        self._now = f"round {round_ + 1}: {workload.workload_id}: {phase}{figure}"

    def record(self, record: dict[str, Any]) -> None:
        self._bar.advance(self._task)
        self._console.print(record_line(record), style=None if record["status"] == "ok" else "red")

    def note(self, text: str) -> None:
        self._console.print(f"note: {plain(text)}", style="yellow")

    def time_left(self, left_s: float) -> None:
        self._bar.update(self._task, left=f"{time_words(left_s)} left")


class SilentWatcher:
    """Tells nothing but what the user should know."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def started(self, num_workloads: int, num_kept: int) -> None: ...

    def visit(
        self, workload: Workload, round_: int, phase: str, num_samples: int, interval: Interval
    ) -> None: ...

    def record(self, record: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None:
        _tell(self._stream, f"note: {plain(text)}")

    def time_left(self, left_s: float) -> None: ...
