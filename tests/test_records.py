import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.errors import CannotMeasureError, UsageError
from attnprof.findings import STATUS_WORDS
from attnprof.imports.foreign_records import KEYS
from attnprof.record_values import KINDS, STATUSES
from attnprof.records import (
    RECORDS_FILE,
    RUN_FILE,
    VISITS_FILE,
    open_run_directory,
    read_lines,
    read_run,
    strict_json,
    workloads_of,
)
from attnprof.workload import Workload

KEPT = Path(__file__).parents[1] / "reports"
HEADER = {"device": "synthetic", "fingerprint": {"kind": "cpu"}, "plan": {"budget_s": 2.0},
          "seed": 0, "workloads": ["a", "b"],
          "conditions": {"device_kind": "cpu", "threads": 2, "ceilings": {}}}  # fmt: skip


PART = {"name": "attention", "wall_s": 0.1, "cpu_s": None, "share": 1.0, "peak_bytes": None}


def grown(kv_len: int, **changed: float) -> dict[str, Any]:
    """A point of a cache that grows."""
    return {
        "kv_len": kv_len, "wall_s": 0.1, "cpu_s": None, "useful_bytes": 64 * kv_len,
        "allocated_bytes": 64 * kv_len, "peak_bytes": None, **changed,
    }  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "one"
    with open_run_directory(path) as directory:
        directory.start(HEADER)
        directory.add_record({"workload_id": "a", "status": "ok"})
        directory.add_record({"workload_id": "b", "status": "ok"})
        directory.add_visit({"workload_id": "a", "round": 0, "status": "ok"})
    return path


def test_what_was_added_is_read_again(run_dir: Path) -> None:
    run = read_run(run_dir)
    assert run.header["format"] == 1
    assert run.header["workloads"] == ["a", "b"]
    assert [record["workload_id"] for record in run.records] == ["a", "b"]
    assert run.visits == ({"workload_id": "a", "round": 0, "status": "ok"},)
    assert run.torn == ()


def test_every_line_is_on_disk_before_the_next_step(tmp_path: Path) -> None:
    with open_run_directory(tmp_path / "run") as directory:
        directory.start(HEADER)
        directory.add_record({"workload_id": "a", "status": "ok"})
        assert read_run(tmp_path / "run").records == ({"workload_id": "a", "status": "ok"},)


