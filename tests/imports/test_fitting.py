"""Laws of imported records: whose they are, what is left out, and what is refused."""

import json
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.fit_laws import fit_runs
from attnprof.importing import import_sources
from attnprof.imports.fitting import tables_of
from attnprof.imports.parts import Asked
from attnprof.laws.foreign import read_table
from attnprof.records import read_run
from tests.command import attnprof
from tests.imports.test_importing import GEMM, SAMPLES, table

PEAK, BANDWIDTH = 989.4e12, 3.35e12


def gemms(path: Path, **changes: object) -> Path:
    """Products that reach 70 % of both roofs and take 4 us to launch. [ms]"""
    rows = []
    for m in (1, 16, 64, 256, 1024, 4096, 16384):
        for n in (1024, 4096, 8192, 28672):
            for k in (1024, 4096, 8192):
                roof_s = 2 * m * n * k / PEAK + 2 * (m * n + n * k + m * k) / BANDWIDTH
                latency = (4e-6 + roof_s / 0.7) * 1e3
                shape = {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": latency}
                rows.append(GEMM | shape | changes)
    return table(path, *rows)


def run_of(*sources: Path, to: Path) -> Path:
    import_sources(list(sources), to, None, Asked(), ["attnprof", "import"])
    return to


def test_a_law_of_imported_records_keeps_whose_they_are(tmp_path: Path) -> None:
    run = run_of(gemms(tmp_path / "gemm_perf.csv"), to=tmp_path / "run")
    found = fit_runs([run])
    assert (found.calibration.device, found.calibration.engine) == ("h100-sxm", "trtllm")
    assert found.calibration.source["repository"] == "ai-dynamo/aiconfigurator"
    assert found.calibration.source["licence"] == "Apache-2.0"
    assert list(found.calibration.laws) == ["gemm.bf16"]
    (group,) = found.groups
    assert group.holds
    assert next(iter(group.words)).startswith("the law holds")


def test_the_command_fits_an_imported_run(tmp_path: Path) -> None:
    run = run_of(gemms(tmp_path / "gemm_perf.csv"), to=tmp_path / "run")
    done = attnprof("fit", str(run), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["calibration"] == str(run / "calibration.yaml")
    assert "Apache-2.0" in (run / "calibration.yaml").read_text()


def test_two_engines_are_refused_by_name(tmp_path: Path) -> None:
    ours, others = gemms(tmp_path / "a.csv"), gemms(tmp_path / "b.csv", framework="VLLM")
    run = run_of(ours, others, to=tmp_path / "run")
    with pytest.raises(UsageError, match="trtllm on h100-sxm, vllm on h100-sxm"):
        fit_runs([run])


def test_an_imported_run_is_not_mixed_with_one_measured_here(tmp_path: Path) -> None:
    own = tmp_path / "own"
    swept = attnprof(
        "sweep", "--device", "synthetic", "--seq-len", "64,128", "--phase", "prefill",
        "-o", str(own), "-q",
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    imported = run_of(gemms(tmp_path / "a.csv"), to=tmp_path / "run")
    with pytest.raises(UsageError, match=r"own was measured by attnprof"):
        fit_runs([own, imported])


def test_what_has_no_law_is_said(tmp_path: Path) -> None:
    odd = gemms(tmp_path / "odd.csv", gemm_dtype="int4_wo")
    run = run_of(gemms(tmp_path / "a.csv"), odd, SAMPLES / "llama_bench.json", to=tmp_path / "run")
    notes = " ".join(fit_runs([run]).notes)
    assert "84 records: int4_wo, for which there is no law" in notes
    assert "2 records: model, for which there is no law here" in notes


def test_too_few_rows_are_refused_with_how_many_are_needed(tmp_path: Path) -> None:
    run = run_of(SAMPLES / "decode.csv", to=tmp_path / "run")
    with pytest.raises(UsageError, match="a law needs 40"):
        fit_runs([run])


@pytest.mark.parametrize("name", ["prefill.csv", "decode.csv", "gemm.csv", "all_reduce.csv"])
def test_records_become_the_table_that_they_came_from(tmp_path: Path, name: str) -> None:
    run = read_run(run_of(SAMPLES / name, to=tmp_path / "run"))
    (made,), notes = tables_of(run.records, run)
    source = read_table(SAMPLES / name)
    assert not notes
    assert made.family == source.family
    assert made.latency_s.tolist() == pytest.approx(source.latency_s.tolist())
    for column, values in source.counts.items():
        assert made.counts[column].tolist() == values.tolist(), column
    for column, texts in source.texts.items():
        if column not in ("gpu", "collective"):  # a GPU has our name then
            assert made.texts[column].tolist() == texts.tolist(), column
