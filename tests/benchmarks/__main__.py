"""The numbers that attnprof holds itself to, measured here and now: ``python -m tests.benchmarks``.

Prints one table; exit code 1 where a number is missed. Left to itself it measures each theme, and
running a second time while another process keeps every core busy.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from attnprof.render import Column, OutputFormat, Table, show
from tests.benchmarks import (
    caches,
    comparing,
    estimating,
    fitting,
    growth,
    memory,
    reporting,
    running,
    start_up,
)
from tests.benchmarks.number import Number, Theme


def models(busy: bool) -> Sequence[Number]:
    from tests.benchmarks.models import numbers  # imports torch

    return numbers(busy)


THEMES: dict[str, Theme] = {
    "start-up": start_up.numbers,
    "estimating": estimating.numbers,
    "comparing": comparing.numbers,
    "fitting": fitting.numbers,
    "reporting": reporting.numbers,
    "memory": memory.numbers,
    "growth": growth.numbers,
    "caches": caches.numbers,
    "models": models,
    "running": running.numbers,
}
VERDICTS = {True: "yes", False: "NO", None: None}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", choices=THEMES, action="append", help="this theme; repeatable")
    parser.add_argument("--busy", action="store_true", help="keep every core busy meanwhile")
    asked = parser.parse_args(arguments)
    visits = [(name, asked.busy) for name in asked.only or THEMES]
    if not (asked.only or asked.busy):
        visits.append(("running", True))
    rows: list[tuple[str, Number]] = []
    for name, busy in visits:
        theme = f"{name}, busy" if busy else name
        print(f"== {theme}", file=sys.stderr, flush=True)
        started = time.monotonic()
        with running.busy_cores(busy):
            rows += [(theme, number) for number in THEMES[name](busy)]
        print(f"== {theme}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    show(table(rows), OutputFormat.rich)
    return 1 if any(number.met is False for _, number in rows) else 0


def table(rows: Sequence[tuple[str, Number]]) -> Table:
    missed = sum(number.met is False for _, number in rows)
    return Table(
        name="benchmarks",
        title="Numbers to reach: " + (f"{missed} missed" if missed else "all met"),
        columns=(
            Column("theme", "Theme"),
            Column("name", "Number", wraps=True),
            Column("found", "Found", wraps=True),
            Column("wanted", "Wanted", wraps=True),
            Column("met", "Met"),
            Column("how", "How it was had", wraps=True),
        ),
        rows=tuple(
            {"theme": theme, **vars(number), "met": VERDICTS[number.met]} for theme, number in rows
        ),
        alarming=lambda row: row["met"] == "NO",
    )


if __name__ == "__main__":
    sys.exit(main())
