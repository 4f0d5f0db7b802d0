"""What attnprof gate finds and what it does not, by real gates -> a line of JSON each, a table.

    python tools/gate_experiments.py same --times 35       # pairs of identical code, cores busy
    python tools/gate_experiments.py slower --times 5      # one or two heads of twenty done twice
    python tools/gate_experiments.py slower-series --times 40
    python tools/gate_experiments.py bytes                 # 3 % more of the peak; a slot more of KV
    python tools/gate_experiments.py backend               # flash's kernel changed to math
    python tools/gate_experiments.py quick                 # how long the sweep 'quick' takes
    python tools/gate_experiments.py table                 # of all that were kept

Each side is measured by its own checkout, a copy of this one in which the lines are changed that
are told below; work is repeated, never slept. Lines are added to reports/gate/gates.jsonl.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnprof.gate import BUDGET_S, CONFIRMING, MAX_SCREENS, Gated, GateRequest, measure_pair
from attnprof.grid import USUAL, expand
from attnprof.interpreters import find_interpreter
from attnprof.pairs import Pace, PairRequest, open_pairs
from attnprof.render import Column, OutputFormat, Table, markdown_text, show
from attnprof.verdicts.procedure import (
    Contrast,
    confirming_level,
    contrast,
    decide_in_two_looks,
    is_flagged,
)
from attnprof.verdicts.sides import Observed
from attnprof.verdicts.thresholds import DEFAULTS
from attnprof.workload import Workload

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "reports" / "gate" / "gates.jsonl"
NUM_SCREENING = 5
FAMILY = 100  # workloads of a gate, by which the level of its second look is set
Axes = dict[str, dict[str, Any]]

# Attention of the first of twenty heads, or of the first two, is computed once more: of a cache
# beyond the processor's own they are no longer in it, so that they cost what they did before.
HEADS_TWICE = """

_attend_once = _attend
_TWICE = {twice}  # keys held -> heads


def _attend(q, k, v, *args, **settings):
    output = _attend_once(q, k, v, *args, **settings)
    heads = _TWICE.get(k.shape[2], 0)
    if heads:
        _attend_once(q[:, :heads], k[:, :heads], v[:, :heads], *args, **settings)
    return output
"""

# So many bytes more are held during a call, by the keys held, the queries and the heads.
BYTES_MORE = """

_attend_lean = _attend
_MORE = {more}


def _attend(q, k, v, *args, **settings):
    held = torch.empty(_MORE.get((k.shape[2], *q.shape[1:3]), 0), dtype=torch.uint8)
    output = _attend_lean(q, k, v, *args, **settings)
    del held
    return output
"""

# A cache that is there from the start has room for one token more.
A_SLOT_MORE = """

_init_static = Static.__init__


def _init_roomier(self, planes, length):
    roomier = [torch.cat((plane, torch.zeros_like(plane[:, :, :1])), 2) for plane in planes]
    _init_static(self, tuple(roomier), length)


Static.__init__ = _init_roomier
"""

FLASH_IS_MATH = '\nPINS["flash"] = PINS["math"]\n_OPERATORS["flash"] = _OPERATORS["math"]\n'

SDPA = "attnprof/backends/sdpa.py"
LAYOUTS = "attnprof/workloads/kv_caches/layouts.py"

# Small, so that 300 of them are screened in minutes: fused, unfused and scores in memory; a
# cache in the core's own cache and one beyond it.
SMALL: Axes = {
    "prefill": {
        "phase": "prefill", "backend": ["flash", "math", "eager"], "seq_len": "32..160+16",
        "num_q_heads": [2, 4, 8], "head_dim": [32, 64],
    },
    "decode": {
        "phase": "decode", "backend": ["flash", "math", "eager"], "seq_len": "256..2048*2",
        "num_q_heads": [4, 8], "num_kv_heads": 2, "head_dim": [32, 64],
        "num_layers": 2, "kv_cache": ["static", "contiguous"],
    },
    "far": {"phase": "decode", "backend": "flash", "seq_len": "4k,8k", "num_q_heads": [8, 16]},
}  # fmt: skip
TWENTY_HEADS = {"num_q_heads": 20, "head_dim": 64, "backend": "flash"}
COMPUTE_LENS = range(192, 337, 5)
MEMORY_LENS = range(4096, 8193, 512)
TWENTY: Axes = {
    "compute": {**TWENTY_HEADS, "phase": "prefill", "seq_len": list(COMPUTE_LENS)},
    "memory": {**TWENTY_HEADS, "phase": "decode", "seq_len": list(MEMORY_LENS)},
}
SIZED: Axes = {  # each with a number of heads or a length of its own, by which it is known
    "flash": {
        "phase": "prefill", "backend": "flash", "seq_len": "128..1024x2", "num_q_heads": [4, 8],
    },
    "math": {
        "phase": "prefill", "backend": "math", "seq_len": "128..1024x2", "num_q_heads": [5, 10],
    },
    "static": {
        "phase": "decode", "backend": "math", "kv_cache": "static", "seq_len": "512..4096x2",
    },
    "paged": {
        "phase": "decode", "backend": "math", "kv_cache": "paged", "seq_len": "768..6144x2",
    },
}  # fmt: skip
FEW = Pace(num_samples=5, warmup_s=0.005)
BYTES_BUDGET_S = 60.0  # one launch tells bytes; latencies are of no interest there
BACKEND_BUDGET_S = 120.0
BRIEF = Pace(visit_s=0.04, warmup_s=0.02)  # fewer samples of long calls, so that gates are short


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What was changed of a workload on the new side: by how much which metric rises."""

    metric: str = "latency"
    rise: float = 0.0


def tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def workloads_of(axes: Axes) -> tuple[Workload, ...]:
    return expand("gate", axes, {}, ("flash", "math", "eager"), USUAL).workloads


@contextlib.contextmanager
def checkout(changes: Mapping[str, str]) -> Iterator[Path]:
    """A copy of this checkout's package, with a text at the end of some of its files."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "attnprof", Path(folder) / "attnprof")
        shutil.copytree(ROOT / "profiles", Path(folder) / "profiles")
        for name, text in changes.items():
            with (Path(folder) / name).open("a", encoding="utf-8") as file:
                file.write(text)
        yield Path(folder)


def gated(
    workloads: Sequence[Workload],
    changes: Mapping[str, str],
    *,
    seed: int,
    pace: Pace | None = None,
    budget_s: float = BUDGET_S,
) -> tuple[Gated, float]:
    """A gate of a clean copy against a changed one, and how long it took."""
    with checkout({}) as base, checkout(changes) as new, tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        found = measure_pair(
            GateRequest(
                pair=PairRequest(
                    base=find_interpreter(str(base)),
                    new=find_interpreter(str(new)),
                    workloads=tuple(workloads),
                    output=Path(folder) / "out",
                    device="cpu",
                    pace=pace or Pace(),
                    seed=seed,
                ),
                budget_s=budget_s,
            ),
            tell,
        )
        return found, time.monotonic() - started


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Processes that never wait, at normal priority whatever that of the experiment."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    for process in spinning:
        os.setpriority(os.PRIO_PROCESS, process.pid, 0)
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def keep(
    experiment: str,
    found: Gated,
    took_s: float,
    planted: Mapping[str, Planted],
) -> None:
    """One line for a gate: of every workload what was planted and what was found."""
    if found.comparison is None or found.interrupted:
        raise SystemExit("interrupted: nothing is kept")
    rows = []
    for one in found.comparison.workloads:
        true = planted.get(one.workload_id, Planted())
        metric = one.metric(true.metric)
        rows.append(
            {
                "workload_id": one.workload_id,
                "metric": true.metric,
                "rise": true.rise,
                "verdict": metric.verdict if metric else None,
                "ratio": metric.ratio.mid if metric else None,
                "smallest_seen": metric.smallest_seen if metric else None,
                "num_launches": metric.num_launches if metric else None,
                "whole": one.verdict,
            }
        )
    line = {
        "experiment": experiment,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "tools/gate_experiments.py", *sys.argv[1:]],
        "took_s": round(took_s, 1),
        "load": os.getloadavg()[0],
        "looks": [num_fresh for num_fresh, _ in CONFIRMING],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "verdict": found.comparison.verdict,
        "exit_code": found.comparison.exit_code,
        "notes": list(found.comparison.notes),
        "workloads": rows,
    }
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with KEPT.open("ab", buffering=0) as file:  # in one piece, beside other experiments
        file.write(json.dumps(line).encode() + b"\n")
    tell(f"{experiment}: {line['verdict']}, {len(rows)} workloads, {took_s:.0f} s")


def same(times: int, seed: int) -> None:
    """Identical code, beside a process on every core that never waits."""
    series("same", workloads_of(SMALL), {}, {}, times, seed, os.cpu_count() or 1)


def slower_series(times: int, seed: int) -> None:
    """As ``slower``, in one series on which the gate is replayed."""
    workloads = workloads_of(TWENTY)
    changes, rises = heads_twice(seed)
    series("slower", workloads, changes, rises, times, seed, 0)


def series(
    name: str,
    workloads: Sequence[Workload],
    changes: Mapping[str, str],
    rises: Mapping[int, float],
    times: int,
    seed: int,
    num_busy: int,
) -> None:
    """Pairs of real launches of a clean copy and a changed one, one after the other, kept as the
    log of each launch's median CPU time.

    Args:
        rises: What was planted, by the keys that a workload holds.
    """
    started = time.monotonic()
    with checkout({}) as base, checkout(changes) as new, tempfile.TemporaryDirectory() as folder:
        request = PairRequest(
            base=find_interpreter(str(base)),
            new=find_interpreter(str(new)),
            workloads=tuple(workloads),
            output=Path(folder) / "out",
            device="cpu",
            pace=FEW if num_busy else Pace(),
            seed=seed,
        )
        with busy_cores(num_busy), open_pairs(request) as pairs:
            for number in range(times):
                tell(f"pair {number + 1} of {times}, {time.monotonic() - started:.0f} s")
                pairs.measure(workloads, confirming=False)
            sides = [
                {record["workload_id"]: record for record in side.records()} for side in pairs.sides
            ]
    head = {
        "command": ["python", "tools/gate_experiments.py", *sys.argv[1:]],
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(time.monotonic() - started, 1),
        "num_busy": num_busy,
        "load": os.getloadavg()[0],
    }
    lines: list[dict[str, Any]] = [head]
    for one in workloads:
        key = one.workload_id
        logs = [Observed(side[key]).logs("cpu") for side in sides]
        rounded = [[round(value, 5) for value in side] for side in logs]
        rise = rises.get(one.kv_len, 0.0)
        lines.append({"workload_id": key, "rise": rise, "base": rounded[0], "new": rounded[1]})
    path = KEPT.parent / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def replayed(
    base: Sequence[float], new: Sequence[float], first: int, level: float
) -> tuple[str, bool]:
    """What the gate says that begins with the pair ``first``, and whether it was flagged: up to
    three screens of five pairs, then the strict tests on those after them; the series is a circle.
    """

    def launches(start: int, count: int) -> Contrast:
        places = [(start + i) % len(base) for i in range(count)]
        found = contrast([base[i] for i in places], [new[i] for i in places])
        assert found is not None
        return found

    threshold = DEFAULTS["latency"].share
    most = CONFIRMING[-1][0]
    for screened in range(NUM_SCREENING, MAX_SCREENS * NUM_SCREENING + 1, NUM_SCREENING):
        seen = launches(first, screened)
        if is_flagged(seen, threshold):
            break
        found = decide_in_two_looks(seen, None, threshold, level=level, num_fresh=most)
        if found.verdict != "inconclusive":
            return found.verdict, False
    else:
        return "inconclusive", False
    for num_fresh, share in CONFIRMING:
        if num_fresh > len(base) - screened:
            break
        fresh = launches(first + screened, num_fresh)
        found = decide_in_two_looks(seen, fresh, threshold, level=level * share, num_fresh=most)
        if found.verdict != "inconclusive":
            break
    return found.verdict, True


def series_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The gate replayed on a series: with screens that share no launch, and with all."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    level = confirming_level(FAMILY, MAX_SCREENS)
    kinds: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for line in lines[1:]:
        kind = line["workload_id"].split("-")[0], line.get("rise", 0.0)
        kinds.setdefault(kind, []).append(line)
    for words, step in (("screens apart", NUM_SCREENING), ("sliding", 1)):
        for (phase, rise), members in sorted(kinds.items()):
            found: Counter[str] = Counter()
            for line in members:
                base, new = line["base"], line["new"]
                starts = range(0, len(base) - NUM_SCREENING + 1, step)
                for start in starts:
                    verdict, flagged = replayed(base, new, start, level)
                    found[verdict] += 1
                    found["flagged"] += flagged
            compared = len(members) * len(starts)
            yield {
                "experiment": f"{path.stem}, {words}",
                "phase": phase,
                "metric": "latency",
                "planted": planted_words(rise),
                "gates": len(starts),
                "compared": compared,
                "regressed": found["regressed"],
                "share": found["regressed"] / compared,
                "inconclusive": found["inconclusive"],
                "improved": found["improved"],
                "flagged": found["flagged"],
            }


def planted_words(rise: float) -> str:
    return f"+{rise:.0%}" if rise else "nothing"


def heads_twice(number: int) -> tuple[dict[str, str], dict[int, float]]:
    """One head of twenty done twice in every other length, two in the rest; and the rise of each
    length."""
    lengths = (*COMPUTE_LENS, *MEMORY_LENS)
    twice = {length: 1 + (i + number) % 2 for i, length in enumerate(lengths)}
    rises = {length: heads / 20 for length, heads in twice.items()}
    return {SDPA: HEADS_TWICE.format(twice=twice)}, rises


def slower(times: int, seed: int) -> None:
    """Real gates of what is 5 % and 10 % slower, by work that is repeated."""
    workloads = workloads_of(TWENTY)
    for number in range(times):
        changes, rises = heads_twice(number)
        found, took_s = gated(workloads, changes, seed=seed + number, pace=BRIEF, budget_s=1200)
        planted = {one.workload_id: Planted(rise=rises[one.kv_len]) for one in workloads}
        keep("slower", found, took_s, planted)


def more_bytes(times: int, seed: int) -> None:
    """3 % more of the measured peak held during the call; one slot more in each static cache."""
    workloads = workloads_of(SIZED)
    for number in range(times):
        clean, _ = gated(workloads, {}, seed=seed + number, pace=BRIEF, budget_s=BYTES_BUDGET_S)
        assert clean.comparison is not None
        peaks = {
            one.workload_id: metric.base
            for one in clean.comparison.workloads
            if (metric := one.metric("peak_memory")) is not None and metric.base
        }
        more = {
            (one.kv_len, one.num_q_heads, one.q_len): math.ceil(0.03 * peaks[one.workload_id])
            for one in workloads
        }
        changes = {SDPA: BYTES_MORE.format(more=more)}
        found, took_s = gated(
            workloads, changes, seed=seed + number, pace=BRIEF, budget_s=BYTES_BUDGET_S
        )
        planted = {one.workload_id: Planted(metric="peak_memory", rise=0.03) for one in workloads}
        keep("peak memory", found, took_s, planted)
        cached = [one for one in workloads if one.kv_cache == "static"]
        found, took_s = gated(
            cached, {LAYOUTS: A_SLOT_MORE}, seed=seed + number, pace=BRIEF, budget_s=BYTES_BUDGET_S
        )
        planted = {
            one.workload_id: Planted(metric="kv_bytes", rise=1 / one.kv_len) for one in cached
        }
        keep("KV bytes", found, took_s, planted)


def backend(times: int, seed: int) -> None:
    """Flash pinned to math's kernel: of the workloads of three backends those of one are slower."""
    axes = {
        "prefill": {"phase": "prefill", "backend": ["eager", "math", "flash"], "seq_len": 512},
        "decode": {"phase": "decode", "backend": ["eager", "math"], "seq_len": 1024},
    }
    workloads = workloads_of(axes)
    for number in range(times):
        found, took_s = gated(
            workloads, {SDPA: FLASH_IS_MATH}, seed=seed + number, budget_s=BACKEND_BUDGET_S
        )
        planted = {one.workload_id: Planted(rise=1.0) for one in workloads if is_flash(one)}
        keep("backend", found, took_s, planted)


