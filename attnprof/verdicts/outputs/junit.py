"""A comparison -> JUnit XML: a test a workload, its figures as properties.

A regression is a ``failure``, whatever else makes the whole fail an ``error``; what was not
decided, or is allowed, is ``skipped``. So no test passes that was not found to be good, and the
file has a failure or an error exactly where the exit code is not 0.
"""

import io
import re
from collections.abc import Iterator
from typing import Any

from attnprof.render import plain
from attnprof.verdicts.comparison import Comparison, WorkloadVerdict
from attnprof.verdicts.outputs.sentences import (
    difference_text,
    headline,
    ratio_text,
    workload_sentence,
)

SUITE = "attnprof"
WHOLE = "the whole comparison"
_PASSED = ("same", "improved")
_NOT_IN_XML = re.compile("[\ufffe\uffff]")  # beyond the control characters, which plain() removes


def junit_text(comparison: Comparison) -> str:
    """The document as text.

    Source:
        The dialect of Jenkins' xunit plugin (junit-10.xsd), with properties of a test as pytest
        writes them.
    """
    from junitparser import TestSuite

    suite = TestSuite(SUITE)
    for name, value in _suite_properties(comparison):
        suite.add_property(name, _xml_text(value))
    failing = {workload.workload_id for workload in comparison.failing}
    cases = [
        _case(workload, fails=workload.workload_id in failing) for workload in comparison.workloads
    ]
    if comparison.interrupted or (comparison.exit_code and not failing):
        kind = "interrupted" if comparison.interrupted else comparison.verdict
        cases.append(_whole(headline(comparison), kind))
    suite.add_testcases(cases)
    return _text(suite)


def refused_text(problem: str) -> str:
    """The document of a comparison that there is none of: one error, so that no file is green."""
    from junitparser import TestSuite

    suite = TestSuite(SUITE)
    suite.add_testcases([_whole(problem, "refused")])
    return _text(suite)


def _text(suite: Any) -> str:
    from junitparser import JUnitXml

    document = JUnitXml()
    document.add_testsuite(suite)
    document.update_statistics()
    written = io.BytesIO()
    document.write(written, pretty=True)
    return written.getvalue().decode("utf-8")


def _case(workload: WorkloadVerdict, *, fails: bool) -> Any:
    from junitparser import Error, Failure, Properties, Property, Skipped, TestCase

    phase, backend = (str(workload.axes.get(key, "unknown")) for key in ("phase", "backend"))
    case = TestCase(_xml_text(workload.workload_id), _xml_text(f"{SUITE}.{phase}.{backend}"))
    latency = workload.metric("latency")
    if latency is not None and latency.new is not None:
        case.time = latency.new
    properties = Properties()
    for name, value in _properties(workload):
        properties.add_property(Property(name, _xml_text(value)))
    case.append(properties)
    sentence = _xml_text(workload_sentence(workload))
    if fails:
        result = Failure if workload.verdict == "regressed" else Error
        case.result = result(sentence, workload.verdict)
    elif workload.verdict not in _PASSED:
        case.result = Skipped(sentence, workload.verdict)
    return case


def _whole(sentence: str, kind: str) -> Any:
    from junitparser import Error, TestCase

    case = TestCase(WHOLE, SUITE)
    case.result = Error(_xml_text(sentence), kind)
    return case


def _suite_properties(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "base", comparison.base.name
    yield "new", comparison.new.name
    yield "verdict", comparison.verdict
    yield "paired", str(comparison.paired).lower()
    yield "num_compared", str(comparison.num_compared)
    yield "num_expected", str(comparison.num_expected)
    yield "geometric_mean", ratio_text(comparison.geometric_mean)
    for difference in comparison.differences:
        yield f"difference.{difference.key}", difference_text(difference)


def _properties(workload: WorkloadVerdict) -> Iterator[tuple[str, str]]:
    """Raw figures: seconds, bytes and plain ratios; what is unknown is left out."""
    yield "verdict", workload.verdict
    for metric in workload.metrics:
        figures: dict[str, Any] = {
            "verdict": metric.verdict,
            "base": metric.base,
            "new": metric.new,
            "ratio": metric.ratio.mid,
            "ratio_low": metric.ratio.low,
            "ratio_high": metric.ratio.high,
            "threshold": metric.threshold,
            "limit": metric.limit,
            "smallest_seen": metric.smallest_seen,
            "p_value": metric.p_value,
            "clock": metric.clock,
        }
        for name, value in figures.items():
            if value is not None:
                yield f"{metric.metric}.{name}", str(value)


def _xml_text(text: str) -> str:
    """``text`` in one line, of characters that XML 1.0 has."""
    return _NOT_IN_XML.sub("\ufffd", plain(text))