@given(
    kept=st.lists(
        st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
        max_size=4,
    ),
    data=st.data(),
)
def test_a_file_cut_anywhere_gives_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, kept: list[dict[str, object]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "lines.jsonl"
    lines = [strict_json(one).encode() + b"\n" for one in kept]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    num_whole = sum(end <= cut for end in ends)
    found, torn_at = read_lines(path)
    assert found == json.loads(json.dumps(kept))[:num_whole]
    start = ends[num_whole - 1] if num_whole else 0
    assert torn_at == (None if cut == start else start)


def test_a_torn_last_line_is_said_and_cut_off(run_dir: Path) -> None:
    path = run_dir / RECORDS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    warnings: list[str] = []
    with open_run_directory(run_dir, resume=True, warn=warnings.append) as directory:
        assert directory.earlier is not None
        assert directory.earlier.records == ({"workload_id": "a", "status": "ok"},)
        directory.start(HEADER)
        directory.add_record({"workload_id": "b", "status": "ok"})
    assert path.read_bytes() == whole
    assert len(warnings) == 1
    assert "records.jsonl: its last line was cut in half" in warnings[0]


def test_a_torn_line_is_left_alone_by_readers(run_dir: Path) -> None:
    path = run_dir / RECORDS_FILE
    path.write_bytes(path.read_bytes() + b'{"workload_id":')
    before = path.read_bytes()
    assert read_run(run_dir).torn == (RECORDS_FILE,)
    assert path.read_bytes() == before


@pytest.mark.parametrize("broken", [b"{]\n", b"[1]\n", b"\n", b"\xff\n"])
def test_a_broken_line_elsewhere_is_an_error_that_names_file_and_line(
    run_dir: Path, broken: bytes
) -> None:
    path = run_dir / VISITS_FILE
    path.write_bytes(path.read_bytes() + broken + path.read_bytes())
    with (
        pytest.raises(UsageError, match=r"visits\.jsonl line 2 is not a JSON object"),
        open_run_directory(run_dir, resume=True),
    ):
        pass


def test_two_sweeps_into_one_folder_refuse_each_other(run_dir: Path) -> None:
    before = (run_dir / RECORDS_FILE).read_bytes()
    with open_run_directory(run_dir, resume=True):
        script = (
            "import sys, pathlib\n"
            "from attnprof.records import open_run_directory\n"
            "with open_run_directory(pathlib.Path(sys.argv[1]), resume=True): pass\n"
        )
        second = subprocess.run(
            [sys.executable, "-c", script, str(run_dir)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert second.returncode != 0
    assert "another sweep is writing" in second.stderr
    assert (run_dir / RECORDS_FILE).read_bytes() == before
    with open_run_directory(run_dir, resume=True):
        pass


def test_a_run_is_not_overwritten(run_dir: Path) -> None:
    with (
        pytest.raises(UsageError, match="holds a run already") as caught,
        open_run_directory(run_dir),
    ):
        pass
    assert "--resume" in caught.value.fix
    assert len(read_run(run_dir).records) == 2


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="holds no run to resume"),
        open_run_directory(tmp_path / "none", resume=True),
    ):
        pass
    assert not (tmp_path / "none").exists()


def test_a_run_that_did_not_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        open_run_directory(tmp_path / "runs" / "one"),
    ):
        raise RuntimeError("no such device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"device": "cpu"}, "device: synthetic then, cpu now"),
        ({"plan": {"budget_s": 3.0}}, "plan.budget_s: 2.0 then, 3.0 now"),
        ({"fingerprint": {"kind": "cuda"}}, "fingerprint.kind: cpu then, cuda now"),
        ({"workloads": ["a", "c"]}, "workloads: without c, with b besides"),
        ({"seed": 1}, "seed: 0 then, 1 now"),
    ],
)
def test_resuming_under_other_conditions_is_refused_naming_them(
    run_dir: Path, changed: dict[str, object], said: str
) -> None:
    before = (run_dir / RUN_FILE).read_bytes()
    with (
        open_run_directory(run_dir, resume=True) as directory,
        pytest.raises(CannotMeasureError) as caught,
    ):
        directory.start({**HEADER, **changed})
    assert said in caught.value.problem
    assert (run_dir / RUN_FILE).read_bytes() == before


def test_a_run_of_another_format_is_refused(run_dir: Path) -> None:
    (run_dir / RUN_FILE).write_text('{"format": 99}')
    with pytest.raises(UsageError, match="has format 99"):
        read_run(run_dir)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(UsageError, match="cannot write to"),
        open_run_directory(tmp_path / "file" / "run"),
    ):
        pass
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of POSIX")
def test_a_full_disk_leaves_every_earlier_line_intact_and_no_half_line(tmp_path: Path) -> None:
    """The limit on file size makes the last write a short one, as a full disk does."""
    script = (
        "import json, pathlib, resource, signal, sys\n"
        "from attnprof.records import open_run_directory\n"
        "with open_run_directory(pathlib.Path(sys.argv[1])) as directory:\n"
        "    directory.start(json.loads(sys.argv[2]))\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "    for i in range(100):\n"
        "        one = {'workload_id': str(i), 'status': 'ok', 'padding': 'x' * 100}\n"
        "        directory.add_record(one)\n"
    )
    run_dir = tmp_path / "run"
    filled = subprocess.run(
        [sys.executable, "-c", script, str(run_dir), json.dumps(HEADER)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "CannotMeasureError: cannot write" in filled.stderr
    assert "records.jsonl: File too large" in filled.stderr
    run = read_run(run_dir)
    assert run.torn == ()
    assert [record["workload_id"] for record in run.records] == [
        str(number) for number in range(len(run.records))
    ]
    assert len(run.records) > 3
    with open_run_directory(run_dir, resume=True) as directory:
        directory.start(HEADER)
        directory.add_record({"workload_id": "next", "status": "ok"})
    assert read_run(run_dir).records[-1] == {"workload_id": "next", "status": "ok"}


def test_a_header_that_cannot_be_written_leaves_the_old_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with open_run_directory(run_dir, resume=True) as directory:
        directory.start(HEADER)
        before = (run_dir / RUN_FILE).read_bytes()
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(CannotMeasureError, match="No space left on device"):
            directory.finish(finished="now")
    assert (run_dir / RUN_FILE).read_bytes() == before
    assert {path.name for path in run_dir.iterdir()} >= {RUN_FILE, RECORDS_FILE}
    assert not list(run_dir.glob("*.tmp"))


def test_a_first_header_that_finds_no_room_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(CannotMeasureError, match="No space left on device"),
        open_run_directory(tmp_path / "runs" / "one") as directory,
    ):
        directory.start(HEADER)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 300, "loop", "loop/one"])
