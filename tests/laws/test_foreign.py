"""Tables of measured kernels: what is read, split, left out and refused."""

from pathlib import Path

import numpy as np
import pytest

from attnprof.errors import UsageError
from attnprof.laws.foreign import read_table, read_tables
from attnprof.laws.groups import gpu_of, hardware_of, sort_tables
from tests.laws.tables import ATTENTION, GEMMS, attention_rows, gemm_rows, written


def test_a_gzipped_table_reads_as_a_plain_one(tmp_path: Path) -> None:
    rows = attention_rows("decode")
    plain = read_table(written(tmp_path / "a.csv", ATTENTION, rows))
    packed = read_table(written(tmp_path / "a.csv.gz", ATTENTION, rows))
    assert np.array_equal(plain.latency_s, packed.latency_s)
    assert plain.latency_s[0] == pytest.approx(float(str(rows[0][-1])) * 1e-6)
    assert plain.family.name == "attention"


def test_the_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    rows = [row[::-1] for row in gemm_rows()]
    table = read_table(written(tmp_path / "g.csv", GEMMS[::-1], rows))
    assert table.family.name == "gemm"
    assert table.counts["m_tokens"].min() == 1


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("latency_us", "-3", "line 4: latency_us is -3"),
        ("latency_us", "0", "line 4: latency_us is 0"),
        ("latency_us", "nan", "line 4: latency_us is 'nan'"),
        ("latency_us", "inf", "line 4: latency_us is 'inf'"),
        ("latency_us", "1e-300", "line 4: latency_us is 1e-300"),
        ("latency_us", "1e300", "line 4: latency_us is 1e300"),
        ("latency_us", "fast", "line 4: latency_us is 'fast'"),
        ("latency_us", "1_0", "line 4: latency_us is '1_0'"),
        ("batch", "1_0", "line 4: batch is '1_0'"),
        ("batch", "٢", "line 4: batch is '٢'"),
        ("batch", "", "line 4: batch is ''"),
        ("batch", "1e", "line 4: batch is '1e'"),
        ("batch", "1.5", "line 4: batch is 1.5"),
        ("batch", "0", "line 4: batch is 0"),
        ("kv_heads", "3", "line 4: q_heads is no multiple"),
        ("q_dtype", "bf17", "line 4: q_dtype is 'bf17'"),
        ("phase", "verify", "line 4: phase is 'verify'"),
        ("q_len_tokens", "2", "line 4: a decode of several queries"),
        ("kernel", "", "line 4: kernel is empty"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_file_and_line(
    tmp_path: Path, column: str, value: str, problem: str
) -> None:
    rows = attention_rows("decode")
    rows[2][ATTENTION.index(column)] = value
    path = written(tmp_path / "a.csv", ATTENTION, rows)
    with pytest.raises(UsageError) as error:
        read_table(path)
    assert error.value.problem.startswith(f"{path}, {problem}")
    assert error.value.fix


def test_a_column_of_another_unit_is_not_understood(tmp_path: Path) -> None:
    header = (*ATTENTION[:-1], "latency_ms")
    path = written(tmp_path / "a.csv", header, attention_rows("decode"))
    with pytest.raises(UsageError, match="unknown column 'latency_ms'") as error:
        read_table(path)
    assert "latency_us" in error.value.fix


def test_a_missing_column_and_a_torn_row_are_refused(tmp_path: Path) -> None:
    rows = attention_rows("decode")
    path = written(
        tmp_path / "a.csv", ATTENTION[:-2] + ATTENTION[-1:], [r[:-2] + r[-1:] for r in rows]
    )
    with pytest.raises(UsageError, match="no column 'window_tokens'"):
        read_table(path)
    torn = written(tmp_path / "b.csv", ATTENTION, [*rows[:5], rows[5][:4], *rows[6:]])
    with pytest.raises(UsageError, match="line 7: 4 values under 15 columns"):
        read_table(torn)
    damaged = tmp_path / "c.csv.gz"
    whole = written(tmp_path / "d.csv.gz", ATTENTION, rows).read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cut off or damaged"):
        read_table(damaged)


def test_a_folder_gives_its_tables_and_names_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    written(tmp_path / "in" / "a.csv.gz", ATTENTION, attention_rows("decode"))
    written(tmp_path / "in" / "g.csv", GEMMS, gemm_rows())
    (tmp_path / "in" / "manifest.csv").write_text("file,rows\na,1\n")
    tables, words = read_tables([tmp_path])
    assert sorted(table.family.name for table in tables) == ["attention", "gemm"]
    assert "manifest.csv" in words[0]
    with pytest.raises(UsageError, match="no table of kernels"):
        read_tables([_empty(tmp_path)])


def _empty(path: Path) -> Path:
    folder = path / "empty"
    folder.mkdir()
    return folder


def test_kernels_are_split_before_they_are_fitted(tmp_path: Path) -> None:
    rows = attention_rows("decode")
    for row in rows[:40]:
        row[ATTENTION.index("kv_dtype")] = "fp8"
    for row in rows[:4]:
        row[ATTENTION.index("q_heads")] = row[ATTENTION.index("kv_heads")]
    found = sort_tables([read_table(written(tmp_path / "a.csv", ATTENTION, rows))])
    keys = {(group.key["kv_dtype"], group.key["sharing"]) for group in found.groups}
    assert keys == {("fp8", "mha"), ("fp8", "gqa"), ("bf16", "gqa")}
    assert sum(len(group.latency_s) for group in found.groups) == len(rows)
    assert not found.left_out


def test_rows_are_left_out_on_grounds_that_are_said(tmp_path: Path) -> None:
    rows = attention_rows("prefill")
    one_token = [[*row[:8], 1, 1, *row[10:]] for row in rows[:3]]
    too_fast = [[*row[:-1], "0.001"] for row in rows[-2:]]
    path = written(tmp_path / "a.csv", ATTENTION, [*one_token, *rows[:-2], *too_fast])
    found = sort_tables([read_table(path)])
    assert found.left_out == {
        "prefill of one token: a decode by another name": 3,
        "faster than the GPU can compute": 2,
    }
    broken = [[*row[:-1], "0.001"] for row in rows]
    again = sort_tables([read_table(written(tmp_path / "b.csv", ATTENTION, broken))])
    assert not again.groups
    assert sum(again.left_out.values()) == len(rows)


def test_a_table_that_is_known_to_be_broken_is_left_out_with_what_is_wrong(tmp_path: Path) -> None:
    rows = attention_rows("prefill", "h200_sxm")
    for row in rows:
        row[ATTENTION.index("engine_version")] = "0.19.0"
    found = sort_tables([read_table(written(tmp_path / "a.csv", ATTENTION, rows))])
    assert not found.groups
    ((why, num),) = found.left_out.items()
    assert num == len(rows)
    assert why.startswith("known to be broken: h200_sxm vllm 0.19.0 prefill")


def test_gpus_are_known_by_the_names_that_tables_give_them() -> None:
    assert gpu_of("rtx_pro_6000_server").name == "rtx-pro-6000-server"
    assert gpu_of("a100_sxm").name == "a100-sxm-80gb"
    assert gpu_of("b300_sxm").name == "b300-sxm"
    with pytest.raises(UsageError, match="unknown GPU"):
        gpu_of("h99_sxm")
    h100 = gpu_of("h100_sxm")
    ratio = hardware_of(h100, "fp8").flops_per_s / hardware_of(h100, "bf16").flops_per_s
    assert ratio == pytest.approx(2, rel=1e-3)
    a100 = gpu_of("a100_sxm")
    assert hardware_of(a100, "fp8").flops_per_s == hardware_of(a100, "bf16").flops_per_s
