"""Tables of measured kernels -> ``profiles/calibrations``: ``fit_calibrations.py FOLDER``.

FOLDER holds the tables and ``manifest.csv``, which names repository, commit and licence of each.
Every run gives the same files.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from attnprof.laws.calibrating import by_key, calibrate
from attnprof.laws.calibration import Calibration, calibration_text
from attnprof.laws.foreign import read_tables
from attnprof.laws.groups import Group, gpu_of, sort_tables
from attnprof.laws.holdouts import least_rows

SHIPPED = Path(__file__).parent.parent / "profiles" / "calibrations"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=SHIPPED)
    asked = parser.parse_args()
    tables, _ = read_tables([asked.folder])
    sources = _sources(asked.folder / "manifest.csv")
    groups: dict[tuple[str, str], list[Group]] = {}
    for group in sort_tables(tables).groups:
        if len(group.latency_s) >= least_rows(group):
            pair = (gpu_of(group.key["gpu"]).name, group.key["engine"])
            groups.setdefault(pair, []).append(group)
    asked.output.mkdir(parents=True, exist_ok=True)
    for (gpu, engine), members in sorted(groups.items()):
        name = f"{gpu}--{engine}"
        calibration = Calibration(
            name=name,
            device=gpu,
            engine=engine,
            source=_source_of(members, sources),
            laws={key: calibrate(group) for key, group in sorted(by_key(members).items())},
        )
        (asked.output / f"{name}.yaml").write_text(calibration_text(calibration), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(calibration.laws)} laws of {len(members)} kernels\n")


def _sources(manifest: Path) -> list[dict[str, str]]:
    with manifest.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _source_of(groups: Sequence[Group], sources: Sequence[dict[str, str]]) -> dict[str, str]:
    """Repository, commit, licence and paths of the tables that hold these groups."""
    gpu, engine = groups[0].key["gpu"], groups[0].key["engine"]
    used = [one for one in sources if f"/data/{gpu}/" in one["source_path"]]
    used = [one for one in used if f"/{engine}/" in one["source_path"]]
    rows = sum(len(group.latency_s) for group in groups)
    return {
        "repository": " ".join(sorted({one["source_repo"] for one in used})),
        "commit": " ".join(sorted({one["commit"] for one in used})),
        "licence": " ".join(sorted({one["licence"] for one in used})),
        "paths": " ".join(sorted({one["source_path"] for one in used})),
        "changes": f"fitted to {rows} latencies; coefficients and residuals alone are kept",
        "made_by": "tools/fit_calibrations.py",
    }


if __name__ == "__main__":
    main()