def test_a_path_that_no_folder_can_have_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for resume in (False, True):
        with (
            pytest.raises(UsageError, match=r"cannot|holds no run"),
            open_run_directory(tmp_path / name, resume=resume),
        ):
            pass
    with pytest.raises(UsageError, match="cannot read"):
        read_run(tmp_path / name)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "workload_id is missing"),
        ({"workload_id": ["a"]}, r"workload_id is \['a'\], not text"),
        ({"workload_id": "a", "median_s": "fast"}, "median_s is 'fast', not a number from 0 up"),
        ({"workload_id": "a", "median_s": -0.1}, "median_s is -0.1, not a number from 0 up"),
        ({"workload_id": "a", "mfu": 1e308}, r"mfu is 1e\+308, not a number"),
        ({"workload_id": "a", "samples_s": [1, None]}, r"samples_s\[1\] is None, not a number"),
        ({"workload_id": "a", "sample_clean": [1.0]}, r"sample_clean\[0\] is 1.0, not true"),
        ({"workload_id": "a", "run_delay_s": 1.0}, "run_delay_s is 1.0, not a list"),
        (
            {"workload_id": "a", "run_delay_s": [0.0, -1.0]},
            r"run_delay_s\[1\] is -1.0, not a number",
        ),
        ({"workload_id": "a", "flags": "noisy"}, "flags is 'noisy', not a list"),
        ({"workload_id": "a", "kv_len": 1.5}, "kv_len is 1.5, not a whole number"),
        ({"workload_id": "a", "growth": [{"kv_len": 1}]}, r"growth\[0\].wall_s is missing"),
        ({"workload_id": "a", "growth": {}}, "growth is {}, not a list"),
        (
            {"workload_id": "a", "growth": [grown(8), grown(8)]},
            r"growth\[1\].kv_len is 8, not above",
        ),
        ({"workload_id": "a", "growth": [grown(0)]}, r"growth\[0\].kv_len is 0, less than 1"),
        (
            {"workload_id": "a", "growth": [grown(8), grown(9, allocated_bytes=0)]},
            r"growth\[1\].allocated_bytes is 0 of a cache that holds tokens",
        ),
        (
            {"workload_id": "a", "growth": [grown(8), grown(9, useful_bytes=0)]},
            r"growth\[1\].useful_bytes is 0 of a cache",
        ),
        (
            {"workload_id": "a", "growth": [grown(8, wall_s=1e-300)]},
            r"growth\[0\].wall_s is 1e-300, less than 1e-12",
        ),
        (
            {"workload_id": "a", "parts": [PART | {"cpu_s": 1e-300}]},
            r"parts\[0\].cpu_s is 1e-300, less than 1e-12",
        ),
        (
            {"workload_id": "a", "parts": [PART | {"peak_bytes": 2**61}]},
            r"parts\[0\].peak_bytes is",
        ),
    ],
)
def test_a_record_of_another_kind_is_named_by_its_line(
    run_dir: Path, record: dict[str, object], words: str
) -> None:
    with (run_dir / RECORDS_FILE).open("a") as file:
        file.write(json.dumps({"status": "ok"} | record) + "\n")
    with pytest.raises(UsageError, match=rf"records\.jsonl line 3: {words}"):
        read_run(run_dir)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format": 9}, "format is 9, this version reads 1"),
        ({"format": None}, "format is None"),
        ({"dtype": "float7"}, "dtype is 'float7': did you mean"),
        ({"kv_dtype": "float7"}, "kv_dtype is 'float7'"),
        ({"weight_dtype": "q9"}, "weight_dtype is 'q9'"),
        ({"phase": "prefil"}, "phase is 'prefil': did you mean 'prefill'"),
        ({"backend": "falsh"}, "backend is 'falsh': did you mean 'flash'"),
        ({"status": "fine"}, "status is 'fine'"),
        ({"variant": "casual"}, "variant is 'casual': did you mean 'causal'"),
        ({"clock": "sun"}, "clock is 'sun'"),
        ({"scope": "opp"}, "scope is 'opp'"),
        ({"mixer": "gnu"}, "mixer is 'gnu'"),
        ({"position": "ropy"}, "position is 'ropy'"),
        ({"kind": "conv"}, "kind is 'conv'"),
        ({"kv_len": 2**62}, r"kv_len is 4611686018427387904, more than 1\.09951e\+12"),
        ({"batch_size": 2**41}, "batch_size is 2199023255552, more than"),
        ({"batch_size": 2**21}, r"batch_size is 2097152, more than 1\.04858e\+06"),
        ({"num_experts": 2**41}, "num_experts is 2199023255552, more than"),
        ({"kv_len": 0}, "kv_len is 0, less than 1"),
        ({"kv_bytes": 2**61}, "kv_bytes is 2305843009213693952, more than"),
        ({"flops": 10**30}, "flops is 1000000000000000000000000000000, more than"),
        ({"median_s": 0.0}, "median_s is 0: nothing takes no time"),
        ({"median_s": 1e9}, r"median_s is 1000000000\.0, more than 1e\+06"),
        ({"samples_s": [0.1, 1e9]}, r"samples_s has 1e\+09, more than 1e\+06"),
        ({"samples_s": [0.1, -0.1]}, r"samples_s\[1\] is -0.1, not a number from 0 up"),
        ({"mfu": 1e9}, r"mfu is 1000000000\.0, more than 10000"),
        ({"num_samples": 7, "samples_s": [0.1]}, "num_samples is 7, samples_s has 1"),
        ({"median_low_s": 2.0, "median_high_s": 1.0}, "median_low_s is 2, above median_high_s, 1"),
        ({"median_s": 1e-300}, "median_s is 1e-300, less than 1e-12"),
        ({"samples_s": [0.1, 1e-300]}, "samples_s has 1e-300, less than 1e-12"),
        ({"achieved_flops_per_s": 5e-324}, "achieved_flops_per_s is 5e-324, less than 1e-06"),
        ({"scope": "block"}, "ffn_dim is missing"),
        ({"ffn": "moe", "num_experts": 8}, "num_active_experts is missing"),
        ({"mla": "absorbed", "kv_lora_rank": 64}, "rope_head_dim is missing"),
        ({"dtype": None}, "dtype is missing"),
        ({"phase": None}, "phase is None, not text"),
        ({"q_len": 512}, "q_len is 512 of a prefill of 1024 tokens"),
        ({"phase": "decode"}, "q_len is 1024 of a decode"),
        ({"num_kv_heads": 3}, "num_q_heads is 8, no multiple of num_kv_heads 3"),
        ({"workload_id": "a"}, "a is in line 1 already"),
        ({"kind": "gemm", "m_tokens": 1, "n_out": 1, "device": "h100"}, "k_in is missing"),
        ({"kind": "all-reduce", "num_ranks": 1}, "num_ranks is 1, less than 2"),
        ({"kind": "attention", "variant": "causal"}, "median_s is missing"),
    ],
)
def test_a_record_that_no_workload_can_have_is_named_by_its_line(
    run_dir: Path, changed: dict[str, object], words: str
) -> None:
    good = {
        "format": 1, "workload_id": "c", "status": "ok", "phase": "prefill", "backend": "flash",
        "dtype": "float32", "batch_size": 1, "q_len": 1024, "kv_len": 1024, "num_q_heads": 8,
        "num_kv_heads": 8, "head_dim": 64, "device": "cpu", "variant": "causal",
    }  # fmt: skip
    path = run_dir / RECORDS_FILE
    before = path.read_text()
    path.write_text(f"{before}{json.dumps(good)}\n")
    assert read_run(run_dir).records[-1] == good
    path.write_text(f"{before}{json.dumps(good | changed)}\n")
    with pytest.raises(UsageError, match=rf"records\.jsonl line 3: {words}"):
        read_run(run_dir)


