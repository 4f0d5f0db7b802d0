import io
from typing import Any

import pytest

from attnprof.medians import Interval
from attnprof.progress import LiveWatcher, PlainWatcher, SilentWatcher, record_line
from attnprof.workload import Workload

WORKLOAD = Workload(backend="flash", q_len=64, kv_len=64)
DONE: dict[str, Any] = {
    "workload_id": "a", "status": "ok", "clock": "cpu", "flags": ["contended"],
    "median_s": 0.002, "median_low_s": 0.00199, "median_high_s": 0.00201,
}  # fmt: skip
FAILED: dict[str, Any] = {"workload_id": "b\x1b[2J", "status": "crashed", "reason": "signal\n11"}


def test_a_line_says_the_figure_its_interval_its_clock_and_what_to_mistrust() -> None:
    assert record_line(DONE) == "a: 2 ms ± 0.5 % CPU (contended)"


def test_a_line_cannot_steer_the_terminal() -> None:
    assert record_line(FAILED) == "b\ufffd[2J: crashed: signal 11"


def test_without_a_terminal_each_record_is_a_line_and_silence_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("attnprof.progress.time.monotonic", lambda: clock[0])
    out = io.StringIO()
    watch = PlainWatcher(out)
    watch.started(3, 1)
    watch.visit(WORKLOAD, 0, "warm-up", 0, Interval(None, None, None))
    watch.time_left(42.0)
    clock[0] = 11.0
    watch.visit(WORKLOAD, 1, "measure", 0, Interval(None, None, None))
    watch.record(DONE)
    watch.note("drift")
    assert out.getvalue().splitlines() == [
        "measuring 3 workloads, 1 kept from before",
        f"round 2: {WORKLOAD.workload_id}: measure, about 40 s left",
        "[2/3] a: 2 ms ± 0.5 % CPU (contended)",
        "note: drift",
    ]


def test_a_live_display_keeps_what_is_done() -> None:
    out = io.StringIO()
    with LiveWatcher(out) as watch:
        watch.started(2, 0)
        watch.visit(WORKLOAD, 0, "measure", 8, Interval(0.001, 0.00099, 0.00101))
        watch.record(DONE)
        watch.record(FAILED)
        watch.note("drift")
        watch.time_left(5.0)
    said = out.getvalue()
    assert record_line(DONE) in said
    assert "crashed" in said
    assert "note: drift" in said


def test_quiet_means_notes_alone() -> None:
    out = io.StringIO()
    watch = SilentWatcher(out)
    watch.started(2, 0)
    watch.visit(WORKLOAD, 0, "measure", 0, Interval(None, None, None))
    watch.record(DONE)
    watch.time_left(5.0)
    watch.note("drift")
    assert out.getvalue() == "note: drift\n"


class NobodyListens(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, NobodyListens()])
def test_a_listener_that_left_ends_no_sweep(stream: io.StringIO | None) -> None:
    for watch in (PlainWatcher(stream), SilentWatcher(stream)):
        watch.started(1, 0)
        watch.record(DONE)
        watch.note("drift")
