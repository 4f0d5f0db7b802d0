"""Commands -> what a fresh process spends on each, in turns, and what it has loaded at its end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "pandas", "scipy", "numpy", "matplotlib", "pyarrow")
IMPORT_TYPER = ("-c", "import typer")
TURNS = 7

# Runs the command line; then a last line tells modules, and the most memory that was held.
_SEEN = """
import json, sys
from pathlib import Path
sys.argv = ["attnprof", *sys.argv[1:]]
from attnprof.cli import main
try:
    main()
except SystemExit as end:
    code = end.code or 0
else:
    code = 0
status = Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else []
peak_kib = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
modules = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"code": code, "peak_kib": peak_kib, "modules": modules}), file=sys.stderr)
"""


@dataclass(frozen=True)
class Spent:
    """What a process has taken, from start to end."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True)
class Seen:
    """A command line's process at its end; its peak is None where the system does not tell."""

    heavy: tuple[str, ...]
    peak_bytes: int | None


def compiling() -> dict[str, str]:
    """An environment whose processes keep what they compile, as those of an installed package."""
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def least_spent(commands: Mapping[str, Sequence[str]], turns: int = TURNS) -> dict[str, Spent]:
    """The least CPU and the least wall time of each, taken in turns after one that compiles.

    Args:
        commands: Arguments of the interpreter, by name.
    """
    taken: dict[str, list[Spent]] = {name: [] for name in commands}
    for arguments in commands.values():
        _run(arguments)
    for _ in range(turns):
        for name, arguments in commands.items():
            taken[name].append(_run(arguments))
    return {
        name: Spent(min(one.cpu_s for one in all_), min(one.wall_s for one in all_))
        for name, all_ in taken.items()
    }


def _run(arguments: Sequence[str]) -> Spent:
    import resource

    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=compiling(), check=True, capture_output=True)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s)


def seen_at_the_end(*arguments: str) -> Seen:
    """Heavy modules and peak memory of the process that ran ``attnprof`` with ``arguments``."""
    done = subprocess.run(
        [sys.executable, "-c", _SEEN, *arguments],
        env=compiling(),
        check=True,
        capture_output=True,
        text=True,
    )
    last = json.loads(done.stderr.splitlines()[-1])
    if last["code"]:
        raise RuntimeError(f"attnprof {' '.join(arguments)} ended with {last['code']}")
    peak_bytes = None if last["peak_kib"] is None else last["peak_kib"] * 1024
    return Seen(tuple(name for name in HEAVY if name in last["modules"]), peak_bytes)