@pytest.mark.parametrize("run_file", sorted(KEPT.glob("*/run.json")), ids=lambda p: p.parent.name)
def test_runs_of_earlier_versions_are_read(run_file: Path) -> None:
    assert len(read_run(run_file.parent).records) > 10


def test_statuses_and_kinds_are_those_that_are_written() -> None:
    assert set(STATUSES) == {"ok", *STATUS_WORDS}
    assert set(KINDS) == set(KEYS)


@pytest.mark.parametrize("last", [b'{"workload_id":"c"\n', b"[]\n", b"\n"])
def test_a_last_line_that_is_whole_and_broken_was_not_cut(run_dir: Path, last: bytes) -> None:
    path = run_dir / RECORDS_FILE
    path.write_bytes(path.read_bytes() + last)
    with pytest.raises(UsageError, match=r"records\.jsonl line 3 is not a JSON object"):
        read_run(run_dir)


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("written", ["NaN", "-Infinity"])
def test_a_sample_that_is_no_number_is_said(run_dir: Path, written: str, place: int) -> None:
    path = run_dir / RECORDS_FILE
    lines = path.read_text().splitlines(keepends=True)
    line = f'{{"workload_id":"c","status":"ok","samples_s":[0.1,{written}]}}\n'
    path.write_text("".join([*lines[:place], line, *lines[place:]]))
    said = rf"records\.jsonl line {place + 1} holds NaN or Infinity"
    with pytest.raises(UsageError, match=said):
        read_run(run_dir)


