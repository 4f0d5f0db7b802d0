"""The command line as a user meets it: what it prints, where, and the exit code."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof import cli
from attnprof.errors import CannotMeasureError, UsageError
from tests.command import attnprof

HEAVY = {"torch", "pandas", "scipy", "numpy", "matplotlib", "pyarrow"}


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("sweep", "--help")])
def test_help_and_version_load_nothing_heavy(args: tuple[str, ...]) -> None:
    code = (
        "import sys, json\n"
        f"sys.argv = ['attnprof', *{list(args)!r}]\n"
        "from attnprof.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert not HEAVY & {name.split(".")[0] for name in json.loads(done.stderr)}


def test_the_help_of_a_sweep_names_every_axis_in_80_columns() -> None:
    from attnprof.axes import AXES, AXIS_GROUPS

    lines = attnprof("sweep", "--help", columns=80).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    end = " ".join(
        " ".join(lines[lines.index(next(one for one in lines if "Axes (" in one)) :]).split()
    )
    for group, axes in AXIS_GROUPS.items():
        assert f"{group} {', '.join(axis.name for axis in axes)}" in end
    assert sum(map(len, AXIS_GROUPS.values())) == len(AXES)


@pytest.mark.parametrize("kind", ["axes", "variants", "positions", "caches", "backends"])
def test_what_can_be_chosen_is_readable_in_80_columns(kind: str) -> None:
    done = attnprof("show", kind, columns=80)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_an_unknown_command_is_a_usage_error_with_the_nearest_name() -> None:
    done = attnprof("swep")
    assert done.returncode == 2
    assert "sweep" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("a is 3", "write 4"), 2, "error a is 3\n  fix write 4\n"),
        (CannotMeasureError("no such device"), 3, "error no such device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_expected_failure_says_what_and_what_to_do(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code
    assert capsys.readouterr() == ("", words)


def test_a_bug_keeps_its_traceback_in_a_file_that_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == cli.EXIT_BUG
    said = capsys.readouterr().err
    assert "bug of attnprof: ZeroDivisionError: oh" in said
    kept = Path(said.split("report it with ")[1].strip())
    assert "Traceback" in kept.read_text()
    assert "Traceback" not in said


SYNTHETIC = ("--device", "synthetic?noise=0.01", "--quiet")


def test_a_sweep_measures_fits_and_reports(folder: Path) -> None:
    done = attnprof("sweep", *SYNTHETIC, "-o", "run")
    assert done.returncode == 0, done.stderr
    for words in ("Time of a call", "Growth of latency", "KV cache", "(synthetic device)"):
        assert words in done.stdout
    assert "report in run/report.md" in done.stderr
    made = {path.name for path in (folder / "run").iterdir()}
    assert {"run.json", "records.jsonl", "results.csv", "fit.json", "report.md"} <= made
    again = attnprof("report", "run")
    assert again.stdout == done.stdout


def test_every_shipped_sweep_plans_and_names_what_will_not_run(folder: Path) -> None:
    listed = attnprof("show", "sweeps", "--format", "json")
    names = [row["name"] for row in json.loads(listed.stdout)["tables"][0]["rows"]]
    assert {"quick", "context", "kv-growth", "heads", "dtypes", "layers", "full"} <= set(names)
    for name in names:
        done = attnprof("sweep", name, "--device", "synthetic", "--dry-run", "--format", "json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["tables"][0]["rows"]
        assert rows
        assert all(row["flops"] > 0 and row["held_bytes"] > 0 for row in rows)
    assert not list(folder.glob("attnprof-runs/*"))


def test_typed_axes_make_the_grid(folder: Path) -> None:
    done = attnprof(
        "sweep", *SYNTHETIC, "--dry-run", "--format", "csv", "--seq-len", "1k..4k*2",
        "--phase", "prefill", "--backend", "flash,math", "--axis", "heads=4", "--variant", "causal",
    )  # fmt: skip
    ids = [row["workload_id"] for row in csv.DictReader(done.stdout.splitlines())]
    assert sorted(ids) == sorted(
        f"prefill-causal-{backend}-float32-b1-s{n}-h4-d64-l1"
        for backend in ("flash", "math")
        for n in (1024, 2048, 4096)
    )


def test_a_sweep_of_ones_own_is_a_file(folder: Path) -> None:
    (folder / "mine.yaml").write_text("groups: {a: {seq_len: '64..256x2', backend: eager}}\n")
    done = attnprof("sweep", "mine.yaml", *SYNTHETIC, "-o", "run", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_json_is_one_document_and_nothing_else(folder: Path) -> None:
    done = attnprof("sweep", "quick", *SYNTHETIC, "-o", "run", "--format", "json")
    document = json.loads(done.stdout)
    assert document["format"] == 1


def test_an_interrupted_budget_resumes_to_the_same_workloads(folder: Path) -> None:
    first = attnprof("sweep", *SYNTHETIC, "-o", "run", "--budget", "100ms")
    assert "left: attnprof sweep --resume" in first.stderr
    second = attnprof("sweep", *SYNTHETIC, "-o", "run", "--resume")
    assert second.returncode == 0, second.stderr
    ids = [
        json.loads(line)["workload_id"]
        for line in (folder / "run" / "records.jsonl").read_text().splitlines()
    ]
    planned = json.loads((folder / "run" / "run.json").read_text())["workloads"]
    assert sorted(ids) == sorted(planned)


def test_resume_without_a_folder_takes_the_newest_unfinished_run(folder: Path) -> None:
    assert attnprof("sweep", *SYNTHETIC, "--budget", "50ms").returncode in (0, 3)
    done = attnprof("sweep", *SYNTHETIC, "--resume")
    assert done.returncode == 0, done.stderr
    nothing = attnprof("sweep", *SYNTHETIC, "--resume")
    assert nothing.returncode == 2
    assert "no unfinished run" in nothing.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("sweep", "quik"), 2, "did you mean 'quick'?"),
        (("sweep", "absent.yaml"), 2, "cannot read absent.yaml"),
        (("sweep", "--backend", "falsh"), 2, "did you mean 'flash'?"),
        (("sweep", "--axis", "seqlen=4k"), 2, "did you mean 'seq_len'?"),
        (("sweep", "--axis", "seq_len"), 2, "has no '='"),
        (("sweep", "--axis", "seq_len=1k", "--axis", "n=2k"), 2, "given twice"),
        (("sweep", ""), 2, "unknown sweep ''"),
        (("sweep", "--device", "cpu:1"), 2, "cpu takes no ':1'"),
        (("sweep", "--threads", "100000"), 2, "threads"),
        (("sweep", "--seq-len", "0"), 2, "out of range"),
        (("sweep", "--seq-len", "-4"), 2, "'-4' is not a count"),
        (("sweep", "quick", "--heads", "6", "--kv-heads", "4"), 2, "is not a multiple"),
        (("sweep", "--heads", "4"), 2, "give seq_len or kv_len"),
        (("sweep", "--seq-len", "1..1000000000+1"), 2, "take a larger step"),
        (("sweep", "--device", "cpuu"), 2, "did you mean 'cpu'?"),
        (("sweep", "--device", "synthetic?nois=1"), 2, "did you mean 'noise'?"),
        (("sweep", "--allocator", "jemalloc"), 2, "unknown allocator"),
        (("sweep", "--budget", "5 parsec"), 2, "is not a time"),
        (("sweep", "--timeout", "0"), 2, "--timeout 0 is no time"),
        (("sweep", "--output", "/proc/nothing/run"), 2, "cannot write"),
        (("sweep", "--resume", "--output", "none"), 2, "none holds no run"),
        (("sweep", "--interval", "7"), 2, "interval"),
        (("sweep", "--threads", "0"), 2, "threads"),
        (("report", "nowhere"), 2, "holds no run"),
        (("show", "backnds"), 2, "did you mean 'backends'?"),
        (("show",), 2, "write attnprof show KIND, one of: models, gpus"),
        (("show", "h100-sxm"), 2, "write attnprof show gpus h100-sxm"),
        (("show", "sliding"), 2, "write attnprof show variants sliding"),
        (("show", "variant", "slidng"), 2, "did you mean 'sliding'?"),
        (("show", "variant", "sliding", "--window-len", "none"), 2, "is not a count"),
        (("show", "axis", "windw"), 2, "no axis 'windw'"),
        (("show", "backends", "falsh"), 2, "did you mean 'flash'?"),
        (("show", "sweeps", "quik"), 2, "did you mean 'quick'?"),
    ],
)
def test_a_request_without_sense_is_one_error(
    args: tuple[str, ...], code: int, words: str, folder: Path
) -> None:
    if args[0] == "sweep" and "--device" not in args:
        args = (*args, *SYNTHETIC)
    done = attnprof(*args)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("groups: {a: {seq_len: 64, colour: red}}", "unknown axis 'colour'"),
        ("groups: {a: {seq_len: [64, {}]}}", "axis seq_len got {}"),
        ("group: {}", "did you mean 'groups'?"),
        ("groups: [1, 2]", "groups is [1, 2]"),
        ("groups: {a: {seq_len: '1..2000+1', batch: '1..2000+1', heads: '1..2000+1'}}", "8,0"),
        ("groups: {a: [", "is not YAML"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("", "holds no mapping"),
        ("groups: {a: {seq_len: 64, heads: 0}}", "out of range"),
        ("groups: {a: {seq_len: 64, dtype: int3}}", "unknown dtype"),
    ],
)
def test_a_sweep_file_without_sense_is_one_error(text: str, words: str, folder: Path) -> None:
    (folder / "mine.yaml").write_text(text)
    done = attnprof("sweep", "mine.yaml", *SYNTHETIC)
    assert done.returncode == 2
    assert words in done.stderr
    assert [path.name for path in folder.iterdir()] == ["mine.yaml"]


def test_a_run_is_not_overwritten(folder: Path) -> None:
    attnprof("sweep", *SYNTHETIC, "--seq-len", "64", "-o", "run")
    before = (folder / "run" / "records.jsonl").read_bytes()
    done = attnprof("sweep", *SYNTHETIC, "--seq-len", "64", "-o", "run")
    assert done.returncode == 2
    assert "add --resume" in done.stderr
    assert (folder / "run" / "records.jsonl").read_bytes() == before


def test_a_sweep_that_measured_nothing_is_told_from_one_that_did(folder: Path) -> None:
    done = attnprof("sweep", "--device", "synthetic?unsupported=*", "-q", "--seq-len", "64")
    assert done.returncode == 3
    assert "Not measured" in done.stdout


def test_without_torch_a_sweep_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys, importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a)\n"
        "sys.argv = ['attnprof', 'sweep']\n"
        "from attnprof.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 2
    assert "pip install '.[torch]' in the checkout of attnprof" in done.stderr


def test_whether_anybody_reads_its_words_changes_nothing(folder: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m attnprof sweep --device synthetic -o run 2>&-"],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0
    assert (folder / "run" / "report.md").is_file()


@pytest.mark.torch
def test_a_device_that_is_not_there_is_named(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = attnprof("sweep", "--device", "cuda", "-q")
    assert done.returncode == 3
    assert "cuda" in done.stderr
    assert not [path for path in folder.rglob("*.json*") if path.is_file()]


@pytest.mark.torch
def test_a_real_sweep_on_this_cpu(folder: Path) -> None:
    pytest.importorskip("torch")
    done = attnprof(
        "sweep", "--device", "cpu", "-q", "-o", "run", "--seq-len", "64,128", "--interval", "0.5",
        "--phase", "prefill,decode", "--backend", "eager,flash", "--layers", "2", "--kv-heads", "2",
        "--variant", "causal",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [
        json.loads(line) for line in (folder / "run" / "records.jsonl").read_text().splitlines()
    ]
    assert {record["status"] for record in records} == {"ok"}
    assert {record["phase"] for record in records} == {"prefill", "decode"}
    assert all(record["check"]["passed"] for record in records)
    assert all(record["kv_bytes"] == record["theory_kv_bytes"] for record in records)


@pytest.mark.torch
def test_the_doctor_says_what_this_machine_can_tell_apart(folder: Path) -> None:
    pytest.importorskip("torch")
    done = attnprof("doctor", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "Self-test: 6 launches" in done.stdout
    assert "CPU pressure" in done.stdout
