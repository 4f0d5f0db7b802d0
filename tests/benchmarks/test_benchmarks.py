"""Each theme finds what its rows need, on a tiny case: words and counts, no seconds."""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from attnprof.records import read_run
from attnprof.session import Asked
from tests.benchmarks import __main__ as command
from tests.benchmarks import (
    caches,
    comparing,
    estimating,
    fitting,
    growth,
    memory,
    reporting,
    running,
    start_up,
)
from tests.benchmarks.number import Number, Theme
from tests.benchmarks.processes import Seen, Spent, seen_at_the_end
from tests.benchmarks.sweeps import ONCE, ran

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
no_windows = pytest.mark.skipif(sys.platform == "win32", reason="no CPU time of children")
STILL = "synthetic?noise=0"
SMALL = {"backend": "flash", "seq_len": "1k..4k*2"}


def verdicts(numbers: Sequence[Number]) -> dict[str, bool | None]:
    return {number.name: number.met for number in numbers}


@pytest.mark.parametrize(("met", "code"), [(True, 0), (None, 0), (False, 1)])
def test_a_missed_number_is_the_exit_code(
    met: bool | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def theme(busy: bool) -> list[Number]:
        return [Number(name="a number", found="3 s", wanted="2 s", met=met, how="by hand")]

    monkeypatch.setitem(command.THEMES, "growth", theme)
    assert command.main(["--only", "growth"]) == code
    printed = capsys.readouterr().out
    assert "a number" in printed and "by hand" in printed
    assert ("1 missed" in printed) == (met is False)


def test_left_to_itself_running_is_measured_quiet_and_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[tuple[str, bool]] = []

    def noted(name: str) -> Theme:
        def theme(busy: bool) -> list[Number]:
            visited.append((name, busy))
            return []

        return theme

    monkeypatch.setattr(running, "busy_cores", contextlib.nullcontext)
    for name in command.THEMES:
        monkeypatch.setitem(command.THEMES, name, noted(name))
    command.main([])
    assert visited == [*((name, False) for name in command.THEMES), ("running", True)]
    visited.clear()
    command.main(["--busy"])
    assert visited == [(name, True) for name in command.THEMES]


@linux
def test_spinning_processes_end_with_what_they_disturb() -> None:
    with running.busy_cores(True) as spinning:
        assert spinning and all(process.poll() is None for process in spinning)
    assert all(process.poll() is not None for process in spinning)
    with running.busy_cores(False) as spinning:
        assert not spinning


@linux
def test_running_counts_workers_and_intervals() -> None:
    assert running.worker_cpu_s(STILL, num_workers=2) >= 0
    quiet = ran(Asked(axes=SMALL, device=STILL)).outcome
    assert verdicts(running.of_sweep(quiet, busy=True)) == {
        "wall time in warm-up or timed calls": False,  # the clock is virtual
        "workloads within ±2 %": True,
        "rows that say contended and show CPU time": False,
    }
    disturbed = ran(Asked(axes=SMALL, device=f"{STILL}&contended=1")).outcome
    told = verdicts(running.of_sweep(disturbed, busy=True))
    assert told["rows that say contended and show CPU time"]


def test_growth_finds_the_exponents_of_a_known_law() -> None:
    timed = ran(growth.asked("flash", "full,causal", "4k..32k*2", STILL))
    weighed = ran(growth.asked("eager,math", "full", "1k..8k*2", STILL), ONCE)
    numbers = growth.of_sweeps(timed, weighed)
    assert len(numbers) == 5
    assert all(number.met is not False for number in numbers)
    assert [number.name for number in numbers if number.met is None] == [
        "exponent of n, CPU time of flash, causal"
    ]


@pytest.mark.torch
def test_memory_is_held_against_formulas_byte_by_byte() -> None:
    pytest.importorskip("torch")
    weighed = {2: memory.prefills(2, "64,128")}
    numbers = memory.of_sweeps(weighed, memory.caches_grown(48))
    assert len(numbers) == 3 + 3
    assert all(number.met for number in numbers)


@pytest.mark.parametrize("kv_cache", ["contiguous", "static", "paged"])
def test_a_cache_that_grows_otherwise_is_a_missed_number(kv_cache: str) -> None:
    grown = memory.caches_grown(40, STILL)
    [kv] = [kv for kv in grown.fits["kv"] if kv["where"]["kv_cache"] == kv_cache]
    record = grown.outcome.records[0]
    assert memory.growth_number(kv, record).met
    assert not memory.growth_number(kv | {"overshoot_bytes": 17}, record).met


def test_caches_are_compared_within_a_run() -> None:
    axes = caches.DECODE | {"kv_cache": caches.CACHES, "kv_len": "512,1k"}
    paged = caches.paged_numbers(caches.records_of(axes, STILL))
    assert [number.found for number in paged] == ["1.00×"] * 4  # the law knows no block table
    assert all(number.met is None for number in paged)
    quantised = caches.quantised_numbers(caches.quantised("512", STILL))
    assert [number.found for number in quantised] == ["0.2656", "0.1406", "0.2656", "0.2656"]
    assert all(number.met for number in quantised)
    assert caches.absorbed_number(caches.latent("8k", STILL)).met


@pytest.mark.parametrize(("slower", "met"), [("", True), ("&slow=generate*static*:1e3", False)])
def test_what_a_cache_buys_is_judged(slower: str, met: bool) -> None:
    axes = {"phase": "generate", "kv_cache": "none,static", "start_len": "256", "kv_len": "384"}
    assert caches.bought_number(caches.records_of(axes, f"{STILL}{slower}")).met is met


def test_a_cache_without_its_scales_is_a_missed_number() -> None:
    records = caches.quantised("512", STILL)
    short = [
        {**record, "kv_bytes": record["kv_bytes"] * 64 // 68}
        if record["kv_dtype"] == "int8"
        else record
        for record in records
    ]
    assert [number.met for number in caches.quantised_numbers(short)] == [False, True, True, True]


@no_windows
@pytest.mark.torch
def test_start_up_takes_each_command_in_turns() -> None:
    pytest.importorskip("torch")
    spent = start_up.spent_by_commands(turns=1)
    assert set(spent) == {"import typer", "--help", "--version", "plan"}
    assert all(one.cpu_s > 0 and one.wall_s > 0 for one in spent.values())


@pytest.mark.parametrize(("times", "met"), [(3.0, True), (3.1, False)])
def test_start_up_is_judged_as_a_ratio(times: float, met: bool) -> None:
    spent = dict.fromkeys(("--help", "--version", "plan"), Spent(0.07 * times, 9.0))
    numbers = verdicts(start_up.of_times({"import typer": Spent(0.07, 1.0), **spent}, busy=False))
    assert numbers["CPU of attnprof --help"] is numbers["CPU of attnprof --version"] is met
    assert numbers["sweep prints its plan"] is False, "nine seconds by the wall clock"


def test_no_heavy_module_is_behind_help_and_version() -> None:
    assert [seen_at_the_end(*one).heavy for one in start_up.COMMANDS.values()] == [(), ()]


def test_torch_is_not_loaded_by_the_process_of_a_sweep() -> None:
    assert "torch" not in start_up.heavy_after_sweep("synthetic")


@pytest.mark.torch
def test_torch_is_loaded_by_the_workers_of_a_real_sweep_alone() -> None:
    pytest.importorskip("torch")
    assert "torch" not in start_up.heavy_after_sweep("cpu")


def test_no_garbage_is_looked_for_when_a_command_ends() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 10_000))\n"
        "sys.argv = ['attnprof', '--version']\n"
        "from attnprof.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("frozen True\n")