@pytest.mark.parametrize("written", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(run_dir: Path, written: str) -> None:
    path = run_dir / RECORDS_FILE
    path.write_text(f'{{"workload_id":"a","status":"ok","median_s":{written}}}\n{path.read_text()}')
    with pytest.raises(UsageError, match=r"records\.jsonl line 1"):
        read_run(run_dir)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"conditions": 3}, "conditions is 3, not keys and values"),
        ({"conditions": {"device_kind": "cpu"}}, "conditions.* is missing"),
        ({"workloads": [["a"]]}, r"workloads\[0\] is \['a'\], not text"),
        ({"grid": True}, "grid is True, not keys and values"),
        ({"grid": {"workloads": [{"q_len": "8"}]}}, r"grid.workloads\[0\]"),
        ({"notes": "none"}, "notes is 'none', not a list"),
        ({"facts": {"l3_bytes": "32 MiB"}}, "facts.l3_bytes is '32 MiB', not a whole number"),
        ({"facts": {"l3_bytes": 2**62}}, "l3_bytes is 4611686018427387904, more than"),
        ({"facts": {"num_sms": 0}}, "num_sms is 0, less than 1"),
        (
            {"conditions": HEADER["conditions"] | {"threads": 2**62}},  # type: ignore[operator]
            "threads is 4611686018427387904, more than",
        ),
        (
            {
                "conditions": {
                    "device_kind": "cpu",
                    "threads": 1,
                    "ceilings": {"matmul": {"float32": {"flops_per_s": 1e30}}},
                }
            },
            r"flops_per_s is 1e\+30, more than",
        ),
    ],
)
def test_a_header_of_another_kind_says_where(
    run_dir: Path, changed: dict[str, object], words: str
) -> None:
    (run_dir / RUN_FILE).write_text(json.dumps({"format": 1, **HEADER, **changed}))
    with pytest.raises(UsageError, match=rf"run\.json: {words}"):
        read_run(run_dir)


@pytest.mark.parametrize("visit", [{}, {"a": 1}, {"workload_id": 5, "round": 1}])
def test_a_visit_of_nothing_is_named_by_its_line(run_dir: Path, visit: dict[str, Any]) -> None:
    with (run_dir / VISITS_FILE).open("a") as file:
        file.write(json.dumps(visit) + "\n")
    with pytest.raises(UsageError, match=r"visits\.jsonl line 2: (workload_id|it|round) is"):
        read_run(run_dir)


def test_a_grid_of_what_is_no_workload_names_its_file_and_place(run_dir: Path) -> None:
    good = Workload(backend="flash", q_len=8, kv_len=8).to_json()
    kept = {"grid": {"workloads": [good, good | {"phase": "zzz"}]}}
    with pytest.raises(
        UsageError, match=r"one/run\.json: grid\.workloads\[1\]: unknown phase 'zzz'"
    ):
        workloads_of(run_dir, kept)
    assert workloads_of(run_dir, {}) == ()


def test_times_and_rates_of_a_header_have_a_floor(run_dir: Path) -> None:
    header = json.loads((run_dir / RUN_FILE).read_text())
    header["conditions"]["ceilings"] = {"matmul": {"float32": {"flops_per_s": 1e-300}}}
    (run_dir / RUN_FILE).write_text(json.dumps(header))
    with pytest.raises(UsageError, match=r"run\.json: flops_per_s is 1e-300, less than 1e-06"):
        read_run(run_dir)
