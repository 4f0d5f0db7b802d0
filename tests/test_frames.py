"""The results of a run as typed columns: of Parquet and of pandas alike, and as in the CSV."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")

from attnprof.errors import CannotMeasureError, UsageError  # noqa: E402
from attnprof.frames import column_type, read_frame, write_parquet  # noqa: E402
from attnprof.report import results_csv  # noqa: E402
from attnprof.result_keys import RESULT_KEYS  # noqa: E402
from tests.command import attnprof  # noqa: E402

REPORTS = Path(__file__).parent.parent / "reports"
RUNS = sorted(path.parent for path in REPORTS.glob("*/run.json"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPORTS / "quick", tmp_path / "quick"))


def as_in_csv(value: object, kind: str) -> object:
    """A text of the CSV as its column's type has it."""
    if value == "":
        return None
    if kind == "bool":
        return value == "true"
    return {"int64": int, "double": float, "string": str}[kind](value)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_a_frame_holds_what_the_csv_holds(path: Path) -> None:
    frame = read_frame(path)
    assert tuple(frame.columns) == RESULT_KEYS
    with (path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(frame) == len(rows)
    for key in RESULT_KEYS:
        want = [as_in_csv(row[key], column_type(key)) for row in rows]
        have = [None if pd.isna(value) or value == "" else value for value in frame[key]]
        assert have == want, key  # no flags are an empty text, which the CSV has no word for


def test_columns_have_the_types_that_their_names_say(run: Path) -> None:
    kinds = read_frame(run).dtypes.astype(str)
    assert kinds["kv_len"] == kinds["num_q_heads"] == kinds["kv_bytes"] == "Int64"
    assert kinds["median_s"] == kinds["mfu"] == "float64"
    assert kinds["sink_logits"] == "boolean"
    assert kinds["backend"] == "string"


def test_an_unknown_value_is_missing_and_never_zero(run: Path) -> None:
    frame = read_frame(run)
    prefill = frame[frame["phase"] == "prefill"]
    assert prefill["window_len"].isna().all()
    assert prefill["ttft_s"].isna().all()


def test_parquet_holds_the_frame_and_says_what_was_run(run: Path) -> None:
    path = write_parquet(run)
    assert path == run / "results.parquet"
    assert [one.name for one in run.iterdir() if one.name.endswith(".tmp")] == []
    table = pq.read_table(path)
    frame = read_frame(run)
    assert table.column_names == list(frame.columns)
    for key in table.column_names:
        have = table.column(key).to_pylist()
        assert have == [None if pd.isna(value) else value for value in frame[key]], key
    about = json.loads(table.schema.metadata[b"attnprof"])
    assert about["command"] == frame.attrs["command"]
    assert about["device"] == frame.attrs["device"]


def test_report_writes_parquet_on_request_and_keeps_the_csv(run: Path) -> None:
    done = attnprof("report", str(run), "--parquet", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"wrote {run / 'results.parquet'}\n"
    assert (run / "results.csv").read_text(encoding="utf-8") == done.stdout
    assert pd.read_parquet(run / "results.parquet").shape[0] == len(
        list(csv.reader(io.StringIO(done.stdout)))
    ) - 1  # fmt: skip


def test_without_the_libraries_the_error_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CannotMeasureError, match=r"\.\[pandas\]"):
        read_frame(run)
    with pytest.raises(CannotMeasureError, match=r"\.\[parquet\]"):
        write_parquet(run)


def test_a_folder_that_holds_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        read_frame(tmp_path)


def test_what_was_imported_is_a_frame_too(tmp_path: Path) -> None:
    source = tmp_path / "bench.json"
    source.write_text(
        json.dumps(
            [
                {
                    "model_type": "qwen2 0.5B Q4_0", "model_size": 352969728,
                    "model_n_params": 494032768, "n_batch": 2048, "n_ubatch": 512,
                    "type_k": "f16", "type_v": "f16", "n_gpu_layers": 99, "n_prompt": 512,
                    "n_gen": 0, "n_depth": 0, "avg_ns": 100_000_000, "stddev_ns": 1_000_000,
                    "avg_ts": 5120.0, "stddev_ts": 50.0, "samples_ns": [99_000_000, 101_000_000],
                    "build_commit": "abc", "build_number": 1, "gpu_info": "NVIDIA L4",
                    "cpu_info": "AMD EPYC", "backends": "CUDA", "model_filename": "m.gguf",
                }
            ]
        ),
        encoding="utf-8",
    )  # fmt: skip
    done = attnprof("import", str(source), "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    frame = read_frame(tmp_path / "run")
    assert frame["median_s"].notna().all()
    assert str(frame["num_params"].dtype) == "Int64"
    pq.read_table(write_parquet(tmp_path / "run"))


def test_every_column_of_the_csv_has_a_type() -> None:
    assert {column_type(key) for key in RESULT_KEYS} == {"int64", "double", "bool", "string"}
    assert results_csv([]).strip() == ",".join(RESULT_KEYS)


def test_half_of_a_surrogate_pair_in_a_text_stops_neither_frame_nor_parquet(tmp_path: Path) -> None:
    run = Path(shutil.copytree(REPORTS / "quick", tmp_path / "run"))
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    first = json.loads(lines[0]) | {"reason": "no \ud800 text"}
    (run / "records.jsonl").write_text("".join([json.dumps(first) + "\n", *lines[1:]]))
    assert "no \ufffd text" in {*read_frame(run)["reason"].dropna()}
    assert write_parquet(run).exists()