def test_a_heavy_module_that_is_loaded_is_seen() -> None:
    grid = ("estimate", "llama-3.1-8b", "--gpu", "h100,h200")
    assert "numpy" in seen_at_the_end(*grid).heavy


def test_a_command_that_fails_is_not_taken_for_a_light_one() -> None:
    with pytest.raises(RuntimeError, match="ended with 2"):
        seen_at_the_end("show", "nothing")


def test_an_estimate_loads_nothing_heavy() -> None:
    seen = seen_at_the_end(*estimating.COMMAND)
    assert not set(estimating.NEVER_LOADED) & set(seen.heavy)


def test_estimating_is_judged_by_ratio_memory_and_modules() -> None:
    request = estimating.grid_request(num_lens=1)
    light = {"import typer": Spent(0.07, 1.0), "estimate": Spent(0.28, 1.0)}
    good = estimating.of_measured(light, Seen((), 59_000_000), request, 1.9)
    assert all(number.met for number in good)
    heavy = light | {"estimate": Spent(0.29, 1.0)}
    bad = estimating.of_measured(heavy, Seen(("torch",), 61_000_000), request, 2.1)
    assert not any(number.met for number in bad)
    unknown = estimating.of_measured(light, Seen((), None), request, 1.9)
    assert unknown[1].found == "unknown" and unknown[1].met is None


