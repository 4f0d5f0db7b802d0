"""What `report` and `estimate` draw: files, links that render on GitHub, charts, refusals."""

import re
import shutil
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.estimate_figures import MOST_ESTIMATES, documents_by_context
from attnprof.planning import EstimateFlags
from attnprof.showing import Wanted, show_run
from tests.command import attnprof
from tests.figures.run import GOLDEN, REPORTS

pytest.importorskip("matplotlib")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name in ("run.json", "records.jsonl"):
        shutil.copy(GOLDEN / name, tmp_path)
    return tmp_path


def test_the_report_links_each_figure_in_both_themes_and_every_file_is_there(run_dir: Path) -> None:
    shown = show_run(run_dir, Wanted(figures=True))
    text = (run_dir / "report.md").read_text(encoding="utf-8")
    dark = re.findall(r'<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">', text)
    light = re.findall(r'<img alt="[^"]{60,}" src="([^"]+)">', text)
    assert len(dark) == len(light) == 6
    written = {path.relative_to(run_dir).as_posix() for path in shown.written}
    assert written == {*dark, *light}
    assert all((run_dir / name).is_file() for name in written)
    assert text.index("<picture>") < text.index("## ")
    for block in re.findall(r"<picture>.*?</picture>", text, re.DOTALL):
        assert "\n\n" not in block  # an empty line would end the HTML on GitHub


def test_png_is_written_beside_svg_where_it_is_asked_for(run_dir: Path) -> None:
    shown = show_run(run_dir, Wanted(figures=True, png=True))
    suffixes = [path.suffix for path in shown.written]
    assert suffixes.count(".png") == suffixes.count(".svg") == 12


def test_a_report_that_is_written_again_keeps_its_figures(run_dir: Path) -> None:
    show_run(run_dir, Wanted(figures=True))
    drawn = (run_dir / "report.md").read_bytes()
    for again in (Wanted(), Wanted(page=True)):
        show_run(run_dir, again)
        assert (run_dir / "report.md").read_bytes() == drawn


def test_figures_of_fewer_measurements_than_there_are_now_are_left_out(run_dir: Path) -> None:
    show_run(run_dir, Wanted(figures=True))
    lines = (run_dir / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"math"' not in line]
    assert len(kept) < len(lines)
    (run_dir / "records.jsonl").write_text("".join(kept), encoding="utf-8")
    show_run(run_dir, Wanted())
    text = (run_dir / "report.md").read_text(encoding="utf-8")
    assert "latency-light.svg" not in text  # shows a kernel that is in the run no more
    assert "kv-growth-light.svg" in text  # and this still says what is


@pytest.mark.parametrize("command", ["compare", "history"])
def test_a_comparison_and_a_history_are_drawn_beside_their_documents(
    tmp_path: Path, command: str
) -> None:
    both = REPORTS / "compare"
    asked = [both / "base", both / "new"] if command == "compare" else [both]
    path = tmp_path / "drawn.svg"
    done = attnprof(
        command, *(str(one) for one in asked), "--figure", str(path), "--dark", "--format", "json"
    )
    assert done.stdout.startswith('{\n  "format": 1')
    assert f"wrote {path}\n" in done.stderr
    text = path.read_text(encoding="utf-8")
    assert "#0d1117" in text
    assert ("New over base [ratio]" if command == "compare" else "Of the first level [%]") in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--figure", "a.pdf"], "a.pdf is neither .svg nor .png"),
        (["--figure", "no/such/a.svg"], "there is no folder no/such"),
        (["--dark"], "--dark goes with --figure"),
    ],
)
@pytest.mark.parametrize(
    "command", [["compare", "x", "y"], ["history", "x"], ["gate"], ["estimate", "x", "--gpu", "y"]]
)
def test_what_cannot_be_drawn_is_refused_before_any_work(
    command: list[str], flags: list[str], words: str
) -> None:
    done = attnprof(*command, *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_history_of_single_runs_says_that_there_is_nothing_to_draw(tmp_path: Path) -> None:
    shutil.copytree(REPORTS / "compare" / "base", tmp_path / "runs" / "one")
    path = tmp_path / "drawn.svg"
    done = attnprof("history", str(tmp_path / "runs"), "--figure", str(path))
    assert done.returncode == 0, done.stderr
    assert f"there is nothing to draw, so {path} is not written" in done.stderr
    assert not path.exists()
    assert "History of 1 run in" in done.stdout


def test_the_command_writes_a_page_and_says_where_it_lies(run_dir: Path) -> None:
    done = attnprof("report", str(run_dir), "--html", "--plot", columns=80)
    assert done.returncode == 0, done.stderr
    assert f"wrote {run_dir / 'report.html'}" in done.stderr
    assert done.stdout.startswith("Time of a call against sequence length [tokens]")
    assert "Time of a call, by median" in done.stdout
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert f"attnprof report {run_dir} --html" in page


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--plot", "--format", "json"], "--plot is not for --format json"),
        (["--png"], "--png goes with --figures"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    run_dir: Path, flags: list[str], words: str
) -> None:
    done = attnprof("report", str(run_dir), *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("flag", ["--figures", "--html", "--plot"])
def test_of_times_that_others_measured_there_are_no_figures(tmp_path: Path, flag: str) -> None:
    source = Path(__file__).parent / "data" / "imports" / "llama_bench.json"
    done = attnprof("import", str(source), "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    done = attnprof("report", str(tmp_path / "run"), flag)
    assert done.returncode == 2
    assert "others measured" in done.stderr


def test_watching_a_run_that_nobody_writes_shows_its_tables(run_dir: Path) -> None:
    done = attnprof("report", str(run_dir), "--watch")
    assert done.returncode == 0
    assert "no sweep is writing it, and it is not done" in done.stderr or "done" in done.stderr
    assert "Time of a call, by median" in done.stdout


@pytest.mark.parametrize("more", [[], ["--dark"], ["--gpu", "h100-sxm,l40s"]])
def test_an_estimate_is_drawn_beside_its_document(tmp_path: Path, more: list[str]) -> None:
    path = tmp_path / "estimate.svg"
    done = attnprof(
        "estimate", "gpt2", "--gpu", "h100-sxm", *more, "--figure", str(path), "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('{\n  "format": 1')
    assert done.stderr.endswith(f"wrote {path}\n")
    text = path.read_text(encoding="utf-8")
    assert ("Users at once" if "h100-sxm,l40s" in more else "tokens/s") in text
    assert ("#0d1117" in text) == ("--dark" in more)


def test_contexts_double_up_to_the_models_own_and_each_is_full() -> None:
    found = documents_by_context(EstimateFlags(model="gpt2", gpu="h100-sxm,l4"))
    lengths = [one["settings"]["max_model_len"] for one in found]
    assert lengths == [1024, 1024]
    found = documents_by_context(
        EstimateFlags(model="qwen3-8b", gpu="l4", engine="vllm,sglang", max_model_len="2k,4k")
    )
    assert [one["settings"]["users_len"] for one in found] == [2048, 4096] * 2


def test_a_grid_too_large_to_draw_says_so() -> None:
    many = ",".join(f"0.{n}" for n in range(10, 99))
    flags = EstimateFlags(model="llama-3.1-8b", gpu="l4", gpu_memory_utilization=many)
    with pytest.raises(UsageError, match=r"estimates would have to be made") as raised:
        documents_by_context(flags)
    assert str(MOST_ESTIMATES) in raised.value.fix


def test_a_name_that_no_folder_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot read"):
        show_run(Path("x" * 5000), Wanted())
