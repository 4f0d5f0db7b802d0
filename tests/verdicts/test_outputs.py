"""What CI shows of a comparison: golden files, what is escaped, what is cut, and what is red."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped

from attnprof.errors import CannotMeasureError
from attnprof.verdicts.comparison import (
    FAIL_ON,
    VERDICTS,
    Comparison,
    Difference,
    MetricVerdict,
    Ratio,
    Side,
    WorkloadVerdict,
)
from attnprof.verdicts.outputs.annotations import MOST, annotation_lines
from attnprof.verdicts.outputs.files import write_outputs
from attnprof.verdicts.outputs.junit import WHOLE, junit_text
from attnprof.verdicts.outputs.markdown import MARKER, MOST_BYTES, markdown_comment

SLOWER = MetricVerdict(
    "latency",
    "regressed",
    0.03,
    0.0426,
    Ratio(1.42, 1.39, 1.45),
    0.05,
    0.021,
    1e-9,
    (20, 20),
    "cpu",
)
SAME = MetricVerdict(
    "latency", "same", 4e-4, 4.04e-4, Ratio(1.01, 0.99, 1.03), 0.05, 0.031, 0.2, (5, 5), "cpu"
)
UNSURE = MetricVerdict(
    "latency",
    "inconclusive",
    2e-3,
    2.1e-3,
    Ratio(1.05, 0.95, 1.16),
    0.05,
    0.14,
    0.04,
    (20, 20),
    "cpu",
)
GREW = MetricVerdict("kv_bytes", "regressed", 131072, 262144, Ratio(2.0))
KEPT = MetricVerdict("kv_bytes", "same", 131072, 131072, Ratio(1.0))
OVER = MetricVerdict(
    "peak_memory", "regressed", 2**30, 3 * 2**30, Ratio(3.0), 0.01, limit=2 * 2**30
)


def workload(name: str, verdict: str, *metrics: MetricVerdict, **others: str) -> WorkloadVerdict:
    axes = {"phase": name.split("-")[0], "backend": name.split("-")[1]}
    return WorkloadVerdict(name, axes, verdict, metrics, **others)


def side(name: str) -> Side:
    return Side(name, f"runs/{name}", "0.1.0", "AMD EPYC", 7)


EVERY = Comparison(
    side("main"),
    side("topic"),
    (
        workload("prefill-flash-s2048", "regressed", SLOWER, KEPT),
        workload("decode-flash-kv8192", "regressed", SAME, OVER, GREW),
        workload("decode-math-kv8192", "failed", reason="crashed: signal 11, not <b>ours</b>"),
        workload("prefill-eager-s512", "missing", reason="main has it, topic has not"),
        workload("prefill-math-s512", "inconclusive", UNSURE, KEPT),
        workload("decode-eager-kv512", "regressed", SLOWER, allowed="known since 41, ask @nobody"),
        workload("prefill-flex-s512", "improved", replace(SAME, verdict="improved")),
        workload("decode-flex-kv512", "new", reason="main has none"),
        workload("decode-flex-kv8192", "same", SAME, KEPT),
    ),
    Ratio(1.08, 1.02, 1.15),
    (
        Difference("torch", "2.12.0", "2.13.0", "subject"),
        Difference("governor", None, "x|y", "soft"),
    ),
    ("Both sides wrote under 5 launches.",),
    paired=True,
    num_expected=9,
)


def of(*workloads: WorkloadVerdict, **others: Any) -> Comparison:
    return replace(EVERY, workloads=workloads, num_expected=len(workloads), **others)


def cases(comparison: Comparison) -> dict[str, list[object]]:
    document = JUnitXml.fromstring(junit_text(comparison).encode())
    return {case.name: list(case.result) for suite in document for case in suite}


def test_junit_says_of_each_workload_what_failed(golden: Callable[[str, str], None]) -> None:
    golden("verdicts/comparison.junit.xml", junit_text(EVERY))
    found = cases(EVERY)
    assert isinstance(found["prefill-flash-s2048"][0], Failure)
    assert isinstance(found["decode-math-kv8192"][0], Error)
    assert isinstance(found["prefill-math-s512"][0], Skipped)
    assert isinstance(found["decode-eager-kv512"][0], Skipped)
    assert found["decode-flex-kv8192"] == found["prefill-flex-s512"] == []


def test_the_comment_and_annotations_read_as_kept(golden: Callable[[str, str], None]) -> None:
    golden("verdicts/comparison.md", markdown_comment(EVERY))
    golden("verdicts/annotations.txt", "\n".join(annotation_lines(EVERY)) + "\n")


@given(
    st.lists(st.sampled_from(VERDICTS), max_size=4),
    st.lists(st.sampled_from(FAIL_ON), unique=True),
    st.booleans(),
)
def test_junit_is_red_exactly_where_the_exit_code_is(
    verdicts: list[str], fail_on: list[str], allowed: bool
) -> None:
    known = {"allowed": "known"} if allowed else {}
    comparison = of(
        *(workload(f"decode-x-{n}", verdict, **known) for n, verdict in enumerate(verdicts)),
        fail_on=tuple(fail_on),
    )
    results = [result for found in cases(comparison).values() for result in found]
    is_red = any(isinstance(result, Error | Failure) for result in results)
    assert is_red == (comparison.exit_code != 0)
    assert annotation_lines(comparison)[-1].startswith("::error" if is_red else "::notice")


def test_a_comparison_that_decided_nothing_is_an_error_in_junit() -> None:
    unsure = of(workload("prefill-math-s512", "inconclusive", UNSURE))
    assert unsure.exit_code == 3
    assert isinstance(cases(unsure)[WHOLE][0], Error)
    assert "nothing was decided" in markdown_comment(unsure)


def test_what_was_interrupted_is_red_wherever_it_is_shown() -> None:
    calm = of(workload("prefill-math-s512", "same", SAME), interrupted=True)
    assert calm.exit_code == 130
    assert isinstance(cases(calm)[WHOLE][0], Error)
    assert annotation_lines(calm)[-1].startswith("::error")
    assert "## attnprof: interrupted; 1 of 1 workloads compared\n" in markdown_comment(calm)
    slower = replace(calm, workloads=(workload("prefill-math-s512", "regressed", SLOWER),))
    assert "1 regressed; interrupted" in cases(slower)[WHOLE][0].message  # type: ignore[attr-defined]


def test_what_got_worse_and_fails_nothing_is_not_called_as_good_as_before() -> None:
    known = of(workload("prefill-math-s512", "regressed", SLOWER, allowed="known"))
    unasked = of(workload("prefill-math-s512", "regressed", SLOWER), fail_on=("missing",))
    for comparison in (known, unasked):
        assert comparison.exit_code == 0
        assert "nothing fails, though 1 got worse" in markdown_comment(comparison)


def test_an_effect_that_only_far_larger_ones_pass_is_told_as_such() -> None:
    blind = replace(UNSURE, smallest_seen=214.96)
    text = markdown_comment(of(workload("prefill-math-s512", "inconclusive", blind)))
    assert "> +1000 %".replace(">", "&gt;") in text and "21496" not in text


def test_a_step_shows_ten_annotations_and_counts_the_rest() -> None:
    def lines(count: int) -> list[str]:
        return annotation_lines(
            of(*(workload(f"decode-math-{n}", "regressed", SLOWER) for n in range(count)))
        )

    assert MOST == 10
    assert [len(lines(count)) for count in (1, 9, 10, 400)] == [2, 10, 10, 10]
    assert "more" not in "".join(lines(9))
    assert lines(10)[-2].endswith("::and 2 more; the report lists them all")
    assert lines(400)[-2].endswith("::and 392 more; the report lists them all")


@given(st.text(), st.text())
def test_no_name_or_reason_ends_an_annotation_or_begins_another(name: str, reason: str) -> None:
    evil = of(WorkloadVerdict(name, {}, "failed", reason=reason or None))
    for line in annotation_lines(evil):
        found = re.fullmatch(r"::(error|notice) title=([^:,\r\n]*)::([^\r\n]*)", line)
        assert found
        assert not re.search(r"%(?!25|0A|0D|3A|2C)", found[2] + found[3])


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_name_and_reason_make_a_document_that_parses(text: str) -> None:
    evil = of(WorkloadVerdict(text, {"phase": text}, "failed", reason=text or None))
    assert len(cases(replace(evil, base=side(text)))) == 1


def test_names_from_elsewhere_are_escaped_and_call_nobody() -> None:
    text = markdown_comment(EVERY)
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "@nobody" not in text
    assert "x\\|y" in text
    sides = markdown_comment(replace(EVERY, base=side("a`b\n# @c")))
    assert "`a'b # @c`" in sides


def test_a_comment_of_thousands_of_workloads_fits_and_counts_what_it_leaves_out() -> None:
    many = of(*(workload(f"decode-math-{n}", "regressed", SLOWER) for n in range(3000)))
    text = markdown_comment(many)
    assert len(text.encode()) <= MOST_BYTES
    shown = text.count("decode-math-")
    assert 50 < shown < 3000
    assert f"No room for {3000 - shown} more workloads." in text
    endless = markdown_comment(of(EVERY.workloads[0], notes=("é" * 100_000,)))
    assert len(endless.encode()) <= MOST_BYTES
    assert endless.endswith("Cut here.\n")


def test_failing_workloads_come_first() -> None:
    text = markdown_comment(EVERY)
    order = [text.index(w.workload_id) for w in EVERY.failing]
    assert max(order) < text.index("decode-eager-kv512") < text.index("<details>")


def test_files_and_the_step_summary_are_written(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    lines = write_outputs(
        EVERY,
        junit=tmp_path / "new folder" / "junit.xml",
        markdown=tmp_path / "comment.md",
        environment={"GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert lines == []
    assert (tmp_path / "new folder" / "junit.xml").read_text() == junit_text(EVERY)
    assert (tmp_path / "comment.md").read_text() == markdown_comment(EVERY)
    assert summary.read_text() == f"before\n{markdown_comment(EVERY)}"
    assert markdown_comment(EVERY).startswith(MARKER)


def test_outside_of_ci_nothing_is_written_unasked(tmp_path: Path) -> None:
    assert write_outputs(EVERY, environment={}) == []
    assert write_outputs(EVERY, annotations=True, environment={}) == annotation_lines(EVERY)


def test_a_file_that_was_asked_for_is_an_error_and_a_summary_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasureError, match="cannot write"):
        write_outputs(EVERY, junit=tmp_path, environment={})
    lines = write_outputs(EVERY, environment={"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "no")})
    assert len(lines) == 1
    assert "cannot write the step summary" in lines[0]