@no_windows
def test_a_comparison_is_timed_of_runs_of_as_many_workloads_as_asked(tmp_path: Path) -> None:
    command = comparing.written_runs(tmp_path, num_workloads=20)
    assert len(read_run(Path(command[1])).records) == 20
    seen = seen_at_the_end(*command)
    assert not set(comparing.NEVER_LOADED) & set(seen.heavy)
    [spent, heavy] = comparing.of_measured(Spent(0.59, 1.0), seen)
    assert spent.met and heavy.met
    [spent, heavy] = comparing.of_measured(Spent(0.61, 1.0), Seen(("pandas",), None))
    assert not spent.met and not heavy.met


def test_a_grid_is_timed_over_every_combination() -> None:
    request = estimating.grid_request(num_lens=1)
    assert estimating.grid_cpu_s(request) > 0
    assert estimating.grid_request().num_combinations >= 100_000


def test_as_many_records_are_fitted_as_are_asked_for(tmp_path: Path) -> None:
    assert fitting.fit_cpu_s(tmp_path / "run", 200) > 0
    assert len(read_run(tmp_path / "run").records) == 200
    assert fitting.latency_cpu_s() > 0


def test_fitting_is_judged_by_cpu_time() -> None:
    assert all(number.met for number in fitting.of_measured(9.9, 0.019))
    assert not any(number.met for number in fitting.of_measured(10.1, 0.021))


def test_a_report_is_timed_over_as_many_records_as_are_asked_for(tmp_path: Path) -> None:
    folder = reporting.written_run(tmp_path / "run", 40)
    assert len(read_run(folder).records) == 40
    found = reporting.reported(folder)
    assert found.read_s > 0 and found.report_s > 0
    assert (folder / "report.md").exists()


def test_reporting_is_judged_by_ratios_and_cpu_time() -> None:
    small = reporting.Reported(read_s=0.2, report_s=1.0)
    good = reporting.of_measured(small, reporting.Reported(read_s=2.0, report_s=14.0))
    assert all(number.met for number in good)
    bad = reporting.of_measured(small, reporting.Reported(read_s=1.5, report_s=26.0))
    assert not any(number.met for number in bad)


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["flash", "eager"])
def test_models_are_timed_on_the_librarys_own_weights(backend: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.benchmarks import models

    tiny = {**models.CONFIG, "hidden_size": 32, "head_dim": 8, "vocab_size": 64}
    found = models.of_kernel(backend, tiny, models.Lengths(prompt=4, decoded=2, rounds=2))
    assert [number.name.partition(" ")[0] for number in found] == ["prefill", "decode"]
    assert all(float(number.found) > 0 for number in found)
