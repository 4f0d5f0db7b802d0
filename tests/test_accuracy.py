"""The tables of ``docs/accuracy.md`` that no command prints as they stand say what was found.

Both need the files of truth, which lie beside the checkout.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import attnprof

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
PAGE = ROOT / "docs" / "accuracy.md"
HOLDOUTS = {
    "Random fifth held out": ("random", "law + residual"),
    "Four times longer": ("far", "law + residual"),
    "Heads not seen": ("heads", "law + residual"),
    "From 12 points": ("12 points", "law"),
    "From nothing": ("0 points", "law"),
}
OF_GEMM = {"12 points": "12 points, n and k from 512"}  # as the page says
NUMBER = re.compile(r"\d+(?:\.\d+)?")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the files of truth lie beside the checkout"),
]


def rows_under(heading: str) -> list[dict[str, str]]:
    """The table of the page whose first heading that is, a row by its headings."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    names = cells_of(lines[start])
    found: list[dict[str, str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return found
        found.append(dict(zip(names, cells_of(line), strict=True)))
    return found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def is_rounded(said: str, share: float) -> bool:
    """Whether a number in percent is a share, to the digits that it has."""
    half = 0.5 * 10.0 ** -len(said.partition(".")[2])
    return abs(float(said) - 100 * share) <= half * (1 + 1e-9)


def test_the_errors_of_kernel_laws_are_those_that_the_command_finds() -> None:
    done = attnprof(
        "validate", "kernels", str(DATA / "gpu_measurements"), "--summary", "--format", "json"
    )
    pooled: list[dict[str, Any]] = json.loads(done.stdout)["pooled"]
    told = 0
    for row in rows_under("Law"):
        law, _, kernels = row["Law"].partition(", ")
        for heading, (holdout, method) in HOLDOUTS.items():
            if not row[heading]:
                continue
            asked = OF_GEMM.get(holdout, holdout) if law == "GEMM" else holdout
            (one,) = [
                one
                for one in pooled
                if (one["law"], one["holdout"], one["method"]) == (law.lower(), asked, method)
            ]
            median, p90, *_ = NUMBER.findall(row[heading])
            assert is_rounded(median, one["median"]), (law, heading, one["median"])
            assert is_rounded(p90, one["p90"]), (law, heading, one["p90"])
            told += 1
            if holdout == "random":
                assert int(NUMBER.findall(kernels)[0]) == one["num_kernels"]
    assert told == 18


def test_the_errors_of_a_step_are_those_that_its_fit_finds() -> None:
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "tools" / "fit_serving.py"),
            str(DATA / "serving_perf_open.jsonl"), "--dry-run",
        ],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = re.findall(r"^(.+): all ([\d.]+) / ([\d.]+) %", done.stdout + done.stderr, re.M)
    found = {name: [float(median), float(p90)] for name, median, p90 in said}
    rows = rows_under("TPOT")
    assert len(rows) == 5
    for row in rows:
        told = [float(NUMBER.findall(row[name])[0]) for name in ("median", "90 % below")]
        assert told == found[row["TPOT"]]
