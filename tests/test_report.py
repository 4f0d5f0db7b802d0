"""The report of a run: the same bytes each time, readable on its own, safe whatever it is given."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from attnprof.errors import UsageError
from attnprof.fit import fit_run
from attnprof.growth_tables import growth_table
from attnprof.records import Run
from attnprof.render import Table, markdown_text
from attnprof.report import (
    failures_table,
    fastest_table,
    latency_table,
    memory_table,
    report_md,
    results_csv,
    run_tables,
    tables,
    write_reports,
)
from attnprof.result_keys import RESULT_KEYS
from attnprof.run_header import in_grid_order
from attnprof.workload import Workload

# `attnprof sweep quick --threads 1 --interval 0.1`, one of its caches left out for size.
CPU_RUN = Path(__file__).parent / "golden" / "cpu-run"
DESIGNED_KEYS = (
    "workload_id", "scope", "phase", "attention", "variant", "window_len", "position",
    "kv_cache", "backend", "device", "dtype", "kv_dtype", "batch_size", "q_len", "kv_len",
    "num_q_heads", "num_kv_heads", "head_dim", "num_layers", "status", "reason", "num_samples",
    "median_s", "median_low_s", "median_high_s", "median_cpu_s", "clock", "flags", "flops",
    "bytes_moved", "achieved_flops_per_s", "mfu", "mbu", "weight_bytes", "kv_bytes",
    "peak_activation_bytes", "theory_kv_bytes", "theory_peak_activation_bytes", "theory_s",
)  # fmt: skip


@pytest.fixture
def cpu_run(tmp_path: Path) -> Path:
    for name in ("run.json", "records.jsonl"):
        shutil.copy(CPU_RUN / name, tmp_path)
    return tmp_path


@pytest.fixture
def records() -> list[dict[str, Any]]:
    header = json.loads((CPU_RUN / "run.json").read_text())
    lines = (CPU_RUN / "records.jsonl").read_text().splitlines()
    return in_grid_order(header, [json.loads(line) for line in lines])


def report(header: dict[str, Any], records: list[dict[str, Any]]) -> str:
    run = Run(Path("run"), header, tuple(records))
    fits = fit_run(header, records)
    return report_md(run, fits, tables(header, records, fits))


def test_the_report_of_a_real_run_is_the_golden_one(
    cpu_run: Path, golden: Callable[[str, str], None]
) -> None:
    write_reports(cpu_run)
    golden("cpu-run/report.md", (cpu_run / "report.md").read_text(encoding="utf-8"))


def test_reports_made_again_are_the_same_bytes(cpu_run: Path) -> None:
    first = {path: path.read_bytes() for path in write_reports(cpu_run)}
    assert sorted(path.name for path in first) == ["fit.json", "report.md", "results.csv"]
    assert {path: path.read_bytes() for path in write_reports(cpu_run)} == first
    assert not list(cpu_run.glob(".*"))


def test_results_have_a_row_for_each_workload_and_a_column_for_each_key_of_the_design(
    records: list[dict[str, Any]],
) -> None:
    rows = list(csv.DictReader(io.StringIO(results_csv(records))))
    assert len(rows) == len(records)
    assert set(DESIGNED_KEYS) <= set(rows[0]) == set(RESULT_KEYS)
    for row, record in zip(rows, records, strict=True):
        assert row["workload_id"] == record["workload_id"]
        assert float(row["median_s"]) == record["median_s"]
        assert row["window_len"] == ("" if record["window_len"] is None else "256")


def test_every_axis_is_a_column_of_the_results() -> None:
    assert {field.name for field in fields(Workload)} <= set(RESULT_KEYS)
    assert len(set(RESULT_KEYS)) == len(RESULT_KEYS)


def test_tables_come_in_the_order_of_the_grid_whatever_was_measured_first(cpu_run: Path) -> None:
    path = cpu_run / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    before = [table.rows for table in run_tables(cpu_run)]
    path.write_text("".join(sorted(lines)))
    assert [table.rows for table in run_tables(cpu_run)] == before


def test_a_stopped_sweep_says_how_much_is_missing(cpu_run: Path) -> None:
    header = json.loads((cpu_run / "run.json").read_text())
    header["workloads"] = ["never reached"]
    (cpu_run / "run.json").write_text(json.dumps(header))
    write_reports(cpu_run)
    assert "1 of 1 workload missing" in (cpu_run / "report.md").read_text()


def test_fits_are_strict_json(cpu_run: Path) -> None:
    write_reports(cpu_run)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    fits = json.loads((cpu_run / "fit.json").read_text(), parse_constant=refuse)
    assert fits["format"] == 1
    for series in fits["series"]:
        assert {"exponent", "exponent_low", "exponent_high", "coefficients"} <= set(series)


def test_a_file_that_cannot_be_replaced_is_an_error_that_leaves_nothing_behind(
    cpu_run: Path,
) -> None:
    (cpu_run / "fit.json").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*fit\.json"):
        write_reports(cpu_run)
    assert not list(cpu_run.glob(".*"))


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        write_reports(tmp_path)


def test_a_torn_last_line_is_reported_and_the_rest_is_read(cpu_run: Path) -> None:
    with (cpu_run / "records.jsonl").open("a") as file:
        file.write('{"workload_id": "prefill-ca')
    write_reports(cpu_run)
    assert "last line of records.jsonl was cut in half" in (cpu_run / "report.md").read_text()


def test_a_run_without_any_record_still_has_a_report() -> None:
    text = report({"facts": {"name": "a CPU"}, "conditions": {"device_kind": "cpu"}}, [])
    assert "0 workloads on a CPU (cpu): 0 measured." in text


def test_a_wrong_result_comes_first_in_red_and_its_time_is_used_nowhere(
    records: list[dict[str, Any]],
) -> None:
    records[3] |= {"status": "unsupported", "reason": "no such kernel"}
    records[9] |= {"status": "wrong_result", "reason": "differs by 0.5, the bound is 0.001"}
    failures = failures_table(records)
    assert [row["status"] for row in failures.rows] == ["wrong_result", "unsupported"]
    assert failures.alarming is not None
    assert [failures.alarming(row) for row in failures.rows] == [True, False]
    for table in (latency_table(records), memory_table(records)):
        assert len(table.rows) == len(records) - 2
    fits = fit_run({}, records)
    assert not any(records[9]["kv_len"] in one["n"] for one in fits["series"]
                   if one["name"] == "prefill flash" and one["quantity"] == "latency")  # fmt: skip
    assert "Wrong result: prefill flash 512. Its time is not used." in report({}, records)


def test_failures_of_one_reason_are_one_row(records: list[dict[str, Any]]) -> None:
    for record in records[:5]:
        record |= {"status": "unsupported", "reason": "no such kernel"}
    (row,) = failures_table(records).rows
    assert row["count"] == 5
    assert row["workloads"].endswith("and 2 more")


def test_a_noisy_row_is_seen_before_the_steady_ones(records: list[dict[str, Any]]) -> None:
    records[7]["flags"] = ["noisy"]
    names = [row["workload"] for row in latency_table(records).rows]
    assert names[0] == "prefill math 2k"
    assert names[1:3] == ["prefill eager 256", "prefill eager 512"]


def test_growth_along_a_count_is_shown_at_the_longest_length(
    records: list[dict[str, Any]],
) -> None:
    rows = [
        record | {"batch_size": batch_size, "median_s": batch_size * record["median_s"]}
        for record in records
        if record["backend"] == "math"
        for batch_size in (1, 2, 4)
    ]
    fits = fit_run({}, rows)
    assert sum(one["axis"] == "batch_size" for one in fits["series"]) == 8
    names = [row["series"] for row in growth_table(fits, "latency").rows]
    assert names == ["prefill math b1", "prefill math b2", "prefill math b4", "prefill math 2k"]


def test_every_title_of_a_synthetic_run_says_so(records: list[dict[str, Any]]) -> None:
    text = report(
        {"facts": {"memory_bytes": 2**34}, "conditions": {"device_kind": "synthetic"}}, records
    )
    titles = re.findall(r"^#+ .*$", text, re.MULTILINE)
    assert len(titles) > 10
    assert [title for title in titles if "(synthetic device)" not in title] == [
        "## Tables",
        "## Legend",
    ]


def test_names_from_elsewhere_cannot_break_the_report(records: list[dict[str, Any]]) -> None:
    evil = "<script>x</script> | a\n# b ```\x1b[31m"
    records[0] |= {"status": "crashed", "reason": evil}
    text = report(
        {"command": evil, "facts": {"name": evil, "libc": evil}, "notes": [evil]}, records
    )
    assert "<script>" not in text.replace("```sh\n<script>", "")
    assert "\x1b" not in text
    assert "\n# b" not in text
    assert text.count("```") == 2


def test_what_the_sentences_say_is_what_the_tables_hold(
    records: list[dict[str, Any]], cpu_run: Path
) -> None:
    header = json.loads((cpu_run / "run.json").read_text())
    text = report(header, records)
    medians_s = {
        record["backend"]: record["median_s"]
        for record in records
        if record["phase"] == "prefill" and record["kv_len"] == 2048
    }
    ratio = medians_s["math"] / medians_s["flash"]
    assert f"{ratio:.3g}× as fast as math" in text
    assert "Peak memory of prefill eager grows as n^2.00" in text
    assert "A token takes 4 KiB of KV cache, as theory says, in each of 4 caches." in text
    assert "grows in steps of 16 tokens" in text
    assert "The sweep noted: drift: a fixed copy took" in text


def test_backends_whose_intervals_meet_are_called_equally_fast(
    records: list[dict[str, Any]],
) -> None:
    for record in records:
        if record["backend"] == "math" and record["kv_len"] == 1024:
            eager = next(r for r in records if r["backend"] == "eager" and r["kv_len"] == 1024)
            record |= {"median_s": eager["median_s"] * 1.001}
            record |= {"median_low_s": eager["median_low_s"]}
    rows = [r for r in records if r["kv_len"] == 1024 and r["backend"] != "flash"]
    text = report({}, rows)
    assert "prefill 1k: eager and math are equally fast within their intervals." in text
    (row,) = fastest_table(rows).rows
    assert (row["fastest"], row["others"]) == ("eager, math (tie)", "")


def test_every_table_is_written_as_valid_markdown(records: list[dict[str, Any]]) -> None:
    made = tables({}, records, fit_run({}, records))
    assert {"latency", "memory", "kv", "growth_latency"} <= {table.name for table in made}
    for table in made:
        _assert_rows_have_all_cells(table)


def _assert_rows_have_all_cells(table: Table) -> None:
    lines = [line for line in markdown_text(table).splitlines() if line.startswith("|")]
    assert len(lines) == len(table.rows) + 2
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.columns) + 1}


def test_a_name_that_is_no_text_is_written_all_the_same(cpu_run: Path) -> None:
    """Of a folder whose name is no UTF-8, Python makes halves of surrogate pairs."""
    header = json.loads((cpu_run / "run.json").read_text())
    header["command"] = ["attnprof", "sweep", "-o", "b\udcff"]
    (cpu_run / "run.json").write_text(json.dumps(header))
    write_reports(cpu_run)
    assert "b\ufffd" in (cpu_run / "report.md").read_text(encoding="utf-8")


def test_workloads_that_differ_in_their_window_alone_have_names_of_their_own(
    records: list[dict[str, Any]],
) -> None:
    one = next(record for record in records if record["phase"] == "prefill")
    sliding = [one | {"variant": "sliding", "window_len": length} for length in (256, 1024)]
    names = [row["workload"] for row in latency_table(sliding).rows]
    assert ["window 256" in names[0], "window 1k" in names[1]] == [True, True]
    mixed = [row["workload"] for row in latency_table([one, sliding[0]]).rows]
    assert ["window" in mixed[0], "window 256" in mixed[1]] == [False, True]
