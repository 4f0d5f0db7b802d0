from attnprof import machine


def test_every_finding_has_a_verdict_and_what_disturbs_says_what_helps() -> None:
    found = machine.findings()
    assert {finding.verdict for finding in found} <= {"ok", "disturbs", "missing", "unknown"}
    assert any(finding.what == "Python" for finding in found)
    assert len({finding.what for finding in found}) == len(found)


def test_every_meter_says_what_it_reads_or_why_it_cannot() -> None:
    for kind in ("cpu", "cuda", "mps"):
        found = machine.meters(kind)
        assert any(what == "peak memory" for what, _, _ in found)
        assert all(how for _, _, how in found)