def is_flash(workload: Workload) -> bool:
    return workload.backend == "flash"


def quick(times: int, seed: int) -> None:
    """The sweep 'quick', identical code, under the usual budget."""
    from attnprof.session import Asked, grid_of

    workloads = grid_of(Asked(spec="quick", device="cpu")).workloads
    for number in range(times):
        found, took_s = gated(workloads, {}, seed=seed + number)
        keep("quick", found, took_s, {})


def kept() -> list[dict[str, Any]]:
    if not KEPT.exists():
        return []
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]


def groups(lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each experiment, phase and planted rise: how many were found."""
    found: dict[tuple[str, str, str, float], list[str]] = {}
    num_gates: dict[tuple[str, str, str, float], set[int]] = {}
    for number, line in enumerate(lines):
        for row in line["workloads"]:
            phase = row["workload_id"].split("-")[0]
            rise = row["rise"] if line["experiment"] == "slower" else float(row["rise"] > 0)
            key = line["experiment"], phase, row["metric"], rise
            found.setdefault(key, []).append(row["verdict"])
            num_gates.setdefault(key, set()).add(number)
    for key, verdicts in sorted(found.items()):
        experiment, phase, metric, rise = key
        regressed = verdicts.count("regressed")
        yield {
            "experiment": experiment,
            "phase": phase,
            "metric": metric,
            "planted": "as told" if rise == 1.0 else planted_words(rise),
            "gates": len(num_gates[key]),
            "compared": len(verdicts),
            "regressed": regressed,
            "share": regressed / len(verdicts),
            "inconclusive": verdicts.count("inconclusive"),
            "improved": verdicts.count("improved"),
            "flagged": None,
        }


def kept_series() -> list[Path]:
    paths = (KEPT.parent / f"{name}.jsonl" for name in ("same", "slower"))
    return [path for path in paths if path.exists()]


def table() -> Table:
    lines = kept()
    took = [line["took_s"] for line in lines if line["experiment"] == "quick"]
    longest = f"; quick took up to {max(took):.0f} s" if took else ""
    return Table(
        name="gates",
        title=f"{len(lines)} gates{longest}",
        columns=(
            Column("experiment", "Experiment"),
            Column("phase", "Phase"),
            Column("metric", "Metric"),
            Column("planted", "Planted", align="right"),
            Column("gates", "Gates", "{:d}".format, "right"),
            Column("compared", "Compared", "{:,}".format, "right"),
            Column("regressed", "Regressed", "{:,}".format, "right"),
            Column("share", "Share", "{:.1%}".format, "right"),
            Column("flagged", "Flagged", "{:,}".format, "right"),
            Column("inconclusive", "Inconclusive", "{:,}".format, "right"),
            Column("improved", "Improved", "{:,}".format, "right"),
        ),
        rows=(*groups(lines), *(row for path in kept_series() for row in series_rows(path))),
    )


def write_report() -> None:
    """``report.md`` beside what was kept: the table, and what each line of it was made by."""
    commands = dict.fromkeys(" ".join(line["command"]) for line in kept())
    for path in kept_series():
        head = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        commands[" ".join(head["command"])] = None
    text = REPORT.format(
        table=markdown_text(table()), commands="\n".join(f"    {command}" for command in commands)
    )
    (KEPT.parent / "report.md").write_text(text, encoding="utf-8")


REPORT = """# What the gate finds

Real launches on two cores that other jobs kept busy, both sides checkouts of their own. Each gate
is a line of `gates.jsonl`: what was planted in each workload, and what was found.

{table}

*same* is a series of pairs of identical code, in `same.jsonl` as the logs of launches' medians,
beside a process on every core that never waits; `slower.jsonl` is one of the code of *slower*. The
gate is replayed on them: up to three screens of five pairs, then as strict tests as a family of
100 has on the pairs after them, the series taken as a circle. *Screens apart* begin five pairs
apart: their first screens share no launch and are independent, what comes after them uses pairs
in which others screen. *Sliding* begins at every pair: its gates are not independent, and as many
as those apart are what it is worth.

*slower* computes attention of one or two of twenty heads twice: prefill is bound by compute,
decode by memory. *peak memory* holds 3 % of the measured peak more, *KV bytes* a slot more.
*backend* runs math's kernel where flash was asked for; its one planted workload is flash's.

Made by

{commands}
    python tools/gate_experiments.py table
"""

EXPERIMENTS = {
    "same": same, "slower": slower, "slower-series": slower_series, "bytes": more_bytes,
    "backend": backend, "quick": quick,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "table"])
    parser.add_argument("--times", type=int, default=1, help="so many gates, or pairs")
    parser.add_argument("--seed", type=int, default=0, help="of the first gate")
    asked = parser.parse_args()
    if asked.experiment != "table":
        EXPERIMENTS[asked.experiment](asked.times, asked.seed)
    write_report()
    show(table(), OutputFormat.rich)


if __name__ == "__main__":
    main()
