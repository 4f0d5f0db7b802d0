"""A file of thresholds says which rise counts; one that makes no sense is refused."""

import datetime
from pathlib import Path

import pytest

from attnprof.errors import UsageError
from attnprof.verdicts.thresholds import DEFAULTS, Threshold, Thresholds, read_thresholds

TODAY = datetime.date(2026, 12, 1)
AXES = {"phase": "decode", "backend": "flash", "dtype": "int8"}
ID = "decode-full-flash-int8"


def read(folder: Path, text: str) -> Thresholds:
    path = folder / "thresholds.yaml"
    path.write_text(text, encoding="utf-8")
    return read_thresholds(path, TODAY)


def test_the_last_rule_that_matches_wins_and_the_default_holds_elsewhere(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
format: 1
thresholds: {peak_memory: 2% or 1MiB}
rules:
  - {match: 'decode-*', latency: 12%, reason: noisy}
  - {where: {backend: [flash, math], dtype: int8}, latency: 20%, kv_bytes: 1%, reason: newer}
""",
    )
    assert found.of("latency", ID, AXES) == Threshold(0.20)
    assert found.of("latency", ID, {**AXES, "backend": "eager"}) == Threshold(0.12)
    assert found.of("latency", "prefill-full", {}) == DEFAULTS["latency"]
    assert found.of("peak_memory", ID, AXES) == Threshold(0.02, 2**20)
    assert found.of("kv_bytes", ID, AXES) == Threshold(0.01)
    assert found.of("kv_bytes", "prefill-full", {}) == Threshold(0.0)


def test_an_allowance_covers_its_metric_and_all_only_where_it_names_none(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
format: 1
allow:
  - {match: 'decode-*', metric: peak_memory, reason: kept for the check}
  - {match: 'prefill-*', reason: known, until: 2026-12-01}
""",
    )
    assert found.allowed(["peak_memory"], ID, AXES) == "kept for the check"
    assert found.allowed(["peak_memory", "latency"], ID, AXES) is None
    assert found.allowed([], ID, AXES) is None
    assert found.allowed(["latency"], "prefill-full", {}) == "known"
    assert found.allowed([], "prefill-full", {}) == "known"


def test_limits_of_several_entries_hold_together(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
format: 1
limits:
  - {match: '*', peak_memory: 2GiB, ttft: 200ms}
  - {match: 'decode-*', peak_memory: 512MiB, latency: 2s}
""",
    )
    assert found.most(ID, AXES) == {"peak_memory": 2**29, "ttft": 0.2, "latency": 2.0}
    assert found.most("prefill-full", {}) == {"peak_memory": 2**31, "ttft": 0.2}


def test_what_matches_nothing_is_told_and_a_limit_that_does_is_refused(tmp_path: Path) -> None:
    rule = "format: 1\nrules: [{match: 'generate-*', latency: 9%, reason: slow}]\n"
    assert "generate-*" in read(tmp_path, rule).unused({ID: AXES})[0]
    limit = read(tmp_path, "format: 1\nlimits: [{match: 'generate-*', ttft: 1s}]\n")
    with pytest.raises(UsageError, match="matches no workload"):
        limit.unused({ID: AXES})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no mapping"),
        ("thresholds: {latency: 5%}", "lacks the key 'format'"),
        ("format: 2\nthresholds: {latency: 5%}", "format 2"),
        ("format: true\nthresholds: {latency: 5%}", "format True"),
        ("format: 1", "says nothing"),
        ("format: 1\nthreshold: {latency: 5%}", "unknown key 'threshold'"),
        ("format: 1\nthresholds: 5%", "thresholds is '5%'"),
        ("format: 1\nthresholds: {latncy: 5%}", "unknown key 'latncy'"),
        ("format: 1\nthresholds: {latency: 0.05}", "latency is 0.05"),
        ("format: 1\nthresholds: {latency: -5%}", "latency is '-5%'"),
        ("format: 1\nthresholds: {latency: 0%}", "latency is '0%'"),
        ("format: 1\nthresholds: {latency: 5000%}", "latency is '5000%'"),
        ("format: 1\nthresholds: {latency: exact}", "latency is 'exact'"),
        ("format: 1\nthresholds: {latency: 5% or 1MiB}", "latency is '5% or 1MiB'"),
        ("format: 1\nthresholds: {latency: .nan}", "latency is nan"),
        ("format: 1\nthresholds: {peak_memory: 1% or 0B}", "is ' ?0B'"),
        ("format: 1\nthresholds: {peak_memory: 1% or much}", "'much' is not a size"),
        ("format: 1\nrules: {match: a}", "rules is no list"),
        ("format: 1\nrules: [{match: a, latency: 5%}]", "lacks the key 'reason'"),
        ("format: 1\nrules: [{match: a, latency: 5%, reason: ''}]", "reason is ''"),
        ("format: 1\nrules: [{match: a, reason: why}]", "has no threshold"),
        ("format: 1\nrules: [{latency: 5%, reason: why}]", "says of no workload"),
        ("format: 1\nrules: [{match: '', latency: 5%, reason: why}]", "match is ''"),
        ("format: 1\nrules: [{where: {backnd: a}, latency: 5%, reason: why}]", "no 'backnd'"),
        ("format: 1\nallow: [{match: a, metric: speed, reason: why}]", "metric is 'speed'"),
        ("format: 1\nallow: [{match: a, reason: why, until: 2026-11-30}]", "has expired"),
        ("format: 1\nallow: [{match: a, reason: why, until: soon}]", "until is 'soon'"),
        ("format: 1\nlimits: [{match: a}]", "has no limit"),
        ("format: 1\nlimits: [{match: a, ttft: 200}]", "without a unit"),
        ("format: 1\nlimits: [{match: a, ttft: 2GiB}]", "ttft"),
        ("format: 1\nlimits: [{match: a, ttft: 0ms}]", "ttft is '0ms'"),
        ("format: 1\nlimits: [{match: a, peak_memory: '5'}]", "without a unit"),
        ("format: 1\nlimits: [{match: a, peak_memory: 0GiB}]", "peak_memory is '0GiB'"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        read(tmp_path, text)
    assert refused.value.fix


def test_the_example_in_the_docs_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    [example] = [part for part in page.split("```") if part.startswith("yaml\nformat: 1")]
    found = read(tmp_path, example.removeprefix("yaml\n"))
    assert found.rules or found.allowances or found.limits
